"""How the server answers: with JSON, with a file, with "unchanged", or with an error of one shape (`schema.Error`)."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from . import schema
from .pack import compact


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


def unchanged_or(request: Request, body: bytes, media: str) -> Response:
    """The body, or 304 if the browser has it already. The browser asks every time, so nothing stale is shown."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)
