"""The order of candidates in its plain form: which prefixes are the triggers of a cell, and in what order.

The order is total: coefficient descending, then unit ascending, then position ascending. The *token index* of a prefix is the
number of tokens before its last one, over all units in order. It sorts exactly like (unit, position), so one 64-bit key holds
the whole order:

    key = (0x7FFFFFFF − bits of the float32 coefficient) << 32 | token index          smaller is better

No two candidates have the same key, so the result never depends on how a sorting routine treats ties: every device, every
partition of the corpus and every order of merging give the same bytes. The coefficient of a candidate is above zero. The
negative side of a cell has the same order on the negated coefficients.

`brute_force` is the reference: everything faster is tested against it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[Any]

UNFILLED = np.iinfo(np.int64).max
"""The key of an empty slot; it sorts after every candidate."""

MAX_TOKENS = 2**32 - 1
"""A token index takes 32 bits of the key."""


def pack(coefficients: Floats, tokens: Ints) -> Keys:
    """The keys of candidates. `coefficients` are above zero, `tokens` are token indices."""
    bits = np.ascontiguousarray(coefficients, dtype=np.float32).view(np.int32).astype(np.int64)
    return ((0x7FFFFFFF - bits) << 32) | tokens.astype(np.int64)


def unpack(keys: Keys) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The coefficients and token indices of keys; NaN and −1 for an unfilled slot."""
    empty = keys == UNFILLED
    bits = (0x7FFFFFFF - (keys >> 32)).astype(np.int32)
    coefficients = bits.view(np.float32).copy()
    tokens = keys & 0xFFFFFFFF
    coefficients[empty] = np.nan
    tokens[empty] = -1
    return coefficients, tokens


def one_per_group(keys: Keys, groups: Ints) -> Keys:
    """Rows of keys in which only the best key of every group is kept, the others are UNFILLED. `groups` has the shape of `keys`."""
    order = np.lexsort((keys, groups), axis=-1)
    sorted_groups = np.take_along_axis(groups, order, -1)
    again = np.zeros(keys.shape, bool)
    again[..., 1:] = sorted_groups[..., 1:] == sorted_groups[..., :-1]
    dropped = np.zeros(keys.shape, bool)
    np.put_along_axis(dropped, order, again, -1)
    return np.where(dropped & (keys != UNFILLED), UNFILLED, keys)


def merge(lists: list[Keys], top: int) -> Keys:
    """The best `top` keys of several lists, along the last axis. The result is the same for every grouping and order."""
    return np.sort(np.concatenate(lists, axis=-1), axis=-1)[..., :top]


def brute_force(
    coefficients: Floats, units: Ints, positions: Ints, top: int, *, per: str = "sentence"
) -> tuple[Floats, Ints, Ints]:
    """The definition itself: from `coefficients` [prefixes, cells] of distinct prefixes, and the unit and position of each, the
    coefficients, units and positions of the triggers, each [cells, top].

    It sorts everything, and is slow on purpose.
    """
    cells = coefficients.shape[1]
    best = np.full((cells, top), np.nan, np.float32)
    best_units, best_positions = np.full((cells, top), -1, np.int64), np.full((cells, top), -1, np.int64)
    for cell in range(cells):
        column = coefficients[:, cell]
        taken: list[int] = []
        seen: set[int] = set()
        for i in sorted(range(len(column)), key=lambda i: (-float(column[i]), int(units[i]), int(positions[i]))):
            if column[i] <= 0 or len(taken) == top:
                break
            if per == "sentence" and int(units[i]) in seen:
                continue
            seen.add(int(units[i]))
            taken.append(i)
        best[cell, : len(taken)] = column[taken]
        best_units[cell, : len(taken)] = units[taken]
        best_positions[cell, : len(taken)] = positions[taken]
    return best, best_units, best_positions
