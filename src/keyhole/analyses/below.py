"""Collects the coefficients of some random prefixes with every cell, from which the examples below the top are chosen."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..store import below, layout
from ..store.run import Run

if TYPE_CHECKING:
    import torch

    from .shading import _Windows

KEPT = 2_048
"""Upper bound on the prefixes whose coefficients are kept."""
IN_MEMORY = 512 << 20
"""Upper bound on the bytes of coefficients in memory; more are kept in a file without a name beside the run."""
ON_DISK = 8 << 30
"""Upper bound on the bytes of that file: a model with very many cells gets fewer prefixes."""
BLOCK = 4_096
"""Cells whose examples are chosen together. Part of what a seed gives: with another block, other examples are drawn."""

Ints = npt.NDArray[np.int64]


class Picked(NamedTuple):
    """Prefixes, in the order of the text."""

    windows: Ints
    columns: Ints
    """of each prefix's last token in its window"""


class Kept:
    """The prefixes whose coefficients are kept: which they are, and the coefficients [prefixes, cells] as batches bring them."""

    def __init__(self, run: Run, windows: _Windows, picked: Picked, seed: int, held: npt.NDArray[np.float32]) -> None:
        self.run, self.seed, self.held = run, seed, held
        window, self.columns = picked
        self.places = np.stack([windows.units[window], windows.starts[window] + self.columns], 1).astype(np.int32)
        self._rows = windows.row[window].astype(np.int64)
        batch = windows.batch[window]
        self._order = np.argsort(batch, kind="stable")
        self._bounds = np.searchsorted(batch[self._order], np.arange(len(windows.bounds)))

    def add(self, number: int, site: slice, x: torch.Tensor, signs: torch.Tensor, columns: int, n_special: int) -> None:
        """Keep what a batch gives for the cells of a site; x: [tokens of the batch, cells]."""
        import torch

        mine = self._order[self._bounds[number] : self._bounds[number + 1]]
        if len(mine):
            token = torch.from_numpy(self._rows[mine] * columns + n_special + self.columns[mine]).to(x.device)
            found = x[token].float() * signs.to(x.device)
            self.held[mine, site] = (found + 0.0).cpu().numpy()  # −0 becomes 0

    def save(self) -> None:
        """Choose the examples of every cell, and write them."""
        cells = len(self.run.cells)
        parts: list[tuple[npt.NDArray[np.generic], ...]] = []
        for begin in range(0, cells, BLOCK):
            random = np.random.default_rng([self.seed, 2, begin])
            part = np.ascontiguousarray(self.held[:, begin : begin + BLOCK].T)
            parts.append(below.choose(part, random))
        arrays = [np.concatenate(each) for each in zip(*parts, strict=True)]
        for name, array in zip(layout.BELOW, (self.places, *arrays), strict=True):
            layout.save_array(self.run.path, name, array)


def pick(windows: _Windows, sampled: Ints, seed: int, most: int) -> Picked:
    """At most `most` random prefixes of some windows, no two of the same tokens: what the model reads is a candidate once."""
    ends = np.cumsum(windows.lengths[sampled])
    found: dict[bytes, tuple[int, int]] = {}
    for place in np.random.default_rng([seed, 1]).permutation(int(ends[-1]) if len(ends) else 0).tolist():
        if len(found) == most:
            break
        which = int(np.searchsorted(ends, place, "right"))
        window = int(sampled[which])
        column = place - int(ends[which] - windows.lengths[window])
        found.setdefault(windows.tokens(window)[: column + 1].tobytes(), (window, column))
    picked = np.array(sorted(found.values()), np.int64).reshape(-1, 2)
    return Picked(picked[:, 0], picked[:, 1])


@contextlib.contextmanager
def keeping(run: Run, windows: _Windows, sampled: Ints, seed: int) -> Iterator[Kept]:
    """`Kept` with room for the coefficients, which is given back afterwards."""
    each = 4 * len(run.cells)
    picked = pick(windows, sampled, seed, min(KEPT, max(1, ON_DISK // each)))
    prefixes = len(picked.columns)
    shape = (prefixes, len(run.cells))
    with contextlib.ExitStack() as stack:
        if prefixes * each <= IN_MEMORY:
            held = np.zeros(shape, np.float32)
        else:
            file = stack.enter_context(tempfile.TemporaryFile(dir=run.path))
            if hasattr(os, "posix_fallocate"):  # so a full disk is an error here and not a crash later
                os.posix_fallocate(file.fileno(), 0, prefixes * each)
            held = np.memmap(file, np.float32, "w+", shape=shape)
        yield Kept(run, windows, picked, seed, held)
