"""A database that someone hands you, that another program holds, or that is no database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from families import tiny
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import registry
from keyhole.cli import app
from keyhole.errors import KeyholeError, RunDamaged, RunError, UsageError
from keyhole.store import layout, tables
from keyhole.views.report import write as report

OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}


@pytest.fixture
def run(text: Path, tmp_path: Path) -> keyhole.Run:
    made = keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", **OPTIONS)
    return keyhole.analyze(made, model=tiny("llama"), only=["activity", "agreement"])


def rebuild(run: keyhole.Run, *statements: str) -> None:
    """Change the database as its author can, and list it as whole."""
    file = layout.tables_file(run.path)
    with duckdb.connect(str(file)) as db:
        for statement in statements:
            db.execute(statement)
    layout.save_group(run.path, "tables", {}, [file.name])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text("the secret")
    return file


def test_a_view_in_the_place_of_a_table_reads_no_file(run: keyhole.Run, secret: Path) -> None:
    rebuild(run, "DROP TABLE agreement", f"CREATE VIEW agreement AS SELECT * FROM read_text('{secret}')")
    for read in (lambda: run.table("agreement"), lambda: report.data(run), lambda: report.write(run)):
        with pytest.raises(RunDamaged, match="has a view called 'agreement' where a table is expected"):
            read()
    with pytest.raises(UsageError, match="file system operations are disabled"):
        tables.query(run.path, "select * from agreement")
    with pytest.raises(RunDamaged):
        keyhole.analyze(run.path, model=tiny("llama"), only=["activity"])


def test_a_table_with_other_columns_is_refused(run: keyhole.Run) -> None:
    rebuild(run, "DROP TABLE activity", "CREATE TABLE activity (layer INTEGER, n VARCHAR)")
    with pytest.raises(RunDamaged, match="'activity' of the run's database has other columns"):
        run.table("activity")


@pytest.mark.parametrize(
    "query",
    [
        "COPY activity TO '{target}'",
        "EXPORT DATABASE '{target}'",
        "ATTACH '{target}' AS x",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('/*')",
        "CREATE TABLE x AS SELECT 1",
        "DELETE FROM activity",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "SELECT 1; COPY activity TO '{target}'",
    ],
)
def test_a_query_reaches_nothing_but_the_tables(run: keyhole.Run, tmp_path: Path, secret: Path, query: str) -> None:
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    with pytest.raises(UsageError, match="The query failed"):
        tables.query(run.path, query.format(target=tmp_path / "target", secret=secret))
    assert not (tmp_path / "target").exists()
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before


@pytest.mark.parametrize("query", ["", "  ", ";", "-- nothing"])
def test_a_query_that_asks_for_nothing(run: keyhole.Run, query: str) -> None:
    with pytest.raises(UsageError, match="query (asks for nothing|failed)"):
        tables.query(run.path, query)


def commands(run: keyhole.Run) -> list[list[str]]:
    path = str(run.path)
    return [["table", path, "activity"], ["sql", path, "select 1"], ["report", path], ["report", path, "--json"]]


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"\0" * 50_000])
def test_a_file_that_is_no_database(run: keyhole.Run, content: bytes) -> None:
    layout.tables_file(run.path).write_bytes(content)
    layout.save_group(run.path, "tables", {}, ["tables.duckdb"])
    for command in commands(run):
        done = CliRunner().invoke(app, command)
        assert isinstance(done.exception, RunDamaged), command
        assert "keyhole analyze" in str(done.exception)


def test_more_rows_than_any_analysis_writes(run: keyhole.Run) -> None:
    rebuild(run, "INSERT INTO activity (layer, n) SELECT 0, 0 FROM range(3000000)")
    with pytest.raises(RunDamaged, match="more than any analysis writes"):
        run.table("activity")
    rebuild(run, "DELETE FROM activity WHERE n = 0", "UPDATE activity SET dead = 9000000000000000000")
    with pytest.raises(RunDamaged, match="a number that no analysis writes"):
        run.table("activity")


def test_a_column_that_grows_when_it_is_read(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.CONFINED, "memory_limit", "20MB")  # of 2 GB
    grown = dict.fromkeys(("top_r", "top_y"), " AS (repeat(prefix, 10000000))") | {"top_o": " AS (prefix)"}
    columns = (f"{name} {about.type}{grown.get(name, '')}" for name, about in registry.get("cases").columns.items())
    rebuild(
        run,
        f"CREATE TABLE cases ({', '.join(columns)})",
        "INSERT INTO cases (prefix, similarity) VALUES ('xxxxxx', 0)",
    )
    with pytest.raises(RunDamaged, match="cannot be used as a database"):
        run.table("cases")


def test_a_path_that_is_no_text(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff")
    made = keyhole.scan(tiny("llama"), [text], out=folder, **OPTIONS)
    try:
        keyhole.analyze(made.path, model=tiny("llama"), only=["activity"])
    except RunError as error:
        assert "tables.duckdb" in str(error)  # noqa: PT017 - a DuckDB that takes such a path is welcome


def test_a_damaged_block_is_damage_and_no_lock(run: keyhole.Run) -> None:
    file = layout.tables_file(run.path)
    content = bytearray(file.read_bytes())
    for at in range(12_288, len(content), 4096):  # after the three headers
        content[at : at + 64] = b"\7" * len(content[at : at + 64])
    file.write_bytes(content)
    layout.save_group(run.path, "tables", {}, [file.name])
    with pytest.raises(RunDamaged, match="keyhole analyze|analyze it again"):
        run.table("activity")


def test_another_program_that_holds_the_database(run: keyhole.Run) -> None:
    code = (
        "import duckdb, sys\n"
        f"db = duckdb.connect({str(layout.tables_file(run.path))!r})\n"
        "print('held', flush=True); sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        for command in commands(run):
            done = CliRunner().invoke(app, command)
            assert isinstance(done.exception, KeyholeError), command
            assert "open in another program" in str(done.exception)
        with pytest.raises(RunError, match="open in another program"):
            keyhole.analyze(run.path, model=tiny("llama"), only=["activity"])
        other.stdin.write("\n")
        other.stdin.close()
        other.wait()
    keyhole.analyze(run.path, model=tiny("llama"), only=["activity"])


def test_a_journal_beside_the_database_is_not_replayed(run: keyhole.Run) -> None:
    journal = run.path / "tables.duckdb.wal"
    journal.write_bytes(b"anything")
    with pytest.raises(RunError, match="there is a tables.duckdb.wal"):
        run.table("activity")
    journal.unlink()
    assert run.table("activity")


@pytest.mark.parametrize("failing", ["mkdir", "open"])
def test_a_run_that_cannot_be_written(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A read-only run, simulated: the tests may run as a user whom permissions do not stop."""
    import os

    real_open, real_mkdir = os.open, os.mkdir

    def read_only(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", read_only)
    if failing == "mkdir":
        monkeypatch.setattr(
            os, "mkdir", lambda *a, **o: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
    assert run.table("activity")  # reading goes on
    for write in (
        lambda: keyhole.analyze(run.path, model=tiny("llama"), only=["activity"]),
        lambda: report.write(run),
    ):
        with pytest.raises(RunError, match="cannot be written: Permission denied"):
            write()
    monkeypatch.setattr(os, "open", real_open)
    monkeypatch.setattr(os, "mkdir", real_mkdir)
