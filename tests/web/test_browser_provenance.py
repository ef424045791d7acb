"""Where triggers come from, their whole units, and what the page says to all readers, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Site, go, lively, opened, until

from keyhole.store.run import Trigger

pytestmark = pytest.mark.slow(seconds=5)

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour, below) => {
    canvas.fillStyle = below; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (c) => c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = getComputedStyle(document.documentElement).backgroundColor;
  const under = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.unshift(getComputedStyle(e).backgroundColor);
    return chain.reduce((below, colour) => `rgb(${rgb(colour, below)})`, paper);
  };
  const worst = {};
  for (const name of [".token", ".token i", ".chip", ".badge", ".next", ".tag", ".soft", ".count", ".num", ".where"])
    for (const element of document.querySelectorAll(`main ${name}`)) {
      if (!element.textContent.trim() || !element.offsetParent) continue;
      const below = under(element);
      const [a, b] = [light(rgb(getComputedStyle(element).color, below)), light(rgb(below, below))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      worst[name] = Math.min(worst[name] ?? 99, ratio);
    }
  return worst;
}"""


def long_trigger(site: Site) -> tuple[int, int, Trigger]:
    """A cell of layer 1, one of its first triggers that is cut, its number."""
    for cell in range(site.run.cells.size(1)):
        for slot, trigger in enumerate(site.run.triggers(1, cell)[:6]):
            if 50 < trigger.position < 60 and len(site.run.unit_tokens(trigger.unit)) > 80:
                return cell, slot, trigger
    raise AssertionError("no trigger is cut")


def test_a_trigger_says_where_it_is(page: Any, site: Site) -> None:
    run, cell = site.run, lively(site.run, 1)
    go(page, site, f"#/L1/{cell}")
    trigger = run.triggers(1, cell)[1]
    row = page.locator(".triggerlist li").nth(1)
    row.get_by_role("button", name="Where it is").click()
    row.locator(".passage .last").wait_for()
    said, (document, _) = row.locator(".place").inner_text(), run.unit_source(trigger.unit)
    units = [unit for unit in range(run.manifest["corpus"]["units"]) if run.unit_source(unit)[0] == document]
    assert f"Document {document} of te<xt>.txt" in said
    assert f"Line {units.index(trigger.unit) + 1} of {len(units)} in it" in said
    assert f"token {trigger.position + 1} of {len(run.unit_tokens(trigger.unit))}." in said.replace(",", "")
    # its own unit, with the token boxed, and the units beside it in the document
    own = row.locator(".passage .own")
    assert trigger.tokens[-1].strip() in own.locator(".last").text_content()
    near = [unit for unit in units if 0 < abs(unit - trigger.unit) <= 2]
    assert row.locator(".passage bdi.soft").count() == len(near)
    first = run.vocabulary.text(run.unit_tokens(near[0])[:6].tolist()).strip()
    assert first in row.locator(".passage").text_content()
    more = row.get_by_role("button", name="later of")
    if more.count():
        come = int(more.inner_text().split()[0])
        more.click()
        until(page, f"document.querySelectorAll('.passage bdi.soft').length === {len(near) + come}")
    row.get_by_role("button", name="Where it is").click()
    assert row.locator(".place").count() == 0


def test_whole_shows_the_whole_unit(page: Any, site: Site) -> None:
    cell, slot, trigger = long_trigger(site)
    ids = site.run.unit_tokens(trigger.unit).tolist()
    go(page, site, f"#/L1/{cell}")
    row = page.locator(".triggerlist li").nth(slot)
    before = row.locator(".line").text_content()
    page.get_by_role("button", name="whole").click()
    if len(ids) <= 400:
        wanted = len("".join(site.run.vocabulary.piece(i) for i in ids))
        until(
            page,
            "([i, n]) => document.querySelectorAll('.triggerlist li')[i].querySelector('.line').textContent.length >= n",
            [slot, wanted - 2],
        )
    else:  # a unit of 20,000 tokens: 400 on each side, and the button says how many come
        more = row.get_by_role("button", name="more token")
        more.wait_for()
        come, left = (
            int(part.replace(",", "")) for part in (more.inner_text().split()[0], more.inner_text().split()[-1])
        )
        assert left == len(ids) - (trigger.position + 1) - 400
        assert come == 400
        shown = len(row.locator(".line").text_content())
        more.click()
        until(
            page,
            "([i, n]) => document.querySelectorAll('.triggerlist li')[i].querySelector('.line').textContent.length > n",
            [slot, shown + 400],
        )
    page.get_by_role("button", name="lined up").click()
    until(
        page,
        "([i, text]) => document.querySelectorAll('.triggerlist li')[i].querySelector('.line').textContent === text",
        [slot, before],
    )


def test_readers_hear_which_token_is_boxed_and_do_not_copy_it(page: Any, site: Site) -> None:
    cell = lively(site.run, 1)
    go(page, site, f"#/L1/{cell}")
    row = page.locator(".triggerlist li").first
    assert "last token: " in row.aria_snapshot()
    assert "next token: " in row.aria_snapshot()
    copied = row.locator(".line").evaluate(
        "e => { getSelection().selectAllChildren(e); return getSelection().toString(); }"
    )
    assert "last token" not in copied
    assert site.run.triggers(1, cell)[0].tokens[-1].strip() in copied


def test_tokens_link_to_their_search_and_bars_have_one_scale(page: Any, site: Site) -> None:
    cell = lively(site.run, 1)
    go(page, site, f"#/L1/{cell}")
    bars = page.locator(".valueside .said li:not([hidden])").evaluate_all(
        "all => all.map(li => [li.querySelector('.fill').getBoundingClientRect().width, "
        "Math.abs(parseFloat(li.querySelector('.num').textContent.replace('−', '-')))])"
    )
    assert len(bars) == 24
    scales = [width / logit for width, logit in bars if width > 10]
    assert max(scales) == pytest.approx(min(scales), rel=0.05)
    link = page.locator(".valueside .said a").first
    assert link.get_attribute("href").startswith("#/search?q=")
    link.click()
    until(page, "document.title.startsWith('Search') || document.title.includes('Search')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_aa(browser: Any, exported: Site, scheme: str) -> None:
    with opened(browser, exported.url, color_scheme=scheme) as page:
        for route in (f"#/L1/{lively(exported.run, 1)}", "#/L1", "#/"):
            go(page, exported, route)
            worst = page.evaluate(CONTRAST)
            assert worst
            assert {name: ratio for name, ratio in worst.items() if ratio < 4.5} == {}, route


@pytest.mark.parametrize("read", [False, True])
def test_values_that_are_not_read_or_not_compared_are_said_so(live_page: Any, live: Site, read: bool) -> None:
    """Values are read first, then compared: while the run is analyzed there is a time between."""
    page = live_page
    unread = {} if read else {"lens": None, "lenses": []}
    page.route("**/data/run.json", lambda route: route.fulfill(json={**route.fetch().json(), **unread}))
    missing = {"similar_values": None} | ({} if read else {"values": []})
    page.route("**/data/cells/0/4.json", lambda route: route.fulfill(json={**route.fetch().json(), **missing}))
    page.reload()
    go(page, live, "#/L0/4")
    similar = page.locator("section", has=page.get_by_role("heading", name="Similar values"))
    assert "Not searched for yet. Find them: keyhole analyze RUN" in similar.inner_text()
    assert "None." not in similar.inner_text()
