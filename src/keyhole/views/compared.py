"""Two runs of one model, compared, in a terminal: a line per layer, then the cells that look different."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..analyses.claims import percent
from ..analyses.compare import LEAST, Comparison, LayerCompared, Looks, Mean
from ..common.output import printable
from .text import quoted, tail

CONTEXT = 60
"""Characters shown of a trigger."""


def comparison(found: Comparison) -> RenderableType:
    a, b = (printable(name) for name in found.names)
    lines = [
        Text.assemble(("A ", "bold"), a, "\n", ("B ", "bold"), b),
        Text(
            f"{found.common:,} of the {found.distinct[0]:,} distinct prefixes that are triggers in A are triggers in B "
            f"({found.distinct[1]:,} there)."
            + (
                " Both runs read the same text."
                if found.same_text
                else " Shared triggers mean something only if the two corpora share text."
            )
        ),
        Text(
            f"Per cell: the share of shared triggers, and the overlap Σ min(p, q) of last and of next tokens, of the top "
            f"{found.top}; mean over cells with at least {LEAST} triggers in both (95 % interval). “dealt”: with another cell "
            "of the layer.",
            style="dim",
        ),
        Text(),
    ]
    table = Table(box=None, padding=(0, 1))
    for title in ("layer", "cells", "triggers", "dealt", "last tokens", "dealt", "next tokens", "dealt", "turned"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in [*found.layers, found.total]:
        name = "all" if row.layer < 0 else str(row.layer)
        table.add_row(name, f"{row.n:,}", *_means(row), f"{row.turned:,}", style="bold" if row.layer < 0 else None)
    parts: list[RenderableType] = [*lines, table]
    if found.total.turned:
        parts.append(
            Text(
                "turned: cells whose strongest coefficients have opposite signs in the two runs; their first sides are compared."
            )
        )
    if found.different:
        parts += [Text(), Text("Cells that look like one thing in A and like another in B", style="bold")]
        parts += [_cell(found, number) for number in range(len(found.different))]
    return Group(*parts)


def _means(row: LayerCompared) -> list[str]:
    return [text for each in (row.triggers, row.last, row.next) for text in (_mean(each), _share(each.dealt))]


def _mean(found: Mean) -> str:
    if found.value is None:
        return "–"
    if found.lo is None or found.hi is None:
        return percent(found.value)
    return f"{percent(found.value)} ({percent(found.lo).removesuffix(' %')}–{percent(found.hi).removesuffix(' %')})"


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _cell(found: Comparison, number: int) -> RenderableType:
    each = found.different[number]
    head = Text.assemble(
        (each.address, "bold"),
        f"   {each.what} tokens overlap {percent(each.overlap)}   score {each.score:.2f}",
        "   turned" if each.turned else "",
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    verb = "end in" if each.what == "last" else "are followed by"
    for side, looks in (("A", each.here), ("B", each.there)):
        table.add_row(side, Text(f"{percent(looks.share)} {verb} {quoted(looks.token)}"))
        for line in _triggers(looks):
            table.add_row("", line)
    return Group(head, table)


def _triggers(looks: Looks) -> list[Text]:
    return [
        Text(printable(tail(prefix, CONTEXT)) + (" ∎" if following is None else f" → {quoted(following)}"), style="dim")
        for prefix, following in looks.triggers
    ]
