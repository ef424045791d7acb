"""The cells nearest to a cell: keys that share triggers with it, values that point the same way."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..common.once import Once
from ..store import values
from ..store.run import Run


class Alike:
    """The neighbours of cells of one run."""

    def __init__(self, run: Run) -> None:
        self.run, self._once = run, Once()

    def keys(self, own: int, limit: int) -> list[tuple[int, int]]:
        """The keys that share most triggers with the one at place `own`: (place, number of shared triggers)."""
        prefixes, cells = self._once.get("prefixes", self._by_prefix)
        mine = self._prefixes(own)
        begins, ends = np.searchsorted(prefixes, mine), np.searchsorted(prefixes, mine, "right")
        shared = [cells[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        if not shared:
            return []
        others, counts = np.unique(np.concatenate(shared), return_counts=True)
        counts[others == own] = 0
        most = np.argsort(-counts, kind="stable")[:limit]
        return [(int(others[i]), int(counts[i])) for i in most if counts[i]]

    def values(self, own: int, limit: int) -> list[tuple[int, float]] | None:
        """The values with the largest cosines to the one at place `own`, as many as the run stores; None if they were not searched
        for."""
        arrays = self._once.get("values", lambda: values.similar_arrays(self.run))
        if arrays is None:
            return None
        near = values.similar_at(self.run, arrays, own)[:limit]
        return [(self.run.cells.place(each.layer, each.cell), each.cosine) for each in near]

    def _prefixes(self, place: int) -> npt.NDArray[np.int64]:
        """A cell's triggers, each as the place of its last token in the corpus."""
        units, positions = self.run.units[place], self.run.positions[place]
        filled = units >= 0
        found: npt.NDArray[np.int64] = self._offsets[units[filled]] + positions[filled]
        return found

    @property
    def _offsets(self) -> npt.NDArray[np.int64]:
        return self._once.get("offsets", lambda: np.asarray(self.run.unit_offsets, np.int64))

    def _by_prefix(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        filled = self.run.units >= 0
        prefixes = self._offsets[self.run.units[filled]] + self.run.positions[filled]
        order = np.argsort(prefixes, kind="stable")
        return prefixes[order], np.nonzero(filled)[0][order].astype(np.int32)
