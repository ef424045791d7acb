"""The explorer over HTTP: the page, data/… from the contract, and api/… for what needs the model or is saved.

Every error is JSON of one shape: {"error": {"code", "message", "detail"}}.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
from functools import cache
from importlib import resources
from typing import Any

import duckdb
import vl_convert
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .. import figures
from ..run import Run
from .contract import Explorer, NotThere, compact

_STATIC = re.compile(r"[a-z0-9_-]+(\.[a-z0-9]+)+", re.ASCII)


def create(run: Run) -> Starlette:
    """The app for one run."""
    explorer = Explorer(run, live=True)

    def data(request: Request) -> Response:
        path = request.path_params["path"]
        try:
            return _unchanged_or(request, explorer.body(path), "application/json")
        except NotThere:
            raise HTTPException(404, f"There is no data/{path:.200}.") from None
        except duckdb.Error:
            raise HTTPException(503, "The run's tables are being written. Ask again in a moment.") from None

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/index.html", page),
            Route("/static/{name}", static),
            Route("/data/{path:path}", data),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


# The page


def page(request: Request) -> Response:
    return _file(request, "index.html")


def static(request: Request) -> Response:
    return _file(request, request.path_params["name"])


def _file(request: Request, name: str) -> Response:
    content = static_file(name)
    if content is None:
        raise HTTPException(404, f"There is no static/{name:.200}.")
    return _unchanged_or(request, content, media_type(name))


def static_files() -> list[str]:
    """The page's files, without the Vega bundle."""
    return sorted(entry.name for entry in (resources.files(__package__) / "static").iterdir() if entry.is_file())


def static_file(name: str) -> bytes | None:
    """A file of the page; None where there is none. The name cannot lead elsewhere: it has no slash."""
    if name == "vega.js":
        return vega()
    if not _STATIC.fullmatch(name):
        return None
    file = resources.files(__package__) / "static" / name
    return file.read_bytes() if file.is_file() else None


def media_type(name: str) -> str:
    if name.endswith(".js"):
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@cache
def vega() -> bytes:
    """Vega, Vega-Lite and Vega-Embed as one script, out of the package that draws the report's figures too."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=figures.vega_lite())).encode()


# Answers


def _unchanged_or(request: Request, body: bytes, media: str) -> Response:
    """The body, or 304 where the browser has it: it asks every time, so nothing stale is shown."""
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media, headers=headers)


CODES = {400: "bad_request", 404: "not_found", 405: "not_allowed", 503: "busy"}


def error(status: int, code: str, message: str, detail: dict[str, Any] | None = None, **headers: str) -> Response:
    body = compact({"error": {"code": code, "message": message, "detail": detail or {}}})
    return Response(body, status, {"Cache-Control": "no-store", **headers}, "application/json")


async def _refused(request: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    code = CODES.get(exception.status_code, "refused")
    return error(exception.status_code, code, exception.detail, None, **dict(exception.headers or {}))


async def _failed(request: Request, exception: Exception) -> Response:
    return error(500, "failed", "The server failed at this request. Its terminal says why.")


__all__ = ["create", "run_in_threadpool"]
