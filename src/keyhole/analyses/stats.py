"""Statistics: 95 % intervals of rates and means, and the tests that verdicts rest on.

scipy is imported where it is used: reading a table should not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
DRAWS = 10_000
"""Random permutations, if there are too many to try all of them."""


# Intervals


def wilson(hits: float, n: float) -> tuple[float | None, float | None]:
    """Wilson's interval of a rate of `hits` in `n`; (None, None) if n is 0.

    `hits` may be a sum of shares. Shares vary less than hits and misses do, so the interval is then wider than necessary.
    """
    if n == 0:
        return None, None
    p = hits / n
    centre = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def rate_interval(rate: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a rate that was measured on `n`; everything from 0 to 1 if n is 0."""
    lo, hi = wilson(rate * n, n) if n > 0 else (None, None)
    return (0.0, 1.0) if lo is None or hi is None else (lo, hi)


def rate(hits: float, n: int) -> float | None:
    return hits / n if n else None


def clustered_mean(
    values: npt.NDArray[Any], clusters: npt.NDArray[Any]
) -> tuple[float | None, float | None, float | None]:
    """A mean and its interval, if values of the same cluster are alike: clusters are the independent draws."""
    if not len(values):
        return None, None, None
    mean = float(values.mean())
    _, which = np.unique(clusters, return_inverse=True)
    count = int(which.max()) + 1
    if count < 2:
        return mean, None, None
    sums = np.bincount(which, weights=values - mean)
    error = math.sqrt(float((sums**2).sum()) * count / (count - 1)) / len(values)
    half = student(count - 1) * error
    return mean, mean - half, mean + half


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


# Tests


def binomial(successes: int, n: int, chance: float) -> float:
    """The two-sided exact p of a binomial test: the probability of all outcomes that are no likelier than this one."""
    if n == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(successes, n, chance).pvalue)


def normal_p(z: float) -> float:
    """The two-sided p of a standard normal z."""
    return math.erfc(abs(z) / math.sqrt(2))


def spearman(x: Iterable[float], y: Iterable[float]) -> tuple[float, float]:
    """Spearman's correlation and its two-sided p by permutation; (nan, 1) if one side does not vary.

    All permutations are tried if there are few, else `DRAWS` random ones with a fixed seed.
    """
    from scipy.stats import rankdata

    a, b = (np.asarray(rankdata(list(side)), np.float64) for side in (x, y))
    if len(a) < 3:
        return math.nan, 1.0
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    if scale == 0:
        return math.nan, 1.0
    rho = float(a @ b) / scale
    if len(a) <= 7:
        shuffled = np.array(list(permutations(b)))
        extra = 0
    else:
        rng = np.random.default_rng(0)
        shuffled = rng.permuted(np.broadcast_to(b, (DRAWS, len(b))), axis=1)
        extra = 1
    as_far = int((np.abs(shuffled @ a) / scale >= abs(rho) - 1e-9).sum())
    return rho, (as_far + extra) / (len(shuffled) + extra)
