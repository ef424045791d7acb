"""The explorer with a second run beside each cell: what the server and the export answer, and which runs are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import packed
import pytest
from families import save, tiny
from small import corpus
from starlette.testclient import TestClient
from typer.testing import CliRunner

import keyhole
from keyhole.analyses.measured import Measured
from keyhole.cli import app
from keyhole.errors import UsageError
from keyhole.export import texts
from keyhole.export.site import export
from keyhole.web import beside, schema
from keyhole.web.contract import Explorer, NotThere
from keyhole.web.openapi import describe
from keyhole.web.routes import create

OPTIONS: dict[str, Any] = {"top": 6, "unit": "line", "device": "cpu", "context": 32}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, keyhole.Run]:
    """A model over two texts, its control, and a model with other cells."""
    folder = tmp_path_factory.mktemp("beside")
    model = save(tiny("llama"), folder / "tiny")
    other = save(tiny("llama", cells=30, intermediate_size=30), folder / "wider")
    one, two = corpus(folder / "one.txt", 40), corpus(folder / "two.txt", 25)
    two.write_text(two.read_text("utf-8") + "something else entirely\n", "utf-8")
    made = {
        "one": keyhole.scan(model, [one], out=folder / "one", **OPTIONS),
        "two": keyhole.scan(model, [two], out=folder / "two", **{**OPTIONS, "top": 5}),
        "control": keyhole.scan(model, [one], out=folder / "control", control="random", **OPTIONS),
        "wider": keyhole.scan(other, [one], out=folder / "wider-run", **OPTIONS),
    }
    keyhole.analyze(made["one"], only=["agreement", "confident"], similar=False)
    return {name: keyhole.open(run.path) for name, run in made.items()}


def test_the_cell_of_the_other_run_and_its_overlap(runs: dict[str, keyhole.Run]) -> None:
    explorer = Explorer(runs["one"], other=runs["two"])
    numbers = keyhole.compare(runs["one"], runs["two"]).cells
    for layer, cell in ((0, 3), (1, 7), (2, 23)):
        body = explorer.body(f"beside/{layer}/{cell}.json")
        found = msgspec.json.decode(body, type=schema.BesideCell)
        assert found.cell == Explorer(runs["two"]).cell(layer, cell)
        place = runs["one"].cells.place(layer, cell)
        assert found.overlap.top == 5
        for name in ("triggers", "last", "next"):
            told, expected = getattr(found.overlap, name), numbers[name][place]
            assert (told is None) == bool(np.isnan(expected))
            assert told is None or told == pytest.approx(expected, abs=1e-3)
        orientation = [run.orientation[place] for run in (runs["one"], runs["two"])]
        assert found.turned == (orientation[0] != orientation[1])


def test_the_run_says_what_stands_beside_it(runs: dict[str, keyhole.Run]) -> None:
    told = Explorer(runs["one"], other=runs["two"]).about().beside
    assert told == schema.AboutBeside("tiny on two.txt", "tiny", ["two.txt"], True, False, None)
    told = Explorer(runs["one"], other=runs["control"]).about().beside
    assert told is not None
    assert told.name == "tiny with random weights, seed 0"
    assert not told.same_model
    assert told.same_text
    assert Explorer(runs["control"]).about().model.name == "tiny with random weights, seed 0"


def test_without_a_second_run_there_is_nothing_beside(runs: dict[str, keyhole.Run]) -> None:
    explorer = Explorer(runs["one"])
    assert explorer.about().beside is None
    assert not [path for path in explorer.paths() if path.startswith("beside")]
    with pytest.raises(NotThere):
        explorer.answer("beside/0/0.json")
    assert not [path for path in describe(explorer)["paths"] if "beside" in path]


def test_the_server_answers_and_describes_it(runs: dict[str, keyhole.Run]) -> None:
    app = create(runs["one"], beside=runs["two"])
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.get("/data/beside/1/2.json")
        assert answer.status_code == 200
        assert answer.json()["cell"]["address"] == "L1.2"
        assert client.get("/data/beside/1/99.json").status_code == 404
        assert client.get("/data/run.json").json()["beside"]["name"] == "tiny on two.txt"
        assert "/data/beside/{layer}/{cell}.json" in client.get("/openapi.json").json()["paths"]


def test_a_run_with_other_cells_is_shown_on_the_overview_only(runs: dict[str, keyhole.Run], tmp_path: Path) -> None:
    explorer = Explorer(runs["one"], other=runs["wider"])
    told = explorer.about().beside
    assert told is not None
    assert told.why is not None
    assert "no cell of one is a cell of the other" in told.why
    assert "3 layers × 30 cells" in told.why
    found = json.loads(explorer.body("comparison.json"))
    assert found["run"]["cells"] == len(runs["wider"].cells) == 90
    assert {claim["result"] for claim in found["claims"]} == {"cannot be compared"}  # it has no tables
    assert "agreement" in found["missing"]
    for path in ("beside/0/0.json", "overlaps/0.json"):
        assert path not in set(explorer.paths())
        with pytest.raises(NotThere):
            explorer.answer(path)
    export(runs["one"], tmp_path / "site", beside=runs["wider"])
    written = packed.answers(tmp_path / "site")
    assert written["comparison.json"] == found
    assert not [path for path in written if path.startswith(("beside/", "overlaps/"))]


@pytest.mark.parametrize("shared", [True, False])
def test_an_export_beside_a_run_with_more_text(
    runs: dict[str, keyhole.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """The other run's triggers stand in its own corpus, whether or not this run's is small enough to be exported whole."""
    monkeypatch.setattr(texts, "SHARED", texts.SHARED if shared else 0)
    assert len(runs["two"].unit_offsets) < len(runs["one"].unit_offsets)
    export(runs["two"], tmp_path / "site", beside=runs["one"])
    explorer = Explorer(runs["two"], other=runs["one"])
    for path, answer in packed.answers(tmp_path / "site").items():
        if path.startswith("beside/"):
            assert answer == json.loads(explorer.body(path)), path


def test_a_run_is_not_shown_beside_itself(runs: dict[str, keyhole.Run], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is named twice"):
        export(runs["one"], tmp_path / "site", beside=runs["one"])
    assert not (tmp_path / "site").exists()
    path = str(runs["one"].path)
    refused = CliRunner().invoke(app, ["serve", path, "--beside", path, "--no-open"])
    assert isinstance(refused.exception, UsageError)


def test_a_layer_agrees_as_far_as_keyhole_compare_says(runs: dict[str, keyhole.Run]) -> None:
    explorer, expected = Explorer(runs["one"], other=runs["two"]), keyhole.compare(runs["one"], runs["two"])
    there = runs["two"]
    for layer in range(3):
        found = msgspec.json.decode(explorer.body(f"overlaps/{layer}.json"), type=schema.LayerBeside)
        assert found.overlap is not None
        row, span = expected.layers[layer], there.cells.span(layer)
        assert (found.overlap.n, found.overlap.turned, found.overlap.top) == (row.n, row.turned, expected.top)
        for name in ("triggers", "last", "next"):
            for part in ("value", "lo", "hi", "dealt"):
                said, number = getattr(getattr(found.overlap, name), part), getattr(getattr(row, name), part)
                assert said == (None if number is None else pytest.approx(number, rel=1e-4))
        for column, name in (("triggers", "triggers"), ("last_overlap", "last"), ("next_overlap", "next")):
            numbers = [np.nan if each is None else each for each in getattr(found.columns, column)]
            np.testing.assert_allclose(numbers, expected.cells[name][span], rtol=1e-4)
        np.testing.assert_allclose(found.columns.max, there.stats.max[span], rtol=1e-3)
        ends = [there.layer(layer)[cell].triggers for cell in range(24)]
        assert found.columns.last == [triggers[0].tokens[-1] if triggers else None for triggers in ends]


def test_a_control_is_compared_too_and_agrees_as_far_as_chance(runs: dict[str, keyhole.Run]) -> None:
    found = Explorer(runs["one"], other=runs["control"]).answer("overlaps/1.json")
    assert isinstance(found, schema.LayerBeside)
    assert found.overlap is not None
    shared = found.overlap.last
    assert shared.value is not None
    assert shared.lo is not None
    assert shared.hi is not None
    assert shared.dealt is not None
    assert shared.lo - 0.15 < shared.dealt < shared.hi + 0.15


def test_the_claims_are_those_of_the_report(runs: dict[str, keyhole.Run], tmp_path: Path) -> None:
    other = keyhole.open(shutil.copytree(runs["two"].path, tmp_path / "two"))
    other = keyhole.analyze(other, only=["agreement", "confident"], similar=False)
    found = msgspec.json.decode(Explorer(runs["one"], other=other).body("comparison.json"), type=schema.Comparison)
    report = keyhole.report.data(runs["one"], beside=[other])
    (theirs,) = report["beside"]
    expected = [
        (claim["claim"], verdict["outcome"], claim["result"], claim["adjusted"], claim["difference"])
        for figure, verdicts in report["verdicts"].items()
        for verdict, claim in zip(verdicts, theirs["claims"][figure], strict=True)
    ]
    assert len(found.claims) == len(expected) > 3
    said = {each.here.claim: each for each in found.claims}
    for claim, outcome, result, adjusted, difference in expected:
        each = said[claim]
        assert (each.here.verdict, each.result) == (outcome, result)
        assert each.adjusted == (None if adjusted is None else pytest.approx(adjusted, rel=1e-4))
        assert (each.difference is None) == (difference is None)
        if each.difference is not None:
            assert each.difference.value == pytest.approx(difference["value"], rel=1e-4)
    assert any(each.there is not None and each.there.effect is not None for each in found.claims)
    own = {figure.name: figure for figure in Explorer(runs["one"]).figures().figures}
    assert {figure.name for figure in found.figures} == set(own)
    lines = next(figure for figure in found.figures if isinstance(figure.other, msgspec.UnsetType))
    assert json.dumps(lines.spec) != json.dumps(own[lines.name].spec)  # the other run is drawn into it
    assert "tiny on two.txt" in json.dumps(lines.spec)


def test_a_run_beside_that_is_analysed_again_is_opened_again(runs: dict[str, keyhole.Run], tmp_path: Path) -> None:
    other = keyhole.open(shutil.copytree(runs["two"].path, tmp_path / "two"))
    with TestClient(create(runs["one"], beside=other), base_url="http://localhost") as client:
        assert "agreement" in client.get("/data/comparison.json").json()["missing"]
        keyhole.analyze(other, only=["agreement"], similar=False)
        assert "agreement" not in client.get("/data/comparison.json").json()["missing"]
        shutil.rmtree(other.path)  # what is open stays
        assert "agreement" not in client.get("/data/comparison.json").json()["missing"]


def test_tokens_of_another_tokenizer_are_not_compared(
    runs: dict[str, keyhole.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = keyhole.open(runs["two"].path)
    monkeypatch.setitem(other.manifest["files"], "tokenizer.json", {"sha256": "0" * 64, "bytes": 1})
    found = beside._overlap(runs["one"], other, 3)
    assert found == schema.Overlap(5, None, None, None)


def test_an_export_has_it_too(runs: dict[str, keyhole.Run], tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = CliRunner().invoke(app, ["export", str(runs["one"].path), str(site), "--beside", str(runs["two"].path)])
    assert done.exit_code == 0, done.output
    written = packed.answers(site)
    assert written["beside/1/2.json"] == json.loads(Explorer(runs["one"], other=runs["two"]).body("beside/1/2.json"))
    assert sum(name.startswith("beside/") for name in written) == len(runs["one"].cells)
    export(runs["one"], site, force=True)  # an export with a second run is an export, and can be replaced
    assert not list(site.glob("data/beside*"))


def test_every_claim_has_its_effect_also_of_tables_that_are_not_drawn(runs: dict[str, keyhole.Run]) -> None:
    found = msgspec.json.decode(Explorer(runs["one"]).body("figures.json"), type=schema.Figures)
    measured = Measured.read(runs["one"])
    expected = [verdict for each in measured.verdicts.values() for verdict in each]
    assert len(found.claims) == len(expected) > len([v for figure in found.figures for v in figure.verdicts])
    for claim in found.claims:
        (verdict,) = [each for each in expected if each.claim == claim.verdict.claim]
        assert claim.verdict.verdict == verdict.outcome
        assert (claim.verdict.effect is None) == (verdict.effect is None)
        if claim.verdict.effect and verdict.effect:
            assert claim.verdict.effect.value == pytest.approx(verdict.effect.value, rel=1e-2)
            assert claim.verdict.effect.against == pytest.approx(verdict.effect.against, rel=1e-2)
            assert claim.verdict.effect.said
        assert (claim.verdict.adjusted is None) == (verdict.adjusted is None)
    assert found.outcomes == ["holds", "does not hold", "unclear", "not applicable"]
