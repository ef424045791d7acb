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
from .text import number, share


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
    title = "share of the text's prefixes with a coefficient above a tenth of the cell's largest"
    return Often(name(layer.run), title, ".2%", "~%", shares)


def of(cell: Cell) -> dict[str, float | int | None] | None:
    """How often a key fires: share, interval, prefixes that were sampled, and of how many. None without shading, or if the key
    never fires.

    The interval is Wilson's for a sample without replacement: n of N prefixes say as much as n·(N − 1)/(N − n) of endlessly many.
    If all were looked at, it is the share itself.
    """
    found = shading.of(cell.run)
    if found is None or math.isnan(part := float(found.firing(slice(cell.place, cell.place + 1))[0])):
        return None
    n, all_ = found.prefixes, found.of
    lo, hi = (part, part) if n >= all_ else wilson(part * (worth := n * (all_ - 1) / (all_ - n)), worth)
    return {"share": part, "lo": lo, "hi": hi, "n": n, "of": all_}


def said(cell: Cell) -> list[str]:
    """How a key fires: how often, if that is known, and how far its strongest coefficient stands out."""
    stats, often = cell.stats, of(cell)
    peak = f"strongest |m| {number(stats.peak, '.3g')} times the root mean square {number(stats.rms, '.3g')}, over {stats.n:,} prefixes"
    if often is None:
        return [peak]
    part, lo, hi = (share(often[name] or 0.0) for name in ("share", "lo", "hi"))
    n, all_ = often["n"], often["of"]
    counted = f"all {n:,}" if n == all_ else f"{lo} to {hi}, {n:,} of {all_:,} sampled"
    return [f"m above a tenth of its largest on {part} of the text's prefixes ({counted})", peak]
