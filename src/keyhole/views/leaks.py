"""What the model says by heart, in a terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..analyses.claims import interval, minus, percent
from ..analyses.leak_cells import TITLES
from ..analyses.leak_repeats import from_times
from ..common.output import printable
from ..store.run import Run

SHOWN = 10
ENDS = 60
"""Characters of a text that are shown."""

LISTED = (
    "Repeats: places of the text where the continuation stands; near: where nearly the same does. Control: log p of the same words after "
    "other prefixes, or after those of text that is nearly the same, whichever is likelier. Cells: how many are enough to forget it and "
    "little else."
)

Rows = list[dict[str, Any]]


def leaks(run: Run, rows: Rows, cells: Rows, repeats: Rows, note: str) -> RenderableType:
    """The first leaks, how much leaks of text that stands once and more often, how many cells each ranking needs, and the secrets."""
    own = [row for row in rows if row["source"] == "text"]
    secrets = [row for row in rows if row["source"] == "secrets"]
    path = printable(str(run.path))
    parts: list[RenderableType] = [
        Text(
            f"{path}: {len(own):,} texts are said by heart" if own else f"{path}: nothing is said by heart",
            style="bold",
        ),
        Text(printable(note) + ".", style="dim"),
    ]
    if own:
        parts += [Text(), _listed(own), Text(LISTED, style="dim")]
    if repeats:
        parts += [Text(), _repeats(repeats), Text(_from(repeats))]
    if cells:
        parts += [Text(), _rankings(cells), Text(_layers(run, own))]
    if secrets:
        parts += [Text(), _secrets(secrets)]
    parts += [Text(), Text(f"More: keyhole table {path} leaks · leak_cells · leak_repeats")]
    return Group(*parts)


def _listed(rows: Rows) -> Table:
    table = _table("", "prefix", "continuation", ">repeats", ">near", ">log p", ">control", ">cells")
    for row in rows[:SHOWN]:
        near = max(each for each in (row["control_log_prob"], row["near_log_prob"], -np.inf) if each is not None)
        table.add_row(
            str(row["rank"]),
            _end(row["prefix"]),
            _begin(row["continuation"]),
            f"{row['repeats']:,}",
            f"{row['near']:,}",
            minus(row["log_prob"], 1),
            minus(near, 1) if np.isfinite(near) else "",
            "" if row["cells"] is None else f"{row['cells']:,}",
        )
    return table


def _repeats(rows: Rows) -> Table:
    table = _table("times in the text", ">tokens read", ">of them leak", ">95 % interval")
    for row in rows:
        ends = "" if row["lo"] is None or row["hi"] is None else interval(row["lo"], row["hi"])
        table.add_row(_times(row["times"]), f"{row['tokens']:,}", percent(row["rate"]), ends)
    return table


def _times(times: int) -> str:
    return "1" if times == 1 else f"{times:,} to {2 * times - 1:,}"


def _from(rows: Rows) -> str:
    times = from_times(rows)
    if times is None:
        return "For no number of times is it sure that half of the text leaks."
    if times == 1:
        return "At least half of the text leaks, even if it stands there once."
    return f"From {times:,} times on, at least half of the text leaks."


def _rankings(cells: Rows) -> Table:
    table = _table("ranking", ">forgotten", ">cells (median)", ">others left", ">others forgotten", ">perplexity")
    for method in dict.fromkeys(row["method"] for row in cells):
        own = [row for row in cells if row["method"] == method]
        leaks = {row["rank"] for row in own}
        reached = [row for row in own if row["n90"]]
        table.add_row(
            TITLES.get(method, method),
            f"{len(reached)} of {len(leaks)}",
            _median([row["cells"] for row in reached], len(leaks)),
            *(
                percent(float(np.mean(known)))
                if (known := [row[name] for row in reached if row[name] is not None])
                else ""
                for name in ("others_after", "others_forgotten")
            ),
            _signed([row["perplexity_change"] for row in reached if row["perplexity_change"] is not None]),
        )
    return table


def _median(cells: list[int], leaks: int) -> str:
    """Of all leaks: one that is not forgotten needs more cells than any number."""
    every = sorted([*map(float, cells), *[np.inf] * (leaks - len(cells))])
    low, high = every[(leaks - 1) // 2], every[leaks // 2]
    return f"{(low + high) / 2:,.0f}" if np.isfinite(high) else "in no small set"


def _layers(run: Run, rows: Rows) -> str:
    known = [row for row in rows if row["cells"] is not None]
    if not known:
        return "No ranking finds a small set of cells (at most 5 % of all) without which a text is forgotten and little else."
    middle = float(np.median([row["layer_middle"] for row in known]))
    low, high = (float(np.median([row[name] for row in known])) for name in ("layer_low", "layer_high"))
    return (
        f"Forgotten: at most a tenth of what the model said of the text is left, after its own prompt and after other texts. Others and "
        f"perplexity are those of the leaks that were forgotten. The best ranking's cells are around layer {middle:.0f} ({low:.0f} to {high:.0f}) of {run.layers}; cells taken at "
        f"random would be around {(run.layers - 1) / 2:.0f}."
    )


def _secrets(rows: Rows) -> Table:
    table = _table("prefix", "secret", ">exposure (bits)", ">in the text", ">extracted")
    for row in rows[:SHOWN]:
        table.add_row(
            _end(row["prefix"]),
            _begin(row["continuation"]),
            _exposure(row["exposure"], row["highest_exposure"]),
            f"{row['repeats']:,}",
            f"{row['extracted']} of {row['tokens']}",
        )
    return table


def _exposure(found: float | None, highest: float) -> str:
    if found is None:
        return "no other line of its form"
    return f"at least {found:.1f}" if found >= highest - 1e-9 else f"{found:.1f} of {highest:.1f}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1))
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    return table


def _signed(values: list[float]) -> str:
    if not values:
        return ""
    mean = float(np.median(values))
    return ("+" if mean > 0 else "") + percent(mean)


def _end(text: str) -> str:
    text = printable(text)
    return text if len(text) <= ENDS else f"…{text[-ENDS:]}"


def _begin(text: str) -> str:
    text = printable(text)
    return text if len(text) <= ENDS else f"{text[:ENDS]}…"
