"""What the explorer says of cells that were pruned, edited, or found in texts that the model says by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import explored
import numpy as np
import pytest
from browsing import opened, served
from small import scanned

import keyhole
from keyhole.models import intervene
from keyhole.store import leaks, made, pruning
from keyhole.web.contract import Explorer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """A run of an edited model, with an order of pruning and a leak in two of its cells."""
    folder, model = tmp_path_factory.mktemp("uses"), explored.model()
    edits = [keyhole.Edit(0, 1, 0.0), keyhole.Edit(1, 2, 1.0, towards="A", by=0.5)]
    with intervene.applied(model, edits):
        found = scanned(model, folder)
    goes = np.linspace(0.1, 1, len(found.cells), dtype=np.float32)
    pruning.save(found, pruning.Pruning([], [], "refit", "uniform"), goes)
    places = [found.cells.place(1, 2), found.cells.place(0, 3)]
    leak = leaks.Leak("text", "the code is ", "seven", 5, 5, 3, -0.1)
    tested = leaks.Tested(1, "ablation", [1, 2, 4], [1.0, 0.0, 0.0], 1.0, [*places, 0, 7], n90=2)
    leaks.save(found, leaks.Leaks([leak], [tested], [], {}), {})
    return keyhole.open(found.path)


def uses(run: keyhole.Run, layer: int, cell: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Explorer(run).body(f"cells/{layer}/{cell}.json"))["uses"]
    return found


def test_a_cell_says_what_it_was_used_for(run: keyhole.Run) -> None:
    said = uses(run, 1, 2)
    goes = pruning.goes_at(run)
    assert goes is not None
    assert said["goes"]["share"] == pytest.approx(float(goes[run.cells.place(1, 2)]), rel=1e-3)
    (leak,) = said["leaks"]
    assert (leak["rank"], leak["place"], leak["cells"], leak["continuation"]) == (1, 1, 2, "seven")
    assert said["edits"] == [{"scale": 1.0, "towards": "A", "by": 0.5, "replaced": False}]
    assert uses(run, 0, 3)["leaks"][0]["place"] == 2
    assert uses(run, 0, 1)["edits"][0]["scale"] == 0
    assert uses(run, 0, 0)["leaks"] == []  # in the ranking, but not among those that are needed


def test_a_run_that_nothing_was_done_with_says_nothing(tmp_path: Path) -> None:
    plain = scanned(explored.model(), tmp_path)
    assert "uses" not in json.loads(Explorer(plain).body("cells/0/0.json"))


def test_the_page_tells_it(run: keyhole.Run, browser: Any) -> None:
    with served(run) as url, opened(browser, f"{url}#/L1/2") as page:
        told = page.locator("ul.uses")
        told.wait_for()
        text = told.inner_text()
    assert "Pruning (refit): goes when" in text
    assert "Leak 1" in text
    assert "“seven” by heart" in text
    assert "moved towards “A” by 0.5" in text


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (
            {"made": "prune", "source": "/models/big", "keep": 0.75, "method": "refit", "scope": "uniform"},
            "Pruned: 75 % of the cells of big are left in every layer, chosen by refit.",
        ),
        (
            {"made": "edit", "source": "hub/name", "edits": 1},
            "Edited: 1 edit of cells is baked into the weights of name.",
        ),
        ({"made": "edit", "source": "x", "edits": -3}, "Edited: Edits of cells are baked into the weights of x."),
        ({"made": "prune", "source": "x", "keep": 7}, None),
        ({"made": ["prune"], "source": "x"}, None),
        ("prune", None),
        (None, None),
    ],
)
def test_what_a_model_was_made_from(about: object, said: str | None) -> None:
    assert made.told({"model": {"made": about}}) == said


def test_edits_that_were_baked_are_told_of_their_cells(tmp_path: Path) -> None:
    from families import save, tiny

    edits = [keyhole.Edit(1, 2, 0.0), keyhole.Edit(0, 3, 1.0, towards="P", by=0.5)]
    keyhole.edit(save(tiny("llama"), tmp_path / "whole"), edits, tmp_path / "edited")
    run = scanned(keyhole.load(tmp_path / "edited"), tmp_path)
    assert uses(run, 1, 2)["edits"] == [{"scale": 0.0, "towards": None, "by": None, "replaced": False}]
    assert uses(run, 0, 3)["edits"][0]["towards"] == "P"
    assert uses(run, 0, 4)["edits"] == []


def test_a_number_that_no_float_holds_is_left_out(run: keyhole.Run) -> None:
    run.manifest["model"]["made"] = {"edited": [{"layer": 0, "cell": 7, "scale": 10**400, "towards": "x" * 1000}, 3]}
    try:
        (told,) = uses(run, 0, 7)["edits"]
    finally:
        del run.manifest["model"]["made"]
    assert told["scale"] is None
    assert len(told["towards"]) == made.LONGEST


def test_a_pruned_model_says_so_wherever_its_runs_are_shown(tmp_path: Path) -> None:
    from families import save, tiny

    name = save(tiny("llama"), tmp_path / "whole")
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The cat sat on mat {number} and ran to Paris again." for number in range(60)))
    keyhole.prune(keyhole.scan(name, [text], out=tmp_path / "run", top=2), tmp_path / "small", keep=0.5, by="square")
    run = keyhole.scan(str(tmp_path / "small"), [text], out=tmp_path / "again", top=2)
    sentence = "Pruned: 50 % of the cells of whole are left in every layer, chosen by square."
    assert made.told(run.manifest) == sentence
    assert json.loads(Explorer(run).body("run.json"))["model"]["made"] == sentence
    (tmp_path / "small" / made.FILE).write_text("[")  # a damaged note is no reason not to load a model
    assert keyhole.load(tmp_path / "small").made is None
