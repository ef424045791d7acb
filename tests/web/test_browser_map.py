"""The map in a real browser: what is previewed is what opens, every cell can be reached, and the page still scrolls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from browsing import (
    NAMED,
    Site,
    caught,
    cell_address,
    cell_href,
    coloured,
    hosted,
    map_box,
    opened,
    served,
    stay,
    until,
)
from families import tiny

import keyhole
from keyhole.export.site import export
from keyhole.store import collections
from keyhole.web import maps

pytestmark = pytest.mark.slow

LAYERS, WIDTH = 2, 1500
"""more cells than a window has pixels"""
NOTED = (1, 1434)

EXTENT = "() => document.querySelector('.extent').textContent"


def model() -> Any:
    return tiny("gpt2", layers=LAYERS, cells=WIDTH, n_layer=LAYERS, n_inner=WIDTH)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("map")
    text = folder / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sat on mat {i % 5}." for i in range(30)), encoding="utf-8")
    run = keyhole.scan(model(), [text], out=folder / "run", top=3, unit="line", context=64)
    collections.save(run, run.cells.place(*NOTED), {"starred": True, "note": "odd"})
    return run


@pytest.fixture(scope="module")
def live(run: keyhole.Run) -> Iterator[Site]:
    with served(run, model()) as url:
        yield Site(url, run, live=True)


@pytest.fixture(scope="module")
def large(run: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Exported as a model is that has too many cells for one answer."""
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maps, "WHOLE", 512)
        export(run, folder / "site")
    with hosted(folder) as url:
        yield Site(url + "site/", run, live=False)


@pytest.mark.parametrize("scale", [1, 1.5, 2])
def test_a_click_opens_what_is_previewed(browser: Any, live: Site, scale: float) -> None:
    rng = np.random.default_rng(int(scale * 10))
    with opened(browser, live.url, viewport={"width": 1280, "height": 900}, device_scale_factor=scale) as page:
        stay(page)
        box = map_box(page)
        for number in range(12):
            if number in (4, 8):  # columns of two cells, then single ones of two pixels, then of many
                page.get_by_role("button", name="Zoom in").click()
                for _ in range(0 if number == 4 else 4):
                    page.keyboard.press("Enter")  # the button again
            page.mouse.move(box["x"] + float(rng.uniform(1, box["width"] - 1)), box["y"] + float(rng.uniform(1, 46)))
            named = page.evaluate(NAMED)
            page.mouse.down()
            page.mouse.up()
            assert page.evaluate(NAMED) == named
            until(page, "n => window.opened.length === n", number + 1)
            assert page.evaluate("window.opened.at(-1)") == cell_href(named)


def test_every_cell_is_reached_by_keyboard(browser: Any, live: Site, run: keyhole.Run) -> None:
    with opened(browser, live.url, viewport={"width": 1280, "height": 900}) as page:
        map_box(page)
        coloured(page, "activity")
        page.locator(".plane").focus()
        assert "A column is 2 cells" in page.evaluate(EXTENT)
        active = run.layer(0).stats.active_fraction
        page.keyboard.press("ArrowRight")  # the stronger cell of the second column
        assert page.evaluate(NAMED) == f"L0.{2 + int(active[3] > active[2])}"
        page.keyboard.press("Home")
        for _ in range(6):
            page.keyboard.press("+")
        until(page, f"() => ({EXTENT})().includes('column is a cell')")
        for cell in range(1, 80):  # past the right edge: the view follows
            page.keyboard.press("ArrowRight")
            assert page.evaluate(NAMED) == f"L0.{cell}"
        page.keyboard.press("End")
        assert page.evaluate(NAMED) == f"L0.{WIDTH - 1}"
        page.keyboard.press("Control+End")
        assert page.evaluate(NAMED) == f"L{LAYERS - 1}.{WIDTH - 1}"
        until(page, f"() => ({EXTENT})().includes('to {WIDTH - 1:,} of')")
        inside = "() => { const [a, b] = ['.cursor', '.plane'].map(s => document.querySelector(s).getBoundingClientRect()); return a.left > b.left && a.right <= b.right + 4; }"
        until(page, inside)
        page.keyboard.press("0")
        until(page, f"() => ({EXTENT})().includes('A column is 2 cells')")
        assert page.evaluate(NAMED) == f"L{LAYERS - 1}.{WIDTH - 1}"
        page.keyboard.press("Enter")
        page.wait_for_selector(".cellpage")
        assert cell_address(page) == f"L{LAYERS - 1}.{WIDTH - 1}"


def test_wheel_drag_and_double_click(browser: Any, live: Site) -> None:
    with opened(browser, live.url, viewport={"width": 1280, "height": 900}) as page:
        stay(page)
        box = map_box(page)
        scrolled = page.evaluate("scrollY")
        page.mouse.move(box["x"] + 700, box["y"] + 10)
        page.mouse.wheel(0, -200)
        until(page, "y => scrollY < y", scrolled)  # without Ctrl and focus it is the page's wheel
        assert page.locator(".thumb").is_hidden()
        box = map_box(page)
        for _ in range(14):
            page.keyboard.down("Control")
            page.mouse.wheel(0, -300)
            page.keyboard.up("Control")
        until(page, f"() => ({EXTENT})().includes('column is a cell')")
        until(page, "() => document.querySelector('[aria-label=\"Zoom in\"]').disabled")
        cell = int(page.evaluate(NAMED).split(".")[1])
        assert cell == pytest.approx(700 / box["width"] * WIDTH, abs=4)  # zoomed around the pointer
        page.mouse.down()
        page.mouse.move(box["x"] + 580, box["y"] + 10, steps=4)
        page.mouse.up()
        page.mouse.move(box["x"] + 700, box["y"] + 10)
        until(page, f"n => ({NAMED})() === n", f"L0.{cell + 5}")  # 120 pixels are five cells
        page.get_by_role("button", name="Show the whole map").click()
        until(page, "() => document.querySelector('.thumb').hidden")
        page.mouse.dblclick(box["x"] + 300, box["y"] + 10)
        until(page, "() => !document.querySelector('.thumb').hidden")
        page.locator(".plane").focus()
        before, scrolled = page.evaluate(EXTENT), page.evaluate("scrollY")
        page.mouse.wheel(0, -100)  # with the focus it is the map's
        until(page, f"before => ({EXTENT})() !== before", before)
        assert page.evaluate("scrollY") == scrolled
        assert page.evaluate("window.opened") == []


def test_two_fingers_zoom_and_a_second_tap_opens(browser: Any, live: Site) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 3}
    with opened(browser, live.url, **phone) as page:
        stay(page)
        box = map_box(page)
        touch = page.context.new_cdp_session(page)
        middle, y = box["x"] + 150, box["y"] + 20

        def fingers(kind: str, *apart: float) -> None:
            points = (
                [{"x": middle + sign * apart[0], "y": y, "id": i} for i, sign in enumerate((-1, 1))] if apart else []
            )
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        fingers("touchStart", 20)
        for apart in range(25, 125, 10):
            fingers("touchMove", apart)
        fingers("touchEnd")
        until(page, f"() => ({EXTENT})().includes('of each layer')")
        assert page.evaluate("window.visualViewport.scale") == 1  # the map was zoomed, not the page
        page.touchscreen.tap(middle, y)
        until(page, f"() => ({NAMED})()")
        named = page.evaluate(NAMED)
        page.wait_for_timeout(400)  # a second tap within this time would be a double tap
        assert page.evaluate("window.opened") == []
        page.touchscreen.tap(middle, y)
        until(page, "() => window.opened.length === 1")
        assert page.evaluate("window.opened") == [cell_href(named)]


def test_the_map_does_not_move_when_the_marks_come(browser: Any, live: Site) -> None:
    """On a phone their entry in the legend takes a line of its own, above the map."""
    with opened(browser, live.url, viewport={"width": 360, "height": 740}) as page:
        held: list[Any] = []
        page.route("**/collections.json", lambda route: held.append(route))
        page.reload()
        page.locator("#map-title").scroll_into_view_if_needed()
        caught(page, held)
        page.wait_for_timeout(300)  # all but the marks is here
        before = page.locator(".plane").bounding_box() if page.locator(".plane").count() else None
        for route in held:
            route.continue_()
        page.wait_for_selector(".legend .pinned")
        assert before is None or before["y"] == page.locator(".plane").bounding_box()["y"]


def test_a_map_that_is_not_computed_says_how(browser: Any, live: Site) -> None:
    with opened(browser, live.url) as page:
        map_box(page)
        page.get_by_role("button", name="keys", exact=True).click()
        page.wait_for_selector("text=keyhole analyze RUN --only plane")
        assert page.locator(".scattered").count() == 0


def test_marked_cells_are_pinned(browser: Any, live: Site) -> None:
    with opened(browser, live.url, viewport={"width": 1280, "height": 900}) as page:
        box = map_box(page)
        page.wait_for_selector(".legend .pinned")
        assert page.locator(".legend .pinned").inner_text() == "1 cell that people marked"
        pixels = """() => {
          const pins = document.querySelector('.pins'), canvas = document.createElement('canvas');
          [canvas.width, canvas.height] = [pins.width, pins.height];
          const copy = canvas.getContext('2d', { willReadFrequently: true });
          copy.drawImage(pins, 0, 0);
          const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
          const at = Array.from({ length: data.length / 4 }, (_, i) => i).filter(i => data[4 * i + 3] > 0);
          return at.map(i => [i % canvas.width, Math.floor(i / canvas.width)]);
        }"""
        until(page, f"() => ({pixels})().length > 10")
        drawn = np.array(page.evaluate(pixels))
        assert drawn[:, 0].mean() == pytest.approx((NOTED[1] + 0.5) / WIDTH * box["width"], abs=2)
        assert (drawn[:, 1] >= box["height"] / LAYERS * NOTED[0] - 2).all()
        page.locator(".plane").focus()
        page.keyboard.press("Control+End")
        for _ in range(6):
            page.keyboard.press("+")
        for _ in range(WIDTH - 1 - NOTED[1]):
            page.keyboard.press("ArrowLeft")
        assert page.evaluate(NAMED) == f"L{NOTED[0]}.{NOTED[1]}"
        assert page.locator(".readout .pinned").inner_text() == "starred, note"


@pytest.mark.parametrize("ordering", ["number", "sorted"])
def test_a_large_model_is_loaded_where_it_is_zoomed(browser: Any, large: Site, run: keyhole.Run, ordering: str) -> None:
    asked: list[str] = []
    with opened(browser, large.url, viewport={"width": 1280, "height": 900}) as page:
        page.on("request", lambda request: asked.append(request.url) if "/data/map" in request.url else None)
        stay(page)
        box = map_box(page)
        coloured(page, "activity")
        if ordering == "sorted":
            page.select_option("#ordering", "sorted")
        else:
            assert "A column is 8 cells" in page.evaluate(EXTENT)
        assert not [url for url in asked if "mapcells" in url or "mapranks" in url]
        active = run.layer(1).stats.active_fraction
        page.mouse.move(box["x"] + 600, box["y"] + 36)
        page.keyboard.down("Control")
        for _ in range(14):
            page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        until(page, f"() => ({EXTENT})().includes('column is a cell')")
        until(page, "() => document.querySelector('[aria-label=\"Zoom in\"]').disabled")
        page.mouse.move(box["x"] + 601, box["y"] + 36)
        until(page, f"() => /L1/.test(({NAMED})())")
        named = page.evaluate(NAMED)
        number = round(600 / box["width"] * WIDTH)
        if ordering == "sorted":
            step = (active.max() - min(0, active.min())) / 254
            assert active[int(named.split(".")[1])] == pytest.approx(np.sort(active)[::-1][number], abs=1.5 * step)
        else:
            assert int(named.split(".")[1]) == pytest.approx(number, abs=4)
        share = float(active[int(named.split(".")[1])])
        said = page.locator(".readout").inner_text().split(": ")[1].split(" %")[0]
        assert float(said.removeprefix("<")) / 100 == pytest.approx(share, abs=0.01)
        name = "mapranks" if ordering == "sorted" else "mapcells"
        blocks = {url for url in asked if name in url}
        assert 1 <= len(blocks) <= 4, blocks
        page.mouse.down()
        page.mouse.up()
        until(page, "() => window.opened.length === 1")
        assert page.evaluate("window.opened") == [cell_href(named)]
