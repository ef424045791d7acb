"""The kinds of a cell, and its gate, as text."""

from __future__ import annotations

from ..store import kinds, percell
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


def gate(cell: Cell) -> str | None:
    """How often its gate is open and what it writes meanwhile; None if there is no gate, or if it was not looked at."""
    found = percell.gate(cell)
    if found is None:
        return None
    cosines = ", ".join(
        f"{name} {number(found[key], '.2f')}"
        for name, key in (("gate·up", "gate_up"), ("gate·value", "gate_value"), ("up·value", "up_value"))
    )
    written = found["open_plus"] + found["open_minus"]
    return f"open on {number(found['open'], '.0%')} of prefixes, where it writes {number(written, '.0%')}; cosines {cosines}"
