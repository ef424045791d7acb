"""How the server answers: JSON, unchanged files, and errors of one shape: {"error": {"code", "message", "detail"}}."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .contract import compact


class Refused(Exception):
    """A request that gets an error for an answer."""

    def __init__(
        self, status: int, code: str, message: str, *, detail: dict[str, Any] | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.detail = status, code, message, detail or {}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        body = compact({"error": {"code": self.code, "message": self.message, "detail": self.detail}})
        return Response(body, self.status, {"Cache-Control": "no-store", **self.headers}, "application/json")


def fresh(value: Any) -> Response:
    """An answer that is made for this request alone."""
    return Response(compact(value), media_type="application/json", headers={"Cache-Control": "no-store"})


def unchanged_or(request: Request, body: bytes, media: str) -> Response:
    """The body, or 304 where the browser has it: it asks every time, so nothing stale is shown."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)
