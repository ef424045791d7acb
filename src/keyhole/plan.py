"""The plan of a scan: made once from corpus and configuration, before any forward, and kept on disk.

It holds the tokens, the windows the model will see, which prefixes are new, and the batches. A prefix is an input: the
tokens from its window's start to its last token. Where the same tokens stood at an earlier window's start, it is the same
input with the same coefficients, and no candidate again. If a prefix is new, so is every longer one of its window; one
number a window (`old`, how many of its leading prefixes occurred earlier) therefore says which are candidates.

Sameness is found by 128-bit prefix hashes, aggregated in bounded memory: what does not fit is spilled to disk in
partitions by hash.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .corpus import Unit
from .errors import CorpusError
from .store import NpyWriter, PlanFiles, new_memmap, write_json
from .topk import MAX_TOKENS

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

CHUNK_CHARACTERS = 1 << 20
"""Text tokenised at once."""
POOL_TOKENS = 1 << 22
"""Windows are sorted by length within pools of this many tokens: little padding, bounded memory."""
SPILL_RECORDS = 1 << 20
"""Prefix records held in memory before they go to disk."""
PARTITION_BITS = 6
HOLD_OUT_SEED = 0x4B4559484F4C45


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
    starts: int,
    batch_tokens: int,
    max_tokens: int | None,
    hold_out: float = 0.0,
    progress: Callable[[int], None] = lambda tokens: None,
    before_done: Callable[[], None] = lambda: None,
) -> Summary:
    """Plan a corpus into `files`. `context` counts the start token, `starts` of them stand before every window.

    The summary is written last, behind `before_done`: where there is a summary, there is a whole plan.
    """
    window_length = context - starts
    digest = hashlib.sha256()
    totals = {"documents": 0, "units": 0, "tokens": 0, "split_units": 0, "empty_units": 0, "held_out_units": 0}
    truncated = False
    prefixes = Prefixes(files.spill)
    with (
        NpyWriter(files.tokens, np.uint16 if vocabulary <= 1 << 16 else np.uint32) as tokens_file,
        NpyWriter(files.unit_offsets, np.int64) as unit_offsets,
        NpyWriter(files.unit_documents, np.int32) as unit_documents,
        NpyWriter(files.unit_starts, np.int64) as unit_starts,
        NpyWriter(files.window_offsets, np.int64) as window_offsets,
    ):
        zero = np.zeros(1, np.int64)
        unit_offsets.append(zero)
        window_offsets.append(zero)
        for chunk in _chunks(units):
            encoded = tokenize([unit.text for unit in chunk])
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            ends = totals["tokens"] + np.cumsum(lengths)
            if max_tokens is not None and ends[-1] > max_tokens:
                fit = int(np.searchsorted(ends, max_tokens, side="right"))
                chunk, encoded, lengths, ends, truncated = chunk[:fit], encoded[:fit], lengths[:fit], ends[:fit], True
                if not totals["tokens"] + lengths.sum():
                    raise CorpusError(
                        f"--max-tokens {max_tokens} is less than the first unit, so nothing is left to scan. Raise it, "
                        "or choose a smaller --unit."
                    )
            if len(chunk):
                for unit in chunk:
                    text = unit.text.encode("utf-8", "surrogatepass")
                    digest.update(len(text).to_bytes(8, "little") + text)
                flat = np.fromiter(itertools.chain.from_iterable(encoded), np.int64, int(lengths.sum()))
                cuts = _windows(ends - lengths, lengths, window_length)
                bounds = np.append(cuts, ends[-1])
                if ends[-1] > MAX_TOKENS:
                    raise CorpusError(
                        f"The corpus has more than {MAX_TOKENS:,} tokens, the most one run can number. "
                        "Scan it in parts (separate runs), or set --max-tokens."
                    )
                held = held_out(totals["units"], len(chunk), hold_out)
                scanned = np.flatnonzero(~np.repeat(held, lengths))
                high, low = _hash(flat, bounds - totals["tokens"])
                prefixes.add(high[scanned], low[scanned], totals["tokens"] + scanned)
                tokens_file.append(flat)
                unit_offsets.append(ends)
                unit_documents.append(np.array([unit.document for unit in chunk], np.int32))
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
    _write_repeats(files, prefixes, offsets)
    _hold_out(files, offsets, held_out(0, totals["units"], hold_out))
    distinct = totals["tokens"] - int(np.load(files.window_old, mmap_mode="r").sum(dtype=np.int64))
    if not distinct:
        raise CorpusError(
            f"--hold-out {hold_out} leaves nothing to scan: it takes {totals['held_out_units']} of {totals['units']} units, all "
            "that have tokens. Lower it, or give more text."
        )
    batches = _write_batches(files, starts, batch_tokens)
    summary = Summary(
        hash=digest.hexdigest(), distinct_prefixes=distinct, truncated=truncated, batches=batches, **totals
    )
    before_done()
    write_json(files.summary, vars(summary))
    return summary


def held_out(first_unit: int, count: int, share: float) -> npt.NDArray[np.bool_]:
    """Which of the units numbered from `first_unit` are kept out of a scan: about `share` of them, by a hash of the number."""
    numbers = np.arange(first_unit, first_unit + count, dtype=np.uint64)
    chance = (_mix(_mix(numbers + np.uint64(HOLD_OUT_SEED))) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return chance < share


def _hold_out(files: PlanFiles, offsets: Int64s, held: npt.NDArray[np.bool_]) -> None:
    """A window of a held-out unit has nothing new for the scan: all of its prefixes are `old`."""
    if not held.any():
        return
    old = np.load(files.window_old, mmap_mode="r+")
    windows = np.flatnonzero(held[unit_of(np.load(files.unit_offsets, mmap_mode="r"), offsets[:-1])])
    old[windows] = (offsets[windows + 1] - offsets[windows]).astype(np.int32)
    old.flush()


def content_hash(units: Iterable[Unit], count: int) -> str:
    """The `hash` of a plan's first `count` units, without tokenising them."""
    digest = hashlib.sha256()
    for unit in itertools.islice(units, count):
        text = unit.text.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _chunks(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    chunk: list[Unit] = []
    characters = 0
    for unit in units:
        chunk.append(unit)
        characters += len(unit.text)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _windows(starts: Int64s, lengths: Int64s, most: int) -> Int64s:
    """Where windows start: every unit's start, and every `most` tokens inside it."""
    pieces = -(-lengths // most)
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.repeat(starts, pieces) + (np.arange(len(first)) - first) * most


def _write_batches(files: PlanFiles, starts: int, batch_tokens: int) -> int:
    """Windows of like length share a batch; those with nothing new need no forward and are in none."""
    offsets = np.load(files.window_offsets, mmap_mode="r")
    old = np.load(files.window_old, mmap_mode="r")
    count, at = 0, 0
    with NpyWriter(files.batch_windows, np.int64) as windows, NpyWriter(files.batch_bounds, np.int64) as bounds:
        bounds.append(np.zeros(1, np.int64))
        first = 0
        while first < len(old):
            last = int(np.searchsorted(offsets, offsets[first] + POOL_TOKENS, side="right"))
            last = min(max(last - 1, first + 1), len(old))
            lengths = np.diff(offsets[first : last + 1])
            new = np.flatnonzero(old[first:last] < lengths)
            order = new[np.argsort(-lengths[new], kind="stable")]
            windows.append(order + first)
            lengths = lengths[order] + starts
            done = 0
            while done < len(order):
                done += max(1, batch_tokens // int(lengths[done]))
                bounds.append(np.array([at + min(done, len(order))]))
                count += 1
            at += len(order)
            first = last
    return count


# Which prefixes are the same


def _mix(x: UInt64s) -> UInt64s:
    """A well-known 64-bit finaliser (splitmix64's)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash(tokens: Int64s, bounds: Int64s) -> tuple[UInt64s, UInt64s]:
    """Two 64-bit hashes of every prefix: sums, over the prefix, of a random number for each (token, place)."""
    lengths = np.diff(bounds)
    place = np.arange(len(tokens)) - np.repeat(bounds[:-1], lengths)
    pair = (tokens.astype(np.uint64) << np.uint64(32)) | place.astype(np.uint64)
    hashes = []
    for seed in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mix(pair * np.uint64(seed) + np.uint64(seed)))])
        hashes.append(running[1:] - np.repeat(running[bounds[:-1]], lengths))
    return hashes[0], hashes[1]


RECORD = np.dtype([("high", np.uint64), ("low", np.uint64), ("token", np.int64), ("count", np.int64)])
Records = npt.NDArray[Any]


def _aggregate(records: Records) -> tuple[Records, Int64s]:
    """One record a distinct prefix (its first token index, its count), and the token indices of all later ones."""
    if not len(records):
        return records, np.empty(0, np.int64)
    order = np.argsort(records["high"])
    high, low = records["high"][order], records["low"][order]
    if np.any((high[1:] == high[:-1]) & (low[1:] != low[:-1])):  # half the hash alike is not enough
        order = np.lexsort((records["low"], records["high"]))
        high, low = records["high"][order], records["low"][order]
    begins = np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])))
    token = records["token"][order]
    merged = np.empty(len(begins), RECORD)
    merged["high"], merged["low"] = high[begins], low[begins]
    merged["token"] = np.minimum.reduceat(token, begins)
    merged["count"] = np.add.reduceat(records["count"][order], begins)
    firsts = np.repeat(merged["token"], np.diff(np.append(begins, len(order))))
    return merged, token[token != firsts]


class Prefixes:
    """Every prefix of a corpus, aggregated: where each first stood, how often it occurs, which ones are repeats."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: list[Records] = []
        self.size = 0
        self.spilled = False
        self.later: list[Int64s] = []

    def add(self, high: UInt64s, low: UInt64s, tokens: Int64s) -> None:
        records = np.empty(len(high), RECORD)
        records["high"], records["low"], records["token"], records["count"] = high, low, tokens, 1
        merged, later = _aggregate(records)
        self.held.append(merged)
        self.later.append(later)
        self.size += len(merged)
        if self.size > SPILL_RECORDS:
            self._spill()

    def _spill(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.spilled = True
        _partition(np.concatenate([np.empty(0, RECORD), *self.held]), self.folder, 0)
        with (self.folder / "later").open("ab") as file:
            np.concatenate([np.empty(0, np.int64), *self.later]).tofile(file)
        self.held, self.later, self.size = [], [], 0

    def finish(self) -> Iterator[tuple[Records, Int64s]]:
        """Aggregated records, each with the token indices that turned out to be repeats."""
        if not self.spilled:
            merged, later = _aggregate(np.concatenate([np.empty(0, RECORD), *self.held]))
            yield merged, np.concatenate([*self.later, later])
            return
        self._spill()
        with (self.folder / "later").open("rb") as file:
            while len(later := np.fromfile(file, np.int64, SPILL_RECORDS)):
                yield np.empty(0, RECORD), later
        yield from _partitions(self.folder, 0)


def _partition(records: Records, folder: Path, depth: int) -> None:
    shift = np.uint64(64 - PARTITION_BITS * (depth + 1))
    part = ((records["high"] >> shift) & np.uint64((1 << PARTITION_BITS) - 1)).astype(np.uint8)
    order = np.argsort(part, kind="stable")
    cuts = np.searchsorted(part[order], np.arange((1 << PARTITION_BITS) + 1))
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        if end > begin:
            with (folder / f"{number:02}").open("ab") as file:
                records[order[begin:end]].tofile(file)


def _partitions(folder: Path, depth: int) -> Iterator[tuple[Records, Int64s]]:
    for path in sorted(folder.glob("[0-9][0-9]")):
        if path.stat().st_size > 2 * SPILL_RECORDS * RECORD.itemsize and depth < 8:
            inner = path.with_suffix(".parts")
            inner.mkdir()
            with path.open("rb") as file:
                while len(records := np.fromfile(file, RECORD, SPILL_RECORDS)):
                    _partition(records, inner, depth + 1)
            path.unlink()
            yield from _partitions(inner, depth + 1)
        else:
            yield _aggregate(np.fromfile(path, RECORD))
            path.unlink()


def _write_repeats(files: PlanFiles, prefixes: Prefixes, offsets: Int64s) -> None:
    old = new_memmap(files.window_old, np.int32, len(offsets) - 1)
    tokens, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for merged, later in prefixes.finish():
        for part in np.array_split(later, len(later) // SPILL_RECORDS + 1):
            windows, times = np.unique(np.searchsorted(offsets, part, side="right") - 1, return_counts=True)
            old[windows] += times.astype(np.int32)
        repeated = merged[merged["count"] > 1]
        tokens.append(repeated["token"].copy())
        counts.append(repeated["count"].copy())
    old.flush()
    order = np.argsort(every := np.concatenate(tokens))
    np.save(files.repeated_tokens, every[order])
    np.save(files.repeated_counts, np.concatenate(counts)[order])


# Reading


@dataclass(frozen=True)
class PlannedBatch:
    """Windows to run together."""

    windows: list[npt.NDArray[Any]]
    """their tokens"""
    first_tokens: Int64s
    """the token index of each window's first token"""
    old: npt.NDArray[np.int32]
    """how many leading prefixes of each window are no candidates"""


class Plan:
    """A plan on disk, read batch by batch."""

    def __init__(self, files: PlanFiles, summary: Summary) -> None:
        self.summary = summary
        self.tokens = np.asarray(np.load(files.tokens, mmap_mode="r"))  # slices of a memmap itself cost ten times more
        self.unit_offsets = np.load(files.unit_offsets, mmap_mode="r")
        self._offsets = np.load(files.window_offsets, mmap_mode="r")
        self._old = np.load(files.window_old, mmap_mode="r")
        self._windows = np.load(files.batch_windows, mmap_mode="r")
        self._bounds = np.load(files.batch_bounds, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def size(self, number: int) -> int:
        """The tokens of a batch that are the corpus's own."""
        windows = self._windows[self._bounds[number] : self._bounds[number + 1]]
        return int((self._offsets[windows + 1] - self._offsets[windows]).sum())

    def __getitem__(self, number: int) -> PlannedBatch:
        windows = self._windows[self._bounds[number] : self._bounds[number + 1]]
        begins, ends = self._offsets[windows], self._offsets[windows + 1]
        return PlannedBatch(
            [self.tokens[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)],
            np.asarray(begins),
            np.asarray(self._old[windows]),
        )

    def unit_of(self, tokens: Int64s) -> Int64s:
        """The unit each token index stands in."""
        return unit_of(self.unit_offsets, tokens)


def unit_of(unit_offsets: Int64s, tokens: Int64s) -> Int64s:
    return np.searchsorted(unit_offsets, tokens, side="right").astype(np.int64) - 1
