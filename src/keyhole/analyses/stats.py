"""Statistics: 95 % intervals of rates and means, and the tests that verdicts rest on.

scipy is imported where it is used: reading a table should not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
RESAMPLED = 2_000
"""Samples of a bootstrap. Their seed is fixed, so that the same numbers give the same interval."""


class Interval(NamedTuple):
    """A number with its 95 % interval; the ends are None if too little was sampled."""

    value: float
    lo: float | None = None
    hi: float | None = None


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


def rate_with_interval(hits: float, n: int) -> Interval:
    """A rate of `hits` in `n` with Wilson's interval."""
    return Interval(hits / n, *wilson(hits, n)) if n else Interval(math.nan)


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
    found = ratio_of_sums(*_clustered(np.asarray(values, np.float64), clusters))
    return found.value, found.lo, found.hi


def ratio_of_sums(sums: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Interval:
    """Σ sums ÷ Σ sizes over clusters that were drawn, and its interval by Student's t on what each cluster adds: a bootstrap over
    few clusters is far too narrow (of two, 95 % hold the true mean half of the time). Without an interval if there are fewer
    than two."""
    sums, sizes = np.asarray(sums, np.float64), np.asarray(sizes, np.float64)
    count, total = len(sums), float(sizes.sum())
    if not total:
        return Interval(math.nan)
    value = float(sums.sum()) / total
    if count < 2:
        return Interval(value)
    off = sums - value * sizes
    half = student(count - 1) * math.sqrt(float((off**2).sum()) * count / (count - 1)) / total
    return Interval(value, value - half, value + half)


def clustered_rate(hits: npt.NDArray[np.bool_], clusters: npt.NDArray[Any]) -> Interval:
    """A share of hits, as `ratio_of_sums`, within 0 and 1. Its interval is at least as wide as Wilson's: a sample of nothing but hits
    has no spread."""
    found = ratio_of_sums(*_clustered(np.asarray(hits, np.float64), clusters))
    lo, hi = wilson(int(hits.sum()), len(hits))
    if found.lo is None or found.hi is None or lo is None or hi is None:
        return Interval(found.value)
    return Interval(found.value, max(0.0, min(lo, found.lo)), min(1.0, max(hi, found.hi)))


def bootstrap_mean(values: npt.NDArray[Any], clusters: npt.NDArray[Any] | None = None) -> Interval:
    """A mean and its interval by the bootstrap over values, or over clusters of them (documents, cells) if these are what was
    drawn. Without an interval if fewer than two were drawn."""
    if not len(values):
        return Interval(math.nan)
    sums, sizes = _clustered(np.asarray(values, np.float64), clusters)
    mean = float(sums.sum() / sizes.sum())
    if len(sums) < 2:
        return Interval(mean)
    return Interval(mean, *_ends(_resampled(sums, sizes, np.random.default_rng(0))))


def bootstrap_difference(upper: npt.NDArray[Any], lower: npt.NDArray[Any]) -> Interval:
    """The mean of `upper` minus that of `lower`, two independent samples, and its interval by the bootstrap over both."""
    samples = [np.asarray(each, np.float64) for each in (upper, lower)]
    if not all(map(len, samples)):
        return Interval(math.nan)
    difference = float(samples[0].mean() - samples[1].mean())
    if min(map(len, samples)) < 2:
        return Interval(difference)
    random = np.random.default_rng(0)
    drawn = [_resampled(each, np.ones(len(each)), random) for each in samples]
    return Interval(difference, *_ends(drawn[0] - drawn[1]))


def bootstrap_sums(
    columns: npt.NDArray[Any],
    statistic: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
    clusters: npt.NDArray[Any] | None = None,
) -> list[Interval]:
    """Numbers that are made of sums over what was drawn, each with its interval by the bootstrap over the draws, or over clusters
    of them. `statistic` turns the sums [..., k] of the columns [k, n] into the numbers [..., m], so that means, ratios of sums and
    differences of these are all resampled together. A number is not known (NaN) if its denominator is 0."""
    sums = np.stack([_clustered(column, clusters)[0] for column in np.asarray(columns, np.float64)], 1)
    n = len(sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = statistic(sums.sum(0))
        if n < 2:
            return [Interval(float(value)) for value in values]
        random = np.random.default_rng(0)
        drawn = np.empty((RESAMPLED, sums.shape[1]))
        step = max(1, (1 << 22) // n)
        for at in range(0, RESAMPLED, step):
            rows = min(step, RESAMPLED - at)
            picked = random.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
            counts = np.bincount(picked.ravel(), minlength=rows * n).reshape(rows, n)
            drawn[at : at + rows] = counts @ sums
        found = statistic(drawn)
    return [
        Interval(float(value), *_ends(known)) if len(known := each[np.isfinite(each)]) else Interval(float(value))
        for value, each in zip(values, found.T, strict=True)
    ]


def bootstrap_means(
    values: npt.NDArray[Any],
    clusters: npt.NDArray[Any] | None = None,
    where: npt.NDArray[np.bool_] | None = None,
) -> list[Interval]:
    """The mean of each row of values [k, n] that were measured on the same n draws, with its interval by the bootstrap over
    the draws or over clusters of them. `where` [k, n] leaves out values."""
    kept = np.ones(values.shape, bool) if where is None else where
    k = len(values)
    columns = np.concatenate([np.where(kept, values, 0.0), kept])
    return bootstrap_sums(columns, lambda sums: sums[..., :k] / sums[..., k:], clusters)


def bootstrap_rates(
    hits: npt.NDArray[np.bool_],
    clusters: npt.NDArray[Any] | None = None,
    where: npt.NDArray[np.bool_] | None = None,
) -> list[Interval]:
    """The share of hits in each row of [k, n], as `bootstrap_means`. The interval is at least as wide as Wilson's: a bootstrap
    of nothing but hits would have no width."""
    kept = np.ones(hits.shape, bool) if where is None else where
    found = []
    for each, hit, here in zip(bootstrap_means(hits, clusters, where), hits, kept, strict=True):
        lo, hi = wilson(int((hit & here).sum()), int(here.sum()))
        if each.lo is not None and each.hi is not None and lo is not None and hi is not None:
            lo, hi = min(lo, each.lo), max(hi, each.hi)
        found.append(Interval(each.value, lo, hi))
    return found


def weakest(found: Sequence[Interval]) -> Interval:
    """The smallest of several numbers, for a claim that all of them exceed something. All do if every lower end does, which needs
    no correction. Not all do if one upper end lies below: these are widened for their number (Bonferroni)."""
    known = [each for each in found if each.lo is not None and each.hi is not None]
    if not known:
        return Interval(min((each.value for each in found), default=math.nan))
    from scipy.special import ndtri

    wider = -float(ndtri(0.025 / len(known))) / Z
    value = min(each.value for each in known)
    lo = min(each.lo for each in known if each.lo is not None)
    hi = min(each.value + (each.hi - each.value) * wider for each in known if each.hi is not None)
    return Interval(value, lo, max(value, hi))


def _clustered(
    values: npt.NDArray[np.float64], clusters: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The sum and the number of the values of each cluster."""
    if clusters is None:
        return values, np.ones(len(values))
    _, which = np.unique(clusters, return_inverse=True)
    return np.bincount(which, weights=values).astype(np.float64), np.bincount(which).astype(np.float64)


def _resampled(
    sums: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], random: np.random.Generator
) -> npt.NDArray[np.float64]:
    """The mean of each of `RESAMPLED` samples, drawn with replacement and as large as what there is."""
    n = len(sums)
    found = np.empty(RESAMPLED)
    step = max(1, (1 << 22) // n)
    for at in range(0, RESAMPLED, step):
        drawn = random.integers(0, n, (min(step, RESAMPLED - at), n))
        found[at : at + step] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    return found


def _ends(drawn: npt.NDArray[np.float64]) -> tuple[float, float]:
    lo, hi = np.percentile(drawn, [2.5, 97.5])
    return float(lo), float(hi)


MOST_RESAMPLED = 20_000
"""Values of a sample, at most, that are resampled. Of more, the mean is normal, and its standard error says the same."""


def sample_mean(values: npt.NDArray[Any]) -> Interval:
    """A mean and its interval over the values drawn: by the bootstrap, or for many values from the standard error."""
    if len(values) <= MOST_RESAMPLED:
        return bootstrap_mean(values)
    mean, half = float(values.mean()), Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def sample_difference(upper: npt.NDArray[Any], lower: npt.NDArray[Any]) -> Interval:
    """The mean of `upper` minus that of `lower`, two independent samples, as `sample_mean` does it."""
    if max(len(upper), len(lower)) <= MOST_RESAMPLED:
        return bootstrap_difference(upper, lower)
    return difference(sample_mean(upper), sample_mean(lower))


def difference(upper: Interval, lower: Interval, correlation: float = 0.0) -> Interval:
    """The difference of two estimates, from the interval of each: Newcombe's hybrid (also MOVER), which keeps the asymmetry
    of Wilson's intervals and so is right for rare hits. `correlation` is that of the two estimates; 0 if they are independent.
    """
    value = upper.value - lower.value
    if upper.lo is None or upper.hi is None or lower.lo is None or lower.hi is None:
        return Interval(value)
    below, above = upper.value - upper.lo, upper.hi - upper.value
    under, over = lower.value - lower.lo, lower.hi - lower.value
    down = below**2 + over**2 - 2 * correlation * below * over
    up = above**2 + under**2 - 2 * correlation * above * under
    return Interval(value, value - math.sqrt(max(0.0, down)), value + math.sqrt(max(0.0, up)))


def median_interval(values: npt.NDArray[Any]) -> Interval:
    """A median and its interval by order statistics (exact for any distribution). Without an interval if too few values were
    drawn for one of 95 %, which takes six."""
    if not len(values):
        return Interval(math.nan)
    from scipy.stats import quantile_test

    median = float(np.median(values))
    ends = quantile_test(values, p=0.5).confidence_interval(0.95)
    known = math.isfinite(ends.low) and math.isfinite(ends.high)
    return Interval(median, float(ends.low), float(ends.high)) if known else Interval(median)


def thirds(layers: int) -> tuple[slice, slice]:
    """The lowest and the highest third of the layers: what claims about depth compare. They never overlap, unless there is
    only one layer."""
    size = max(1, layers // 3)
    return slice(0, size), slice(layers - size, layers)


def correlation_interval(rho: float, n: int) -> Interval:
    """A rank correlation over `n` draws and its interval by Fisher's z, with the variance 1.06 / (n − 3) that ranks have."""
    return pooled_correlation([rho], [n])


def pooled_correlation(rhos: Sequence[float], sizes: Sequence[int]) -> Interval:
    """The mean of rank correlations that were measured on disjoint draws, by Fisher's z: each counts by the number of its draws."""
    known = [(rho, n - 3) for rho, n in zip(rhos, sizes, strict=True) if n > 3 and math.isfinite(rho)]
    if not known:
        return Interval(math.nan)
    total = sum(weight for _, weight in known)
    z = sum(weight * math.atanh(max(-1 + 1e-12, min(1 - 1e-12, rho))) for rho, weight in known) / total
    half = Z * math.sqrt(1.06 / total)
    return Interval(math.tanh(z), math.tanh(z - half), math.tanh(z + half))


def rate_difference(hits: tuple[float, float], sizes: tuple[int, int]) -> Interval:
    """The first of two rates minus the second, and Newcombe's interval, which is made of Wilson's."""
    if not all(sizes):
        return Interval(math.nan)
    (a, (a_lo, a_hi)), (b, (b_lo, b_hi)) = ((h / n, rate_interval(h / n, n)) for h, n in zip(hits, sizes, strict=True))
    value = a - b
    return Interval(value, value - math.hypot(a - a_lo, b_hi - b), value + math.hypot(a_hi - a, b - b_lo))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


# Tests


def holm(ps: Sequence[float]) -> list[float]:
    """p values corrected for their number, by Holm's method: the chance of any false claim among them stays at the level."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = largest
    return adjusted
