"""One shard of a scan: the batches of a plan through the model, into the index."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..common.memory import is_out_of_memory
from ..common.prefetch import ahead
from ..errors import ModelError, OutOfMemory, UsageError
from ..models.model import Model
from .config import ScanConfig
from .contract import Index, make_index
from .plan import Plan, PlannedBatch

WARM_UP = (12, 24, 48, 96)
"""Tokens of windows that between them meet every kernel short windows have."""
KEPT_MEMORY = 256 << 20
"""Bytes that are kept for the next layer instead of being given back to the system: about what a batch takes."""


def batches_of(plan: Plan, shard: tuple[int, int] | None) -> range:
    """The batches of a shard: every n-th, so that all shards have their share of long and short windows.

    With more shards than batches some have none, and their runs are empty.
    """
    number, of = shard or (1, 1)
    return range(number - 1, len(plan), of)


def index_for(model: Model, config: ScanConfig, unit_offsets: npt.NDArray[np.int64] | None = None) -> Index:
    """An empty index for a scan. `unit_offsets`: where a unit may come in several windows."""
    return make_index(
        [site.device for site in model.sites],
        model.cells,
        config.top,
        signed=model.signed,
        per=config.per,
        context=config.context or 0,
        unit_offsets=unit_offsets,
        beside=not config.compile,
    )


def check_memory(model: Model, config: ScanConfig) -> None:
    """Refuse lists of triggers that this machine's memory cannot hold, before anything is allocated."""
    need = 8 * config.top * len(model.cells) * (2 if model.signed else 1)
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say how much it has
        return
    if 2 * need > there:  # the lists, and a copy while a checkpoint or the run is written
        raise UsageError(
            f"--top {config.top:,} needs {2 * need / 1e9:,.1f} GB for {len(model.cells):,} cells, and this machine "
            f"has {there / 1e9:,.1f} GB. Keep fewer triggers."
        )


def warm_up(model: Model, config: ScanConfig, enough: Callable[[], bool]) -> None:
    """Run a few made-up windows into an index that nobody keeps, until `enough`: what is compiled on first use is then
    compiled before the corpus comes. Whatever is wrong here is wrong there too, and told there."""
    lengths = sorted({min(length, (config.context or 2) - int(config.bos)) for length in WARM_UP})
    two_units = np.array([0, lengths[-1], 2 * lengths[-1]], np.int64)
    with contextlib.suppress(Exception):
        for unit_offsets in (None, two_units) if config.per == "sentence" else (None,):
            runner = _Runner(model, index_for(model, config, unit_offsets), config)
            for length in lengths:
                if enough():
                    return
                windows = [np.zeros(length, np.int64)] * 2
                firsts = np.array([0, length], np.int64)
                runner.run(runner.prepare(PlannedBatch(windows, firsts, np.zeros(2, np.int32))))
            runner.index.flush()


def scan_batches(model: Model, plan: Plan, index: Index, config: ScanConfig, numbers: range) -> Iterator[int]:
    """Run batches through the model into the index; yields each batch's number when it is in (a GPU may still work).

    The next batches are prepared meanwhile, and nothing here waits for a device: what is wrong with a coefficient may be
    known a few batches late, at the latest when the index is asked for its state.
    """
    if model.device.type == "cpu":
        _keep_freed_memory()
    runner = _Runner(model, index, config)
    for number, ready in ahead((number, runner.prepare(plan[number])) for number in numbers):
        with finite(model, config):
            runner.run(ready)
        index.n += int(ready.lengths.sum()) - int(ready.batch.old.sum())
        yield number
    with finite(model, config):
        index.flush()


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to a batch's worth, for the next layer. By itself glibc gives large arrays
    back to the system, and every layer of every batch pays for having its pages zeroed again: a tenth of the time."""
    trim_threshold, mmap_threshold = -1, -3  # their names in malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, KEPT_MEMORY)
        libc.mallopt(mmap_threshold, KEPT_MEMORY)


@contextlib.contextmanager
def finite(model: Model, config: ScanConfig) -> Iterator[None]:
    """Say what to do about coefficients that are not finite."""
    try:
        yield
    except FloatingPointError as error:
        raise ModelError(
            f"{error} of {model.source} gives coefficients that are not finite in {config.dtype}. "
            "Scan in a wider type: --dtype float32, or bfloat16 instead of float16."
        ) from None


@dataclass(frozen=True)
class _Ready:
    """A batch as the device takes it."""

    batch: PlannedBatch
    lengths: npt.NDArray[np.int64]
    ids: torch.Tensor
    candidates: Any


class _Runner:
    """Batches through the model into the index; where memory runs out, in halves."""

    def __init__(self, model: Model, index: Index, config: ScanConfig) -> None:
        self.model, self.index, self.config = model, index, config
        self.most = sys.maxsize
        """tokens, padding included, that are known to be too many"""

    def prepare(self, batch: PlannedBatch) -> _Ready:
        prepared = self.model.batch(batch.windows, bos=self.config.bos)
        lengths = np.fromiter(map(len, batch.windows), np.int64, len(batch.windows))
        picked = self.index.prepare(prepared.ids.shape[1], prepared.n_special, lengths, batch.old, batch.first_tokens)
        ids = prepared.ids.pin_memory() if self.model.device.type == "cuda" else prepared.ids
        return _Ready(batch, lengths, ids, picked)

    def run(self, ready: _Ready, done: frozenset[int] = frozenset()) -> None:
        """One batch into the layers of the index that are not `done` with it."""
        now: set[int] = set()

        def sink(site: int, x: torch.Tensor, tokens: torch.Tensor | None) -> None:
            if site not in done:
                self.index.update(site, x, ready.candidates, tokens)
                now.add(site)

        windows = len(ready.batch.windows)
        if ready.ids.numel() < self.most or windows == 1:
            try:
                self.model.run(ready.ids.to(self.model.device, non_blocking=True), sink)
                return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self.most = min(self.most, ready.ids.numel())
            gc.collect()
            if self.model.device.type == "cuda":
                torch.cuda.empty_cache()
        if windows == 1:
            raise OutOfMemory(
                f"One window of {ready.lengths[0]} tokens does not fit in the memory of {self.model.device}. Use a smaller "
                f"--context (now {self.config.context}), a smaller --dtype (now {self.config.dtype}), or another --device."
            )
        half = windows // 2
        for part in (slice(None, half), slice(half, None)):
            batch = PlannedBatch(ready.batch.windows[part], ready.batch.first_tokens[part], ready.batch.old[part])
            self.run(self.prepare(batch), done | now)
