"""The index on a GPU: two kernel launches per site, and the host never waits.

Everything is kept on the device that holds the site. The host only launches kernels; what it has to know (that a coefficient is
not finite) it learns a batch later, through pinned memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..cells import Cells
from ..kernels import index as triton_kernels
from ..kernels.order import UNFILLED
from .contract import Int64s, Windows

MAX_COLUMNS = 1 << 16
MAX_TOP = 1024
"""Longest list: a program of `settle` holds one in its registers."""
SETTLE_BLOCK = 16
"""Cells whose statistics one program of `settle` adds up."""
SETTLE_SPAN = 8
"""Columns that `settle` reads together when it searches a cell's coefficients again."""


@dataclass(frozen=True)
class Tiling:
    """How `filter_rows` divides its work."""

    rows: int
    """windows of a tile"""
    lanes: int
    """lanes that share a window"""
    block: int
    """cells of a tile"""
    unroll: int
    warps: int
    fill: int
    """programs per multiprocessor"""
    registers: int | None = None
    """register limit per thread: what does not fit is only needed if a survivor is found"""


SHORT_ROWS = Tiling(rows=1, lanes=1, block=128, unroll=8, warps=1, fill=20, registers=96)
LONG_ROWS = Tiling(rows=1, lanes=32, block=64, unroll=2, warps=8, fill=2, registers=128)


@dataclass(frozen=True)
class Rows:
    """A batch's windows as the kernels take them."""

    columns: int
    table: Tensor
    """[3, rows]: first candidate column, column after the last candidate, token index of column 0; pinned if possible"""
    tables: dict[torch.device, Tensor] = field(default_factory=dict)
    routed_tables: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def on(self, device: torch.device) -> Tensor:
        """The table on a device."""
        if device not in self.tables:
            self.tables[device] = self.table.to(device, non_blocking=True)
        return self.tables[device]

    def routed_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The first two rows of the table as positions in the flattened batch, and a copy of the table. In the copy, each routed
        site overwrites these two rows with its own entries."""
        if device not in self.routed_tables:
            table = self.on(device)
            row_begin = torch.arange(table.shape[1], device=device) * self.columns
            self.routed_tables[device] = table[:2] + row_begin, table.clone()
        return self.routed_tables[device]


@dataclass(frozen=True)
class _Given:
    """Coefficients of one site for a batch, ready for the kernels."""

    x: Tensor
    """[rows, columns, width], or if routed [entries, width]"""
    columns: int
    table: Tensor
    """[3, rows] as `filter_rows` has it"""
    tokens: Tensor | None = None
    """[entries] positions in the flattened batch, if routed"""
    positions: Tensor | None = None
    """[2, rows] where the candidates of each window begin and end in the flattened batch, if routed"""

    @property
    def tensors(self) -> Iterator[Tensor]:
        return (each for each in (self.x, self.table, self.tokens, self.positions) if each is not None)

    @property
    def raw(self) -> Tensor:
        """The coefficients as the kernels read them: 16-bit floats as integers."""
        return self.x if self.x.dtype == torch.float32 else self.x.view(torch.int16)

    @property
    def rows(self) -> int:
        return self.table.shape[1]

    @property
    def width(self) -> int:
        return self.x.shape[-1]

    @property
    def entries(self) -> int:
        """How many rows of coefficients there are."""
        return self.x.numel() // self.width


@dataclass(frozen=True)
class _Site:
    """Where a site's cells are in the part of its device."""

    part: _Part
    number: int
    """the site's number among those of the part"""
    base: int
    """the place of its first cell among those of the part"""


class _Part:
    """The sites whose coefficients come from one device."""

    def __init__(self, device: torch.device, widths: list[int], top: int, sides: int, slots: int) -> None:
        self.device, self.sites, self.cells, self.slots = device, len(widths), sum(widths), slots
        options: dict[str, Any] = {"device": device}
        self.keys = torch.full((sides, self.cells, top), UNFILLED, dtype=torch.int64, **options)
        self.thresholds = torch.ones((sides, self.cells), dtype=torch.int32, **options)
        """bits of the float32 coefficients that a candidate has to reach"""
        self.active = torch.zeros(self.cells, dtype=torch.int64, **options)
        self.sums = torch.zeros((self.cells, 2, 2), dtype=torch.int64, **options)
        self.extremes = torch.tensor([-torch.inf, torch.inf], **options).repeat(self.cells, 1)
        self.bad = torch.zeros(self.sites, dtype=torch.int32, **options)
        """1 for a site that gave coefficients that are not finite"""
        # scratch memory of both kernels, for one site at a time: [sides, width] and [sides, width, slots]
        self.counts = torch.zeros(sides * max(widths), dtype=torch.int32, **options)
        self.pending = torch.empty(sides * max(widths) * slots, dtype=torch.int64, **options)
        self.partial = torch.empty(0, **options)
        self.units = torch.empty(0, dtype=torch.int64, **options)
        self.multiprocessors = 4
        self.host_bad: Tensor | None = None
        """the host's latest copy of `bad`, in pinned memory"""
        self.event: Any = None
        self.stream: Any = None
        if device.type == "cuda":
            self.multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
            self.host_bad = torch.zeros(self.sites, dtype=torch.int32).pin_memory()
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]


class GpuIndex:
    """Every cell's best candidates and statistics so far; the contract is that of `contract.Index`.

    `devices`: where the coefficients of each site come from. With `side_stream`, the kernels run at the same time as the model's
    own: they move bytes while the matrix products compute.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        cells: Cells,
        top: int,
        *,
        signed: bool,
        per: str,
        unit_offsets: Int64s | None = None,
        side_stream: bool = False,
        tiling: Tiling | None = None,
        slots: int | None = None,
    ) -> None:
        """`slots`: survivors of a batch that a cell has room for, a power of two, at least `top`."""
        self.cells, self.top, self.signed = cells, top, signed
        self.per, self.tiling = per, tiling
        self.n = 0
        self.grouped = unit_offsets is not None
        sides = 2 if signed else 1
        slots = slots or max(32, 1 << (top - 1).bit_length())
        self.parts: dict[torch.device, _Part] = {}
        self._places: dict[torch.device, npt.NDArray[np.int64]] = {}
        """the places of each part's cells on the axis"""
        self.sites: list[_Site] = []
        for device in dict.fromkeys(devices):
            spans = [span for other, span in zip(devices, cells.sites, strict=True) if other == device]
            widths = [span.stop - span.start for span in spans]
            self.parts[device] = part = _Part(device, widths, top, sides, slots)
            self._places[device] = np.concatenate([np.arange(span.start, span.stop) for span in spans])
            if unit_offsets is not None:
                part.units = torch.from_numpy(np.array(unit_offsets, np.int64)).to(device)
            if side_stream and device.type == "cuda":
                part.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        number, base = dict.fromkeys(self.parts, 0), dict.fromkeys(self.parts, 0)
        for device, span in zip(devices, cells.sites, strict=True):
            self.sites.append(_Site(self.parts[device], number[device], base[device]))
            number[device] += 1
            base[device] += span.stop - span.start

    @staticmethod
    def fits(*, columns: int, cells: Cells, top: int) -> bool:
        """Whether these kernels can hold such a scan: they count the coefficients of a window in 32 bits."""
        widest = max(layer.width for layer in cells.layers)
        return columns <= MAX_COLUMNS and (columns + 1) * widest < 2**31 and top <= MAX_TOP

    @property
    def nbytes(self) -> int:
        return sum(part.keys.nbytes for part in self.parts.values())

    # The state

    def state(self) -> dict[str, npt.NDArray[Any]]:
        self.flush()
        sides, cells = 2 if self.signed else 1, len(self.cells)
        keys = np.empty((sides, cells, self.top), np.int64)
        active = np.empty(cells, np.int64)
        sums = np.empty((cells, 2, 2), np.int64)
        extremes = np.empty((cells, 2), np.float32)
        for device, part in self.parts.items():
            places = self._places[device]
            keys[:, places] = part.keys.cpu().numpy()
            active[places] = part.active.cpu().numpy()
            sums[places] = part.sums.cpu().numpy()
            extremes[places] = part.extremes.cpu().numpy()
        return {"n": np.array(self.n), "keys": keys, "active": active, "sums": sums, "extremes": extremes}

    def load(self, state: dict[str, npt.NDArray[Any]]) -> None:
        self.n = int(state["n"])
        last = state["keys"][..., -1]
        thresholds = np.maximum(0x7FFFFFFF - (last >> 32), 1).astype(np.int32)
        for device, part in self.parts.items():
            places = self._places[device]
            part.keys.copy_(torch.from_numpy(state["keys"][:, places]))
            part.thresholds.copy_(torch.from_numpy(thresholds[:, places]))
            part.active.copy_(torch.from_numpy(state["active"][places]))
            part.sums.copy_(torch.from_numpy(state["sums"][places]))
            part.extremes.copy_(torch.from_numpy(state["extremes"][places]))

    def flush(self) -> None:
        """Wait for the devices, and raise the errors they found."""
        for device, part in self.parts.items():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            self._raise_if_bad(part, part.bad)

    # A batch

    def prepare(
        self,
        columns: int,
        n_special: int,
        lengths: npt.NDArray[Any],
        seen_before: npt.NDArray[Any],
        first_tokens: Int64s,
    ) -> Rows:
        windows = Windows.of(columns, n_special, lengths, seen_before, first_tokens)
        table = torch.from_numpy(np.stack([windows.begin, windows.end, windows.first]))
        cuda = any(device.type == "cuda" for device in self.parts)
        return Rows(columns, table.pin_memory() if cuda else table)

    def update(self, site: int, x: Tensor, batch: Rows, tokens: Tensor | None = None) -> None:
        where = self.sites[site]
        part = where.part
        if part.device.type != "cuda":
            self._launch(where, self.given(part, x, batch, tokens))
            self._raise_if_bad(part, part.bad)
            return
        with contextlib.ExitStack() as stack:
            if torch.cuda.current_device() != part.device.index:
                stack.enter_context(torch.cuda.device(part.device))
            given = self.given(part, x, batch, tokens)
            if part.stream is not None:
                part.stream.wait_stream(torch.cuda.current_stream())
                stack.enter_context(torch.cuda.stream(part.stream))
                for tensor in given.tensors:
                    tensor.record_stream(part.stream)
            self._launch(where, given)
            if where.number == part.sites - 1:
                self._check_earlier(part)

    def given(self, part: _Part, x: Tensor, batch: Rows, tokens: Tensor | None) -> _Given:
        x, columns = x.contiguous(), batch.columns
        if tokens is None:
            return _Given(x, columns, batch.on(part.device))
        positions, table = batch.routed_on(part.device)
        return _Given(x, columns, table, tokens.contiguous(), positions)

    def _launch(self, site: _Site, given: _Given) -> None:
        """Launch the kernels of a site. All memory is allocated before the first launch, so that all or none run."""
        if not given.entries:
            return
        if given.tokens is not None and given.positions is not None:
            torch.searchsorted(given.tokens, given.positions, out=given.table[:2])  # the entries of each window
        groups = self.filter_rows(site, given)
        self.settle(site, given, groups)

    def filter_rows(self, site: _Site, given: _Given) -> int:
        """Filter and statistics. Returns the number of groups of programs, each of which leaves partial sums."""
        part, width = site.part, given.width
        tiling = self.tiling or choose_tiling(given.rows, given.columns)
        tiles = -(-given.rows // tiling.rows)
        blocks = -(-width // tiling.block)
        each = -(-tiles * blocks // (part.multiprocessors * tiling.fill))  # tiles per program
        groups = -(-tiles // each)
        if part.partial.numel() < (need := groups * triton_kernels.PARTIALS * width):
            part.partial = torch.empty(need, device=part.device)
        triton_kernels.filter_rows[(blocks * groups,)](
            given.raw,
            given.table if given.tokens is None else given.tokens,
            given.table,
            part.keys,
            part.thresholds,
            part.counts,
            part.pending,
            part.partial,
            site.base,
            given.rows,
            given.columns,
            tiles,
            groups,
            CELLS=width,
            SIDE=part.cells,
            TOP=self.top,
            KIND=triton_kernels.KINDS[given.x.dtype],
            SIGNED=self.signed,
            PREFIX=self.per == "prefix",
            ROUTED=given.tokens is not None,
            ROWS=tiling.rows,
            LANES=tiling.lanes,
            BLOCK=tiling.block,
            UNROLL=tiling.unroll,
            WIDTH=part.slots,
            num_warps=tiling.warps,
            maxnreg=tiling.registers,
        )
        return groups

    def settle(self, site: _Site, given: _Given, groups: int) -> None:
        part, width = site.part, given.width
        sides = 2 if self.signed else 1
        units = max(part.units.numel(), 1)
        triton_kernels.settle[(sides * width + -(-width // SETTLE_BLOCK),)](
            given.raw,
            given.table if given.tokens is None else given.tokens,
            given.table,
            part.keys,
            part.thresholds,
            part.counts,
            part.pending,
            part.partial,
            part.sums,
            part.active,
            part.extremes,
            part.bad,
            part.units,
            site.base,
            site.number,
            given.rows,
            given.columns,
            given.entries,
            groups,
            units,
            units.bit_length(),
            CELLS=width,
            SIDE=part.cells,
            TOP=self.top,
            KIND=triton_kernels.KINDS[given.x.dtype],
            SIDES=sides,
            PREFIX=self.per == "prefix",
            ROUTED=given.tokens is not None,
            GROUPED=self.grouped,
            WIDTH=part.slots,
            SPAN=SETTLE_SPAN,
            BLOCK=SETTLE_BLOCK,
            num_warps=max(part.slots // 128, 1),
        )

    # Coefficients that are not finite

    def _check_earlier(self, part: _Part) -> None:
        """Check the flags of an earlier batch without waiting, and request those of this one."""
        if part.event.query():
            assert part.host_bad is not None
            self._raise_if_bad(part, part.host_bad)
            part.host_bad.copy_(part.bad, non_blocking=True)
            part.event.record()

    def _raise_if_bad(self, part: _Part, flags: Tensor) -> None:
        if flags.any():
            bad = int(flags.nonzero()[0, 0])
            site = next(i for i, each in enumerate(self.sites) if each.part is part and each.number == bad)
            raise FloatingPointError(self.cells.site_name(site))


def choose_tiling(rows: int, columns: int) -> Tiling:
    """Depends on the batch's shape alone, so that the same batch is always summed in the same order."""
    return SHORT_ROWS if rows >= 64 or columns <= 128 else LONG_ROWS
