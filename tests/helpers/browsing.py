"""What the browser's tests share: a small model, hosts for its explorer, a page that is watched."""

from __future__ import annotations

import functools
import http.server
import shutil
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from families import tiny

import keyhole
from keyhole.models.model import Model
from keyhole.web import serve
from keyhole.web.routes import create

LAYERS, CELLS = 2, 160
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
HOSTILE = [
    "<script>alert(1)</script> was said",
    "<img src=x onerror=alert(1)> was drawn",
    '"><svg onload=alert(1)> was left',
    "\u202eevil\u2066 \x1b[31m was hidden",
    "שלום עולם and مرحبا were read",
    "ein Straßenkätzchen läuft, l’été, 𝔘nicode too",
]


def small() -> Model:
    """A random model with more cells than a window has rows."""
    return tiny("gpt2", layers=LAYERS, cells=CELLS, n_layer=LAYERS, n_inner=CELLS)


HOLD = """part => {
  const ask = window.fetch;
  window.fetch = async (path, options) => {
    if (window.held === undefined && options?.method !== 'HEAD' && String(path).includes(part))
      await new Promise((go) => (window.held = go));
    return ask(path, options);
  };
}"""
"""The next request for something waits until `window.held` is called."""


@dataclass
class Site:
    """Where the explorer is, and the run behind it."""

    url: str
    run: keyhole.Run
    live: bool


@contextmanager
def served(run: keyhole.Run, model: Model | None = None, beside: keyhole.Run | None = None) -> Iterator[str]:
    server = uvicorn.Server(serve.configured(create(run, model=model or small(), beside=beside)))
    with serve.bind("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.02)
        yield serve.address("127.0.0.1", listening.getsockname()[1])
        server.should_exit = True
        thread.join(10)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def hosted(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@dataclass
class Watch:
    """What a page did that it must not: errors, failed requests, requests elsewhere, dialogs."""

    wrongs: list[str] = field(default_factory=list)
    refused: Sequence[str] = ()
    """addresses that are to answer with an error"""

    def over(self, page: Any, host: str) -> None:
        def failed(request: Any) -> None:
            if "ERR_ABORTED" not in (request.failure or ""):  # the reader left before it came
                self.wrongs.append(f"failed: {request.url}")

        def asked(request: Any) -> None:
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob") and parts.netloc != host:
                self.wrongs.append(f"asked elsewhere: {request.url}")

        def told(message: Any) -> None:
            expected = any(message.location["url"].endswith(each) for each in self.refused)
            if message.type in ("error", "warning") and not expected:
                self.wrongs.append(f"console: {message.text} ({message.location['url']})")

        def alerted(dialog: Any) -> None:
            self.wrongs.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("requestfailed", failed)
        page.on("request", asked)
        page.on("console", told)
        page.on("dialog", alerted)
        page.on("pageerror", lambda error: self.wrongs.append(f"script: {error}"))


@contextmanager
def opened(browser: Any, url: str, *, refused: Sequence[str] = (), **options: Any) -> Iterator[Any]:
    """A page of its own, watched to its end."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
    context.set_default_timeout(15_000)
    page, watch = context.new_page(), Watch(refused=refused)
    watch.over(page, urlsplit(url).netloc)
    page.goto(url)
    try:
        yield page
        assert watch.wrongs == [], watch.wrongs
    finally:
        context.close()


def until(page: Any, holds: str, arg: Any = None) -> None:
    """Wait for an expression or function of the page; Playwright's own way would need eval, which the policy forbids."""
    end = time.monotonic() + 15
    while not page.evaluate(holds, arg):
        assert time.monotonic() < end, f"never came true: {holds} {arg}"
        page.wait_for_timeout(20)


def caught(page: Any, held: Sequence[Any]) -> None:
    """Wait until a route has caught a request."""
    end = time.monotonic() + 15
    while not held:
        assert time.monotonic() < end, "the request never came"
        page.wait_for_timeout(20)


def titled(page: Any, start: str) -> None:
    until(page, "start => document.title.startsWith(start)", start)


def go(page: Any, site: Site, route: str) -> None:
    """To another route, until its page stands there."""
    page.wait_for_selector("main h1")
    page.evaluate("document.querySelector('main h1').classList.add('old')")
    page.goto(site.url + route)
    page.wait_for_selector("main h1:not(.old)")


@functools.cache
def lively(run: keyhole.Run, layer: int) -> int:
    """A cell whose both sides are full of triggers."""
    here = run.layer(layer)
    full = (here.units >= 0).all(1) & (here.units_negative >= 0).all(1)
    return int(np.flatnonzero(full)[3])


def cell_address(page: Any) -> str:
    return str(page.locator("h1").inner_text()).split()[0]


# The map of all cells

NAMED = "() => document.querySelector('.readout b')?.textContent ?? ''"
"""The cell that the map names."""
_STAY = """() => {
  window.opened = [];
  window.addEventListener('hashchange', event => {
    if (location.hash === '#/') return;
    event.stopImmediatePropagation();
    window.opened.push(location.hash);
    history.replaceState(null, '', '#/');
  }, true);
}"""


def map_box(page: Any) -> dict[str, float]:
    """Where the map is, once it is drawn."""
    page.locator("#map-title").scroll_into_view_if_needed()
    page.wait_for_selector(".extent:not(:empty)")
    page.evaluate("document.querySelector('#map-title').scrollIntoView()")
    box: dict[str, float] = page.locator(".plane").bounding_box()
    return box


def stay(page: Any) -> None:
    """From now on, the page records in `window.opened` what would be opened, and stays on the map."""
    page.add_init_script(f"({_STAY})()")  # before the page listens itself
    page.reload()


def cell_href(address: str) -> str:
    return "#/" + address.replace(".", "/")


def coloured(page: Any, measure: str) -> None:
    """Colour the map by a measure, and wait for it."""
    page.select_option("#measure", measure)
    until(page, "name => document.querySelector('.legend').dataset.measure === name", measure)
