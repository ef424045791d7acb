"""Sequences of n tokens, or bytes, by their hashes, so that those of large texts can be compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FACTOR = np.uint64(0x9E3779B97F4A7C15)


def hashes(tokens: npt.NDArray[np.integer], n: int) -> npt.NDArray[np.uint64]:
    """A hash of 64 bits of the n tokens from each place on. Tokens may be −1."""
    count = max(0, len(tokens) - n + 1)
    found = np.zeros(count, np.uint64)
    shifted = tokens.astype(np.uint64) + np.uint64(2)
    with np.errstate(over="ignore"):
        for each in range(n):
            found = (found ^ shifted[each : each + count]) * FACTOR
            found ^= found >> np.uint64(29)
    return found
