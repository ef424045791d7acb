"""A prompt continued in a real browser: without edits, side by side with them, stopped, and as a chat turn."""

from __future__ import annotations

import time
from typing import Any

import pytest
from browsing import Site, go, opened, served, small, until
from families import tokenizer

import keyhole
from keyhole.models.intervene import Edit
from keyhole.models.model import Model

pytestmark = pytest.mark.slow

TEXT = "The dog looked"
READY = "!document.querySelector('.generation button[type=submit]').hidden"


def read(page: Any, site: Site, text: str = TEXT) -> None:
    go(page, site, "#/prompt")
    page.get_by_label("Text").fill(text)
    page.get_by_role("button", name="Read").click()
    page.wait_for_selector(".generation")


def set_to(page: Any, label: str, value: str) -> None:
    page.get_by_label(label, exact=True).fill(value)
    page.get_by_label(label, exact=True).press("Tab")


def generate(page: Any) -> None:
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector(".continued .token")
    until(page, READY)


def side(page: Any, which: int, kind: str = ".token") -> Any:
    return page.locator(".continued > div").nth(which).locator(f".written-tokens {kind}")


def test_a_text_is_continued_and_edits_stand_beside_it(live_page: Any, live: Site) -> None:
    page = live_page
    read(page, live)
    set_to(page, "Length", "6")
    generate(page)
    made = keyhole.generate(small(), TEXT, length=6)
    assert page.locator(".continued > div").count() == 1
    assert len(side(page, 0).all()) == 1 + len(made.original)  # the start token is shown as what it is
    assert side(page, 0, ".special").first.inner_text() == "<s>"

    page.locator("#where").select_option("all")
    row = page.locator(".layers > li").nth(1).locator(".contributions li").first
    cell = int(row.locator("a").inner_text().split(".")[1])
    row.get_by_role("button").click()
    page.wait_for_selector(".edits li")
    page.get_by_label(f"Scale of L1.{cell}").fill("-60")
    page.get_by_label(f"Scale of L1.{cell}").press("Enter")
    until(page, "[...document.querySelectorAll('.generation p')].some(p => p.innerText.includes('with the edits'))")
    until(page, "!document.querySelector('.answer').hasAttribute('aria-busy')")
    set_to(page, "Length", "12")
    set_to(page, "Temperature", "1.5")
    set_to(page, "Seed", "3")
    generate(page)
    made = keyhole.generate(small(), TEXT, edits=[Edit(1, cell, -60.0)], length=12, temperature=1.5, seed=3)
    assert made.edited is not None
    assert made.differs is not None, "the test needs an edit that changes the text"
    for which, steps in enumerate((made.original, made.edited)):
        tokens = side(page, which).all()[1:]
        assert len(tokens) == len(steps)
        other = (made.original, made.edited)[1 - which]
        expected = [i >= len(other) or step.piece != other[i].piece for i, step in enumerate(steps)]
        assert ["differs" in token.get_attribute("class") for token in tokens] == expected
        assert all(f"token {i}, p " in token.get_attribute("title") for i, token in enumerate(tokens))
    marked = side(page, 0, ".differs").first
    assert marked.evaluate("e => getComputedStyle(e).borderBottomStyle") == "double"  # not by colour alone
    assert "differ" in page.locator(".generation [role=status]").inner_text()

    page.locator(".edits li a").click()  # a look at the cell, and back
    page.wait_for_selector(".cellpage")
    page.go_back()
    page.wait_for_selector(".continued > div:nth-child(2) .token")
    assert len(side(page, 1).all()) == 1 + len(made.edited)


def test_it_can_be_stopped_and_a_chat_turn_shows_its_special_tokens(browser: Any, browsed: keyhole.Run) -> None:
    words = tokenizer()
    words.chat_template = "<pad>{{ messages[0]['content'] }}</s>"
    model = Model(small().lm, words, source="chatty")
    slow = model.lm.register_forward_pre_hook(lambda *_: time.sleep(0.1))
    try:
        with served(browsed, model) as url, opened(browser, url) as page:
            read(page, Site(url, browsed, live=True))
            set_to(page, "Length", "40")
            page.get_by_label("as a chat turn").check()
            page.get_by_role("button", name="Generate").click()
            page.wait_for_selector(".written-tokens .token:nth-child(18)")
            page.get_by_role("button", name="Stop").click()
            until(page, READY)
            assert "Stopped" in page.locator(".generation [role=status]").inner_text()
            assert side(page, 0, ".special").all_inner_texts()[:2] == ["<pad>", "</s>"]
            assert "".join(side(page, 0, ".given").all_inner_texts()) == TEXT
            some = side(page, 0).count()
            assert some < 40
            generate_again = page.get_by_role("button", name="Generate")
            assert generate_again.evaluate("e => e === document.activeElement")
            set_to(page, "Length", "2")
            generate(page)
            assert side(page, 0).count() == 2 + 2
    finally:
        slow.remove()


def test_mistakes_are_said(browser: Any, live: Site) -> None:
    with opened(browser, live.url, refused=["api/generate"]) as page:
        read(page, live)
        set_to(page, "Length", "0")
        page.get_by_role("button", name="Generate").click()
        assert page.locator("#generate-length:invalid").count() == 1
        set_to(page, "Length", "5")
        page.route(
            "**/api/generate",
            lambda route: route.fulfill(
                status=500, json={"error": {"code": "failed", "message": "No cats today.", "detail": {}}}
            ),
        )
        page.get_by_role("button", name="Generate").click()
        until(page, "document.querySelector('.generation [role=status]').innerText.includes('No cats today.')")
        assert page.get_by_role("button", name="Generate").is_visible()
