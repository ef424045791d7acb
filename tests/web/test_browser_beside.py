"""Two runs side by side on the overview, a layer's and a cell's page, in a real browser: wide and on a phone, live and exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import HOSTILE, Site, go, hosted, lively, opened, served, small
from families import tiny

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
    run = keyhole.scan(small(), [text], out=folder / "run", top=10, unit="line", context=64)
    return keyhole.analyze(run, only=["agreement", "rank"], similar=False, model=small())


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
        page.wait_for_selector(".bothruns")
        assert "o<b>ther.txt" in page.locator(".bothruns thead").inner_text()
        page.locator("#figures-title").scroll_into_view_if_needed()
        page.wait_for_selector(".tally")
        assert page.locator(".tally .badge").all_inner_texts() == [
            "holds",
            "does not hold",
            "unclear",
            "not applicable",
        ]
        page.locator(".claims:not(.both) summary").focus()
        page.keyboard.press("Enter")
        rows = page.locator(".claims:not(.both) tbody tr")
        counts = sum(int(part) for part in page.locator(".tally").inner_text().split(":")[1].split() if part.isdigit())
        assert rows.count() == counts > 0


def test_without_a_second_run_the_page_is_as_before(browser: Any, browsed: keyhole.Run) -> None:
    with served(browsed) as url, opened(browser, url) as page:
        go(page, Site(url, browsed, live=True), "#/L1/3")
        page.wait_for_selector(".triggerlist")
        assert page.locator(".inother").count() == 0


@pytest.mark.parametrize("width", [1280, 360])
def test_a_layer_in_both_runs(browser: Any, site: Site, other: keyhole.Run, width: int) -> None:
    expected = keyhole.compare(site.run, other)
    with opened(browser, site.url, viewport={"width": width, "height": 900}) as page:
        go(page, site, "#/L1?sort=shared&order=down")
        page.wait_for_selector("table.compared tbody tr:not(.space)")
        said = page.locator("div.overlap").inner_text()
        row = expected.layers[1]
        assert f"{row.n} cells with enough triggers" in said
        for mean in (row.triggers, row.last, row.next):
            assert mean.value is not None
            assert mean.dealt is not None
            assert f"{shown(mean.value)} (" in said
            assert f"dealt {shown(mean.dealt)}" in said
        cells = expected.cells["triggers"][other.cells.span(1)]
        best = int(np.nanargmax(cells))
        first = page.locator("table.compared tbody tr:not(.space)").first
        shares = page.locator("table.compared thead th button").all_inner_texts()
        assert first.locator("td").nth(shares.index("Shared")).inner_text() == shown(float(cells[best]))
        assert "Top trigger there" in shares
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 360])
def test_the_overview_of_both_runs(browser: Any, site: Site, other: keyhole.Run, width: int) -> None:
    report = keyhole.report.data(site.run, beside=[other])["beside"][0]
    claims = [claim for figure in report["claims"].values() for claim in figure]
    with opened(browser, site.url, viewport={"width": width, "height": 900}) as page:
        page.wait_for_selector(".scanned")
        page.locator(".scanned").scroll_into_view_if_needed()
        page.wait_for_selector("table.bothruns")
        rows = page.locator("table.bothruns tbody tr")
        text = {
            rows.nth(i).locator("th").inner_text(): rows.nth(i).locator("td").all_inner_texts()
            for i in range(rows.count())
        }
        assert text["Corpus"] == ["te<xt>.txt", "o<b>ther.txt"]
        assert f"{other.manifest['corpus']['tokens']:,} tokens" in text["Text"][1]
        page.locator(".figures").scroll_into_view_if_needed()
        page.wait_for_selector("details.both tbody tr")
        listed = page.locator("details.both tbody tr")
        assert listed.count() == len(claims)
        said = listed.all_inner_texts()
        for claim in claims:
            (line,) = [each for each in said if each.lower().startswith(claim["claim"].lower()[:40])]
            assert (claim["why"][:30] or claim["result"]) in line or "not measured there" in line
            assert ("not measured there" in line) == (claim["other"] is None)
            if claim["other"] and claim["other"]["effect"]:
                assert claim["other"]["outcome"] in line
        page.locator(".finding").first.scroll_into_view_if_needed()
        page.locator(".finding .plot svg").first.wait_for()
        assert page.locator(".verdict .there").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_model_with_other_cells(browser: Any, browsed: keyhole.Run, tmp_path: Path) -> None:
    """Shown on the overview; the pages of layers and cells say why it is not there."""
    (tmp_path / "text.txt").write_text("The cat sat on the mat, and the dog looked on.\n" * 3, encoding="utf-8")
    narrow = tiny("gpt2", layers=2, cells=24, n_layer=2, n_inner=24)
    other = keyhole.scan(narrow, [tmp_path / "text.txt"], out=tmp_path / "run", top=5, unit="line", context=64)
    with served(browsed, beside=other) as url, opened(browser, url) as page:
        live = Site(url, browsed, live=True)
        page.locator(".scanned").scroll_into_view_if_needed()
        page.wait_for_selector("table.bothruns")
        assert "2 layers × 24 cells = 48" in page.locator("table.bothruns").inner_text()
        for route in ("#/L1", f"#/L1/{lively(browsed, 1)}"):
            go(page, live, route)
            page.wait_for_selector("main >> text=no cell of one is a cell of the other")
            assert page.locator(".inother, .compared").count() == 0


def shown(share: float) -> str:
    """As text.js writes a share in percent."""
    value = share * 100
    if 0 < value < 0.01:
        return "<0.01 %"
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %" if value >= 1 else f"{value:.2f} %"
