"""The explorer while its run changes underneath: nothing of one run is shown or saved as another's."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import explored
import httpx
import pytest
from hostile import reseal
from starlette.testclient import TestClient

import keyhole
from keyhole.common.files import write_json
from keyhole.store import layout as store
from keyhole.web import guard
from keyhole.web import routes as web
from keyhole.web.served import HEADER, Served

HERE = "http://127.0.0.1:8765"
NOTE = {"layer": 0, "cell": 4, "text": "of the old run"}
ANNOTATION = {
    "annotator": "ada",
    "layer": 0,
    "cell": 4,
    "patterns": [{"triggers": [0, 1, 2], "description": "cats", "kind": "semantic"}],
}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explored.write(tmp_path_factory.mktemp("first")).path


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another scan of the same model: as many cells, other triggers."""
    folder = tmp_path_factory.mktemp("second")
    text = folder / "text.txt"
    text.write_text("\n".join(f"A dog of {i} years ran to the house number {i * 7}." for i in range(20)) + "\n")
    return keyhole.scan(explored.model(), [text], out=folder / "run", top=6, unit="line", context=64).path


@pytest.fixture
def path(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


@pytest.fixture
def client(path: Path) -> Iterator[TestClient]:
    def answer(model: Any, text: str, **asked: Any) -> dict[str, Any]:
        return explored.prompt(text)

    made = web.create(keyhole.open(path), model=explored.model(), read=answer)
    with TestClient(made, base_url=HERE, raise_server_exceptions=False) as client:
        yield client


def everything(client: TestClient, **options: Any) -> Iterator[tuple[str, httpx.Response]]:
    """Each kind of request to data/… and api/…"""
    for name in ("run", "map", "figures", "vocabulary", "annotations", "layers/0", "cells/0/4", "words/0", "units/0"):
        yield name, client.get(f"/data/{name}.json", **options)
    yield "status", client.get("/api/status", **options)
    yield "read", client.get("/api/annotations", **options)
    yield "note", client.post("/api/notes", json=NOTE, **options)
    yield "annotation", client.post("/api/annotations", json=ANNOTATION, **options)
    yield "prompt", client.post("/api/prompt", json={"text": "The cat"}, **options)
    yield "edits", client.post("/api/edits", json={"edits": []}, **options)


def refused(response: httpx.Response, status: int, code: str, *said: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    for part in said:
        assert part in error["message"]
    assert response.headers["cache-control"] == "no-store"
    for name, value in guard.HEADERS.items():
        assert response.headers[name] == value


def replace(path: Path, by: Path) -> None:
    """As `scan --force` does it."""
    path.rename(path.with_name("old"))
    shutil.copytree(by, path)


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_that_took_the_place_is_neither_shown_nor_written(client: TestClient, path: Path, second: Path) -> None:
    assert all(response.status_code == 200 for _, response in everything(client))
    replace(path, second)
    for _, response in everything(client):
        refused(response, 409, "run_changed", str(path), "Nothing was saved")
    assert files(path) == files(second)


def test_a_run_that_went_away_stays_away(client: TestClient, path: Path) -> None:
    assert client.get("/data/run.json").status_code == 200
    path.rename(path.with_name("moved"))
    for _, response in everything(client):
        refused(response, 410, "run_gone", str(path), "Nothing was saved")
    assert not path.exists()
    path.mkdir()  # an empty folder is no run either
    refused(client.post("/api/notes", json=NOTE), 410, "run_gone")
    assert list(path.iterdir()) == []
    assert client.get("/").status_code == 200  # the page itself says it
    path.rmdir()
    path.with_name("moved").rename(path)
    assert client.post("/api/notes", json=NOTE).json()["saved"] is True
    assert client.get("/data/annotations.json").json()["notes"] == {"L0.4": "of the old run"}


@pytest.mark.parametrize("page", ["/", "/index.html"])
def test_loading_the_page_opens_what_is_there(client: TestClient, path: Path, second: Path, page: str) -> None:
    before = client.get("/data/run.json").json()
    replace(path, second)
    assert client.get(page).status_code == 200
    after = client.get("/data/run.json").json()
    assert after["checksum"] == keyhole.open(second).manifest["checksum"] != before["checksum"]
    assert all(response.status_code == 200 for _, response in everything(client))
    assert (path / "marks.jsonl").exists()
    told = keyhole.open(second)
    shown = client.get("/data/cells/0/4.json").json()
    assert [row[1:3] for row in shown["triggers"]] == [[t.unit, t.position] for t in told.cell(0, 4).triggers]


def test_a_tab_of_the_old_run_cannot_write_into_the_new_one(client: TestClient, path: Path, second: Path) -> None:
    old = {HEADER: client.get("/data/run.json").json()["checksum"]}
    assert all(response.status_code == 200 for _, response in everything(client, headers=old))
    replace(path, second)
    client.get("/")  # another tab
    new = {HEADER: client.get("/data/run.json").json()["checksum"]}
    for _, response in everything(client, headers=old):
        refused(response, 409, "run_changed", "Nothing was saved")
    assert files(path) == files(second)
    assert all(response.status_code == 200 for _, response in everything(client, headers=new))


@pytest.mark.parametrize("named", ["", "x", "0" * 64, "é".encode()])
def test_a_request_that_names_no_run_of_ours(client: TestClient, named: Any) -> None:
    refused(client.get("/data/run.json", headers={HEADER: named}), 409, "run_changed")


def test_a_run_that_cannot_be_opened_says_why(client: TestClient, path: Path, second: Path) -> None:
    replace(path, second)
    (path / "tokens.npy").unlink()
    assert client.get("/").status_code == 200
    refused(client.get("/data/run.json"), 409, "run_changed", "cannot be opened", "tokens.npy")
    shutil.copy(second / "tokens.npy", path / "tokens.npy")
    client.get("/")
    assert client.get("/data/run.json").status_code == 200
    (path / "manifest.json").write_text("{")
    refused(client.post("/api/notes", json=NOTE), 409, "run_changed")


def test_a_replacement_during_a_save_is_not_told_as_saved(
    client: TestClient, path: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(run: keyhole.Run, value: Any) -> dict[str, Any]:
        replace(path, second)
        return dict(value)

    monkeypatch.setattr(web, "save_note", save)
    refused(client.post("/api/notes", json=NOTE), 409, "run_changed", "saved")


def test_a_file_that_vanishes_during_a_request_is_no_failure(
    client: TestClient, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(run: keyhole.Run, value: Any) -> dict[str, Any]:
        path.rename(path.with_name("moved"))
        raise FileNotFoundError(str(path))

    monkeypatch.setattr(web, "save_note", save)
    refused(client.post("/api/notes", json=NOTE), 410, "run_gone")


def test_a_new_analysis_is_seen_without_a_restart(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sat on mat {i % 7}." for i in range(24)) + "\n")
    run = keyhole.scan(explored.model(), [text], out=tmp_path / "run", top=6, unit="line", context=64)
    with TestClient(web.create(run), base_url=HERE) as client:
        before = client.get("/data/run.json").json()
        assert before["lenses"] == []
        assert before["shading"] is False
        assert client.get("/data/figures.json").json()["figures"] == []
        only = ["activity", "agreement", "rank", "confidence", "shading"]
        keyhole.analyze(keyhole.open(run.path), only=only, lens=["raw"], model=explored.model())
        told(run.path, "first")
        named = {HEADER: before["checksum"]}  # the page that was open stays
        after = client.get("/data/run.json", headers=named).json()
        assert after == before | {"lenses": ["raw"], "lens": "raw", "shading": True, "worth": after["worth"]}
        assert client.get("/data/figures.json", headers=named).json()["figures"] != []
        cell = client.get("/data/cells/0/4.json", headers=named).json()
        assert cell["values"][0]["lens"] == "raw"
        assert len(cell["triggers"][0]) == 8  # with its shades
        keyhole.analyze(keyhole.open(run.path), only=["agreement"], lens=["norm"], model=explored.model())
        told(run.path, "second")
        assert client.get("/data/run.json", headers=named).json()["lenses"] == ["norm", "raw"]


def told(path: Path, what: str) -> None:
    """Rewritten after each analysis."""
    write_json(store.analyses_file(path), {"groups": store.analyses(path), "last": what})


def test_what_is_open_goes_on_if_the_new_analysis_cannot_be_read(
    client: TestClient, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.get("/data/run.json").json()
    (path / "values_norm_top_tokens.npy").write_bytes(b"damaged")
    told(path, "damaged")
    assert client.get("/data/run.json").json() == before


def test_the_model_is_loaded_once_for_one_run(path: Path) -> None:
    served = Served(keyhole.open(path), model=explored.model())
    live = served.now(None).live
    told(path, "first")
    assert served.now(None).live is live
    os.utime(path / "manifest.json", ns=(1, 1))  # another file, the same run
    assert served.now(None).live is live


def test_a_new_run_of_the_same_model_keeps_it_and_of_another_does_not(path: Path, second: Path, tmp_path: Path) -> None:
    served = Served(keyhole.open(path), model=explored.model())
    replace(path, second)
    served.reopen()
    assert served.now(None).live.status().loaded is True
    reseal(path, lambda manifest: manifest["model"].update(fingerprint="0" * 64))
    served.reopen()
    assert served.now(None).live.status().loaded is False


def test_a_run_replaced_between_opening_and_serving(path: Path, second: Path) -> None:
    run = keyhole.open(path)
    replace(path, second)
    with TestClient(web.create(run), base_url=HERE) as client:
        refused(client.get("/data/run.json"), 409, "run_changed")


def test_many_ask_while_the_run_is_replaced(path: Path, first: Path, second: Path) -> None:
    """No answer says one run and holds the triggers of the other."""
    units = {
        keyhole.open(at).manifest["checksum"]: [t.unit for t in keyhole.open(at).cell(0, 4).triggers]
        for at in (first, second)
    }
    served = Served(keyhole.open(path))
    wrong: list[Any] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            try:
                with served.asked(None) as opened:
                    found = opened.checksum, [row.unit for row in opened.explorer.cell(0, 4).triggers]
            except web.Refused:
                continue
            if units[found[0]] != found[1]:
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        staged = shutil.copytree((second, first)[turn % 2], path.with_name(f"next{turn}"))
        path.rename(path.with_name(f"gone{turn}"))
        Path(staged).rename(path)
        served.reopen()
    end.set()
    for thread in threads:
        thread.join()
    assert wrong == []
