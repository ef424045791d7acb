"""How well a score that every position of a text has predicts where a key fires there.

The headline number is the area under the curve of precision and recall, as average precision: keys fire at one position in a
thousand, and accuracy or the area under the ROC curve then hardly tell good predictions from bad ones. All positions count, so
there is no error of sampling positions. What is uncertain is which documents the text is made of: intervals are over these.

Positions with equal scores are one step of the curve, because no threshold can divide them. So a curve is known from the number
of positions and of firing ones at each score (`Ranked`), and these numbers, kept per group of documents, also give the curve
without any one of the groups: the replicates of the jackknife.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..analyses.stats import Interval, student
from .text import Text

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HEADLINE, WIDER = 999, 990
"""A position fires if its coefficient is above the cell's 99.9th percentile; also read at the 99th. In thousandths."""
FEWEST_FIRING = 10
"""Fewest firing positions with which a key is scored."""
GROUPS, FEWEST_GROUPS = 20, 5
"""Groups that documents are dealt into, and the fewest with which there is an interval."""


# Where a key fires


def most_firing(positions: int, percentile: int) -> int:
    """The largest number of positions that can be strictly above the percentile (in thousandths) of all; without ties it is reached."""
    return max(0, positions - 1 - (positions - 1) * percentile // 1000)


def firing(strongest: npt.NDArray[Any], at: npt.NDArray[Any], positions: int, percentile: int) -> Ints:
    """The positions, ascending, at which a key fires: its coefficient is above the percentile, and above 0.

    `strongest`: its largest coefficients, largest first, and `at` their positions; at least one more than `most_firing`.
    """
    most = most_firing(positions, percentile)
    threshold = max(0.0, float(strongest[most])) if most < len(strongest) else 0.0
    return np.sort(at[:most][strongest[:most] > threshold]).astype(np.int64)


# Groups of documents


@dataclass(frozen=True)
class Groups:
    """The documents of a text, dealt into groups of similar size. One group: too few documents for an interval."""

    of: npt.NDArray[np.int16]
    """[positions] the group of each"""
    sizes: Ints
    """[groups] positions of each"""

    def __len__(self) -> int:
        return len(self.sizes)

    def count(self, positions: Ints) -> Ints:
        """[groups] how many of these positions are in each."""
        return np.bincount(self.of[positions], minlength=len(self))

    def part(self, positions: Ints) -> Groups:
        """Of a part of the text, whose positions are numbered from 0."""
        return Groups(self.of[positions], self.count(positions))


def deal(text: Text, seed: int) -> Groups:
    """Deal a text's documents: in random order the largest first, each to the group that is smallest so far."""
    documents, which = np.unique(text.documents, return_inverse=True)
    number = min(GROUPS, len(documents))
    if number < FEWEST_GROUPS:
        return Groups(np.zeros(len(text), np.int16), np.array([len(text)]))
    sizes = np.bincount(which, weights=np.diff(text.offsets), minlength=len(documents)).astype(np.int64)
    shuffled = np.random.default_rng(seed).permutation(len(documents))
    totals = np.zeros(number, np.int64)
    group = np.empty(len(documents), np.int16)
    for document in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        group[document] = smallest = int(totals.argmin())
        totals[smallest] += sizes[document]
    return Groups(group[which][text.windows], totals)


# The curve


@dataclass(frozen=True)
class Ranked:
    """The positions of a text by the score they got, best first. Scores that no firing position has are counted with the next
    lower one that some has: a curve has no step there."""

    hits: Ints
    """[scores, groups] firing positions"""
    counts: Ints
    """[scores, groups] all positions"""

    @property
    def average_precision(self) -> float:
        """Σ (recall gained at a score) · (precision of all positions with at least that score); NaN if nothing fires."""
        return float(_average_precision(self.hits.sum(1, keepdims=True), self.counts.sum(1, keepdims=True))[0])

    @cached_property
    def replicates(self) -> Floats:
        """[groups] the same without the documents of one group; none if there is only one group."""
        if self.hits.shape[1] == 1:
            return np.empty(0)
        return _average_precision(*(each.sum(1, keepdims=True) - each for each in (self.hits, self.counts)))


def _average_precision(hits: Ints, counts: Ints) -> Floats:
    above, of = hits.cumsum(0), counts.cumsum(0)
    with np.errstate(invalid="ignore"):
        found: Floats = (hits * above / np.maximum(of, 1)).sum(0) / hits.sum(0)
    return found


@dataclass(frozen=True)
class Matches:
    """A few positions, ascending, with scores above 0. All other positions of the text have the score 0."""

    positions: Ints
    scores: npt.NDArray[Any]


def rank_matches(matches: Matches, fires: Ints, groups: Groups) -> Ranked:
    """Of what rules match. `fires`: the firing positions, ascending."""
    right = _among(matches.positions, fires)
    levels, level = np.unique(-matches.scores[right], return_inverse=True)
    shape = (len(levels), len(groups))
    below = np.searchsorted(levels, -matches.scores) * shape[1] + groups.of[matches.positions]
    counts = np.bincount(below, minlength=(shape[0] + 1) * shape[1]).reshape(-1, shape[1])[:-1]
    hits = np.bincount(level * shape[1] + groups.of[matches.positions[right]], minlength=shape[0] * shape[1])
    hits = hits.reshape(shape)
    rest = groups.count(fires) - hits.sum(0), groups.sizes - counts.sum(0)
    return Ranked(np.vstack([hits, rest[0]]), np.vstack([counts, rest[1]]))


def rank_types(scores: npt.NDArray[Any], counts: Ints, types: Ints, fires: Ints, groups: Groups) -> Ranked:
    """Of scores that are the same for all positions of a type, as those of a lookup are. `scores` [types]; `counts` [groups,
    types] positions of each type; `types` [positions] the type of each."""
    levels, level = np.unique(-scores[types[fires]], return_inverse=True)
    below = np.searchsorted(levels, -scores)
    shape = (len(levels), len(groups))
    found = np.empty((shape[0] + 1, shape[1]), np.int64)
    for group, each in enumerate(counts):
        found[:, group] = np.bincount(below, weights=each, minlength=shape[0] + 1)
    hits = np.bincount(level * shape[1] + groups.of[fires], minlength=shape[0] * shape[1])
    return Ranked(hits.reshape(shape), found[:-1])


def rank_scores(scores: npt.NDArray[Any], fires: Ints, groups: Groups) -> Ranked:
    """Of a score per position."""
    levels, level = np.unique(-scores[fires], return_inverse=True)
    below = np.searchsorted(levels, -scores)
    shape = (len(levels), len(groups))
    counts = np.bincount(below * shape[1] + groups.of, minlength=(shape[0] + 1) * shape[1])
    hits = np.bincount(level * shape[1] + groups.of[fires], minlength=shape[0] * shape[1])
    return Ranked(hits.reshape(shape), counts.reshape(-1, shape[1])[:-1])


def average_precision(scores: npt.NDArray[Any], fires: npt.NDArray[np.bool_]) -> float:
    """Of a score per position, and whether the key fires there; NaN if it fires nowhere."""
    one = Groups(np.zeros(len(scores), np.int16), np.array([len(scores)]))
    return rank_scores(scores, np.flatnonzero(fires), one).average_precision if fires.any() else math.nan


def _among(positions: Ints, fires: Ints) -> npt.NDArray[np.bool_]:
    """Which of the positions are firing ones."""
    if not len(fires):
        return np.zeros(len(positions), bool)
    found: npt.NDArray[np.bool_] = fires[np.minimum(np.searchsorted(fires, positions), len(fires) - 1)] == positions
    return found


# Other numbers


def f1(predicted: Ints, fires: Ints) -> float:
    """The harmonic mean of precision and recall of positions that are predicted to fire; 0 if none is right."""
    together = len(predicted) + len(fires)
    return 2 * int(_among(predicted, fires).sum()) / together if together else 0.0


def pearson(scores: npt.NDArray[Any], coefficients: npt.NDArray[Any], n: int, total: float, squares: float) -> float:
    """The correlation with the coefficient over `n` positions. `scores` and `coefficients` are those of the positions whose
    score is not 0; `total` and `squares` are the sums of all coefficients and of their squares. 0 if either is constant."""
    s, m = np.asarray(scores, np.float64), np.asarray(coefficients, np.float64)
    sums, powers = (float(s.sum()), total), (float(s @ s), squares)
    varied = [power - sum_**2 / n for sum_, power in zip(sums, powers, strict=True)]
    if any(left <= 1e-12 * power for left, power in zip(varied, powers, strict=True)):  # what rounding leaves of none
        return 0.0
    return max(-1.0, min(1.0, (float(s @ m) - sums[0] * total / n) / math.sqrt(varied[0] * varied[1])))


# Intervals over documents

_student = cache(student)
"""Asked for every key."""


def jackknife(value: float, replicates: Floats, least: float = 0.0, most: float = 1.0) -> Interval:
    """A number with its 95 % interval from its values without each of the groups, cut to what is possible. Without an interval
    if there is only one group, or if the number cannot be measured without one of them."""
    if len(replicates) < FEWEST_GROUPS or not np.isfinite(replicates).all():
        return Interval(value)
    half = _student(len(replicates) - 1) * math.sqrt(_variance(replicates))
    return Interval(value, max(least, value - half), min(most, value + half))


def mean_over_keys(values: Floats, replicates: Floats) -> Interval:
    """A mean over keys, with the interval over documents and keys. `values` [keys]; `replicates` [keys, groups].

    Documents and keys are both samples, and every key is measured on every document. The variance is the sum of the two: the
    jackknife's over documents, and that over keys divided by their number. Part of what varies between documents is in both, so
    the interval is wider than it must be rather than too narrow. A key that cannot be measured without a group is left out of
    that replicate.
    """
    if not len(values):
        return Interval(math.nan)
    mean = float(values.mean())
    if len(values) < 2 or replicates.shape[1] < FEWEST_GROUPS or np.isnan(replicates).all(0).any():
        return Interval(mean)
    variance = _variance(np.nanmean(replicates, 0)) + float(values.var(ddof=1)) / len(values)
    half = _student(replicates.shape[1] - 1) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def _variance(replicates: Floats) -> float:
    """The jackknife's estimate of the variance of a number, from its values without each of the groups."""
    return float((len(replicates) - 1) * replicates.var())
