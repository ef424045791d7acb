"""How often keys fire, as text: the share of sampled prefixes with a coefficient above a tenth of the cell's largest, and the peak.

The share above zero is no such measure: with a gate, and with a model that does not use ReLU, about half of all coefficients are
above zero, whatever the key waits for.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..analyses.stats import wilson
from ..store import shading
from ..store.run import Cell, Layer, Run
from .text import number


class Often(NamedTuple):
    """A measure of how often the keys of a layer fire. Without shading it is how far their strongest coefficients stand out."""

    name: str
    title: str
    form: str
    """of a number in text"""
    axis: str
    """of a number on the axis of a chart"""
    numbers: npt.NDArray[Any]
    """one per cell of the layer"""

    def of(self, index: int) -> str:
        return number(self.numbers[index], self.form)

    @property
    def mean(self) -> str:
        """Their mean, without cells that have none."""
        known = self.numbers[np.isfinite(self.numbers)]
        return number(known.mean() if len(known) else math.nan, self.form)


def name(run: Run) -> str:
    """What `often` measures, as the title of a column."""
    return "peak" if shading.of(run) is None else "fires on"


def often(layer: Layer) -> Often:
    shares = shading.firing(layer.run, layer.span)
    if shares is None:
        return Often("peak", "strongest coefficient per root mean square", ".3g", "~g", layer.stats.peak)
    title = "share of prefixes with a coefficient above a tenth of the cell's largest"
    return Often(name(layer.run), title, ".2%", "~%", shares)


def of(cell: Cell) -> dict[str, float | int | None] | None:
    """How often a key fires: share, Wilson's interval, sampled prefixes. None without shading, or if the key never fires."""
    found = shading.of(cell.run)
    if found is None or math.isnan(share := float(found.firing(slice(cell.place, cell.place + 1))[0])):
        return None
    lo, hi = wilson(share * found.prefixes, found.prefixes)
    return {"share": share, "lo": lo, "hi": hi, "n": found.prefixes}


def said(cell: Cell) -> list[str]:
    """How a key fires: how often, if that is known, and how far its strongest coefficient stands out."""
    stats, often = cell.stats, of(cell)
    peak = f"strongest |m| {number(stats.peak, '.3g')} times the root mean square {number(stats.rms, '.3g')}, over {stats.n:,} prefixes"
    if often is None:
        return [peak]
    share, lo, hi = (number(often[name] or 0.0, ".2%") for name in ("share", "lo", "hi"))
    return [f"m above a tenth of its largest on {share} of prefixes ({lo} to {hi}, {often['n']:,} sampled)", peak]
