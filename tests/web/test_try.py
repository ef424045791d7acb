"""Trying a key on a text: api/try gives the model's own coefficients, as a scan of that text would store them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny
from reference import forward
from small import scanned
from starlette.testclient import TestClient

import keyhole
from keyhole.models.model import Model
from keyhole.web.routes import create

TEXT = "The cat sat on a mat of Paris, and <b>ran</b>"
Made = tuple[keyhole.Run, Model, TestClient]


@pytest.fixture(scope="module", params=["gpt2", "llama", "llama without a start token"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """An ungated model, a gated one, and a scan without the start token."""
    model = tiny(request.param.split()[0])
    run = scanned(model, tmp_path_factory.mktemp("try"), bos="without" not in request.param)
    with TestClient(create(run, model=model), base_url="http://127.0.0.1") as client:
        yield run, model, client


def tried(made: Made, layer: int, cell: int, text: str) -> dict[str, Any]:
    answer = made[2].post("/api/try", json={"text": text, "layer": layer, "cell": cell})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert (found["layer"], found["cell"]) == (layer, cell)
    assert len(found["tokens"]) == len(found["coefficients"])
    return found


def test_it_gives_the_models_own_coefficients(made: Made) -> None:
    run, model, _ = made
    ids = model.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    truth = forward(model, ids, bool(run.manifest["config"]["bos"])) * run.orientation
    signs = set()
    for layer, cell in [(0, 0), (1, 5), (2, 23), *((1, cell) for cell in range(8))]:
        found = tried(made, layer, cell, TEXT)
        assert found["tokens"] == [run.vocabulary.piece(i) for i in ids]
        expected = truth[:, run.cells.place(layer, cell)]
        np.testing.assert_allclose(found["coefficients"], expected, rtol=1e-4, atol=1e-6)
        signs.add(int(run.orientation[run.cells.place(layer, cell)]))
    assert signs == ({1, -1} if run.gated else {1})


def test_a_stored_trigger_has_its_stored_coefficient(made: Made) -> None:
    run, _, _ = made
    seen = 0
    for layer, cell in [(0, 3), (1, 7), (2, 11)]:
        here = run.cell(layer, cell)
        for trigger in [*here.triggers, *here.triggers_negative]:
            found = tried(made, layer, cell, trigger.prefix)
            if found["tokens"] == trigger.tokens:  # else the prefix ends inside a word, and reads as other tokens
                assert found["coefficients"][-1] == pytest.approx(trigger.coefficient, rel=1e-4)
                seen += 1
    assert seen >= 6


def test_without_a_start_token_it_is_left_out(made: Made) -> None:
    run, model, _ = made
    if run.manifest["config"]["bos"]:
        pytest.skip("a scan with the start token")
    ids = model.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    with_it = forward(model, ids, True)[:, run.cells.place(1, 5)] * run.orientation[run.cells.place(1, 5)]
    assert not np.allclose(tried(made, 1, 5, TEXT)["coefficients"], with_it, rtol=1e-3)


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"text": "a", "layer": 9, "cell": 0}, 422, "There is no cell 0 in layer 9: the model has layers 0 to 2"),
        ({"text": "a", "layer": 0, "cell": True}, 422, "whole numbers"),
        ({"text": 3, "layer": 0, "cell": 0}, 422, "'text' must be a string"),
        ({"text": "", "layer": 0, "cell": 0}, 422, "The text is empty"),
        ({"text": "a", "layer": 0, "cell": 0, "more": 1}, 422, "no field 'more'"),
        ({"text": "cat " * 600, "layer": 0, "cell": 0}, 413, "tokens are too many"),
        ({"text": "c" * 30_000, "layer": 0, "cell": 0}, 413, "characters are too many"),
    ],
)
def test_what_is_refused(made: Made, asked: dict[str, Any], status: int, said: str) -> None:
    answer = made[2].post("/api/try", json=asked)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_a_model_that_cannot_be_loaded(made: Made, tmp_path: Path) -> None:
    with TestClient(
        create(made[0]), base_url="http://127.0.0.1"
    ) as client:  # the run names no model that can be loaded
        answer = client.post("/api/try", json={"text": "a", "layer": 0, "cell": 0})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_model")
