"""Two runs side by side on a cell's page, in a real browser: wide and on a phone, live and exported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import HOSTILE, Site, go, hosted, lively, opened, served, small

import keyhole
from keyhole.export.site import export

pytestmark = pytest.mark.slow(seconds=2)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """The model of `browsed` over another text, which shares lines with the first and tries things too."""
    folder = tmp_path_factory.mktemp("other")
    text = folder / "o<b>ther.txt"
    lines = [f"The cat number {i} sat on mat {i % 5}. {HOSTILE[i % 6]}, and the dog looked on." for i in range(20)]
    text.write_text("\n".join([*lines, *(f"{HOSTILE[i % 6]} again {i}" for i in range(30))]) + "\n", encoding="utf-8")
    return keyhole.scan(small(), [text], out=folder / "run", top=10, unit="line", context=64)


@pytest.fixture(scope="module")
def live(browsed: keyhole.Run, other: keyhole.Run) -> Iterator[Site]:
    with served(browsed, beside=other) as url:
        yield Site(url, browsed, live=True)


@pytest.fixture(scope="module")
def exported(browsed: keyhole.Run, other: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("host")
    export(browsed, folder / "site", beside=other)
    with hosted(folder) as url:
        yield Site(url + "site/", browsed, live=False)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_cell_in_both_runs(browser: Any, site: Site, other: keyhole.Run, width: int) -> None:
    cell = lively(site.run, 1)
    with opened(browser, site.url, viewport={"width": width, "height": 900}) as page:
        go(page, site, f"#/L1/{cell}")
        page.wait_for_selector(".inother .triggerlist li")
        section = page.locator(".inother")
        assert "o<b>ther.txt" in section.locator("h2").inner_text()
        assert section.locator("b").count() == 0  # the name is text, not markup
        triggers = other.layer(1)[cell].triggers
        assert section.locator(".triggerlist li").count() == len(triggers)
        assert triggers[0].tokens[-1].strip() in section.locator(".last").first.inner_text()
        said = section.locator(".overlap").inner_text()
        assert "of the top 10 triggers" in said.lower()
        assert "last tokens overlap by" in said
        own, its = page.locator(".keyside").bounding_box(), section.bounding_box()
        if width > 1000:  # beside each other
            assert its["x"] > own["x"] + own["width"] - 1
            assert abs(its["y"] - own["y"]) < 5
        else:  # below each other
            assert its["y"] >= own["y"] + own["height"] - 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_more_triggers_and_the_next_cell_by_keyboard(browser: Any, site: Site, other: keyhole.Run) -> None:
    cell = lively(site.run, 1)
    with opened(browser, site.url) as page:
        go(page, site, f"#/L1/{cell}")
        page.wait_for_selector(".inother .triggerlist li")
        more = page.locator(".inother button.more")
        hidden = page.locator(".inother .triggerlist li[hidden]")
        assert hidden.count() == 2
        more.focus()
        page.keyboard.press("Enter")
        assert hidden.count() == 0
        page.keyboard.press("j")
        page.wait_for_selector(f"main h1:has-text('L1.{cell + 1}')")
        page.wait_for_selector(".inother .overlap")


def test_the_overview_names_the_other_run_and_lists_every_claim(browser: Any, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.locator("#scanned-title").scroll_into_view_if_needed()
        page.wait_for_selector(".facts")
        assert "o<b>ther.txt" in page.locator(".facts").inner_text()
        page.locator("#figures-title").scroll_into_view_if_needed()
        page.wait_for_selector(".tally")
        assert page.locator(".tally .badge").all_inner_texts() == [
            "holds",
            "does not hold",
            "unclear",
            "not applicable",
        ]
        page.locator(".claims summary").focus()
        page.keyboard.press("Enter")
        rows = page.locator(".claims tbody tr")
        counts = sum(int(part) for part in page.locator(".tally").inner_text().split(":")[1].split() if part.isdigit())
        assert rows.count() == counts > 0


def test_without_a_second_run_the_page_is_as_before(browser: Any, browsed: keyhole.Run) -> None:
    with served(browsed) as url, opened(browser, url) as page:
        go(page, Site(url, browsed, live=True), "#/L1/3")
        page.wait_for_selector(".triggerlist")
        assert page.locator(".inother").count() == 0
