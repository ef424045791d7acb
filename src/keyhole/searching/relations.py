"""Which keys' triggers end in a token, contain it, or are followed by it: the index by token.

Triggers as a sparse matrix [cells, prefixes that are triggers], multiplied by "which tokens does a prefix end in, contain, precede"
[prefixes that are triggers, tokens asked for], give the counts. It is done in blocks of cells and for some tokens at a time, and per
token only the best are kept: what is needed at once is bounded, whatever the number of cells and of tokens asked for. Besides that,
four bytes per token of the corpus are counted once.
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
ENTRIES = 1 << 23
"""Pairs of a token and a prefix with the relation that are counted together, unless a token alone has more."""
PIECE = 1 << 22
"""Tokens of the corpus that are looked at together."""
DENSE = 0.02
"""A token that at least this share of the prefixes has the relation to is counted with a dense column: that is faster."""
TOGETHER = 8
"""Dense columns at a time."""
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
    """a sparse matrix [cells, prefixes that are triggers] with 1 where a cell has a trigger"""
    strength: Floats
    """per cell: its largest |coefficient| on that side, per root mean square of its coefficients"""


class _Part(NamedTuple):
    """Some tokens, and the prefixes that have the relation to each."""

    tokens: Ints
    column: Ints
    """of each range of prefixes: the number of its token"""
    begin: Ints
    end: Ints

    def matrix(self, prefixes: int) -> Any:
        """[prefixes that are triggers, tokens] 1 where a prefix has the relation to a token."""
        from scipy import sparse

        lengths = self.end - self.begin
        rows = np.repeat(self.begin - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        ones = np.ones(len(rows), np.float32)
        return sparse.csr_matrix((ones, (rows, np.repeat(self.column, lengths))), (prefixes, len(self.tokens)))


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
        found: dict[int, Firing] = {}
        for part in self._spread(relation, asked):
            found |= self._of(part)
        return found

    def _of(self, part: _Part) -> dict[int, Firing]:
        """`of` for tokens that are counted together."""
        columns = part.matrix(len(self._where))
        totals = np.asarray(columns.T @ self._ending).ravel().astype(np.int64)
        base = totals / max(self.triggers, 1)
        cells, found = np.zeros(len(part.tokens), np.int64), list[_Rows]()
        for blocks in self._blocks():
            counts = [self._counted(block, columns) for block in blocks]
            cells += _distinct(counts, (blocks[0].triggers.shape[0], len(part.tokens)))
            for block, (cell, column, hits) in zip(blocks, counts, strict=True):
                found.append(_rows(block, cell, column, hits, base))
            if sum(len(each.column) for each in found) > BLOCK:
                found = [_joined(found).best()]
        if not found:
            return {}
        best = _joined(found).best()
        return {
            token: Firing(int(cells[i]), int(totals[i]), _listed(best, i))
            for i, token in enumerate(part.tokens.tolist())
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
    def _windows(self) -> Ints:
        """Where each window begins, and the end of the corpus: what the model read together."""

        def make() -> Ints:
            offsets, room = np.asarray(self.run.unit_offsets, np.int64), self.run.room
            pieces = -(-np.diff(offsets) // room)
            first = np.repeat(np.cumsum(pieces) - pieces, pieces)
            begins = np.repeat(offsets[:-1], pieces) + (np.arange(len(first)) - first) * room
            return np.append(begins, offsets[-1])

        return self._once.get("windows", make)

    @property
    def _ends_at(self) -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
        """The places of the corpus where triggers end, how many triggers end at each, and the number of each such place [tokens]."""

        def make() -> tuple[Ints, Ints, npt.NDArray[np.int32]]:
            ending = np.zeros(len(self._tokens), np.int32)
            for first, last in self._bounds():
                for side in self.run.sides.values():
                    np.add.at(ending, self._ends(side.part(slice(first, last)))[1], 1)
            where = np.flatnonzero(ending)
            counts = ending[where].astype(np.int64)
            ending[where] = np.arange(len(where), dtype=np.int32)
            return where, counts, ending

        return self._once.get("ending", make)

    @property
    def _where(self) -> Ints:
        return self._ends_at[0]

    @property
    def _ending(self) -> Ints:
        return self._ends_at[1]

    def _spread(self, relation: Relation, asked: Ints) -> Iterator[_Part]:
        """Which prefixes have the relation to each token, for some tokens at a time."""
        if not len(asked):
            return
        token, begin, end = self._containing(asked) if relation == "contains" else self._beside(relation, asked)
        order = np.argsort(token, kind="stable")
        token, begin, end = token[order], begin[order], end[order]
        bounds = np.searchsorted(token, np.append(asked, asked[-1] + 1))
        sizes = np.append(0, np.cumsum(end - begin))[bounds]
        at = 0
        while at < len(asked):
            to = max(at + 1, int(np.searchsorted(sizes, sizes[at] + ENTRIES, "right")) - 1)
            part = slice(int(bounds[at]), int(bounds[to]))
            yield _Part(asked[at:to], np.searchsorted(asked[at:to], token[part]), begin[part], end[part])
            at = to

    def _containing(self, asked: Ints) -> tuple[Ints, Ints, Ints]:
        """Tokens, and the triggers from where a window first has the token to the window's end."""
        tokens, windows = self._tokens, self._windows
        pieces = range(0, len(tokens), PIECE)
        place = np.concatenate([np.zeros(0, np.int64), *(at + _named(tokens[at : at + PIECE], asked) for at in pieces)])
        window = np.searchsorted(windows, place, "right") - 1
        token = np.asarray(tokens[place], np.int64)
        _, first = np.unique(window * (asked[-1] + 1) + token, return_index=True)
        begin, end = place[first], windows[window[first] + 1]
        return token[first], np.searchsorted(self._where, begin), np.searchsorted(self._where, end)

    def _beside(self, relation: Relation, asked: Ints) -> tuple[Ints, Ints, Ints]:
        """Tokens, and the trigger that ends in each, or that is followed by it."""
        at = self._where + (relation == "next")
        if relation == "next":  # the last prefix of a unit has no next token
            number = np.flatnonzero(~np.isin(at, np.asarray(self.run.unit_offsets, np.int64)))
        else:
            number = np.arange(len(at))
        token = np.asarray(self._tokens[at[number]], np.int64)
        kept = _named(token, asked)
        return token[kept], number[kept], number[kept] + 1

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
                shape = (last - first, len(self._where))
                triggers = sparse.csr_matrix((np.ones(len(ends), np.float32), self._ends_at[2][ends], starts), shape)
                blocks.append(_Block(first, -1 if negative else 1, triggers, strength))
            yield blocks


def _named(tokens: npt.NDArray[Any], asked: Ints) -> Ints:
    """Which of these tokens are asked for."""
    at = np.minimum(np.searchsorted(asked, tokens), len(asked) - 1)
    return np.flatnonzero(asked[at] == tokens)


def _counted(triggers: Any, columns: Any) -> tuple[Ints, Ints, Ints]:
    """How many triggers of each cell have the relation to each token: cells, columns and counts of those that have any."""
    share = np.bincount(columns.indices, minlength=columns.shape[1]) / max(columns.shape[0], 1)
    many = np.flatnonzero(share >= DENSE)
    few = np.flatnonzero(share < DENSE)
    sparse = (triggers @ columns[:, few]).tocoo()
    found = [(sparse.row, few[sparse.col], sparse.data)]
    for begin in range(0, len(many), TOGETHER):
        some = many[begin : begin + TOGETHER]
        dense = triggers @ columns[:, some].toarray()
        cell, column = np.nonzero(dense)
        found.append((cell, some[column], dense[cell, column]))
    cells, tokens, counts = (np.concatenate(each).astype(np.int64) for each in zip(*found, strict=True))
    return cells, tokens, counts


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
