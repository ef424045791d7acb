"""The prompt page in a real browser: edits that cannot be, one list of all layers, the map of layers, the address, files of edits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browsing import HOLD, Site, go, opened, small, until

from keyhole.models import intervene
from keyhole.models.intervene import Edit
from keyhole.uses import prompt

pytestmark = pytest.mark.slow

TEXT = "The cat sat"
ASKED = "#/prompt?q=The+cat+sat"
TOP = "button => button.getBoundingClientRect().top"


def percent(p: float) -> str:
    share = p * 100
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %" if share >= 1 else f"{share:.2f} %"


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


def ask(page: Any, site: Site, route: str = ASKED) -> None:
    go(page, site, route)
    page.wait_for_selector(".layers > li")


def predicted(page: Any, which: int) -> list[str]:
    shown: list[str] = page.locator(".predictions > div").nth(which).locator(".said .num").all_inner_texts()
    return shown


def edited(page: Any, edits: list[Edit], **asked: Any) -> prompt.PromptView:
    """Wait until the page shows what these edits give; the same as Python finds it."""
    view = prompt.read(small(), TEXT, edits=edits, **asked)
    until(
        page,
        "wanted => [...document.querySelectorAll('.predictions > div:nth-child(2) .num')].map(e => e.innerText).join() === wanted",
        ",".join(percent(p) for _, p in view.prediction),
    )
    return view


# Edits that cannot be


def test_edits_that_cannot_be_are_marked_and_the_rest_works(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live, f"{ASKED}&edits=L99.3*0,rub%3Cb%3Ebish,L1.5*0,L0.3*2@40,L1.7*off&at=4")
    edited(page, [Edit(1, 5, 0.0)], position=4)
    wrong = page.locator(".edits .wrong").all_inner_texts()
    assert len(wrong) == 4
    for text, says in zip(
        sorted(wrong),
        [
            "L0.3 is edited at position 40, but the text has 11 tokens",
            "The scale is a number; “off” is none",
            "There is no cell L99.3: the model has layers 0 to 1",
            "An edit is written L3.17*0",
        ],
        strict=True,
    ):
        assert says in text
    assert "rub<b>bish" in page.locator(".edits").inner_text()
    page.get_by_role("button", name="Remove L99.3*0").click()
    until(page, "document.querySelectorAll('.edits .wrong').length === 3")
    page.get_by_role("button", name="Remove the edit of L0.3").click()
    until(page, "document.querySelectorAll('.edits .wrong').length === 2")
    edited(page, [Edit(1, 5, 0.0)], position=4)


def test_what_is_stored_cannot_wipe_the_page(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live)
    stored = {
        "text": TEXT,
        "edits": [{"layer": 99, "cell": 3, "scale": 0, "positions": None}],
        "position": "x",
        "by": 7,
    }
    opening = "kept => { sessionStorage.setItem('keyhole.prompt', kept); history.replaceState(null, '', '#/prompt'); }"
    page.evaluate(opening, json.dumps(stored))
    page.reload()
    page.wait_for_selector(".layers > li")
    assert "There is no cell L99.3" in page.locator(".edits .wrong").inner_text()
    page.evaluate(opening, '{"text": 5, "edits": [null]}')
    page.reload()
    page.wait_for_selector(".examples")


def test_positions_and_tokens_that_are_not_there_are_said(browser: Any, live: Site) -> None:
    with opened(browser, live.url, refused=["api/prompt"]) as page:
        ask(page, live, f"{ASKED}&at=77&token=nothing")
        assert "There is no position 77" in page.get_by_role("alert").inner_text()
        assert predicted(page, 0) == [percent(p) for _, p in prompt.read(small(), TEXT).prediction]
        page.get_by_label("Cell to edit").fill("L1.5")
        page.get_by_label("Scale", exact=True).fill("3e38")
        page.get_by_role("button", name="Add").click()
        page.wait_for_selector(".edits li .address")
        if page.locator(".notice .missing").count():  # its numbers are not finite: the reading before stays
            assert page.locator(".layers > li").count() == 2


# Feedback where the click was


def test_the_effect_is_shown_where_the_click_was(live_page: Any, live: Site) -> None:
    page = live_page
    page.set_viewport_size({"width": 1200, "height": 500})
    ask(page, live)
    cell = prompt.read(small(), TEXT).layers[1].effective[0].cell
    page.locator("#heat-title").scroll_into_view_if_needed()
    page.wait_for_selector(".heat canvas")
    off = page.locator(f'[data-at="off:layer:L1.{cell}"]')
    off.scroll_into_view_if_needed()
    off.focus()
    before = off.evaluate(TOP)
    off.press("Enter")
    view = edited(page, [Edit(1, cell, 0.0, (10,))])
    assert abs(off.evaluate(TOP) - before) < 2
    assert off.evaluate("button => button === document.activeElement")
    assert off.get_attribute("aria-pressed") == "true"
    bar = page.locator(".effectbar")
    box = bar.bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 501
    said = bar.inner_text()
    assert f"{percent(view.chosen.original_p)} → {percent(view.chosen.p)}" in said
    for _, p in (*view.original[:3], *view.prediction[:3]):
        assert percent(p) in said
    off.press("Enter")  # once more takes it back
    until(page, "!document.querySelector('.edits li')")
    assert off.evaluate("button => button === document.activeElement")
    assert not bar.is_visible()


def test_both_passes_are_shown_and_named(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live)
    assert page.get_by_role("group", name="Shown below").count() == 0
    ask(page, live, f"{ASKED}&edits=L0.5*40,L1.9*-30")
    view = edited(page, [Edit(0, 5, 40.0), Edit(1, 9, -30.0)])
    assert view.without is not None

    def first(layers: list[prompt.LayerView]) -> list[str]:
        return [f"L{each.layer}.{one.cell}" for each in layers for one in each.effective[:3]]

    visible = ".contributions li:not([hidden]) .address"
    assert first(view.layers) != first(view.without.layers)
    assert page.locator(visible).all_inner_texts() == first(view.without.layers)
    section = page.locator("section[aria-labelledby=layers-title]")
    assert "the original pass, without the edits" in section.inner_text()
    page.get_by_role("button", name="with the edits").click()
    assert page.locator(visible).all_inner_texts() == first(view.layers)
    assert "the pass with the edits" in section.inner_text()
    more = section.get_by_role("button", name="7 more cells of layer 0")
    assert more.inner_text() == "7 more"
    more.click()
    assert page.locator(".layers > li").first.locator(".contributions li:visible").count() == 10


# One list over all layers


def test_the_ranked_list_and_what_is_measured(live_page: Any, live: Site) -> None:
    page, view = live_page, prompt.read(small(), TEXT)
    ask(page, live)
    rows = page.locator(".ranked tbody tr")
    names = [f"L{one.layer}.{one.cell}" for one in view.ranked]
    assert rows.locator(".address").all_inner_texts() == names[:20]
    page.locator(".ranked").get_by_role("button", name=f"{len(names) - 20} more").click()
    assert rows.count() == len(names)
    shown = [number(each) for each in rows.locator("td:nth-child(5)").all_inner_texts()]
    assert shown == pytest.approx([one.effect for one in view.ranked], rel=1e-2)
    page.get_by_role("button", name="strength", exact=True).first.click()
    by_strength = sorted(view.ranked, key=lambda one: -one.strength)
    strongest = f"L{by_strength[0].layer}.{by_strength[0].cell}"
    until(page, "name => document.querySelector('.ranked tbody .address').innerText === name", strongest)

    first = {(one.layer, one.cell) for one in (*view.ranked[:16], *by_strength[:16])}
    page.get_by_role("button", name=f"Measure {len(first)} cells").click()
    rest = page.get_by_role("button", name=f"Measure the other {len(names) - len(first)}")
    rest.wait_for()
    page.get_by_role("button", name="measured", exact=True).click()
    found = prompt.ablate(small(), TEXT, sorted(first))
    largest = sorted(found.cells, key=lambda one: -abs(one.logit))
    for i, one in enumerate(largest[:5]):
        row = rows.nth(i)
        assert row.locator(".address").inner_text() == f"L{one.layer}.{one.cell}"
        assert number(row.locator("td:nth-child(6)").inner_text()) == pytest.approx(one.logit, rel=1e-2)
        assert number(row.locator("td:nth-child(7)").inner_text()) == pytest.approx(one.log_p, rel=2e-2, abs=1e-4)
    direct = {(one.layer, one.cell): one.effect for one in view.ranked}
    last = live.run.layers - 1  # there the two are equal: it would make them agree too well
    assert any(one.layer == last for one in found.cells)
    pairs = np.array([(direct[one.layer, one.cell], one.logit) for one in found.cells if one.layer < last])
    alike = int((np.sign(pairs[:, 0]) == np.sign(pairs[:, 1])).sum())
    said = page.locator(".agreement-line").inner_text()
    assert f"{alike} of n = {len(pairs)} cells" in said
    r = re.search(r"r = (.?\d\.\d\d)", said)
    assert r is not None
    assert number(r[1]) == pytest.approx(np.corrcoef(pairs.T)[0, 1], abs=0.006)
    assert sum("–" in each for each in rows.locator("td:nth-child(6)").all_inner_texts()) == len(names) - len(first)

    page.get_by_label("⊘ switches off").select_option("all")  # measured anew, at every token
    page.get_by_role("button", name=f"Measure {len(first)} cells").click()
    page.get_by_role("button", name="Measure the other").wait_for()
    everywhere = prompt.ablate(small(), TEXT, sorted(first), everywhere=True)
    best = max(everywhere.cells, key=lambda one: abs(one.logit))
    assert rows.locator(".address").first.inner_text() == f"L{best.layer}.{best.cell}"
    rows.first.get_by_role("button").click()
    view = edited(page, [Edit(best.layer, best.cell, 0.0)])
    assert view.chosen.original_logit - view.chosen.logit == pytest.approx(best.logit, abs=1e-4)


# Who decides


def test_the_map_of_layers(live_page: Any, live: Site) -> None:
    page, found = live_page, prompt.by_layer(small(), TEXT)
    ask(page, live)
    page.locator("#heat-title").scroll_into_view_if_needed()
    plane = page.locator(".squares")
    plane.wait_for()
    plane.focus()
    page.keyboard.press("ArrowRight")
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    said = page.locator(".heat .readout").inner_text()
    assert said.startswith("layer 0 after token 8")
    assert number(re.search(r": (\S+) on", said)[1]) == pytest.approx(found.effects[8, 0], rel=1e-2)  # type: ignore[index]
    assert percent(found.predicted[8][1]) in said
    pixel = page.evaluate(
        "([x, y]) => [...document.querySelector('.heat canvas').getContext('2d').getImageData(x, y, 1, 1).data]", [0, 8]
    )
    redder = pixel[0] > pixel[1]
    assert redder == (found.effects[8, 0] < 0)
    page.keyboard.press("Enter")
    until(page, "document.activeElement?.dataset.at === 'layer:0'")
    assert predicted(page, 0) == [percent(p) for _, p in prompt.read(small(), TEXT, position=8).prediction]
    assert "at=8" in page.url
    plane.scroll_into_view_if_needed()
    box, axis = plane.bounding_box(), page.locator(".heataxis .axis").bounding_box()
    drawn = page.locator(".heat canvas").bounding_box()
    assert [drawn["x"], drawn["width"]] == pytest.approx(
        [axis["x"], axis["width"]], abs=1
    )  # a column is under its number
    assert [drawn["y"], drawn["height"]] == pytest.approx([box["y"], 22 * len(TEXT)], abs=1)
    page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + 22 * 2.5)
    until(page, "document.activeElement?.dataset.at === 'layer:1'")
    assert page.locator(".chip[aria-pressed=true]").get_attribute("title") == "token 2"
    page.get_by_text("The same as a table").click()
    page.wait_for_selector(".heattable tbody td.num")
    cells = page.locator(".heattable tbody td.num").all_inner_texts()
    assert [number(each) for each in cells] == pytest.approx(found.effects.flatten().tolist(), rel=1e-2, abs=1e-4)


# The address


def test_the_address_is_the_prompt(browser: Any, live: Site) -> None:
    with opened(browser, live.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        go(page, live, "#/prompt")
        page.get_by_label("Text").fill(TEXT)
        page.get_by_role("button", name="Read").click()
        page.wait_for_selector(".layers > li")
        assert page.url.endswith(ASKED)
        page.locator("button.chip").nth(4).click()
        until(page, "location.hash.endsWith('&at=4')")
        page.locator(".layers > li").nth(1).locator(".off").first.click()
        cell = prompt.read(small(), TEXT, position=4).layers[1].effective[0].cell
        edited(page, [Edit(1, cell, 0.0, (4,))], position=4)
        until(page, "end => location.hash.endsWith(end)", f"&at=4&edits=L1.{cell}*0@4")
        page.get_by_label(f"Where L1.{cell} is scaled").select_option("all")
        until(page, "end => location.hash.endsWith(end)", f"L1.{cell}*0")
        edited(page, [Edit(1, cell, 0.0)], position=4)
        page.go_back()
        assert page.url.endswith(f"L1.{cell}*0@4")
        edited(page, [Edit(1, cell, 0.0, (4,))], position=4)
        page.go_back()
        until(page, "!document.querySelector('.edits li')")
        page.go_back()
        until(page, "document.querySelectorAll('button.chip')[10].getAttribute('aria-pressed') === 'true'")
        for _ in range(3):
            page.go_forward()
        edited(page, [Edit(1, cell, 0.0)], position=4)
        page.get_by_role("button", name="Copy link").click()
        page.get_by_text("Copied.").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("button", name="Copy as Python").click()
        until(page, "navigator.clipboard.readText().then(text => text.startsWith('import keyhole'))")
        code = page.evaluate("navigator.clipboard.readText()")
        assert f"keyhole.Edit(layer=1, cell={cell}, scale=0.0)" in code
        compile(code, "copied", "exec")
    with opened(browser, link) as page:  # someone else opens it
        page.wait_for_selector(".layers > li")
        edited(page, [Edit(1, cell, 0.0)], position=4)
        assert page.get_by_label("Text").input_value() == TEXT


@pytest.mark.parametrize(
    "text", ["a+b & c=d #1 100%? é 𝔘", "<img src=x onerror=alert(1)>", "two\nlines, \"and\" 'more';"]
)
def test_any_text_is_in_the_address(browser: Any, live: Site, text: str) -> None:
    with opened(browser, live.url) as page:
        go(page, live, "#/prompt")
        page.get_by_label("Text").fill(text)
        page.get_by_role("button", name="Read").click()
        page.wait_for_selector(".layers > li")
        page.evaluate("sessionStorage.clear()")
        link = page.url
    with opened(browser, link) as page:
        page.wait_for_selector(".layers > li")
        assert page.get_by_label("Text").input_value() == text
        assert "".join(prompt.read(small(), text).tokens)


def test_from_a_cell_with_the_cell_switched_off(live_page: Any, live: Site) -> None:
    page = live_page
    go(page, live, "#/prompt?edits=L1.5*0")
    assert page.locator(".edits li .address").inner_text() == "L1.5"
    page.get_by_label("Text").fill(TEXT)
    page.get_by_role("button", name="Read").click()
    page.wait_for_selector(".layers > li")
    edited(page, [Edit(1, 5, 0.0)])
    go(page, live, "#/prompt?edits=L0.7*0")  # the text of the session
    page.wait_for_selector(".layers > li")
    edited(page, [Edit(0, 7, 0.0)])
    go(page, live, f"#/prompt?q={quote('The cat')}&edits=L0.7*0")
    page.wait_for_selector(".layers > li")
    assert page.locator("button.chip").count() == len("The cat")


# Files of edits


def test_edits_are_loaded(browser: Any, live: Site, tmp_path: Path) -> None:
    edits = [Edit(1, 5, -2.0), Edit(0, 7, 0.0, (3, 4))]
    saved = intervene.dump(edits, small())
    files = {
        "good.json": saved,
        "other.json": saved | {"model": saved["model"] | {"fingerprint": "0" * 64}},
        "partly.json": saved | {"edits": [*saved["edits"], {"layer": 99, "cell": 3, "scale": 0.0}]},
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "no.json").write_text("<not json>")
    with opened(browser, live.url, refused=["api/edits/load"]) as page:
        ask(page, live)

        def load(name: str) -> None:
            with page.expect_file_chooser() as chooser:
                page.get_by_role("button", name="Load edits").click()
            chooser.value.set_files(tmp_path / name)

        load("good.json")
        edited(page, edits)
        page.get_by_text("2 edits of good.json loaded.").wait_for()
        load("other.json")
        page.get_by_text("other.json was not loaded. The file of edits belongs to another model").wait_for()
        edited(page, edits)
        load("no.json")
        page.get_by_text("no.json was not loaded. The file of edits is no JSON").wait_for()
        page.get_by_role("button", name="Remove all").click()
        until(page, "!document.querySelector('.edits li')")
        dropped = page.evaluate_handle(
            "text => { const data = new DataTransfer(); data.items.add(new File([text], 'partly.json')); return data; }",
            (tmp_path / "partly.json").read_text(),
        )
        page.dispatch_event(".edits", "drop", {"dataTransfer": dropped})
        edited(page, edits)
        assert "There is no cell L99.3 to edit" in page.locator(".edits .wrong").inner_text()


def test_on_a_phone(browser: Any, live: Site) -> None:
    with opened(browser, live.url, viewport={"width": 360, "height": 740}) as page:
        ask(page, live, f"{ASKED}&edits=L1.5*0,L99.1*0")
        page.locator("#heat-title").scroll_into_view_if_needed()
        page.wait_for_selector(".heat canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        bar = page.locator(".effectbar").bounding_box()
        assert bar["height"] < 200
        assert bar["y"] + bar["height"] <= 741


# Answers that come late

ENDLESS = """() => {
  const ask = window.fetch;
  window.fetch = (path, options) => (String(path).endsWith('api/prompt') ? new Promise(() => {}) : ask(path, options));
}"""
"""No prompt is answered any more."""


def test_measuring_stays_with_the_token_it_began_with(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live)
    tokens = []
    page.on("request", lambda each: "ablation" in each.url and tokens.append(each.post_data_json["token"]))
    page.get_by_role("button", name=re.compile(r"Measure \d+ cells")).click()
    page.get_by_role("button", name="Measure the other").wait_for()
    page.evaluate(HOLD, "api/prompt/ablation")
    page.get_by_role("button", name="Measure the other").click()
    until(page, "window.held !== undefined")
    page.evaluate(ENDLESS)  # the answer for the other token does not come
    page.locator(".predictions .said button, .predictions .said a").nth(1).click()
    page.evaluate("window.held()")
    for _ in range(200):
        if len(tokens) >= 3:
            break
        page.wait_for_timeout(100)
    assert len(tokens) >= 3
    assert set(tokens) == {None}


def test_a_kept_answer_ends_the_wait_for_another(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live)
    read = page.get_by_role("button", name="Read", exact=True)
    page.evaluate(HOLD, "api/prompt")
    page.locator('[data-at="chip:2"]').click()  # its answer does not come
    until(page, "window.held !== undefined")
    assert read.is_disabled()
    page.locator('[data-at="chip:10"]').click()  # the position that was read before: that answer is kept
    until(page, "!document.querySelector('.answer').hasAttribute('aria-busy')")
    assert read.is_enabled()
    page.evaluate("window.held()")


# Nothing is dropped in silence


def test_a_cell_that_is_edited_twice_is_said(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live, f"{ASKED}&edits=L1.5*0,L1.5*2")
    assert "L1.5 is edited twice" in page.locator(".edits .wrong").inner_text()
    edited(page, [Edit(1, 5, 0.0)])


def test_a_file_without_a_possible_edit_changes_nothing(live_page: Any, live: Site, tmp_path: Path) -> None:
    page, file = live_page, tmp_path / "bad.json"
    file.write_text('[{"layer": 1, "cell": 2, "scale": null}]')
    ask(page, live, f"{ASKED}&edits=L1.5*0")
    page.locator(".edits input[type=file]").set_input_files(file)
    page.get_by_text("nothing was changed").wait_for()
    edited(page, [Edit(1, 5, 0.0)])
    assert page.locator(".edits li .address").all_inner_texts() == ["L1.5"]


def test_a_token_that_is_not_there_leaves_the_position(browser: Any, live: Site) -> None:
    with opened(browser, live.url, refused=["api/prompt"]) as page:
        ask(page, live, f"{ASKED}&at=2&token=nothing")
        assert "The most probable token is looked at instead." in page.locator(".notice").inner_text()
        assert "at=2" in page.evaluate("location.hash")
        view = prompt.read(small(), TEXT, position=2)
        assert predicted(page, 0) == [percent(p) for _, p in view.prediction]


def test_one_edit_of_a_cell_is_taken_back_and_not_the_others(live_page: Any, live: Site) -> None:
    page = live_page
    cell = prompt.read(small(), TEXT).layers[1].effective[0].cell
    ask(page, live, f"{ASKED}&edits=L1.{cell}*0@2,L1.{cell}*0@10")
    edited(page, [Edit(1, cell, 0.0, (2, 10))])
    off = page.locator(f'[data-at="off:layer:L1.{cell}"]')
    assert off.get_attribute("aria-pressed") == "true"
    off.click()
    edited(page, [Edit(1, cell, 0.0, (2,))])
    assert off.get_attribute("aria-pressed") == "false"
