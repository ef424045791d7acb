"""What the map of all cells shows: data/map.json, maps/…, mapcells/… and mapranks/…."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from .base import Count, Number, Record

Packed = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]


class Measure(Record):
    """A measure of every cell. maps/NUMBER.json has its numbers; NUMBER is its place in the list."""

    name: str
    title: str
    side: Literal["key", "value", "people"]
    """what it measures"""
    format: Literal["percent", "number"]
    scale: Literal["linear", "log"]
    kinds: list[str] | UnsetType = UNSET
    """names of the levels, if they are names and not numbers"""


class CellMap(Record):
    """The measures that the map of all cells can show, and in which pieces their numbers come."""

    levels: Count
    """the byte that stands for a measure's `hi`; 0 stands for its `lo`"""
    unknown: Count
    """the byte of a cell without a number"""
    bin: Count
    """cells of a bin of maps/…: 1 if the model has few cells, and else a power of two. The last bin of a layer may have fewer"""
    block: Count
    """cells of each layer in a block of mapcells/… and mapranks/…"""
    blocks: Count
    """number of blocks; 0 if bins are single cells"""
    shown: str
    """the measure to begin with"""
    measures: list[Measure]


class MeasureMap(Record):
    """A measure of all cells, in bins: one byte per bin, layer by layer."""

    name: str
    lo: Number
    hi: Number
    low: Count
    """nearly all cells lie between this byte and `high`: colours run from one to the other"""
    high: Count
    unknown: bool
    """whether there are cells without a number"""
    data: Packed
    """the largest byte of each bin; a cell without a number is below all others"""
    strongest: Packed | UnsetType = UNSET
    """two bytes per bin, the lower one first: which of its cells has that byte. Left out if bins are single cells"""
    counts: Packed | UnsetType = UNSET
    """per layer 256 numbers of four bytes: how many of its cells have byte 0, 1, …. Left out if bins are single cells"""


class MapCells(Record):
    """A measure of single cells: of each layer, the cells from block × BLOCK on. One byte per cell, layer by layer."""

    name: str
    data: Packed


class MapRanks(Record):
    """Cells in the order of a measure, strongest first: of each layer, the ranks from block × BLOCK on."""

    name: str
    data: Packed
    """four bytes per rank, layer by layer: the cell's number in its layer"""
