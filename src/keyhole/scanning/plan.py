"""The plan of a scan: made once from corpus and configuration, before any forward, and kept on disk.

It holds everything that the forward passes need: the tokens, the windows the model will see, which prefixes are candidates
(`candidates.py`), and the batches. Whoever runs a batch only opens the plan; nothing is read, split or tokenised again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.batching import batch_by_length
from ..common.files import NpyWriter
from ..common.prefetch import prefetch
from ..errors import CorpusError, RunDamaged, UsageError
from ..inputs.corpus import Unit, chunks
from ..inputs.kinds import CAUSAL_TEXT, Kind
from ..kernels.order import MAX_TOKENS
from ..store.unfinished import AGAIN, PlanFiles
from .candidates import mark_candidates
from .hold_out import held_out

Int64s = npt.NDArray[np.int64]

POOL_TOKENS, POOL_WINDOWS = 1 << 25, 1 << 20
"""Windows are sorted by length within pools of at most this size. That is hundreds of batches of a GPU, so that little is
padding, and it bounds the memory."""


@dataclass(frozen=True)
class Summary:
    """What the plan counted."""

    hash: str
    """sha256 over the units' texts"""
    documents: int
    units: int
    tokens: int
    distinct_prefixes: int
    split_units: int
    """units longer than the context, run in pieces"""
    empty_units: int
    """units without a token, left out"""
    truncated: bool
    """whether --max-tokens ended the corpus early"""
    batches: int
    held_out_units: int = 0
    """units kept out of the scan: numbered and stored, never run"""


# Building


def build(
    files: PlanFiles,
    units: Iterable[Unit],
    tokenize: Callable[[Sequence[str]], list[list[int]]],
    *,
    vocabulary: int,
    context: int,
    n_special: int,
    batch_tokens: int,
    max_tokens: int | None,
    hold_out: float = 0.0,
    hold_out_by: str = "unit",
    kind: Kind = CAUSAL_TEXT,
    threads: bool = True,
    check_ids: Callable[[int], None] = lambda largest: None,
    progress: Callable[[int], None] = lambda tokens: None,
    identity: dict[str, Any] | None = None,
) -> Summary:
    """Plan a corpus into `files`.

    `kind` says what a candidate is. `n_special` special tokens are before every window, and `context` counts them. `check_ids`
    refuses a token id that the model has no embedding for. `identity` describes the scan that the plan is for.

    With `threads`, one thread reads and another one tokenises in advance. A thread that waits for input which may never come
    cannot be stopped, so standard input is read without threads.
    The summary is written last: a plan with a summary is whole.
    """
    window_length = context - n_special
    digest = hashlib.sha256()
    totals = {"documents": 0, "units": 0, "tokens": 0, "split_units": 0, "empty_units": 0, "held_out_units": 0}
    truncated = False
    ready = _tokenized(prefetch(chunks(units)) if threads else chunks(units), tokenize)
    with (
        contextlib.closing(prefetch(ready, 2) if threads else ready) as parts,
        NpyWriter(files.tokens, np.uint16 if vocabulary <= 1 << 16 else np.uint32) as tokens_file,
        NpyWriter(files.unit_offsets, np.int64) as unit_offsets,
        NpyWriter(files.unit_documents, np.int32) as unit_documents,
        NpyWriter(files.unit_starts, np.int64) as unit_starts,
        NpyWriter(files.window_offsets, np.int64) as window_offsets,
    ):
        zero = np.zeros(1, np.int64)
        unit_offsets.append(zero)
        window_offsets.append(zero)
        for chunk, flat, lengths in parts:
            ends = totals["tokens"] + np.cumsum(lengths)
            if max_tokens is not None and ends[-1] > max_tokens:
                fit = int(np.searchsorted(ends, max_tokens, side="right"))
                chunk, lengths, ends, truncated = chunk[:fit], lengths[:fit], ends[:fit], True
                flat = flat[: lengths.sum()]
                if not totals["tokens"] + lengths.sum():
                    raise CorpusError(
                        f"--max-tokens {max_tokens} is less than the first unit, so nothing is left to scan. Raise it, "
                        "or choose a smaller --unit."
                    )
            if len(chunk):
                if len(flat):
                    check_ids(int(flat.max()))
                digest.update(_hashed(chunk))
                cuts = _windows(ends - lengths, lengths, window_length)
                bounds = np.append(cuts, ends[-1])
                if ends[-1] > MAX_TOKENS:
                    raise CorpusError(
                        f"The corpus has more than {MAX_TOKENS:,} tokens, the most one run can number. "
                        "Scan it in parts (separate runs), or set --max-tokens."
                    )
                documents = np.array([unit.document for unit in chunk], np.int32)
                numbers = np.arange(totals["units"], totals["units"] + len(chunk))
                held = held_out(documents if hold_out_by == "document" else numbers, hold_out)
                tokens_file.append(flat)
                unit_offsets.append(ends)
                unit_documents.append(documents)
                unit_starts.append(np.array([unit.start for unit in chunk], np.int64))
                window_offsets.append(bounds[1:])
                totals["documents"] = chunk[-1].document + 1
                totals["units"] += len(chunk)
                totals["tokens"] = int(ends[-1])
                totals["split_units"] += int((lengths > window_length).sum())
                totals["empty_units"] += int((lengths == 0).sum())
                totals["held_out_units"] += int(held.sum())
                progress(totals["tokens"])
            if truncated:
                break
    if not totals["tokens"]:
        raise CorpusError(
            "The corpus is empty: it has no unit with a token."
            if not totals["units"]
            else f"None of the corpus's {totals['units']} units has a token: the tokenizer drops all of their characters."
        )
    offsets = np.load(files.window_offsets, mmap_mode="r")
    mark_candidates(files, offsets, _held_windows(files, offsets, hold_out, hold_out_by), kind)
    distinct = totals["tokens"] - int(np.load(files.window_seen_before, mmap_mode="r").sum(dtype=np.int64))
    if not distinct:
        raise CorpusError(
            f"--hold-out {hold_out} leaves nothing to scan: it takes {totals['held_out_units']} of {totals['units']} units, all "
            "that have tokens. Lower it, or give more text."
        )
    batches = _write_batches(files, n_special, batch_tokens)
    summary = Summary(
        hash=digest.hexdigest(), distinct_prefixes=distinct, truncated=truncated, batches=batches, **totals
    )
    files.seal(vars(summary), identity or {})
    return summary


def _held_windows(files: PlanFiles, offsets: Int64s, share: float, by: str) -> npt.NDArray[np.bool_]:
    """Which windows are of held-out units."""
    if not share:
        return np.zeros(len(offsets) - 1, np.bool_)
    unit_offsets = np.load(files.unit_offsets, mmap_mode="r")
    numbers = np.load(files.unit_documents, mmap_mode="r") if by == "document" else np.arange(len(unit_offsets) - 1)
    return held_out(numbers, share)[unit_of(unit_offsets, offsets[:-1])]


def content_hash(units: Iterable[Unit], count: int) -> str:
    """The `hash` of a plan's first `count` units, without tokenising them."""
    digest = hashlib.sha256()
    for chunk in chunks(itertools.islice(units, count)):
        digest.update(_hashed(chunk))
    return digest.hexdigest()


def _hashed(chunk: list[Unit]) -> bytes:
    """What the corpus's hash is made of: the length of every text, and the text."""
    texts = [unit.text.encode("utf-8", "surrogatepass") for unit in chunk]
    return b"".join(part for text in texts for part in (len(text).to_bytes(8, "little"), text))


def _tokenized(
    split: Generator[list[Unit], None, None], tokenize: Callable[[Sequence[str]], list[list[int]]]
) -> Generator[tuple[list[Unit], Int64s, Int64s], None, None]:
    """Chunks of units, each with the tokens of all units in one array, and the number of tokens of each unit."""
    with contextlib.closing(split):
        for chunk in split:
            encoded = tokenize([unit.text for unit in chunk])
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            yield chunk, np.fromiter(itertools.chain.from_iterable(encoded), np.int64, int(lengths.sum())), lengths


def _windows(begins: Int64s, lengths: Int64s, most: int) -> Int64s:
    """Where windows begin: at the begin of each unit, and after every `most` tokens inside it."""
    pieces = -(-lengths // most)
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.repeat(begins, pieces) + (np.arange(len(first)) - first) * most


def _write_batches(files: PlanFiles, n_special: int, batch_tokens: int) -> int:
    """Windows of similar length share a batch. Windows without a new prefix need no forward and are in no batch."""
    offsets = np.load(files.window_offsets, mmap_mode="r")
    seen_before = np.load(files.window_seen_before, mmap_mode="r")
    count, at = 0, 0
    with NpyWriter(files.batch_windows, np.int64) as windows, NpyWriter(files.batch_bounds, np.int64) as bounds:
        bounds.append(np.zeros(1, np.int64))
        first = 0
        while first < len(seen_before):
            last = int(np.searchsorted(offsets, offsets[first] + POOL_TOKENS, side="right"))
            last = min(max(last - 1, first + 1), first + POOL_WINDOWS, len(seen_before))
            lengths = np.diff(offsets[first : last + 1])
            new = np.flatnonzero(seen_before[first:last] < lengths)
            batches = batch_by_length(lengths[new], batch_tokens, n_special=n_special)
            windows.append(first + new[batches.order])
            bounds.append(at + batches.bounds[1:])
            count += len(batches)
            at += len(new)
            first = last
    return count


# Reading


@dataclass(frozen=True)
class PlannedBatch:
    """Windows to run together."""

    windows: list[npt.NDArray[Any]]
    """their tokens"""
    first_tokens: Int64s
    """the token index of each window's first token"""
    seen_before: npt.NDArray[np.int32]
    """how many leading prefixes of each window are no candidates"""


class Plan:
    """A plan on disk, read batch by batch."""

    def __init__(self, files: PlanFiles, summary: Summary) -> None:
        self.files, self.summary = files, summary
        self.tokens = np.asarray(np.load(files.tokens, mmap_mode="r"))  # slicing a memmap itself is ten times slower
        self.unit_offsets = np.load(files.unit_offsets, mmap_mode="r")
        self._offsets = np.load(files.window_offsets, mmap_mode="r")
        self._seen_before = np.load(files.window_seen_before, mmap_mode="r")
        self._windows = np.load(files.batch_windows, mmap_mode="r")
        self._bounds = np.load(files.batch_bounds, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def size(self, number: int) -> int:
        """The tokens of a batch, without special tokens and padding."""
        windows = self._windows[self._bounds[number] : self._bounds[number + 1]]
        return int((self._offsets[windows + 1] - self._offsets[windows]).sum())

    def __getitem__(self, number: int) -> PlannedBatch:
        windows = self._windows[self._bounds[number] : self._bounds[number + 1]]
        begins, ends = self._offsets[windows], self._offsets[windows + 1]
        return PlannedBatch(
            [self.tokens[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)],
            np.asarray(begins),
            np.asarray(self._seen_before[windows]),
        )

    def shard(self, number: int, count: int) -> range:
        """The batches of a shard: every `count`-th, so that each shard has its share of long and of short windows.

        If there are more shards than batches, some have none.
        """
        if not 1 <= number <= count:
            raise UsageError(f"There is no shard {number}/{count}: shards are numbered from 1 to their count.")
        return range(number - 1, len(self), count)


def open_plan(files: PlanFiles, *, contents: bool) -> Plan:
    """A finished plan. With `contents`, every array is compared with its sha256, else with its size only."""
    summary = files.read_summary(contents=contents)
    try:
        return Plan(files, Summary(**summary))
    except TypeError as error:
        known = ", ".join(field.name for field in fields(Summary))
        raise RunDamaged(f"{files.summary} is not a plan's, which has {known}: {error}. {AGAIN}") from None


def unit_of(unit_offsets: Int64s, tokens: Int64s) -> Int64s:
    """The unit that each token index is in."""
    return np.searchsorted(unit_offsets, tokens, side="right").astype(np.int64) - 1
