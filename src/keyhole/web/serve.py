"""`keyhole serve`: runs the app on a port and opens the browser."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import webbrowser
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import uvicorn

from ..analyses.beside import check
from ..common.output import printable, say
from ..errors import UsageError
from ..store.run import Run
from .connection import LARGEST_HEADERS, Connection
from .guard import Guard, token_for
from .routes import create, warming
from .served import Served

if TYPE_CHECKING:
    from ..models.model import Model

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
PORTS = 50
"""Number of ports tried, beginning with the one asked for."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on the port, or on the next one that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in range(port, min(port + PORTS, 65536)) if port else (0,):
        taken = socket.socket(family, socket.SOCK_STREAM)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, number))
            taken.listen(128)
        except OSError as error:
            taken.close()
            if error.errno not in _TAKEN:
                raise UsageError(f"{host} cannot be bound: {error.strerror or error}. Choose another --host.") from None
            continue
        return taken
    raise UsageError(f"The ports {port} to {port + PORTS - 1} are all taken or forbidden. Choose another --port.")


def address(host: str, port: int) -> str:
    """The address of the page for a browser."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}/"


def configured(app: Guard) -> uvicorn.Config:
    """uvicorn's settings: bounded connections, and no log of what clients do wrong."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=LARGEST_HEADERS,
    )


def serve(
    run: Run,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    browse: bool = True,
    token: str | None = None,
    model: str | None = None,
    trust_remote_code: bool = False,
    beside: Run | None = None,
) -> None:
    """Serve until Ctrl-C. A server that other machines can reach needs a token, which is part of the printed address.

    `model` and `trust_remote_code` are for prompts: a run that someone else made does not decide which model is loaded.
    `beside` is a run that is shown beside this one: on every page if it has the same cells (another corpus, a control), else on the
    overview only.
    """
    if beside is not None:
        check(run, [beside])
    token = token_for(host, token)
    listening = bind(host, port)
    url = address(host, listening.getsockname()[1]) + (f"?token={quote(token, safe='')}" if token else "")
    served = Served(run, load=partial(_load, model=model, trust_remote_code=trust_remote_code), beside=beside)
    server = uvicorn.Server(configured(create(run, host=host, token=token, served=served)))
    say(f"{printable(str(run.path))}: {url}   (Ctrl-C ends)", flush=True)
    if browse:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    with listening, contextlib.suppress(KeyboardInterrupt), warming(served.explorer):
        server.run([listening])


def _load(run: Run, *, model: str | None, trust_remote_code: bool) -> Model:
    from ..models.rerun import model_of  # imports torch

    return model_of(run, model, trust_remote_code=trust_remote_code)
