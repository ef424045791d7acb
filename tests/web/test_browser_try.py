"""Try this key, in a real browser: typed text is shaded by the model's own coefficients."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from browsing import Site, go, lively, opened, small, until
from reference import forward

pytestmark = pytest.mark.slow(seconds=4)


def shaded(page: Any) -> tuple[list[str], list[float], list[int]]:
    """The tokens shown, their coefficients as their titles say, and their shades with the sign."""
    spans = page.locator(".triedtext span")
    texts = spans.evaluate_all("all => all.map(e => e.textContent)")
    titles = spans.evaluate_all("all => all.map(e => e.title)")
    shades = spans.evaluate_all(
        "all => all.map(e => parseInt(e.style.getPropertyValue('--s')) * (e.className === 'cold' ? -1 : 1))"
    )
    return texts, [float(title.removeprefix("m = ").replace("−", "-")) for title in titles], shades


def test_typed_text_is_shaded_by_the_key(live_page: Any, live: Site) -> None:
    page, run, model = live_page, live.run, small()
    cell = lively(run, 1)
    go(page, live, f"#/L1/{cell}")
    field = page.get_by_label("Try this key")
    field.press_sequentially("The dog looked on <b>", delay=5)
    until(page, "document.querySelector('.tried')?.textContent.includes('<b>')")
    ids = model.tokenizer("The dog looked on <b>", add_special_tokens=False)["input_ids"]
    place = run.cells.place(1, cell)
    truth = forward(model, ids, True)[:, place]
    texts, said, shades = shaded(page)
    assert texts == [run.vocabulary.piece(i) for i in ids]
    assert said == [pytest.approx(m, rel=6e-3, abs=1e-4) for m in truth]
    largest = max(abs(run.stats.max[place]), abs(run.stats.min[place]))
    assert shades == [pytest.approx(min(1, abs(m) / largest) * 100 * (-1 if m < 0 else 1), abs=0.6) for m in truth]
    # pointing, and the keyboard: one stop, then arrows, which do not leave the page
    page.locator(".triedtext span").nth(2).hover()
    assert page.locator(".trial [role=status]").inner_text().startswith("Token 3 of ")
    page.locator(".triedtext span").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".trial [role=status]").inner_text().startswith("Token 2 of ")
    assert page.locator(".triedtext span[tabindex='0']").count() == 1
    assert page.url.endswith(f"#/L1/{cell}")
    off = page.get_by_role("link", name="switch it off in a prompt")
    assert off.get_attribute("href") == f"#/prompt?q={quote('The dog looked on <b>')}&edits=L1.{cell}*0"
    # the text stays for the next cell, and is shaded by that one
    go(page, live, f"#/L0/{lively(run, 0)}")
    assert page.get_by_label("Try this key").input_value() == "The dog looked on <b>"
    page.wait_for_selector(".triedtext span")
    truth = forward(model, ids, True)[:, run.cells.place(0, lively(run, 0))]
    assert shaded(page)[1] == [pytest.approx(m, rel=6e-3, abs=1e-4) for m in truth]
    page.get_by_label("Try this key").fill("")
    until(page, "!document.querySelector('.triedtext')")


def test_errors_are_said_and_nothing_is_lost(browser: Any, live: Site) -> None:
    with opened(browser, live.url, refused=["api/try"]) as page:
        long = "too long " * 300
        go(page, live, f"#/L0/3?try={quote(long)}")
        alert = page.locator(".trial").get_by_role("alert")
        alert.wait_for()
        assert "tokens are too many" in alert.inner_text()
        assert page.get_by_label("Try this key").input_value() == long
        page.get_by_label("Try this key").fill("short")
        page.wait_for_selector(".triedtext span")
        assert alert.count() == 0


def test_the_latest_text_wins(live_page: Any, live: Site) -> None:
    """One request at a time: what was typed during it is asked once, afterwards."""
    page, asked = live_page, []
    page.on("request", lambda request: request.url.endswith("api/try") and asked.append(request.post_data_json["text"]))
    held: list[Any] = []
    page.route("**/api/try", lambda route: held.append(route) if not held else route.continue_())
    go(page, live, "#/L0/4")
    field = page.get_by_label("Try this key")
    field.fill("one")
    until(page, "document.querySelector('.tried[aria-busy]') !== null")
    while not held:
        page.wait_for_timeout(10)
    for text in ("one two", "one two three"):
        field.fill(text)
        field.blur()
        field.focus()  # asks at once, without the pause after typing
    assert asked == ["one"]
    held[0].continue_()
    until(page, "document.querySelector('.triedtext')?.textContent === 'one two three'")
    assert asked == ["one", "one two three"]


def test_an_export_says_how_to_get_it(browser: Any, exported: Site) -> None:
    with opened(browser, exported.url + "#/L0/3") as page:
        page.wait_for_selector(".cellpage")
        assert page.get_by_label("Try this key").count() == 0
        assert "keyhole serve RUN" in page.locator(".trial").inner_text()
