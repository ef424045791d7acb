"""The server: who may ask, how much, and that every answer and every error has its shape."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import explored
import httpx
import msgspec
import pytest
from starlette.testclient import TestClient

import keyhole
from keyhole.commands import make
from keyhole.errors import ModelError, UsageError
from keyhole.views import figures
from keyhole.web import guard, live, schema, serve
from keyhole.web import routes as web
from keyhole.web.contract import Explorer

HERE = "http://127.0.0.1:8765"
TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("app"))


def answer(model: Any, text: str, **asked: Any) -> dict[str, Any]:
    """In place of the model: says what it was asked."""
    if text == "fail":
        raise RuntimeError("a secret of the inside")
    if text == "no such":
        raise UsageError("There is no such token.")
    return explored.prompt(text, **asked)


@pytest.fixture
def client(run: keyhole.Run) -> Iterator[TestClient]:
    made = web.create(run, model=explored.model(), read=answer)
    with TestClient(made, base_url=HERE, raise_server_exceptions=False) as client:
        yield client


def shaped(response: Any, status: int, code: str) -> dict[str, Any]:
    """Every error has the one shape, and every answer is sealed."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    msgspec.json.decode(response.content, type=schema.Error)
    error = response.json()["error"]
    assert set(error) == {"code", "message", "detail"}
    assert error["code"] == code
    assert len(error["message"]) > 10
    sealed(response)
    return dict(error)


def sealed(response: Any) -> None:
    for name, value in guard.HEADERS.items():
        assert response.headers[name] == value


# Answers


def test_the_page_and_its_files(client: TestClient) -> None:
    for path, media in (
        ("/static/vega.js", "text/javascript; charset=utf-8"),
        ("/data/run.json", "application/json"),
        ("/data/cells/1/2.json", "application/json"),
        *((f"/static/{name}", "") for name in web.static_files()),
    ):
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(media)
        assert response.headers["cache-control"] == "no-cache"
        sealed(response)
    assert client.get("/data/run.json").json()["live"] is True
    if "index.html" in web.static_files():
        assert client.get("/").text == client.get("/index.html").text
        assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"


def test_the_charts_script_is_kept_and_a_changed_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(snippet: str, **options: object) -> str:
        made.append(snippet)
        return f"let drawn = {len(made)};\r\n"

    monkeypatch.setattr("vl_convert.javascript_bundle", make)
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    again = figures._bundle.__wrapped__
    assert [again(), again()] == ["let drawn = 1;\n"] * 2
    (file,) = (tmp_path / "cache").iterdir()
    for damaged in (file.read_text().replace("drawn", "stolen"), "", "\n"):
        file.write_text(damaged)
        assert again() == f"let drawn = {len(made)};\n"
    assert len(made) == 4
    monkeypatch.setenv("KEYHOLE_CACHE", str(file / "no folder"))
    assert again() == "let drawn = 5;\n"


def test_what_the_browser_has_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/data/layers/1.json")
    again = client.get("/data/layers/1.json", headers={"If-None-Match": f'"x", W/{first.headers["etag"]}'})
    assert again.status_code == 304
    assert again.content == b""
    sealed(again)
    assert client.get("/data/layers/2.json", headers={"If-None-Match": first.headers["etag"]}).status_code == 200
    assert first.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/data",
        "/data/",
        "/data/cells/0/999.json",
        "/data/../manifest.json",
        "/data/%2e%2e/manifest.json",
        "/static/",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/../app.py",
        "/static/.",
        "/api",
        "/api/x",
    ],
)
def test_what_is_not_there(client: TestClient, path: str) -> None:
    shaped(client.get(path), 404, "not_found")


def test_other_methods_are_not_allowed(client: TestClient) -> None:
    kind = {"Content-Type": "application/json"}
    for path, allowed in (("/data/run.json", "GET"), ("/api/status", "GET"), ("/index.html", "GET")):
        response = client.post(path, headers=kind, content="{}")
        shaped(response, 405, "not_allowed")
        assert allowed in response.headers["allow"]
    shaped(client.get("/api/prompt"), 405, "not_allowed")
    shaped(client.put("/api/annotations", headers=kind), 405, "not_allowed")


# Prompts


def test_a_prompt(client: TestClient) -> None:
    assert client.get("/api/status").json() == {
        "model": "tiny-gpt2",
        "loaded": True,
        "chat": False,
        "limits": {
            "prompt_tokens": 63,
            "edits": 256,
            "prompt_characters": 20_000,
            "positions": 16_384,
            "generated_tokens": 500,
        },
    }
    asked = {"text": "The cat", "position": 1, "token": "x", "edits": []}
    response = client.post("/api/prompt", json=asked)
    assert response.json() == explored.prompt("The cat", position=1, token="x")
    assert response.headers["cache-control"] == "no-store"
    sealed(response)


def test_edits_come_back_as_a_file(client: TestClient, run: keyhole.Run) -> None:
    edit = {"layer": 1, "cell": 2, "scale": 0.0, "positions": [3]}
    saved = client.post("/api/edits", json={"edits": [edit]}).json()
    assert saved["edits"] == [edit]
    assert saved["model"]["fingerprint"] == run.manifest["model"]["fingerprint"]
    shaped(client.post("/api/edits", json={"edits": [edit | {"layer": 99}]}), 422, "wrong_value")


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ({"text": "x" * 20_001}, 413, "too_long"),
        ({"text": "word " * 600}, 413, "too_long"),
        ({"text": "a", "edits": [{"layer": 0, "cell": 0, "scale": 0}] * 257}, 413, "too_long"),
        ({"text": 5}, 422, "wrong_value"),
        ({}, 422, "wrong_value"),
        ({"text": "a", "position": True}, 422, "wrong_value"),
        ({"text": "a", "token": 1}, 422, "wrong_value"),
        ({"text": "a", "edits": {}}, 422, "wrong_value"),
        ({"text": "a", "edits": [{"layer": 0}]}, 422, "wrong_value"),
        ({"text": "a", "surplus": 1}, 422, "wrong_value"),
        ({"text": "no such"}, 422, "wrong_value"),
        ([], 422, "wrong_value"),
        ({"text": "\ud800"}, 422, "wrong_value"),
    ],
)
def test_prompts_that_cannot_be(client: TestClient, asked: Any, status: int, code: str) -> None:
    kind = {"Content-Type": "application/json"}
    shaped(client.post("/api/prompt", content=json.dumps(asked), headers=kind), status, code)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"text": NaN}', b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json(client: TestClient, body: bytes) -> None:
    shaped(client.post("/api/prompt", content=body, headers={"Content-Type": "application/json"}), 400, "bad_json")


def test_a_failure_tells_nothing_of_the_inside(client: TestClient) -> None:
    response = client.post("/api/prompt", json={"text": "fail"})
    shaped(response, 500, "failed")
    assert "secret" not in response.text


def test_too_large_a_request_is_not_read(client: TestClient) -> None:
    kind = {"Content-Type": "application/json"}
    shaped(client.post("/api/notes", content=b" " * (guard.LARGEST_BODY + 1), headers=kind), 413, "too_large")
    parts = (b" " * 65536 for _ in range(17))  # no length told before
    shaped(client.post("/api/notes", content=parts, headers=kind), 413, "too_large")


def test_a_model_that_is_gone_is_told(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(run: keyhole.Run) -> Any:
        raise ModelError("tiny-gpt2 is not there.")

    monkeypatch.setattr("keyhole.models.rerun.model_of", gone)
    with TestClient(web.create(run, read=answer), base_url=HERE) as client:
        assert client.get("/api/status").json()["loaded"] is False
        response = client.post("/api/prompt", json={"text": "a"})
        assert "is not there" in shaped(response, 503, "no_model")["message"]
        assert response.headers["retry-after"]
        assert client.get("/data/run.json").status_code == 200


def test_everyone_gets_their_own_answer_and_too_many_wait_outside(run: keyhole.Run) -> None:
    """Many ask at once while the model is slow; others are served meanwhile."""
    go, inside = threading.Event(), []

    def slow(model: Any, text: str, **asked: Any) -> dict[str, Any]:
        inside.append(text)
        assert go.wait(20)
        assert inside[-1] == text  # one at a time
        return explored.prompt(text, **asked)

    made = web.create(run, model=explored.model(), read=slow)

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url=HERE) as client:
            asked = [
                asyncio.create_task(client.post("/api/prompt", json={"text": str(i)})) for i in range(live.WAITING + 3)
            ]
            while not inside:
                await asyncio.sleep(0.01)
            assert (await client.get("/data/run.json")).status_code == 200
            go.set()
            return list(await asyncio.gather(*asked))

    responses = asyncio.run(ask())
    taken = [(i, r) for i, r in enumerate(responses) if r.status_code == 200]
    assert [r.json()["tokens"][0] for i, r in taken] == [str(i) for i, _ in taken]
    assert len(taken) == live.WAITING
    for response in responses:
        if response.status_code != 200:
            shaped(response, 429, "busy")
            assert response.headers["retry-after"]


def test_edits_of_one_are_not_seen_by_another(run: keyhole.Run) -> None:
    """With the real reader: asked all at once, everyone gets what they get when asked alone."""
    made = web.create(run, model=explored.model())
    asked = [
        {"text": text, "edits": [{"layer": 0, "cell": cell, "scale": -30.0} for cell in range(cells)]}
        for text in ("The cat", "A dog ran")
        for cells in (0, 24, 0, 3)
    ]

    async def ask(together: bool) -> list[Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(made), base_url=HERE) as client:
            if together:
                found = await asyncio.gather(*(client.post("/api/prompt", json=one) for one in asked))
            else:
                found = [await client.post("/api/prompt", json=one) for one in asked]
            return [response.json() for response in found]

    alone = asyncio.run(ask(together=False))
    assert alone[0] == alone[2] != alone[1]
    assert alone[1]["edited"] is True
    assert alone[1]["original"] == alone[0]["prediction"] != alone[1]["prediction"]
    assert asyncio.run(ask(together=True)) == alone


# Who may ask


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "10.0.0.1"])
def test_a_foreign_name_is_refused(client: TestClient, host: str) -> None:
    shaped(client.get("/data/run.json", headers={"Host": host}), 421, "wrong_host")


@pytest.mark.parametrize("host", ["", "a b", "x/y", "[::1", "user@127.0.0.1"])
def test_a_host_that_cannot_be_read(client: TestClient, host: str) -> None:
    shaped(client.get("/data/run.json", headers={"Host": host}), 400, "bad_host")


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:9000", "LOCALHOST:1"])
def test_names_of_this_machine(client: TestClient, host: str) -> None:
    assert client.get("/data/run.json", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Origin": "http://evil.example"}, 403, "wrong_origin"),
        ({"Origin": "http://127.0.0.1:9999"}, 403, "wrong_origin"),
        ({"Origin": "null"}, 403, "wrong_origin"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "wrong_origin"),
        ({"Content-Type": "text/plain"}, 415, "not_json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "not_json"),
        ({"Content-Type": ""}, 415, "not_json"),
    ],
)
def test_another_site_cannot_change_anything(
    client: TestClient, run: keyhole.Run, headers: dict[str, str], status: int, code: str
) -> None:
    note = {"layer": 0, "cell": 0, "text": "planted"}
    sent = {"Content-Type": "application/json", **headers}
    shaped(client.post("/api/notes", content=json.dumps(note), headers=sent), status, code)
    assert client.get("/api/annotations").json()["notes"] == {}


def test_our_own_page_can(client: TestClient, run: keyhole.Run) -> None:
    note = {"layer": 0, "cell": 0, "text": "a note"}
    sent = {"Origin": HERE, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json; charset=utf-8"}
    assert client.post("/api/notes", content=json.dumps(note), headers=sent).json()["saved"] is True
    assert client.get("/api/annotations").json()["notes"] == {"L0.0": "a note"}
    client.post("/api/notes", json=note | {"text": ""})
    assert client.get("/data/annotations.json").json()["notes"] == {}


def test_without_the_token_nothing_is_told(run: keyhole.Run) -> None:
    made = web.create(run, host="0.0.0.0", token=TOKEN)
    with TestClient(made, base_url="http://10.0.0.7:8765", follow_redirects=False) as client:
        for path in ("/", "/static/vega.js", "/data/run.json", "/api/status", "/nowhere", "/data/run.json?token=wrong"):
            response = client.get(path)
            shaped(response, 401, "no_token")
            assert response.headers["www-authenticate"] == "Bearer"
        for given in ("Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer é".encode()):
            shaped(client.get("/data/run.json", headers={"Authorization": given}), 401, "no_token")
        assert client.get("/data/run.json", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200

        first = client.get(f"/data/run.json?a=1&token={TOKEN}")
        assert (first.status_code, first.headers["location"]) == (303, "./run.json?a=1")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/data/run.json").status_code == 200
        client.cookies.clear()
        shaped(client.get("/data/run.json", headers={"Cookie": cookie.split(";")[0] + "x"}), 401, "no_token")
        shaped(client.post(f"/api/notes?token={TOKEN}", json={}), 401, "no_token")


def test_tokens_that_are_asked_for() -> None:
    assert guard.token_for("127.0.0.1", None) is None
    assert guard.token_for("localhost", TOKEN) == TOKEN
    made = guard.token_for("0.0.0.0", None)
    assert made
    assert len(made) >= 40
    assert made != guard.token_for("0.0.0.0", None)
    for bad in ("short", "with a space in it 1234", ""):
        with pytest.raises(UsageError, match="at least 16"):
            guard.token_for("127.0.0.1", bad)
    with pytest.raises(UsageError, match="needs a token"):
        guard.Guard(None, host="192.168.0.4")  # type: ignore[arg-type]


# The command


def test_the_next_free_port_is_taken() -> None:
    with serve.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with serve.bind("127.0.0.1", port) as other:
            assert other.getsockname()[1] > port
    with pytest.raises(UsageError, match="cannot be bound"):
        serve.bind("192.0.2.1", 8765)
    assert serve.address("::1", 5) == "http://[::1]:5/"
    assert serve.address("0.0.0.0", 5) == "http://127.0.0.1:5/"


@pytest.mark.parametrize(("terminal", "ci", "served"), [(True, "", 1), (True, "true", 0), (False, "", 0)])
def test_the_demo_ends_with_the_explorer_where_someone_can_look(
    run: keyhole.Run, monkeypatch: pytest.MonkeyPatch, terminal: bool, ci: str, served: int
) -> None:
    asked: list[keyhole.Run] = []
    monkeypatch.setattr("keyhole.web.serve.serve", asked.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("CI", ci)
    make.explore(run)
    assert asked == [run] * served


@pytest.mark.slow
def test_warmed_up_answers_are_the_same(run: keyhole.Run) -> None:
    warm, cold = Explorer(run), Explorer(run)
    with web.warming(warm):
        for path in ("run.json", "map.json", "figures.json", "cells/0/0.json"):
            assert warm.body(path) == cold.body(path)
    assert "run.json" in warm._kept


@pytest.mark.slow(seconds=2)
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_keyhole_serve(run: keyhole.Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keyhole.cli", "serve", str(run.path), "--no-open", "--port", "0"]
    server = subprocess.Popen([*command, "--token", TOKEN], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout
    try:
        line = server.stdout.readline()
        assert str(run.path) in line
        url = line.split()[1]
        assert url.endswith(f"/?token={TOKEN}")
        base = url.partition("?")[0]
        request = urllib.request.Request(base + "data/run.json", headers={"Authorization": f"Bearer {TOKEN}"})
        for attempt in range(100):
            try:
                with urllib.request.urlopen(request) as response:
                    assert json.load(response)["model"]["name"] == "tiny-gpt2"
                break
            except urllib.error.URLError as error:
                if attempt == 99 or isinstance(error, urllib.error.HTTPError):
                    raise
                time.sleep(0.1)
    finally:
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=20)
    assert server.returncode == 0
    assert "Traceback" not in out
    assert TOKEN not in out
