"""Text as rules see it: token ids in windows, and where every token occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .lexicon import Lexicon

Ints = npt.NDArray[np.int64]
MANY = 4
"""If one position in this many is asked for, they are many."""


LARGEST = 1 << 63
"""Numbers that stand for several tokens are below this."""


def joined(tokens: npt.NDArray[Any], size: int) -> Ints:
    """[rows] one number per row of tokens [rows, places], each below `size`: in the order of the rows as lists."""
    found = np.zeros(len(tokens), np.int64)
    for column in tokens.T:
        found = found * size + column
    return found


def gram(tokens: Sequence[npt.NDArray[np.int32]], size: int) -> Ints:
    """The tokens at several places, each an array over positions, as one number per position (`joined`); −1 if one of them is −1."""
    columns = np.stack(tokens, 1)
    found = joined(columns, size)
    found[(columns < 0).any(1)] = -1
    return found


@dataclass(frozen=True)
class Text:
    """A sequence of windows. A position is an index into `tokens`; its prefix begins where its window does."""

    tokens: npt.NDArray[np.int32]
    offsets: Ints
    """[windows + 1] where each window begins"""
    documents: Ints
    """[windows] the document that each is from"""
    lexicon: Lexicon
    """its tokens"""
    cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """what was computed of the whole text, for those who ask again"""

    def __len__(self) -> int:
        """The number of positions."""
        return len(self.tokens)

    @cached_property
    def windows(self) -> npt.NDArray[np.int32]:
        """[positions] the window of each"""
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))

    @cached_property
    def places(self) -> npt.NDArray[np.int32]:
        """[positions] how many tokens are before it in its window"""
        return (np.arange(len(self.tokens)) - self.offsets[self.windows]).astype(np.int32)

    def token(self, positions: Ints, back: int) -> npt.NDArray[np.int32]:
        """The token `back` before each position; −1 if the window begins after it."""
        found = self.tokens.take(positions - back, mode="clip")
        found[self.places.take(positions) < back] = -1
        return found

    def gram(self, positions: Ints, backs: Sequence[int]) -> Ints:
        """The tokens at several places before each position, as one number (`joined`); −1 if the window begins after one of them."""
        return gram([self.token(positions, back) for back in backs], len(self.lexicon))

    @cached_property
    def _postings(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.tokens, kind="stable")
        size = int(self.tokens.max(initial=-1)) + 2
        return order, np.searchsorted(self.tokens[order], np.arange(size))

    def where(self, token: int) -> Ints:
        """The positions at which a token stands, ascending."""
        order, bounds = self._postings
        return order[bounds[token] : bounds[token + 1]] if 0 <= token < len(bounds) - 1 else order[:0]

    def where_any(self, ids: Sequence[int]) -> Ints:
        """The positions at which one of several tokens stands, ascending."""
        found = np.concatenate([self.where(token) for token in ids]) if len(ids) else np.empty(0, np.int64)
        found.sort(kind="stable")  # it merges: each token's positions are in order already
        return found

    def starts(self, positions: Ints) -> Ints:
        """Where the window of each position begins."""
        return positions - self.places[positions]

    def before(self, ids: Sequence[int], positions: Ints, *, nearest: int, farthest: int | None = None) -> Ints:
        """How often one of several tokens stands before each position: from `nearest` tokens back (0 is the position itself) to
        `farthest`, or to the window's beginning."""
        begin = self.starts(positions)
        if farthest is not None:
            begin = np.maximum(begin, positions - farthest)
        if len(positions) * MANY > len(self):  # then it is faster to count through the whole text
            table = np.zeros(len(self.lexicon), bool)
            table[[token for token in ids if 0 <= token < len(table)]] = True
            total = np.append(0, np.cumsum(table[self.tokens]))
            found: Ints = total[np.maximum(positions - nearest + 1, begin)] - total[begin]
            return found
        there = self.where_any(ids)
        found = np.searchsorted(there, positions - nearest, "right") - np.searchsorted(there, begin)
        return np.maximum(found, 0)

    @cached_property
    def counts(self) -> Ints:
        """[tokens of the lexicon] how often each token occurs"""
        return np.bincount(self.tokens, minlength=len(self.lexicon))

    def part(self, most: int) -> tuple[Text, Ints]:
        """Evenly spaced windows of at most `most` positions together, one at least, as a text; and where each of its positions is
        in this one. The text itself, if it is no longer."""
        if len(self) <= most:
            return self, np.arange(len(self))
        lengths = np.diff(self.offsets)
        step = len(self) / most
        chosen = np.unique((np.arange(0, len(lengths), step)).astype(np.int64))
        chosen = chosen[: max(1, int(np.searchsorted(np.cumsum(lengths[chosen]), most, "right")))]
        inside = np.zeros(len(lengths), bool)
        inside[chosen] = True
        at = np.flatnonzero(inside[self.windows])
        offsets = np.append(0, np.cumsum(lengths[chosen]))
        return Text(self.tokens[at], offsets, self.documents[chosen], self.lexicon), at

    @staticmethod
    def of(windows: list[Any], documents: Any, lexicon: Lexicon) -> Text:
        """From windows of token ids, and the document of each."""
        lengths = np.fromiter(map(len, windows), np.int64, len(windows))
        tokens = np.concatenate([np.asarray(each, np.int32) for each in windows]) if windows else np.empty(0, np.int32)
        return Text(tokens, np.append(0, np.cumsum(lengths)), np.asarray(documents, np.int64), lexicon)
