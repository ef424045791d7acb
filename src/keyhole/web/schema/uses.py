"""What a cell was used for: pruned, in a text that the model says by heart, edited."""

from __future__ import annotations

from .base import Count, Number, Record


class GoesAt(Record):
    """When pruning takes a cell."""

    method: str
    scope: str
    share: Number
    """of its layer's cells, how many are gone once it is; 1: it goes last"""


class InLeak(Record):
    """A text that the model says by heart, and forgets if this cell and those before it are switched off."""

    rank: Count
    """of the text"""
    method: str
    place: Count
    """of the cell in the ranking, from 1"""
    cells: Count
    """how many are switched off for 90 % of the text to be forgotten"""
    prefix: str
    continuation: str


class CellEdit(Record):
    """An edit that the run's model had while it was scanned, also one that was baked into its weights."""

    scale: Number
    towards: str | None
    """the token that its value was moved towards"""
    by: Number
    replaced: bool
    """whether its value was replaced"""


class Uses(Record):
    """Only what is known of a cell is there."""

    goes: GoesAt | None
    leaks: list[InLeak]
    edits: list[CellEdit]
