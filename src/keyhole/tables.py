"""The tables of a run: what the analyses found, in one DuckDB file that any SQL can ask.

Names and columns are an interface. `notes` says what a table was measured on, where that is not plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from . import store
from .errors import RunError, UsageError

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


@contextmanager
def connect(path: Path, *, read_only: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    """The run's database. `path` is the run directory."""
    file = store.tables_file(path)
    if read_only and not file.exists():
        raise RunError(f"{path} has no tables yet. Fill them: keyhole analyze {path}")
    connection = duckdb.connect(str(file), read_only=read_only)
    try:
        yield connection
    finally:
        connection.close()


def write(path: Path, name: str, rows: Sequence[dict[str, Any]], *, note: str | None = None) -> None:
    """Replace a table, whole or not at all."""
    columns = SCHEMAS[name]
    spelled = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
    with connect(path, read_only=False) as db:
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
        return _rows(db.execute(f'SELECT * FROM "{name}" ORDER BY rowid'))


def note(path: Path, name: str) -> str | None:
    """What a table was measured on, where its analysis had something to say."""
    with connect(path) as db:
        if "notes" not in names(db):
            return None
        found = db.execute("SELECT note FROM notes WHERE table_name = ?", [name]).fetchone()
    return str(found[0]) if found else None


def names(db: duckdb.DuckDBPyConnection) -> set[str]:
    return {row[0] for row in db.execute("SELECT table_name FROM information_schema.tables").fetchall()}


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
            raise UsageError(f"The query failed: {error}") from None


def _rows(result: Any) -> list[dict[str, Any]]:
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
