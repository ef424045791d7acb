"""How strongly the key fires at each token around a trigger, how a cell's coefficients are distributed, and how often it fires.

`analyze`, step `shading`, computes them; here they are read, without a model. A shade is one byte per token: the coefficient of
the prefix that ends there, scaled so that 127 is the largest |coefficient| among the cell's stored triggers of both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RunDamaged
from . import layout
from .below import EXAMPLES, Below
from .run import Run

BEFORE, AFTER = 40, 8
"""At most this many tokens are shown before a trigger's last token, and after it."""
BINS = 32
TENTH = 0.1
"""A key fires with a prefix if its coefficient is above this share of the cell's largest."""
LARGEST = 127
SAMPLED = {"prefixes", "of"}
"""What the settings say of the sample: how many prefixes were sampled, of how many, repeats included."""

Ints = npt.NDArray[np.int64]


def shown(length: int, position: int, room: int) -> tuple[int, int]:
    """The part of a unit of `length` tokens that is shown around a trigger, as begin and end.

    It does not begin before the trigger's window, because the model did not see what is before it. Windows start at multiples of
    `room` (`Run.room`).
    """
    return max(position // room * room, position - BEFORE), min(length, position + AFTER + 1)


def spans(lengths: Ints, positions: Ints, room: int) -> tuple[Ints, Ints]:
    """`shown` of many triggers."""
    return np.maximum(positions // room * room, positions - BEFORE), np.minimum(lengths, positions + AFTER + 1)


class Shading:
    """The shades and histograms of a run."""

    def __init__(self, run: Run, settings: dict[str, Any]) -> None:
        self.run, self.settings = run, settings
        arrays = [layout.load_array(run.path, name) for name in layout.SHADING]
        self._shades, self._offsets, self._histograms, self._firing = arrays
        if (
            [array.dtype.kind for array in arrays] != ["i", "i", "u", "u"]
            or [array.ndim for array in arrays[:2]] != [1, 1]
            or len(self._offsets) != len(run.cells) + 1
            or self._histograms.shape != (len(run.cells), BINS)
            or self._firing.shape != (len(run.cells),)
            or not all(isinstance(settings.get(name), int) for name in SAMPLED)
        ):
            raise RunDamaged(
                f"{run.path} is damaged: its shading does not fit the run. Analyze it again: keyhole analyze {run.path}"
            )
        self.below = Below(run)
        self._last: tuple[int, list[int]] = (-1, [])

    def row(self, layer: int, cell: int, slot: int, negative: bool = False) -> npt.NDArray[np.int8]:
        """The shades of a trigger, one per token of `shown`; 0 for tokens after the end of its window."""
        bounds = self._bounds(self.run.cells.place(layer, cell))
        at = slot + negative * self.run.top
        return np.asarray(self._shades[bounds[at] : bounds[at + 1]])

    def _bounds(self, place: int) -> list[int]:
        """Where the shades of each of a cell's triggers begin; those of the negative side follow the others."""
        key, bounds = self._last
        if key != place:
            run, sides = self.run, self.run.sides.values()
            units = np.concatenate([side.units[place] for side in sides]).astype(np.int64)
            positions = np.concatenate([side.positions[place] for side in sides]).astype(np.int64)
            offsets = run.unit_offsets
            begin, end = spans(offsets[np.maximum(units, 0) + 1] - offsets[np.maximum(units, 0)], positions, run.room)
            sizes = np.where(units >= 0, end - begin, 0)
            first = int(self._offsets[place])
            bounds = [first, *(first + np.cumsum(sizes)).tolist()]
            self._last = (place, bounds)
        return bounds

    @property
    def prefixes(self) -> int:
        """How many prefixes were sampled. One that is repeated in the text may be sampled as often."""
        return int(self.settings["prefixes"])

    @property
    def of(self) -> int:
        """How many prefixes the scanned text has, repeats included: the sample was drawn from these."""
        return int(self.settings["of"])

    def firing(self, which: slice) -> npt.NDArray[np.float64]:
        """The share of the sampled prefixes with a coefficient above a tenth of the cell's largest, of the cells at these places of
        the axis; NaN if no coefficient is above zero."""
        known = np.asarray(self.run.stats.max[which]) > 0
        shares = np.asarray(self._firing[which]) / max(1, self.prefixes)
        return np.where(known & (self.prefixes > 0), shares, np.nan)

    def histogram(self, layer: int, cell: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint32], int] | None:
        """Edges [BINS + 1] from the cell's smallest coefficient to its largest, counts [BINS] over a random sample of the corpus'
        prefixes, and the size of the sample; None if the coefficient is always the same."""
        place = self.run.cells.place(layer, cell)
        low, high = (float(self.run.stats[name][place]) for name in ("min", "max"))
        if not low < high:
            return None
        counts = np.asarray(self._histograms[place])
        return np.linspace(low, high, BINS + 1), counts, self.prefixes


def of(run: Run) -> Shading | None:
    """The shading of a run; None if `analyze` did not compute it, or if a version with other settings did."""
    kept = vars(run)  # as cached_property does; a global cache would keep the run alive, because a Shading refers to it
    if "_shading" in kept:
        known: Shading = kept["_shading"]
        return known
    settings = layout.read_shading(run.path)
    names = ("before", "after", "bins", "examples")
    if (
        settings is None
        or not settings.keys() >= SAMPLED
        or [settings.get(name) for name in names] != [BEFORE, AFTER, BINS, EXAMPLES]
    ):
        return None
    found: Shading = kept.setdefault("_shading", Shading(run, settings))
    return found


def histogram(run: Run, layer: int, cell: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint32], int] | None:
    """`Shading.histogram`; None if the run has no shading."""
    shading = of(run)
    return None if shading is None else shading.histogram(layer, cell)


def firing(run: Run, which: slice = slice(None)) -> npt.NDArray[np.float64] | None:
    """`Shading.firing`; None if the run has no shading."""
    shading = of(run)
    return None if shading is None else shading.firing(which)
