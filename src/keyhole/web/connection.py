"""Bounds on connections: how many there are, and how long a client may take to send a request or to read its answer.

uvicorn waits without a limit for the rest of a request and for a client to read its answer, so a few hundred half-open
connections would use up the file descriptors of the process. Here each connection is checked once per second, and closed if its
client is late. If too many are open, the one that has waited longest for its client is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .answers import Refused
from .guard import HEADERS

SLOWEST_HEADERS = 10.0
"""Seconds in which the headers of a request must arrive, from the start of the connection or the end of the last answer."""
LONGEST_IDLE = 5.0
"""Seconds for which an idle connection is kept after an answer."""
SLOWEST_READER = 20.0
"""Seconds in which a client must read some of its answer."""
LARGEST_HEADERS = 32 << 10
"""Bytes of a request's first line and headers together."""
MOST_CONNECTIONS = 256
CHECK_EVERY = 1.0
_RESERVED_FILES = 64
"""File descriptors that are kept free for the run's files, the model's and the terminal."""


def most_connections() -> int:
    """Upper bound on open connections: below `MOST_CONNECTIONS` if the process may open few files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, files - _RESERVED_FILES))


def _tells(record: logging.LogRecord) -> bool:
    """Whether the terminal shows a log record: only errors of the server. Mistakes of clients are not shown, because they could
    flood the terminal, nor is work that Ctrl-C cancelled."""
    cut = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return record.levelno >= logging.ERROR and not cut


_log = logging.getLogger("uvicorn.error.keyhole")
_log.addFilter(_tells)  # a log level would be reset when uvicorn sets up its logging


class Connection(H11Protocol):
    """uvicorn's connection, with bounds."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _log
        self.timeout_keep_alive = LONGEST_IDLE  # type: ignore[assignment]
        self._since: float | None = None
        """when the wait for a complete request began; None while one is being answered"""
        self._unread, self._read_at = 0, 0.0
        """bytes of answers that the client has not read, and when it last read some"""
        self._next_check: asyncio.TimerHandle | None = None
        self._ending = False

    # Called by uvicorn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self._read_at = self.loop.time()
        self._next_check = self.loop.call_later(CHECK_EVERY, self._check)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self._answering and not self.cycle.more_body:
            self._since = None

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with an error of the usual shape, unless an answer is being sent already."""
        if self.cycle is not None:  # the request that was being read cannot become complete
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            refused = Refused(
                400,
                "bad_request",
                f"This is no HTTP request, or its headers are longer than {LARGEST_HEADERS:,} bytes.",
            ).response()
            headers = [
                *refused.raw_headers,
                *((n.encode(), v.encode()) for n, v in HEADERS.items()),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=bytes(refused.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops: a client that waits for an answer gets it, others are disconnected."""
        self._ending = True
        if self.late_since() is not None:
            self.transport.abort()
            return
        with contextlib.suppress(h11.LocalProtocolError):  # the connection failed before
            super().shutdown()

    def _unsupported_upgrade_warning(self) -> None:
        pass

    # Bounds

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def late_since(self) -> float | None:
        """When the wait for the client began: for a request, for the rest of one, or for reading its answer."""
        if self.transport.get_write_buffer_size():
            return self._read_at
        return self._since

    def _make_room(self) -> None:
        """Close the connections that have waited longest for their clients until the bound is met. If every client waits for
        the server, the newest connection is closed."""
        while len(self.connections) > most_connections():
            others = cast("list[Connection]", [each for each in self.connections if each is not self])
            waiting = {each: since for each in others if (since := each.late_since()) is not None}
            victim = min(waiting, key=lambda each: waiting[each]) if waiting else self
            self.connections.discard(victim)
            victim.transport.abort()
            if victim is self:
                return

    def _check(self) -> None:
        now = self.loop.time()
        self._next_check = self.loop.call_later(CHECK_EVERY, self._check)
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread or not unread or not self._unread:
            self._read_at = now
        self._unread = unread
        if unread:
            if self._ending or now - self._read_at > SLOWEST_READER:
                self.transport.abort()
        elif not self._answering and self._since is not None and now - self._since > SLOWEST_HEADERS:
            self.transport.abort()
