"""The plan of a scan: made once from corpus and configuration, before any forward, and kept on disk.

It holds the tokens, the windows the model will see, which prefixes are new, and the batches. A prefix is an input: the
tokens from its window's start to its last token. Where the same tokens stood at an earlier window's start, it is the same
input with the same coefficients, and no candidate again. If a prefix is new, so is every longer one of its window; one
number a window (`old`, how many of its leading prefixes occurred earlier) therefore says which are candidates.

Sameness is found by growing all prefixes together, a token at a time: windows that began alike and go on alike stay
together, and a window left alone has only new prefixes from there on. What is compared are the tokens themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.files import NpyWriter, flush_memmap, new_memmap, write_array
from ..common.prefetch import ahead
from ..errors import CorpusError
from ..inputs.corpus import Unit, chunks
from ..kernels.order import MAX_TOKENS
from ..store.unfinished import PlanFiles

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

POOL_TOKENS, POOL_WINDOWS = 1 << 25, 1 << 20
"""Windows are sorted by length within pools of at most this much: hundreds of a GPU's batches, so that little is padding; in
bounded memory."""
PART_WINDOWS = 1 << 21
"""Windows compared at once, about: with more, those of some first tokens are, then those of others."""
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
    run_ahead: bool = True,
    check_ids: Callable[[int], None] = lambda largest: None,
    progress: Callable[[int], None] = lambda tokens: None,
    before_done: Callable[[], None] = lambda: None,
) -> Summary:
    """Plan a corpus into `files`. `context` counts the start token, `starts` of them stand before every window. `check_ids`
    refuses a token id that the model has no embedding for.

    Reading and tokenising run ahead, each in a thread, unless told otherwise: a thread that reads what may never come
    cannot be stopped. The summary is written last, after `before_done`: a plan with a summary is whole.
    """
    window_length = context - starts
    digest = hashlib.sha256()
    totals = {"documents": 0, "units": 0, "tokens": 0, "split_units": 0, "empty_units": 0, "held_out_units": 0}
    truncated = False
    ready = _tokenized(ahead(chunks(units)) if run_ahead else chunks(units), tokenize)
    with (
        contextlib.closing(ahead(ready, 2) if run_ahead else ready) as parts,
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
                held = held_out(totals["units"], len(chunk), hold_out)
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
    _write_repeats(files, offsets, _held_windows(files, offsets, totals["units"], hold_out))
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
    files.seal(vars(summary))
    return summary


def held_out(first_unit: int, count: int, share: float) -> npt.NDArray[np.bool_]:
    """Which of the units numbered from `first_unit` are kept out of a scan: about `share` of them, by a hash of the number."""
    numbers = np.arange(first_unit, first_unit + count, dtype=np.uint64)
    chance = (_mix(_mix(numbers + np.uint64(HOLD_OUT_SEED))) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return chance < share


def _held_windows(files: PlanFiles, offsets: Int64s, units: int, share: float) -> npt.NDArray[np.bool_]:
    if not share:
        return np.zeros(len(offsets) - 1, np.bool_)
    return held_out(0, units, share)[unit_of(np.load(files.unit_offsets, mmap_mode="r"), offsets[:-1])]


def content_hash(units: Iterable[Unit], count: int) -> str:
    """The `hash` of a plan's first `count` units, without tokenising them."""
    digest = hashlib.sha256()
    for chunk in chunks(itertools.islice(units, count)):
        digest.update(_hashed(chunk))
    return digest.hexdigest()


def _hashed(chunk: list[Unit]) -> bytes:
    """What the corpus's hash is made of: every text behind its length."""
    texts = [unit.text.encode("utf-8", "surrogatepass") for unit in chunk]
    return b"".join(part for text in texts for part in (len(text).to_bytes(8, "little"), text))


def _tokenized(
    split: Generator[list[Unit], None, None], tokenize: Callable[[Sequence[str]], list[list[int]]]
) -> Generator[tuple[list[Unit], Int64s, Int64s], None, None]:
    """Chunks with their tokens, end to end, and how many of them each unit has."""
    with contextlib.closing(split):
        for chunk in split:
            encoded = tokenize([unit.text for unit in chunk])
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            yield chunk, np.fromiter(itertools.chain.from_iterable(encoded), np.int64, int(lengths.sum())), lengths


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
            last = min(max(last - 1, first + 1), first + POOL_WINDOWS, len(old))
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


def _write_repeats(files: PlanFiles, offsets: Int64s, held: npt.NDArray[np.bool_]) -> None:
    """How many leading prefixes of each window stood earlier; which prefixes occur more than once, and how often.

    A held-out window has nothing new for the scan, and makes nothing old: all of its prefixes are `old`.
    """
    tokens = np.asarray(np.load(files.tokens, mmap_mode="r"))
    old = new_memmap(files.window_old, np.int32, len(held))
    old[held] = np.diff(offsets)[held]
    repeated, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    parts = -(-len(held) // PART_WINDOWS)
    for part in range(parts):
        windows = np.concatenate(list(_alike(tokens, offsets, held, part, parts)))
        begins = offsets[windows]
        lengths = offsets[windows + 1] - begins
        group = np.zeros(len(windows), np.int64)
        depth = 0
        while len(windows):
            # in groups of equal prefixes, ascending in each: so they stay, the sort being stable
            following = (group << 32) | tokens[begins + depth]
            order = np.argsort(following, kind="stable")
            following = following[order]
            first = np.append(True, following[1:] != following[:-1])
            old[windows[order[~first]]] += 1
            depth += 1
            heads = np.flatnonzero(first)
            sizes = np.diff(np.append(heads, len(order)))
            shared = sizes > 1
            repeated.append(begins[order[heads[shared]]] + depth - 1)
            counts.append(sizes[shared])
            order = order[np.repeat(shared, sizes)]
            group = np.repeat(np.arange(int(shared.sum())), sizes[shared])
            longer = lengths[order] > depth
            order, group = order[longer], group[longer]
            windows, begins, lengths = windows[order], begins[order], lengths[order]
    flush_memmap(files.window_old, old)
    order = np.argsort(every := np.concatenate(repeated))
    write_array(files.repeated_tokens, every[order])
    write_array(files.repeated_counts, np.concatenate(counts)[order])


def _alike(
    tokens: npt.NDArray[Any], offsets: Int64s, held: npt.NDArray[np.bool_], part: int, parts: int
) -> Iterator[Int64s]:
    """The scanned windows of a part: all that begin with the same token are in the same one."""
    for begin in range(0, len(held), PART_WINDOWS):
        end = min(begin + PART_WINDOWS, len(held))
        mine = ~held[begin:end]
        if parts > 1:
            mine &= _mix(tokens[offsets[begin:end]].astype(np.uint64)) % np.uint64(parts) == part
        yield begin + np.flatnonzero(mine)


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
