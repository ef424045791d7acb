"""Which prefixes of a corpus are candidates: every distinct input once, at its first occurrence.

A prefix is what the model saw: the tokens from its window's start to its last token. If an earlier window
begins with the same tokens, it is the same input with the same coefficients, and not a candidate again. If a prefix is new, every
longer prefix of its window is new too, so one number per window says which are candidates: `seen_before`, how many of its
leading prefixes occurred earlier.

All windows are compared together, one token at a time. Windows that are equal so far stay in one group; a window that is alone
in its group has only new prefixes from there on. The tokens themselves are compared, not hashes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.files import flush_memmap, new_memmap, write_array
from ..inputs.kinds import CAUSAL_TEXT, Kind, Sees
from ..store.unfinished import PlanFiles
from .hold_out import mix

Int64s = npt.NDArray[np.int64]

PART_WINDOWS = 1 << 21
"""Approximate upper bound on windows compared together; larger corpora are partitioned by a hash of the first token."""


def mark_candidates(files: PlanFiles, offsets: Int64s, held: npt.NDArray[np.bool_], kind: Kind = CAUSAL_TEXT) -> None:
    """Mark repeated inputs, which are no candidates. `kind` says when two inputs are the same."""
    REPEATS[kind.sees](files, offsets, held)


def _write_repeated_prefixes(files: PlanFiles, offsets: Int64s, held: npt.NDArray[np.bool_]) -> None:
    """Write `seen_before` of every window, and which prefixes occur more than once and how often.

    A held-out window (`held`) has no candidate: all of its prefixes count as seen before. It has no effect on other windows.
    """
    tokens = np.asarray(np.load(files.tokens, mmap_mode="r"))
    seen_before = new_memmap(files.window_seen_before, np.int32, len(held))
    seen_before[held] = np.diff(offsets)[held]
    repeated, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    parts = -(-len(held) // PART_WINDOWS)
    for part in range(parts):
        windows = np.concatenate(list(_windows_of(tokens, offsets, held, part, parts)))
        begins = offsets[windows]
        lengths = offsets[windows + 1] - begins
        group = np.zeros(len(windows), np.int64)
        depth = 0
        while len(windows):
            # sorted by group, and by window number within a group; the sort is stable, so this stays true
            following = (group << 32) | tokens[begins + depth]
            order = np.argsort(following, kind="stable")
            following = following[order]
            first = np.append(True, following[1:] != following[:-1])
            seen_before[windows[order[~first]]] += 1
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
    flush_memmap(files.window_seen_before, seen_before)
    order = np.argsort(every := np.concatenate(repeated))
    write_array(files.repeated_tokens, every[order])
    write_array(files.repeated_counts, np.concatenate(counts)[order])


REPEATS = {Sees.BEFORE: _write_repeated_prefixes}
"""How repeated inputs are marked, by what the model sees (`Kind.sees`)."""


def _windows_of(
    tokens: npt.NDArray[Any], offsets: Int64s, held: npt.NDArray[np.bool_], part: int, parts: int
) -> Iterator[Int64s]:
    """The scanned windows of one part. Windows with the same first token are in the same part."""
    for begin in range(0, len(held), PART_WINDOWS):
        end = min(begin + PART_WINDOWS, len(held))
        mine = ~held[begin:end]
        if parts > 1:
            mine &= mix(tokens[offsets[begin:end]].astype(np.uint64)) % np.uint64(parts) == part
        yield begin + np.flatnonzero(mine)
