"""How often a key fires and what is below its top, in a real browser, live and exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from browsing import Site, go, lively, small
from reference import forward

import keyhole
from keyhole.store import shading

pytestmark = pytest.mark.slow(seconds=4)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def coefficient(run: keyhole.Run, unit: int, position: int, place: int) -> float:
    """By a bare forward pass over the prefix's window."""
    ids = [int(i) for i in run.unit_tokens(unit)]
    begin = position // run.room * run.room
    return float(forward(small(), ids[begin : position + 1], True)[-1, place])


def test_below_the_top(page: Any, site: Site) -> None:
    run, cell = site.run, lively(site.run, 1)
    place, found = run.cells.place(1, cell), shading.of(run)
    assert found is not None
    go(page, site, f"#/L1/{cell}")
    assert page.locator(".keyside .parts button[aria-pressed=true]").inner_text() == "triggers"
    page.get_by_role("button", name="below the top").click()
    page.wait_for_selector(".keyside h3:has-text('Random')")
    lists = page.locator(".keyside .triggerlist:visible")
    examples = found.below.of(place)
    expected = [*examples.bands, examples.random]
    assert lists.count() == len(expected) == 5
    places, seen = found.below.places, []
    for i, group in enumerate(expected):
        rows = lists.nth(i).locator("li")
        assert rows.count() == len(group)
        for j, each in enumerate(group):
            unit, position = (int(x) for x in places[each.prefix])
            truth = coefficient(run, unit, position, place)
            assert number(rows.nth(j).locator(".coefficient .num").inner_text()) == pytest.approx(
                truth, rel=6e-3, abs=1e-5
            )
            last = run.vocabulary.piece(int(run.unit_tokens(unit)[position])).strip()
            boxed = rows.nth(j).locator(".last").inner_text()
            assert last in boxed or not last.isascii()
            seen.append(truth)
    # the bands are in order, and say where they begin
    titles = page.locator(".keyside h3:visible").all_inner_texts()
    assert [title.split(" %")[0] for title in titles[:4]] == ["99 to 100", "90 to 99", "50 to 90", "0 to 50"]
    for title, edge in zip(titles[:3], examples.edges, strict=True):
        assert number(title.split("m from ")[1].split()[0]) == pytest.approx(edge, rel=6e-3)
    means = [np.mean(seen[4 * i : 4 * i + 4]) for i in range(4)]
    assert means == sorted(means, reverse=True)
    # the choice stays for the next cell
    go(page, site, f"#/L0/{lively(run, 0)}")
    page.wait_for_selector(".keyside h3:has-text('Random')")
    page.get_by_role("button", name="triggers", exact=True).click()
    assert page.locator(".keyside .triggerlist:visible").first.locator("li").count() == run.top


def test_how_often_it_fires_is_said(page: Any, site: Site) -> None:
    run, cell = site.run, lively(site.run, 1)
    place = run.cells.place(1, cell)
    found = shading.of(run)
    assert found is not None
    go(page, site, f"#/L1/{cell}")
    said = page.locator(".lead").inner_text()
    share = float(found.firing(slice(place, place + 1))[0])
    shown = float(said.split("largest on ")[1].split(" %")[0]) / 100
    assert shown == pytest.approx(share, abs=0.005)
    assert f"{found.prefixes:,} of {found.of:,} sampled" in said
    low, high = (float(each.split(" %")[0]) / 100 for each in said.split("interval ")[1].split(" to ")[:2])
    assert low <= share <= high
    half = 1.96 * np.sqrt(share * (1 - share) / found.prefixes * (1 - found.prefixes / found.of))
    assert high - low == pytest.approx(2 * half, abs=0.011)
    assert "Fires on" not in said


def test_a_share_of_the_whole_text_has_no_interval(live_page: Any, live: Site) -> None:
    page = live_page
    firing = {"share": 0.1, "lo": 0.1, "hi": 0.1, "n": 2000, "of": 2000}

    def answer(route: Any) -> None:
        cell = route.fetch().json()
        route.fulfill(json={**cell, "stats": {**cell["stats"], "firing": firing}})

    page.route("**/data/cells/0/4.json", answer)
    go(page, live, "#/L0/4")
    said = page.locator(".lead").inner_text()
    assert "on 10 % of the text’s prefixes (all 2,000)" in said
    assert "interval" not in said
