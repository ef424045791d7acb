"""Clients that do not finish: what they hold is bounded, others are answered, the terminal stays empty."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import explored
import pytest
import uvicorn

import keyhole
from keyhole.web import connection, guard, serve
from keyhole.web import routes as web

ASK = b"GET /data/run.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT = 20.0
"""Seconds for what comes in a fraction of one."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("connections"))


@dataclass
class Running:
    server: uvicorn.Server
    port: int
    said: list[str]
    """all that the server logged"""

    @property
    def open(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)
        with contextlib.suppress(OSError):  # it may have been closed already, to make room
            made.sendall(sent)
        return made

    def ask(self, sent: bytes = ASK) -> bytes:
        """The whole answer, of a connection that is then closed."""
        with self.connect(sent.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)) as made:
            return rest(made)


def rest(made: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := made.recv(65536):
            found += part
    return bytes(found)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.01)


@pytest.fixture
def running(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(connection, "CHECK_EVERY", 0.05)
    server = uvicorn.Server(serve.configured(web.create(run, model=explored.model())))
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(self.format(record))

    kept = Kept()
    loggers = [logging.getLogger(name) for name in ("uvicorn", "asyncio")]
    for logger in loggers:
        logger.addHandler(kept)
    with serve.bind("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until(lambda: server.started)
        found = Running(server, listening.getsockname()[1], said)
        yield found
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()
    for logger in loggers:
        logger.removeHandler(kept)


@contextlib.contextmanager
def held(running: Running, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    made = [running.connect(sent) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /data/run.json HT",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /api/notes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half the headers", "half the body"],
)
def test_half_sent_requests_keep_nobody_out(running: Running, sent: bytes) -> None:
    with held(running, 400, sent):
        until(lambda: running.open >= min(200, connection.most_connections()))
        for _ in range(5):
            assert running.ask().startswith(b"HTTP/1.1 200")
        assert running.open <= connection.most_connections()
    until(lambda: running.open == 0)
    assert running.said == []


@pytest.mark.parametrize("sent", [b"", b"GET / HT", ASK + b"GET / HTTP/1.1\r\nHo"], ids=["none", "half", "second"])
def test_what_is_half_sent_is_closed_after_a_while(
    running: Running, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "SLOWEST_HEADERS", 0.3)
    with held(running, 30, sent) as made:
        answers = [rest(each) for each in made]  # returns when the server closed it
    assert all(answer.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n") for answer in answers)
    assert running.said == []


def test_headers_that_come_drop_by_drop_end(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOWEST_HEADERS", 0.5)
    with running.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\n") as made:

        def drop() -> None:
            for number in range(10_000):
                made.sendall(b"X-%d: drop\r\n" % number)
                time.sleep(0.02)

        with pytest.raises(OSError):
            drop()


def test_an_idle_connection_is_kept_and_then_closed(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LONGEST_IDLE", 0.5)
    kept = http.client.HTTPConnection("127.0.0.1", running.port, timeout=WAIT)
    for _ in range(3):
        kept.request("GET", "/data/run.json")
        made = kept.sock
        assert kept.getresponse().read()
        assert made is kept.sock  # one connection for all
    assert rest(made) == b""
    kept.close()


def test_who_never_reads_the_answer_is_let_go(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOWEST_READER", 0.5)
    ask = b"GET /static/vega.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40  # more than the sockets hold
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with made:
        made.connect(("127.0.0.1", running.port))
        made.sendall(ask)
        until(lambda: running.open == 1)
        until(lambda: running.open == 0)
        assert running.ask().startswith(b"HTTP/1.1 200")
    assert running.said == []


def test_a_slow_reader_that_goes_on_gets_everything(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOWEST_READER", 2.0)
    ask = b"GET /static/vega.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    closing = ask.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    expected = len(running.ask(ask)) - len(b"Connection: close\r\n")
    made, found, begun = socket.socket(), 0, time.monotonic()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    with made:
        made.connect(("127.0.0.1", running.port))
        made.sendall(ask * 19 + closing)
        while part := made.recv(65536):
            found += len(part)
            time.sleep(0.01)
    assert found == 20 * expected + len(b"Connection: close\r\n")
    assert time.monotonic() - begun > connection.SLOWEST_READER  # longer than it may read nothing


def test_a_request_being_answered_is_not_put_out(
    run: keyhole.Run, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt takes longer than every limit, while others crowd in."""
    monkeypatch.setattr(connection, "SLOWEST_HEADERS", 0.2)
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 20)
    go = threading.Event()

    def slow(model: Any, text: str, **asked: Any) -> dict[str, Any]:
        assert go.wait(WAIT)
        return explored.prompt(text)

    monkeypatch.setattr("keyhole.prompt.read", slow)
    body = json.dumps({"text": "The cat"}).encode()
    head = (
        b"POST /api/prompt HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with running.connect(head % len(body) + body) as made:
        until(lambda: running.open == 1)
        time.sleep(0.3)
        with held(running, 100, b"GET / HT"):
            until(lambda: running.open >= 16)
            go.set()
            assert made.recv(65536).startswith(b"HTTP/1.1 200")


def test_connections_leave_room_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    for limit, most in ((256, 192), (1 << 20, 256), (resource.RLIM_INFINITY, 256), (32, 16)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert connection.most_connections() == most


BAD = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a browser that was told https
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: odd\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000,
    b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 60_000,
]


@pytest.mark.parametrize("sent", BAD, ids=range(len(BAD)))
def test_what_is_no_http_is_refused_in_one_shape_and_silence(running: Running, sent: bytes) -> None:
    for _ in range(20):
        with running.connect(sent) as made:
            head, _, body = rest(made).partition(b"\r\n\r\n")
            if head:  # a client that is still sending may see the connection reset instead
                sealed(head)
                assert json.loads(body)["error"]["code"] in ("bad_request", "not_found")
    assert running.ask().startswith(b"HTTP/1.1 200")
    assert running.said == []


ODD = [
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET /data/run.json HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%ff%fe%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /?%zz&token=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"BREW /api/notes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"GET / HTTP/1.0\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /api/notes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n",
    b"POST /api/notes HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\nContent-Length: 2\r\n\r\n{}",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\nnot all of it",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    b"POST /api/notes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nzz\r\n",
]


@pytest.mark.parametrize("sent", ODD, ids=range(len(ODD)))
def test_what_is_odd_is_answered_sealed_and_in_silence(
    running: Running, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "SLOWEST_HEADERS", 0.3)
    with running.connect(sent) as made:
        head = rest(made).partition(b"\r\n\r\n")[0]
    sealed(head)
    assert not head.startswith(b"HTTP/1.1 5")
    assert running.ask().startswith(b"HTTP/1.1 200")
    assert running.said == []


def test_a_client_that_leaves_in_the_middle_saves_nothing(running: Running, run: keyhole.Run) -> None:
    note = json.dumps({"layer": 0, "cell": 0, "text": "half"}).encode()
    head = (
        b"POST /api/notes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with running.connect(head % (len(note) + 10) + note):
        until(lambda: running.open == 1)
        time.sleep(0.2)
    until(lambda: running.open == 0)
    assert running.ask().startswith(b"HTTP/1.1 200")
    assert json.loads(running.ask(ASK.replace(b"run", b"annotations")).partition(b"\r\n\r\n")[2])["notes"] == {}
    assert running.said == []


def test_the_server_ends_at_once_despite_clients_that_hang_on(running: Running) -> None:
    many = b"GET /static/vega.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 30
    with held(running, 20, b"GET / HT"), held(running, 5, many) as unread:
        assert all(made.recv(1) for made in unread)
        until(lambda: running.open == 25)
        running.server.should_exit = True
        until(lambda: running.open == 0)
    assert running.said == []


def test_a_prompt_that_ctrl_c_cuts_short_is_no_failure(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    go, asked = threading.Event(), threading.Event()

    def slow(model: Any, text: str, **options: Any) -> dict[str, Any]:
        asked.set()
        assert go.wait(WAIT)
        return explored.prompt(text)

    monkeypatch.setattr("keyhole.prompt.read", slow)
    monkeypatch.setattr(running.server.config, "timeout_graceful_shutdown", 0.2)
    head = (
        b"POST /api/prompt HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
    )
    with running.connect(head + b'{"text":"a"}') as made:
        assert asked.wait(WAIT)
        running.server.should_exit = True
        rest(made)
        go.set()
    until(lambda: running.open == 0)
    assert not any("Traceback" in each for each in running.said)


def sealed(head: bytes) -> None:
    lines = [line.lower() for line in head.decode("latin-1").split("\r\n")]
    for name, value in guard.HEADERS.items():
        assert f"{name}: {value}".lower() in lines
