"""The explorer with a second run beside each cell: what the server and the export answer, and which runs are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from families import save, tiny
from small import corpus
from starlette.testclient import TestClient
from typer.testing import CliRunner

import keyhole
from keyhole.analyses.measured import Measured
from keyhole.cli import app
from keyhole.errors import UsageError
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
    assert told == schema.AboutBeside("tiny on two.txt", "tiny", ["two.txt"], True)
    told = Explorer(runs["one"], other=runs["control"]).about().beside
    assert told is not None
    assert told.name == "tiny with random weights, seed 0"
    assert not told.same_model
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


def test_a_run_with_other_cells_is_refused(runs: dict[str, keyhole.Run], tmp_path: Path) -> None:
    said = "no cell of one is a cell of the other.*keyhole report"
    with pytest.raises(UsageError, match=said):
        beside.check_axis(runs["one"], runs["wider"])
    with pytest.raises(UsageError, match=said):
        export(runs["one"], tmp_path / "site", beside=runs["wider"])
    assert not (tmp_path / "site").exists()
    with pytest.raises(UsageError, match="is named twice"):
        beside.check_axis(runs["one"], runs["one"])
    refused = CliRunner().invoke(
        app, ["serve", str(runs["one"].path), "--beside", str(runs["wider"].path), "--no-open"]
    )
    assert isinstance(refused.exception, UsageError)
    assert Explorer(runs["one"], other=runs["wider"]).other is None  # the served run was replaced by one of other cells


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
    written = json.loads((site / "data/beside/1/2.json").read_bytes())
    assert written == json.loads(Explorer(runs["one"], other=runs["two"]).body("beside/1/2.json"))
    assert len(list(site.glob("data/beside/*/*.json"))) == len(runs["one"].cells)
    export(runs["one"], site, force=True)  # an export with a second run is an export, and can be replaced
    assert not (site / "data/beside").exists()


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
