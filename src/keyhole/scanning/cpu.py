"""The index that runs anywhere, at the speed of the forward pass.

The index is a filter. Once every cell has its list, few coefficients reach a cell's threshold, its t-th best coefficient:
compare, keep the survivors, and merge them into the lists from time to time. A threshold that is out of date only lets more
survivors through. Nothing that belongs in a list is ever dropped, so the result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..cells import Cells
from ..kernels.order import UNFILLED, Keys, one_per_group, pack
from ..kernels.sums import add_integers, exact
from .contract import Int64s, Windows

SMALLEST = float(np.nextafter(np.float32(0), np.float32(1)))
"""The threshold of a list that is not full: a trigger's coefficient is above zero."""
PIECE_BYTES = 4 << 20
"""Bytes of coefficients that are read together, so that they stay in the processor's cache."""
PENDING_PER_CELL = 4
"""Mean number of pending survivors per cell that triggers a merge. More means fewer merges, and thresholds that are longer out
of date and let more survivors through."""


@dataclass(frozen=True)
class Candidates:
    """Which rows of coefficients are candidates, in blocks of which at most one may enter a list.

    A block is a window (one trigger per sentence) or a single prefix. All blocks have the same width. In a window with fewer
    candidates the first or the last one is repeated with weight 0, which changes neither the largest nor the smallest
    coefficient.
    """

    index: Tensor
    """[blocks · width] which rows of the flattened coefficients"""
    weights: Tensor
    """[blocks · width] 1 for a candidate, 0 for a repetition"""
    tokens: Int64s
    """[blocks · width] the token index of each"""
    groups: int
    size: int
    """A block is `groups` groups of `size` columns, so that finding a column takes two short searches instead of a long one."""
    windows: Windows

    @property
    def width(self) -> int:
        return self.groups * self.size

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self.tokens) // self.width


def candidates(windows: Windows, per: str) -> Candidates:
    """The candidates among all tokens of a batch."""
    row_begin = np.arange(len(windows.first)) * windows.columns
    origin = row_begin + windows.n_special
    return _blocks(windows, per, origin, row_begin + windows.begin, row_begin + windows.end, windows.first - row_begin)


def routed_candidates(windows: Windows, per: str, tokens: Int64s) -> Candidates | None:
    """The candidates among some tokens of a batch, given by their positions in the flattened batch; None if there are none."""
    row_begin = np.arange(len(windows.first)) * windows.columns
    begin = np.searchsorted(tokens, row_begin + windows.begin)
    end = np.searchsorted(tokens, row_begin + windows.end)
    some = end > begin
    if not some.any():
        return None
    begin, end, shift = begin[some], end[some], (windows.first - row_begin)[some]
    return _blocks(windows, per, begin, begin, end, shift, tokens)


def _blocks(
    windows: Windows,
    per: str,
    origin: Int64s,
    begin: Int64s,
    end: Int64s,
    shift: Int64s,
    tokens: Int64s | None = None,
) -> Candidates:
    """Blocks of the rows from `begin` to `end` of each window; column 0 of a block is row `origin`.

    The token index of a row is `shift` plus its position in the flattened batch. `tokens` are the positions of the rows; None
    if the rows are all positions.
    """
    longest = int((end - origin).max())
    groups, size = grouped(longest) if per == "sentence" else (1, longest)
    row = origin[:, None] + np.arange(groups * size)
    valid = (row >= begin[:, None]) & (row < end[:, None])
    row = np.clip(row, begin[:, None], end[:, None] - 1)
    token = shift[:, None] + (row if tokens is None else tokens[row])
    if per == "prefix":
        row, token, size = row[valid], token[valid], 1
        valid = np.ones(len(row), bool)
    weights = torch.from_numpy(valid.ravel().astype(np.float32))
    return Candidates(torch.from_numpy(row.ravel()), weights, token.ravel(), groups, size, windows)


def grouped(width: int) -> tuple[int, int]:
    """The number of groups and their size: both near the square root of `width`, chosen so that little is padding."""
    root = width**0.5
    sizes = range(max(1, int(root * 0.7)), int(root * 1.5) + 1)
    size = min(sizes, key=lambda size: (-width % size, abs(size - root)))
    return -(-width // size), size


class CpuIndex:
    """Every cell's best candidates and statistics so far; the contract is that of `contract.Index`."""

    def __init__(
        self,
        cells: Cells,
        top: int,
        *,
        signed: bool,
        per: str = "sentence",
        unit_offsets: Int64s | None = None,
    ) -> None:
        self.cells, self.top, self.signed, self.per = cells, top, signed, per
        self.unit_offsets = unit_offsets
        """given if a unit may come in several blocks, of which only the best candidate may enter"""
        sides, sites = 2 if signed else 1, len(cells.sites)
        self.n = 0
        self.keys: Keys = np.full((sides, len(cells), top), UNFILLED, np.int64)
        self.active = np.zeros(len(cells), np.int64)
        self.sums = np.zeros((len(cells), 2, 2), np.int64)
        self.extremes = np.repeat(np.array([[-np.inf, np.inf]], np.float32), len(cells), 0)
        self._thresholds = torch.full((sides, len(cells)), SMALLEST)
        self._pending: list[list[list[tuple[npt.NDArray[Any], Keys]]]] = [
            [[] for _ in range(sites)] for _ in range(sides)
        ]
        """[sides][sites] survivors that wait to be merged: their cells in the site, their keys"""
        self._n_pending = np.zeros((sides, sites), np.int64)
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
        self._thresholds = torch.from_numpy(_thresholds(self.keys[..., -1]))
        self._pending = [[[] for _ in each] for each in self._pending]
        self._n_pending[:] = 0

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes

    # A batch

    def prepare(
        self,
        columns: int,
        n_special: int,
        lengths: npt.NDArray[Any],
        seen_before: npt.NDArray[Any],
        first_tokens: Int64s,
    ) -> Candidates:
        return candidates(Windows.of(columns, n_special, lengths, seen_before, first_tokens), self.per)

    def update(self, site: int, x: Tensor, batch: Candidates, tokens: Tensor | None = None) -> None:
        picked = batch if tokens is None else routed_candidates(batch.windows, self.per, tokens.cpu().numpy())
        if picked is not None:
            self._take(site, x.reshape(-1, x.shape[-1]), picked)

    def _take(self, site: int, x: Tensor, batch: Candidates) -> None:
        """Take in rows of coefficients [n, width]. Nothing is changed before all memory is allocated."""
        span = self.cells.sites[site]
        totals, picked, high, low = self._filter_rows(x, batch)
        ends = torch.stack([high.amax((0, 1)), low.amin((0, 1))], -1).cpu().numpy()
        ends += 0.0  # a −0 becomes 0: which of the two is the larger depends on their order
        if not np.isfinite(ends).all():
            raise FloatingPointError(self.cells.site_name(site))
        survivors = [self._survivors(0, span, picked, high, batch)]
        if self.signed:
            survivors.append(self._survivors(1, span, picked, low, batch))
        active = self.active[span] + totals[2].astype(np.int64)
        sums = self.sums[span].copy()
        add_integers(sums, exact(totals[:2].T))
        largest = np.maximum(self.extremes[span, 0], ends[:, 0])
        smallest = np.minimum(self.extremes[span, 1], ends[:, 1])

        self.active[span], self.sums[span] = active, sums
        self.extremes[span, 0], self.extremes[span, 1] = largest, smallest
        for side, (cells, keys) in enumerate(survivors):
            self._pending[side][site].append((cells, keys))
            self._n_pending[side, site] += len(cells)
        for side in range(len(survivors)):
            if self._n_pending[side, site] > PENDING_PER_CELL * x.shape[1]:
                try:
                    self._merge(side, site)
                except MemoryError:  # the survivors stay pending; the batch itself has been taken in
                    break

    def _filter_rows(self, x: Tensor, batch: Candidates) -> tuple[npt.NDArray[np.float64], Tensor, Tensor, Tensor]:
        """Sums of the candidates (of m, of m², of m > 0) [3, width]; the candidates [blocks, groups, size, width]; the largest
        and the smallest of each group. In pieces that stay in the processor's cache until all of this is done with them."""
        blocks, columns, width = len(batch), batch.width, x.shape[1]
        step = max(1, PIECE_BYTES // (4 * columns * width))
        step += -step % torch.get_num_threads()  # so that each thread has whole rows
        ends = blocks * batch.groups
        rows, scratch, high, low = self._buffers(
            x.device, width, (blocks * columns, min(step, blocks) * columns, ends, ends)
        )
        index, weights = batch.index.to(x.device), batch.weights.to(x.device)[:, None]
        limit = torch.where(weights > 0, 0.0, torch.inf)  # a row is active above its limit; a repetition never is
        picked = rows.view(blocks, batch.groups, batch.size, width)
        high, low = (each.view(blocks, batch.groups, width) for each in (high, low))
        sums = torch.zeros(3, width, dtype=torch.float64, device=x.device)
        for begin in range(0, blocks, step):
            piece = slice(begin * columns, min(begin + step, blocks) * columns)
            part, weight = rows[piece], weights[piece]
            other = scratch[: len(part)]
            if x.dtype == torch.float32:
                torch.index_select(x, 0, index[piece], out=part)
            else:
                part.copy_(x.index_select(0, index[piece]))
            sums[0] += _summed(torch.mul(part, weight, out=other))
            sums[1] += _summed(other.mul_(part))
            sums[2] += _summed(torch.gt(part, limit[piece], out=other))
            if batch.size > 1:
                torch.amax(picked[begin : begin + step], 2, out=high[begin : begin + step])
                torch.amin(picked[begin : begin + step], 2, out=low[begin : begin + step])
        if batch.size == 1:
            high = low = picked[:, :, 0]
        return sums.cpu().numpy(), picked, high, low

    def _buffers(self, device: torch.device, width: int, rows: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Arrays [rows, width] in memory that is kept. Memory allocated for each site would have to be paged in each time."""
        need = sum(rows) * width
        if self._memory.numel() < need or self._memory.device != device:
            self._memory = torch.empty(need, device=device)
        return torch.split(self._memory[:need].view(-1, width), list(rows))

    def _survivors(
        self, side: int, span: slice, picked: Tensor, ends: Tensor, batch: Candidates
    ) -> tuple[npt.NDArray[Any], Keys]:
        """What can enter a list: coefficients that reach the cell's threshold. Equal ones count: they may be earlier in the corpus."""
        device, width = ends.device, ends.shape[-1]
        best = ends.amin(1).neg_() if side else ends.amax(1)
        threshold = self._thresholds[side, span].to(device)
        found = np.flatnonzero((best >= threshold).cpu().numpy())
        if len(found) > self.top * width and self.unit_offsets is None:
            # a first batch: only the best t of a cell can enter
            ranked = np.partition(best.T.cpu().contiguous().numpy(), -self.top, axis=1)
            threshold = torch.maximum(threshold, torch.from_numpy(ranked[:, -self.top]).to(device))
            found = np.flatnonzero((best >= threshold).cpu().numpy())
        block, cell = np.divmod(found, width)
        coefficients = best.reshape(-1)[torch.from_numpy(found).to(device)].cpu()
        row = block * batch.width
        if batch.width > 1:
            which, where = torch.from_numpy(block).to(device), torch.from_numpy(cell).to(device)
            sought = (-coefficients if side else coefficients)[:, None]
            group = (ends[which, :, where].cpu() == sought).numpy().argmax(1)
            inside = (picked[which, torch.from_numpy(group).to(device), :, where].cpu() == sought).numpy().argmax(1)
            row += group * batch.size + inside
        small = np.uint16 if width <= 1 << 16 else np.uint32
        return cell.astype(small), pack(coefficients.numpy(), batch.tokens[row])

    # Merging

    def flush(self) -> None:
        for side, site in np.argwhere(self._n_pending):
            self._merge(int(side), int(site))

    def _merge(self, side: int, site: int) -> None:
        """Merge the pending survivors of a site into its lists. If memory runs out, they stay pending."""
        pending, span = self._pending[side][site], self.cells.sites[site]
        cells = np.concatenate([pair[0] for pair in pending])
        keys = np.concatenate([pair[1] for pair in pending])
        lists = self.keys[side, span]
        entering = keys < lists[cells, -1]
        touched, rows = self._merged(lists, cells[entering], keys[entering])
        lists[touched] = rows
        self._pending[side][site], self._n_pending[side, site] = [], 0
        if len(touched):
            places = torch.from_numpy(touched.astype(np.int64) + span.start)
            self._thresholds[side, places] = torch.from_numpy(_thresholds(rows[:, -1]))

    def _merged(self, lists: Keys, cells: npt.NDArray[Any], keys: Keys) -> tuple[npt.NDArray[Any], Keys]:
        """The cells whose lists change by survivors, and these lists [changed, top]."""
        if not len(cells):
            return cells, lists[:0]
        if self.unit_offsets is not None:
            units = self._units(keys)
            order = np.lexsort((keys, units, cells))
            cells, keys, units = cells[order], keys[order], units[order]
            fresh = np.append(True, (cells[1:] != cells[:-1]) | (units[1:] != units[:-1]))
            cells, keys = cells[fresh], keys[fresh]
        order = np.argsort(cells, kind="stable")
        touched, rank, counts = _ranks(cells[order])
        if counts.max() > 4 * self.top:  # some cells got very many: the best t of each are enough
            order = np.lexsort((keys, cells))
            touched, rank, counts = _ranks(cells[order])
            order, rank = order[rank < self.top], rank[rank < self.top]
            counts = np.minimum(counts, self.top)
        rows = np.full((len(touched), self.top + int(counts.max())), UNFILLED, np.int64)
        rows[:, : self.top] = lists[touched]
        rows[np.repeat(np.arange(len(touched)), counts), self.top + rank] = keys[order]
        if self.unit_offsets is not None:
            rows = one_per_group(rows, self._units(rows))
        rows.sort(axis=1)
        return touched, rows[:, : self.top]

    def _units(self, keys: Keys) -> Int64s:
        assert self.unit_offsets is not None
        return np.searchsorted(self.unit_offsets, keys & 0xFFFFFFFF, side="right") - 1


def _thresholds(last: Keys) -> npt.NDArray[np.float32]:
    """The coefficient that a candidate has to reach, from the last keys of lists."""
    bits = (0x7FFFFFFF - (last >> 32)).astype(np.int32)
    return np.where(last == UNFILLED, np.float32(SMALLEST), bits.view(np.float32))


def _summed(rows: Tensor) -> Tensor:
    """The sum of rows [n, width]. Each of torch's threads sums the rows that it has just written, which are in the cache of its
    core. With a plain `sum`, each thread would sum a range of columns instead."""
    threads = torch.get_num_threads()
    if rows.device.type == "cpu" and len(rows) % threads == 0:
        return rows.view(threads, -1, rows.shape[1]).sum(1).sum(0, dtype=torch.float64)
    return rows.sum(0)


def _ranks(cells: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Int64s, Int64s]:
    """Of sorted cells: the distinct ones, the rank of each entry among those of its cell, how many each cell has."""
    begins = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
    counts = np.diff(np.append(begins, len(cells)))
    return cells[begins], np.arange(len(cells)) - np.repeat(begins, counts), counts
