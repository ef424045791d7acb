"""Batches of a plan through the model, into the index."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..common.prefetch import prefetch
from ..common.stopping import Stop
from ..errors import ModelError, OutOfMemory, UsageError
from ..models.memory import is_out_of_memory
from ..models.model import Model
from .config import ScanConfig
from .contract import Index, make_index
from .plan import PlannedBatch

WARM_UP = (12, 24, 48, 96)
"""Lengths of windows that together use every kernel that short windows use."""
KEPT_MEMORY = 256 << 20
"""Bytes that are kept for the next layer instead of being returned to the system: about what a batch needs."""


class Batches(Protocol):
    """Batches by number: a plan, or something like it."""

    def __getitem__(self, number: int) -> PlannedBatch: ...


def index_for(model: Model, config: ScanConfig, unit_offsets: npt.NDArray[np.int64] | None = None) -> Index:
    """An empty index for a scan. `unit_offsets` are given if a unit may come in several windows."""
    return make_index(
        [site.device for site in model.sites],
        model.cells,
        config.top,
        signed=model.signed,
        per=config.per,
        context=config.context or 0,
        unit_offsets=unit_offsets,
        side_stream=not config.compile,
    )


def list_bytes(model: Model, config: ScanConfig) -> int:
    """The size of all lists of triggers: a key of 8 bytes per slot."""
    return 8 * config.top * len(model.cells) * (2 if model.signed else 1)


def check_memory(model: Model, config: ScanConfig) -> None:
    """Refuse lists of triggers that this machine's memory cannot hold, before anything is allocated."""
    need = list_bytes(model, config)
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say how much memory it has
        return
    if 2 * need > there:  # the lists, and a copy while a checkpoint is written or shards are merged
        raise UsageError(
            f"--top {config.top:,} needs {2 * need / 1e9:,.1f} GB for {len(model.cells):,} cells, and this machine "
            f"has {there / 1e9:,.1f} GB. Keep fewer triggers."
        )


def scan_batches(model: Model, batches: Batches, index: Index, config: ScanConfig, numbers: range) -> Iterator[int]:
    """Run batches through the model into the index. Yields each batch's number after its update (a GPU may still be working).

    A thread prepares the next batches meanwhile. Nothing here waits for a device, so an error in a coefficient may be
    reported a few batches late, at the latest when the index is asked for its state.
    """
    if model.device.type == "cpu":
        _keep_freed_memory()
    runner = Runner(model, index, config)
    for number, ready in prefetch((number, runner.prepare(batches[number])) for number in numbers):
        with finite(model, config):
            runner.run(ready)
        index.n += int(ready.lengths.sum()) - int(ready.batch.seen_before.sum())
        yield number
    with finite(model, config):
        index.flush()


def _keep_freed_memory() -> None:
    """Make the C library keep freed memory, about as much as a batch needs, for the next layer. By default glibc returns large
    arrays to the system, and new zeroed pages for every layer of every batch take a tenth of the time."""
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, KEPT_MEMORY)
        libc.mallopt(mmap_threshold, KEPT_MEMORY)


@contextlib.contextmanager
def finite(model: Model, config: ScanConfig) -> Iterator[None]:
    """Turn the index's refusal of NaN and infinity into an error that says what to do."""
    try:
        yield
    except FloatingPointError as error:
        raise ModelError(
            f"{error} of {model.source} gives coefficients that are not finite in {config.dtype}. "
            "Scan in a wider type: --dtype float32, or bfloat16 instead of float16."
        ) from None


@dataclass(frozen=True)
class Ready:
    """A batch in the form that the device takes."""

    batch: PlannedBatch
    lengths: npt.NDArray[np.int64]
    ids: torch.Tensor
    candidates: Any


class Runner:
    """Runs batches through the model into the index. If memory runs out, it runs a batch in halves."""

    def __init__(self, model: Model, index: Index, config: ScanConfig) -> None:
        self.model, self.index, self.config = model, index, config
        self.too_many = sys.maxsize
        """a number of tokens, padding included, that is known not to fit"""

    def prepare(self, batch: PlannedBatch) -> Ready:
        prepared = self.model.batch(batch.windows, bos=self.config.bos)
        lengths = np.fromiter(map(len, batch.windows), np.int64, len(batch.windows))
        candidates = self.index.prepare(
            prepared.ids.shape[1], prepared.n_special, lengths, batch.seen_before, batch.first_tokens
        )
        ids = prepared.ids.pin_memory() if self.model.device.type == "cuda" else prepared.ids
        return Ready(batch, lengths, ids, candidates)

    def run(self, ready: Ready, done: frozenset[int] = frozenset()) -> None:
        """One batch into the sites of the index that are not in `done`: those have it already."""
        now: set[int] = set()

        def sink(site: int, x: torch.Tensor, tokens: torch.Tensor | None) -> None:
            if site not in done:
                self.index.update(site, x, ready.candidates, tokens)
                now.add(site)

        windows = len(ready.batch.windows)
        if ready.ids.numel() < self.too_many or windows == 1:
            try:
                self.model.run(ready.ids.to(self.model.device, non_blocking=True), sink)
                return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self.too_many = min(self.too_many, ready.ids.numel())
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
            batch = PlannedBatch(
                ready.batch.windows[part], ready.batch.first_tokens[part], ready.batch.seen_before[part]
            )
            self.run(self.prepare(batch), done | now)


# Before the first batch


def compiled_if_asked(model: Model, config: ScanConfig) -> contextlib.AbstractContextManager[None]:
    """The model with its blocks compiled, if the scan has --compile."""
    if not config.compile:
        return contextlib.nullcontext()
    from ..models.compiled import compiled

    return compiled(model)


@contextlib.contextmanager
def warming_up(model: Model, config: ScanConfig) -> Iterator[None]:
    """On a GPU, warm up in a thread while the corpus is planned. Kernels not compiled by then are compiled during the scan."""
    if model.device.type != "cuda":
        yield
        return
    enough = threading.Event()
    thread = threading.Thread(target=warm_up, args=(model, config, enough), name="keyhole-warm-up")
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def warm_up(model: Model, config: ScanConfig, enough: Stop) -> None:
    """Run a few made-up windows into an index that is thrown away, until `enough` is set, so that kernels are compiled before
    the first batch. Errors are ignored: they come again in the scan, and are reported there."""
    lengths = sorted({min(length, (config.context or 2) - int(config.bos)) for length in WARM_UP})
    two_units = np.array([0, lengths[-1], 2 * lengths[-1]], np.int64)
    with contextlib.suppress(Exception):
        for unit_offsets in (None, two_units) if config.per == "sentence" else (None,):
            runner = Runner(model, index_for(model, config, unit_offsets), config)
            for length in lengths:
                if enough.is_set():
                    return
                windows = [np.zeros(length, np.int64)] * 2
                firsts = np.array([0, length], np.int64)
                runner.run(runner.prepare(PlannedBatch(windows, firsts, np.zeros(2, np.int32))))
            runner.index.flush()
