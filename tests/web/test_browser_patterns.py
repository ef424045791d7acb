"""Patterns in a real browser: labels wherever cells are listed, a cell's patterns and which triggers carry them, the search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import explored
import labelled
import numpy as np
import pytest
from browsing import Site, go, hosted, opened, served, until

import keyhole
from keyhole.common.output import printable as visible
from keyhole.export.site import export
from keyhole.store import patterns
from keyhole.store.patterns import METHODS, Key, Patterns
from keyhole.web import found
from keyhole.web.search import words

pytestmark = pytest.mark.slow
LOOKED_AT = 17
SIDEWAYS = "() => document.documentElement.scrollWidth - window.innerWidth"
UNLABELLED = """() => [...document.querySelectorAll('input, select, button, a')].filter(e => e.checkVisibility() &&
  !(e.getAttribute('aria-label') || [...(e.labels ?? [])].some(l => l.textContent.trim()) || e.textContent.trim())).map(e => e.outerHTML)"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = explored.write(tmp_path_factory.mktemp("patterned"))
    labelled.write(run, LOOKED_AT)
    return run


@pytest.fixture(scope="module")
def live(run: keyhole.Run) -> Iterator[Site]:
    with served(run, explored.model()) as url:
        yield Site(url, run, live=True)


@pytest.fixture(scope="module")
def exported(run: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("patterned-host")
    export(run, folder / "site")
    with hosted(folder) as url:
        yield Site(url + "site/", run, live=False)


def stored(run: keyhole.Run) -> Patterns:
    known = patterns.of(run)
    assert known is not None
    return known


def whole(run: keyhole.Run) -> tuple[int, int, Key, Key]:
    """A cell with patterns and triggers on both sides."""
    for place, key in stored(run):
        other = stored(run).key(place, -1)
        full = all((side.units[place, :6] >= 0).all() for side in run.sides.values())
        if full and key.scores and other is not None:
            return (*run.cells.split(place), key, other)
    pytest.fail("no cell has triggers on both sides")


def marked(page: Any) -> list[list[int]]:
    """Per list of triggers, the numbers of those that are marked."""
    rows: list[list[int]] = page.evaluate(
        """[...document.querySelectorAll('.triggerlist')].map(list =>
             [...list.children].flatMap((row, i) => row.classList.contains('carries') ? [i] : []))"""
    )
    return rows


def test_a_cell_shows_its_patterns(page: Any, site: Site) -> None:
    layer, cell, key, other = whole(site.run)
    go(page, site, f"#/L{layer}/{cell}")
    blocks = page.locator(".found")
    assert blocks.count() == 2
    for block, each in zip(blocks.all(), (key, other), strict=True):
        items = block.locator(".rules > li")
        assert items.locator(".rule bdi").all_inner_texts() == [visible(one.description) for one in each.patterns]
        assert items.locator(".badge").all_inner_texts() == [one.kind for one in each.patterns]
        for item, one in zip(items.all(), each.patterns, strict=True):
            numbers = item.locator(".numbers").inner_text()
            assert numbers.startswith(f"{len(one.triggers)} of {each.read}")
            for said in (
                f"AUPRC {one.auprc:.2f}",
                f"F1 {one.f1:.2f}",
                f"Pearson {one.pearson:.2f}",
                "q 0.0021",
                "lift",
            ):
                assert said in numbers
            assert item.locator(".numbers span:not([title])").count() == 0
    assert page.locator(".found b").count() == 0  # a description is text, not markup
    rows = page.locator(".scores tbody tr")
    assert rows.count() == len(METHODS)
    for row, method in zip(rows.all(), METHODS, strict=True):
        score, (auprc, *others) = key.scores[method], row.locator("td").all_inner_texts()
        assert auprc.split() == [f"{score.auprc:.2f}", f"{score.lo:.2f}", "to", f"{score.hi:.2f}"]
        assert others == [f"{score.f1:.2f}", f"{score.pearson:.2f}"]
        assert len(row.locator("th").get_attribute("title")) > 20
    assert "last token −84 %, one before it −31 %, third last +2.0 %" in page.locator(".needs").inner_text()
    page.locator(".meanings summary").first.click()
    assert page.locator(".meanings dl").first.locator("dt").all_inner_texts()[:4] == ["triggers", "lift", "q", "AUPRC"]
    for block, each in zip(page.locator(".triggerlist").all(), (key, other), strict=True):
        for at, row in enumerate(block.locator("li").all()):
            carried = [i + 1 for i, one in enumerate(each.patterns) if at in one.triggers]
            assert [int(text) for text in row.locator(".tag:not(.none)").all_inner_texts()] == carried
            heard = row.locator(".tags .hidden").all_text_contents()
            assert heard == (
                [f" carries pattern{'s' * (len(carried) > 1)} {', '.join(map(str, carried))}"] if carried else []
            )


def test_a_pattern_marks_its_triggers(page: Any, site: Site) -> None:
    layer, cell, key, other = whole(site.run)
    go(page, site, f"#/L{layer}/{cell}")
    assert marked(page) == [[], []]
    rules = page.locator(".found").first.locator(".rules > li")
    rules.nth(1).hover()
    assert marked(page) == [list(key.patterns[1].triggers), []]
    page.locator("h1").hover()
    assert marked(page) == [[], []]
    first = rules.nth(0).get_by_role("button")
    first.focus()
    assert marked(page)[0] == list(key.patterns[0].triggers)
    page.keyboard.press("Tab")
    assert marked(page)[0] == list(key.patterns[1].triggers)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # to the next block: the pressed one stays
    assert marked(page)[0] == list(key.patterns[1].triggers)
    assert [button.get_attribute("aria-pressed") for button in rules.get_by_role("button").all()] == [
        "false",
        "true",
        "false",
    ]
    rules.nth(1).get_by_role("button").click()
    page.locator("h1").hover()
    page.evaluate("document.activeElement.blur()")
    assert marked(page) == [[], []]
    page.locator(".found").nth(1).locator(".rules > li").first.hover()
    assert marked(page) == [[], list(other.patterns[0].triggers)]


def test_what_is_said_if_there_are_none(page: Any, site: Site) -> None:
    alive = [i for i in range(24) if site.run.layer(0).units[i, 0] >= 0]
    none, beyond = next(i for i in alive if i % 8 in (1, 2) and i < LOOKED_AT), next(i for i in alive if i >= LOOKED_AT)
    for cell, said in (
        (none, "No pattern found among its 6 triggers."),
        (beyond, "Not looked at: keyhole patterns RUN --cells all"),
    ):
        go(page, site, f"#/L0/{cell}")
        assert said in page.locator("[aria-labelledby=patterns-title]").inner_text()
        assert page.locator("[aria-labelledby=patterns-title] .rules").count() == 0


def test_the_layer_table_has_a_column(page: Any, site: Site) -> None:
    labels = stored(site.run).labels
    go(page, site, "#/L1?sort=pattern&order=up")
    page.wait_for_selector("td.pattern bdi")
    expected = sorted((labels[place] for place in labels if site.run.cells.split(place)[0] == 1), key=str.lower)
    shown = page.locator("td.pattern").all_inner_texts()
    assert shown[: len(expected)] == [visible(label) for label in expected]
    assert set(shown[len(expected) :]) == {""}
    page.fill("#filter", "number 4")
    until(page, "document.querySelector('table.cells').getAttribute('aria-rowcount') === '2'")
    assert page.locator("td.name a").all_inner_texts() == ["L1.4"]


def test_cells_have_labels_in_every_list(page: Any, site: Site) -> None:
    run, labels = site.run, stored(site.run).labels

    def label(address: str) -> str:
        text = labels.get(run[address].place)
        return "" if text is None else f"pattern: {visible(text)}"

    page.wait_for_selector(".card .promotes")
    addresses = page.locator(".card b").all_inner_texts()
    for card, address in zip(page.locator(".card").all(), addresses, strict=True):
        if card.is_visible():
            card.scroll_into_view_if_needed()
            if expected := label(address):
                card.locator(".pattern bdi").wait_for()  # labels come after the card
            assert card.locator(".pattern").text_content() == expected
    page.locator("#map-title").scroll_into_view_if_needed()
    page.locator(".plane").focus()
    page.wait_for_selector(".readout .pattern bdi")
    assert page.locator(".readout .pattern").text_content() == label("L0.0")
    listed = 0
    for cell in (0, 3, 5):
        go(page, site, f"#/L0/{cell}")
        for name in ("similar-keys", "similar-values"):
            for item in page.locator(f"[aria-labelledby={name}-title] li").all():
                item.scroll_into_view_if_needed()
                if expected := label(item.locator("a.address").inner_text()):
                    item.locator(".pattern bdi").wait_for()
                    assert item.locator(".pattern").text_content() == expected
                    listed += 1
    assert listed > 5
    go(page, site, "#/search?q=cat")
    page.wait_for_selector("[aria-labelledby=keys-title] .hits li")
    for item in page.locator("[aria-labelledby=keys-title] .hits li").all()[:6]:
        if expected := label(item.locator("a.address").inner_text()):
            item.scroll_into_view_if_needed()
            item.locator(".pattern bdi").wait_for()
            assert item.locator(".pattern").text_content() == expected
    if not site.live:
        return
    go(page, site, "#/prompt?q=The cat sat")
    page.get_by_role("button", name="Read").click()
    page.locator(".layers > li").nth(2).wait_for()
    items = [item for item in page.locator(".contributions li").all() if item.is_visible()]
    for item in items:
        if expected := label(item.locator("a.address").inner_text()):
            item.scroll_into_view_if_needed()
            item.locator(".pattern bdi").wait_for()
            assert item.locator(".pattern").text_content() == expected


def best(run: keyhole.Run, asked: str) -> list[str]:
    """The cells that a search lists: with a pattern whose description has all the words, or whose rule names the token."""
    wanted, scores = set(words(asked)), dict[int, tuple[float, ...]]()
    tokens = {i for i in range(len(run.vocabulary)) if run.vocabulary.piece(i).strip().lower() == asked.strip().lower()}
    for place, key in stored(run):
        for number, one in enumerate(key.patterns):
            if (wanted and wanted <= set(words(one.description))) or tokens & set(one.rule["all"][0]["ids"]):
                share = len(one.triggers) / key.read
                score = (-(one.auprc or 0) * share, -share, place, -key.side, number)
                scores[place] = min(score, scores.get(place, score))
    return [run.cells.address(place) for place in sorted(scores, key=lambda place: scores[place])]


def test_search_finds_patterns_by_description_and_by_rule(page: Any, site: Site) -> None:
    run, section = site.run, "[aria-labelledby=patterns-title]"
    counts = {
        token: sum(token in one.rule["all"][0]["ids"] for _, key in stored(run) for one in key.patterns)
        for token in range(len(run.vocabulary))
        if run.vocabulary.piece(token).isalpha()
    }
    token = run.vocabulary.piece(max(counts, key=lambda token: counts[token]))
    for asked in ("cats", "number 4", "other the", token, "nothing says this"):
        go(page, site, f"#/search?q={quote(asked)}")
        until(page, f"!document.querySelector('{section} .results').textContent.startsWith('Looking')")
        expected = best(run, asked)
        shown = page.locator(f"{section} .hits .address").all_inner_texts()
        assert shown == expected[:20], asked
        if not expected:
            assert page.locator(f"{section} .results p").inner_text() == f"No pattern names {asked}."
            continue
        assert page.locator(f"{section} [role=status]").inner_text().startswith(f"{len(expected)} cell")
        row = page.locator(f"{section} .hits li").first
        row.locator(".badge").wait_for()
        assert "of 6 triggers" in row.inner_text()
    assert best(run, token), "no rule names a token that can be searched for"


def test_a_common_word_does_not_narrow_a_search(
    browser: Any, run: keyhole.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "MOST", 6)
    section, by_four = "[aria-labelledby=patterns-title]", best(run, "4")
    assert 0 < len(by_four) < 6 < len(best(run, "number"))
    with served(run, explored.model()) as url, opened(browser, url) as page:
        for asked, expected, said in (
            ("unheard number 4", [], "number left out: in at least 6 patterns."),
            ("number 4", by_four, "number left out: in at least 6 patterns."),
            ("number", best(run, "number")[:6], "number: only the best 6 patterns are listed."),
        ):
            go(page, Site(url, run, live=True), f"#/search?q={quote(asked)}")
            page.get_by_text(said).wait_for()
            assert page.locator(f"{section} .hits .address").all_inner_texts() == expected


def test_on_a_phone_and_in_the_dark(browser: Any, live: Site) -> None:
    layer, cell, _, _ = whole(live.run)
    routes = [f"#/L{layer}/{cell}", f"#/L{layer}", "#/search?q=cats", ""]
    for scheme in ("light", "dark"):
        with opened(browser, live.url, viewport={"width": 390, "height": 800}, color_scheme=scheme) as page:
            for route in routes:
                go(page, live, route)
                page.wait_for_selector("td.pattern bdi, .rules, .hits .badge, .card .pattern")
                for details in page.locator(".meanings summary").all():
                    details.click()
                assert page.evaluate(SIDEWAYS) <= 0, route
                assert page.evaluate(UNLABELLED) == [], route
            inks = page.evaluate(
                "names => names.map(n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim())",
                ["keytext", "blue", "text", "soft", "paper", "wash"],
            )
            for ground in inks[4:]:
                for ink in inks[:4]:
                    assert contrast(ink, ground) >= 4.5, (scheme, ink, ground)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2, of two colours written #rrggbb."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_run_without_patterns(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = explored.write(tmp_path_factory.mktemp("plain"))
    with served(run, explored.model()) as url, opened(browser, url) as page:
        site = Site(url, run, live=True)
        page.wait_for_selector(".card .promotes")
        assert page.locator(".pattern").count() == 0
        go(page, site, "#/L0")
        assert "Pattern" not in page.locator("thead").inner_text()
        go(page, site, "#/search?q=cats")
        assert page.locator("#patterns-title").count() == 0
        alive = next(i for i in range(24) if run.layer(0).units[i, 0] >= 0)
        go(page, site, f"#/L0/{alive}")
        said = page.locator("[aria-labelledby=patterns-title]").inner_text()
        assert said.split("\n")[-1] == "Patterns were not looked for: keyhole patterns RUN"
