"""Statistics of coefficients, from the sums and extremes that a scan keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ..cells import Cells

SAFE_SUM = 2.0**62
"""Bound on |sum| of coefficients, or of their squares, that is safe in 64 bits: half of the range is left for rounding."""


@dataclass(frozen=True)
class Stats:
    """Statistics of coefficients over the distinct prefixes of the corpus; arrays [cells], or one cell's numbers."""

    n: Any
    """distinct prefixes"""
    active: Any
    """how many of these have a coefficient above zero; NaN if the layers have a gate, because the sign is a convention there"""
    mean: Any
    std: Any
    max: Any
    min: Any
    dead: Any
    """whether the key never fires: no coefficient is above zero or, if the layers have a gate, different from zero"""

    @property
    def active_fraction(self) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):  # a shard without any prefix: 0 / 0
            return np.divide(self.active, self.n)

    @property
    def rms(self) -> Any:
        """The root mean square of the coefficients."""
        return np.hypot(self.mean, self.std)

    @property
    def peak(self) -> Any:
        """The largest |coefficient| per root mean square: 1 if all are alike, √n if one of n differs from zero. NaN if all are 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.divide(np.maximum(np.abs(self.max), np.abs(self.min)), self.rms)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def part(self, which: slice | npt.NDArray[Any]) -> Stats:
        """The statistics of some cells, as views of these if `which` is a slice."""
        return Stats(**{field.name: getattr(self, field.name)[which] for field in fields(self)})


def moments(
    sums: npt.NDArray[np.int64], extremes: npt.NDArray[np.float32], n: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of `n` coefficients from their sums [..., (Σm, Σm²), (whole, fraction)] and extremes
    [..., (largest, smallest)].

    Both are NaN if n is 0, or if a sum may have overflowed 64 bits, which the exact extremes tell.
    The extremes also bound the results, however the sums were rounded: the mean lies between them, and with
    r = largest − smallest the standard deviation lies between r/√(2n) and r/2.
    """
    total, squares = (sums[..., i, 0] + sums[..., i, 1] * 2.0**-52 for i in (0, 1))
    high, low = (extremes[..., i].astype(np.float64) for i in (0, 1))
    largest = np.maximum(np.abs(high), np.abs(low))
    if not n:
        return np.full_like(high, np.nan), np.full_like(high, np.nan)
    mean = np.where(n * largest < SAFE_SUM, np.clip(total / n, low, high), np.nan)
    variance = np.where(n * largest**2 < SAFE_SUM, np.maximum(squares / n - mean**2, 0), np.nan)
    return mean, np.clip(np.sqrt(variance), (high - low) / np.sqrt(2 * n), (high - low) / 2)


def with_unrouted(extremes: npt.NDArray[np.float32], cells: Cells) -> npt.NDArray[np.float32]:
    """Extremes of coefficients over all candidates, from those that an index holds [cells, (largest, smallest)].

    An index sees an expert's cells only with the tokens that are routed there. With every other token their coefficient is 0,
    which counts as a coefficient like any other: sums need no change, but the extremes must include it.
    """
    if not any(layer.experts for layer in cells.layers):
        return extremes
    found = np.array(extremes)
    for layer, about in enumerate(cells.layers):
        if about.experts:
            part = found[cells.span(layer)]
            np.maximum(part[:, 0], 0, out=part[:, 0])
            np.minimum(part[:, 1], 0, out=part[:, 1])
    return found
