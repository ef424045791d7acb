"""A page that is open while its run is analyzed: it says what is coming, and shows it without a reload."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsing import CELLS, HOLD, Site, go, opened, served, small, until

import keyhole
from keyhole.store.values import Values

pytestmark = pytest.mark.slow
LINE = 40
"""The height, in pixels, of the line that says what is coming."""


def top(page: Any, selector: str) -> float:
    """Where something stands on the screen."""
    return float(page.locator(selector).first.bounding_box()["y"])


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Site]:
    """A run that was only scanned, served."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sat on mat {i % 7}, and a dog ran by." for i in range(40)) + "\n")
    run = keyhole.scan(small(), [text], out=tmp_path / "run", top=10, unit="line", context=64)
    with served(run) as url:
        yield Site(url, run, live=True)


@contextmanager
def analyzing(run: keyhole.Run, only: list[str], lens: str) -> Iterator[threading.Event]:
    """Analyze in another thread. The first stage begins when the event is set."""
    go_on = threading.Event()

    def progress(what: str, total: int) -> Any:
        assert go_on.wait(60)
        return lambda done: None

    def work() -> None:
        keyhole.analyze(keyhole.open(run.path), only=only, lens=lens, model=small(), progress=progress)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield go_on
    finally:
        go_on.set()
        thread.join(60)
        assert not thread.is_alive()


def promoted(run: keyhole.Run, lens: str, cell: int) -> str:
    said = Values(keyhole.open(run.path), lens).promoted(1, cell, 1)[0].piece
    return str(said).replace(" ", "␣")


def test_values_come_to_a_page_that_is_open(browser: Any, bare: Site) -> None:
    cell = CELLS // 2
    with opened(browser, bare.url + f"#/L1/{cell}", viewport={"width": 1200, "height": 500}) as page:
        page.wait_for_selector(".valueside .missing")
        assert "keyhole analyze RUN" in page.locator(".valueside .missing").inner_text()
        assert page.locator("#coming").is_hidden()
        page.evaluate("window.stayed = true; window.scrollTo(0, 150)")
        before = top(page, ".valueside")
        with analyzing(bare.run, ["agreement", "rank"], "raw") as go_on:
            page.wait_for_selector("#coming:not([hidden])")
            until(page, "document.getElementById('coming').innerText.includes('agreement, rank (0 of 2 done)')")
            assert "Analyses are running" in page.locator(".valueside .missing").inner_text()
            go_on.set()
            page.wait_for_selector(".valueside .said")
        assert page.evaluate("window.stayed")
        assert abs(top(page, ".valueside") - before) < LINE
        assert page.locator(".valueside .said .token").first.inner_text() == promoted(bare.run, "raw", cell)
        page.wait_for_selector("#coming", state="hidden")

        # an analysis that changes nothing here does not move the page
        page.evaluate("document.querySelector('main h1').classList.add('same')")
        page.evaluate(
            "() => { const ask = window.fetch; window.compared = []; window.fetch = async (path, options) => {"
            " const answer = await ask(path, options); if (options?.method === 'HEAD') window.compared.push(path); return answer; } }"
        )
        with analyzing(bare.run, ["activity"], "raw") as go_on:
            go_on.set()
        # whether the page would show something else by now
        until(page, "path => window.compared.includes(path)", f"data/cells/1/{cell}.json")
        assert page.locator("h1.same").count() == 1
        assert page.get_by_role("button", name="Show them").count() == 0

        # what the reader has done on the page is not lost: a button draws it again
        page.get_by_label(f"A note on L1.{cell}").fill("half a thought")
        with analyzing(bare.run, ["agreement", "shading"], "norm") as go_on:
            go_on.set()
            page.get_by_role("button", name="Show them").wait_for()
            assert page.get_by_label(f"A note on L1.{cell}").input_value() == "half a thought"
            assert page.locator(".valueside .switch").count() == 0, "one lens so far"
        until(page, "!document.body.classList.contains('analyzing')")
        page.get_by_role("button", name="Show them").click()
        page.wait_for_selector(".triggers .warm")  # shaded
        assert page.evaluate("window.stayed")
        assert "not shaded" not in page.locator("main").inner_text()
        assert page.get_by_label(f"A note on L1.{cell}").input_value() == "half a thought"

        go(page, bare, "#/L0/5")  # and other pages are not taken from what was kept
        page.wait_for_selector(".valueside .said")


def test_the_overview_fills_itself(browser: Any, bare: Site) -> None:
    with opened(browser, bare.url) as page:
        page.locator("#figures-title").scroll_into_view_if_needed()
        until(page, "document.querySelector('.figures').innerText.includes('Nothing is measured yet')")
        page.evaluate("window.stayed = true")
        page.wait_for_selector(".map canvas")
        until(page, "![...document.querySelectorAll('main .card:not([hidden] *) .inside')].some(e => !e.firstChild)")
        page.locator("#figures-title").scroll_into_view_if_needed()
        before = top(page, "#figures-title")
        with analyzing(bare.run, ["activity", "agreement"], "norm") as go_on:
            go_on.set()
            until(page, "document.querySelector('.figures svg, .figures .vega-embed, .figures canvas') !== null")
        assert page.evaluate("window.stayed")
        assert abs(top(page, "#figures-title") - before) < LINE, "what the reader looked at has moved"


def test_what_is_typed_while_the_page_is_drawn_again_stays(browser: Any, bare: Site) -> None:
    with opened(browser, bare.url + "#/L1/3") as page:
        page.wait_for_selector(".valueside .missing")
        page.evaluate(HOLD, "data/cells/1/3")
        with analyzing(bare.run, ["agreement"], "norm") as go_on:
            go_on.set()
        until(page, "window.held !== undefined")  # nobody touched the page: it is being drawn again
        field = page.get_by_label("A note on L1.3")
        field.fill("begun meanwhile")
        page.evaluate("window.held()")
        page.get_by_role("button", name="Show them").wait_for()
        assert field.input_value() == "begun meanwhile"
        assert page.locator(".valueside .missing").count() == 1
        until(page, "!document.body.classList.contains('analyzing')")
        page.get_by_role("button", name="Show them").click()
        page.wait_for_selector(".valueside .said")
        assert field.input_value() == "begun meanwhile"


def test_the_table_has_new_columns_without_a_reload(browser: Any, bare: Site) -> None:
    with opened(browser, bare.url + "#/cells?columns=address,agreement") as page:
        page.wait_for_selector(".alltable .rows, .alltable [role=row], .alltable table")
        offered = "[...document.querySelectorAll('#add-filter option')].some(option => option.value === 'agreement')"
        assert not page.evaluate(offered)
        with analyzing(bare.run, ["agreement"], "norm") as go_on:
            go_on.set()
        page.get_by_role("button", name="Show them").click()
        until(page, offered)
