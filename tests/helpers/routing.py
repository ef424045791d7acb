"""A corpus whose tokens are routed to experts, its batches, and the state an index must have after them, by plain loops."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from keyhole.cells import Cells, Layer
from keyhole.kernels.order import UNFILLED, brute_force, pack
from keyhole.scanning.contract import Index
from keyhole.scanning.cpu import CpuIndex

KINDS = ["cpu", "triton"]
CELLS = Cells([Layer(4), Layer(3, experts=3, number=1), Layer(2, number=2)])
"""A layer, a layer with three experts, and another, narrower layer."""
JUNK = 1e4
"""Larger than every coefficient: what is no candidate has it, on either side."""


def an_index(kind: str, top: int, *, tiling: Any = None, **options: Any) -> Index:
    """An index of the kind asked for. That of the kernels has few slots, so that some cells have more survivors than slots."""
    if kind == "cpu":
        return CpuIndex(CELLS, top, **options)
    from triton_here import DEVICE

    from keyhole.scanning.gpu import GpuIndex, Tiling

    tiling = tiling or Tiling(rows=2, lanes=1, block=4, unroll=2, warps=1, fill=1)
    return GpuIndex([DEVICE] * len(CELLS.sites), CELLS, top, tiling=tiling, slots=4, **options)


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@dataclass
class Routed:
    """Windows of tokens, and which tokens each site sees."""

    seed: int
    windows: int = 9
    longest: int = 6
    share: float = 0.4
    """of the tokens, how many an expert gets"""
    signed: bool = True
    dtype: torch.dtype = torch.float32
    sites: tuple[int, ...] = tuple(range(len(CELLS.sites)))
    """those that give anything"""
    lengths: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.n_special = int(rng.integers(0, 3))
        self.lengths = rng.integers(1, self.longest + 1, self.windows)
        self.seen_before = (self.lengths * rng.random(self.windows) * rng.integers(0, 2, self.windows)).astype(np.int32)
        self.first = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        tokens = int(self.lengths.sum())
        values = np.round(rng.normal(size=(tokens, len(CELLS))) * 4) / 4  # many ties
        values[:, 1] = -np.abs(values[:, 1]) - 1  # a cell that never fires
        values[:, 5] = np.abs(values[:, 5]) + 1  # and one that always does
        self.values = values if self.signed else np.maximum(values, 0)
        self.seen_by = rng.random((tokens, len(CELLS.sites))) < self.share
        self.seen_by[:, [0, -1]] = True  # the layers without experts
        self.unit_offsets = self.first[::2].astype(np.int64)  # two windows are a unit

    @property
    def candidates(self) -> int:
        return int((self.lengths - self.seen_before).sum())

    def feed(self, index: Index, batches: Iterable[np.ndarray], *, always_tokens: bool = False) -> None:
        """Batches, each given as the numbers of its windows. `always_tokens`: layers without experts give rows, too."""
        for windows in batches:
            prepared = self.prepare(index, windows)
            for site in self.sites:
                x, tokens = self.rows(site, windows, always_tokens=always_tokens)
                index.update(site, x, prepared, tokens)
            index.n += int((self.lengths - self.seen_before)[windows].sum())

    def columns(self, windows: np.ndarray) -> int:
        return self.n_special + int(self.lengths[windows].max()) + 1

    def prepare(self, index: Index, windows: np.ndarray) -> Any:
        about = (self.lengths[windows], self.seen_before[windows], self.first[windows])
        return index.prepare(self.columns(windows), self.n_special, *about)

    def rows(
        self, site: int, windows: np.ndarray, *, always_tokens: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What a site gives for a batch. Special tokens, padding and prefixes seen before are routed as well, and are junk."""
        rng = np.random.default_rng([self.seed, site, *windows])
        span, columns = CELLS.sites[site], self.columns(windows)
        x = rng.choice(
            [0.0, JUNK] if not self.signed else [-JUNK, JUNK], (len(windows), columns, span.stop - span.start)
        )
        routed = rng.random((len(windows), columns)) < self.share
        for row, window in enumerate(windows):
            first, length, seen = self.first[window], self.lengths[window], self.seen_before[window]
            x[row, self.n_special + seen : self.n_special + length] = self.values[first + seen : first + length, span]
            routed[row, self.n_special : self.n_special + length] = self.seen_by[first : first + length, site]
        given = torch.from_numpy(x).to(device(), self.dtype)
        if site in (0, len(CELLS.sites) - 1):
            if not always_tokens:
                return given, None
            routed[:] = True
        tokens = torch.from_numpy(np.flatnonzero(routed.ravel())).to(device())
        return given.reshape(-1, x.shape[-1])[tokens], tokens

    def expected(self, top: int, per: str, *, grouped: bool) -> dict[str, np.ndarray]:
        """The state of an index that took all of it."""
        sides = (1, -1) if self.signed else (1,)
        state = {
            "n": np.array(self.candidates),
            "keys": np.full((len(sides), len(CELLS), top), UNFILLED),
            "active": np.zeros(len(CELLS), np.int64),
            "extremes": np.repeat(np.array([[-np.inf, np.inf]], np.float32), len(CELLS), 0),
            "sums": np.zeros((len(CELLS), 2)),
        }
        for site in self.sites:
            span = CELLS.sites[site]
            tokens, units = [], []
            for window, (first, length, seen) in enumerate(
                zip(self.first, self.lengths, self.seen_before, strict=True)
            ):
                for token in range(first + seen, first + length):
                    if self.seen_by[token, site]:
                        tokens.append(token)
                        units.append(window // 2 if grouped else window)
            values = self.values[tokens, span].astype(np.float32)
            for side, sign in enumerate(sides):
                found = brute_force(sign * values, np.array(units), np.array(tokens), top, per=per)
                filled = found[1] >= 0
                packed = pack(np.where(filled, found[0], 1), np.where(filled, found[2], 0))
                state["keys"][side, span] = np.where(filled, packed, UNFILLED)
            for cell, column in enumerate(values.T, span.start):
                state["active"][cell] = sum(value > 0 for value in column)
                state["sums"][cell] = math.fsum(column), math.fsum(value**2 for value in column.astype(float))
                if len(column):
                    state["extremes"][cell] = max(column), min(column)
        return state
