"""The filter of the index as two Triton kernels per site, each with its plain reference below.

`filter_rows` reads the coefficients of a site once. A program owns a block of cells and walks down the token axis: sums,
squares, counts, the largest and the smallest stay elementwise in registers and are reduced once, at the program's end. The best
coefficient of a window is compared with the cell's threshold at the end of the window. Only if some cell of the tile passes is
the window read again to find the column, and the survivor is appended to its cell's slots.

`settle` puts the survivors into the lists, raises the thresholds, and adds up the sums of the programs, in a fixed order, as
exact integers. If a cell had more survivors than slots, all its coefficients of the batch are searched again at once, while
they are still in memory: the result is exact, and the host never has to wait.

No float sum depends on timing, and keys are unique, so two runs give the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor

from . import sums as exact_sums
from .order import UNFILLED, Keys, merge, one_per_group, pack

BFLOAT16, FLOAT16, FLOAT32 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
EMPTY = tl.constexpr(UNFILLED)
LOWEST, HIGHEST = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
FRACTION_BITS = tl.constexpr(exact_sums.FRACTION_BITS)
FRACTION_ONE = tl.constexpr(2.0**exact_sums.FRACTION_BITS)
FRACTION_MASK = tl.constexpr((1 << exact_sums.FRACTION_BITS) - 1)
LARGEST_ADDEND = tl.constexpr(exact_sums.LARGEST_ADDEND)
PARTIALS = 5
"""Numbers that a program of `filter_rows` leaves per cell: sum, sum of squares, active count, largest, smallest."""

KINDS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}


@triton.jit
def _value(raw, KIND: tl.constexpr):
    """Stored coefficients (16-bit ones as integers) as float32."""
    if KIND == BFLOAT16:
        value = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif KIND == FLOAT16:
        value = raw.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        value = raw
    return value


@triton.jit
def _load(where, known, WHOLE: tl.constexpr):
    return tl.load(where) if WHOLE else tl.load(where, mask=known[None, :], other=0)


@triton.jit
def _key(bits, token):
    """The key of `order.py`: smaller is better."""
    return ((0x7FFFFFFF - bits).to(tl.int64) << 32) | token


@triton.jit
def _token(key):
    """The token index of a key (or a token index itself), as 32 bits that compare in the same order."""
    return key.to(tl.int32) ^ LOWEST


@triton.jit
def _append(counts, pending, last, known, cell, hit, bits, token, WIDTH: tl.constexpr):
    """Write survivors to the slots of their cells, in any order. If the slots are full, only the count is increased.

    A coefficient equal to the threshold passes only if its key sorts before the list's `last` key: if an activation saturates
    (GELU's low end in 16 bits), nearly every row ties with the threshold.
    """
    key = _key(bits, token)
    hit = hit & (key < tl.load(last, mask=known, other=0)[None, :])
    where = cell[None, :] + tl.zeros_like(bits)
    slot = tl.atomic_add(counts + where, 1, mask=hit, sem="relaxed")
    tl.store(pending + where.to(tl.int64) * WIDTH + slot, key, mask=hit & (slot < WIDTH))


@triton.jit
def _column(
    where,
    begin,
    end,
    live,
    known,
    best,
    steps,
    CELLS: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """The first column of each row that holds its `best` [ROWS, cells]; `begin` is the first column of each lane."""
    BLOCK: tl.constexpr = best.shape[1]
    if LANES > 1:
        best = tl.reshape(tl.broadcast_to(best[:, None, :], [ROWS, LANES, BLOCK]), [ROWS * LANES, BLOCK])
    found = tl.full([ROWS * LANES, BLOCK], HIGHEST, tl.int32)
    for step in range(0, steps, UNROLL):
        here = where + ((begin + step * LANES) * CELLS)[:, None]
        for offset in tl.static_range(UNROLL):
            at = begin + (step + offset) * LANES
            inside = ((at < end) & live)[:, None] & known[None, :]
            each = _value(tl.load(here + offset * LANES * CELLS, mask=inside, other=0), KIND)
            found = tl.minimum(found, tl.where(inside & (each == best), at[:, None], HIGHEST))
    if LANES > 1:
        found = tl.min(tl.reshape(found, [ROWS, LANES, BLOCK]), 1)
    return found


@triton.jit
def _routed_token(tokens, entry, row, columns, first, mask):
    """The token index of an entry of routed coefficients: its position in the batch, in its window, in the corpus."""
    return tl.load(tokens + entry, mask=mask, other=0) - row.to(tl.int64) * columns + first


@triton.jit(do_not_specialize=["rows", "columns", "tiles", "groups"])
def filter_rows(
    x,
    tokens,
    table,
    keys,
    thresholds,
    counts,
    pending,
    partial,
    base,
    rows,
    columns,
    tiles,
    groups,
    CELLS: tl.constexpr,
    SIDE: tl.constexpr,
    TOP: tl.constexpr,
    KIND: tl.constexpr,
    SIGNED: tl.constexpr,
    PREFIX: tl.constexpr,
    ROUTED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Filter and statistics of one site, whose CELLS cells begin at place `base` of SIDE cells. A tile is ROWS windows, each
    walked by LANES lanes.

    Coefficients of every token: x is [rows, columns, CELLS], and `table` [3, rows] holds each window's first candidate column,
    the column after its last, and the token index of column 0. ROUTED, coefficients of some tokens: x is [entries, CELLS],
    `tokens` [entries] are their positions in the batch, and `table` holds entries in place of columns.

    The last windows are read first: the activation wrote them last, and the down-projection reads the first ones next.
    """
    HEIGHT: tl.constexpr = ROWS * LANES
    BLOCKS: tl.constexpr = (CELLS + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = CELLS % BLOCK == 0
    program = tl.program_id(0)
    group = program // BLOCKS
    cell = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    known = cell < CELLS
    lane = tl.arange(0, HEIGHT)
    threshold = tl.load(thresholds + base + cell, mask=known, other=HIGHEST)
    last = keys + (base + cell).to(tl.int64) * TOP + TOP - 1
    latest = _token(tl.load(last, mask=known, other=0))
    if SIGNED:
        low_threshold = tl.load(thresholds + SIDE + base + cell, mask=known, other=HIGHEST)
        low_last = keys + (SIDE + base + cell).to(tl.int64) * TOP + TOP - 1
        low_latest = _token(tl.load(low_last, mask=known, other=0))
    total = tl.zeros([HEIGHT, BLOCK], tl.float32)
    squares = tl.zeros([HEIGHT, BLOCK], tl.float32)
    active = tl.zeros([HEIGHT, BLOCK], tl.int32)
    most = tl.full([ROWS, BLOCK], float("-inf"), tl.float32)
    least = tl.full([ROWS, BLOCK], float("inf"), tl.float32)
    for tile in range(group, tiles, groups):
        first_row = (tiles - 1 - tile) * ROWS
        row = first_row + lane // LANES
        live = row < rows
        row = tl.minimum(row, rows - 1)
        if ROUTED:  # entries are counted from the window's first
            entry = tl.load(table + row)
            begin = tl.zeros_like(row)
            end = (tl.load(table + rows + row) - entry).to(tl.int32)
            where = x + (entry * CELLS)[:, None] + cell[None, :]
        else:
            begin = tl.load(table + row).to(tl.int32)
            end = tl.load(table + rows + row).to(tl.int32)
            where = x + (row.to(tl.int64) * columns * CELLS)[:, None] + cell[None, :]
        steps = tl.max((end - begin + LANES - 1) // LANES, 0)
        high = tl.full([HEIGHT, BLOCK], float("-inf"), tl.float32)
        low = tl.full([HEIGHT, BLOCK], float("inf"), tl.float32)
        # first the columns that every window of the tile has, without weights; then the rest of the longest, with weights
        even = tl.min(tl.where(live, end - begin, 0) // (LANES * UNROLL), 0) * UNROLL
        begin += lane % LANES
        for step in range(0, even, UNROLL):
            here = where + ((begin + step * LANES) * CELLS)[:, None]
            for offset in tl.static_range(UNROLL):
                value = _value(_load(here + offset * LANES * CELLS, known, WHOLE), KIND)
                total += value
                squares += value * value
                active += (value > 0).to(tl.int32)
                high = tl.maximum(high, value)
                low = tl.minimum(low, value)
        for step in range(even, steps, UNROLL):
            for offset in tl.static_range(UNROLL):
                place = begin + (step + offset) * LANES
                if ROUTED:  # a window may have no entry that could be repeated
                    inside = ((place < end) & live)[:, None] & known[None, :]
                    value = _value(tl.load(where + (place * CELLS)[:, None], mask=inside, other=0), KIND)
                    total += value
                    squares += value * value
                    active += (value > 0).to(tl.int32)
                    high = tl.maximum(high, tl.where(inside, value, float("-inf")))
                    low = tl.minimum(low, tl.where(inside, value, float("inf")))
                else:
                    weight = ((place < end) & live).to(tl.float32)[:, None]
                    # after its end, a window repeats its last candidate with weight 0
                    place = tl.minimum(place, end - 1)
                    value = _value(_load(where + (place * CELLS)[:, None], known, WHOLE), KIND)
                    weighted = value * weight
                    total += weighted
                    squares += weighted * value
                    active += (weighted > 0).to(tl.int32)
                    high = tl.maximum(high, value)
                    low = tl.minimum(low, value)
        # reduce the lanes of each window
        row_high = high
        row_low = low
        if LANES > 1:
            row_high = tl.max(tl.reshape(high, [ROWS, LANES, BLOCK]), 1)
            row_low = tl.min(tl.reshape(low, [ROWS, LANES, BLOCK]), 1)
        bits = row_high.to(tl.int32, bitcast=True)
        low_bits = (-row_low).to(tl.int32, bitcast=True)
        most = tl.maximum(most, row_high)
        least = tl.minimum(least, row_low)
        # what passes the thresholds; a tie passes only if a token of the window may sort before the list's last key
        whole_row = first_row + tl.arange(0, ROWS)
        there = (whole_row < rows)[:, None]
        first = tl.load(table + 2 * rows + tl.minimum(whole_row, rows - 1))[:, None]
        early = _token(tl.maximum(first, 0))
        hit = ((bits > threshold[None, :]) | ((bits == threshold[None, :]) & (early <= latest[None, :]))) & there
        passed = hit
        if SIGNED:
            low_tie = (low_bits == low_threshold[None, :]) & (early <= low_latest[None, :])
            low_hit = ((low_bits > low_threshold[None, :]) | low_tie) & there
            passed = hit | low_hit
        if tl.max(tl.max(passed.to(tl.int32), 1), 0) > 0:
            if not PREFIX:  # find the column of each survivor: read its window again
                if ROUTED:
                    first_entry = tl.load(table + tl.minimum(whole_row, rows - 1))[:, None]
                if tl.max(tl.max(hit.to(tl.int32), 1), 0) > 0:
                    at = _column(where, begin, end, live, known, row_high, steps, CELLS, KIND, ROWS, LANES, UNROLL)
                    if ROUTED:
                        token = _routed_token(tokens, first_entry + at, whole_row[:, None], columns, first, hit)
                    else:
                        token = first + at
                    _append(counts, pending, last, known, cell, hit, bits, token, WIDTH)
                if SIGNED:  # noqa: SIM102 - decided when it is compiled
                    if tl.max(tl.max(low_hit.to(tl.int32), 1), 0) > 0:
                        at = _column(where, begin, end, live, known, row_low, steps, CELLS, KIND, ROWS, LANES, UNROLL)
                        if ROUTED:
                            token = _routed_token(tokens, first_entry + at, whole_row[:, None], columns, first, low_hit)
                        else:
                            token = first + at
                        low_counts, low_pending = counts + CELLS, pending + CELLS * WIDTH
                        _append(low_counts, low_pending, low_last, known, cell, low_hit, low_bits, token, WIDTH)
            else:  # every prefix that passes, not only the best of the window
                column_0 = tl.load(table + 2 * rows + row)
                for step in range(steps):
                    at = begin + step * LANES
                    inside = ((at < end) & live)[:, None] & known[None, :]
                    again = tl.load(where + (at * CELLS)[:, None], mask=inside, other=0)
                    each = _value(again, KIND)
                    each_bits = each.to(tl.int32, bitcast=True)
                    if ROUTED:
                        token = _routed_token(tokens, entry + at, row, columns, column_0, (at < end) & live)[:, None]
                    else:
                        token = (column_0 + at)[:, None]
                    passes = (each_bits >= threshold[None, :]) & inside
                    _append(counts, pending, last, known, cell, passes, each_bits, token, WIDTH)
                    if SIGNED:
                        minus = each_bits ^ LOWEST
                        low_passes = (minus >= low_threshold[None, :]) & inside
                        low_counts, low_pending = counts + CELLS, pending + CELLS * WIDTH
                        _append(low_counts, low_pending, low_last, known, cell, low_passes, minus, token, WIDTH)
    largest = tl.max(most, 0)
    smallest = tl.min(least, 0)
    out = partial + group * 5 * CELLS + cell
    tl.store(out, tl.sum(total, 0), mask=known)
    tl.store(out + CELLS, tl.sum(squares, 0), mask=known)
    tl.store(out + 2 * CELLS, tl.sum(active, 0).to(tl.float32), mask=known)
    tl.store(out + 3 * CELLS, largest, mask=known)
    tl.store(out + 4 * CELLS, smallest, mask=known)


@triton.jit
def _unit(keys, units, count, steps):
    """The unit of each key's token, found by bisection: the last unit that begins at or before it, plus 1."""
    token = keys & 0xFFFFFFFF
    low = tl.zeros_like(keys)
    high = tl.zeros_like(keys) + count
    for _ in range(steps):
        middle = (low + high) // 2
        right = (low < high) & (tl.load(units + middle, mask=low < high, other=0) <= token)
        high = tl.where((low < high) & ~right, middle, high)
        low = tl.where(right, middle + 1, low)
    return low


@triton.jit
def _combine(best, new, units, unit_count, steps, GROUPED: tl.constexpr):
    """The best keys of two lists of the same length; `best` is sorted, and so is the result. GROUPED: one key per unit."""
    if GROUPED:
        slot = tl.arange(0, best.shape[0])
        groups = _unit(best, units, unit_count, steps)
        new_groups = _unit(new, units, unit_count, steps)
        worse = slot < 0
        new_worse = slot < 0
        for i in range(best.shape[0]):
            key = tl.max(tl.where(slot == i, best, 0))
            group = tl.max(tl.where(slot == i, groups, 0))
            new_worse = new_worse | ((new_groups == group) & (key < new))
            key = tl.max(tl.where(slot == i, new, 0))
            group = tl.max(tl.where(slot == i, new_groups, 0))
            new_worse = new_worse | ((new_groups == group) & (key < new))
            worse = worse | ((groups == group) & (key < best))
        best = tl.sort(tl.where(worse, EMPTY, best))
        new = tl.where(new_worse, EMPTY, new)
    # a bitonic merge: the elementwise minima of an ascending and a descending list are the smallest keys of both
    return tl.sort(tl.minimum(best, tl.sort(new, descending=True)))


@triton.jit
def _add_exactly(sums, addend, mask):
    """`sums.add_exactly`: floats as whole and fraction, added as integers."""
    addend = tl.where(addend != addend, 0.0, tl.minimum(tl.maximum(addend, -LARGEST_ADDEND), LARGEST_ADDEND))
    whole = tl.floor(addend)
    fraction = ((addend - whole) * FRACTION_ONE).to(tl.int64) + tl.load(sums + 1, mask=mask, other=0)
    whole = whole.to(tl.int64) + tl.load(sums, mask=mask, other=0) + (fraction >> FRACTION_BITS)
    tl.store(sums, whole, mask=mask)
    tl.store(sums + 1, fraction & FRACTION_MASK, mask=mask)


@triton.jit
def _last(best, TOP: tl.constexpr):
    return tl.max(tl.where(tl.arange(0, best.shape[0]) == TOP - 1, best, 0))


@triton.jit
def _prefixes(
    x,
    tokens,
    table,
    begin,
    cell,
    flip,
    rows,
    columns,
    entries,
    CELLS: tl.constexpr,
    KIND: tl.constexpr,
    ROUTED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The next WIDTH candidates of a cell from entry `begin` on, each prefix a candidate."""
    entry = begin + tl.arange(0, WIDTH)
    inside = entry < entries
    if ROUTED:
        position = tl.load(tokens + entry, mask=inside, other=0)
        row = position // columns
        column = position % columns
        bounded = entry
    else:
        row = entry // columns
        column = entry % columns
        bounded = column
    inside = inside & (bounded >= tl.load(table + row, mask=inside, other=0))
    inside = inside & (bounded < tl.load(table + rows + row, mask=inside, other=0))
    raw = tl.load(x + entry.to(tl.int64) * CELLS + cell, mask=inside, other=0)
    value = _value(raw, KIND)
    bits = value.to(tl.int32, bitcast=True) ^ flip
    token = tl.load(table + 2 * rows + row, mask=inside, other=0) + column
    return tl.where(inside & (bits > 0), _key(bits, token), EMPTY)


@triton.jit
def _windows(
    x,
    tokens,
    table,
    begin,
    cell,
    flip,
    rows,
    columns,
    CELLS: tl.constexpr,
    KIND: tl.constexpr,
    ROUTED: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The next WIDTH candidates of a cell from window `begin` on, the best of each window."""
    row = begin + tl.arange(0, WIDTH)
    inside = row < rows
    left = tl.load(table + row, mask=inside, other=0)
    right = tl.load(table + rows + row, mask=inside, other=0)
    first = tl.load(table + 2 * rows + row, mask=inside, other=0)
    row_begin = tl.zeros_like(left) if ROUTED else row.to(tl.int64) * columns
    where = x + row_begin * CELLS + cell
    new = tl.full([WIDTH], EMPTY, tl.int64)
    for step in range(0, tl.max(right - left, 0).to(tl.int32), SPAN):
        column = left[:, None] + step + tl.arange(0, SPAN)[None, :]
        within = column < right[:, None]
        raw = tl.load(where[:, None] + column * CELLS, mask=within, other=0)
        value = _value(raw, KIND)
        bits = value.to(tl.int32, bitcast=True) ^ flip
        if ROUTED:
            token = _routed_token(tokens, column, row[:, None], columns, first[:, None], within)
        else:
            token = first[:, None] + column
        each = tl.where(within & (bits > 0), _key(bits, token), EMPTY)
        new = tl.minimum(new, tl.min(each, 1))
    return new


@triton.jit
def _settle_statistics(
    program, partial, sums, active, extremes, bad, base, site, groups, CELLS: tl.constexpr, BLOCK: tl.constexpr
):
    cell = program * BLOCK + tl.arange(0, BLOCK)
    known = cell < CELLS
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    count = tl.zeros([BLOCK], tl.float32)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    smallest = tl.full([BLOCK], float("inf"), tl.float32)
    for begin in range(0, groups, 32):
        group = begin + tl.arange(0, 32)
        inside = (group < groups)[:, None] & known[None, :]
        left = partial + (group * 5 * CELLS)[:, None] + cell[None, :]
        total += tl.sum(tl.load(left, mask=inside, other=0).to(tl.float64), 0)
        squares += tl.sum(tl.load(left + CELLS, mask=inside, other=0).to(tl.float64), 0)
        count += tl.sum(tl.load(left + 2 * CELLS, mask=inside, other=0), 0)
        largest = tl.maximum(largest, tl.max(tl.load(left + 3 * CELLS, mask=inside, other=float("-inf")), 0))
        smallest = tl.minimum(smallest, tl.min(tl.load(left + 4 * CELLS, mask=inside, other=float("inf")), 0))
    mine = base + cell
    _add_exactly(sums + mine.to(tl.int64) * 4, total, known)
    _add_exactly(sums + mine.to(tl.int64) * 4 + 2, squares, known)
    tl.store(active + mine, tl.load(active + mine, mask=known, other=0) + count.to(tl.int64), mask=known)
    ends = extremes + mine * 2
    # adding 0 makes a −0 a 0
    tl.store(ends, tl.maximum(tl.load(ends, mask=known, other=0), largest) + 0.0, mask=known)
    tl.store(ends + 1, tl.minimum(tl.load(ends + 1, mask=known, other=0), smallest) + 0.0, mask=known)
    infinite = (tl.abs(total) > 3.4e38) | (total != total)  # only coefficients that are not finite sum up to this
    tl.store(bad + site + cell * 0, 1, mask=known & infinite)


@triton.jit(do_not_specialize=["site", "rows", "columns", "entries", "groups", "unit_count", "steps"])
def settle(
    x,
    tokens,
    table,
    keys,
    thresholds,
    counts,
    pending,
    partial,
    sums,
    active,
    extremes,
    bad,
    units,
    base,
    site,
    rows,
    columns,
    entries,
    groups,
    unit_count,
    steps,
    CELLS: tl.constexpr,
    SIDE: tl.constexpr,
    TOP: tl.constexpr,
    KIND: tl.constexpr,
    SIDES: tl.constexpr,
    PREFIX: tl.constexpr,
    ROUTED: tl.constexpr,
    GROUPED: tl.constexpr,
    WIDTH: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Put what `filter_rows` left into the index. Each of the first SIDES · CELLS programs has one list, each of the others the
    statistics of BLOCK cells. Arguments as in `filter_rows`; `entries` is how many rows of coefficients there are in all."""
    program = tl.program_id(0)
    if program >= SIDES * CELLS:
        _settle_statistics(
            program - SIDES * CELLS, partial, sums, active, extremes, bad, base, site, groups, CELLS, BLOCK
        )
    else:
        count = tl.load(counts + program)
        if count > 0:
            tl.store(counts + program, 0)
            side = program // CELLS
            cell = program % CELLS
            flip = side * LOWEST
            slot = tl.arange(0, WIDTH)
            mine = side * SIDE + base + cell
            own = keys + mine.to(tl.int64) * TOP
            best = tl.load(own + slot, mask=slot < TOP, other=EMPTY)
            new = tl.load(pending + program.to(tl.int64) * WIDTH + slot, mask=slot < count, other=EMPTY)
            end = 1
            if count > WIDTH:  # more survivors than slots: search all coefficients of the cell
                end = rows
                if PREFIX:
                    end = entries
            for begin in range(0, end, WIDTH):
                if count > WIDTH:
                    if PREFIX:
                        new = _prefixes(
                            x, tokens, table, begin, cell, flip, rows, columns, entries, CELLS, KIND, ROUTED, WIDTH
                        )
                    else:
                        new = _windows(
                            x, tokens, table, begin, cell, flip, rows, columns, CELLS, KIND, ROUTED, WIDTH, SPAN
                        )
                if tl.min(new) < _last(best, TOP):
                    best = _combine(best, new, units, unit_count, steps, GROUPED)
            tl.store(own + slot, best, mask=slot < TOP)
            # the threshold is the bits of the last key; those of an empty slot are 0, and a candidate's at least 1
            tl.store(thresholds + mine, tl.maximum(0x7FFFFFFF - (_last(best, TOP) >> 32).to(tl.int32), 1))


# The same in plain form


def filter_rows_plain(
    x: Tensor, table: npt.NDArray[np.int64], thresholds: npt.NDArray[np.int32], last: Keys, *, prefix: bool
) -> tuple[list[list[Keys]], npt.NDArray[np.float64]]:
    """What `filter_rows` finds in coefficients of every token: survivors [sides][cells] (sorted keys), and the five statistics
    per cell [5, cells].

    A survivor reaches its cell's threshold and sorts before the `last` key of its list, both [sides, cells].
    """
    values = x.float().numpy()
    begin, end, first = table
    column = np.arange(x.shape[1])
    new = (column >= begin[:, None]) & (column < end[:, None])
    tokens = first[:, None] + column
    every = values[new].astype(np.float64)
    statistics = np.stack([every.sum(0), (every**2).sum(0), (every > 0).sum(0), every.max(0), every.min(0)])
    found: list[list[Keys]] = []
    for side, threshold in enumerate(thresholds.view(np.float32)):
        signed = -values if side else values
        found.append([])
        for cell in range(x.shape[2]):
            column_values = signed[:, :, cell]
            keys = np.where(new & (column_values >= threshold[cell]), pack(np.abs(column_values), tokens), UNFILLED)
            keys = keys.ravel() if prefix else keys.min(1)
            found[-1].append(np.sort(keys[keys < last[side, cell]]))
    return found, statistics


def settle_plain(lists: Keys, survivors: list[Keys], unit_offsets: npt.NDArray[np.int64] | None = None) -> Keys:
    """What `settle` makes of lists [cells, top] and each cell's survivors."""
    top = lists.shape[1]
    settled = lists.copy()
    for cell, new in enumerate(survivors):
        row = np.concatenate([lists[cell], new])
        if unit_offsets is not None:
            groups: npt.NDArray[Any] = np.searchsorted(unit_offsets, row & 0xFFFFFFFF, side="right")
            row = one_per_group(row[None], groups[None])[0]
        settled[cell] = merge([row, np.full(top, UNFILLED)], top)
    return settled
