"""Numbers, names, tokens and rows as plain text, for every view: terminal, notebook, report and explorer."""

from __future__ import annotations

import csv
import io
import math
import os
from typing import Any

from markupsafe import Markup

from ..common import output
from ..common.output import printable
from ..store.control import control_of
from ..store.run import Run


def number(value: float, form: str) -> str:
    """A number as text; a dash if there is none to show (NaN, ±∞)."""
    return format(value, form) if math.isfinite(value) else "–"


def model_name(run: Run) -> str:
    """The model's name, and which control it is if it is one. Of an absolute path only the last part: the folder means nothing
    elsewhere."""
    source, control = str(run.manifest["model"]["source"]), control_of(run.manifest)
    name = os.path.basename(os.path.normpath(source)) if os.path.isabs(source) else source
    return f"{name} with {control.title}" if control else name


def decimal(value: Any, digits: int | None = None) -> str:
    """A number of a table, for reading: with `digits` after the point, or as many as its size asks for."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float):
        small = 0 < abs(value) < 0.001
        chosen = 1 - math.floor(math.log10(abs(value))) if small else 0 if abs(value) >= 1000 else 4
        return f"{value:,.{chosen if digits is None else digits}f}".replace("-", "−")
    return f"{value:,}" if isinstance(value, int) else str(value)


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


def safe(value: Any) -> Any:
    """For jinja2's `finalize`: control and direction characters of a text become visible signs. Markup stays as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


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


def as_csv(table: list[dict[str, Any]], *, on_terminal: bool = False) -> str:
    """A line of names, then the rows. Text is quoted, since a token may be a line end; on a terminal it is made visible."""
    out = io.StringIO()
    names, fields = list(table[0]) if table else [], [[_csv_value(value) for value in row.values()] for row in table]
    if on_terminal:
        names = [printable(name) for name in names]
        fields = [[printable(value) if isinstance(value, str) else value for value in row] for row in fields]
    if names:
        csv.writer(out, lineterminator="\n").writerow(names)
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(fields)
    return out.getvalue()


def _csv_value(value: Any) -> Any:
    """A value of a row: lists and records as JSON, since CSV has no form for them."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    return output.as_json(value) if isinstance(value, (list, tuple, dict)) else str(output.plain(value))
