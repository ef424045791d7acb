"""A real browser on the explorer: served live, and exported to files below some folder of a plain host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import CHROMIUM, HOSTILE, Site, hosted, opened, served, small

import keyhole
from keyhole.export.site import export
from keyhole.store import layout

_shared: list[keyhole.Run] = []
"""The run that all tests of a process read."""


@pytest.fixture(scope="session")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """A run over a text that tries things, with everything analysed that a page shows."""
    folder = tmp_path_factory.mktemp("browsed")
    text = folder / "te<xt>.txt"
    lines = [f"The cat number {i} sat on mat {i % 5}. {HOSTILE[i % 6]}, and the dog looked on." for i in range(60)]
    text.write_text("\n".join([*lines, "long " * 20_000]) + "\n", encoding="utf-8")
    run = keyhole.scan(small(), [text], out=folder / "run", top=10, unit="line", context=64)
    asked = ["activity", "agreement", "rank", "confidence", "shading", "kinds", "plane"]
    _shared.append(keyhole.analyze(run, only=asked, lens=["norm", "raw"], model=small()))
    return _shared[0]


@pytest.fixture(autouse=True)
def unmarked() -> Iterator[None]:
    """What a test annotates, stars, tags or notes on the shared run is gone after it."""
    yield
    for run in _shared:
        layout.marks_file(run.path).unlink(missing_ok=True)
        layout.notes_file(run.path).unlink(missing_ok=True)
        shutil.rmtree(layout.annotations_folder(run.path), ignore_errors=True)


@pytest.fixture(scope="session")
def live(browsed: keyhole.Run) -> Iterator[Site]:
    with served(browsed) as url:
        yield Site(url, browsed, live=True)


@pytest.fixture(scope="session")
def exported(browsed: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("host")
    export(browsed, folder / "below" / "site")
    with hosted(folder) as url:
        yield Site(url + "below/site/", browsed, live=False)


@pytest.fixture(params=["live", "exported"])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Ended with the module: while it lives, no other test may run an event loop in this thread."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine: install the package chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, site: Site) -> Iterator[Any]:
    with opened(browser, site.url) as page:
        yield page


@pytest.fixture
def live_page(browser: Any, live: Site) -> Iterator[Any]:
    with opened(browser, live.url, accept_downloads=True) as page:
        yield page
