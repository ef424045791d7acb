"""The kinds of a cell as text."""

from __future__ import annotations

from ..store import kinds
from ..store.run import Cell
from .text import number


def said(cell: Cell) -> str | None:
    """`positional 0.42 (above 0.11), rare 40 (above 31.6)`; None if the kinds were not computed."""
    found = kinds.of(cell.run)
    if found is None:
        return None
    own = [
        f"{each.kind.title} {number(each.number, '.3g')} "
        f"({'at most' if each.kind.below else 'above'} {number(each.threshold, '.3g')})"
        for each in found.of(cell.place)
        if each.has
    ]
    return ", ".join(own) or "none in particular"
