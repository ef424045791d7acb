"""How the server answers: with JSON, with a file, with "unchanged", or with an error of one shape (`schema.Error`)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from . import schema
from .pack import compact

LINES = "application/x-ndjson"
"""The type of an answer that is streamed: one JSON value per line."""


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: int, code: schema.Code, message: str, *, detail: dict[str, Any] | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.error = status, schema.Error(schema.Problem(code, message, detail or {}))
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        return Response(
            compact(self.error), self.status, {"Cache-Control": "no-store", **self.headers}, "application/json"
        )


def fresh(value: schema.Record) -> Response:
    """An answer to this request alone, which no cache may keep."""
    return Response(compact(value), media_type="application/json", headers={"Cache-Control": "no-store"})


def attached(body: bytes, media: str) -> Response:
    """A file that was made for this request."""
    return Response(body, media_type=media, headers={"Cache-Control": "no-store"})


def unchanged_or(request: Request, body: bytes, media: str) -> Response:
    """The body, or 304 if the browser has it already. The browser asks every time, so nothing stale is shown."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)


class Streamed(StreamingResponse):
    """Records as lines of JSON, each sent when it is made. Sending stops when the client leaves; `close` is called in any case."""

    def __init__(self, records: AsyncIterator[schema.Record], close: Callable[[], None]) -> None:
        # said to be encoded already, so that no line waits in a compressor for the next
        headers = {"Cache-Control": "no-store", "Content-Encoding": "identity"}
        super().__init__(_lines(records), media_type=LINES, headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _lines(records: AsyncIterator[schema.Record]) -> AsyncIterator[bytes]:
    async for record in records:
        yield compact(record) + b"\n"
