"""Sets of cells switched off on the prompt page, and edits that change values, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browsing import Site, go, opened, small, until

from keyhole.models import intervene
from keyhole.models.intervene import Edit
from keyhole.searching import sets
from keyhole.store import collections
from keyhole.uses import prompt

pytestmark = pytest.mark.slow(seconds=20)

TEXT = "The cat sat"
ASKED = "#/prompt?q=The+cat+sat"


def percent(p: float) -> str:
    share = p * 100
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %" if share >= 1 else f"{share:.2f} %"


def ask(page: Any, site: Site, route: str = ASKED) -> None:
    go(page, site, route)
    page.wait_for_selector(".layers > li")


def edited(page: Any, edits: list[Edit]) -> None:
    """Wait until the page shows what Python finds with these edits."""
    view = prompt.read(small(), TEXT, edits=edits)
    until(
        page,
        "wanted => [...document.querySelectorAll('.predictions > div:nth-child(2) .num')].map(e => e.innerText).join() === wanted",
        ",".join(percent(p) for _, p in view.prediction),
    )


def open_sets(page: Any) -> Any:
    page.get_by_text("Switch off a set of cells").click()
    box = page.locator("details.sets")
    box.locator("select option[value^='search']").wait_for(state="attached")
    return box


def test_a_kind_is_switched_off_together(live_page: Any, live: Site) -> None:
    page = live_page
    kind = max((each for each in sets.offered(live.run) if each.cells <= 256), key=lambda each: each.cells)
    places = sets.cells_of(live.run, kind.name)
    assert len(places) == kind.cells
    ask(page, live)
    box = open_sets(page)
    shown = box.locator("option").all_inner_texts()
    assert shown[: len(shown) - 1] == [f"{each.title} ({each.cells:,})" for each in sets.offered(live.run)]
    page.get_by_label("Set of cells").select_option(kind.name)
    box.get_by_role("button", name="Switch off").click()
    here = [Edit(*live.run.cells.split(place), 0.0, (10,)) for place in places]
    edited(page, here)
    box.get_by_text(f"{kind.name}: {kind.cells} cell").wait_for()
    until(page, "count => document.querySelectorAll('.edits li').length === count", len(places))
    page.locator("#where").select_option("all")
    box.get_by_role("button", name="Switch off").click()
    edited(page, [Edit(*live.run.cells.split(place), 0.0) for place in places])
    until(
        page, "count => document.querySelectorAll('.edits li').length === count", len(places)
    )  # in place of the others


def test_a_set_that_is_too_large_is_said_and_adds_nothing(browser: Any, live: Site) -> None:
    marks = {live.run.cells.address(place): {"tags": ["most"]} for place in range(300)}
    collections.merge(live.run, {**collections.export(live.run), "cells": marks})
    with opened(browser, live.url) as page:
        ask(page, live, f"{ASKED}&edits=L1.5*0")
        box = open_sets(page)
        page.get_by_label("Set of cells").select_option("collection:most")
        box.get_by_role("button", name="Switch off").click()
        box.get_by_text(
            "collection:most has 300 cells, there are 1 edit already, and a prompt takes 256 edits: nothing was added."
        ).wait_for()
        assert '[{"set": "collection:most", "scale": 0}]' in box.inner_text()
        assert page.locator(".edits li .address").all_inner_texts() == ["L1.5"]


def test_a_search_names_a_set(browser: Any, live: Site) -> None:
    with opened(browser, live.url, refused=["api/sets"]) as page:
        ask(page, live)
        box = open_sets(page)
        page.get_by_label("Set of cells").select_option("search")
        box.get_by_role("button", name="Switch off").click()
        box.get_by_text("Type what the set is named by.").wait_for()
        page.get_by_label("What names the set").fill('"zebra"')
        box.get_by_role("button", name="Switch off").click()
        box.get_by_text("is in half of the triggers of no cell").wait_for()
        page.get_by_label("What names the set").fill("cat")
        places = sets.cells_of(live.run, "search:cat")
        assert 0 < len(places) <= 256
        box.get_by_role("button", name="Switch off").click()
        edited(page, [Edit(*live.run.cells.split(place), 0.0, (10,)) for place in places])


def test_an_edit_of_a_value_is_loaded_shown_kept_and_removed(browser: Any, live: Site, tmp_path: Path) -> None:
    width = small().values(0).shape[1]
    edits = [Edit(1, 5, 2.0, towards="a", by=40.0), Edit(1, 7, value=tuple(float(i % 3) for i in range(width)))]
    file = tmp_path / "edits.json"
    file.write_text(json.dumps(intervene.dump(edits, small())))
    with opened(browser, live.url, accept_downloads=True) as page:
        ask(page, live)
        page.locator(".edits input[type=file]").set_input_files(file)
        edited(page, edits)
        items = page.locator(".edits li")
        assert "value moved towards ‘a’ by 40" in items.nth(0).inner_text()
        assert "value replaced" in items.nth(1).inner_text()
        assert page.locator(".edits li input, .edits li select").count() == 0
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Save edits").click()
        assert json.loads(Path(downloading.value.path()).read_text()) == json.loads(file.read_text())
        until(page, "end => location.hash.endsWith(end)", "&edits=L1.5*2~40~a,L1.7*1~")
        page.reload()  # the numbers of the new value are those of the session
        page.wait_for_selector(".layers > li")
        edited(page, edits)
        page.get_by_role("button", name="Remove the edit of L1.7").click()
        edited(page, edits[:1])
    with opened(browser, live.url) as page:  # another reader, who has only the link
        odd = quote(quote(" ,*~@", safe=""), safe="")
        ask(page, live, f"{ASKED}&edits=L1.5*2~40~a,L1.7*1~,L1.8*1~far~a,L1.9*1~2~{odd}")
        edited(page, edits[:1])
        wrong = page.locator(".edits .wrong").all_inner_texts()
        assert len(wrong) == 3
        text = "\n".join(wrong)
        assert "The new value of L1.7 is in a file of edits and not in the link" in text
        assert "A value is moved by a number; “far” is none" in text
        assert "' ,*~@' is not a token of this model" in text
