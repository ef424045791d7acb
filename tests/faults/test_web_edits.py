"""Long lists of edits and positions: looked through once, and bounded before the model's thread sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import explored
import msgspec
import pytest
from starlette.testclient import TestClient

import keyhole
from keyhole.errors import UsageError
from keyhole.models import intervene
from keyhole.models.intervene import Edit
from keyhole.models.model import Model
from keyhole.web import live
from keyhole.web import routes as web

HERE = "http://127.0.0.1:8765"
MANY = 2000


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.fixture(autouse=True)
def none_yet() -> None:
    Counted.compared = 0


@pytest.fixture(scope="module")
def model() -> Model:
    return explored.model()


@pytest.mark.parametrize("double", [0, 1, MANY // 2, MANY - 1])
def test_a_double_position_is_found_in_one_pass(double: int) -> None:
    positions = [Counted(each) for each in range(MANY)] + [Counted(double)]
    with pytest.raises(UsageError, match=f"name {double} twice"):
        intervene.parse([{"layer": 0, "cell": 0, "scale": 0, "positions": positions}])
    assert Counted.compared < 10 * MANY


def test_positions_without_a_double_are_read_in_one_pass() -> None:
    (edit,) = intervene.parse(
        [{"layer": 0, "cell": 0, "scale": 0, "positions": [Counted(each) for each in reversed(range(MANY))]}]
    )
    assert edit.positions == tuple(range(MANY))
    assert Counted.compared < 10 * MANY


def test_many_edits_are_put_in_place_in_one_pass() -> None:
    edits = [Edit(0, Counted(cell), 0.5, (1,) if cell % 2 else None) for cell in range(MANY)]
    intervene._scaling([(edit.cell, edit) for edit in edits], intervene._Sequences(explored.model(), None))
    assert Counted.compared < 10 * MANY


# The server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("edits"))


@pytest.fixture
def client(run: keyhole.Run, model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with TestClient(web.create(run, model=model), base_url=HERE, raise_server_exceptions=False) as client:
        yield client


def edit(cell: int, positions: list[int]) -> dict[str, Any]:
    return {"layer": 0, "cell": cell, "scale": 0, "positions": positions}


@pytest.mark.parametrize("path", ["/api/prompt", "/api/edits"])
@pytest.mark.parametrize(
    ("edits", "limit"),
    [
        ([edit(0, [0] * 200_000)], "prompt_tokens"),
        ([edit(0, list(range(80_000)))], "prompt_tokens"),
        ([edit(0, [0]), edit(1, list(range(64)))], "prompt_tokens"),
    ],
)
def test_too_many_positions_are_refused_before_any_work(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, edits: list[Any], limit: str
) -> None:
    def work(*args: Any) -> Any:
        raise AssertionError("it was queued")

    monkeypatch.setattr(live.Live, "_do", work)
    response = client.post(path, json={"edits": edits} | ({"text": "The cat"} if path == "/api/prompt" else {}))
    assert response.status_code == 413, response.text
    error = response.json()["error"]
    assert error["code"] == "too_long"
    assert error["detail"]["limit"] == limit
    assert error["detail"]["given"] > error["detail"]["most"] == 63


def test_positions_of_all_edits_together_are_bounded(
    run: keyhole.Run, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LIMITS", msgspec.structs.replace(live.LIMITS, positions=11))
    edits = [edit(cell, [0, 1]) for cell in range(6)]
    with TestClient(web.create(run, model=model), base_url=HERE) as client:
        response = client.post("/api/edits", json={"edits": edits})
        assert response.status_code == 413
        assert response.json()["error"]["detail"] == {"limit": "positions", "most": 11, "given": 12}
        assert client.post("/api/edits", json={"edits": edits[:5]}).status_code == 200


def test_as_many_as_are_allowed_are_taken(client: TestClient) -> None:
    limits = client.get("/api/status").json()["limits"]
    text = "The cat sat on the mat and looked on."
    tokens = client.post("/api/prompt", json={"text": text}).json()["tokens"]
    edits = [edit(cell, list(range(len(tokens)))) for cell in range(24)]
    assert len(edits) * len(tokens) <= limits["positions"]
    assert client.post("/api/prompt", json={"text": text, "edits": edits}).json()["edited"] is True


@pytest.mark.parametrize("positions", [{}, "0", 5, [[]] * 5, [None], [{}], [512], [0, 10**15]])
def test_positions_of_another_kind_are_refused_as_before(client: TestClient, positions: Any) -> None:
    response = client.post("/api/edits", json={"edits": [{"layer": 0, "cell": 0, "scale": 0, "positions": positions}]})
    assert response.status_code == 422


@pytest.mark.parametrize("depth", [100, 900, 990])
def test_nested_values_make_nothing_fail(client: TestClient, depth: int) -> None:
    nested = '{"text":"a","edits":[' + "[" * depth + "]" * depth + "]}"
    response = client.post("/api/prompt", content=nested, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
