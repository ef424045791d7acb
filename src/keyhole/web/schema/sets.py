"""Sets of cells by name: api/sets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import CellNumber, Count, LayerNumber, Record
from .model import LIMITS


class OfferedSet(Record):
    """A set of cells that the run has."""

    name: str
    """as in `kind:dead`"""
    title: str
    cells: Count


class OfferedSets(Record):
    """The sets that need no text; and whether a set may be named by a pattern."""

    sets: list[OfferedSet]
    patterns: bool


class AskSet(Record):
    name: Annotated[str, Meta(min_length=1, max_length=500)]
    """`kind:NAME`, `collection:NAME`, `search:QUERY`, `pattern:TEXT` or `leak:RANK`"""


class CellSet(Record):
    """The cells of a set, if a prompt can take an edit of each."""

    name: str
    total: Count
    cells: Annotated[list[tuple[LayerNumber, CellNumber]], Meta(max_length=LIMITS.edits)]
    """none if there are more than a prompt has edits"""
