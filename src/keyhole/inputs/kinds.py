"""What a model's input is, and with it what a candidate is: an input whose coefficient may become a trigger.

The plan of a scan marks the positions that are no candidates because the same input occurred before. What "the same input"
means depends on how the model reads, so it is decided here, in one record per kind, and not in index, store or views.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sees(StrEnum):
    """Which tokens of its window decide what the model computes at a position."""

    BEFORE = "before"
    """those up to the position"""
    ALL = "all"
    """those on both sides"""


@dataclass(frozen=True)
class Kind:
    """A kind of input."""

    name: str
    candidate: str
    """what a candidate is, in words"""
    sees: Sees
    """which tokens make two inputs the same; the plan chooses the function that marks repeated inputs by it"""
    special_tokens: int
    """special tokens before a window's own tokens, if the model has them"""

    def n_special(self, *, wanted: bool, has_start_token: bool) -> int:
        """How many special tokens a batch puts before a window's own."""
        return self.special_tokens if wanted and has_start_token else 0


CAUSAL_TEXT = Kind(
    name="causal text",
    candidate="a prefix, at its first occurrence",
    sees=Sees.BEFORE,
    special_tokens=1,
)
"""Text that is read from left to right. Right padding is never seen, so batches need no mask."""
