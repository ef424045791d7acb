"""The explorer over HTTP: the page, data/… from the contract, and api/… for the model and for what is saved."""

from __future__ import annotations

import contextlib
import json
import mimetypes
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import KeyholeError, UsageError
from ..store import collections
from ..store.annotations import save
from ..store.collections import save_note
from ..store.lines import cell_named, known_fields
from ..store.run import Run
from ..views import figures
from . import schema, sets
from .addresses import PARQUET
from .answers import Refused, Streamed, attached, fresh, unchanged_or
from .contract import Explorer, NotThere
from .guard import Guard
from .live import Live, Read
from .openapi import describe
from .pack import compact
from .served import HEADER, VERSION, Served

if TYPE_CHECKING:
    from ..models.model import Model

_Record = TypeVar("_Record", bound=schema.Record)
_STATIC = re.compile(r"[a-z0-9_-]+(\.[a-z0-9]+)+", re.ASCII)


def create(
    run: Run,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    model: Model | None = None,
    read: Read | None = None,
    served: Served | None = None,
    beside: Run | None = None,
) -> Guard:
    """The app for one run. The model is loaded when it is first needed, unless one is given."""
    served = served or Served(run, model=model, read=read, beside=beside)

    def page(request: Request) -> Response:
        served.reopen()
        return _file(request, "index.html")

    def data(request: Request) -> Response:
        path = request.path_params["path"]
        with served.asked(_named(request)) as opened:
            try:
                found = unchanged_or(request, opened.explorer.body(path), "application/json")
            except NotThere:
                raise Refused(404, "not_found", f"There is no data/{path:.200}.") from None
            found.headers[VERSION] = opened.version
            return found

    def described(request: Request) -> Response:
        return unchanged_or(request, compact(describe(served.explorer)), "application/json")

    def status(request: Request) -> Response:
        with served.asked(_named(request)) as opened:
            return fresh(opened.live.status())

    def coming(request: Request) -> Response:
        return fresh(served.coming(_named(request)))

    def asking(what: Callable[[Live], Callable[[dict[str, Any]], Awaitable[schema.Record]]]) -> Callable[..., Any]:
        """A request that the live model answers."""

        async def answer(request: Request) -> Response:
            asked, opened = await _asked(request), await run_in_threadpool(served.now, _named(request))
            found = await what(opened.live)(asked)
            await run_in_threadpool(served.still, opened)
            return fresh(found)

        return answer

    async def nearest(request: Request) -> Response:
        asked, opened = await _asked(request), await run_in_threadpool(served.now, _named(request))
        if "cell" in asked and "text" not in asked:
            found = await run_in_threadpool(opened.explorer.nearest, asked)
        else:
            found = await opened.live.nearest(asked)
        await run_in_threadpool(served.still, opened)
        return fresh(found)

    async def generate(request: Request) -> Response:
        asked, opened = await _asked(request), await run_in_threadpool(served.now, _named(request))
        made = await opened.live.generate(asked)

        async def lines() -> AsyncIterator[schema.Record]:
            async for line in made.lines():
                yield line
            try:
                await run_in_threadpool(served.still, opened)
            except Refused as refused:
                yield schema.GenerateLine(error=refused.error.error)

        return Streamed(lines(), made.close)

    async def annotations(request: Request) -> Response:
        asked = await _asked(request) if request.method == "POST" else None

        def work() -> schema.Record:
            with served.asked(_named(request)) as opened:
                if asked is None:
                    return opened.explorer.annotations()
                saved = save(opened.run, asked).to_json()
                return schema.SavedAnnotation(True, msgspec.convert(saved, schema.Annotation))

        return fresh(await run_in_threadpool(work))

    async def note(request: Request) -> Response:
        asked = await _asked(request)

        def work() -> schema.Record:
            with served.asked(_named(request)) as opened:
                return schema.SavedNote(True, schema.Note(**save_note(opened.run, asked)))

        return fresh(await run_in_threadpool(work))

    async def marks(request: Request) -> Response:
        asked = await _asked(request)

        def work() -> schema.Record:
            with served.asked(_named(request)) as opened:
                known = known_fields(asked, "a request to mark a cell", ("layer", "cell"), collections.FIELDS)
                place = opened.run.cells.place(*cell_named(known))
                changes = {name: known[name] for name in collections.FIELDS if name in known}
                saved = collections.save(opened.run, place, changes).to_json()
                return schema.SavedMarks(True, opened.run.cells.address(place), msgspec.convert(saved, schema.Marks))

        return fresh(await run_in_threadpool(work))

    async def collected(request: Request) -> Response:
        asked = await _asked(request) if request.method == "POST" else None

        def work() -> schema.Record:
            with served.asked(_named(request)) as opened:
                if asked is None:
                    return opened.explorer.collections()
                done = collections.merge(opened.run, asked)
                return schema.SavedCollections(True, done.cells, done.changed)

        return fresh(await run_in_threadpool(work))

    async def named_sets(request: Request) -> Response:
        asked = await _asked(request) if request.method == "POST" else None

        def work() -> schema.Record:
            with served.asked(_named(request)) as opened:
                return sets.offered(opened.run) if asked is None else sets.cells(opened.run, asked)

        return fresh(await run_in_threadpool(work))

    async def parquet(request: Request) -> Response:
        asked = await _asked(request)

        def work() -> bytes:
            with served.asked(_named(request)) as opened:
                return opened.explorer.table.parquet(_converted(asked, schema.AskCells))

        return attached(await run_in_threadpool(work), PARQUET)

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/index.html", page),
            Route("/static/{name}", static),
            Route("/data/{path:path}", data),
            Route("/openapi.json", described),
            Route("/api/status", status),
            Route("/api/coming", coming),
            Route("/api/cells.parquet", parquet, methods=["POST"]),
            Route("/api/prompt", asking(lambda live: live.prompt), methods=["POST"]),
            Route("/api/prompt/ablation", asking(lambda live: live.ablation), methods=["POST"]),
            Route("/api/prompt/layers", asking(lambda live: live.layers), methods=["POST"]),
            Route("/api/prompt/python", asking(lambda live: live.python), methods=["POST"]),
            Route("/api/try", asking(lambda live: live.try_key), methods=["POST"]),
            Route("/api/nearest", nearest, methods=["POST"]),
            Route("/api/generate", generate, methods=["POST"]),
            Route("/api/edits", asking(lambda live: live.edits), methods=["POST"]),
            Route("/api/edits/load", asking(lambda live: live.load_edits), methods=["POST"]),
            Route("/api/sets", named_sets, methods=["GET", "POST"]),
            Route("/api/annotations", annotations, methods=["GET", "POST"]),
            Route("/api/notes", note, methods=["POST"]),
            Route("/api/marks", marks, methods=["POST"]),
            Route("/api/collections", collected, methods=["GET", "POST"]),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)],
        exception_handlers={
            Refused: _refused,
            HTTPException: _http,
            UsageError: _usage,
            KeyholeError: _keyhole,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, host=host, token=token)


@contextlib.contextmanager
def warming(explorer: Explorer) -> Iterator[None]:
    """Make what the first pages need, in the order they need it, while the server starts to answer. An error is ignored here:
    the request that meets it again reports it."""
    ended = threading.Event()
    steps: list[Callable[[], object]] = [
        partial(explorer.body, "run.json"),
        explorer.maps.begin,
        *(partial(explorer.body, path) for path in ("layers/0.json", "cells/0/0.json")),
    ]
    steps += [vega, partial(explorer.body, "figures.json")]
    if explorer.second:
        steps.append(partial(explorer.body, "comparison.json"))

    def work() -> None:
        with contextlib.suppress(KeyholeError, OSError):
            for step in steps:
                if not ended.is_set():
                    step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # Python must not end while Vega is being bundled


# The page


def static(request: Request) -> Response:
    return _file(request, request.path_params["name"])


def _file(request: Request, name: str) -> Response:
    content = static_file(name)
    if content is None:
        raise Refused(404, "not_found", f"There is no static/{name:.200}.")
    return unchanged_or(request, content, media_type(name))


def static_files() -> list[str]:
    """The page's files, without the Vega bundle."""
    folder = resources.files(__package__) / "static"
    return sorted(entry.name for entry in folder.iterdir() if entry.is_file() and _STATIC.fullmatch(entry.name))


def static_file(name: str) -> bytes | None:
    """A file of the page; None if there is none. The name has no slash, so it cannot lead out of the folder."""
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


def vega() -> bytes:
    return figures.bundle().encode()


# Requests and refusals


def _named(request: Request) -> str | None:
    """The run that the request names, if it names one."""
    return request.headers.get(HEADER)


def _converted(asked: dict[str, Any], kind: type[_Record]) -> _Record:
    try:
        return msgspec.convert(asked, kind)
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_value", f"{error}."[:300]) from None


async def _asked(request: Request) -> dict[str, Any]:
    """The JSON object of a request. It is parsed in a thread, because a megabyte of numbers takes a while."""
    return await run_in_threadpool(_object, await request.body())


def _object(body: bytes) -> dict[str, Any]:
    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def number(text: str) -> float:
        found = float(text)
        return int(found) if found.is_integer() and abs(found) < 1 << 53 else found  # in JSON, 2.0 is a whole number

    try:
        value = json.loads(body, parse_constant=constant, parse_float=number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "bad_json", f"The request is no JSON: {error}"[:300]) from None
    if not isinstance(value, dict):
        raise Refused(422, "wrong_value", "The request must be a JSON object.")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Refused(400, "bad_json", "The request is nested too deeply.") from None
    except UnicodeEncodeError:
        raise Refused(422, "wrong_value", "The request has half a character (a lone surrogate) in a text.") from None
    return value


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _http(request: Request, error: Exception) -> Response:
    """An error of the router: no such address or method."""
    assert isinstance(error, HTTPException)
    codes: dict[int, schema.Code] = {404: "not_found", 405: "not_allowed"}
    code = codes.get(error.status_code, "refused")
    refused = Refused(error.status_code, code, f"{error.detail}: {request.method} {request.scope['path']:.200}")
    refused.headers |= dict(error.headers or {})
    return refused.response()


async def _usage(request: Request, error: Exception) -> Response:
    return Refused(422, "wrong_value", str(error)).response()


async def _keyhole(request: Request, error: Exception) -> Response:
    return Refused(503, "not_possible", str(error), Retry_After="60").response()


async def _failed(request: Request, error: Exception) -> Response:
    return Refused(500, "failed", "The server failed at this request; its terminal says why.").response()
