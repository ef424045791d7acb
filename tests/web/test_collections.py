"""Collections over HTTP: what is marked, saved, exported and imported, and who may."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import explored
import msgspec
import pytest
from starlette.testclient import TestClient

import keyhole
from keyhole.store import collections
from keyhole.store.collections import Marks
from keyhole.web import routes as web
from keyhole.web import schema
from keyhole.web.contract import Explorer

HERE = "http://127.0.0.1:8765"


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("collected"))


@pytest.fixture
def run(scanned: keyhole.Run, tmp_path: Path) -> keyhole.Run:
    return keyhole.open(shutil.copytree(scanned.path, tmp_path / "run"))


@pytest.fixture
def client(run: keyhole.Run) -> Iterator[TestClient]:
    with TestClient(web.create(run), base_url=HERE, raise_server_exceptions=False) as client:
        yield client


def test_a_mark_is_saved_and_seen_at_once_by_every_reader(client: TestClient, run: keyhole.Run) -> None:
    assert client.get("/data/collections.json").json()["cells"] == {}
    saved = client.post("/api/marks", json={"layer": 1, "cell": 2, "starred": True, "tags": ["a", "b", "a"]}).json()
    assert saved == {"saved": True, "address": "L1.2", "marks": {"starred": True, "tags": ["a", "b"], "note": ""}}
    assert client.post("/api/notes", json={"layer": 1, "cell": 2, "text": "odd"}).json()["saved"] is True
    client.post("/api/marks", json={"layer": 1, "cell": 2, "starred": False})
    assert collections.read(run) == {run["L1.2"].place: Marks(False, ("a", "b"), "odd")}
    for path in ("/data/collections.json", "/api/collections"):
        response = client.get(path)
        msgspec.json.decode(response.content, type=schema.Collections)
        assert response.json()["cells"] == {"L1.2": {"starred": False, "tags": ["a", "b"], "note": "odd"}}
    assert client.get("/data/annotations.json").json()["notes"] == {"L1.2": "odd"}
    client.post("/api/marks", json={"layer": 1, "cell": 2, "tags": [], "note": ""})
    assert client.get("/data/collections.json").json()["cells"] == {}


def test_an_export_is_imported_and_nothing_of_a_wrong_file(client: TestClient, run: keyhole.Run) -> None:
    run["L0.1"].mark(star=True, note="mine")
    value = client.get("/api/collections").json()
    assert client.post("/api/collections", json=value).json() == {"saved": True, "cells": 1, "changed": 0}
    value["cells"] |= {"L0.3": {"tags": ["x"]}}
    assert client.post("/api/collections", json=value).json() == {"saved": True, "cells": 2, "changed": 1}
    before = collections.read(run)
    for wrong, told in (
        (value | {"cells": {"L0.4": {"starred": True}, "L99.3": {"starred": True}}}, "L99.3"),
        (value | {"model": value["model"] | {"fingerprint": "x"}}, "another model"),
        (value | {"more": 1}, "more"),
        (value | {"keyhole": 2}, "version 2"),
        ({}, "cells"),
    ):
        response = client.post("/api/collections", json=wrong)
        assert response.status_code == 422
        assert told in response.json()["error"]["message"]
    assert collections.read(run) == before


@pytest.mark.parametrize("wrong", [{}, {"layer": 0}, {"layer": 0, "cell": 999}, {"layer": 0, "cell": 0, "star": True},
                                   {"layer": 0, "cell": 0, "tags": ["starred"]}, {"layer": True, "cell": 0}])  # fmt: skip
def test_a_wrong_request_saves_nothing(client: TestClient, run: keyhole.Run, wrong: dict[str, object]) -> None:
    response = client.post("/api/marks", json=wrong)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "wrong_value")
    assert not (run.path / "marks.jsonl").exists()


def test_the_export_of_the_site_has_the_collections(run: keyhole.Run) -> None:
    assert "collections.json" in set(Explorer(run).paths())
