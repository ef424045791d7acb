"""What `keyhole sql` can read beside the tables: `cells`, one row per cell, and `triggers`, one row per trigger of a cell.

Neither is stored: DuckDB calls Python for the values that a query needs (`store/relations.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..store.relations import PREFIX, Function, Relation, Relations
from ..store.run import Run
from ..store.tables import Column, Schema
from .columns import COLUMNS, CellColumns, every

CELLS = Schema("cells", {each.name: Column(each.type, each.means) for each in every()})
TRIGGERS = Schema(
    "triggers",
    {
        "address": Column("VARCHAR", "the cell's address, as in L12.345"),
        "place": Column("BIGINT", "the cell's row in the run's arrays, from 0"),
        "layer": Column("BIGINT", "the layer, from 0; counted through both stacks"),
        "cell": Column("BIGINT", "the cell's number in the layer, from 0"),
        "side": Column("BIGINT", "1: its triggers, in the cell's orientation; −1: those of the other side"),
        "rank": Column("BIGINT", "1 is the strongest trigger of the side"),
        "coefficient": Column("DOUBLE", "the coefficient m at the end of the prefix, in the cell's orientation"),
        "unit": Column("BIGINT", "the number of its unit in the corpus, from 0"),
        "position": Column("BIGINT", "the index of the prefix's last token in the unit, from 0"),
        "document": Column("BIGINT", "the number of the unit's document, from 0"),
        "start": Column("BIGINT", "the character at which the unit starts in its document"),
        "count": Column("BIGINT", "how often this prefix occurs in the corpus"),
        "prefix": Column("VARCHAR", "the prefix as text: what the model read, up to the last token"),
        "last_token": Column("VARCHAR", "the last token of the prefix"),
        "next_token": Column("VARCHAR", "the token that follows in the corpus; NULL at the end of a unit"),
    },
)
KEPT, KEPT_TOKENS = 1 << 18, 1 << 24
"""Upper bounds on the prefixes whose text is kept, and, by the mean length of units, on their tokens."""
SCHEMAS = {each.name: each for each in (CELLS, TRIGGERS)}


def of(run: Run) -> Relations:
    """The relations of a run."""
    return {"cells": _cells(run), "triggers": _triggers(run)}


def _cells(run: Run) -> Relation:
    table = CellColumns(run)
    own = {column.name for column in COLUMNS}
    absent = {name for name in table.columns if name in own and not table.has(name)}
    functions = [
        Function(f"{PREFIX}cell_{name}", 1, column.type, _later(table, name))
        for name, column in table.columns.items()
        if name != "place" and name not in absent
    ]
    spelled = [
        '"place"'
        if name == "place"
        else f'{f"NULL::{column.type}" if name in absent else f"{PREFIX}cell_{name}(place)"} AS "{name}"'
        for name, column in table.columns.items()
    ]
    return Relation(CELLS, functions, f"SELECT {', '.join(spelled)} FROM {_axis(run)}")


def _later(table: CellColumns, name: str) -> Callable[[int], Any]:
    """`CellColumns.one`, asked for when the first value is: only then are the column's files opened."""
    made: list[Callable[[int], Any]] = []

    def value(place: int) -> Any:
        if not made:
            made.append(table.one(name))
        return made[0](place)

    return value


def _axis(run: Run) -> str:
    return f"(SELECT range AS place FROM range({len(run.cells)}))"


class _Text:
    """The text of triggers, one by one. Cells share prefixes, so what is slow to make is kept."""

    def __init__(self, run: Run) -> None:
        self.run, self._tokens, self._offsets = run, run.tokens, np.asarray(run.unit_offsets)
        length = len(self._tokens) // max(len(self._offsets) - 1, 1)
        kept = min(KEPT, KEPT_TOKENS // max(min(length, run.room), 1))
        self.prefix, self.count = lru_cache(kept)(self._prefix), lru_cache(KEPT)(self._count)

    def _bounds(self, unit: int, position: int) -> tuple[int, int]:
        """Where the unit begins and ends in the tokens of the corpus."""
        if not 0 <= unit < len(self._offsets) - 1:
            self.run.check_places(np.array([unit]), np.array([position]))  # says what is wrong
        begin, end = self._offsets.item(unit), self._offsets.item(unit + 1)
        if not 0 <= position < end - begin:
            self.run.check_places(np.array([unit]), np.array([position]))
        return begin, end

    def last(self, unit: int, position: int) -> str:
        begin, _ = self._bounds(unit, position)
        return self.run.vocabulary.piece(self._tokens[begin + position])

    def next(self, unit: int, position: int) -> str | None:
        begin, end = self._bounds(unit, position)
        return self.run.vocabulary.piece(self._tokens[begin + position + 1]) if begin + position + 1 < end else None

    def _prefix(self, unit: int, position: int) -> str:
        begin, _ = self._bounds(unit, position)
        ids = self._tokens[begin + self.run.window_start(position) : begin + position + 1]
        return self.run.vocabulary.text(ids.tolist())

    def _count(self, unit: int, position: int) -> int:
        self._bounds(unit, position)
        return int(self.run.counts(np.array([unit]), np.array([position]))[0])


def _triggers(run: Run) -> Relation:
    """The cells come first, then the triggers of each as lists that are unnested: a condition on the cell is decided before any
    trigger is read."""
    text = _Text(run)

    def listed(name: str) -> Callable[[int, int], list[Any]]:
        def values(place: int, side: int) -> list[Any]:
            there = sides[side < 0]
            filled = int(np.count_nonzero(there.units[place] >= 0))
            return getattr(there, name)[place, :filled].tolist()  # type: ignore[no-any-return]

        return values

    sides = {negative: run.side(negative) for negative in (False, True)}
    functions = [
        Function(f"{PREFIX}address", 1, "VARCHAR", run.cells.address),
        Function(f"{PREFIX}layer", 1, "BIGINT", lambda place: run.cells.split(place)[0]),
        Function(f"{PREFIX}number", 1, "BIGINT", lambda place: run.cells.split(place)[1]),
        Function(f"{PREFIX}coefficients", 2, "DOUBLE[]", listed("coefficients")),
        Function(f"{PREFIX}units", 2, "BIGINT[]", listed("units")),
        Function(f"{PREFIX}positions", 2, "BIGINT[]", listed("positions")),
        Function(f"{PREFIX}document", 1, "BIGINT", lambda unit: run.unit_source(unit)[0]),
        Function(f"{PREFIX}start", 1, "BIGINT", lambda unit: run.unit_source(unit)[1]),
        Function(f"{PREFIX}count", 2, "BIGINT", text.count),
        Function(f"{PREFIX}prefix", 2, "VARCHAR", text.prefix),
        Function(f"{PREFIX}last", 2, "VARCHAR", text.last),
        Function(f"{PREFIX}next", 2, "VARCHAR", text.next),
    ]
    sql = f"""
        SELECT address, place, layer, cell, side, rank, coefficient, unit, position,
            {PREFIX}document(unit) AS document, {PREFIX}start(unit) AS start, {PREFIX}count(unit, position) AS count,
            {PREFIX}prefix(unit, position) AS prefix, {PREFIX}last(unit, position) AS last_token,
            {PREFIX}next(unit, position) AS next_token
        FROM (
            SELECT address, place, layer, cell, side, generate_subscripts(units, 1) AS rank,
                unnest({PREFIX}coefficients(place, side)) AS coefficient, unnest(units) AS unit,
                unnest({PREFIX}positions(place, side)) AS position
            FROM (
                SELECT *, {PREFIX}units(place, side) AS units
                FROM (
                    SELECT place, {PREFIX}address(place) AS address, {PREFIX}layer(place) AS layer,
                        {PREFIX}number(place) AS cell
                    FROM {_axis(run)}
                ), (VALUES (1::BIGINT), (-1::BIGINT)) AS sides(side)
            )
        )"""
    return Relation(TRIGGERS, functions, sql)
