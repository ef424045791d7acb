"""The index on a GPU: the contract of `kernels.Index`, two kernel launches a layer and no waiting.

Everything lives on the device that holds the layer. The host only launches; what it must know (a coefficient that is not
finite) it is told a batch later, through pinned memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels import index as triton_kernels
from ..kernels.order import UNFILLED

MOST_COLUMNS = 1 << 16
"""A column is 16 bits of what `read` compares."""
MOST_TOP = 1024
SETTLE_BLOCK = 16
"""Cells whose statistics one program of `settle` adds up."""


@dataclass(frozen=True)
class Tiling:
    """How `read` cuts up its work."""

    rows: int
    """rows of a tile"""
    lanes: int
    """lanes that share a row"""
    block: int
    """cells of a tile"""
    unroll: int
    warps: int
    fill: int
    """programs for each multiprocessor"""
    registers: int | None = None
    """at most so many a thread: what does not fit is only needed where a survivor is found"""


SHORT_ROWS = Tiling(rows=1, lanes=1, block=128, unroll=8, warps=1, fill=20, registers=96)
LONG_ROWS = Tiling(rows=1, lanes=32, block=64, unroll=2, warps=8, fill=2, registers=128)


@dataclass
class Rows:
    """A batch's rows: which columns are candidates, and which tokens they are."""

    table: Tensor
    """[3, rows]: first candidate column, end of the candidates, token index of column 0; pinned where it can be"""
    there: dict[torch.device, Tensor]

    def on(self, device: torch.device) -> Tensor:
        if device not in self.there:
            self.there[device] = self.table.to(device, non_blocking=True)
        return self.there[device]


class _Part:
    """The layers that live on one device."""

    def __init__(self, device: torch.device, layers: int, cells: int, top: int, sides: int, width: int) -> None:
        self.device, self.layers, self.width = device, layers, width
        options: dict[str, Any] = {"device": device}
        self.keys = torch.full((sides, layers, cells, top), UNFILLED, dtype=torch.int64, **options)
        self.bars = torch.ones((sides, layers, cells), dtype=torch.int32, **options)
        self.active = torch.zeros((layers, cells), dtype=torch.int64, **options)
        self.sums = torch.zeros((layers, cells, 2, 2), dtype=torch.int64, **options)
        self.extremes = torch.tensor([-torch.inf, torch.inf], **options).repeat(layers, cells, 1)
        self.bad = torch.zeros(layers, dtype=torch.int32, **options)
        # what only one layer's two kernels share
        self.counts = torch.zeros((sides, cells), dtype=torch.int32, **options)
        self.pending = torch.empty((sides, cells, self.width), dtype=torch.int64, **options)
        self.partial = torch.empty(0, **options)
        self.units = torch.empty(0, dtype=torch.int64, **options)
        self.multiprocessors = 4
        self.told: Tensor | None = None
        self.event: Any = None
        self.stream: Any = None
        if device.type == "cuda":
            self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
            self.told = torch.zeros(layers, dtype=torch.int32).pin_memory()
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]


class GpuIndex:
    """Every cell's best candidates and statistics so far. `devices`: where each layer's coefficients come from.

    With `side_stream`, the kernels run beside the model's own: they move bytes while the matrix products compute.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        cells: int,
        top: int,
        *,
        signed: bool,
        per: str,
        unit_offsets: npt.NDArray[np.int64] | None = None,
        side_stream: bool = False,
        tiling: Tiling | None = None,
        width: int | None = None,
    ) -> None:
        """`width`: the slots of a cell, a power of two not below `top`."""
        self.layers, self.cells, self.top, self.signed = len(devices), cells, top, signed
        self.per, self.tiling = per, tiling
        self.n = 0
        self.grouped = unit_offsets is not None
        sides = 2 if signed else 1
        width = width or max(32, 1 << (top - 1).bit_length())
        self._parts: dict[torch.device, _Part] = {}
        self._place: list[tuple[_Part, int]] = []
        for device in dict.fromkeys(devices):
            self._parts[device] = part = _Part(device, devices.count(device), cells, top, sides, width)
            if unit_offsets is not None:
                part.units = torch.from_numpy(np.array(unit_offsets, np.int64)).to(device)
            if side_stream and device.type == "cuda":
                part.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        taken = dict.fromkeys(self._parts, 0)
        for device in devices:
            self._place.append((self._parts[device], taken[device]))
            taken[device] += 1

    @staticmethod
    def fits(*, columns: int, cells: int, top: int) -> bool:
        """Whether these kernels can hold such a scan: they count a window's coefficients in 32 bits."""
        return columns <= MOST_COLUMNS and (columns + 1) * cells < 2**31 and top <= MOST_TOP

    @property
    def nbytes(self) -> int:
        return sum(part.keys.nbytes for part in self._parts.values())

    # The state

    def state(self) -> dict[str, npt.NDArray[Any]]:
        self.flush()
        sides = 2 if self.signed else 1
        keys = np.empty((sides, self.layers, self.cells, self.top), np.int64)
        active = np.empty((self.layers, self.cells), np.int64)
        sums = np.empty((self.layers, self.cells, 2, 2), np.int64)
        extremes = np.empty((self.layers, self.cells, 2), np.float32)
        for device, part in self._parts.items():
            mine = [layer for layer, (other, _) in enumerate(self._place) if other.device == device]
            keys[:, mine] = part.keys.cpu().numpy()
            active[mine] = part.active.cpu().numpy()
            sums[mine] = part.sums.cpu().numpy()
            extremes[mine] = part.extremes.cpu().numpy()
        return {"n": np.array(self.n), "keys": keys, "active": active, "sums": sums, "extremes": extremes}

    def load(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.n = int(state["n"])
        last = state["keys"][..., -1]
        bars = np.maximum(0x7FFFFFFF - (last >> 32), 1).astype(np.int32)
        for device, part in self._parts.items():
            mine = [layer for layer, (other, _) in enumerate(self._place) if other.device == device]
            part.keys.copy_(torch.from_numpy(state["keys"][:, mine]))
            part.bars.copy_(torch.from_numpy(bars[:, mine]))
            part.active.copy_(torch.from_numpy(state["active"][mine]))
            part.sums.copy_(torch.from_numpy(state["sums"][mine]))
            part.extremes.copy_(torch.from_numpy(state["extremes"][mine]))

    def flush(self) -> None:
        """Wait for the devices; raise what they found wrong."""
        for device, part in self._parts.items():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            self._raise_if_bad(part, part.bad)

    # A batch

    def prepare(
        self,
        columns: int,
        starts: int,
        lengths: npt.NDArray[Any],
        old: npt.NDArray[Any],
        first_tokens: npt.NDArray[np.int64],
    ) -> Rows:
        """The candidates of a batch of windows: own tokens only, new prefixes only."""
        table = torch.from_numpy(np.stack([starts + old, starts + lengths, first_tokens - starts]).astype(np.int64))
        cuda = any(device.type == "cuda" for device in self._parts)
        return Rows(table.pin_memory() if cuda else table, {})

    def update(self, layer: int, x: Tensor, batch: Rows) -> None:
        """Take in one layer's coefficients [rows, columns, cells] of a batch."""
        part, place = self._place[layer]
        x = x.contiguous()
        if part.device.type != "cuda":
            self._launch(part, place, x, batch.on(part.device))
            self._raise_if_bad(part, part.bad)
            return
        with contextlib.ExitStack() as stack:
            if torch.cuda.current_device() != part.device.index:
                stack.enter_context(torch.cuda.device(part.device))
            table = batch.on(part.device)
            if part.stream is not None:
                part.stream.wait_stream(torch.cuda.current_stream())
                stack.enter_context(torch.cuda.stream(part.stream))
                x.record_stream(part.stream)
                table.record_stream(part.stream)
            self._launch(part, place, x, table)
            if place == part.layers - 1:
                self._listen(part)

    def _launch(self, part: _Part, place: int, x: Tensor, table: Tensor) -> None:
        groups = self._read(part, place, x, table)
        self._settle(part, place, x, table, groups)

    def _read(self, part: _Part, place: int, x: Tensor, table: Tensor) -> int:
        """Filter and statistics; returns how many groups of programs left sums."""
        rows, columns, cells = x.shape
        tiling = self.tiling or choose_tiling(rows, columns)
        tiles = -(-rows // tiling.rows)
        blocks = -(-cells // tiling.block)
        each = -(-tiles * blocks // (part.multiprocessors * tiling.fill))  # tiles of a program
        groups = -(-tiles // each)
        if part.partial.numel() < (need := groups * triton_kernels.PARTIALS * cells):
            part.partial = torch.empty(need, device=part.device)
        triton_kernels.read[(blocks * groups,)](
            _raw(x),
            table,
            part.keys,
            part.bars,
            part.counts,
            part.pending,
            part.partial,
            place,
            rows,
            columns,
            tiles,
            groups,
            CELLS=cells,
            LAYERS=part.layers,
            TOP=self.top,
            KIND=triton_kernels.KINDS[x.dtype],
            SIGNED=self.signed,
            PREFIX=self.per == "prefix",
            ROWS=tiling.rows,
            LANES=tiling.lanes,
            BLOCK=tiling.block,
            UNROLL=tiling.unroll,
            WIDTH=part.width,
            num_warps=tiling.warps,
            maxnreg=tiling.registers,
        )
        return groups

    def _settle(self, part: _Part, place: int, x: Tensor, table: Tensor, groups: int) -> None:
        rows, columns, cells = x.shape
        sides = 2 if self.signed else 1
        units = max(part.units.numel(), 1)
        triton_kernels.settle[(sides * cells + -(-cells // SETTLE_BLOCK),)](
            _raw(x),
            table,
            part.keys,
            part.bars,
            part.counts,
            part.pending,
            part.partial,
            part.sums,
            part.active,
            part.extremes,
            part.bad,
            part.units,
            place,
            rows,
            columns,
            groups,
            units,
            units.bit_length(),
            CELLS=cells,
            LAYERS=part.layers,
            TOP=self.top,
            KIND=triton_kernels.KINDS[x.dtype],
            SIDES=sides,
            PREFIX=self.per == "prefix",
            GROUPED=self.grouped,
            WIDTH=part.width,
            SPAN=8,
            BLOCK=SETTLE_BLOCK,
            num_warps=max(part.width // 128, 1),
        )

    # What is not finite

    def _listen(self, part: _Part) -> None:
        """Hear, without waiting, what the last batch said, and ask again."""
        if part.event.query():
            assert part.told is not None
            self._raise_if_bad(part, part.told)
            part.told.copy_(part.bad, non_blocking=True)
            part.event.record()

    def _raise_if_bad(self, part: _Part, flags: Tensor) -> None:
        if flags.any():
            place = int(flags.nonzero()[0, 0])
            layer = next(i for i, (other, at) in enumerate(self._place) if other is part and at == place)
            raise FloatingPointError(f"Layer {layer}")


def _raw(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.view(torch.int16)


def choose_tiling(rows: int, columns: int) -> Tiling:
    """By the batch's shape alone, so that the same batch is always summed in the same order."""
    return SHORT_ROWS if rows >= 64 or columns <= 128 else LONG_ROWS
