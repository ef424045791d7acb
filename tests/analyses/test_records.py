"""One record per analysis: what a single file says is found everywhere, and what the records say is what the docs say."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from families import tiny
from pages import Page
from small import scanned
from synthetic import SAMPLE, fill, section5_facts
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import docs, registry
from keyhole.analyses.analyze import _Inputs
from keyhole.analyses.measured import Measured, missing
from keyhole.analyses.record import NEEDS, Analysis, CellMeasure, Column, Figure, Found, Lines, Series
from keyhole.cli import app
from keyhole.errors import RunDamaged, UsageError
from keyhole.store import layout, tables
from keyhole.views.report import write as report
from keyhole.web.contract import Explorer

DOCS = Path(__file__).parents[2] / "docs" / "analyses.md"

MINE = '''
"""How evenly a key's triggers are spread."""

import numpy as np

from keyhole.analyses.claims import judge
from keyhole.analyses.record import (
    Analysis, Baseline, CellMeasure, Claim, Column, Effect, Figure, Found, Lines, Series
)


def strengths(run):
    return np.nan_to_num(np.asarray(run.coefficients, np.float64)).sum(-1).reshape(-1)


def rows(run, seed):
    layers = np.array_split(strengths(run), run.layers)
    found = [{"layer": i, "n": len(part), "strength": float(part.mean()) - 5.0} for i, part in enumerate(layers)]
    return Found(found, {"least": min(row["strength"] for row in found), "seed": seed})


ANALYSIS = Analysis(
    name="evenness",
    question="How strong are a key's triggers together?",
    part="Of my own",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "its cells"),
        "strength": Column("DOUBLE", "mean summed coefficient, less five"),
    },
    facts={"least": Column("DOUBLE", "the smallest of them"), "seed": Column("BIGINT", "the seed")},
    needs=("seed",),
    rows=rows,
    note=lambda facts: f"at least {facts['least']:.3f}, with seed {facts['seed']}",
    figures=(
        Figure(
            name="evenness_by_layer",
            title="Summed strength",
            caption="Mean summed coefficient of the triggers.",
            mark=Lines("strength", [Series("all triggers", "strength")], [Baseline("nothing", 0.0)], format=".1f"),
            claims=(Claim("Triggers are stronger in upper layers", lambda m: judge(Effect(len(m.rows)), "count of summed strength", "some")),),
        ),
    ),
    measures=(CellMeasure("evenness", "summed strength of the triggers", "key", lambda run, values: strengths(run)),),
)
'''


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Analysis]:
    """An analysis in a file of its own, listed."""
    file = tmp_path / "evenness.py"
    file.write_text(MINE)
    spec = importlib.util.spec_from_file_location("evenness", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registry.add(module.ANALYSIS)
    yield module.ANALYSIS
    registry.remove("evenness")


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_file_is_found_everywhere(mine: Analysis, tmp_path: Path) -> None:
    model = tiny("opt")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["evenness"], seed=7)

    # tables: of the run, on the command line, in SQL
    strengths = [
        [sum(trigger.coefficient for trigger in cell.triggers) for cell in run.layer(layer)]
        for layer in range(run.layers)
    ]
    rows = run.table("evenness")
    assert [row["n"] for row in rows] == [len(each) for each in strengths]
    assert [row["strength"] for row in rows] == pytest.approx([np.mean(each) - 5 for each in strengths])
    least = min(row["strength"] for row in rows)
    assert least < 0
    assert json.loads(ask("table", run.path, "evenness", "--json")) == rows
    printed = ask("table", run.path, "evenness")
    assert "strength" in printed
    assert f"at least {least:.3f}, with seed 7" in printed
    assert "evenness" in ask("table", run.path).split()
    assert tables.query(run.path, "select value::double as x from facts where key = 'least'") == [{"x": least}]
    meaning = tables.query(run.path, "select definition from definitions where column_name = 'strength'")
    assert meaning == [{"definition": "mean summed coefficient, less five"}]

    # the report: figure, verdict, note, and nothing about a paper
    page = Page(report.write(run).read_text("utf-8"))
    assert "evenness_by_layer" in page.values("data-figure")
    assert "evenness_by_layer" in page.values("id")
    section = page.text.rsplit("Summed strength", 1)[1]
    for said in (
        "Mean summed coefficient of the triggers.",
        "Triggers are stronger in upper layers.",
        "of summed strength",
    ):
        assert said in section
    assert f"t least {least:.3f}, with seed 7" in section
    assert "Of my own" in page.text
    assert "The paper" not in section.split("Made by")[0]
    data = report.data(run)
    assert data["facts"]["evenness"] == {"least": least, "seed": 7}
    assert data["verdicts"]["evenness_by_layer"][0]["claim"] == "Triggers are stronger in upper layers"
    assert "evenness_by_layer" in report.figures(run)

    # the explorer: figure, and a number for every cell
    explorer = Explorer(run)
    figure = json.loads(explorer.body("figures.json"))["figures"][-1]
    assert (figure["name"], figure["paper"]) == ("evenness_by_layer", None)
    assert figure["verdicts"][0]["claim"] == "Triggers are stronger in upper layers"
    by_name = {each["name"]: each for each in json.loads(explorer.body("map.json"))["measures"]}
    assert by_name["evenness"]["title"] == "summed strength of the triggers"
    assert (by_name["evenness"]["format"], by_name["activity"]["format"]) == ("number", "percent")
    shown = json.loads(explorer.body(f"maps/{list(by_name).index('evenness')}.json"))
    assert shown["hi"] == pytest.approx(np.max(strengths), rel=1e-4)

    # the documentation and the commands
    assert "#### `evenness`: How strong are a key's triggers together?" in docs.described()
    assert "| `strength` | DOUBLE | mean summed coefficient, less five |" in docs.described()
    assert "- Triggers are stronger in upper layers (Summed strength)" in docs.described()
    assert "evenness" in " ".join(ask("analyze", "--help").split())
    assert "evenness" not in missing(run)
    ask("analyze", run.path, "--only", "evenness")


def test_what_is_not_listed_is_not_known(mine: Analysis, tmp_path: Path) -> None:
    model = tiny("opt")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["evenness", "activity"])
    registry.remove("evenness")
    try:
        assert "evenness" not in Measured.read(run).tables
        assert run.table("evenness")  # the database says itself what it holds
        with pytest.raises(UsageError, match="no table 'evenness'"):
            ask("table", run.path, "evenness")
        with pytest.raises(UsageError, match="no table 'evenness'"):
            keyhole.analyze(run, model=model, only=["evenness"])
    finally:
        registry.add(mine)


def test_a_changed_analysis_replaces_its_own_table(mine: Analysis, tmp_path: Path) -> None:
    """Its columns are others than those of the table that is there; the other tables stay."""
    model = tiny("opt")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["evenness", "activity"])
    before = run.table("activity")
    found = mine.rows
    assert found is not None

    def rows(*args: object, **needs: object) -> Found:
        got = found(*args, **needs)
        return Found([{**row, "more": 5} for row in got.rows], got.facts)

    changed = replace(mine, columns={**mine.columns, "more": Column("INTEGER", "a new column")}, rows=rows)
    registry.remove("evenness")
    registry.add(changed)
    keyhole.analyze(run, model=model, only=["evenness"])
    assert {row["more"] for row in run.table("evenness")} == {5}
    assert run.table("activity") == before


def figure(name: str) -> Figure:
    return Figure(name, "t", "c", Lines("y", [Series("s", "layer")]))


def measure(name: str, cells: int = 3) -> CellMeasure:
    return CellMeasure(name, "t", "key", lambda run, values: np.zeros(cells))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "listed already"),
        ({"name": "facts"}, "uses itself"),
        ({"name": "two words"}, "lower-case letters"),
        ({"name": "other", "rows": None}, "go together"),
        ({"name": "other", "needs": ("weather",)}, "needs 'weather'.*model, head"),
        ({"name": "other", "columns": {"x": Column("BLOB", "x")}}, "type BLOB.*INTEGER"),
        ({"name": "other"}, "figure 'evenness_by_layer' is listed already"),
        ({"name": "other", "figures": ()}, "measure 'evenness' is listed already"),
        ({"name": "other", "columns": {'a"; drop': Column("DOUBLE", "x")}}, "the name .*drop.* lower-case"),
        ({"name": "other", "facts": {"Two words": Column("DOUBLE", "x")}}, "the name 'Two words'"),
        ({"name": "other", "figures": (figure("../away"),)}, "the name '../away'"),
        (
            {"name": "other", "figures": (figure("new"), figure("new")), "measures": ()},
            "figure 'new' is listed already",
        ),
        ({"name": "other", "figures": (), "measures": (measure("a/b"),)}, "the name 'a/b'"),
        ({"name": "other", "figures": (), "measures": (measure("m"), measure("m"))}, "measure 'm' is listed already"),
    ],
)
def test_a_record_that_cannot_be_is_refused(mine: Analysis, changes: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        registry.add(replace(mine, **changes))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no analysis 'other'.*activity"):
        registry.remove("other")


def test_the_docs_say_what_the_records_say() -> None:
    page = DOCS.read_text("utf-8")
    assert docs.updated(page) == page, "docs/analyses.md is out of date: make docs"
    with pytest.raises(UsageError, match="lacks the lines"):
        docs.updated("# Another page")


def test_docs_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{docs.BEGIN}\nthis was here before\n{docs.END}\nafter\n")
    docs.main([str(page)])
    text = page.read_text("utf-8")
    assert "this was here before" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert docs.described() in text


def test_every_need_can_be_had() -> None:
    assert [
        need for need in NEEDS if need not in ("cells", "map", "seed", "observed") and not hasattr(_Inputs, need)
    ] == []


def test_every_chart_shows_columns_that_its_table_has() -> None:
    for analysis, figure in registry.report_order():
        assert set(figure.columns) <= set(analysis.columns), figure.name


# Facts


@pytest.fixture
def run(tmp_path: Path) -> keyhole.Run:
    return scanned(tiny("gpt2"), tmp_path)


@pytest.mark.parametrize("value", [-0.020, -1e-300, 0.1 + 0.2, 1e300, None])
def test_a_fact_comes_back_as_it_was(run: keyhole.Run, value: float | None) -> None:
    facts = section5_facts()["cases"] | {"composed": 2**53, "cases": 0, "variants_related": None, "share": value}
    fill(run.path, "cases", [], facts)
    read = tables.read_facts(run.path, registry.get("cases").schema)
    assert read == facts
    assert [type(each) for each in read.values()] == [type(facts[key]) for key in read]
    fill(run.path, "cases", [])
    assert tables.read_facts(run.path, registry.get("cases").schema) == {}


def test_facts_that_were_not_declared_are_not_written(run: keyhole.Run) -> None:
    for facts in ({"weather": 1}, {**SAMPLE, "weather": 1}, {"seed": 1}):
        with pytest.raises(ValueError, match="its record declares"):
            fill(run.path, "refinement", [], facts)
    assert not layout.has_tables(run.path)


@pytest.mark.parametrize("row", [{"layer": 0}, dict.fromkeys([*registry.get("activity").columns, "weather"], 1)])
def test_rows_of_other_columns_are_not_written(run: keyhole.Run, row: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="A row of 'activity' has .* its record declares"):
        fill(run.path, "activity", [row])
    assert not layout.has_tables(run.path)


def test_numbers_of_numpy_are_written(run: keyhole.Run) -> None:
    row = dict.fromkeys(registry.get("activity").columns, 0) | {"n": np.int64(7), "lo": np.float32(0.5)}
    fill(run.path, "activity", [row])
    assert run.table("activity") == [row]


def test_rows_are_written_in_order_however_many_at_once(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 3)
    rows = [
        dict.fromkeys(registry.get("activity").columns, 0)
        | {"layer": at % 3, "n": at, "lo": None if at % 2 else at / 7}
        for at in range(10)
    ]
    fill(run.path, "activity", rows)
    assert run.table("activity") == rows


def test_a_measure_has_a_number_per_cell(mine: Analysis, run: keyhole.Run) -> None:
    registry.add(replace(mine, name="other", figures=(), measures=(measure("m", len(run.cells) - 1),)))
    try:
        with pytest.raises(ValueError, match="'m' has the shape"):
            list(registry.cell_measures(run, None))
    finally:
        registry.remove("other")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE facts SET value = '\"many\"' WHERE key = 'prefixes'",
        "UPDATE facts SET value = '1.5' WHERE key = 'prefixes'",
        "UPDATE facts SET value = 'true' WHERE key = 'seed'",
        "UPDATE facts SET value = '99999999999999999999' WHERE key = 'seed'",
        "UPDATE facts SET value = '[1]' WHERE key = 'unit'",
        "UPDATE facts SET value = 'null' WHERE key = 'unit'",
        "UPDATE facts SET value = 'NaN' WHERE key = 'hold_out'",
        "UPDATE facts SET value = 'not JSON'",
        "UPDATE facts SET value = NULL",
        "UPDATE facts SET value = repeat('[', 100000)",
        "DELETE FROM facts WHERE key = 'seed'",
        "INSERT INTO facts SELECT * FROM facts",
        "INSERT INTO facts VALUES ('refinement', 'weather', '1')",
        "INSERT INTO facts SELECT 'x', 'y', 'z' FROM range(20000)",
        "ALTER TABLE facts ADD COLUMN x INTEGER",
        "DROP TABLE facts; CREATE VIEW facts AS SELECT 'refinement' AS table_name, 'a' AS key, '1' AS value",
    ],
)
def test_facts_that_no_analysis_writes_are_refused(run: keyhole.Run, statement: str) -> None:
    fill(run.path, "refinement", [], section5_facts()["refinement"])
    rebuild(run, statement)
    with pytest.raises(RunDamaged):
        Measured.read(run)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE definitions",
        "INSERT INTO definitions SELECT 'x', 'y', 'z', '' FROM range(20000)",
        "UPDATE definitions SET type = 'VARCHAR' WHERE table_name = 'activity'",
    ],
)
def test_a_database_that_does_not_describe_its_tables_is_refused(run: keyhole.Run, statement: str) -> None:
    fill(run.path, "activity", [])
    assert run.table("activity") == []
    rebuild(run, statement)
    with pytest.raises(RunDamaged):
        run.table("activity")


def rebuild(run: keyhole.Run, statements: str) -> None:
    """Change the database as its author can, and list it as whole."""
    file = layout.tables_file(run.path)
    with duckdb.connect(str(file)) as db:
        db.execute(statements)
    layout.save_group(run.path, "tables", {}, [file.name])


def test_rows_and_facts_are_one_value() -> None:
    rows, facts = Found([{"x": 1}])
    assert (rows, facts) == ([{"x": 1}], {})
