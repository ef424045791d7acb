"""What data/run.json of an export says about its files."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from .base import Count, Record


class Part(Record):
    """Which cells an export of a part of a run has."""

    said: str
    """in words: layers, cells and collections"""
    cells: Count
    spans: list[tuple[Count, Count]]
    """their places: the first, and the one after the last"""


class Export(Record):
    """How the files of an export are read. Answers whose address has numbers are in packs of many (export/packs.py)."""

    packs: dict[str, list[list[Count]]]
    """by the first word of the address: the numbers of the first answer of each pack, in ascending order"""
    stamp: Annotated[str, Meta(pattern="^[0-9a-f]{12}$")]
    """other packs have another one: it is asked for with them, so that none is taken from the cache of an older export"""
    part: Part | UnsetType = UNSET
    """left out if all cells are in it"""
