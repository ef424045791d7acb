"""The explorer of a gated model: cells in their orientation, "the other side" second, no share of prefixes above zero."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from browsing import Site, go, served
from families import tiny
from starlette.testclient import TestClient

import keyhole
from keyhole.models.model import Model
from keyhole.store import values
from keyhole.uses import prompt
from keyhole.web.contract import Explorer
from keyhole.web.routes import create

TOP = 30


def model() -> Model:
    return tiny("llama")


def scanned(folder: Path) -> keyhole.Run:
    text = folder / "text.txt"
    lines = [f"The cat number {i} sat on mat {i * i % 7}, and the dog looked on." for i in range(60)]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return keyhole.scan(model(), [text], out=folder / "run", top=TOP, unit="line", context=64)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = scanned(tmp_path_factory.mktemp("gated"))
    return keyhole.analyze(run, only=["activity", "agreement", "shading"], lens=["raw", "norm"], model=model())


def turned(run: keyhole.Run) -> int:
    """A cell of layer 1 that is read with the sign −, and whose both sides have triggers."""
    here = run.layer(1)
    full = (here.units[:, 0] >= 0) & (here.units_negative[:, 0] >= 0)
    return int(np.flatnonzero(full & (run.orientation[here.span] < 0))[0])


def test_answers(run: keyhole.Run) -> None:
    explorer = Explorer(run)
    assert explorer.about().model.gated
    assert explorer.about().dead == 0
    columns = explorer.layer(1).columns
    assert columns.active is msgspec.UNSET
    here = run.layer(1).stats
    every = np.maximum(np.abs(here.max), np.abs(here.min)) / np.sqrt(here.mean**2 + here.std**2)
    np.testing.assert_allclose(columns.peak, every, rtol=1e-3)
    cell = explorer.cell(1, turned(run))
    assert (cell.sign, cell.stats.active, cell.dead) == (-1, None, False)
    assert all(trigger.c > 0 for trigger in cell.triggers)
    assert all(trigger.c < 0 for trigger in cell.negative)
    assert cell.triggers[0].c >= -cell.negative[0].c
    # what it promotes are the first tokens of −v
    place = run.cells.place(1, turned(run))
    v = model().values(1)[turned(run)].float()
    logits = -v @ model().lm.get_output_embeddings().weight.float().T
    assert values.Values(run, "raw").top_tokens[place, :5].tolist() == logits.topk(5).indices.tolist()
    speakers = values.Values(run, "raw").promoting(int(logits.argmax()))
    assert run.cells.address(place) in [each.address for each in speakers]


def test_an_unanalyzed_run_has_a_map(tmp_path: Path) -> None:
    found = Explorer(scanned(tmp_path)).maps.listed()
    assert found.measures
    assert "activity" not in [each.name for each in found.measures]


def test_a_live_prompt_has_the_signs_of_the_run(run: keyhole.Run) -> None:
    with TestClient(create(run, model=model()), base_url="http://127.0.0.1") as client:
        answer = client.post("/api/prompt", json={"text": "The cat sat", "edits": []})
    assert answer.status_code == 200, answer.text
    own = prompt.read(model(), "The cat sat").to_json()
    seen = 0
    for mine, theirs in zip(answer.json()["layers"], own["layers"], strict=True):
        for one, other in zip(mine["strongest"], theirs["strongest"], strict=True):
            sign = int(run.orientation[run.cells.place(mine["layer"], one["cell"])])
            assert one == {**other, "m": sign * other["m"]}
            seen += sign < 0
    assert seen


@pytest.fixture(scope="module")
def live(run: keyhole.Run) -> Iterator[Site]:
    with served(run, model()) as url:
        yield Site(url, run, live=True)


@pytest.mark.slow(seconds=3)
def test_pages(live_page: Any, live: Site, run: keyhole.Run) -> None:
    page, cell = live_page, turned(run)
    go(page, live, f"#/L1/{cell}")
    said = page.locator(".cellpage").inner_text()
    assert "The other side" in said
    assert "negative side" not in said
    assert "Fires on" not in said
    assert "Read with the sign −" in said
    assert "times its root mean square" in said
    assert page.locator(".triggerlist").first.locator("li:visible").count() == 25
    page.get_by_role("button", name=f"all {TOP}", exact=True).first.click()
    assert page.locator(".triggerlist").first.locator("li:visible").count() == TOP
    plain = next(i for i in range(24) if run.orientation[run.cells.place(1, i)] > 0)
    go(page, live, f"#/L1/{plain}")
    assert "Read with the sign" not in page.locator(".cellpage").inner_text()
    go(page, live, "#/L1?sort=peak")
    assert page.locator("table.cells th", has_text="Peak").get_attribute("aria-sort") == "descending"
    assert page.locator("table.cells th", has_text="Fires on").count() == 1  # above a tenth of the largest
    first = page.locator("tbody td.name a").first.inner_text()
    assert first == run.layer(1)[int(np.argmax(run.layer(1).stats.peak))].address
    go(page, live, f"#/annotate/L1/{cell}")
    page.get_by_label("Your name").fill("ann")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector(".marks li")
    assert page.locator(".marks li").count() == 25
