"""How sure a number is: 95 % intervals."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

Z = 1.959963984540054
"""The 97.5 % point of the normal distribution."""


def wilson(hits: float, n: float) -> tuple[float | None, float | None]:
    """Wilson's interval of a rate of `hits` in `n`; none of nothing. `hits` may be a sum of shares, which vary less than
    hits and misses do: the interval is then wider than need be."""
    if n == 0:
        return None, None
    p = hits / n
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def rate(hits: float, n: int) -> float | None:
    return hits / n if n else None


def clustered_mean(
    values: npt.NDArray[Any], clusters: npt.NDArray[Any]
) -> tuple[float | None, float | None, float | None]:
    """A mean and its interval where values of one cluster hang together."""
    if not len(values):
        return None, None, None
    mean = float(values.mean())
    _, which = np.unique(clusters, return_inverse=True)
    count = int(which.max()) + 1
    if count < 2:
        return mean, None, None
    sums = np.bincount(which, weights=values - mean)
    error = sqrt(float((sums**2).sum()) * count / (count - 1)) / len(values)
    half = student(count - 1) * error
    return mean, mean - half, mean + half


def student(freedom: int) -> float:
    """The 97.5 % point of Student's distribution, by its expansion around the normal one (within 4 % from 2 degrees on)."""
    z, n = Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
