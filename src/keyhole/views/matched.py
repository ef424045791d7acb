"""Which cells should fire where, in a terminal: a position in its context, and below it the cells."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..common.output import printable
from ..patterns.matching import Matched, Place
from .text import number, other_side, tail

CONTEXT = 64
"""Characters shown before a token."""


def parts(found: Matched) -> Iterator[RenderableType]:
    """The positions one by one, and last what was counted."""
    other = other_side(found.run)
    places = 0
    for place in found:
        places += 1
        yield _place(place, other)
    keys, positions = f"{len(found.keys):,}", f"{len(found.text):,}"
    where = f"{places:,} of {positions} positions have a cell that should fire" if places else "No cell should fire"
    yield Text(f"{where}, by the rules of {keys} key{'s' * (len(found.keys) != 1)}; no model was run.", style="dim")


def _place(place: Place, other: str) -> RenderableType:
    before = tail(printable("".join(place.before)), CONTEXT)
    head = Text.assemble(
        (f"{place.unit}:{place.position}  ", "dim"), before, "[", (printable(place.token), "bold reverse"), "]"
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for match in place.cells:
        side = "" if match.side > 0 else f" ({other})"
        weak = "" if match.pattern else " (no pattern matches, but the token has weight)"
        label = Text.assemble(printable(match.description), (side + weak, "dim"))
        table.add_row(number(match.score, ".2g"), match.cell, label)
    if place.further:
        table.add_row("", "", Text(f"and {place.further:,} more", style="dim"))
    return Group(head, table)
