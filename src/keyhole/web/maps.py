"""The measures of all cells that the overview's map shows, in pieces that stay small if a model has millions of cells.

A page first reads the list of measures (map.json), then one measure in bins (maps/…): the strongest cell of every few. A model
with at most `WHOLE` cells has bins of one cell, and nothing else is asked for. With more cells, the page asks for single cells
only where it is zoomed in: a block holds the same range of cells of every layer, because that is what a zoomed map shows.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ..analyses import registry
from ..analyses.record import CellMeasure
from ..cells import Cells
from ..store import annotations as people
from ..store.run import Run
from ..store.values import Values
from . import schema
from .pack import LEVELS, UNKNOWN, Quantized, leveled, packed, quantized, short
from .search import Once

WHOLE = 1 << 17
"""Upper bound on the bins of one answer."""
KEPT_BYTES = 64 << 20
"""Upper bound on the bytes of measures that are kept, one byte per cell; the last one used is always kept."""
QUICK = 1 << 20
"""With more cells than this, the map begins with a measure that is stored, and not with one that is made from all triggers."""
TAILS = (0.005, 0.998)
"""Shares of the cells between which the colours run: a few extreme cells would take up the whole scale."""


class Maps:
    """The map of one run. Safe to use from many threads."""

    def __init__(self, run: Run, values: Values | None) -> None:
        self.run, self.axis, self.values = run, run.cells, values
        sizes = [self.axis.size(layer) for layer in range(len(self.axis.layers))]
        self.bin = 1
        while sum(-(-size // self.bin) for size in sizes) > WHOLE and self.bin < max(sizes):
            self.bin *= 2
        self.block = 1 << max(0, (WHOLE // len(sizes)).bit_length() - 1)
        self.blocks = -(-max(sizes) // self.block) if self.bin > 1 else 0
        self._once, self._lock = Once(), threading.Lock()
        self._kept: dict[str, Quantized] = {}
        self._ranked: tuple[str, npt.NDArray[np.uint32]] | None = None

    # The list

    @property
    def _measures(self) -> list[CellMeasure]:
        return self._once.get("measures", partial(registry.offered_measures, self.run, self.values))

    @property
    def count(self) -> int:
        """How many measures there are. What annotators found is one of them as soon as they found something."""
        return len(self._measures) + bool(people.kinds(self.run))

    def listed(self) -> schema.CellMap:
        measures = [
            schema.Measure(each.name, each.title, each.side, each.format, "log" if each.log else "linear")
            if not each.kinds
            else schema.Measure(each.name, each.title, each.side, "number", "linear", list(each.kinds))
            for each in self._measures
        ]
        names = [each.name for each in measures]
        shown = "agreement" if "agreement" in names and len(self.axis) <= QUICK else names[0]
        if people.kinds(self.run):
            found = "what annotators found"
            measures.append(schema.Measure("pattern", found, "people", "number", "linear", list(people.KINDS)))
        return schema.CellMap(LEVELS, UNKNOWN, self.bin, self.block, self.blocks, shown, measures)

    def begin(self) -> None:
        """Make what the first look at the map needs."""
        shown = self.listed().shown
        self.measure([each.name for each in self._measures].index(shown))

    # One measure

    def measure(self, number: int) -> schema.MeasureMap:
        """A measure of all cells, in bins."""
        name, found = self.numbers(number)
        counts = np.stack([np.bincount(found.data[span], minlength=UNKNOWN + 1) for span in self._spans])
        low, high = (0, LEVELS) if found.named else _ends(counts.sum(0))
        made = schema.MeasureMap(
            name=name,
            lo=short(found.lo),
            hi=short(found.hi),
            low=low,
            high=high,
            unknown=bool(counts[:, UNKNOWN].any()),
            data="",
        )
        if self.bin == 1:
            made.data = packed(found.data)
            return made
        strength, place = zip(*(_strongest(found.data[span], self.bin) for span in self._spans), strict=True)
        made.data = packed(np.concatenate(strength))
        made.strongest = packed(np.concatenate(place).astype("<u2"))
        made.counts = packed(counts.astype("<u4"))
        return made

    def cells(self, number: int, block: int) -> schema.MapCells:
        """A measure of single cells."""
        name, found = self.numbers(number)
        return schema.MapCells(name, packed(np.concatenate([found.data[part] for part in self._parts(block)])))

    def ranks(self, number: int, block: int) -> schema.MapRanks:
        """The cells of some ranks in the order of a measure."""
        name, found = self.numbers(number)
        with self._lock:
            ranked = self._ranked
        if ranked is None or ranked[0] != name or number >= len(self._measures):
            order = np.concatenate([_order(found.data[span]) for span in self._spans])
            ranked = (name, order)
            with self._lock:
                self._ranked = ranked
        return schema.MapRanks(name, packed(np.concatenate([ranked[1][part] for part in self._parts(block)])))

    @property
    def _spans(self) -> Sequence[slice]:
        return [self.axis.span(layer) for layer in range(len(self.axis.layers))]

    def _parts(self, block: int) -> list[slice]:
        """The places of a block's cells, layer by layer; narrow layers may have none."""
        begin = block * self.block
        return [
            slice(min(span.start + begin, span.stop), min(span.start + begin + self.block, span.stop))
            for span in self._spans
        ]

    def numbers(self, number: int) -> tuple[str, Quantized]:
        """A measure's name, and its byte of every cell."""
        measures = self._measures
        if number >= len(measures):  # people go on annotating, so this one is not kept
            return "pattern", _annotated(self.run, self.axis)
        asked = measures[number]
        with self._lock:  # two requests for one measure do not both make it
            if asked.name in self._kept:
                self._kept[asked.name] = self._kept.pop(asked.name)
            else:
                numbers = registry.numbers_of(asked, self.run, self.values)
                self._kept[asked.name] = leveled(numbers) if asked.kinds else quantized(numbers, log=asked.log)
                while len(self._kept) > 1 and len(self._kept) * len(self.axis) > KEPT_BYTES:
                    del self._kept[next(iter(self._kept))]
            return asked.name, self._kept[asked.name]


def _annotated(run: Run, axis: Cells) -> Quantized:
    """What annotators found in each cell."""
    data = np.full(len(axis), UNKNOWN, np.uint8)
    for at, kind in people.kinds(run).items():
        data[axis.place(*at)] = people.KINDS.index(kind)
    return Quantized(0, LEVELS, data, named=True)


def _strongest(data: npt.NDArray[np.uint8], size: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The largest byte of each bin of a layer, and the first cell of the bin that has it."""
    bins = -(-len(data) // size)
    strength = np.zeros(bins * size, np.uint8)
    strength[: len(data)] = data + np.uint8(1)  # a cell without a number (255) becomes 0, below all others
    by_bin = strength.reshape(bins, size)
    return by_bin.max(1) - np.uint8(1), by_bin.argmax(1)


def _order(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """The cells of a layer, strongest first; those without a number last."""
    weakness = ~(data + np.uint8(1))
    return np.argsort(weakness, kind="stable").astype("<u4")


def _ends(counts: npt.NDArray[np.int64]) -> tuple[int, int]:
    """The bytes between which nearly all cells lie."""
    known = np.cumsum(counts[: LEVELS + 1])
    if not known[-1]:
        return 0, LEVELS
    low, high = (int(np.searchsorted(known, min(int(known[-1] * share), known[-1] - 1), "right")) for share in TAILS)
    return low, max(high, low + 1)
