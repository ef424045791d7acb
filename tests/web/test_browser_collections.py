"""Collections in a real browser: star, tag and note cells, list them, take them away, bring them in; live and exported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Site, go, hosted, opened, served, until

import keyhole
from keyhole.export.site import export
from keyhole.store import annotations, collections
from keyhole.store.collections import Marks
from keyhole.web.contract import Explorer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def collected(browsed: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """A copy of the run, in which others have collected and annotated cells already."""
    folder = tmp_path_factory.mktemp("collected") / "run"
    said = shutil.ignore_patterns("annotations", "marks.jsonl", "notes.jsonl")
    run = keyhole.open(shutil.copytree(browsed.path, folder, ignore=said))
    run["L0.7"].mark(star=True, tags=["money", "<b>bold</b>"])
    run["L1.3"].mark(tags=["money"], note="fires on <i>cats</i>\nand dogs")
    pattern = {"triggers": [0, 1, 2], "description": "a shape", "kind": "semantic"}
    annotations.save(run, {"annotator": "ann", "layer": 1, "cell": 5, "patterns": [pattern]})
    return run


@pytest.fixture(params=["live", "exported"])
def place(request: pytest.FixtureRequest, collected: keyhole.Run, tmp_path: Path) -> Iterator[Site]:
    run = keyhole.open(shutil.copytree(collected.path, tmp_path / "run"))
    if request.param == "live":
        with served(run) as url:
            yield Site(url, run, live=True)
    else:
        export(run, tmp_path / "host" / "site")
        with hosted(tmp_path / "host") as url:
            yield Site(url + "site/", run, live=False)


def listed(page: Any) -> list[str]:
    page.wait_for_selector(".collected li, .collected p")
    return list(page.locator(".collected .address").all_inner_texts())


def rows(page: Any, wanted: list[str]) -> None:
    until(
        page,
        "wanted => JSON.stringify([...document.querySelectorAll('.collected .address')].map(a => a.textContent)) === wanted",
        json.dumps(wanted, separators=(",", ":")),
    )


def test_a_cell_is_collected_found_again_taken_away_and_brought_elsewhere(
    browser: Any, place: Site, tmp_path: Path
) -> None:
    with opened(browser, place.url, accept_downloads=True) as page:
        go(page, place, "#/L1/11")
        page.wait_for_selector("#note")
        page.keyboard.press("s")
        page.wait_for_selector(".starring[aria-pressed=true]")
        field = page.get_by_label("Add a tag to L1.11")
        field.fill("to  check, Ärger")
        field.press("Enter")
        until(page, "() => document.querySelectorAll('.tagchips .mark').length === 2")
        page.get_by_role("button", name="Remove the tag to check").click()
        until(page, "() => document.querySelectorAll('.tagchips .mark').length === 1")
        page.get_by_label("A note on L1.11").fill("odd")
        page.wait_for_selector("text=Saved.")
        page.reload()
        page.wait_for_selector(".starring[aria-pressed=true]")
        assert page.locator(".tagchips bdi").all_inner_texts() == ["Ärger"]
        until(page, "() => document.querySelector('#note')?.value === 'odd'")
        if place.live:
            assert collections.read(place.run)[place.run["L1.11"].place] == Marks(True, ("Ärger",), "odd")
        else:
            assert "stays in this browser" in page.locator(".written").inner_text()

        go(page, place, "#/collections")
        rows(page, ["L0.7", "L1.3", "L1.5", "L1.11"])
        text = page.locator(".collected").inner_text()
        assert "fires on <i>cats</i>" in text
        assert "<b>bold</b>" in text
        assert "semantic: a shape" in text
        until(page, "() => document.querySelectorAll('.collected .promotes').length === 4")
        for name, cells in (
            ("★ starred", ["L0.7", "L1.11"]),
            ("✎ with a note", ["L1.3", "L1.11"]),
            ("annotated", ["L1.5"]),
            ("money", ["L0.7", "L1.3"]),
            ("Ärger", ["L1.11"]),
        ):
            page.locator(".collections nav a", has_text=name).click()
            rows(page, cells)
            counted = page.locator(".collections nav a[aria-current] .small").inner_text()
            assert counted == str(len(cells))
        page.locator(".collections nav a", has_text="all").first.click()
        rows(page, ["L0.7", "L1.3", "L1.5", "L1.11"])
        page.locator("#collected-text").fill("DOGS money")
        rows(page, ["L1.3"])
        page.reload()
        rows(page, ["L1.3"])
        page.locator("#collected-text").fill("")
        rows(page, ["L0.7", "L1.3", "L1.5", "L1.11"])

        with page.expect_download() as taken:
            page.get_by_role("button", name="Export").click()
        taken.value.save_as(tmp_path / "taken.json")
        page.get_by_role("button", name="Star L0.7").click()
        page.wait_for_selector("[data-star='L0.7'][aria-pressed=false]")
    value = json.loads((tmp_path / "taken.json").read_text())
    fresh = keyhole.open(
        shutil.copytree(place.run.path, tmp_path / "fresh", ignore=shutil.ignore_patterns("marks.jsonl", "annotations"))
    )
    assert collections.merge(fresh, value) == collections.Merged(3, 3)
    assert collections.read(fresh) == {
        fresh["L0.7"].place: Marks(True, ("money", "<b>bold</b>")),
        fresh["L1.3"].place: Marks(tags=("money",), note="fires on <i>cats</i>\nand dogs"),
        fresh["L1.11"].place: Marks(True, ("Ärger",), "odd"),
    }


def test_a_file_is_imported_whole_or_not_at_all(browser: Any, place: Site, tmp_path: Path) -> None:
    def choose(value: Any) -> None:
        file = tmp_path / "import.json"
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        page.locator("#import").set_input_files(file)

    refused = ("api/collections",)
    with opened(browser, place.url, refused=refused) as page:
        go(page, place, "#/collections")
        rows(page, ["L0.7", "L1.3", "L1.5"])
        for bad, told in (
            ("{", "is no JSON"),
            ({"cells": {"L0.1": {"starred": True}, "L7.1": {}}}, "L7.1"),
            ({"cells": {"L0.1": {"tags": ["a,b"]}}}, "L0.1"),
            ({"model": {"fingerprint": "0" * 64, "layers": 2, "cells": 160}, "cells": {}}, "another model"),
            ([], "A collection is a JSON object" if not place.live else "must be a JSON object"),
        ):
            choose(bad)
            page.locator(".collections .missing", has_text=told).wait_for()
            assert listed(page) == ["L0.7", "L1.3", "L1.5"]
        good = {"cells": {"L0.1": {"starred": True}, "L1.3": {"tags": ["new", "money"], "note": "theirs"}}}
        choose(good)
        page.locator("text=2 cells, 2 of them new or changed.").wait_for()
        rows(page, ["L0.1", "L0.7", "L1.3", "L1.5"])
        choose(good)
        page.locator("text=2 cells, nothing new.").wait_for()
        page.reload()
        rows(page, ["L0.1", "L0.7", "L1.3", "L1.5"])
        third = page.locator(".collected li").nth(2)
        assert third.locator(".mark").all_inner_texts() == ["money", "new"]
        assert third.locator(".note").inner_text().split("\n") == ["fires on <i>cats</i>", "and dogs", "", "theirs"]
    if place.live:
        merged = Marks(tags=("money", "new"), note="fires on <i>cats</i>\nand dogs\n\ntheirs")
        assert collections.read(place.run)[place.run["L1.3"].place] == merged


def test_an_empty_collection_says_how_to_begin(browser: Any, browsed: keyhole.Run, tmp_path: Path) -> None:
    said = shutil.ignore_patterns("annotations", "marks.jsonl", "notes.jsonl")
    run = keyhole.open(shutil.copytree(browsed.path, tmp_path / "run", ignore=said))
    with served(run) as url, opened(browser, url) as page:
        page.get_by_role("link", name="Collections").click()
        page.locator("text=Nothing is collected yet.").wait_for()
        page.locator(".collected .address").first.click()
        page.wait_for_selector(".collecting")
        page.keyboard.press("?")
        assert "star the cell" in page.locator("#help").inner_text()


def test_a_star_is_seen_beside_the_address_elsewhere(browser: Any, collected: keyhole.Run, tmp_path: Path) -> None:
    run = keyhole.open(shutil.copytree(collected.path, tmp_path / "run"))
    explorer = Explorer(run)
    here, alike = next((c, found[0][0]) for c in range(99) if (found := explorer.cell(1, c).similar_keys))
    at = run[alike]
    with served(run) as url, opened(browser, url) as page:
        site = Site(url, run, live=True)
        go(page, site, f"#/L{at.layer}/{at.index}")
        page.locator(f"[data-star='{alike}']").click()
        page.wait_for_selector(".starring[aria-pressed=true]")
        go(page, site, f"#/L1/{here}")
        page.locator(".alike li", has=page.get_by_role("link", name=alike, exact=True)).locator(
            ".star"
        ).first.wait_for()
        go(page, site, "#/L0")
        page.get_by_role("button", name="Cell", exact=True).click()
        page.locator(".cells .address.starred", has_text="L0.7").wait_for()
        # someone else takes it away, and a page that is opened later knows
        at.mark(star=False, tags=["seen"])
        go(page, site, "#/collections")
        go(page, site, f"#/L1/{here}")
        page.locator(".alike .mark", has_text="seen").first.wait_for()
        assert page.locator(".alike .star").count() == 0


def test_what_could_not_be_saved_is_not_lost(browser: Any, collected: keyhole.Run, tmp_path: Path) -> None:
    run = keyhole.open(shutil.copytree(collected.path, tmp_path / "run"))
    with served(run) as url, opened(browser, url, refused=("api/marks",)) as page:
        site = Site(url, run, live=True)
        go(page, site, "#/L1/20")
        page.wait_for_selector("#note")
        (run.path / "marks.jsonl").rename(run.path / "moved")
        (run.path / "marks.jsonl").mkdir()
        page.locator("#tag").fill("precious")
        page.locator("#tag").press("Enter")
        page.locator("text=Not saved:").wait_for()
        assert page.locator("#tag").input_value() == "precious"
        page.locator("[data-star]").click()
        page.locator("text=Not saved:").wait_for()
        assert page.locator("[data-star]").get_attribute("aria-pressed") == "false"
        (run.path / "marks.jsonl").rmdir()
        page.reload()
        page.wait_for_selector("#note")
        assert page.locator("#tag").input_value() == "precious"
        page.locator("#tag").press("Enter")
        until(page, "() => document.querySelector('.tagchips bdi')?.textContent === 'precious'")
        page.locator("#tag").fill("x" * 41)
        page.locator("#tag").press("Enter")
        page.locator("text=is too long for a tag").wait_for()
    assert run["L1.20"].tags == ("precious",)


def test_a_browser_that_stores_nothing_says_so(browser: Any, exported: Site) -> None:
    with opened(browser, exported.url) as page:
        go(page, exported, "#/L1/20")
        page.wait_for_selector("#note")
        page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full'); }; }")
        page.locator("#tag").fill("all")
        page.locator("#tag").press("Enter")
        page.locator("text=a tag cannot be called starred or all").wait_for()
        page.locator("[data-star='L1.20']").click()
        page.locator("text=export your collections now").wait_for()
        assert page.locator("[data-star='L1.20']").get_attribute("aria-pressed") == "true"
        page.get_by_role("link", name="Collections", exact=True).first.click()
        page.locator(".collected .address", has_text="L1.20").wait_for()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(page: Any, site: Site, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    go(page, site, "#/collections")
    page.get_by_role("button", name="Import …").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
