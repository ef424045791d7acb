"""One connection to the server, bounded: how long a client may keep it without asking for anything whole, how many there are.

uvicorn waits without end for the rest of a request and for a client to read its answer, so a few hundred half-open
connections would take every file descriptor of the process. Here each connection is looked at once a second, and closed when
its client is behind for too long. If too many are open, the one that has waited longest for its client makes room.
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
"""Seconds until the headers of a request must be there: after the connection was made, or after the last answer."""
LONGEST_IDLE = 5.0
"""Seconds for which a connection is kept after an answer without a further byte from its client."""
SLOWEST_READER = 20.0
"""Seconds in which a client must have taken some of its answer."""
LARGEST_HEADERS = 32 << 10
"""Bytes of a request's first line and headers together."""
MOST_CONNECTIONS = 256
LOOK_EVERY = 1.0
_RESERVED_FILES = 64
"""File descriptors that are not for connections: the run's files, the model's, the terminal."""


def most_connections() -> int:
    """How many connections may be open at once: fewer than `MOST_CONNECTIONS` if the process may open few files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(16, min(MOST_CONNECTIONS, files - _RESERVED_FILES))


def _tells(record: logging.LogRecord) -> bool:
    """Whether the terminal shows a record: only our own errors. Clients' mistakes are not shown (a flood would fill the
    terminal), nor work that Ctrl-C cancelled."""
    cut = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return record.levelno >= logging.ERROR and not cut


_log = logging.getLogger("uvicorn.error.keyhole")
_log.addFilter(_tells)  # a level would be reset when uvicorn sets up its logging


class Connection(H11Protocol):
    """uvicorn's connection, with bounds."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _log
        self.timeout_keep_alive = LONGEST_IDLE  # type: ignore[assignment]
        self._since: float | None = None
        """since when a whole request is being waited for; None while one is being answered"""
        self._unread, self._read_at = 0, 0.0
        """bytes of answers that the client has not taken, and when it last took some"""
        self._next_look: asyncio.TimerHandle | None = None
        self._ending = False

    # What uvicorn calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self._read_at = self.loop.time()
        self._next_look = self.loop.call_later(LOOK_EVERY, self._look)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
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
        """The answer to what is no HTTP, of the same shape as every other error. No answer if one is on its way already."""
        if self.cycle is not None:  # the request that was being read will not be whole
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
        """The server stops. A client that waits for an answer gets it; others are disconnected."""
        self._ending = True
        if self.late_since() is not None:
            self.transport.abort()
            return
        with contextlib.suppress(h11.LocalProtocolError):  # a connection that failed has nothing to say goodbye with
            super().shutdown()

    def _unsupported_upgrade_warning(self) -> None:
        pass

    # Bounds

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def late_since(self) -> float | None:
        """Since when the client owes something: a request, the rest of one, or the reading of its answer."""
        if self.transport.get_write_buffer_size():
            return self._read_at
        return self._since

    def _make_room(self) -> None:
        """Close the connections that have waited longest for their clients, until there are not too many. If every client is
        waiting for us, the newest connection goes."""
        while len(self.connections) > most_connections():
            others = cast("list[Connection]", [each for each in self.connections if each is not self])
            waiting = {each: since for each in others if (since := each.late_since()) is not None}
            victim = min(waiting, key=lambda each: waiting[each]) if waiting else self
            self.connections.discard(victim)
            victim.transport.abort()
            if victim is self:
                return

    def _look(self) -> None:
        now = self.loop.time()
        self._next_look = self.loop.call_later(LOOK_EVERY, self._look)
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread or not unread or not self._unread:
            self._read_at = now
        self._unread = unread
        if unread:
            if self._ending or now - self._read_at > SLOWEST_READER:
                self.transport.abort()
        elif not self._answering and self._since is not None and now - self._since > SLOWEST_HEADERS:
            self.transport.abort()
