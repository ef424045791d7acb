"""The cells nearest to a cell or to a text: api/nearest."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from .base import Address, Number, Record, Row
from .model import LIMITS


class AskNearest(Record):
    """Either a cell, or a text, which the model reads."""

    cell: Address | UnsetType = UNSET
    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)] | UnsetType = UNSET


class Near(Row):
    """A cell, and how near it is."""

    cell: Address
    measure: Number


class Nearest(Record):
    """The nearest cells, the nearest first."""

    tokens: list[str]
    """of the text"""
    keys: list[Near]
    """of a cell: how many triggers they share; of a text: the coefficient at its last token, relative to the cell's largest"""
    values: list[Near]
    """cosines: with the cell's value, or with the text's direction in the unembedding"""
