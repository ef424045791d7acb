"""The tables of a run: what the analyses found, in one DuckDB file that any SQL can ask.

The database describes itself. `definitions` lists every table that `analyze` can fill, with its columns, their types and what
they mean; `facts` holds what an analysis knows of a whole table, one JSON value per key. Which tables there are is decided by
the analyses: this file is given their schemas, and knows none.

A database may come from anyone. Every table is therefore compared with its schema before it is read: with the schema that the
caller passes, or else with the database's own definitions.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from ..common.files import copy_file, create, sync
from ..errors import RunDamaged, RunError, UsageError
from . import layout

if TYPE_CHECKING:
    from .relations import Relations

Row = dict[str, Any]
Fact = str | int | float | None
TYPES = ("INTEGER", "BIGINT", "DOUBLE", "VARCHAR")
"""What a column or a fact can hold, in DuckDB's words."""


@dataclass(frozen=True)
class Column:
    """A column of a table, or a fact about it: its DuckDB type, and what it means."""

    type: str
    means: str


@dataclass(frozen=True)
class Schema:
    """A table: its columns in order, and the facts that are stored with it."""

    name: str
    columns: Mapping[str, Column]
    facts: Mapping[str, Column] = field(default_factory=dict)

    @property
    def types(self) -> dict[str, str]:
        return {name: column.type for name, column in self.columns.items()}


Schemas = Mapping[str, Schema]

OWN: dict[str, dict[str, str]] = {
    "definitions": dict.fromkeys(("table_name", "column_name", "type", "definition"), "VARCHAR"),
    "facts": dict.fromkeys(("table_name", "key", "value"), "VARCHAR"),
}
"""The tables of the database that describe the others."""
MOST_ROWS, MOST_DESCRIBED, LARGEST = 1_000_000, 10_000, 1 << 53
"""Bounds that no database written by `analyze` reaches: the rows of a table, the rows that describe tables, a whole number."""
ROWS_AT_ONCE = 10_000
"""Rows that one statement inserts."""
AGAIN = "Remove tables.duckdb from the run, and analyze it again."
CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "memory_limit": "2GB",
    "lock_configuration": "true",
}
"""A database may hold views that read files. With these settings none of them can, and no query can change the settings."""
APART = {
    name: value for name, value in CONFINED.items() if name not in ("enable_external_access", "lock_configuration")
}
"""The settings to begin with if a database is attached and a file may be written; then the others follow."""
STORED = "tables"
"""What DuckDB calls the run's database in a connection: the name of its file."""


# Opening


@contextmanager
def connect(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The run's database, to be read. `path` is the run directory."""
    if not layout.has_tables(path):
        raise no_tables(path)
    with _open(layout.tables_file(path), read_only=True) as connection:
        yield connection


def no_tables(path: Path) -> RunError:
    return RunError(f"{path} has no tables yet. Fill them: keyhole analyze {path}")


@contextmanager
def _open(file: Path, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that can reach nothing but its own file, whatever is stored in it or asked of it."""
    _refuse_journal(file)
    with _failing_at(file):
        connection = duckdb.connect(str(file), read_only=read_only, config=CONFINED)
        try:
            yield connection
        finally:
            with suppress(duckdb.Error):  # the disk may be full or gone; what was written is checked by its reader
                connection.close()


def _refuse_journal(file: Path) -> None:
    journal = file.with_name(file.name + ".wal")
    if journal.exists():
        raise RunError(
            f"{file} is being changed by another program, or one left it unfinished: there is a {journal.name}. Close that "
            "program, or remove the journal, and try again."
        )


@contextmanager
def _failing_at(file: Path) -> Iterator[None]:
    """What DuckDB reports of a database, as an error of ours."""
    try:
        yield
    except (duckdb.Error, RuntimeError) as error:  # RuntimeError: a path that is not UTF-8
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error), str(file)) from None
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> RunError:
    reason = str(error).splitlines()[0]
    if re.search(r"\block\b", reason, re.IGNORECASE):
        return RunError(f"{file} is open in another program, which must close it first. ({reason})")
    return RunDamaged(f"{file} cannot be used as a database: {reason} Fill it again: keyhole analyze {file.parent}")


# Writing


def write_table(
    path: Path, name: str, rows: Sequence[Row], facts: Mapping[str, Fact] | None = None, *, schemas: Schemas
) -> None:
    """Replace a table and its facts, whole or not at all: a copy of the database is changed, flushed and put in its place.

    `schemas` are those of every table that can be filled, `name` among them.
    """
    file = layout.tables_file(path)
    beside = file.with_name(file.name + ".new")
    with layout.writing_analyses(path):
        _remove(beside)
        try:
            if layout.has_tables(path):
                with _open(file, read_only=True):  # refuses a file that another program is changing
                    copy_file(file, beside)
            else:
                create(beside).close()
                beside.unlink()  # this only showed that the folder can be written; DuckDB makes the file
            with _open(beside, read_only=False) as db:
                _fill(db, schemas, name, rows, facts or {})
                db.execute("CHECKPOINT")
            with beside.open("r+b") as written:
                sync(written)
            if beside.with_name(beside.name + ".wal").exists():
                raise OSError(errno.EIO, "the database could not be written to its end", str(beside))
            layout.replace_listed(path, "tables", file.name, beside)
        finally:
            _remove(beside)


def _remove(beside: Path) -> None:
    for name in (beside.name, beside.name + ".wal"):
        beside.with_name(name).unlink(missing_ok=True)


def _fill(
    db: duckdb.DuckDBPyConnection, schemas: Schemas, name: str, rows: Sequence[Row], facts: Mapping[str, Fact]
) -> None:
    schema = schemas[name]
    if facts and set(facts) != set(schema.facts):
        raise ValueError(f"The facts of '{name}' are {sorted(facts)}, and its record declares {sorted(schema.facts)}.")
    for row in rows:
        if set(row) != set(schema.columns):
            raise ValueError(f"A row of '{name}' has {sorted(row)}, and its record declares {sorted(schema.columns)}.")
    _check(
        db, {other: each for other, each in schemas.items() if other != name}
    )  # its own is replaced, whatever it was
    if _kinds(db).get(name, "BASE TABLE") != "BASE TABLE":
        raise _no_table(name, _kinds(db)[name])
    db.execute("BEGIN")
    _create(db, name, schema.types, rows)
    _create(
        db,
        "definitions",
        OWN["definitions"],
        [
            dict(zip(OWN["definitions"], (each.name, column, about.type, about.means), strict=True))
            for each in schemas.values()
            for column, about in each.columns.items()
        ],
    )
    if "facts" not in _kinds(db):
        _create(db, "facts", OWN["facts"], [])
    db.execute("DELETE FROM facts WHERE table_name = ?", [name])
    for key, value in facts.items():
        value = _plain(value)
        finite = None if isinstance(value, float) and not math.isfinite(value) else value
        db.execute("INSERT INTO facts VALUES (?, ?, ?)", [name, key, json.dumps(finite, ensure_ascii=False)])
    db.execute("COMMIT")


def _create(db: duckdb.DuckDBPyConnection, name: str, types: Mapping[str, str], rows: Sequence[Row]) -> None:
    spelled = ", ".join(f'"{column}" {kind}' for column, kind in types.items())
    db.execute(f'CREATE OR REPLACE TABLE "{name}" ({spelled})')
    lists = ", ".join(f"unnest(?::{kind}[])" for kind in types.values())  # one statement per row is far slower
    for at in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[at : at + ROWS_AT_ONCE]
        db.execute(f'INSERT INTO "{name}" SELECT {lists}', [[_plain(row[column]) for row in part] for column in types])


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, which is what DuckDB takes."""
    return value.item() if isinstance(value, np.generic) else value


# Reading


def read_table(path: Path, name: str, schemas: Schemas | None = None) -> list[Row]:
    """A table's rows, in the order they were written. Without `schemas` the database's own definitions count."""
    with connect(path) as db:
        schemas = schemas or _definitions(db)
        if name not in schemas:
            raise unknown(name, schemas)
        if name not in filled(db, schemas):
            raise RunError(f"The table '{name}' is not filled yet. Fill it: keyhole analyze {path} --only {name}")
        if (count := _count(db, name)) > MOST_ROWS:
            raise RunDamaged(f"The table '{name}' has {count:,} rows, more than any analysis writes. {AGAIN}")
        rows = _rows(db.execute(f'SELECT * FROM "{name}" ORDER BY rowid'))
    if any(type(value) is int and abs(value) > LARGEST for row in rows for value in row.values()):
        raise RunDamaged(f"The table '{name}' holds a number that no analysis writes. {AGAIN}")
    texts = [column for column, kind in schemas[name].types.items() if kind == "VARCHAR"]
    if any(row[column] is None for row in rows for column in texts):
        raise RunDamaged(f"The table '{name}' of the run's database lacks a text that `analyze` writes. {AGAIN}")
    return rows


def unknown(name: str, names: Iterable[str]) -> UsageError:
    return UsageError(f"There is no table '{name}'. The tables are: {', '.join(names)}.")


def read_facts(path: Path, schema: Schema) -> dict[str, Fact]:
    """What is known of a whole table, by key: every fact of its schema, or none if none was stored."""
    with connect(path) as db:
        _check(db, {})
        if "facts" not in _kinds(db):
            return {}
        _bounded(db, "facts")
        stored = db.execute("SELECT key, value FROM facts WHERE table_name = ?", [schema.name]).fetchall()
    if not stored:
        return {}
    try:
        found = {str(key): json.loads(value) for key, value in stored}
        right = len(stored) == len(found) and set(found) == set(schema.facts)
        right = right and all(_fits(value, schema.facts[key].type) for key, value in found.items())
    except (ValueError, TypeError, RecursionError):
        right = False
    if not right:
        raise RunDamaged(
            f"The facts about '{schema.name}' in the run's database are not what `analyze` writes. {AGAIN}"
        )
    return {key: found[key] for key in schema.facts}


def _fits(value: Any, kind: str) -> bool:
    if value is None:
        return kind != "VARCHAR"
    if kind == "DOUBLE":
        return type(value) in (int, float) and math.isfinite(value)
    if kind == "VARCHAR":
        return isinstance(value, str)
    return type(value) is int and abs(value) <= LARGEST


def filled(db: duckdb.DuckDBPyConnection, schemas: Schemas) -> set[str]:
    """Which of these tables there are. What has the name of one and is not one, or has other columns, is refused."""
    _check(db, schemas)
    return set(_kinds(db)) & set(schemas)


def _definitions(db: duckdb.DuckDBPyConnection) -> dict[str, Schema]:
    """The schemas that the database itself describes."""
    _check(db, {})
    if "definitions" not in _kinds(db):
        raise RunDamaged(f"The run's database does not say what its tables hold. {AGAIN}")
    _bounded(db, "definitions")
    columns: dict[str, dict[str, Column]] = {}
    for table, column, kind, means in db.execute("SELECT * FROM definitions ORDER BY rowid").fetchall():
        columns.setdefault(str(table), {})[str(column)] = Column(str(kind), str(means))
    return {name: Schema(name, each) for name, each in columns.items()}


def _bounded(db: duckdb.DuckDBPyConnection, name: str) -> None:
    if (count := _count(db, name)) > MOST_DESCRIBED:
        raise RunDamaged(f"The table '{name}' has {count:,} rows, more than any analysis writes. {AGAIN}")


def _count(db: duckdb.DuckDBPyConnection, name: str) -> int:
    found = db.execute(f'SELECT count(*) FROM "{name}"').fetchone()
    return int(found[0]) if found else 0


def _kinds(db: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """What there is in the database, by name: a base table, a view."""
    return dict(db.execute("SELECT table_name, table_type FROM information_schema.tables").fetchall())


def _check(db: duckdb.DuckDBPyConnection, schemas: Schemas) -> None:
    """Refuse what has the name of a table and is not one, or has other columns."""
    kinds = _kinds(db)
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in db.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY ordinal_position"
    ).fetchall():
        columns.setdefault(table, {})[column] = kind
    for name, expected in {**OWN, **{name: schema.types for name, schema in schemas.items()}}.items():
        if name not in kinds:
            continue
        if kinds[name] != "BASE TABLE":
            raise _no_table(name, kinds[name])
        if columns[name] != expected:
            raise RunDamaged(
                f"The table '{name}' of the run's database has other columns than `analyze` writes. {AGAIN}"
            )


def _no_table(name: str, kind: str) -> RunDamaged:
    return RunDamaged(f"The run's database has a {kind.lower()} called '{name}' where a table is expected. {AGAIN}")


# The user's own SQL


def query(path: Path, sql: str, relations: Relations | None = None) -> list[Row]:
    """The user's own SQL, over the run's tables and over relations that are computed, read-only."""
    return [row for part in stream(path, sql, relations) for row in part]


def stream(path: Path, sql: str, relations: Relations | None = None) -> Iterator[list[Row]]:
    """The rows of a query, part by part. The first part is there even if it is empty."""
    with asking(path, sql, relations or {}) as (db, failing):
        with failing():
            result = db.execute(sql)
            if result is None:  # nothing but white space and comments
                raise UsageError("The query asks for nothing. Write one that selects, as in: select * from agreement")
            columns = [column[0] for column in result.description or []]
            if twice := sorted({name for name in columns if columns.count(name) > 1}):
                raise UsageError(
                    f"The query has several columns of the name '{twice[0]}', and a row holds one. Name them with AS."
                )
        first = True
        while True:
            with failing():
                part = result.fetchmany(ROWS_AT_ONCE)
            if part or first:
                yield [dict(zip(columns, row, strict=True)) for row in part]
            first = False
            if len(part) < ROWS_AT_ONCE:
                return


def save_parquet(path: Path, sql: str, file: Path, relations: Relations | None = None) -> None:
    """Write the rows of a query into a Parquet file, which replaces what is there when it is complete."""
    from .relations import text

    beside = Path(os.path.abspath(file)).with_name(file.name + ".partial")
    try:
        create(beside).close()
        with asking(path, sql, relations or {}, writes=beside) as (db, failing), failing():
            selected = sql.strip().rstrip(";")
            db.execute(f"COPY ({selected}\n) TO {text(str(beside))} (FORMAT parquet, USE_TMP_FILE false)")
        with beside.open("r+b") as written:
            sync(written)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


Failing = Callable[[], AbstractContextManager[None]]


@contextmanager
def asking(
    path: Path, sql: str, relations: Relations, *, writes: Path | None = None
) -> Iterator[tuple[duckdb.DuckDBPyConnection, Failing]]:
    """The database with the relations that a query names, and a context that reports what goes wrong in the query. With `writes`,
    the query may write that one file."""
    from . import relations as computed

    problems: computed.Problems | None = None

    @contextmanager
    def failing() -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            if problems and problems.first:
                raise problems.first from None
            if "No space left" in str(error):
                raise OSError(errno.ENOSPC, str(error), str(writes or path)) from None
            said = str(error).strip().splitlines() or [type(error).__name__]
            some = [said[0], said[-1]] if "Traceback" in str(error) else said  # DuckDB wanted a Python module
            raise UsageError("The query failed: " + "\n".join(some)) from None

    stored = layout.has_tables(path)
    if not stored:
        with _apart(path, None) as db:
            only = bool(relations) and bool(computed.named(db, sql, [*relations, "definitions"]))
        if not only:
            raise no_tables(path)
    with _apart(path, writes) if writes or not stored else connect(path) as db:
        problems = computed.create(db, sql, relations, stored=STORED if stored else None)
        yield db, failing


@contextmanager
def _apart(path: Path, writes: Path | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory, with the run's own beside it if there is one. It can reach nothing else but the file `writes`."""
    from .relations import text

    file = layout.tables_file(path)
    with _failing_at(file), duckdb.connect(":memory:", config=APART) as db:
        if layout.has_tables(path):
            _refuse_journal(file)
            db.execute(f"ATTACH {text(str(file))} AS {STORED} (READ_ONLY)")
            db.execute(f"USE {STORED}")
        if writes:
            db.execute(f"SET allowed_paths = [{text(str(writes))}]")
        for name in ("enable_external_access", "lock_configuration"):
            db.execute(f"SET {name} = {CONFINED[name]}")
        yield db


def _rows(result: Any) -> list[Row]:
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
