"""Examples below the top: prefixes with which a key fires less than with its triggers, and random ones.

The step `shading` of `analyze` keeps the coefficients of some random prefixes of its sample, the same prefixes for all cells. Per
cell these prefixes are ranked by coefficient and cut into bands of ranks. A few examples of each band are stored, and a few of all
prefixes, whatever their coefficient:

    below_places.npy            [prefixes, 2] unit and position of each kept prefix
    below_chosen.npy            [cells, slots] the numbers of the chosen prefixes, −1 in unfilled slots; `EXAMPLES` slots per band, then
                                as many random ones
    below_coefficients.npy      [cells, slots] their coefficients, in the cell's orientation; NaN in unfilled slots
    below_edges.npy             [cells, bands − 1] the smallest coefficient of each band but the last; NaN if the band is empty
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import RunDamaged
from . import layout
from .run import Run

BANDS = ((0.99, 1.0), (0.9, 0.99), (0.5, 0.9), (0.0, 0.5))
"""Quantiles of the coefficient, the strongest band first."""
EXAMPLES = 4
"""Examples per band, and as many random ones."""
SLOTS = EXAMPLES * (len(BANDS) + 1)


class Example(NamedTuple):
    prefix: int
    """its number among the kept prefixes"""
    coefficient: float


class Examples(NamedTuple):
    """The examples of a cell."""

    edges: list[float]
    """the smallest coefficient of each band but the last; NaN if the band is empty"""
    bands: list[list[Example]]
    """per band of `BANDS`, the strongest first"""
    random: list[Example]


def ranks(prefixes: int) -> list[tuple[int, int]]:
    """Which ranks each band has, as begin and end, among this number of prefixes: rank 0 has the largest coefficient."""
    return [(round((1 - high) * prefixes), round((1 - low) * prefixes)) for low, high in BANDS]


class Below:
    """The examples of all cells of a run."""

    def __init__(self, run: Run) -> None:
        arrays = [layout.load_array(run.path, name) for name in layout.BELOW]
        self.places, self._chosen, self._coefficients, self._edges = arrays
        cells = len(run.cells)
        if (
            [array.dtype.kind for array in arrays] != ["i", "i", "f", "f"]
            or self.places.ndim != 2
            or [array.shape for array in arrays[1:]] != [(cells, SLOTS), (cells, SLOTS), (cells, len(BANDS) - 1)]
            or self.places.shape[1] != 2
        ):
            raise _damaged(run)
        self.run = run
        run.check_places(self.places[:, 0], self.places[:, 1])

    def of(self, place: int) -> Examples:
        """The examples of the cell at a place of the axis."""
        chosen, coefficients = self._chosen[place].tolist(), self._coefficients[place].tolist()
        if max(chosen, default=0) >= len(self.places):
            raise _damaged(self.run)
        groups = [
            [
                Example(prefix, m)
                for prefix, m in zip(chosen[at : at + EXAMPLES], coefficients[at : at + EXAMPLES], strict=True)
                if prefix >= 0
            ]
            for at in range(0, SLOTS, EXAMPLES)
        ]
        return Examples(self._edges[place].tolist(), groups[:-1], groups[-1])


def choose(m: npt.NDArray[np.float32], random: np.random.Generator) -> tuple[npt.NDArray[np.generic], ...]:
    """Examples for cells with these coefficients [cells, prefixes]: `below_chosen`, `below_coefficients`, `below_edges`.

    A band is cut into as many equal parts as there are examples, and one rank of each part is drawn: the examples are spread over
    their band. Prefixes with equal coefficients are ranked by their numbers.
    """
    cells, prefixes = m.shape
    order = np.argsort(-m, axis=1, kind="stable")
    chosen = np.full((cells, SLOTS), -1, np.int32)
    edges = np.full((cells, len(BANDS) - 1), np.nan, np.float32)
    for band, (begin, end) in enumerate(ranks(prefixes)):
        drawn = begin + _drawn(end - begin, cells, random)
        at = band * EXAMPLES
        chosen[:, at : at + drawn.shape[1]] = np.take_along_axis(order, drawn, 1)
        if begin < end and band < len(BANDS) - 1:
            edges[:, band] = np.take_along_axis(m, order[:, end - 1 : end], 1)[:, 0]
    drawn = _drawn(prefixes, cells, random)
    chosen[:, -EXAMPLES:][:, : drawn.shape[1]] = drawn
    found = np.take_along_axis(m, np.maximum(chosen, 0), 1)
    return chosen, np.where(chosen >= 0, found, np.float32(np.nan)), edges


def _drawn(size: int, cells: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """[cells, EXAMPLES] different numbers below `size`, ascending; fewer columns if there are fewer numbers."""
    bounds = np.arange(min(EXAMPLES, size) + 1) * size // max(1, min(EXAMPLES, size))
    return random.integers(bounds[:-1], bounds[1:], (cells, len(bounds) - 1))


def _damaged(run: Run) -> RunDamaged:
    return RunDamaged(
        f"{run.path} is damaged: its examples below the top do not fit the run. Analyze it again: keyhole analyze {run.path}"
    )
