"""Where the values and the keys of all cells lie on a plane, for the overview's map.

A model of few cells is sent whole: the coordinates once, coloured by the bytes of maps/…. With more cells, the page first reads a grid
of bins, each with its strongest cell, and then tiles of single cells where it is zoomed in. For that the cells are sorted along a
Z-curve, so that a bin, and a tile, is a run of neighbours.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..store import planes
from ..store.run import Run
from . import maps, schema
from .pack import packed, short
from .search import Once

FAR = 65_535
"""The coordinate of the right edge, or of the lower one: that of the longer side."""
BITS = 10
"""Bits of each coordinate that the order of the cells goes by."""
BIN_BITS = 8
"""Bits of each coordinate that a bin goes by: the grid has 256 × 256 bins."""


class _Sorted(NamedTuple):
    at: npt.NDArray[np.uint16]
    """[cells, 2] coordinates, by place"""
    order: npt.NDArray[np.uint32]
    """the places along the Z-curve"""
    bins: npt.NDArray[np.int64]
    """where each bin that has cells begins in that order"""


class Planes:
    """The planes of one run."""

    def __init__(self, run: Run, measures: maps.Maps) -> None:
        self.run, self.measures, self.found = run, measures, planes.of(run)
        self.sides = [] if self.found is None else list(self.found.sides.items())
        self.tile = max(1, maps.WHOLE // 2)
        self.tiles = -(-len(run.cells) // self.tile) if measures.bin > 1 and self.sides else 0
        """how many tiles a plane has; 0 if it is sent whole"""
        self._once = Once()

    def listed(self) -> schema.Planes:
        return self._once.get("listed", self._listed)

    def _listed(self) -> schema.Planes:
        method = "" if self.found is None else self.found.method
        every = [self._about(number, *side) for number, side in enumerate(self.sides)]
        return schema.Planes(method, self.run.gated, every)

    def _about(self, number: int, name: str, side: planes.Side) -> schema.Plane:
        extent = np.ptp(side.at, axis=0).astype(float)
        width, height = np.maximum(extent / (extent.max() or 1), 0.01).tolist()
        shares = (short(sum(side.explained), 4), short(sum(side.shuffled), 4))
        tiles = [self._box(number, tile) for tile in range(self.tiles)]
        return schema.Plane(
            "values" if name == "values" else "keys", *shares, side.sample, short(width), short(height), tiles
        )

    def points(self, number: int) -> schema.Points:
        """Every cell of a small model."""
        name, side = self.sides[number]
        return schema.Points(name, packed(placed(side.at)))

    # Large models

    def _sorted(self, number: int) -> _Sorted:
        return self._once.get(str(number), partial(_sort, self.sides[number][1].at))

    def _box(self, number: int, tile: int) -> list[int]:
        at = self._sorted(number).at[self._tile(number, tile)]
        return [*at.min(0).tolist(), *at.max(0).tolist()]

    def _tile(self, number: int, tile: int) -> npt.NDArray[np.uint32]:
        return self._sorted(number).order[tile * self.tile : (tile + 1) * self.tile]

    def bins(self, number: int, measure: int) -> schema.ManyPoints:
        """The strongest cell of every bin of the grid."""
        known = self._sorted(number)
        name, found = self.measures.numbers(measure)
        strength = found.data[known.order] + np.uint8(1)  # a cell without a number (255) becomes 0, below all others
        largest = np.maximum.reduceat(strength, known.bins)
        sizes = np.diff(np.append(known.bins, len(strength)))
        is_largest = np.flatnonzero(strength == np.repeat(largest, sizes))
        first = is_largest[np.searchsorted(is_largest, known.bins)]
        made = self._many(number, name, known.order[first], found.data)
        made.counts = packed(sizes.astype("<u4"))
        return made

    def cells(self, number: int, measure: int, tile: int) -> schema.ManyPoints:
        """The cells of a tile."""
        name, found = self.measures.numbers(measure)
        return self._many(number, name, self._tile(number, tile), found.data)

    def _many(
        self, number: int, name: str, places: npt.NDArray[np.uint32], data: npt.NDArray[np.uint8]
    ) -> schema.ManyPoints:
        at = self._sorted(number).at[places]
        return schema.ManyPoints(name, packed(places.astype("<u4")), packed(at), packed(data[places]))


def placed(at: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Coordinates as whole numbers, both axes on one scale. The second axis points up, and a page counts from the top."""
    low, high = at.min(0).astype(float), at.max(0).astype(float)
    scale = FAR / (max(high - low) or 1)
    found = np.empty(at.shape, "<u2")
    found[:, 0] = np.rint((at[:, 0] - low[0]) * scale)
    found[:, 1] = np.rint((high[1] - at[:, 1]) * scale)
    return found


def _sort(side: npt.NDArray[np.float32]) -> _Sorted:
    at = placed(side)
    code = np.zeros(len(at), np.uint32)
    for bit in range(BITS):
        for axis in (0, 1):
            code |= ((at[:, axis].astype(np.uint32) >> (16 - BITS + bit)) & 1) << (2 * bit + axis)
    order = np.argsort(code, kind="stable").astype(np.uint32)
    own_bin = code[order] >> (2 * (BITS - BIN_BITS))
    return _Sorted(at, order, np.flatnonzero(np.diff(own_bin, prepend=np.uint32(1 << 31))))
