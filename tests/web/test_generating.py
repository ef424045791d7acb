"""Continuations over HTTP: the lines are those of `keyhole.generate`, mistakes are told before they begin, and a client that
leaves ends the work."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import explored
import pytest
from browsing import served
from starlette.testclient import TestClient

import keyhole
from keyhole.models.intervene import Edit
from keyhole.models.model import Model
from keyhole.web import live, routes
from keyhole.web.schema import GenerateLine

EDIT = {"layer": 2, "cell": 3, "scale": -40.0, "positions": None}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("generating"))


@pytest.fixture
def client(run: keyhole.Run) -> TestClient:
    return TestClient(routes.create(run, model=explored.model()), base_url="http://127.0.0.1")


def lines(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in response.text.splitlines()]


def test_the_lines_are_what_python_gives(client: TestClient) -> None:
    asked = {"text": "The cat", "edits": [EDIT], "length": 9, "temperature": 1.2, "seed": 5}
    prompt, *rest = lines(client.post("/api/generate", json=asked))
    made = keyhole.generate(explored.model(), "The cat", edits=[Edit(2, 3, -40.0)], length=9, temperature=1.2, seed=5)
    assert prompt == {"prompt": [[each.piece, each.special] for each in made.prompt]}
    assert made.edited is not None
    for side, steps in (("original", made.original), ("edited", made.edited)):
        got = [line["token"] for line in rest if line["token"]["side"] == side]
        assert [(each["piece"], each["end"]) for each in got] == [(step.piece, step.end) for step in steps]
        assert [each["p"] for each in got] == pytest.approx([step.p for step in steps], rel=1e-3)
    assert set(GenerateLine.__struct_fields__) == {"prompt", "token", "error"}


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"text": 3}, 422, "'text' must be a string"),
        ({"text": ""}, 422, "The text is empty"),
        ({"text": "x" * 70}, 413, "70 tokens are too many"),
        ({"length": 501}, 413, "501 tokens are too many; at most 500"),
        ({"length": 1.5}, 422, "length is 1.5"),
        ({"temperature": -1}, 422, "The temperature is -1"),
        ({"seed": "a"}, 422, "seed is 'a'"),
        ({"chat": 1}, 422, "'chat' must be true or false"),
        ({"chat": True}, 422, "has no chat template"),
        ({"edits": [EDIT | {"layer": 9}]}, 422, "no cell L9.3"),
        ({"speed": 1}, 422, "There is no field 'speed' here"),
    ],
)
def test_what_cannot_be_is_refused_before_the_answer_begins(
    client: TestClient, change: dict[str, Any], status: int, says: str
) -> None:
    response = client.post("/api/generate", json={"text": "The cat", **change})
    assert response.status_code == status
    assert says in response.json()["error"]["message"]


def test_what_fails_later_is_the_last_line(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(*args: Any, **options: Any) -> tuple[list[Any], Iterator[Any]]:
        prompt, steps = stream(*args, **options)

        def some() -> Iterator[Any]:
            yield next(steps)
            raise keyhole.KeyholeError("the cat left")

        return prompt, some()

    from keyhole.uses import generate

    stream = generate.stream
    monkeypatch.setattr(generate, "stream", breaking)
    client = TestClient(routes.create(run, model=explored.model()), base_url="http://127.0.0.1")
    found = lines(client.post("/api/generate", json={"text": "The cat"}))
    assert len(found) == 3
    assert found[-1] == {"error": {"code": "not_possible", "message": "the cat left", "detail": {}}}


# A real server


@contextmanager
def slowed(model: Model, seconds: float) -> Iterator[list[float]]:
    """The model takes its time, and notes when it runs."""
    ran: list[float] = []

    def slow(*_: Any) -> None:
        ran.append(time.monotonic())
        time.sleep(seconds)

    hook = model.lm.register_forward_pre_hook(slow)
    try:
        yield ran
    finally:
        hook.remove()


def begin(url: str, **asked: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    body = json.dumps({"text": "The cat", "length": 50, **asked})
    connection.request("POST", "/api/generate", body, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def test_a_client_that_leaves_ends_the_work_and_prompts_do_not_wait_for_it(run: keyhole.Run) -> None:
    model = explored.model()
    with served(run, model) as url, slowed(model, 0.05) as ran:
        open_ones = [begin(url) for _ in range(live.GENERATING)]
        for _, response in open_ones:
            assert response.status == 200
            assert b"prompt" in response.readline()
            assert b"token" in response.readline()  # each line comes when it is made
        assert len(ran) < 40
        late, response = begin(url)
        assert (response.status, json.loads(response.read())["error"]["code"]) == (429, "busy")
        since = len(ran)
        late.request("POST", "/api/prompt", json.dumps({"text": "A dog"}), {"Content-Type": "application/json"})
        response = late.getresponse()
        assert len(json.loads(response.read())["tokens"]) == 5
        assert len(ran) - since < 3 * live.GENERATING  # it came between their tokens
        late.close()
        for connection, response in open_ones:
            response.close()
            connection.close()
        end = time.monotonic() + 10
        while time.monotonic() - ran[-1] < 0.5:  # nothing is computed any more
            assert time.monotonic() < end
            time.sleep(0.05)
        assert len(ran) < 150  # of 200
        again, response = begin(url, length=3)
        assert len(response.read().splitlines()) == 4
        again.close()
