"""Relations that a query can read and that are not stored: they are computed from the run's arrays, as far as the query reads them.

A relation is a view over functions of Python. DuckDB calls a function only for the rows and columns that a query needs, so a
relation over millions of cells takes no memory, and asking it for one cell is fast. A view is made only if the query names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from ..errors import KeyholeError, RunDamaged
from .tables import AGAIN, OWN, Schema

PREFIX = "keyhole_"
"""The names of the functions begin so."""
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Function:
    """A function that SQL can call. It is given one or two whole numbers."""

    name: str
    arguments: int
    type: str
    """of what it returns; None is NULL"""
    call: Callable[..., Any]


@dataclass(frozen=True)
class Relation:
    """A view, with the functions that it calls."""

    schema: Schema
    functions: Sequence[Function]
    sql: str
    """what it selects, in the order of the schema's columns"""


Relations = Mapping[str, Relation]


class Problems:
    """What a function raised: DuckDB reports it as text, and the caller needs the error itself."""

    def __init__(self) -> None:
        self.first: KeyholeError | None = None

    def watched(self, function: Function) -> Callable[..., Any]:
        call = function.call

        def one(first: int) -> Any:
            try:
                return call(first)
            except KeyholeError as error:
                self.first = self.first or error
                raise

        def two(first: int, second: int) -> Any:
            try:
                return call(first, second)
            except KeyholeError as error:
                self.first = self.first or error
                raise

        return one if function.arguments == 1 else two  # DuckDB counts the arguments, so they are written out


def named(db: duckdb.DuckDBPyConnection, sql: str, names: Iterator[str] | Sequence[str]) -> list[str]:
    """Which of these a query may read: those it names as tables or, if it is more than one statement, as any word."""
    try:
        found = {each.lower() for each in db.get_table_names(sql)}
    except duckdb.Error:
        found = {word.lower() for word in _WORD.findall(sql)}
    return [name for name in names if name in found]


def create(db: duckdb.DuckDBPyConnection, sql: str, relations: Relations, *, stored: str | None) -> Problems:
    """Make the views that a query names. `stored` is the name of the run's database in the connection, None if it has none."""
    problems = Problems()
    wanted = named(db, sql, [*relations, "definitions"] if relations else [])
    if not wanted:
        return problems
    _refuse_taken(db, relations, stored)
    for name in wanted:
        if name == "definitions":
            db.execute(f"CREATE TEMP VIEW definitions AS {_definitions(db, relations, stored)}")
            continue
        relation = relations[name]
        for each in relation.functions:
            db.create_function(  # type: ignore[call-overload]
                each.name,
                problems.watched(each),
                ["BIGINT"] * each.arguments,
                each.type,
                null_handling="special",
            )
        db.execute(f'CREATE TEMP VIEW "{name}" AS {relation.sql}')
    return problems


def _refuse_taken(db: duckdb.DuckDBPyConnection, relations: Relations, stored: str | None) -> None:
    """A database may come from anyone: refuse one that has something of its own where a query would take it for ours."""
    if stored is None:
        return
    tables = db.execute("SELECT table_name FROM information_schema.tables WHERE table_catalog = ?", [stored]).fetchall()
    functions = db.execute(
        "SELECT function_name FROM duckdb_functions() WHERE database_name = ? AND starts_with(function_name, ?)",
        [stored, PREFIX],
    ).fetchall()
    for (name,) in [*(each for each in tables if each[0] in relations), *functions]:
        raise RunDamaged(f"The run's database has something called '{name}', which no analysis writes. {AGAIN}")


def _definitions(db: duckdb.DuckDBPyConnection, relations: Relations, stored: str | None) -> str:
    """The definitions of the stored tables and of the relations."""
    rows = [
        (name, column, about.type, about.means)
        for name, relation in relations.items()
        for column, about in relation.schema.columns.items()
    ]
    listed = ", ".join(f"({', '.join(map(text, row))})" for row in rows)
    ours = f"SELECT * FROM (VALUES {listed}) AS ours({', '.join(OWN['definitions'])})"
    has = "SELECT 1 FROM information_schema.tables WHERE table_catalog = ? AND table_name = 'definitions'"
    if stored is None or not db.execute(has, [stored]).fetchall():
        return ours
    return f'SELECT * FROM "{stored}".main.definitions UNION ALL {ours}'


def text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"
