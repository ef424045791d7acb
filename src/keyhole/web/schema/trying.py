"""A key on a text of one's own: api/try."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import CellNumber, Count, LayerNumber, Number, Record
from .model import LIMITS


class AskTry(Record):
    """A text, and the cell whose key reads it."""

    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)]
    layer: LayerNumber
    cell: CellNumber


class Tried(Record):
    """The cell's coefficient at every token of a text, in the cell's orientation."""

    layer: Count
    cell: Count
    tokens: list[str]
    coefficients: list[Number]
