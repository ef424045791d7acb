"""An export of some layers, cells, a collection: what is in it, and that nothing in it names another cell."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import explored
import numpy as np
import packed
import pytest
from typer.testing import CliRunner

import keyhole
from keyhole.cells import Cells, Layer
from keyhole.cli import app
from keyhole.errors import UsageError
from keyhole.export.part import Part, layers_of
from keyhole.export.site import export
from keyhole.searching import relations
from keyhole.store import annotations, collections
from keyhole.store.values import Values
from keyhole.web import search
from keyhole.web.contract import Explorer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    run = explored.write(tmp_path_factory.mktemp("part"))
    for cell, marks in (
        (3, {"starred": True}),
        (5, {"tags": ["odd ones"]}),
        (30, {"tags": ["odd ones"], "note": "far"}),
    ):
        collections.save(run, cell, marks)
    for layer, cell in ((0, 5), (1, 7)):
        found = {"annotator": "ada", "layer": layer, "cell": cell, "patterns": [], "skipped": True}
        annotations.save(run, found)
    return run


@pytest.fixture(scope="module")
def found(run: keyhole.Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command writes of layer 2, a cell of layer 0 and a collection."""
    site = tmp_path_factory.mktemp("site") / "site"
    asked = ["--layers", "2", "--cells", "L0.9", "--cells", "0.11", "--collection", "odd ones"]
    done = CliRunner().invoke(app, ["export", str(run.path), str(site), *asked])
    assert done.exit_code == 0, done.output
    return packed.answers(site)


CHOSEN = {5, 9, 11, 30, *range(48, 72)}
"""Places: L0.5 and L1.6 have the tag, layers have 24 cells."""


def test_the_cells_that_are_asked_for_and_no_others(run: keyhole.Run, found: dict[str, Any]) -> None:
    cells = {path for path in found if path.startswith("cells/")}
    assert cells == {"cells/{}/{}.json".format(*run.cells.split(place)) for place in CHOSEN}
    about = found["run.json"]["export"]["part"]
    assert about["cells"] == len(CHOSEN)
    assert {place for begin, end in about["spans"] for place in range(begin, end)} == CHOSEN
    assert about["said"] == "layer 2; L0.9, L0.11; the collection “odd ones”"
    assert {path for path in found if path.startswith("layers/")} == {"layers/0.json", "layers/1.json", "layers/2.json"}
    assert found["cells/2/4.json"] == json.loads(Explorer(run).body("cells/2/4.json"))
    assert all(run.cells.find(address) in CHOSEN for address in found["run.json"]["worth"])


def test_lists_name_only_what_is_there(run: keyhole.Run, found: dict[str, Any]) -> None:
    promoting: dict[str, set[int]] = {}
    for path, answer in found.items():
        if path.startswith("tokens/"):
            for side in ("promoted", "demoted"):
                for token, rows in answer[side].items():
                    promoting.setdefault(side + token, set()).update(int(row[0]) for row in rows)
    values = Values(run, "norm")
    for side, tokens in (("promoted", values.top_tokens), ("demoted", values.bottom_tokens)):
        for token in range(len(run.vocabulary)):
            expected = set(np.flatnonzero((tokens == token).any(1)).tolist()) & CHOSEN
            assert promoting.get(f"{side}{token}", set()) == expected
    units: dict[str, set[int]] = {}
    for path, answer in found.items():
        if path.startswith("units/"):
            for number, unit in answer["units"].items():
                units[number] = {
                    int(place) for held in unit["cells"] + unit["negative"] for place in np.cumsum(held[1])
                }
    expected_units: dict[str, set[int]] = {}
    for place in CHOSEN:
        for side in (run.units, run.units_negative):
            for unit in side[place][side[place] >= 0].tolist():
                expected_units.setdefault(str(unit), set()).add(place)
    assert units == expected_units
    named = {
        str(int(unit))
        for path, answer in found.items()
        if path.startswith("words/")
        for u in answer["words"].values()
        for unit in u
    }
    assert named <= set(units)
    assert len(named) > 5


def test_the_table_holds_the_values_of_its_cells_only(run: keyhole.Run, found: dict[str, Any]) -> None:
    listed = [column["name"] for column in found["table.json"]["columns"]]
    largest = np.frombuffer(base64.b64decode(found[f"columns/{listed.index('max')}/0.json"]["data"]), "<f4")
    assert {place: largest[place] for place in CHOSEN} == {place: run.stats.max[place] for place in CHOSEN}
    assert not largest[[place for place in range(72) if place not in CHOSEN]].any()
    texts = found[f"columns/{listed.index('trigger')}/0.json"]["texts"]
    whole = keyhole.columns(run, ["trigger"])["trigger"]
    assert texts == [text if place in CHOSEN else None for place, text in enumerate(whole)]


def test_the_best_of_a_part_are_not_the_part_of_the_best(
    run: keyhole.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of the best is one of the part's own cells, even if all of them are below the end of the run's list."""
    monkeypatch.setattr(relations, "MOST", 1)
    monkeypatch.setattr(search, "SPEAKERS", 1)
    places = [9, 11]
    export(run, tmp_path / "site", cells=[run.cells.address(place) for place in places])
    found = packed.answers(tmp_path / "site")
    listed: dict[str, set[str]] = {"ends": set(), "promoted": set()}
    for path, answer in found.items():
        if path.startswith("tokens/"):
            listed["ends"] |= {token for token, keys in answer["ends"].items() if keys["rows"]}
            listed["promoted"] |= set(answer["promoted"])
    ends = {
        str(token) for place in places for side in (run.units, run.units_negative) for token in last(run, side, place)
    }
    assert listed["ends"] == ends != set()
    promoted = Values(run, "norm").top_tokens[places]
    assert listed["promoted"] == {str(token) for token in np.unique(promoted).tolist()}


def last(run: keyhole.Run, units: Any, place: int) -> list[int]:
    """The tokens in which one side of a cell's triggers end."""
    positions = run.positions if units is run.units else run.positions_negative
    filled = units[place] >= 0
    return run.last_tokens(units[place][filled], positions[place][filled]).tolist()


def test_what_people_say_of_other_cells_is_left_out(found: dict[str, Any]) -> None:
    assert set(found["collections.json"]["cells"]) == {"L0.5", "L1.6"}
    assert found["annotations.json"]["notes"] == {"L1.6": "far"}
    assert [(each["layer"], each["cell"]) for each in found["annotations.json"]["annotations"]] == [(0, 5)]


def test_layers_are_named_by_numbers_ranges_and_names() -> None:
    plain, stacks = (
        Cells.of_widths([4] * 14),
        Cells([Layer(4, stack=s, number=n) for s in ("enc", "dec") for n in (0, 1)]),
    )
    assert layers_of(plain, "3,10-12") == layers_of(plain, [3, "L10-L12", 11]) == [3, 10, 11, 12]
    assert layers_of(stacks, "enc.L1-dec.L0") == [1, 2]
    for wrong in ("12-10", "x", "14", "3,,4", "-3"):
        with pytest.raises(UsageError):
            layers_of(plain, wrong)


def test_what_cannot_be_chosen(run: keyhole.Run, tmp_path: Path) -> None:
    for options in ({"cells": ["L9.1"]}, {"layers": "7"}, {"collection": "no such"}):
        with pytest.raises(UsageError):
            export(run, tmp_path / "site", **options)
    assert Part(run, collection="starred").about.cells == 1
    assert Part(run, layers="0-1").said == "layers 0 to 1"
    assert list(tmp_path.iterdir()) == []
