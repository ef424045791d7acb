"""How strongly each token of a trigger's context makes the key fire, and how a cell's coefficients are spread: read back.

`analyze`, step `shading`, fills both; no model is needed here. A shade is a byte a token: the coefficient of the prefix that
ends there, 127 being the largest size among the cell's stored triggers of both sides.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ..errors import RunDamaged
from . import layout as store
from .run import Run

BEFORE, AFTER = 40, 8
"""Tokens shown before a trigger's last one, and after it, at most."""
BINS = 32
LARGEST = 127

Ints = npt.NDArray[np.int64]
_opened: WeakKeyDictionary[Run, Shading] = WeakKeyDictionary()


def shown(length: int, position: int, room: int) -> tuple[int, int]:
    """From where to where a unit of `length` tokens is shown around a trigger: not before its window, which starts at a
    multiple of `room` (`Run.room`), for the model did not see what is there."""
    return max(position // room * room, position - BEFORE), min(length, position + AFTER + 1)


def spans(lengths: Ints, positions: Ints, room: int) -> tuple[Ints, Ints]:
    """`shown`, of many."""
    return np.maximum(positions // room * room, positions - BEFORE), np.minimum(lengths, positions + AFTER + 1)


class Shading:
    """The shades and histograms of a run."""

    def __init__(self, run: Run, settings: dict[str, Any]) -> None:
        self.run, self.settings = run, settings
        arrays = [store.load_array(run.path, name) for name in store.SHADING]
        self._shades, self._offsets, self._histograms = arrays
        if (
            [array.dtype.kind for array in arrays] != ["i", "i", "u"]
            or [array.ndim for array in arrays[:2]] != [1, 1]
            or len(self._offsets) != len(run.cells) + 1
            or self._histograms.shape != (len(run.cells), BINS)
            or not isinstance(settings.get("prefixes"), int)
        ):
            raise RunDamaged(
                f"{run.path} is damaged: its shading does not fit the run. Analyze it again: keyhole analyze {run.path}"
            )
        self._last: tuple[int, list[int]] = (-1, [])

    def row(self, layer: int, cell: int, slot: int, negative: bool = False) -> npt.NDArray[np.int8]:
        """A trigger's shades, one for each token from `shown`. Those behind its window's end are 0."""
        bounds = self._bounds(self.run.cells.place(layer, cell))
        at = slot + negative * self.run.top
        return np.asarray(self._shades[bounds[at] : bounds[at + 1]])

    def _bounds(self, place: int) -> list[int]:
        """Where each trigger's shades begin, the negative side behind the other."""
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

    def histogram(self, layer: int, cell: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint32], int] | None:
        """Edges [33] from the cell's least coefficient to its largest, counts [32] over a random sample of the corpus's
        prefixes, and their number; None where the coefficient is always the same."""
        place = self.run.cells.place(layer, cell)
        low, high = (float(self.run.stats[name][place]) for name in ("min", "max"))
        if not low < high:
            return None
        counts = np.asarray(self._histograms[place])
        return np.linspace(low, high, BINS + 1), counts, int(self.settings["prefixes"])


def of(run: Run) -> Shading | None:
    """The shading of a run; None where `analyze` did not fill it, or another Keyhole did to another pattern."""
    if run in _opened:
        return _opened[run]
    settings = store.read_shading(run.path)
    if settings is None or [settings.get(name) for name in ("before", "after", "bins")] != [BEFORE, AFTER, BINS]:
        return None
    return _opened.setdefault(run, Shading(run, settings))


def histogram(run: Run, layer: int, cell: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint32], int] | None:
    """`Shading.histogram`, where the run has it."""
    shading = of(run)
    return None if shading is None else shading.histogram(layer, cell)
