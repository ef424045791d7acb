"""The explorer in a real browser, served live and as exported files: every page opened, used, and asserted on."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browsing import CELLS, LAYERS, Site, cell_address, go, lively, opened, titled, until

import keyhole
from keyhole.store import shading, values
from keyhole.views import text as show
from keyhole.web.search import bucket, words

pytestmark = pytest.mark.slow

ROUTES = ["", "#/L1", "#/L1/7", "#/search?q=cat", "#/search", "#/prompt", "#/annotate", "#/annotate/L0/3"]
UNLABELLED = """() => [...document.querySelectorAll('input, select, textarea, button, a, canvas, [role=img]')].filter(e =>
  e.checkVisibility() && e.getAttribute('aria-hidden') !== 'true' && !e.closest('[aria-hidden=true]') &&
  !(e.getAttribute('aria-label') || [...(e.labels ?? [])].some(l => l.textContent.trim()) || e.textContent.trim())).map(e => e.outerHTML)"""
SIDEWAYS = "() => document.documentElement.scrollWidth - window.innerWidth"


# All pages


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_opens_in_both_schemes_and_on_a_phone(browser: Any, site: Site, scheme: str) -> None:
    for width in (1280, 360):
        size = {"width": width, "height": 740}
        with opened(browser, site.url, viewport=size, color_scheme=scheme) as page:
            page.wait_for_selector(".card .promotes")
            paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert (paper == "rgb(24, 24, 22)") == (scheme == "dark")
            for route in ROUTES:
                page.goto(site.url + route)
                page.wait_for_timeout(80)
                page.wait_for_selector("main h1")
                until(page, "!document.querySelector('main').hasAttribute('aria-busy')")
                assert page.locator("h1").count() == 1
                assert page.evaluate(SIDEWAYS) <= 0, (route, width)
                assert page.evaluate(UNLABELLED) == [], route
                assert page.title().endswith("Keyhole")
                levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
                assert levels[0] == 1


def test_title_and_focus_follow_the_reader(page: Any, site: Site) -> None:
    page.wait_for_selector(".card")
    assert page.title() == "Overview · tiny-gpt2 · Keyhole"
    page.get_by_role("link", name="Layers", exact=True).click()
    page.wait_for_selector("table.cells")
    assert page.title().startswith("Layer 0")
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.locator("nav [aria-current=page]").inner_text() == "Layers"
    page.go_back()
    page.wait_for_selector(".card")
    assert page.title().startswith("Overview")


def test_keyboard(page: Any, site: Site) -> None:
    go(page, site, "#/L0/5")
    for key, address in (("j", "L0.6"), ("ArrowRight", "L0.7"), ("k", "L0.6"), ("ArrowLeft", "L0.5")):
        page.keyboard.press(key)
        titled(page, address)
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    page.keyboard.press("/")
    page.keyboard.type("jr?")
    assert page.locator("#find").input_value() == "jr?"
    assert cell_address(page) == "L0.5"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("r")
    until(page, "!document.title.startsWith('L0.5 ')")
    assert page.title().startswith("L")


def test_a_page_that_is_left_early_leaves_nothing_busy(page: Any, site: Site) -> None:
    """A slow page is left for one that opens at once; the slow one must not mark the new one as loading."""
    go(page, site, "#/L0/5")
    page.route("**/data/cells/1/9.json", lambda route: (page.wait_for_timeout(400), route.continue_()))
    page.evaluate("location.hash = '#/L1/9'")
    page.wait_for_timeout(20)
    page.evaluate("location.hash = '#/L0/5'")
    titled(page, "L0.5 ")
    page.wait_for_timeout(600)
    assert page.locator("main").get_attribute("aria-busy") is None
    assert cell_address(page) == "L0.5"


def test_first_cell_follows_the_last(page: Any, site: Site) -> None:
    go(page, site, f"#/L{LAYERS - 1}/{CELLS - 1}")
    page.keyboard.press("j")
    titled(page, "L0.0 ")


@pytest.mark.parametrize("route", ["#/L99", f"#/L0/{CELLS}", "#/nowhere", "#/__proto__", "#/L0/1/2"])
def test_what_is_not_there_is_said(page: Any, site: Site, route: str) -> None:
    go(page, site, route)
    assert page.get_by_role("alert").inner_text().startswith("There is no")


def test_colours_have_contrast(page: Any, site: Site) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours = page.evaluate(
            "names => Object.fromEntries(names.map(n => [n, getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()]))",
            ["paper", "wash", "text", "soft", "keytext", "valuetext", "yes", "no", "maybe", "agree"],
        )
        every = ["text", "soft", "keytext", "valuetext", "yes", "no", "maybe"]
        for ground, inks in (("paper", every), ("wash", ["text", "soft"]), ("agree", ["text"])):
            for ink in inks:
                assert contrast(colours[ground], colours[ink]) >= 4.5, (scheme, ground, ink)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


# Overview


def test_overview_leads_to_a_cell(page: Any, site: Site) -> None:
    page.wait_for_selector(".card .promotes")
    card = page.locator(".card").first
    address = card.locator("b").first.inner_text()
    card.click()
    page.wait_for_selector(".cellpage")
    assert cell_address(page) == address


def test_map_by_keyboard_and_pointer(page: Any, site: Site) -> None:
    page.locator("#map-title").scroll_into_view_if_needed()
    plane = page.locator(".plane")
    plane.wait_for()
    plane.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    readout = page.locator(".readout")
    assert readout.inner_text().startswith("L1.2 ")
    page.wait_for_selector(".readout .promotes")
    page.select_option("#measure", "activity")
    until(page, "() => document.querySelector('.readout').textContent.includes('above zero')")
    stats = site.run.stats
    share = stats.active_fraction[site.run.cells.place(1, 2)]
    assert f"{share:.0%}"[:-1] in readout.inner_text()
    page.select_option("#ordering", "sorted")
    box = plane.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 2)
    strongest = readout.locator("b").inner_text()
    layer, cell = (int(part) for part in strongest[1:].split("."))
    step = (stats.active_fraction.max() - stats.active_fraction.min()) / 254
    assert layer == 0
    active = site.run.layer(layer).stats.active_fraction
    assert active[cell] >= active.max() - step
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector(".cellpage")
    assert cell_address(page) == strongest


def test_figures_are_drawn_with_verdicts(page: Any, site: Site) -> None:
    page.locator("#figures-title").scroll_into_view_if_needed()
    page.wait_for_selector(".plot svg")
    assert page.locator(".finding").count() > 1
    assert page.locator(".verdict .badge").count() > 0


# Layer


def test_layer_sorts_filters_and_keeps_few_rows(page: Any, site: Site) -> None:
    go(page, site, "#/L1")
    rows = page.locator("tbody tr:not(.space)")
    assert 5 < rows.count() < 60 < CELLS
    head = page.get_by_role("columnheader", name="Fires on")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    shares = shading.firing(site.run, site.run.layer(1).span)
    assert shares is not None
    active = np.nan_to_num(shares)
    first = int(rows.first.locator("a").inner_text().split(".")[1])
    assert active[first] == pytest.approx(active.max(), rel=1e-3)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    first = int(rows.first.locator("a").inner_text().split(".")[1])
    assert active[first] == pytest.approx(np.nanmin(shares), rel=1e-3)
    assert page.locator("[aria-sort=ascending], [aria-sort=descending]").count() == 1
    page.locator(".cellbox").evaluate("box => box.scrollTop = box.scrollHeight")
    until(page, f"[...document.querySelectorAll('tbody tr')].at(-1).ariaRowIndex === '{CELLS + 1}'")
    assert rows.count() < 60

    said = values.Values(site.run, "norm").top_tokens[site.run.cells.span(1), :3]
    piece = site.run.vocabulary.piece(int(said[9, 0])).strip()
    page.get_by_label("Filter").fill(piece)
    wanted = page.locator("main p[role=status]").inner_text()
    shown = int(wanted.split()[0])
    assert 0 < shown <= CELLS
    assert "filter=" in page.url
    url, title = page.url, page.title()
    page.reload()
    until(page, "title => document.title === title", title)
    assert page.url == url
    assert page.locator("main p[role=status]").inner_text() == wanted
    page.get_by_label("Filter").fill("")
    page.get_by_label("agreement above 0").check()
    agreeing = int(page.locator("main p[role=status]").inner_text().split()[0])
    assert agreeing == agreeing_cells(site.run, 1)
    page.get_by_label("hide dead").check()
    assert page.locator("tbody tr.dead").count() == 0


def agreeing_cells(run: keyhole.Run, layer: int) -> int:
    top = values.Values(run, "norm").top_tokens[run.cells.span(layer), 0]
    return sum(any(t.next_id == top[cell] for t in run.triggers(layer, cell)) for cell in range(len(top)))


def test_a_row_opens_its_cell(page: Any, site: Site) -> None:
    go(page, site, "#/L1?sort=cell&order=up")
    page.locator("tbody tr", has_text="L1.3").first.locator("td.text").click()
    page.wait_for_selector(".cellpage")
    assert cell_address(page) == "L1.3"


# Cell


def spelled(piece: str) -> str:
    """A token as the page has it, less its spaces: what is white space only is spelled out."""
    if piece.strip("\t\n\v\f\r \xa0\ufeff\u2028\u2029"):  # what trim() takes
        return show.printable(piece).strip()
    signs = {" ": "", "\n": "⏎", "\r": "␍", "\t": "⇥"}
    return "".join(signs.get(c, f"U+{ord(c):04X}") for c in piece)


def test_cell_shows_its_key_and_value(page: Any, site: Site) -> None:
    number = lively(site.run, 1)
    go(page, site, f"#/L1/{number}")
    cell = site.run.cell(1, number)
    triggers = cell.triggers
    lists = page.locator(".triggerlist")
    assert lists.first.locator("li").count() == len(triggers)
    assert lists.nth(1).locator("li").count() == len(cell.triggers_negative)
    last = lists.first.locator(".last").first.text_content()
    assert last.strip("␣") == show.printable(triggers[0].tokens[-1].strip())
    assert page.locator(".warm, .cold").count() > 0, "tokens are shaded"
    said = values.Values(site.run, "norm")
    pieces = [spelled(each.piece) for each in said.promoted(1, number, 12)]
    shown = [
        text.strip("␣") for text in page.locator(".said").first.locator("li:not([hidden]) .token").all_text_contents()
    ]
    assert [p for p in shown if p] == [p for p in pieces if p]
    page.locator(".valueside .more").first.click()
    assert page.locator(".said").first.locator("li:not([hidden])").count() == 30
    assert page.get_by_role("button", name="norm").get_attribute("aria-pressed") == "true"
    assert "lens norm" in page.locator(".valueside").inner_text()
    page.get_by_role("button", name="raw").click()
    assert page.get_by_role("button", name="raw").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="norm").get_attribute("aria-pressed") == "false"
    assert "lens raw" in page.locator(".valueside").inner_text()
    assert page.locator("svg.histogram rect").count() > 10
    page.get_by_role("button", name="whole").click()
    assert page.locator(".aligned").count() == 0
    page.reload()
    page.wait_for_selector(".triggerlist")
    assert page.locator(".aligned").count() == 0, "the choice is remembered"


def test_shades_are_the_coefficients(page: Any, site: Site) -> None:
    """The last token of the strongest trigger has the largest coefficient of all, so it is darkest."""
    cell = site.run.cell(0, lively(site.run, 0))
    go(page, site, f"#/L0/{cell.index}")
    shades = (
        page.locator(".triggerlist")
        .first.locator(".last")
        .evaluate_all("all => all.map(each => parseFloat(each.style.getPropertyValue('--s')))")
    )
    coefficients = [trigger.coefficient for trigger in cell.triggers]
    largest = max(abs(t.coefficient) for t in cell.triggers + cell.triggers_negative)
    for shade, coefficient in zip(shades, coefficients, strict=True):
        assert shade == pytest.approx(100 * coefficient / largest, abs=2.5)


def test_similar_cells_are_links(page: Any, site: Site) -> None:
    go(page, site, f"#/L1/{lively(site.run, 1)}")
    link = page.locator(".alike a").first
    link.scroll_into_view_if_needed()
    page.wait_for_selector(".alike .promotes")
    address = link.inner_text()
    link.click()
    titled(page, address)


def test_a_dead_cell_says_so(page: Any, site: Site) -> None:
    dead = site.run.dead
    assert dead, "the random model has none"
    go(page, site, "#/" + dead[0].replace(".", "/"))
    assert "Dead" in page.locator(".lead").inner_text()
    assert page.locator(".triggerlist").first.locator("li").count() == 0


def test_hostile_text_is_shown_not_run(page: Any, site: Site) -> None:
    """Every cell's texts on one site, many cells: nothing of them becomes an element, a dialog or a direction."""
    seen = ""
    for cell in range(0, CELLS, 8):
        page.goto(f"{site.url}#/L1/{cell}")
        titled(page, f"L1.{cell} ")
        assert (
            page.locator("main script, main img, main iframe, main [onerror], main [onload], main [style*=url]").count()
            == 0
        )
        seen += page.locator("main").text_content()
    assert "<script>alert(1)</sc" in seen
    assert "onerror=alert(1)" in seen
    assert not set(seen) & set("\u202e\u2066\x1b\x00")
    assert "�" in seen


def test_tokens_of_any_kind_stay_in_their_place(browser: Any, live: Site) -> None:
    pieces = ["<b>x</b>", "שלום", "\u202eevil", "w" * 5000, "\n\n", " ", "", "\ue000", "&lt;", "𝔘" * 300]
    with opened(browser, live.url, viewport={"width": 360, "height": 700}) as page:
        page.wait_for_selector("main h1")
        shown = page.evaluate(
            """async pieces => {
              const parts = await import('./static/parts.js');
              const main = document.querySelector('main');
              const trigger = { c: 1, unit: 0, position: 5, count: 1, tokens: pieces, at: 5, cut: [1, 1] };
              main.replaceChildren(parts.line(trigger), ...pieces.map(piece => parts.token(piece)));
              return [...main.querySelectorAll('.token')].map(token => token.textContent);
            }""",
            pieces,
        )
        assert shown[:3] == ["<b>x</b>", "שלום", "�evil"]
        assert shown[4:9] == ["⏎⏎", "␣", "(empty)", "�", "&lt;"]
        assert page.evaluate(SIDEWAYS) <= 0
        assert page.locator("main b").count() == 0


# Search


@pytest.mark.parametrize("piece", ["a", "T", "<"])
def test_search_for_a_token(page: Any, site: Site, piece: str) -> None:
    token = token_id(site.run, piece)
    said = values.Values(site.run, "norm")
    go(page, site, f"#/search?q={quote(piece)}&token={token}")
    page.wait_for_selector(".results .chip")
    for place, (verb, speakers) in enumerate((("promote", said.promoting(token)), ("demote", said.demoting(token)))):
        if not speakers:
            assert f"among the tokens it {verb}s most" in page.locator(".results").first.inner_text()
            continue
        heading = page.locator(".results h3", has_text=verb).inner_text()
        assert heading.startswith(f"{len(speakers)} value")
        assert (
            page.locator(".results").first.locator(".hits").nth(place).locator("a").first.inner_text()
            == speakers[0].address
        )


def token_id(run: keyhole.Run, piece: str) -> int:
    return next(token for token in range(len(run.vocabulary)) if run.vocabulary.piece(token) == piece)


def test_search_for_an_address(page: Any, site: Site) -> None:
    page.wait_for_selector("#find")
    page.locator("#find").fill("l1.5")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cellpage")
    assert cell_address(page) == "L1.5"
    page.goto(f"{site.url}#/search?q=L0.9")
    titled(page, "L0.9")


def test_words_are_the_same_on_both_sides(page: Any, site: Site) -> None:
    texts = ["Don't stop, l’été 42nd ÆTHER", "日本語 ΟΔΟΣ İstanbul", "x_y <b>𝔘</b>", "नमस्ते दुनिया", "..."]
    found = page.evaluate(
        "async texts => { const t = await import('./static/text.js'); return texts.map(x => t.words(x).map(w => [w, t.fnv1a(w) % 64])); }",
        texts,
    )
    assert found == [[[word, bucket(word, 64)] for word in words(text)] for text in texts]


def test_signs_are_the_same_on_both_sides(page: Any, site: Site) -> None:
    texts = ["a\nb\r\tc", "\u202eevil\u2066\x1b[31m\x00", "\ue000\u200d\u00ad", "plain ␣ text"]
    found = page.evaluate(
        "async texts => { const t = await import('./static/text.js'); return texts.map(t.visible); }", texts
    )
    assert found == [show.printable(text) for text in texts]


# Sizes


@pytest.mark.parametrize(("layers", "cells"), [(6, 24), (80, 14_000)])
def test_map_of_any_size(browser: Any, live: Site, layers: int, cells: int) -> None:
    """Where cells outnumber pixels, a column stands for several and leads to the largest."""
    with opened(browser, live.url, viewport={"width": 360, "height": 700}, refused=["data/cells/2/4.json"]) as page:
        page.wait_for_selector("main h1")
        bytes_ = np.full(layers * cells, 10, np.uint8)
        bytes_[2 * cells + 4] = 250
        measure = {"name": "agreement", "lo": 0, "hi": 1, "low": 0, "high": 254, "unknown": False}
        measure["data"] = base64.b64encode(bytes_.tobytes()).decode()
        page.route("**/data/maps/0.json", lambda route: route.fulfill(json=measure))
        shown = page.evaluate(
            """async ([layers, cells]) => {
              const { cellMap } = await import('./static/map.js');
              const { Cells } = await import('./static/cells.js');
              const rows = Array.from({ length: layers }, (_, i) => ({ layer: `L${i}`, offset: i * cells, width: cells }));
              const measure = { name: 'agreement', title: 'a', side: 'value', format: 'number', scale: 'linear' };
              const map = { levels: 254, unknown: 255, bin: 1, block: 1, blocks: 0, shown: 'agreement', measures: [measure] };
              const main = document.querySelector('main');
              main.replaceChildren(await cellMap(map, new Cells(rows), new AbortController().signal));
              while (!main.querySelector('.extent').textContent) await new Promise(resolve => setTimeout(resolve, 10));
              const canvas = main.querySelector('canvas');
              const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
              return { width: canvas.width, height: canvas.height, dark: pixels[(2 * canvas.width) * 4], pale: pixels[0] };
            }""",
            [layers, cells],
        )
        assert shown["width"] == min(cells, shown["width"])
        assert shown["width"] <= 360
        assert shown["height"] == layers
        if cells > 1000:
            assert shown["dark"] < shown["pale"]
            page.locator(".plane").focus()
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowDown")
            assert page.locator(".readout").inner_text().startswith("L2.4 ")
        assert page.evaluate(SIDEWAYS) <= 0
