"""What only the live explorer can do, in a real browser: prompts, edits, annotations and notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import LAYERS, Site, go, lively, opened, small, titled, until

from keyhole.models import intervene
from keyhole.store import annotations, collections
from keyhole.uses import prompt

pytestmark = pytest.mark.slow

# Prompt


def ask(page: Any, site: Site, text: str) -> None:
    go(page, site, "#/prompt")
    page.get_by_label("Text").fill(text)
    page.get_by_role("button", name="Read").click()
    page.wait_for_selector(".layers > li")


def predicted(page: Any, which: int) -> list[str]:
    shown: list[str] = page.locator(".predictions > div").nth(which).locator(".said .num").all_inner_texts()
    return shown


def percent(p: float) -> str:
    share = p * 100
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %" if share >= 1 else f"{share:.2f} %"


def test_prompt_shows_what_the_model_reads(live_page: Any, live: Site) -> None:
    page = live_page
    ask(page, live, "The cat sat")
    view = prompt.read(small(), "The cat sat").to_json()
    assert page.locator("button.chip").count() == len(view["tokens"])
    assert predicted(page, 0) == [percent(p) for _, p in view["original"]]
    assert page.locator(".layers > li").count() == LAYERS
    first = page.locator(".layers > li").first.locator(".contributions li").first
    assert first.locator("a").inner_text() == f"L0.{view['layers'][0]['effective'][0]['cell']}"
    page.locator("button.chip").nth(2).click()
    until(page, "document.querySelectorAll('button.chip')[2].getAttribute('aria-pressed') === 'true'")
    view = prompt.read(small(), "The cat sat", position=2).to_json()
    assert predicted(page, 0) == [percent(p) for _, p in view["original"]]


def test_prompt_with_cells_switched_off(live_page: Any, live: Site, tmp_path: Path) -> None:
    page = live_page
    ask(page, live, "The dog looked")
    original = predicted(page, 0)
    row = page.locator(".layers > li").nth(1).locator(".contributions li").first
    cell = int(row.locator("a").inner_text().split(".")[1])
    row.get_by_role("button").click()
    page.wait_for_selector(".edits li")
    position = len(prompt.read(small(), "The dog looked").to_json()["tokens"]) - 1
    edits = [intervene.Edit(1, cell, 0.0, (position,))]
    view = prompt.read(small(), "The dog looked", edits=edits).to_json()
    until(page, "document.querySelectorAll('.predictions > div')[1].querySelectorAll('.said li').length > 0")
    assert predicted(page, 0) == original
    assert predicted(page, 1) == [percent(p) for _, p in view["prediction"]]

    page.get_by_label(f"Scale of L1.{cell}").fill("-2")
    page.get_by_label(f"Scale of L1.{cell}").press("Enter")
    page.get_by_label(f"Where L1.{cell} is scaled").select_option("all")
    edits = [intervene.Edit(1, cell, -2.0, None)]
    view = prompt.read(small(), "The dog looked", edits=edits).to_json()
    wanted = [percent(p) for _, p in view["prediction"]]
    until(
        page,
        "wanted => [...document.querySelectorAll('.predictions > div')[1].querySelectorAll('.num')].map(e => e.innerText).join() === wanted",
        ",".join(wanted),
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="Save edits").click()
    file = tmp_path / "edits.json"
    download.value.save_as(file)
    assert intervene.read_edits(file, small()) == edits

    page.locator(".edits li a").click()  # a look at the cell, and back: nothing is lost
    page.wait_for_selector(".cellpage")
    page.go_back()
    page.wait_for_selector(".edits li")
    page.get_by_role("button", name=f"Remove the edit of L1.{cell}").click()
    until(page, "!document.querySelector('.edits li')")
    assert predicted(page, 0) == original


def test_prompt_errors_are_said(browser: Any, live: Site) -> None:
    with opened(browser, live.url, refused=["api/prompt"]) as page:
        go(page, live, "#/prompt")
        page.get_by_label("Text").fill("too long " * 400)
        page.get_by_role("button", name="Read").click()
        assert "tokens" in page.get_by_role("alert").inner_text()
        page.get_by_label("Text").fill("The cat")
        page.get_by_role("button", name="Read").click()
        page.wait_for_selector(".layers > li")
        page.get_by_label("Cell to edit").fill("here")
        page.get_by_role("button", name="Add").click()
        assert "L3.17" in page.locator(".edits").inner_text()
        page.get_by_label("Cell to edit").fill("L77.1")
        page.get_by_role("button", name="Add").click()
        assert "There is no cell L77.1: the model has layers 0 to 1" in page.locator(".edits").inner_text()


def test_exported_pages_say_what_needs_the_model(browser: Any, exported: Site) -> None:
    with opened(browser, exported.url + "#/prompt") as page:
        page.wait_for_selector(".missing")
        assert "keyhole serve" in page.locator("main").inner_text()
        go(page, exported, "#/annotate")
        titled(page, "Annotate")
        assert "keyhole serve" in page.locator("main").inner_text()
        go(page, exported, "#/L0/3")
        assert page.locator("textarea:not(#note)").count() == 0


# What people write

NAME = "Zoë <b>王<|b>"


def test_annotating_loses_nothing(live_page: Any, live: Site) -> None:
    page, cell = live_page, lively(live.run, 0)
    go(page, live, f"#/annotate/L0/{cell}")
    for refused in ("../Ann", "Rules", "a\u202eb", "-"):
        page.get_by_label("Your name").fill(refused)
        page.get_by_role("button", name="Start").click()
        assert page.locator("#annotator:invalid").count() == 1
    page.get_by_label("Your name").fill(NAME.replace(" ", "  "))
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector(".marks")
    boxes = page.locator(".marks input")
    assert boxes.count() == len(live.run.triggers(0, cell))
    save = page.get_by_role("button", name="Save, next")
    assert save.is_disabled()
    boxes.nth(0).check()
    boxes.nth(2).check()
    page.get_by_label("What they share").fill("a <i>shape</i>")
    assert save.is_disabled(), "two triggers are no pattern"
    page.reload()
    page.wait_for_selector(".marks")
    assert page.get_by_label("What they share").input_value() == "a <i>shape</i>"
    assert [i for i in range(boxes.count()) if boxes.nth(i).is_checked()] == [0, 2]
    assert "not saved yet" in page.locator(".annotate").inner_text()
    go(page, live, "#/annotate/L1/3")  # another key, and back by the list of drafts
    page.locator(".drafts a", has_text=f"L0.{cell}").click()
    until(page, "() => document.querySelectorAll('.marks input:checked').length === 2")
    boxes.nth(5).check()
    page.get_by_label("semantic").check()
    page.get_by_role("button", name="Another pattern").click()
    for i in (1, 2, 3):
        boxes.nth(i).check()
    page.get_by_label("What they share").nth(1).fill("another")
    assert page.locator(".marks li").nth(2).locator(".tag").all_inner_texts() == ["A", "B"]
    save.click()
    until(page, f"!document.title.startsWith('Annotate L0.{cell} ')")
    page.wait_for_selector(".marks")
    (saved,) = [each for each in annotations.read_annotations(live.run) if each.annotator == NAME]
    assert saved.to_json() == {
        "annotator": NAME,
        "layer": 0,
        "cell": cell,
        "skipped": False,
        "patterns": [
            {"triggers": [0, 2, 5], "description": "a <i>shape</i>", "kind": "semantic"},
            {"triggers": [1, 2, 3], "description": "another", "kind": "shallow"},
        ],
    }
    address = page.title().split()[1]
    page.get_by_role("button", name="Skip").click()
    until(page, "address => !document.title.startsWith('Annotate ' + address)", address)
    page.wait_for_selector(".marks")
    assert sum(each.skipped for each in annotations.read_annotations(live.run)) == 1
    go(page, live, f"#/L0/{cell}")
    page.wait_for_selector("#note")
    assert "a <i>shape</i>" in page.locator(".written").inner_text()
    page.goto(live.url + "#/")
    page.locator("#map-title").scroll_into_view_if_needed()
    page.wait_for_selector(".plane")
    page.select_option("#measure", "pattern")
    page.wait_for_selector(".legend .kind")
    assert page.locator(".kind").all_inner_texts() == ["none", "shallow", "semantic", "both"]


def test_notes_are_kept(live_page: Any, live: Site) -> None:
    page = live_page
    go(page, live, "#/L1/11")
    page.get_by_label("A note on L1.11").fill("fires on <cats>")
    page.wait_for_selector("text=Saved.")
    assert collections.read_notes(live.run)["L1.11"] == "fires on <cats>"
    page.reload()
    page.wait_for_selector("#note")
    assert page.get_by_label("A note on L1.11").input_value() == "fires on <cats>"
