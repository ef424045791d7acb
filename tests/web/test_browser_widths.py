"""The explorer on layers of different widths: every page finds the cells where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browsing import Site, cell_address, go, hosted, opened, served, titled, until
from narrowed import WIDTHS, narrowed

import keyhole
from keyhole.export.site import export
from keyhole.store import collections, values

FIRST, MIDDLE, LAST = range(3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("widths")
    text = folder / "text.txt"
    lines = [f"The cat number {i} sat on mat {i % 5}, and the dog looked on." for i in range(40)]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = keyhole.scan(narrowed("gpt2"), [text], out=folder / "run", top=6, unit="line", context=64)
    return keyhole.analyze(run, only=["activity", "agreement", "shading"], lens=["norm", "raw"], model=narrowed("gpt2"))


@pytest.fixture(scope="module")
def live(run: keyhole.Run) -> Iterator[Site]:
    with served(run, narrowed("gpt2")) as url:
        yield Site(url, run, live=True)


@pytest.fixture(scope="module")
def exported(run: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("widths-host")
    export(run, folder / "site")
    with hosted(folder) as url:
        yield Site(url + "site/", run, live=False)


def test_overview_and_map(page: Any, site: Site, run: keyhole.Run) -> None:
    page.wait_for_selector(".card")
    assert f"{sum(WIDTHS)} memory cells" in page.locator(".lead").inner_text()
    page.locator("#map-title").scroll_into_view_if_needed()
    page.wait_for_selector(".extent:not(:empty)")
    assert f"3 layers × {min(WIDTHS)} to {max(WIDTHS)} = {sum(WIDTHS)}" in page.locator(".facts").inner_text()
    drawn = page.evaluate(
        """() => {
          const canvas = document.querySelector('.plane canvas');
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          return Array.from({ length: canvas.height }, (_, row) =>
            Array.from({ length: canvas.width }, (_, column) => data[(row * canvas.width + column) * 4 + 3]));
        }"""
    )
    assert [sum(alpha > 0 for alpha in row) for row in drawn] == list(WIDTHS)
    assert all(alpha > 0 for row, width in zip(drawn, WIDTHS, strict=True) for alpha in row[:width])


def test_the_map_leads_to_the_cells_it_shows(page: Any, site: Site, run: keyhole.Run) -> None:
    page.locator("#map-title").scroll_into_view_if_needed()
    plane, readout = page.locator(".plane"), page.locator(".readout")
    plane.wait_for()
    page.get_by_label("Colour").select_option("activity")
    plane.focus()
    until(page, "() => document.querySelector('.readout').textContent.includes('above zero')")
    for keys, address in (
        (["End"], f"L0.{WIDTHS[FIRST] - 1}"),
        (["ArrowDown", "End"], f"L1.{WIDTHS[MIDDLE] - 1}"),
        (["ArrowDown"], f"L2.{WIDTHS[LAST] - 1}"),
        (["Home", "ArrowRight"], "L2.1"),
    ):
        for key in keys:
            page.keyboard.press(key)
        assert readout.inner_text().startswith(f"{address} ")
        share = float(run[address].stats.active_fraction)
        said = float(readout.inner_text().split(": ")[1].split(" %")[0]) / 100
        assert said == pytest.approx(share, abs=0.01)
    page.get_by_label("Cells", exact=True).select_option("sorted")
    page.keyboard.press("Home")
    strongest = int(np.argmax(run.layer(LAST).stats.active_fraction))
    assert readout.inner_text().startswith(f"L2.{strongest} ")
    box = plane.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 2)  # right of the first layer's last cell
    weakest = int(np.argsort(-run.layer(FIRST).stats.active_fraction, kind="stable")[-1])
    assert run.layer(FIRST).stats.active_fraction[weakest] == pytest.approx(
        run[readout.inner_text().split()[0]].stats.active_fraction, abs=0.01
    )
    page.keyboard.press("Enter")
    page.wait_for_selector(".cellpage")
    assert cell_address(page).startswith("L0.")


def test_every_layer_has_its_own_cells(page: Any, site: Site) -> None:
    for layer, width in enumerate(WIDTHS):
        go(page, site, f"#/L{layer}?sort=cell&order=up")
        assert page.locator("table.cells").get_attribute("aria-rowcount") == str(width + 1)
        links = page.locator("tbody td.name a").all_inner_texts()
        assert len(links) >= min(WIDTHS)  # only the rows in view are in the page
        assert links == [f"L{layer}.{cell}" for cell in range(width)][: len(links)]


def test_steps_go_from_layer_to_layer(page: Any, site: Site) -> None:
    go(page, site, f"#/L0/{WIDTHS[FIRST] - 1}")
    for key, address in (("j", "L1.0"), ("k", f"L0.{WIDTHS[FIRST] - 1}"), ("j", "L1.0")):
        page.keyboard.press(key)
        titled(page, f"{address} ")
    go(page, site, "#/L0/0")
    page.keyboard.press("k")
    titled(page, f"L2.{WIDTHS[LAST] - 1} ")
    page.keyboard.press("j")
    titled(page, "L0.0 ")


@pytest.mark.parametrize("address", ["L0.10", "L1.23", "L2.0", "L2.16"])
def test_a_cell_is_the_runs(page: Any, site: Site, run: keyhole.Run, address: str) -> None:
    cell = run[address]
    go(page, site, f"#/L{cell.layer}/{cell.index}")
    assert cell_address(page) == address
    top = values.Values(run, "norm").promoted(cell.layer, cell.index, 12)
    logits = page.locator(".sides > div").first.locator(".said .num").all_inner_texts()[:12]
    assert [float(text.replace("−", "-")) for text in logits] == pytest.approx([said.logit for said in top], rel=1e-2)
    near = [other.address for other in values.similar(run, cell.layer, cell.index)][:10]
    alike = page.locator("section[aria-labelledby=similar-values-title] a").all_inner_texts()
    assert alike == near
    if cell.triggers:
        coefficients = page.locator(".triggerlist").first.locator(".num").all_inner_texts()
        assert [float(text.replace("−", "-")) for text in coefficients] == pytest.approx(
            [trigger.coefficient for trigger in cell.triggers], rel=1e-2
        )


def test_the_address_box(page: Any, site: Site) -> None:
    for typed, title in (("L1.23", "L1.23 "), ("2/16", "L2.16 "), ("L2", "Layer 2 ")):
        page.locator("#find").fill(typed)
        page.keyboard.press("Enter")
        titled(page, title)
    for typed, why in (
        (f"L0.{WIDTHS[FIRST]}", f"There is no cell L0.{WIDTHS[FIRST]}: layer L0 has cells 0 to {WIDTHS[FIRST] - 1}."),
        ("L3", f"There is no layer 3: the model has layers 0 to 2 of {min(WIDTHS)} to {max(WIDTHS)} cells."),
    ):
        page.locator("#find").fill(typed)
        page.keyboard.press("Enter")
        until(page, "why => document.querySelector('main [role=alert]')?.textContent === why", why)


def test_search_finds_tokens_and_phrases(page: Any, site: Site, run: keyhole.Run) -> None:
    said = values.Values(run, "norm")
    named = [token for token in np.unique(said.top_tokens).tolist() if run.vocabulary.piece(token).isalpha()]
    token = max(named, key=lambda token: len(said.promoting(token)))
    go(page, site, f"#/search?q={quote(run.vocabulary.piece(token))}&token={token}")
    page.wait_for_selector("section[aria-labelledby=values-title] .hits .address")
    shown = page.locator("section[aria-labelledby=values-title] .hits").first.locator(".address").all_inner_texts()
    assert shown == [each.address for each in said.promoting(token)][: len(shown)]
    assert len({address[:2] for address in shown}) > 1
    go(page, site, "#/search?q=cat&in=contains")
    page.wait_for_selector("section[aria-labelledby=keys-title] .hits li")
    keys = page.locator("section[aria-labelledby=keys-title] .hits .address").all_inner_texts()
    assert keys
    for address in keys:
        triggers = run[address].triggers + run[address].triggers_negative
        assert any("cat" in trigger.prefix for trigger in triggers), address


def test_prompt_edits_and_notes(browser: Any, live: Site, run: keyhole.Run) -> None:
    with opened(browser, live.url) as page:
        go(page, live, "#/prompt?q=The cat sat")
        page.get_by_role("button", name="Read").click()
        page.wait_for_selector(".layers > li")
        page.get_by_label("Cell to edit").fill(f"L2.{WIDTHS[LAST]}")
        page.get_by_role("button", name="Add").click()
        assert f"layer L2 has cells 0 to {WIDTHS[LAST] - 1}" in page.locator(".edits").inner_text()
        page.get_by_label("Cell to edit").fill(f"L2.{WIDTHS[LAST] - 1}")
        page.get_by_role("button", name="Add").click()
        page.wait_for_selector(".edits li .address")
        assert page.locator(".edits li .address").inner_text() == f"L2.{WIDTHS[LAST] - 1}"
        go(page, live, f"#/L1/{WIDTHS[MIDDLE] - 1}")
        page.locator("#note").fill("the last of the widest")
        page.wait_for_selector("text=Saved.")
    assert collections.read_notes(run) == {f"L1.{WIDTHS[MIDDLE] - 1}": "the last of the widest"}
