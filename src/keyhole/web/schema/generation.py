"""A prompt continued by the live model: what is asked, and the lines that are streamed back."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from .base import Number, Record, Row
from .errors import Problem
from .model import LIMITS, Edits


class AskGenerate(Record):
    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)]
    edits: Edits = field(default_factory=list)
    length: Annotated[int, Meta(ge=1, le=LIMITS.generated_tokens)] = 40
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """0: greedy"""
    seed: Annotated[int, Meta(ge=0, le=2**53 - 1)] = 0
    chat: bool = False
    """as a user's turn, by the tokenizer's chat template"""


class PromptPiece(Row):
    """A token that is continued."""

    piece: str
    special: bool


class GeneratedToken(Record):
    """A token that was made."""

    side: Literal["original", "edited"]
    piece: str
    special: bool
    p: Number
    """by the model, at temperature 1"""
    end: Literal["token", "length", "context"] | None
    """why this side ends here; null: it goes on"""


class GenerateLine(Record):
    """One line of the answer, which has one field: the prompt first, then the tokens of both sides in turns; an error is the last."""

    prompt: list[PromptPiece] | UnsetType = UNSET
    token: GeneratedToken | UnsetType = UNSET
    error: Problem | UnsetType = UNSET
