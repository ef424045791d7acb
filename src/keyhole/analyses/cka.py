"""Linear CKA of two sets of states of the same prefixes: how alike their geometry is, whatever the basis.

CKA is 1 if one set is the other, rotated and scaled, and 0 if they have nothing in common. The usual estimate is far above 0 for
few samples in many dimensions, so HSIC is estimated without bias here (Song and others, 2012): the result can be below 0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .stats import Interval, student

Floats = npt.NDArray[np.float64]
SHUFFLES = 200


def kernel(states: npt.NDArray[np.floating]) -> Floats:
    """The inner products [n, n] of states [n, width], without those of a state with itself."""
    x = np.asarray(states, np.float64)
    x = x - x.mean(0)  # changes nothing but the rounding: HSIC does not depend on it
    found: Floats = x @ x.T
    np.fill_diagonal(found, 0)
    return found


def hsic(together: Floats, first: Floats, second: Floats, rows: Floats, n: Floats) -> Floats:
    """The unbiased estimate of HSIC from sums over kernels K and L without diagonal: tr(KL), 1ᵀK1, 1ᵀL1 and 1ᵀKL1."""
    found: Floats = (together + first * second / ((n - 1) * (n - 2)) - 2 * rows / (n - 2)) / (n * (n - 3))
    return found


def cka(k: Floats, other: Floats, clusters: npt.NDArray[np.int64] | None = None) -> Interval:
    """CKA from two kernels, and its interval by the jackknife over states or over clusters of them."""
    n = len(k)
    if n < 4:
        return Interval(math.nan)
    value = float(_ratio(k, other, np.zeros((n, 1)))[0])
    _, which = np.unique(np.arange(n) if clusters is None else clusters, return_inverse=True)
    count = int(which.max()) + 1
    if count < 3 or np.bincount(which).max() > n - 4 or math.isnan(value):
        return Interval(value)
    without = _ratio(k, other, np.eye(count)[which])
    half = student(count - 1) * math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
    return Interval(value, value - half, value + half) if math.isfinite(half) else Interval(value)


def shuffled(k: Floats, other: Floats, seed: int = 0) -> float:
    """What CKA is exceeded in 2.5 % of the cases if the pairs are shuffled."""
    random = np.random.default_rng(seed)
    n = len(k)
    if n < 4:
        return math.nan
    found = []
    for _ in range(SHUFFLES):
        order = random.permutation(n)
        found.append(float(_ratio(k[np.ix_(order, order)], other, np.zeros((n, 1)))[0]))
    return float(np.percentile(found, 97.5))


def _ratio(k: Floats, other: Floats, left_out: Floats) -> Floats:
    """CKA without some of the states, for each column of `left_out` [n, columns], whose ones say which."""
    kept = 1 - left_out
    n = kept.sum(0)
    rows = [(matrix @ kept) * kept for matrix in (k, other)]  # the sums of the rows that are kept

    def of(a: int, b: int) -> Floats:
        matrices = (k, other)
        together = (((matrices[a] * matrices[b]) @ kept) * kept).sum(0)
        return hsic(together, rows[a].sum(0), rows[b].sum(0), (rows[a] * rows[b]).sum(0), n)

    with np.errstate(invalid="ignore", divide="ignore"):
        own = of(0, 0) * of(1, 1)
        found: Floats = of(0, 1) / np.sqrt(np.where(own > 0, own, np.nan))
    return found
