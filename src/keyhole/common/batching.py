"""Sequences of similar length share a batch, so that little of it is padding. Imports no model library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """Which sequences share a batch."""

    order: Int64s
    """the sequences' numbers, longest first; sequences of equal length stay in order"""
    bounds: Int64s
    """[batches + 1] where each batch begins in `order`"""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[Int64s]:
        """The numbers of each batch's sequences."""
        for begin, end in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield self.order[begin:end]


def batch_by_length(lengths: Sequence[int] | npt.NDArray[np.integer], tokens: int, *, n_special: int = 1) -> Batches:
    """Batches of at most `tokens` tokens, padding included; a sequence longer than that has a batch of its own.

    `n_special` special tokens stand before every sequence and count too.
    """
    sizes = np.asarray(lengths, np.int64)
    order = np.argsort(-sizes, kind="stable")
    padded = (sizes[order] + n_special).tolist()  # plain integers: numpy's are slow in this loop
    bounds = [0]
    while bounds[-1] < len(order):
        rows = max(1, tokens // max(1, padded[bounds[-1]]))
        bounds.append(min(bounds[-1] + rows, len(order)))
    return Batches(order, np.array(bounds, np.int64))
