"""The page while its run is replaced, moved and brought back: it says so, and loses nothing that was typed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Site, caught, go, lively, opened, served, small, until

import keyhole
from keyhole.store import annotations, collections

pytestmark = pytest.mark.slow

REFUSED = ("api/marks", "api/annotations", ".json")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run of the same model."""
    folder = tmp_path_factory.mktemp("other")
    text = folder / "text.txt"
    text.write_text("\n".join(f"A dog of {i} years ran to house number {i * 7}." for i in range(40)) + "\n")
    return keyhole.scan(small(), [text], out=folder / "run", top=10, unit="line", context=64).path


@pytest.fixture
def changing(browsed: keyhole.Run, tmp_path: Path) -> Iterator[Site]:
    run = keyhole.open(shutil.copytree(browsed.path, tmp_path / "run"))
    with served(run) as url:
        yield Site(url, run, live=True)


def replaced(site: Site, by: Path) -> None:
    site.run.path.rename(site.run.path.with_name("old"))
    shutil.copytree(by, site.run.path)


def bar(page: Any) -> str:
    page.wait_for_selector("#lost:not([hidden])")
    found = page.locator("#lost")
    box, width = found.bounding_box(), page.viewport_size["width"]
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert found.get_by_role("button", name="Reload").is_visible()
    return str(found.inner_text())


@pytest.mark.parametrize("width", [1200, 360])
def test_an_annotation_for_a_run_that_was_replaced(browser: Any, changing: Site, other: Path, width: int) -> None:
    cell = lively(changing.run, 1)
    with opened(browser, changing.url, refused=REFUSED, viewport={"width": width, "height": 800}) as page:
        page.evaluate("localStorage.setItem('keyhole.annotator', 'ada')")
        go(page, changing, f"#/annotate/L1/{cell}")
        boxes = page.locator(".marks input")
        for at in (0, 1, 2):
            boxes.nth(at).check()
        page.locator("#description-0").fill("about cats")
        replaced(changing, other)
        page.get_by_role("button", name="Save, next").click()
        assert "was replaced. Reload to see the new one." in bar(page)
        assert page.locator("#description-0").input_value() == "about cats"
        assert boxes.nth(0).is_checked()
        assert "Saved" not in page.locator("main").inner_text()
        assert annotations.read_annotations(keyhole.open(changing.run.path)) == []
        page.locator("#lost").get_by_role("button", name="Reload").click()
        until(page, "() => document.querySelector('main h1') && document.getElementById('lost').hidden")
        # of the new run, and without the marks that were made on the triggers of the old one
        page.wait_for_selector(".marks")
        assert page.locator("#description-0").input_value() == ""
        assert not page.locator(".marks input:checked").count()


def test_a_note_on_a_run_that_is_gone_and_comes_back(browser: Any, changing: Site) -> None:
    path = changing.run.path
    with opened(browser, changing.url, refused=REFUSED) as page:
        go(page, changing, "#/L1/11")
        page.wait_for_selector("#note")
        path.rename(path.with_name("moved"))
        page.locator("#note").fill("fires on cats")
        assert "is gone" in bar(page)
        page.wait_for_selector("text=Not saved:")
        assert not path.exists()
        page.reload()
        assert "is gone" in bar(page)
        path.with_name("moved").rename(path)
        page.locator("#lost").get_by_role("button", name="Reload").click()
        page.wait_for_selector("text=Not saved yet.")
        assert page.locator("#note").input_value() == "fires on cats"
        assert page.locator("#lost").is_hidden()
        page.get_by_role("button", name="Save", exact=True).click()
        page.wait_for_selector("text=Saved.")
        assert collections.read_notes(changing.run) == {"L1.11": "fires on cats"}
        page.reload()
        page.wait_for_selector("#note")
        assert page.locator("#note").input_value() == "fires on cats"
        assert not page.locator("text=Not saved yet.").count()


def test_a_run_that_comes_back_takes_the_bar_away(browser: Any, changing: Site) -> None:
    path = changing.run.path
    with opened(browser, changing.url, refused=REFUSED) as page:
        go(page, changing, "#/L1/11")
        path.rename(path.with_name("moved"))
        go(page, changing, "#/L0/7")
        bar(page)
        path.with_name("moved").rename(path)
        go(page, changing, "#/L0/8")
        assert page.locator("#lost").is_hidden()


def test_a_late_answer_from_before_the_loss_leaves_the_bar(browser: Any, changing: Site) -> None:
    path = changing.run.path
    with opened(browser, changing.url, refused=REFUSED) as page:
        go(page, changing, "#/L1/11")
        held: list[tuple[Any, Any]] = []
        page.route("**/data/layers/0.json", lambda route: held.append((route, route.fetch())))
        page.evaluate("void import('/static/data.js').then(({ layer }) => layer(0))")
        caught(page, held)
        path.rename(path.with_name("moved"))
        go(page, changing, "#/L0/7")
        bar(page)
        route, response = held[0]
        with page.expect_response("**/data/layers/0.json") as answered:
            route.fulfill(response=response)
        assert answered.value.ok
        page.wait_for_timeout(300)
        assert page.locator("#lost").is_visible()
        path.with_name("moved").rename(path)
        go(page, changing, "#/L0/8")
        assert page.locator("#lost").is_hidden()


def test_an_old_tab_does_not_write_into_the_new_run(browser: Any, changing: Site, other: Path) -> None:
    with opened(browser, changing.url, refused=REFUSED) as old:
        go(old, changing, "#/L1/11")
        old.wait_for_selector("#note")
        replaced(changing, other)
        with opened(browser, changing.url) as new:
            go(new, changing, "#/L1/11")
            new.wait_for_selector("#note")
            old.locator("#note").fill("of the old run")
            assert "was replaced" in bar(old)
            old.wait_for_selector("text=Not saved:")
            new.locator("#note").fill("of the new run")
            new.wait_for_selector("text=Saved.")
    assert collections.read_notes(keyhole.open(changing.run.path)) == {"L1.11": "of the new run"}


def test_the_run_is_named_to_the_server_and_to_no_static_host(browser: Any, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.wait_for_selector("main h1")
        named: list[str | None] = []

        def asked(request: Any) -> None:
            if "/data/" in request.url:
                named.append(request.headers.get("keyhole-run"))

        page.on("request", asked)
        go(page, site, "#/L1/12")
        page.wait_for_selector("#header nav")
        assert set(named) == {site.run.manifest["checksum"] if site.live else None}
