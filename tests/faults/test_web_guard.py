"""Requests nobody's browser sends: each is answered on purpose, sealed, and none makes the server fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import explored
import hypothesis
import pytest
from hypothesis import strategies as st
from starlette.testclient import TestClient

import keyhole
from keyhole.web import guard
from keyhole.web import routes as web

TOKEN = "a-token/with+odd=signs~"
HERE = "http://127.0.0.1:8765"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("guard"))


@pytest.fixture
def client(run: keyhole.Run) -> Iterator[TestClient]:
    made = web.create(run, token=TOKEN)
    with TestClient(made, base_url=HERE, follow_redirects=False, raise_server_exceptions=False) as client:
        yield client


def ask(
    app: Any, method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]]
) -> tuple[int, dict[str, str]]:
    """Status and headers, asked as uvicorn would: the app may not raise, and sends whole answers."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "replace"),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start = sent[0]
    assert start["type"] == "http.response.start"
    for name, value in start["headers"]:
        assert not {b"\r", b"\n", b"\0"} & {bytes([each]) for each in name + value}
    found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
    for name, value in guard.HEADERS.items():
        assert found[name.lower()] == value
    return start["status"], found


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "//", "http://", "http://127.0.0.1:8765@evil", "http://é"]
)
def test_an_origin_that_cannot_be_read_is_another_site(client: TestClient, origin: str) -> None:
    headers = {"Origin": origin.encode(), "Authorization": f"Bearer {TOKEN}"}
    response = client.post("/api/notes", json={"layer": 0, "cell": 0, "text": "planted"}, headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "wrong_origin"


@pytest.mark.parametrize("origin", [HERE, "https://127.0.0.1:8765", HERE.upper()])
def test_our_own_origin_is_not(client: TestClient, origin: str) -> None:
    headers = {"Origin": origin, "Authorization": f"Bearer {TOKEN}"}
    assert client.post("/api/notes", json={"layer": 0, "cell": 0, "text": ""}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/%E6%97%A5%E6%9C%AC",
        "/data/%C3%A9.json",
        "/%0d%0aSet-Cookie:%20a=b",
        "//evil.example/",
        "//evil.example",
        "/%2f%2fevil.example",
        "/x/%5c%5cevil.example",
        "/http:%2f%2fevil.example",
        "/javascript:alert(1)",
        "/%ff%fe",
        "/a%20b%3fc%23d",
        "/..",
    ],
)
def test_the_redirect_stays_here_and_keeps_the_path(run: keyhole.Run, path: str) -> None:
    app = web.create(run, token=TOKEN)
    query = f"token={TOKEN.replace('+', '%2B')}&a=%E2%82%AC%0d%0a&b".encode()
    status, headers = ask(app, "GET", unquote(path), query, [(b"host", b"127.0.0.1:8765")])
    assert status == 303
    assert TOKEN not in headers["location"]
    led = urlsplit(urljoin(HERE + "/folder/" + "here", headers["location"]))
    assert led.netloc == "127.0.0.1:8765"
    assert led.scheme == "http"
    if ".." not in path:
        assert unquote(led.path) == "/folder/" + unquote(path).rpartition("/")[2]
    assert led.query == "a=%E2%82%AC%0D%0A&b="


@pytest.mark.parametrize(
    "others",
    [
        "a=b",
        "[bad]=1",
        "a,b=c",
        'x="unclosed',
        "=",
        ";;;",
        "a=é",
        "{}=;\x01=",
        "keyhole-=1",
        'username-localhost-8888="2|1:0"',
    ],
)
def test_other_cookies_of_this_machine_do_not_lock_out(client: TestClient, others: str) -> None:
    first = client.get(f"/?token={TOKEN.replace('+', '%2B')}")
    ours = first.headers["set-cookie"].partition(";")[0]
    client.cookies.clear()
    for header in (f"{others}; {ours}", f"{ours}; {others}", f"{ours};{others}"):
        assert client.get("/api/status", headers={"Cookie": header.encode("latin-1")}).status_code == 200
    for header in (others, f"x{ours}", f"{ours}x", f"a={ours}", ours.replace("=", "", 1)):
        assert client.get("/api/status", headers={"Cookie": header.encode("latin-1")}).status_code == 401


def test_a_request_that_ends_early_is_not_taken_for_whole(run: keyhole.Run) -> None:
    app, sent = web.create(run), []
    pieces = [{"type": "http.request", "body": b'{"layer":0,"cell":0,"text":"half"}', "more_body": True}]

    async def receive() -> Any:
        return pieces.pop() if pieces else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"99")]
    scope = {"type": "http", "method": "POST", "path": "/api/notes", "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, send))
    assert sent == []
    assert not (run.path / "marks.jsonl").exists() or b"half" not in (run.path / "marks.jsonl").read_bytes()


names = st.sampled_from(
    [
        "host",
        "cookie",
        "authorization",
        "origin",
        "content-length",
        "content-type",
        "sec-fetch-site",
        "keyhole-run",
        "if-none-match",
        "range",
        "accept-encoding",
        "transfer-encoding",
        "expect",
        "x-forwarded-host",
    ]
)
texts = st.text(st.characters(max_codepoint=255, exclude_characters="\0\r\n"), max_size=30)
likely = st.sampled_from(
    [
        "localhost",
        "127.0.0.1:8765",
        "[::1]",
        "http://[",
        "Bearer " + TOKEN,
        "0",
        "-1",
        "9" * 30,
        "²",
        "application/json",
    ]
)
paths = st.one_of(
    st.sampled_from(
        ["/", "/index.html", "/data/run.json", "/api/notes", "/api/prompt", "/static/app.js", "*", "", "//x"]
    ),
    st.text(max_size=30).map(lambda text: "/" + text.encode("utf-8", "replace").decode()),
)


@pytest.mark.parametrize("token", [None, TOKEN])
def test_no_request_makes_the_server_fail(run: keyhole.Run, token: str | None) -> None:
    app = web.create(run, token=token, model=explored.model())

    @hypothesis.given(
        st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "TRACE", "CONNECT", "odd"]),
        paths,
        st.one_of(st.binary(max_size=30), st.just(b"token=" + TOKEN.replace("+", "%2B").encode())),
        st.lists(st.tuples(names, st.one_of(texts, likely)), max_size=5),
        st.booleans(),
    )
    @hypothesis.settings(
        max_examples=300,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def check(method: str, path: str, query: bytes, headers: list[tuple[str, str]], hosted: bool) -> None:
        given = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        status, _ = ask(app, method, path, query, [(b"host", b"localhost")] * hosted + given)
        assert status < 500

    check()
