"""The top-t contract of `topk.py` at the speed of the forward pass.

`make_index` gives the one for the device: `Index` below, which runs anywhere, or on a GPU `gpu.GpuIndex`.

The index is a filter. Once every cell has its list, few coefficients beat a cell's t-th best: compare, keep the
survivors, and merge them into the lists now and then. A stale threshold only lets more survivors through; nothing that
belongs in a list is ever dropped, so the result is exact.

Statistics are exact too, in the sense that matters: each batch's sums are turned into integers (64 bits of whole, 52 of
fraction), and integers add up to the same bytes in whatever order the batches come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels.available import has_triton
from ..kernels.order import UNFILLED, Keys, one_per_group, pack

FRACTION = 52
MOST = 2.0**62
"""The largest sum of a batch that is added."""
SMALLEST = float(np.nextafter(np.float32(0), np.float32(1)))
"""A trigger's coefficient is above zero."""

CACHED = 4 << 20
"""Bytes of coefficients that are read together."""
WAITING = 4
"""Survivors a cell, on average, that wait before they are merged: later costs fewer merges, and lets more through."""

UnitOf = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]


class AnyIndex(Protocol):
    """What a scan needs of an index."""

    n: int

    @property
    def nbytes(self) -> int: ...
    def state(self) -> dict[str, npt.NDArray[Any]]: ...
    def load(self, state: dict[str, npt.NDArray[Any]]) -> None: ...
    def flush(self) -> None: ...
    def prepare(
        self,
        columns: int,
        starts: int,
        lengths: npt.NDArray[Any],
        old: npt.NDArray[Any],
        first_tokens: npt.NDArray[np.int64],
    ) -> Any: ...
    def update(self, layer: int, x: Tensor, batch: Any) -> None: ...


def make_index(
    devices: Sequence[torch.device],
    cells: int,
    top: int,
    *,
    signed: bool,
    per: str,
    context: int,
    unit_offsets: npt.NDArray[np.int64] | None = None,
    beside: bool = True,
) -> AnyIndex:
    """The index for coefficients that come from `devices`, one a layer, in windows of at most `context` tokens.

    `unit_offsets` are given where a unit may come in several windows, of which only the best may enter. `beside`: on a GPU,
    read coefficients while the model goes on; not where their memory may be used again at once, as compiled blocks do.
    """
    if all(has_triton(device) for device in set(devices)):
        from .gpu import GpuIndex

        if GpuIndex.fits(columns=context, cells=cells, top=top):
            # beside the model's own kernels: the read moves bytes while the matrix products compute
            return GpuIndex(devices, cells, top, signed=signed, per=per, unit_offsets=unit_offsets, side_stream=beside)
    offsets = unit_offsets
    unit_of = None if offsets is None else lambda tokens: np.searchsorted(offsets, tokens, side="right") - 1
    return Index(len(devices), cells, top, signed=signed, per=per, unit_of=unit_of)


@dataclass(frozen=True)
class Candidates:
    """Which entries of a batch [rows, columns] are candidates, in blocks of which one may enter a list.

    A block is a window (one trigger a sentence) or a single prefix. Blocks are of one width: where a window has fewer
    candidates, its first one is repeated before it and its last one behind it, with weight 0, which changes neither its
    largest nor its smallest coefficient.
    """

    index: Tensor
    """[blocks · width] places in the flattened batch"""
    weights: Tensor
    """[blocks · width] 1 for a candidate, 0 for a repetition"""
    groups: int
    size: int
    """columns of a block: so many groups of so many, to find a place in two short steps instead of a long one"""
    old: npt.NDArray[np.int64]
    """[blocks] the column of each block's first candidate"""
    first: npt.NDArray[np.int64]
    """[blocks] the token index of each block's first column"""


def candidates(
    columns: int,
    starts: int,
    lengths: npt.NDArray[Any],
    old: npt.NDArray[Any],
    first_tokens: npt.NDArray[np.int64],
    per: str,
) -> Candidates:
    """The candidates of a batch of windows: own tokens only, new prefixes only."""
    groups, size = grouped(int(lengths.max())) if per == "sentence" else (1, int(lengths.max()))
    column = np.arange(groups * size)
    valid = (column >= old[:, None]) & (column < lengths[:, None])
    place = np.clip(column, old[:, None], lengths[:, None] - 1)
    index = np.arange(len(lengths))[:, None] * columns + starts + place
    old = old.astype(np.int64)
    if per == "prefix":
        index = index[valid][:, None]
        first_tokens = (first_tokens[:, None] + place)[valid]
        valid = np.ones(index.shape, bool)
        old, size = np.zeros(len(index), np.int64), 1
    weights = torch.from_numpy(valid.ravel().astype(np.float32))
    return Candidates(torch.from_numpy(index.ravel()), weights, groups, size, old, first_tokens)


def grouped(width: int) -> tuple[int, int]:
    """Groups and their size, about as many as large, with few columns too many."""
    root = width**0.5
    sizes = range(max(1, int(root * 0.7)), int(root * 1.5) + 1)
    size = min(sizes, key=lambda size: (-width % size, abs(size - root)))
    return -(-width // size), size


class Index:
    """Every cell's best candidates and statistics so far.

    `state` is all there is to it: save it, load it, merge it with another's, and go on.
    """

    def __init__(
        self,
        layers: int,
        cells: int,
        top: int,
        *,
        signed: bool,
        per: str = "sentence",
        unit_of: UnitOf | None = None,
    ) -> None:
        self.layers, self.cells, self.top, self.signed, self.per = layers, cells, top, signed, per
        self.unit_of = unit_of
        """given where a unit may come in several blocks, of which only the best may enter"""
        sides = 2 if signed else 1
        self.n = 0
        self.keys: Keys = np.full((sides, layers, cells, top), UNFILLED, np.int64)
        self.active = np.zeros((layers, cells), np.int64)
        self.sums = np.zeros((layers, cells, 2, 2), np.int64)
        self.extremes = np.stack([np.full((layers, cells), s, np.float32) for s in (-np.inf, np.inf)], -1)
        self._bars = [[torch.full((cells,), SMALLEST) for _ in range(layers)] for _ in range(sides)]
        self._pending: list[list[list[tuple[npt.NDArray[Any], Keys]]]] = [
            [[] for _ in range(layers)] for _ in range(sides)
        ]
        self._waiting = np.zeros((sides, layers), np.int64)
        self._memory = torch.empty(0)

    # The state

    def state(self) -> dict[str, npt.NDArray[Any]]:
        self.flush()
        return {
            "n": np.array(self.n),
            "keys": self.keys,
            "active": self.active,
            "sums": self.sums,
            "extremes": self.extremes,
        }

    def load(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.n = int(state["n"])
        self.keys, self.active = state["keys"].copy(), state["active"].copy()
        self.sums, self.extremes = state["sums"].copy(), state["extremes"].copy()
        for side in range(len(self.keys)):
            for layer in range(self.layers):
                self._raise_bar(side, layer, np.arange(self.cells))

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes

    # A batch

    def prepare(
        self,
        columns: int,
        starts: int,
        lengths: npt.NDArray[Any],
        old: npt.NDArray[Any],
        first_tokens: npt.NDArray[np.int64],
    ) -> Candidates:
        return candidates(columns, starts, lengths, old, first_tokens, self.per)

    def update(self, layer: int, x: Tensor, batch: Candidates) -> None:
        """Take in one layer's coefficients [rows, columns, cells] of a batch: all of it, or (out of memory) none."""
        sums, picked, high, low = self._read(x, batch)
        extremes = torch.stack([high.amax((0, 1)), low.amin((0, 1))], -1).cpu().numpy()
        if not np.isfinite(extremes).all():
            raise FloatingPointError(f"Layer {layer}")
        survivors = [self._survivors(0, layer, picked, high, batch)]
        if self.signed:
            survivors.append(self._survivors(1, layer, picked, low, batch))

        self.active[layer] += sums[2].astype(np.int64)
        add_exactly(self.sums[layer], sums[:2].T)
        np.maximum(self.extremes[layer, :, 0], extremes[:, 0], out=self.extremes[layer, :, 0])
        np.minimum(self.extremes[layer, :, 1], extremes[:, 1], out=self.extremes[layer, :, 1])
        for side, (cells, keys) in enumerate(survivors):
            self._pending[side][layer].append((cells, keys))
            self._waiting[side, layer] += len(cells)
            if self._waiting[side, layer] > WAITING * self.cells:
                self._merge(side, layer)

    def _read(self, x: Tensor, batch: Candidates) -> tuple[npt.NDArray[np.float64], Tensor, Tensor, Tensor]:
        """Sums of the candidates (of m, of m², of m > 0) [3, cells]; the candidates [blocks, groups, size, cells]; each
        group's largest and smallest. In pieces that stay in the processor's cache while all of that is asked of them."""
        blocks, width = len(batch.first), batch.groups * batch.size
        step = max(1, CACHED // (4 * width * self.cells))
        step += -step % torch.get_num_threads()  # so that each thread has whole rows
        ends = blocks * batch.groups
        rows, scratch, high, low = self._room(x.device, blocks * width, min(step, blocks) * width, ends, ends)
        flat, index, weights = x.reshape(-1, self.cells), batch.index.to(x.device), batch.weights.to(x.device)[:, None]
        silent = torch.where(weights > 0, 0.0, torch.inf)  # what a repetition cannot exceed
        picked = rows.view(blocks, batch.groups, batch.size, self.cells)
        high, low = (each.view(blocks, batch.groups, self.cells) for each in (high, low))
        sums = torch.zeros(3, self.cells, dtype=torch.float64, device=x.device)
        for begin in range(0, blocks, step):
            piece = slice(begin * width, min(begin + step, blocks) * width)
            part, weight = rows[piece], weights[piece]
            other = scratch[: len(part)]
            if x.dtype == torch.float32:
                torch.index_select(flat, 0, index[piece], out=part)
            else:
                part.copy_(flat.index_select(0, index[piece]))
            sums[0] += _summed(torch.mul(part, weight, out=other))
            sums[1] += _summed(other.mul_(part))
            sums[2] += _summed(torch.gt(part, silent[piece], out=other))
            if batch.size > 1:
                torch.amax(picked[begin : begin + step], 2, out=high[begin : begin + step])
                torch.amin(picked[begin : begin + step], 2, out=low[begin : begin + step])
        if batch.size == 1:
            high = low = picked[:, :, 0]
        return sums.cpu().numpy(), picked, high, low

    def _room(self, device: torch.device, *rows: int) -> tuple[Tensor, ...]:
        """Arrays [rows, cells] in memory that is kept: taken anew for every layer, it would be paged in every time."""
        need = sum(rows) * self.cells
        if self._memory.numel() < need or self._memory.device != device:
            self._memory = torch.empty(need, device=device)
        return torch.split(self._memory[:need].view(-1, self.cells), list(rows))

    def _survivors(
        self, side: int, layer: int, picked: Tensor, ends: Tensor, batch: Candidates
    ) -> tuple[npt.NDArray[Any], Keys]:
        """What can enter a list: at least the cell's t-th best (an equal one may stand earlier in the corpus)."""
        device = ends.device
        best = ends.amin(1).neg_() if side else ends.amax(1)
        bar = self._bars[side][layer].to(device)
        found = np.flatnonzero((best >= bar).cpu().numpy())
        if len(found) > self.top * self.cells and not self.unit_of:
            # a first batch: of a cell, only its best t can enter
            ranked = np.partition(best.T.cpu().contiguous().numpy(), -self.top, axis=1)
            bar = torch.maximum(bar, torch.from_numpy(ranked[:, -self.top]).to(device))
            found = np.flatnonzero((best >= bar).cpu().numpy())
        block, cell = np.divmod(found, self.cells)
        coefficients = best.reshape(-1)[torch.from_numpy(found).to(device)].cpu()
        tokens = batch.first[block]
        if batch.groups * batch.size > 1:
            which, where = torch.from_numpy(block).to(device), torch.from_numpy(cell).to(device)
            sought = (-coefficients if side else coefficients)[:, None]
            group = (ends[which, :, where].cpu() == sought).numpy().argmax(1)
            inside = (picked[which, torch.from_numpy(group).to(device), :, where].cpu() == sought).numpy().argmax(1)
            tokens = tokens + np.maximum(group * batch.size + inside, batch.old[block])
        small = np.uint16 if self.cells <= 1 << 16 else np.uint32
        return cell.astype(small), pack(coefficients.numpy(), tokens)

    # Merging

    def flush(self) -> None:
        for side, layer in np.argwhere(self._waiting):
            self._merge(int(side), int(layer))

    def _merge(self, side: int, layer: int) -> None:
        cells = np.concatenate([pair[0] for pair in self._pending[side][layer]])
        keys = np.concatenate([pair[1] for pair in self._pending[side][layer]])
        self._pending[side][layer], self._waiting[side, layer] = [], 0
        lists = self.keys[side, layer]
        entering = keys < lists[cells, -1]
        cells, keys = cells[entering], keys[entering]
        if not len(cells):
            return
        if self.unit_of:
            order = np.lexsort((keys, units := self.unit_of(keys & 0xFFFFFFFF), cells))
            cells, keys, units = cells[order], keys[order], units[order]
            fresh = np.append(True, (cells[1:] != cells[:-1]) | (units[1:] != units[:-1]))
            cells, keys = cells[fresh], keys[fresh]
        order = np.argsort(cells, kind="stable")
        touched, rank, counts = _ranks(cells[order])
        if counts.max() > 4 * self.top:  # a few cells got very many: the best t of each are enough
            order = np.lexsort((keys, cells))
            touched, rank, counts = _ranks(cells[order])
            order, rank = order[rank < self.top], rank[rank < self.top]
            counts = np.minimum(counts, self.top)
        rows = np.full((len(touched), self.top + int(counts.max())), UNFILLED, np.int64)
        rows[:, : self.top] = lists[touched]
        rows[np.repeat(np.arange(len(touched)), counts), self.top + rank] = keys[order]
        if self.unit_of:
            rows = one_per_group(rows, self.unit_of(rows & 0xFFFFFFFF))
        rows.sort(axis=1)
        lists[touched] = rows[:, : self.top]
        self._raise_bar(side, layer, touched)

    def _raise_bar(self, side: int, layer: int, touched: npt.NDArray[Any]) -> None:
        last = self.keys[side, layer, touched, -1]
        bits = (0x7FFFFFFF - (last >> 32)).astype(np.int32)
        bars = np.where(last == UNFILLED, np.float32(SMALLEST), bits.view(np.float32))
        self._bars[side][layer][torch.from_numpy(touched.astype(np.int64))] = torch.from_numpy(bars)


def _summed(rows: Tensor) -> Tensor:
    """The sum of rows [n, cells]. Each of torch's threads sums the rows it has just written, which lie in its own core's
    cache; torch by itself would have it sum a range of columns."""
    threads = torch.get_num_threads()
    if rows.device.type == "cpu" and len(rows) % threads == 0:
        return rows.view(threads, -1, rows.shape[1]).sum(1).sum(0, dtype=torch.float64)
    return rows.sum(0)


def _ranks(cells: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of sorted cells: the distinct ones, each entry's place among its cell's, how many each has."""
    begins = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
    counts = np.diff(np.append(begins, len(cells)))
    return cells[begins], np.arange(len(cells)) - np.repeat(begins, counts), counts


def add_exactly(total: npt.NDArray[np.int64], addend: npt.NDArray[np.float64]) -> None:
    """Add floats to integer totals [..., (whole, fraction)]; a sum of sums is the same in any order.

    Totals wrap at 64 bits, and an addend that 64 bits cannot hold is cut to `MOST`. `run.moments` finds such totals by their
    cells' extremes and reads them as NaN.
    """
    if not (np.abs(addend) < MOST).all():
        addend = np.clip(np.nan_to_num(addend, nan=0.0), -MOST, MOST)
    whole = np.floor(addend)
    fraction = ((addend - whole) * 2.0**FRACTION).astype(np.int64)
    add_integers(total, np.stack([whole.astype(np.int64), fraction], -1))


def add_integers(total: npt.NDArray[np.int64], addend: npt.NDArray[np.int64]) -> None:
    total += addend
    total[..., 0] += total[..., 1] >> FRACTION
    total[..., 1] &= (1 << FRACTION) - 1
