"""The prompt's requests over HTTP, with the real model: each against what Python gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import explored
import msgspec
import pytest
from families import save
from starlette.testclient import TestClient

import keyhole
from keyhole.models import intervene
from keyhole.models.intervene import Edit
from keyhole.store import collections
from keyhole.uses import prompt
from keyhole.web import routes as web
from keyhole.web import schema
from keyhole.web.schema import ABLATED

TEXT = "The cat sat"
GOOD = {"layer": 1, "cell": 5, "scale": 3.0, "positions": None}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("prompt"))


@pytest.fixture(scope="module")
def client(run: keyhole.Run) -> Iterator[TestClient]:
    with TestClient(web.create(run, model=explored.model()), base_url="http://127.0.0.1:8765") as client:
        yield client


def ask(client: TestClient, path: str, asked: dict[str, Any], status: int = 200) -> Any:
    response = client.post(f"/api/{path}", json=asked)
    assert response.status_code == status, response.text
    return response.json()


def test_edits_that_are_not_possible_leave_the_rest(client: TestClient) -> None:
    bad = [{**GOOD, "layer": 99}, {**GOOD, "cell": 24}, {**GOOD, "cell": 6, "positions": [2, 11]}]
    found = ask(client, "prompt", {"text": TEXT, "edits": [bad[0], GOOD, *bad[1:]]})
    expected = prompt.read(explored.model(), TEXT, edits=[Edit(1, 5, 3.0)]).to_json()
    problems = found.pop("problems")
    assert found == json.loads(json.dumps(expected))
    assert [each["edit"] for each in problems] == [0, 2, 3]
    assert [each["message"] for each in problems] == [
        "There is no cell L99.5 to edit: the model has layers 0 to 2 of cells 0 to 23.",
        "There is no cell L1.24 to edit: the model has layers 0 to 2 of cells 0 to 23.",
        "L1.6 is edited at position 11, but the text has 11 tokens, 0 to 10.",
    ]
    assert ask(client, "prompt", {"text": TEXT, "edits": bad})["edited"] is False


def test_tokens_are_counted_as_the_model_reads_them(client: TestClient) -> None:
    """A special token that is spelled out in a text is text."""
    text = "The cat <s> sat"
    tokens = len(ask(client, "prompt", {"text": text})["tokens"])
    assert tokens == len(text.encode())
    edited = {**GOOD, "positions": [tokens - 1]}
    assert ask(client, "prompt", {"text": text, "edits": [edited]})["problems"] == []


def test_ablation(client: TestClient) -> None:
    cells = [[0, 3], [2, 7]]
    asked = {"text": TEXT, "position": 4, "token": "e", "cells": cells, "edits": [GOOD, {**GOOD, "layer": 9}]}
    for everywhere in (False, True):
        found = ask(client, "prompt/ablation", {**asked, "everywhere": everywhere})
        expected = prompt.ablate(
            explored.model(),
            TEXT,
            [(0, 3), (2, 7)],
            position=4,
            token="e",
            edits=[Edit(1, 5, 3.0)],
            everywhere=everywhere,
        )
        assert (found["token"], found["everywhere"]) == ("e", everywhere)
        assert found["p"] == pytest.approx(expected.p, rel=1e-4)
        assert [[each["layer"], each["cell"]] for each in found["cells"]] == cells
        for one, other in zip(found["cells"], expected.cells, strict=True):
            assert [one["logit"], one["log_p"]] == pytest.approx([other.logit, other.log_p], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"cells": []}, 422, "at least one"),
        ({"cells": [[0, True]]}, 422, "two whole numbers"),
        ({"cells": [[0, 1, 2]]}, 422, "two whole numbers"),
        ({"cells": [[9, 1]]}, 422, "no cell L9.1"),
        ({"cells": [[0, 0]] * (ABLATED + 1)}, 413, f"at most {ABLATED}"),
        ({"everywhere": 1}, 422, "true or false"),
        ({"position": 40}, 422, "no position 40"),
        ({"token": "none"}, 422, "not a token"),
        ({"more": 1}, 422, "no field"),
    ],
)
def test_ablations_that_cannot_be(client: TestClient, change: dict[str, Any], status: int, says: str) -> None:
    error = ask(client, "prompt/ablation", {"text": TEXT, "cells": [[0, 0]], **change}, status)["error"]
    assert says in error["message"]


def test_too_much_work_at_once_is_refused(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from msgspec.structs import replace

    from keyhole.web import live

    monkeypatch.setattr(live, "LIMITS", replace(live.LIMITS, positions=40))
    with TestClient(web.create(run, model=explored.model()), base_url="http://127.0.0.1:8765") as client:
        asked = {"text": TEXT, "cells": [[0, 0]] * 4, "everywhere": True}
        assert "44 tokens" in ask(client, "prompt/ablation", asked, 413)["error"]["message"]
        ask(client, "prompt/ablation", {**asked, "cells": [[0, 0]] * 3})
        ask(client, "prompt/ablation", {**asked, "everywhere": False})


def test_layers(client: TestClient) -> None:
    found = ask(client, "prompt/layers", {"text": TEXT, "edits": [GOOD]})
    expected = prompt.by_layer(explored.model(), TEXT, edits=[Edit(1, 5, 3.0)]).to_json()
    assert found == json.loads(json.dumps(expected))
    assert "'text'" in ask(client, "prompt/layers", {"edits": []}, 422)["error"]["message"]


def test_edits_are_loaded_from_what_was_saved(client: TestClient) -> None:
    edits = [GOOD, {"layer": 2, "cell": 7, "scale": 0.0, "positions": [3, 4]}]
    saved = ask(client, "edits", {"edits": edits})
    found = ask(client, "edits/load", {"file": json.dumps(saved)})
    assert found == {"edits": edits, "problems": []}
    assert intervene.read_edits(saved, explored.model()) == intervene.parse(found["edits"])
    assert ask(client, "edits/load", {"file": json.dumps(edits)})["edits"] == edits  # a list, as keyhole.load takes it
    saved["edits"] += [{**GOOD, "layer": 99}, GOOD, {**GOOD, "cell": 3, "scale": "off"}, {**GOOD, "positions": [63]}]
    found = ask(client, "edits/load", {"file": json.dumps(saved)})
    assert found["edits"] == edits
    assert [each["edit"] for each in found["problems"]] == [2, 3, 4, 5]
    for each, says in zip(
        found["problems"],
        ["no cell L99.5", "edited twice", "scale of edit 4 is 'off'", "at most 63 tokens"],
        strict=True,
    ):
        assert says in each["message"]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("{", "is no JSON"),
        ("[" * 10_000, "is no JSON"),
        ('{"keyhole": 2, "model": {}, "edits": []}', "newer Keyhole"),
        ('{"some": "file"}', "is an object. A file of edits is a JSON list"),
        ('"text"', "must be a list"),
        ('{"keyhole": 1, "model": {"fingerprint": "abc"}, "edits": []}', "belongs to another model"),
    ],
)
def test_files_that_are_no_edits(client: TestClient, file: str, says: str) -> None:
    assert says in ask(client, "edits/load", {"file": file}, 422)["error"]["message"]


def test_a_short_file_that_means_many_edits_is_refused_soon(client: TestClient) -> None:
    file = json.dumps(
        [{"cells": [f"L0.{cell}" for cell in range(24)], "scale": 0, "positions": [n]} for n in range(60)]
    )
    said = ask(client, "edits/load", {"file": file}, 413)["error"]["message"]
    assert "at most 256" in said


def test_an_address_that_does_not_exist_is_left_out_of_a_file(client: TestClient) -> None:
    file = json.dumps([{"cell": "L99.1", "scale": 0}, {"cell": "L1.2", "scale": 0}])
    found = ask(client, "edits/load", {"file": file})
    assert [(each["layer"], each["cell"]) for each in found["edits"]] == [(1, 2)]
    assert [each["edit"] for each in found["problems"]] == [0]


@pytest.mark.parametrize("text", [TEXT, 'a "quote" \\ \n \'\'\' "" # é ␣ 𝔘 {x} %s'])
def test_the_program_gives_what_the_page_shows(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a gated model: the signs are those of its run."""
    from families import tiny

    model = keyhole.load(save(tiny("llama"), tmp_path / "model"))
    corpus = tmp_path / "text.txt"
    corpus.write_text("The cat sat on the mat.\nThe dog looked on.\n")
    run = keyhole.scan(model, [corpus], out=tmp_path / "run", top=3, unit="line")
    asked = {
        "text": text,
        "position": 3,
        "token": "e",
        "edits": [GOOD, {"layer": 2, "cell": 7, "scale": -0.5, "positions": [1, 3]}, {**GOOD, "layer": 9}],
    }
    with TestClient(web.create(run, model=model), base_url="http://127.0.0.1:8765") as client:
        for each in (asked, {"text": text}):
            code, shown = ask(client, "prompt/python", each)["code"], ask(client, "prompt", each)
            names: dict[str, Any] = {}
            exec(compile(code, "program", "exec"), names)
            shown.pop("problems")
            assert json.loads(json.dumps(names["view"].to_json())) == shown
            assert len(capsys.readouterr().out.splitlines()) == 10
            assert re.match(r"import keyhole\n\nmodel = keyhole\.load\(", code)


# Values and sets


def test_a_value_is_changed_for_one_request(client: TestClient) -> None:
    width = explored.model().values(0).shape[1]
    edits = [Edit(1, 5, 1.0, towards="a", by=3.0), Edit(2, 7, 0.5, value=tuple([0.25] * width))]
    sent = [edit.to_json() for edit in edits]
    found = ask(client, "prompt", {"text": TEXT, "edits": sent})
    expected = prompt.read(explored.model(), TEXT, edits=edits).to_json()
    assert {**found, "problems": None} == {**json.loads(json.dumps(expected)), "problems": None}
    assert found["problems"] == []
    saved = ask(client, "edits", {"edits": sent})
    assert saved == json.loads(json.dumps(intervene.dump(edits, explored.model())))
    assert ask(client, "edits/load", {"file": json.dumps(saved)}) == {"edits": sent, "problems": []}
    code = ask(client, "prompt/python", {"text": TEXT, "edits": sent})["code"]
    assert "keyhole.Edit(layer=1, cell=5, scale=1.0, towards='a', by=3.0)" in code
    wrong = [{**sent[0], "towards": "no token"}, {**sent[1], "value": [1.0]}, {**sent[0], "positions": [1]}]
    found = ask(client, "prompt", {"text": TEXT, "edits": wrong[:2]})
    assert [each["edit"] for each in found["problems"]] == [0, 1]
    assert "is not a token of this model" in found["problems"][0]["message"]
    assert f"has 1 numbers; a value of this model has {width}" in found["problems"][1]["message"]
    refused = ask(client, "prompt", {"text": TEXT, "edits": wrong[2:]}, 422)
    assert "A value is one for all positions" in refused["error"]["message"]


def test_sets_of_cells(client: TestClient, run: keyhole.Run) -> None:
    collections.save(run, 40, {"tags": ["mine"]})
    collections.save(run, 3, {"tags": ["mine"]})
    offered = client.get("/api/sets").json()
    assert {"name": "collection:mine", "title": "tagged “mine”", "cells": 2} in offered["sets"]
    assert offered["patterns"] is False
    found = ask(client, "sets", {"name": "collection:mine"})
    assert found == {"name": "collection:mine", "total": 2, "cells": [[0, 3], [1, 16]]}
    for wrong, says in (
        ({}, "Name a set of cells"),
        ({"name": 3}, "Name a set of cells"),
        ({"name": "x" * 501}, "at most 500 characters"),
        ({"name": "dead"}, "is no set of cells"),
        ({"name": "kind:dead"}, "keyhole analyze"),
    ):
        assert says in ask(client, "sets", wrong, 422)["error"]["message"]
    file = json.dumps([{"set": "collection:mine", "scale": 0}, {"cell": "L2.1", "scale": 2}])
    loaded = ask(client, "edits/load", {"file": file})
    assert [(each["layer"], each["cell"]) for each in loaded["edits"]] == [(0, 3), (1, 16), (2, 1)]


def test_a_set_that_is_too_large_is_counted_and_not_listed(
    client: TestClient, run: keyhole.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections.save(run, 40, {"starred": True})
    collections.save(run, 41, {"starred": True})
    monkeypatch.setattr(schema, "LIMITS", msgspec.structs.replace(schema.LIMITS, edits=1))
    assert ask(client, "sets", {"name": "collection:starred"}) == {
        "name": "collection:starred",
        "total": 2,
        "cells": [],
    }
