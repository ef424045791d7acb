"""Kinds of cells in the explorer's answers, the terminal and the notebook."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import explored
import numpy as np
import pytest

import keyhole
from keyhole.errors import RunDamaged
from keyhole.store import kinds, layout
from keyhole.views import terminal
from keyhole.web import schema
from keyhole.web.contract import Explorer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    found = explored.write(tmp_path_factory.mktemp("kinds"))
    return keyhole.analyze(found, only=["kinds"], model=explored.model())


def data(explorer: Explorer, path: str) -> Any:
    return json.loads(explorer.body(path))


def test_answers_say_what_is_stored(run: keyhole.Run) -> None:
    explorer, stored = Explorer(run), kinds.of(run)
    assert stored is not None
    said = data(explorer, "kinds.json")
    assert "kinds.json" in list(explorer.paths())
    assert [kind["name"] for kind in said["kinds"]] == list(kinds.NAMES)
    labels = np.frombuffer(base64.b64decode(said["data"]), "<u2")
    np.testing.assert_array_equal(labels, stored.labels)
    assert labels.any()
    ((number, measure),) = (
        (number, each) for number, each in enumerate(data(explorer, "map.json")["measures"]) if each["name"] == "kind"
    )
    levels = np.frombuffer(base64.b64decode(data(explorer, f"maps/{number}.json")["data"]), np.uint8)
    for place, level in enumerate(levels):
        own = [i for i in range(len(kinds.KINDS)) if labels[place] >> i & 1]
        shown = kinds.KINDS[own[-1]].title if own else "none"
        assert measure["kinds"][level] == shown
        cell = data(explorer, f"cells/{'/'.join(map(str, run.cells.split(place)))}.json")
        assert [name for name, has, _, _ in cell["kinds"] if has] == [kinds.NAMES[i] for i in own]
        for at, (_, _, number, threshold) in enumerate(cell["kinds"]):
            for got, array in ((number, stored.numbers), (threshold, stored.thresholds)):
                known = float(array[place, at])
                assert got is None if np.isnan(known) else got == pytest.approx(known, rel=1e-2)


def test_the_terminal_and_the_notebook_name_them(run: keyhole.Run, capsys: pytest.CaptureFixture[str]) -> None:
    stored = kinds.of(run)
    assert stored is not None
    some, none = (int(np.flatnonzero((stored.labels > 0) == has)[0]) for has in (True, False))
    for place in (some, none):
        cell = run.cell(*run.cells.split(place))
        terminal.console().print(terminal.cell(cell))
        out = capsys.readouterr().out
        line = next(line for line in out.splitlines() if line.startswith("kinds: "))
        titles = [shown.kind.title for shown in stored.of(place) if shown.has]
        assert all(title in line for title in titles)
        assert titles or "none in particular" in line
        assert line.removeprefix("kinds: ").split(" ")[0] in cell._repr_html_()


def test_a_run_without_them(tmp_path: Path) -> None:
    explorer = Explorer(explored.write(tmp_path))
    assert data(explorer, "kinds.json") == {"kinds": [], "data": ""}
    assert "kinds" not in data(explorer, "cells/0/0.json")
    assert "kind" not in [each["name"] for each in data(explorer, "map.json")["measures"]]


def test_arrays_that_do_not_fit_are_refused(run: keyhole.Run, tmp_path: Path) -> None:
    from keyhole.store import percell

    found = percell.read(run, kinds.GROUP)
    assert found is not None
    wrong = percell.PerCell(found.settings, {**found.arrays, "labels": found.arrays["labels"][:-1]})
    with pytest.raises(RunDamaged, match="cells_kinds_labels.npy does not fit"):
        kinds.Kinds(run, wrong)
    assert set(layout.analyses(run.path)["cells_kinds"]["files"]) == {
        f"cells_kinds_{name}.npy" for name in ("labels", "numbers", "thresholds")
    }


def test_every_answer_is_of_its_type(run: keyhole.Run) -> None:
    import msgspec

    explorer = Explorer(run)
    msgspec.json.decode(explorer.body("kinds.json"), type=schema.Kinds)
    msgspec.json.decode(explorer.body("cells/1/3.json"), type=schema.PackedCell)
