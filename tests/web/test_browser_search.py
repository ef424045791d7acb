"""The search in a real browser, live and exported, against every trigger and every value of the run."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browsing import Site, go, lively, opened, until

import keyhole
from keyhole.searching import find, query
from keyhole.store import collections, kinds, values

pytestmark = pytest.mark.slow

KEYS, VALUES = "[aria-labelledby=keys-title]", "[aria-labelledby=values-title]"
SIDEWAYS = "document.documentElement.scrollWidth - window.innerWidth"
RELATIONS = {"ends": "end in", "contains": "contain", "next": "are followed by"}


@cache
def ends(run: keyhole.Run) -> list[tuple[str, int, int, list[int], int]]:
    """Every trigger: its cell, its side, its last token, its tokens, the next token."""
    found = []
    for negative, side in ((False, 1), (True, -1)):
        _, units, positions = run.side(negative)
        for (place, slot), unit in np.ndenumerate(units):
            if unit >= 0:
                ids, at = run.unit_tokens(int(unit)).tolist(), int(positions[place, slot])
                begin = at // run.room * run.room
                following = ids[at + 1] if at + 1 < len(ids) else -1
                found.append((run.cells.address(place), side, ids[at], ids[begin : at + 1], following))
    return found


def hits(run: keyhole.Run, relation: str, token: int) -> Counter[tuple[str, int]]:
    return Counter(
        (address, side)
        for address, side, last, prefix, following in ends(run)
        if {"ends": last == token, "contains": token in prefix, "next": following == token}[relation]
    )


def listed(page: Any, asked: str, site: Site, relation: str) -> str:
    """Open a search at one of its lists of keys; what it says."""
    go(page, site, f"#/search?q={quote(asked)}&in={relation}")
    page.wait_for_selector(f"{KEYS} [role=status]")
    return str(page.locator(f"{KEYS} [role=status]").inner_text())


@pytest.mark.parametrize("relation", RELATIONS)
def test_keys_by_token(page: Any, site: Site, relation: str) -> None:
    """Counts of cells, hits, share and lift, in order; the firing token boxed, and the trigger has the relation."""
    run = site.run
    token = max(
        range(len(run.vocabulary)),
        key=lambda t: run.vocabulary.piece(t).isalpha() and sum(hits(run, relation, t).values()),
    )
    piece, truth = run.vocabulary.piece(token), hits(run, relation, token)
    filled = Counter((address, side) for address, side, *_ in ends(run))
    base = sum(truth.values()) / len(ends(run))
    said = listed(page, f'"{piece}"', site, relation)
    assert said.startswith(f"{len({address for address, _ in truth}):,} cell")
    assert RELATIONS[relation] in said
    page.locator(f"{KEYS} .hits .last").first.wait_for()
    before = 2.0
    for item in page.locator(f"{KEYS} .hits > li").all():
        address, numbers = item.locator("a.address").inner_text(), item.locator(".num").inner_text()
        side = -1 if "negative side" in numbers else 1
        count, of = truth[address, side], filled[address, side]
        assert numbers.startswith(f"{count} of {of} trigger")
        lift = float(numbers.split("×")[1].split(",")[0])
        assert lift == pytest.approx(count / of / base, rel=0.06)
        score = (count + 5 * base) / (of + 5)
        assert score <= before + 1e-12
        before = score
    first = page.locator(f"{KEYS} .hits > li").first
    first.locator(".promotes .token").first.wait_for()
    if relation == "ends" and piece.strip():
        assert first.locator(".last").inner_text() == piece
    assert page.locator(f"{KEYS} .relations [aria-pressed=true]").get_attribute("value") == relation


def test_the_three_lists_are_chosen_by_keyboard_and_are_in_the_address(page: Any, site: Site) -> None:
    listed(page, "a", site, "ends")
    page.locator(f"{KEYS} .relations button").nth(0).focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('in=contains')")
    page.get_by_text("with triggers that contain").wait_for()
    assert page.evaluate("document.activeElement.value") == "contains"


@pytest.mark.parametrize(
    "asked", ["cat number 7", "LOOKED on", "l’été", "script alert", "constructor", "שלום", '"the Dog"']
)
def test_keys_by_phrase(page: Any, site: Site, asked: str) -> None:
    """The same lists as the command's, and what they say is what the texts say."""
    said = listed(page, asked, site, "contains")
    truth = find.search(site.run, asked).to_json(20)["keys"]["contains"]
    texts = {address for address, text in plain(site.run) if asked.lower() in text.lower()}
    if asked.startswith('"'):
        texts = {address for address, text in plain(site.run) if asked[1:-1] in text}
    assert truth["cells"] == len(texts)
    if not texts:
        assert said.startswith("No trigger contains")
        return
    assert said.startswith(f"{len(texts):,} cell")
    shown = page.locator(f"{KEYS} .hits a.address").all_inner_texts()
    assert shown == [each["address"] for each in truth["listed"]]
    assert set(shown) <= texts


@cache
def plain(run: keyhole.Run) -> list[tuple[str, str]]:
    """Every trigger's cell and the text of its prefix."""
    known: dict[tuple[int, ...], str] = {}
    return [
        (address, known.setdefault(tuple(prefix), run.vocabulary.text(prefix)))
        for address, _, _, prefix, _ in ends(run)
    ]


def test_several_tokens(page: Any, site: Site) -> None:
    """Values by the sum of logits, keys by the sum of hits; each row says which tokens it matched."""
    run, said = site.run, values.Values(site.run, "norm")
    counts = Counter(
        t for t in said.top_tokens.ravel().tolist() if t < len(run.vocabulary) and run.vocabulary.piece(t).isalpha()
    )
    pieces = [run.vocabulary.piece(token) for token, _ in counts.most_common(2)]
    asked = " or ".join(f'"{piece}"' for piece in pieces)
    truth = find.search(run, asked).to_json(20)
    listed(page, asked, site, "ends")
    page.wait_for_selector(f"{VALUES} .hits li")
    promote = page.locator(f"{VALUES} .hits").first
    assert promote.locator("a.address").all_inner_texts() == [
        each["address"] for each in truth["values"]["promote"]["listed"]
    ]
    matched = promote.locator(".matched").all_inner_texts()
    for text, each in zip(matched, truth["values"]["promote"]["listed"], strict=True):
        assert [piece for piece in pieces if f"{piece} " in text.replace("\n", " ")] == [
            p for p in pieces if p in each["matched"]
        ]
    assert page.locator(f"{KEYS} .hits a.address").all_inner_texts() == [
        each["address"] for each in truth["keys"]["ends"]["listed"]
    ]


def test_queries_are_read_as_python_reads_them(page: Any, site: Site) -> None:
    asked = [
        "not",
        " not",
        '" not"',
        "a or b OR c",
        "a|b | c",
        '"a | b" or " or "',
        "or",
        "order or",
        "|",
        '"""',
        'say "no" now',
        "",
        " or x",
        "x or ",
    ]
    likes = ["like L3.17", 'like "a b"', "LIKE 3/17", "like a bird"]
    found = page.evaluate(
        """async ([asked, likes, pieces]) => {
          const q = await import('./static/query.js');
          return [asked.map(a => q.terms(a).map(({text, exact}) => [text, exact])), likes.map(q.like),
                  asked.filter(a => a).map(a => q.meant(pieces, q.terms(a)[0]).map(({id, isIt}) => [id, isIt]))];
        }""",
        [asked, likes, pieces := ["not", " nothing", "Not", " not", " NOT", "knot", " ", "|", " or", "a", ' "', '"']],
    )
    assert found == [
        [[list(term) for term in query.terms(each)] for each in asked],
        [query.like(each) for each in likes],
        [[list(each) for each in query.meant(pieces, query.terms(one)[0])] for one in asked if one],
    ]


def test_rows_keep_their_places_while_they_are_filled_in(page: Any, site: Site) -> None:
    held: list[Any] = []
    going: list[bool] = []
    page.route(re.compile("data/cells"), lambda route: route.continue_() if going else held.append(route))
    listed(page, "a", site, "contains")
    page.wait_for_selector(f"{VALUES} .hits li")
    tops = "() => [...document.querySelectorAll('.hits > li')].map(li => li.getBoundingClientRect().top)"
    before = page.evaluate(tops)
    assert held
    going.append(True)
    for route in held:
        route.continue_()
    page.locator(f"{KEYS} .hits .line").first.wait_for()
    page.locator(f"{VALUES} .hits .promotes").first.wait_for()
    assert page.evaluate(tops) == before


def test_promoted_tokens_lead_to_their_search(page: Any, site: Site) -> None:
    listed(page, "a", site, "contains")
    # of the first row: previews come in any order, and the first link of all would be another one once more of them are there
    link = page.locator(f"{KEYS} .hits > li").first.locator(".promotes a").first
    piece = link.locator(".token").inner_text()
    link.click()
    until(page, "title => document.title.includes(title)", f'Search: "{piece.replace("␣", " ")}"')
    page.locator(f"{VALUES} h3 .token").first.wait_for()
    assert page.locator(f"{VALUES} h3 .token").first.inner_text() == piece


def test_nearest_to_a_cell(page: Any, site: Site) -> None:
    own = f"L1.{lively(site.run, 1)}"
    go(page, site, f"#/search?q=like%20{own}")
    page.wait_for_selector("[aria-labelledby=near-keys] .hits li")
    truth = find.search(site.run, f"like {own}").to_json(None)
    shown = page.locator("[aria-labelledby=near-keys] a.address").all_inner_texts()
    assert shown == [each["address"] for each in truth["keys"]][: len(shown)]
    assert len(shown) == min(20 if site.live else 10, len(truth["keys"]))
    page.goto(f"{site.url}#/search?q=like%20L9.7")
    page.get_by_text("There is no cell L9.7").wait_for()


def test_nearest_to_a_text(page: Any, site: Site) -> None:
    asked = quote('like "The cat sat"')
    go(page, site, f"#/search?q={asked}")
    if not site.live:
        page.get_by_text("need the model").wait_for()
        assert "keyhole serve" in page.locator(".missing").inner_text()
        return
    page.wait_for_selector("[aria-labelledby=near-keys] .hits li")
    from browsing import small

    run, model = site.run, small()
    last = (
        model.coefficients("The cat sat", bos=bool(run.manifest["config"]["bos"]))[-1].float().numpy() * run.orientation
    )
    share = np.where(run.stats.max > 0, last / np.where(run.stats.max > 0, run.stats.max, 1), 0)
    shown = page.locator("[aria-labelledby=near-keys] a.address").all_inner_texts()
    found = [share[run[address].place] for address in shown]
    assert found == pytest.approx(np.sort(share)[::-1][: len(found)], rel=1e-3)


def test_notes_tags_and_stars(browser: Any, live: Site) -> None:
    collections.save(live.run, 5, {"starred": True, "tags": ["weather words"], "note": "fires on <b>rain</b>"})
    with opened(browser, live.url) as page:
        go(page, live, "#/search?q=RAIN")
        row = page.locator("[aria-labelledby=people-title] .hits li")
        row.wait_for()
        assert row.locator("a.address").inner_text() == "L0.5"
        assert "fires on <b>rain</b>" in row.inner_text()
        row.locator(".marked").get_by_text("weather words").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser: Any, live: Site, scheme: str) -> None:
    with opened(browser, live.url, viewport={"width": 360, "height": 740}, color_scheme=scheme) as page:
        for route in (
            "#/search",
            "#/search?q=a%20or%20the",
            "#/search?q=cat%20number&in=contains",
            "#/search?q=like%20L1.7",
        ):
            go(page, live, route)
            page.wait_for_selector("main .hits li, main .lead")
            assert page.evaluate(SIDEWAYS) <= 0


def test_a_request_for_neighbours_is_checked(live: Site, browser: Any) -> None:
    with opened(browser, live.url, refused=["api/nearest"]) as page:
        for body in ({"cell": "L9.9"}, {"cell": 3}, {}, {"text": ""}, {"text": "a", "cell": "L0.0"}):
            status, error = page.evaluate(
                """async body => {
                  const done = await fetch('api/nearest', {method: 'POST', headers: {'content-type': 'application/json'}, body});
                  return [done.status, (await done.json()).error.message];
                }""",
                json.dumps(body),
            )
            assert status == 422, body
            assert error


def test_cells_of_a_kind_are_counted_among_those_listed(page: Any, site: Site) -> None:
    """What is said of a kind is about the listed cells, and not about all."""
    run = site.run
    labelled = kinds.of(run)
    assert labelled is not None
    said = values.Values(run, values.available(run)[0])
    token = int(np.bincount(np.asarray(said.top_tokens[:, 0])).argmax())
    piece = run.vocabulary.piece(token)
    speakers = {run.cells.place(each.layer, each.cell) for each in said.promoting(token)}
    of = {
        name: {place for place in speakers if labelled.labels[place] >> bit & 1} for bit, name in enumerate(kinds.NAMES)
    }
    name, of_kind = max(of.items(), key=lambda item: len(item[1]) if len(item[1]) < len(speakers) else -1)
    go(page, site, f"#/search?q={quote(f'{chr(34)}{piece}{chr(34)}')}&kind={name}")
    page.wait_for_selector(f"{KEYS} [role=status]")
    heading = page.locator(f"{VALUES} .results").inner_text()
    wanted = (
        f"Of this kind: {len(of_kind)} of the {len(speakers)} values"
        if of_kind
        else f"None of the {len(speakers)} values"
    )
    assert wanted in heading


def test_an_address_that_is_no_cell_is_said(page: Any, site: Site) -> None:
    go(page, site, "#/search?q=L99.3")
    page.get_by_text("There is no cell L99.3").wait_for()
    go(page, site, f"#/search?q={quote(' or '.join('abcdefghijklmnopqr'))}")
    page.get_by_text("Only the first 16 terms are searched.").wait_for()
