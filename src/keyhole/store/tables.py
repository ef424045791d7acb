"""The tables of a run: what the analyses found, in one DuckDB file that any SQL can ask.

Names and columns are an interface. `notes` says what a table was measured on, where that is not plain.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from ..common.files import copy_file, create, sync
from ..errors import RunDamaged, RunError, UsageError
from . import layout as store

SCHEMAS: dict[str, dict[str, str]] = {
    "activity": {
        "layer": "INTEGER",
        "n": "BIGINT",
        "active_fraction": "DOUBLE",
        "lo": "DOUBLE",
        "hi": "DOUBLE",
        "dead": "BIGINT",
    },
    "mutation": {
        "layer": "INTEGER",
        "dropped": "VARCHAR",
        "n": "BIGINT",
        "mean_change": "DOUBLE",
        "lo": "DOUBLE",
        "hi": "DOUBLE",
    },
    "agreement": {
        "layer": "INTEGER",
        "target": "VARCHAR",
        "lens": "VARCHAR",
        "n": "BIGINT",
        "rate": "DOUBLE",
        "lo": "DOUBLE",
        "hi": "DOUBLE",
        "permuted": "DOUBLE",
        "unigram": "DOUBLE",
    },
    "rank": {
        "layer": "INTEGER",
        "lens": "VARCHAR",
        "n": "BIGINT",
        "p5": "DOUBLE",
        "p25": "DOUBLE",
        "median": "DOUBLE",
        "p75": "DOUBLE",
        "p95": "DOUBLE",
    },
    "confidence": {
        "bin": "INTEGER",
        "max_prob_lo": "DOUBLE",
        "max_prob_hi": "DOUBLE",
        "n": "BIGINT",
        "rate": "DOUBLE",
    },
    "confident": {
        "layer": "INTEGER",
        "cell": "INTEGER",
        "token": "VARCHAR",
        "max_prob": "DOUBLE",
        "share": "DOUBLE",
    },
    "composition": {
        "layer": "INTEGER",
        "n": "BIGINT",
        "active_fraction": "DOUBLE",
        "zero_agreement": "DOUBLE",
        "lo": "DOUBLE",
        "hi": "DOUBLE",
        "agreeing_stopword_share": "DOUBLE",
        "agreeing_short_share": "DOUBLE",
    },
    "refinement": {
        "layer": "INTEGER",
        "n": "BIGINT",
        "residual_match": "DOUBLE",
        "final_prob_p25": "DOUBLE",
        "final_prob_median": "DOUBLE",
        "final_prob_p75": "DOUBLE",
        "residual": "DOUBLE",
        "ffn": "DOUBLE",
        "agreement": "DOUBLE",
        "composition": "DOUBLE",
    },
    "cases": {
        "prefix": "VARCHAR",
        "top_r": "VARCHAR",
        "top_y": "VARCHAR",
        "top_o": "VARCHAR",
        "similarity": "DOUBLE",
    },
}
NOTES = {"table_name": "VARCHAR", "note": "VARCHAR"}
MOST_ROWS, LARGEST = 1_000_000, 1 << 53
"""More rows, and a larger whole number, than a table of ours ever has."""
AGAIN = "Remove tables.duckdb from the run, and analyze it again."
CONFINED: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
    "memory_limit": "2GB",
    "lock_configuration": "true",
}
"""A database may come from anyone, and hold views that read files: none of them can, and no query can change that."""


@contextmanager
def connect(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The run's database, to be read. `path` is the run directory."""
    if not store.has_tables(path):
        raise RunError(f"{path} has no tables yet. Fill them: keyhole analyze {path}")
    with _open(store.tables_file(path), read_only=True) as connection:
        yield connection


@contextmanager
def _open(file: Path, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that can reach nothing but its own file, whatever is stored in it or asked of it."""
    journal = file.with_name(file.name + ".wal")
    if journal.exists():
        raise RunError(
            f"{file} is being changed by another program, or one left it unfinished: there is a {journal.name}. Close that "
            "program, or remove the journal, and try again."
        )
    try:
        connection = duckdb.connect(str(file), read_only=read_only, config=CONFINED)
    except (duckdb.Error, RuntimeError) as error:  # RuntimeError: a path that is not UTF-8
        raise _unreadable(file, error) from None
    try:
        yield connection
    except (duckdb.Error, RuntimeError) as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error), str(file)) from None
        raise _unreadable(file, error) from None
    finally:
        with suppress(duckdb.Error):  # a disk that is full or gone; what was to be kept is checked by its reader
            connection.close()


def _unreadable(file: Path, error: Exception) -> RunError:
    reason = str(error).splitlines()[0]
    if re.search(r"\block\b", reason, re.IGNORECASE):
        return RunError(f"{file} is open in another program, which must close it first. ({reason})")
    return RunDamaged(f"{file} cannot be used as a database: {reason} Fill it again: keyhole analyze {file.parent}")


def write(path: Path, name: str, rows: Sequence[dict[str, Any]], *, note: str | None = None) -> None:
    """Replace a table, whole or not at all: the database is copied, changed beside, flushed and put in place."""
    file = store.tables_file(path)
    beside = file.with_name(file.name + ".new")
    with store.writing_analyses(path):
        _remove(beside)
        try:
            if store.has_tables(path):
                with _open(file, read_only=True):  # another program that changes it meanwhile is refused here
                    copy_file(file, beside)
            else:
                create(beside).close()
                beside.unlink()  # the folder can be written; DuckDB makes the file
            with _open(beside, read_only=False) as db:
                _fill(db, name, rows, note)
                db.execute("CHECKPOINT")
            with beside.open("r+b") as written:
                sync(written)
            if beside.with_name(beside.name + ".wal").exists():
                raise OSError(errno.EIO, "the database could not be written to its end", str(beside))
            store.replace_listed(path, "tables", file.name, beside)
        finally:
            _remove(beside)


def _remove(beside: Path) -> None:
    for name in (beside.name, beside.name + ".wal"):
        beside.with_name(name).unlink(missing_ok=True)


def _fill(db: duckdb.DuckDBPyConnection, name: str, rows: Sequence[dict[str, Any]], note: str | None) -> None:
    columns = SCHEMAS[name]
    spelled = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
    _check(db)
    db.execute("BEGIN")
    db.execute(f'CREATE OR REPLACE TABLE "{name}" ({spelled})')
    if rows:
        marks = ", ".join("?" * len(columns))
        db.executemany(f'INSERT INTO "{name}" VALUES ({marks})', [[row[c] for c in columns] for row in rows])
    db.execute("CREATE TABLE IF NOT EXISTS notes (table_name VARCHAR, note VARCHAR)")
    db.execute("DELETE FROM notes WHERE table_name = ?", [name])
    if note:
        db.execute("INSERT INTO notes VALUES (?, ?)", [name, note])
    db.execute("COMMIT")


def read(path: Path, name: str) -> list[dict[str, Any]]:
    """A table's rows, in the order they were written."""
    if name not in SCHEMAS:
        raise UsageError(f"There is no table '{name}'. The tables are: {', '.join(SCHEMAS)}.")
    with connect(path) as db:
        if name not in names(db):
            raise RunError(f"The table '{name}' is not filled yet. Fill it: keyhole analyze {path} --only {name}")
        if (count := _count(db, name)) > MOST_ROWS:
            raise RunDamaged(f"The table '{name}' has {count:,} rows, more than any analysis writes. {AGAIN}")
        rows = _rows(db.execute(f'SELECT * FROM "{name}" ORDER BY rowid'))
    if any(type(value) is int and abs(value) > LARGEST for row in rows for value in row.values()):
        raise RunDamaged(f"The table '{name}' holds a number that no analysis writes. {AGAIN}")
    texts = [column for column, kind in SCHEMAS[name].items() if kind == "VARCHAR"]
    if any(row[column] is None for row in rows for column in texts):
        raise RunDamaged(f"The table '{name}' of the run's database lacks a text that `analyze` writes. {AGAIN}")
    return rows


def _count(db: duckdb.DuckDBPyConnection, name: str) -> int:
    found = db.execute(f'SELECT count(*) FROM "{name}"').fetchone()
    return int(found[0]) if found else 0


def note(path: Path, name: str) -> str | None:
    """What a table was measured on, where its analysis had something to say."""
    with connect(path) as db:
        if "notes" not in names(db):
            return None
        found = db.execute("SELECT note FROM notes WHERE table_name = ?", [name]).fetchone()
    return str(found[0]) if found else None


def names(db: duckdb.DuckDBPyConnection) -> set[str]:
    """The tables there are. What has the name of one and is not one, or has other columns, is refused."""
    _check(db)
    return {row[0] for row in db.execute("SELECT table_name FROM information_schema.tables").fetchall()}


def _check(db: duckdb.DuckDBPyConnection) -> None:
    kinds = dict(db.execute("SELECT table_name, table_type FROM information_schema.tables").fetchall())
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in db.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY ordinal_position"
    ).fetchall():
        columns.setdefault(table, {})[column] = kind
    for name, expected in {**SCHEMAS, "notes": NOTES}.items():
        if name not in kinds:
            continue
        if kinds[name] != "BASE TABLE":
            raise RunDamaged(
                f"The run's database has a {kinds[name].lower()} called '{name}' where a table is expected. {AGAIN}"
            )
        if columns[name] != expected:
            raise RunDamaged(
                f"The table '{name}' of the run's database has other columns than `analyze` writes. {AGAIN}"
            )


def query(path: Path, sql: str) -> list[dict[str, Any]]:
    """The user's own SQL, over the run's tables, read-only."""
    with connect(path) as db:
        try:
            result = db.execute(sql)
            if result is None:  # nothing but white space and comments
                raise UsageError("The query asks for nothing. Write one that selects, as in: select * from agreement")
            columns = [column[0] for column in result.description or []]
            if twice := sorted({name for name in columns if columns.count(name) > 1}):
                raise UsageError(
                    f"The query has several columns of the name '{twice[0]}', and a row holds one. Name them with AS."
                )
            return _rows(result)
        except duckdb.Error as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            some = [said[0], said[-1]] if "Traceback" in str(error) else said  # of a Python module that DuckDB wants
            raise UsageError("The query failed: " + "\n".join(some)) from None


def _rows(result: Any) -> list[dict[str, Any]]:
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
