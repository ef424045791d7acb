"""Which keys' triggers end in a token, contain it, or are followed by it: the index by token.

Triggers as a sparse matrix [cells, tokens of the corpus], multiplied by "which tokens does a prefix end in, contain, precede"
[tokens of the corpus, tokens asked for], give the counts. It is done in blocks of cells, and per token only the best are kept, so
memory is bounded by a block and by the answer, whatever the number of cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ..common.once import Once
from ..store.run import Run, Side
from .ranking import NOTHING, PRIOR, Firing, Row

Relation = Literal["ends", "contains", "next"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
"""A trigger's last token is the term; its prefix contains it; the token after the trigger is the term."""
MOST = 100
"""Upper bound on the rows that are kept per token and relation."""
BLOCK = 1 << 21
"""Triggers that are counted together."""
DENSE = 0.02
"""A token that at least this share of the corpus's prefixes has the relation to is counted with a dense column: that is faster."""
BINS = 256
"""Bins of the score by which rows that cannot be among the best are left out before they are sorted."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class _Rows(NamedTuple):
    """Rows of several tokens; arrays of one length."""

    column: Ints
    """which of the tokens asked for"""
    place: Ints
    side: Ints
    hits: Ints
    of: Ints
    score: Floats
    strength: Floats
    """the largest |coefficient| of that side, per root mean square of the cell's coefficients"""

    def best(self) -> _Rows:
        """At most `MOST` rows per token, the best first: by score, then by strength."""
        order = np.lexsort((-self.side, self.place, -self.strength, -self.score, self.column))
        column = self.column[order]
        first = np.searchsorted(column, column)  # where the rows of its token begin
        return _taken(self, order[np.arange(len(order)) - first < MOST])


class _Block(NamedTuple):
    """The triggers of one side of a block of cells."""

    first: int
    """the place of the first cell"""
    side: int
    triggers: Any
    """a sparse matrix [cells, tokens of the corpus] with 1 where a trigger ends"""
    strength: Floats
    """per cell: its largest |coefficient| on that side, per root mean square of its coefficients"""


class Relations:
    """The relations between the tokens and the triggers of one run."""

    def __init__(self, run: Run, only: npt.NDArray[np.bool_] | None = None) -> None:
        self.run, self._once = run, Once()
        self.only = only
        """[cells] which are listed and counted; how often a token is expected follows from all triggers of the run. None: all"""

    @property
    def triggers(self) -> int:
        """How many triggers the run has, of all cells and both sides."""
        return int(self._ending.sum())

    def of(self, relation: Relation, tokens: npt.NDArray[Any] | range) -> dict[int, Firing]:
        """Per token, the keys whose triggers have the relation to it. Tokens without any are left out."""
        asked = np.unique(np.asarray(tokens, np.int64))
        columns = self._columns(relation, asked)
        totals = np.asarray(columns.T @ self._ending).ravel().astype(np.int64)
        base = totals / max(self.triggers, 1)
        cells, found = np.zeros(len(asked), np.int64), list[_Rows]()
        for blocks in self._blocks():
            counts = [self._counted(block, columns) for block in blocks]
            cells += _distinct(counts, (blocks[0].triggers.shape[0], len(asked)))
            for block, (cell, column, hits) in zip(blocks, counts, strict=True):
                found.append(_rows(block, cell, column, hits, base))
            if sum(len(each.column) for each in found) > BLOCK:
                found = [_joined(found).best()]
        if not found:
            return {}
        best = _joined(found).best()
        return {
            token: Firing(int(cells[i]), int(totals[i]), _listed(best, i))
            for i, token in enumerate(asked.tolist())
            if totals[i] and cells[i]
        }

    def _counted(self, block: _Block, columns: Any) -> tuple[Ints, Ints, Ints]:
        cell, column, hits = _counted(block.triggers, columns)
        if self.only is None:
            return cell, column, hits
        kept = self.only[block.first + cell]
        return cell[kept], column[kept], hits[kept]

    def one(self, relation: Relation, token: int) -> Firing:
        return self.of(relation, np.array([token])).get(token, NOTHING)

    # The corpus

    @property
    def _tokens(self) -> npt.NDArray[Any]:
        return self._once.get("tokens", lambda: np.asarray(self.run.tokens))

    @property
    def _begins(self) -> npt.NDArray[np.bool_]:
        """[tokens of the corpus] whether a unit begins there."""

        def make() -> npt.NDArray[np.bool_]:
            begins = np.zeros(len(self._tokens) + 1, bool)
            begins[np.asarray(self.run.unit_offsets)] = True
            return begins[:-1]

        return self._once.get("begins", make)

    @property
    def _ending(self) -> Ints:
        """[tokens of the corpus] how many triggers end there."""

        def make() -> Ints:
            ending = np.zeros(len(self._tokens), np.int64)
            for first, last in self._bounds():
                for side in self.run.sides.values():
                    ending += np.bincount(self._ends(side.part(slice(first, last)))[1], minlength=len(ending))
            return ending

        return self._once.get("ending", make)

    @property
    def _firsts(self) -> tuple[Ints, Ints]:
        """Where each token first occurs in each window, and where those windows end."""

        def make() -> tuple[Ints, Ints]:
            tokens, begins = self._tokens, self._begins
            place = np.arange(len(tokens))
            unit = np.maximum.accumulate(np.where(begins, place, 0))
            opens = begins | (self.run.window_start(place - unit) == place - unit)
            window = np.cumsum(opens) - 1
            ends = np.append(np.flatnonzero(opens)[1:], len(tokens))
            order = np.lexsort((place, tokens, window))
            same = (window[order][1:] == window[order][:-1]) & (tokens[order][1:] == tokens[order][:-1])
            firsts = order[np.append(True, ~same)] if len(order) else order
            return firsts, ends[window[firsts]]

        return self._once.get("firsts", make)

    def _columns(self, relation: Relation, asked: Ints) -> Any:
        """[tokens of the corpus, tokens asked for] 1 where the prefix that ends there has the relation to the token."""
        from scipy import sparse

        if relation == "contains":
            firsts, ends = self._firsts
        else:
            firsts = np.arange(len(self._tokens)) if relation == "ends" else np.flatnonzero(~self._begins)
            ends = firsts + 1
        named = self._tokens[firsts]
        at = np.minimum(np.searchsorted(asked, named), len(asked) - 1)
        known = asked[at] == named
        firsts, at, lengths = firsts[known], at[known], (ends - firsts)[known]
        rows = np.repeat(firsts, lengths) + (
            np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        )
        rows -= relation == "next"
        ones = np.ones(len(rows), np.float32)
        return sparse.csr_matrix((ones, (rows, np.repeat(at, lengths))), (len(self._tokens), len(asked)))

    # The triggers

    def _bounds(self) -> Iterator[tuple[int, int]]:
        step = max(1, BLOCK // max(self.run.top, 1))
        for first in range(0, len(self.run.cells), step):
            yield first, min(first + step, len(self.run.cells))

    def _ends(self, side: Side) -> tuple[Ints, Ints]:
        """Of a block's triggers: how many each cell has, and the places in the corpus where they end."""
        filled = side.units >= 0
        units, positions = side.units[filled], side.positions[filled]
        self.run.check_places(units, positions)
        return filled.sum(1), np.asarray(self.run.unit_offsets, np.int64)[units] + positions

    def _blocks(self) -> Iterator[list[_Block]]:
        """Blocks of cells, both sides of each."""
        from scipy import sparse

        rms = np.asarray(self.run.stats.rms, np.float64)
        scale = np.where(rms > 0, rms, 1.0)
        for first, last in self._bounds():
            blocks = []
            for negative, each in self.run.sides.items():
                side = each.part(slice(first, last))
                counts, ends = self._ends(side)
                strength = np.nan_to_num(np.abs(side.coefficients[:, 0]) / scale[first:last])
                starts = np.concatenate([[0], np.cumsum(counts)])
                shape = (last - first, len(self._tokens))
                triggers = sparse.csr_matrix((np.ones(len(ends), np.float32), ends, starts), shape)
                blocks.append(_Block(first, -1 if negative else 1, triggers, strength))
            yield blocks


def _counted(triggers: Any, columns: Any) -> tuple[Ints, Ints, Ints]:
    """How many triggers of each cell have the relation to each token: cells, columns and counts of those that have any."""
    share = np.bincount(columns.indices, minlength=columns.shape[1]) / max(columns.shape[0], 1)
    many = np.flatnonzero(share >= DENSE)
    few = np.flatnonzero(share < DENSE)
    sparse = (triggers @ columns[:, few]).tocoo()
    dense = triggers @ columns[:, many].toarray()
    cell, column = np.nonzero(dense)
    return (
        np.concatenate([sparse.row, cell]).astype(np.int64),
        np.concatenate([few[sparse.col], many[column]]),
        np.concatenate([sparse.data, dense[cell, column]]).astype(np.int64),
    )


def _distinct(counts: list[tuple[Ints, Ints, Ints]], shape: tuple[int, int]) -> Ints:
    """Per column, how many cells have the relation to its token; a cell counts once, whichever side has it."""
    has = np.zeros(shape, bool)
    for cell, column, _ in counts:
        has[cell, column] = True
    found: Ints = has.sum(0)
    return found


def _rows(block: _Block, cell: Ints, column: Ints, hits: Ints, base: Floats) -> _Rows:
    """The rows of a block that may be among the best of their token."""
    of = np.diff(block.triggers.indptr)[cell]
    score = (hits + PRIOR * base[column]) / (of + PRIOR)
    bins = column * BINS + (np.minimum(score, 1) * (BINS - 1)).astype(np.int64)
    filled = np.bincount(bins, minlength=len(base) * BINS).reshape(-1, BINS)
    better = filled[:, ::-1].cumsum(1)[:, ::-1] - filled  # rows in better bins
    kept = np.flatnonzero(better.ravel()[bins] < MOST)
    cell, column, hits = cell[kept], column[kept], hits[kept]
    side = np.full(len(cell), block.side)
    return _Rows(column, cell + block.first, side, hits, of[kept], score[kept], block.strength[cell])


def _joined(rows: list[_Rows]) -> _Rows:
    arrays: list[Any] = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
    return _Rows(*arrays)


def _taken(rows: _Rows, which: Ints) -> _Rows:
    arrays: list[Any] = [each[which] for each in rows]
    return _Rows(*arrays)


def _listed(rows: _Rows, column: int) -> list[Row]:
    """The rows of one token. They are sorted by token."""
    part = slice(*np.searchsorted(rows.column, [column, column + 1]).tolist())
    columns = (each.tolist() for each in (rows.place[part], (rows.hits * rows.side)[part], rows.of[part]))
    return [Row(*row) for row in zip(*columns, strict=True)]
