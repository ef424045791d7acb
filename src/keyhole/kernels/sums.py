"""Exact sums: floats are turned into integers before they are added up.

A total is two 64-bit integers, a whole part and a fraction of `FRACTION_BITS` bits. Adding integers gives the same bytes in
every order, so it does not matter in which order the batches of a scan, or the shards of a run, are added.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FRACTION_BITS = 52
LARGEST_ADDEND = 2.0**62
"""Larger addends are clamped to this: 64 bits could not hold them."""


def exact(addend: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Floats as (whole, fraction) [..., 2]. An addend that 64 bits cannot hold is clamped to `LARGEST_ADDEND`; a NaN becomes 0."""
    if not (np.abs(addend) < LARGEST_ADDEND).all():
        addend = np.clip(np.nan_to_num(addend, nan=0.0), -LARGEST_ADDEND, LARGEST_ADDEND)
    whole = np.floor(addend)
    fraction = ((addend - whole) * 2.0**FRACTION_BITS).astype(np.int64)
    return np.stack([whole.astype(np.int64), fraction], -1)


def add_exactly(total: npt.NDArray[np.int64], addend: npt.NDArray[np.float64]) -> None:
    """Add floats to totals [..., (whole, fraction)], in place.

    Totals wrap at 64 bits. `run.moments` recognises such totals by the extremes of their cells, and reads them as NaN.
    """
    add_integers(total, exact(addend))


def add_integers(total: npt.NDArray[np.int64], addend: npt.NDArray[np.int64]) -> None:
    """Add totals to totals, in place."""
    total += addend
    total[..., 0] += total[..., 1] >> FRACTION_BITS
    total[..., 1] &= (1 << FRACTION_BITS) - 1
