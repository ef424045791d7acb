"""The live model: its limits, and edits."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from .base import CellNumber, Count, LayerNumber, Record


class Limits(Record):
    """What one request may hold."""

    prompt_tokens: Count
    edits: Count
    prompt_characters: Count
    positions: Count
    """of all edits together; one edit has at most `prompt_tokens`"""
    generated_tokens: Count
    """of a continuation, on each side"""


LIMITS = Limits(prompt_tokens=512, edits=256, prompt_characters=20_000, positions=16_384, generated_tokens=500)


class Status(Record):
    """Whether the model is loaded, and what a prompt may be."""

    model: str
    loaded: bool
    chat: bool | None
    """whether its tokenizer has a chat template; null until the model is loaded"""
    limits: Limits


Position = Annotated[int, Meta(ge=0, le=LIMITS.prompt_tokens - 1)]
Positions = Annotated[
    list[Position], Meta(min_length=1, max_length=LIMITS.prompt_tokens, extra_json_schema={"uniqueItems": True})
]


class Edit(Record):
    """A cell's coefficient, multiplied by `scale`; its value, replaced by `value`, or moved `towards` a token `by` a share of its
    length."""

    layer: LayerNumber
    cell: CellNumber
    scale: float
    positions: Positions | None = None
    """null: everywhere"""
    value: Annotated[list[float], Meta(min_length=1)] | UnsetType = UNSET
    towards: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    by: float | UnsetType = UNSET


Edits = Annotated[list[Edit], Meta(max_length=LIMITS.edits)]


class AskEdits(Record):
    edits: Edits


class EditedModel(Record):
    fingerprint: str
    layers: Count
    cells: Count | list[Count]
    """per layer: one number, or a list if layers differ"""


class EditsFile(Record):
    """The file that `keyhole.load(edits=…)` takes."""

    keyhole: Literal[1]
    model: EditedModel
    edits: list[Edit]
