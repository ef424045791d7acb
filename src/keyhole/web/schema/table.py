"""The table of all cells: data/table.json, its numbers in data/columns/….json, and a file of some of its rows."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from .base import Count, Record


class CellColumn(Record):
    """A measure of every cell (`analyses.columns.Column`)."""

    name: str
    form: Literal["number", "share", "count", "flag", "level", "labels", "token", "tokens", "text"]
    title: str
    means: str
    side: Literal["cell", "key", "value", "people"]
    missing: str | None
    """why no cell has a value; null if the column was computed"""
    type: str
    """in SQL"""
    names: list[str]
    """of its levels, or of its labels"""
    blocks: Count
    """answers of data/columns/….json that hold its values; 0 if they follow from other data"""
    size: Count
    """cells per block"""


class CellTable(Record):
    """The columns of the table of all cells, by number."""

    columns: list[CellColumn]
    said: Count
    """tokens per cell in a column of `tokens`"""


class ColumnBlock(Record):
    """Values of one column for some cells, in the order of the axis: as text, or packed."""

    first: Count
    """the place of the first of these cells"""
    bytes: Count
    """per cell, in `data`"""
    data: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | UnsetType = UNSET
    """little-endian: number, share, count: float32, NaN if there is none; flag: one byte; level: one byte, 255 if there is none;
    token and tokens: int32, −1 if there is none"""
    texts: list[str | None] | UnsetType = UNSET


class AskCells(Record):
    """Which cells, and which of their columns."""

    columns: list[str]
    filters: dict[str, str] = field(default_factory=dict)
    """by column: a range of numbers (`0.5..2`, `3..`), 1 or 0, a label, a text that is contained, or one in quotes that is equal"""
    sort: str | None = None
    descending: bool = False


class ParquetFile(Record):
    """A Parquet file, as bytes: not JSON."""
