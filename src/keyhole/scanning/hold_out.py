"""Which units are kept out of a scan: a fixed pseudo-random choice, so that a manifest is enough to repeat it.

Held-out units are numbered and stored like all others, and never run. The choice is by unit, or by document: then a document
is scanned as a whole or held out as a whole, so that no held-out sentence is from the same text as a scanned one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]

BY = ("unit", "document")
SEED = 0x4B4559484F4C45


def held_out(numbers: npt.NDArray[Any], share: float) -> npt.NDArray[np.bool_]:
    """Which of these numbers, of units or of documents, are held out: about `share` of them, by a hash of the number."""
    mixed = mix(mix(np.asarray(numbers).astype(np.uint64) + np.uint64(SEED)))
    chance = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    return chance < share


def mix(x: UInt64s) -> UInt64s:
    """The 64-bit finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
