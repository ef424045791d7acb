"""Values dealt out among keys at random: the null that an agreement between keys and values is compared with.

A deal permutes the values within groups of cells: within a layer, or within the cells of a layer whose top-1 triggers end in the
same token. What is computed is the exact mean over all such permutations, not the result of some random ones. In a group of n
cells, a value stays with its own key in 1/n of the deals; a cell that is alone in its group always keeps its own value, so its
hit or miss counts the same with and without the deal, and nothing is credited to it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .stats import Interval, Z, difference, rate_with_interval

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def deal(said: npt.NDArray[Any], wanted: npt.NDArray[Any], groups: npt.NDArray[Any]) -> Floats:
    """Per cell, a number whose mean is the rate to expect if what values say were dealt out within groups; and whose spread is
    the spread of that rate if cells are drawn.

    Cell i takes part twice: as a key, whose token is said by a share r of its group's values, and as a value, whose token is
    wanted by a share c of its group's keys. With g, the mean of r over the group, the number is r + c − g: its mean is that
    of r, and it is what leaving the cell out changes, to first order.
    """
    if not len(said):
        return np.empty(0)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(group)
    _, token = np.unique(np.concatenate([said, wanted]), return_inverse=True)
    said_at, wanted_at = (group * (int(token.max()) + 1) + part for part in np.split(token, 2))
    as_key = _count(said_at, wanted_at) / sizes[group]
    as_value = _count(wanted_at, said_at) / sizes[group]
    mean = np.bincount(group, weights=as_key) / sizes
    return np.asarray(as_key + as_value - mean[group], np.float64)


def _count(among: Ints, asked: Ints) -> Ints:
    """How often each entry of `asked` is in `among`."""
    kinds, counts = np.unique(among, return_counts=True)
    at = np.minimum(np.searchsorted(kinds, asked), len(kinds) - 1)
    return np.where(kinds[at] == asked, counts[at], 0)


def excess(hits: npt.NDArray[np.bool_], dealt: Floats) -> Interval:
    """The rate of hits minus the rate to expect of a deal, with its interval over cells.

    Both rates come from the same cells. The interval of the first is Wilson's, that of the second is normal, from the spread of
    `dealt`; they are joined by Newcombe's method with the correlation of the two over the cells.
    """
    n = len(hits)
    if n < 2:
        return Interval(float(hits.mean() - dealt.mean()) if n else math.nan)
    spread = float(dealt.std(ddof=1))
    expected, half = float(dealt.mean()), Z * spread / math.sqrt(n)
    correlation = float(np.corrcoef(hits, dealt)[0, 1]) if spread > 0 and 0 < hits.sum() < n else 0.0
    null = Interval(expected, max(0.0, expected - half), expected + half)
    return difference(rate_with_interval(int(hits.sum()), n), null, correlation)
