"""The map of values and of keys in a real browser: the nearest point is named and opened, and the page says what the map is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from browsing import NAMED, Site, cell_address, cell_href, coloured, hosted, map_box, opened, stay, until

import keyhole
from keyhole.export.site import export
from keyhole.store import planes
from keyhole.web import maps

pytestmark = pytest.mark.slow

Pixels = npt.NDArray[np.float64]


def on_page(run: keyhole.Run, name: str, box: dict[str, float]) -> Pixels:
    """[cells, 2] where the points of a plane are, in pixels of the map: as large as fits, both axes on one scale, centred."""
    found = planes.of(run)
    assert found is not None
    at = found.sides[name].at.astype(float) * [1, -1]  # upwards
    extent = np.ptp(at, axis=0)
    room = np.array([box["width"], box["height"]])
    scale = (room / extent).min()
    pixels: Pixels = (at - at.min(0)) * scale + (room - extent * scale) / 2
    return pixels


def shown(page: Any, name: str) -> dict[str, float]:
    map_box(page)
    page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_selector(f".scattered button[aria-pressed=true]:text-is('{name}')")
    page.evaluate("document.querySelector('#map-title').scrollIntoView()")
    box: dict[str, float] = page.locator(".plane").bounding_box()
    return box


@pytest.mark.parametrize(("name", "scale"), [("values", 1), ("keys", 2)])
def test_the_nearest_point_is_named_and_opened(browser: Any, site: Site, name: str, scale: int) -> None:
    random = np.random.default_rng(scale)
    with opened(browser, site.url, viewport={"width": 1280, "height": 900}, device_scale_factor=scale) as page:
        stay(page)
        box = shown(page, name)
        points = on_page(site.run, name, box)
        for number in range(8):
            x, y = random.uniform(4, box["width"] - 4), random.uniform(4, box["height"] - 4)
            page.mouse.move(box["x"] + x, box["y"] + y)
            named = page.evaluate(NAMED)
            away = np.linalg.norm(points - [x, y], axis=1)
            assert away[site.run.cells.find(named)] <= away.min() + 0.2, named
            page.mouse.down()
            page.mouse.up()
            until(page, "n => window.opened.length === n", number + 1)
            assert page.evaluate("window.opened.at(-1)") == cell_href(named)


def test_zoomed_in_single_points_are_told_apart(browser: Any, site: Site) -> None:
    with opened(browser, site.url, viewport={"width": 1280, "height": 900}) as page:
        box = shown(page, "values")
        points = on_page(site.run, "values", box)
        middle = int(np.linalg.norm(points - points.mean(0), axis=1).argmin())
        page.mouse.move(*(points[middle] + [box["x"], box["y"]]))
        before = page.evaluate(NAMED)
        page.keyboard.down("Control")
        for _ in range(6):
            page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        until(page, "() => document.querySelector('.extent').textContent.includes('in view')")
        assert page.evaluate(NAMED) == before == site.run.cells.address(middle)
        scale = np.exp(0.8 * 6)
        near = np.argsort(np.linalg.norm(points - points[middle], axis=1))[1]
        x, y = points[middle] + (points[near] - points[middle]) * scale
        if 0 < x < box["width"] and 0 < y < box["height"]:
            page.mouse.move(box["x"] + x, box["y"] + y)
            assert page.evaluate(NAMED) == site.run.cells.address(int(near))


def test_arrows_lead_to_the_nearest_point_that_way(browser: Any, site: Site) -> None:
    with opened(browser, site.url, viewport={"width": 1280, "height": 900}) as page:
        points = on_page(site.run, "keys", shown(page, "keys"))
        page.locator(".plane").focus()
        find = site.run.cells.find
        for key, way in (
            ("ArrowRight", (1, 0)),
            ("ArrowUp", (0, -1)),
            ("ArrowLeft", (-1, 0)),
            ("ArrowDown", (0, 1)),
        ) * 2:
            before = find(page.evaluate(NAMED))
            page.keyboard.press(key)
            after = find(page.evaluate(NAMED))
            steps = points - points[before]
            along, across = steps @ way, np.abs(steps @ way[::-1])
            away = np.where((along > 1e-3) & (across <= along + 1e-3), np.linalg.norm(steps, axis=1), np.inf)
            assert np.isinf(away.min()) or np.linalg.norm(steps[after]) <= away.min() + 0.2
        page.keyboard.press("End")
        assert page.evaluate(NAMED) == site.run.cells.address(len(site.run.cells) - 1)
        page.keyboard.press("PageUp")
        assert page.evaluate(NAMED) == site.run.cells.address(len(site.run.cells) - 2)
        page.keyboard.press("Enter")
        page.wait_for_selector(".cellpage")
        assert cell_address(page) == site.run.cells.address(len(site.run.cells) - 2)


def test_the_page_says_what_the_map_is_worth(browser: Any, site: Site) -> None:
    found = planes.of(site.run)
    assert found is not None
    for width in (1200, 360):
        with opened(browser, site.url, viewport={"width": width, "height": 800}) as page:
            shown(page, "values")
            side = found.sides["values"]
            said = page.locator(".map .means").inner_text()
            for share in (sum(side.explained), sum(side.shuffled)):
                assert any(f"{100 * share:.{digits}f} %" in said for digits in (0, 1)), (said, share)
            coloured(page, "activity")
            assert page.locator("#ordering").is_hidden()
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            page.get_by_role("button", name="rows", exact=True).click()
            until(page, "() => !document.querySelector('.scattered')")
            assert page.locator("#ordering").is_visible()


@pytest.fixture(scope="module")
def large(browsed: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Exported as a model is that has too many cells for one answer."""
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maps, "WHOLE", 64)
        export(browsed, folder / "site")
    with hosted(folder) as url:
        yield Site(url + "site/", browsed, live=False)


def test_a_large_model_is_loaded_where_it_is_zoomed(browser: Any, large: Site) -> None:
    with opened(browser, large.url, viewport={"width": 1280, "height": 900}) as page:
        box = shown(page, "values")
        until(page, "() => document.querySelector('.extent').textContent.includes('the strongest of the cells')")
        coloured(page, "activity")
        points = on_page(large.run, "values", box)
        x, y = np.median(points, axis=0).round() + 3
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.keyboard.down("Control")
        for _ in range(5):
            page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        until(page, "() => document.querySelector('.extent').textContent.startsWith('A point is a cell')")
        page.mouse.move(box["x"] + x + 1, box["y"] + y)
        away = np.linalg.norm(points - [x, y], axis=1)
        until(
            page,
            "name => document.querySelector('.readout b')?.textContent === name",
            large.run.cells.address(int(away.argmin())),
        )
        until(page, "() => /: [0-9.<]+ %/.test(document.querySelector('.readout').textContent)")
        share = float(large.run.stats.active_fraction[away.argmin()])
        said = page.locator(".readout").inner_text().split(": ")[1].split(" %")[0]
        assert float(said.removeprefix("<")) / 100 == pytest.approx(share, abs=0.01)
