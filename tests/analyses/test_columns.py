"""Every measure of every cell: against the run's own arrays, in Python, in SQL, in a file."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import explored
import numpy as np
import pytest
from commands import call
from commands import run as command
from families import tiny

import keyhole
from keyhole.analyses import relations
from keyhole.analyses.columns import SAID, TAIL, CellColumns, every
from keyhole.errors import RunDamaged, RunError, UsageError
from keyhole.store import annotations, collections, kinds, layout, patterns, tables, values
from keyhole.store.run import Cell
from keyhole.web import table as web


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[keyhole.Run]:
    """Analysed, with kinds, a pattern of one key, an annotation and a note."""
    found = explored.write(tmp_path_factory.mktemp("columns"))
    keyhole.analyze(found, only=["kinds"], lens="norm", model=explored.model())
    found = keyhole.open(found.path)
    pattern = patterns.Pattern("shallow", "ends in “cat”", {}, (0, 1, 2), 9, 5, 3.0, 7.0, 0.01)
    for layer in range(found.layers):
        key = patterns.Key(4, 1, "shallow", 0.5, (pattern,), 6)
        patterns.write_keys(found, layer, [key] if layer == 1 else [])
    patterns.save(found, {})
    live = next(i for i in range(24) if len(found.triggers(0, i)) >= 3)
    marked = {"triggers": [0, 1, 2], "description": "cats", "kind": "semantic"}
    annotations.save(found, {"annotator": "ada", "layer": 0, "cell": live, "patterns": [marked]})
    collections.save(found, found.cells.place(2, 3), {"note": "=look", "starred": True, "tags": ["cats", "a b"]})
    return found


def expected(cell: Cell) -> dict[str, Any]:
    """What a cell's columns must say, from the API of one cell."""
    run, stats = cell.run, cell.stats
    said = values.Values(run, "norm")
    top = cell.triggers[0] if cell.triggers else None
    promoted, demoted = (each(cell.layer, cell.index, SAID) for each in (said.promoted, said.demoted))
    follows = [trigger.next_id for trigger in cell.triggers if trigger.next_id is not None]
    kinds_of = kinds.of(run)
    assert kinds_of is not None
    made = annotations.kinds(run).get((cell.layer, cell.index))
    return {
        "address": cell.address,
        "place": cell.place,
        "layer": cell.layer,
        "cell": cell.index,
        "stack": None,
        "expert": None,
        "orientation": cell.orientation,
        "kinds": [shown.kind.name for shown in kinds_of.of(cell.place) if shown.has],
        "label": "ends in “cat”" if cell.address == "L1.4" else None,
        "dead": cell.dead,
        "active": stats.active / stats.n,
        "peak": max(abs(stats.max), abs(stats.min)) / math.hypot(stats.mean, stats.std),
        "max": stats.max,
        "min": stats.min,
        "mean": stats.mean,
        "std": stats.std,
        "rms": math.hypot(stats.mean, stats.std),
        "trigger": None if top is None else run.vocabulary.text(top.ids[-TAIL:]),
        "last_token": None if top is None else top.tokens[-1],
        "next_token": None if top is None else top.next_token,
        "promoted": [each.piece for each in promoted],
        "demoted": [each.piece for each in demoted],
        "agreement": sum(t == promoted[0].token for t in follows) / len(follows) if follows else None,
        "rank": int(said.ranks[cell.place]) or None,
        "max_prob": float(said.max_prob[cell.place]),
        "entropy": float(said.entropy[cell.place]),
        "norm": float(said.norms[cell.place]),
        "annotated": made,
        "starred": cell.address == "L2.3",
        "tags": "cats, a b" if cell.address == "L2.3" else None,
        "note": "=look" if cell.address == "L2.3" else None,
    }


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return (found is None and not math.isfinite(wanted)) or found == pytest.approx(wanted, rel=1e-6)
    return bool(found == wanted)


def ask(run: keyhole.Run, sql: str) -> list[dict[str, Any]]:
    return tables.query(run.path, sql, relations.of(run))


def test_every_column_of_every_cell_is_what_the_cell_itself_says(run: keyhole.Run) -> None:
    rows = ask(run, "select * from cells")
    assert [row["address"] for row in rows] == [cell.address for layer in range(3) for cell in run.layer(layer)]
    for row in rows:
        for name, wanted in expected(run[row["address"]]).items():
            assert same(row[name], wanted), (row["address"], name, row[name], wanted)
    others = {each.name for each in every()} - expected(run["L0.0"]).keys()
    measured = {each.name for analysis in keyhole_measures() for each in analysis.measures}
    assert others <= measured, "a column that is neither checked here nor a measure of an analysis"


def keyhole_measures() -> tuple[Any, ...]:
    from keyhole.analyses import registry

    return registry.analyses()


def test_columns_as_arrays(run: keyhole.Run) -> None:
    found = keyhole.columns(run)
    assert "expert" not in found, "the run has no experts"
    assert "max" in found
    rows = ask(run, "select * from cells")
    for name, array in found.items():
        assert len(array) == len(run.cells)
        for value, row in zip(array.tolist(), rows, strict=True):
            assert same(row[name], value), name
    some = keyhole.columns(run, ["max", "expert"], layer="L1")
    np.testing.assert_array_equal(some["max"], run.layer(1).stats.max)
    assert np.isnan(some["expert"]).all()
    with pytest.raises(UsageError, match="no column 'size'.*address"):
        keyhole.columns(run, ["size"])


def test_parts_of_the_axis_are_parts_of_the_whole(run: keyhole.Run) -> None:
    """As the explorer and SQL ask for them: in blocks that do not end where layers do."""
    table = CellColumns(run)
    for name in table.columns:
        whole = table.array(name, slice(0, 72)).tolist()
        parts = [value for at in range(0, 72, 17) for value in table.array(name, slice(at, min(72, at + 17))).tolist()]
        assert repr(parts) == repr(whole), name
        one = table.one(name)
        assert all(same(one(place), value) for place, value in enumerate(whole) if value == value), name


def test_triggers_are_those_of_the_cells(run: keyhole.Run) -> None:
    rows = ask(run, "select * from triggers order by place, side desc, rank")
    wanted = []
    for layer in range(run.layers):
        for cell in run.layer(layer):
            for side, listed in ((1, cell.triggers), (-1, cell.triggers_negative)):
                for rank, each in enumerate(listed):
                    document, start = run.unit_source(each.unit)
                    wanted.append(
                        {"address": cell.address, "place": cell.place, "layer": layer, "cell": cell.index, "side": side}
                        | {"rank": rank + 1, "coefficient": each.coefficient, "unit": each.unit}
                        | {"position": each.position, "document": document, "start": start, "count": each.count}
                        | {"prefix": each.prefix, "last_token": each.tokens[-1], "next_token": each.next_token}
                    )
    assert rows == wanted
    assert list(rows[0]) == list(relations.TRIGGERS.columns)
    one = ask(run, "select rank, prefix from triggers where address = 'L1.4' and side = -1 order by rank")
    assert [row["prefix"] for row in one] == [each.prefix for each in run["L1.4"].triggers_negative]


def test_relations_join_tables_and_are_described(run: keyhole.Run) -> None:
    sql = "select c.layer, count(*) as n, any_value(a.cells) as m from cells c join activity a using (layer) group by 1"
    assert sorted(row["n"] for row in ask(run, sql)) == [row["m"] for row in ask(run, sql)] == [24, 24, 24]
    described = ask(run, "select * from definitions where table_name in ('cells', 'triggers')")
    for schema in relations.SCHEMAS.values():
        listed = {
            row["column_name"]: (row["type"], row["definition"])
            for row in described
            if row["table_name"] == schema.name
        }
        assert listed == {name: (column.type, column.means) for name, column in schema.columns.items()}
    assert ask(run, "select count(*) as n from definitions where table_name = 'activity'")[0]["n"] > 0
    for sql, types in (("describe cells", relations.CELLS.types), ("describe triggers", relations.TRIGGERS.types)):
        assert {row["column_name"]: row["column_type"] for row in ask(run, sql)} == types
    docs = (Path(__file__).parents[2] / "docs" / "analyses.md").read_text("utf-8")
    for schema in relations.SCHEMAS.values():
        for name, column in schema.columns.items():
            assert f"| `{name}` | {column.type} | {column.means.replace('|', chr(92) + '|')} |" in docs


def test_names_that_a_query_gives_itself(run: keyhole.Run) -> None:
    assert ask(run, "with cells as (select 1 as a) select * from cells") == [{"a": 1}]
    assert len(ask(run, "from cells limit 2")) == 2
    assert len(ask(run, 'select "max" from CELLS limit 2')) == 2
    with pytest.raises(UsageError, match="The query failed"):
        ask(run, "select nothing from cells")


def test_a_run_that_was_not_analyzed(text: Path, tmp_path: Path) -> None:
    run = keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", top=3, unit="line")
    rows = ask(run, "select * from cells")
    assert len(rows) == len(run.cells)
    assert {row["orientation"] for row in rows} == {1, -1}
    assert all(row["agreement"] is row["promoted"] is row["kinds"] is row["active"] is None for row in rows)
    assert ask(run, "select max(rank) as r from triggers") == [{"r": 3}]
    table = CellColumns(run)
    assert "keyhole analyze" in str(table.missing("agreement"))
    assert "convention" in str(table.missing("active"))
    assert table.missing("max") is None
    with pytest.raises(RunError, match="no tables yet"):
        ask(run, "select * from agreement")
    assert not (run.path / "tables.duckdb").exists()


def test_a_database_that_has_its_own_cells_is_refused(run: keyhole.Run, tmp_path: Path) -> None:
    copy = keyhole.Run(shutil.copytree(run.path, tmp_path / "run"))
    file = layout.tables_file(copy.path)
    for statement in ("create table cells as select 1 as a", "create macro keyhole_address(x) as 'mine'"):
        shutil.copy(layout.tables_file(run.path), file)
        with duckdb.connect(str(file)) as db:
            db.execute(statement)
        layout.save_group(copy.path, "tables", {}, [file.name])
        with pytest.raises(RunDamaged, match="which no analysis writes"):
            ask(copy, "select * from triggers limit 1")
        assert ask(copy, "select count(*) as n from activity") == [{"n": 3}]


def test_damage_is_reported_as_damage(run: keyhole.Run, tmp_path: Path) -> None:
    copy = keyhole.Run(shutil.copytree(run.path, tmp_path / "run"))
    units = np.array(copy.units)
    units[units >= 0] = 10_000
    copy.__dict__["units"] = units
    with pytest.raises(RunDamaged, match="a unit that is not there"):
        ask(copy, "select prefix from triggers where place = 0")


# The commands


def parsed(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv_json_and_parquet_say_the_same(run: keyhole.Run, tmp_path: Path) -> None:
    names = "address, max, rank, dead, kinds, last_token, next_token, promoted, note, label"
    sql = f"select {names} from cells order by place"
    rows = ask(run, sql)
    assert json.loads(command("sql", run.path, sql, "--json")) == json.loads(json.dumps(rows))
    for row, read in zip(rows, parsed(command("sql", run.path, sql, "--csv")), strict=True):
        for name, value in row.items():
            text = read[name][1:] if read[name].startswith("'") else read[name]
            if value is None:
                assert text == ""
            elif isinstance(value, list):
                assert json.loads(text) == value
            else:
                assert text == str(value)
            assert not read[name].startswith(("=", "+", "-", "@", "\t", "\r")) or isinstance(value, float)
    file = tmp_path / "cells.parquet"
    file.write_text("old")
    assert str(file) in command("sql", run.path, sql, "--parquet", file)
    with duckdb.connect() as db:
        read_back = db.execute(f"select * from '{file}'")
        columns = [each[0] for each in read_back.description]
        assert [dict(zip(columns, row, strict=True)) for row in read_back.fetchall()] == rows
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_note_that_looks_like_a_formula_is_text_in_a_spreadsheet(run: keyhole.Run) -> None:
    assert (
        parsed(command("sql", run.path, "select note from cells where note is not null", "--csv"))[0]["note"]
        == "'=look"
    )


def test_the_relations_as_tables(run: keyhole.Run, tmp_path: Path) -> None:
    assert {"cells", "triggers", "activity"} <= set(command("table", run.path).split())
    shown = command("table", run.path, "cells")
    assert "first 20 of 72 rows" in shown
    assert len(parsed(command("table", run.path, "cells", "--csv"))) == 72
    count = ask(run, "select count(*) as n from triggers")[0]["n"]
    assert len(json.loads(command("table", run.path, "triggers", "--json"))) == count
    command("table", run.path, "activity", "--parquet", tmp_path / "a.parquet")
    with duckdb.connect() as db:
        assert db.execute(f"select count(*) from '{tmp_path / 'a.parquet'}'").fetchall() == [(3,)]
    assert "choose one" in call("sql", run.path, "select 1", "--csv", "--parquet", tmp_path / "x").err
    assert not (tmp_path / "x").exists()


def test_a_query_for_a_file_reaches_no_other_file(run: keyhole.Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    for sql in (f"select * from read_text('{secret}')", "select 1) to '/nowhere/x'; select (1", "delete from activity"):
        done = call("sql", run.path, sql, "--parquet", tmp_path / "out.parquet")
        assert done.code == 2, done.out + done.err
        assert "query failed" in done.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["secret.txt"]
    assert "cannot be written" in call("sql", run.path, "select 1", "--parquet", tmp_path / "no" / "x").err


def test_a_cell_and_a_token_as_json(run: keyhole.Run) -> None:
    cell = run["L1.4"]
    shown = json.loads(command("show", run.path, "L1.4", "--json", "--limit", 2))
    assert (shown["address"], shown["layer"], shown["cell"]) == ("L1.4", 1, 4)
    assert shown["label"] == shown["patterns"][0]["description"] == "ends in “cat”"
    assert [each["prefix"] for each in shown["triggers"]] == [each.prefix for each in cell.triggers[:2]]
    assert shown["triggers"][0]["coefficient"] == cell.triggers[0].coefficient
    assert [each["lens"] for each in shown["values"]] == ["norm", "raw"]
    assert shown["stats"]["peak"] == pytest.approx(cell.stats.peak)
    said = values.Values(run, "norm")
    piece = said.promoted(1, 4, 1)[0].piece
    found = json.loads(command("tokens", run.path, piece, "--json", "--limit", 3))
    speakers = said.promoting(found["id"])
    assert found["token"] == piece
    assert found["count"]["promoting"] == len(speakers)
    assert [each["address"] for each in found["promoting"]] == [each.address for each in speakers[:3]]


@pytest.mark.parametrize("wanted", ["inf..", "1e400..", "..-inf", "nan", "a..b"])
def test_a_range_of_no_numbers_is_refused(wanted: str) -> None:
    """An end that is not finite would be read as a column's name by SQL."""
    with pytest.raises(UsageError, match="it is a range of numbers"):
        web.limits("max", wanted)
    assert web.limits("max", "0.5..") == (0.5, np.inf)
