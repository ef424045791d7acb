"""Numbers, names, tokens and rows as plain text, for every view: terminal, notebook, report and explorer."""

from __future__ import annotations

import csv
import io
import math
from functools import cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from ..common import output
from ..common.output import printable
from ..store.run import Run


def number(value: float, form: str) -> str:
    """A number as text; a dash if there is none to show (NaN, ±∞)."""
    return format(value, form) if math.isfinite(value) else "–"


def share(value: float) -> str:
    """A share in percent; one that rounds to nothing is not shown as nothing."""
    return "<0.01%" if 0 < value < 5e-5 else number(value, ".2%")


def model_name(run: Run) -> str:
    """The model's name, and which control it is if it is one."""
    return run.model_name


def other_side(run: Run) -> str:
    """The side of a cell on which its coefficients are below zero. With a gate, which side that is is a convention."""
    return "the other side" if run.gated else "the negative side"


def decimal(value: Any, digits: int | None = None) -> str:
    """A number of a table, for reading: with `digits` after the point, or as many as its size asks for."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float):
        small = 0 < abs(value) < 0.001
        chosen = 1 - math.floor(math.log10(abs(value))) if small else 0 if abs(value) >= 1000 else 4
        return f"{value:,.{chosen if digits is None else digits}f}".replace("-", "−")
    return f"{value:,}" if isinstance(value, int) else str(value)


def significant(value: float) -> str:
    """A number in three digits: −0.0123, 4.5, 12,300."""
    if not math.isfinite(value):
        return "–"
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")


def with_interval(value: float, lo: float | None, hi: float | None) -> str:
    """A number and its interval, each down to the second digit of the interval's half width: 0.0123 (0.0110 to 0.0136)."""
    if lo is None or hi is None or not math.isfinite(hi - lo):
        return significant(value)
    half = (hi - lo) / 2
    digits = min(8, max(0, 1 - math.floor(math.log10(half)))) if half > 0 else 4
    number, low, high = (f"{each:,.{digits}f}".replace("-", "−") for each in (value, lo, hi))
    return f"{number} ({low} to {high})"


def blank(token: str) -> str:
    """A token that is empty or only white space, made visible."""
    if not token:
        return "(empty)"
    return "".join("␣" if c == " " else c if c in "\n\r\t" else f"U+{ord(c):04X}" for c in token)


def tail(text: str, length: int) -> str:
    """The end of a long text, from the beginning of a word if one is near."""
    if len(text) <= length:
        return text
    end = text[-length:]
    space = end.find(" ", 0, 20)
    return "…" + (end[space + 1 :] if space >= 0 else end)


def head(text: str, length: int) -> str:
    """The beginning of a long text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def safe(value: Any) -> Any:
    """For jinja2's `finalize`: control and direction characters of a text become visible signs. Markup stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def parts() -> str:
    """Macros of jinja2 that several templates begin with."""
    return (resources.files(__package__) / "parts.html").read_text("utf-8")


def quoted(piece: str) -> str:
    return f"‘{printable(piece)}’"


def readable(value: Any) -> str:
    """A value of a row, for reading."""
    value = output.plain(value)
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return printable(str(value))


def as_csv(table: list[dict[str, Any]], *, on_terminal: bool = False, heading: bool = True) -> str:
    """A line of names, then the rows. Text is quoted, since a token may be a line end; on a terminal it is made visible."""
    out = io.StringIO()
    names, fields = list(table[0]) if table else [], [[_csv_value(value) for value in row.values()] for row in table]
    if on_terminal:
        names = [printable(name) for name in names]
        fields = [[printable(value) if isinstance(value, str) else value for value in row] for row in fields]
    if names and heading:
        csv.writer(out, lineterminator="\n").writerow(names)
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(fields)
    return out.getvalue()


FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""A spreadsheet takes a text that begins so for a formula (or, with the apostrophe, for the sign of a text)."""


def _csv_value(value: Any) -> Any:
    """A value of a row: lists and records as JSON, since CSV has no form for them. A text that a spreadsheet would run as a formula
    has an apostrophe before it: tokens come from anyone. To undo it, take one apostrophe off the beginning."""
    if isinstance(value, (list, tuple, dict)):
        value = output.as_json(value)
    elif value is not None and not isinstance(value, (int, float, str)):
        value = str(output.plain(value))
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def signs(run: Run) -> str:
    """Which signs the coefficients of a run have."""
    if run.gated and run.manifest["config"]["shard"] is None:
        return "both signs; each cell is read with the sign of its strongest coefficient"
    return "both signs" if run.signed else "never negative"
