"""`keyhole match`: the positions at which rules match, counted by hand on bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import patterned
import pytest
from families import CONTEXT, tiny
from patterned import key, pattern
from small import scanned
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.errors import CorpusError, RunDamaged, RunError, UsageError
from keyhole.patterns import matching
from keyhole.patterns.matching import match
from keyhole.store.patterns import Key

PAIRS = ["at", "th", "he", "t ", " m", "aa", "ha"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """Its tokens are bytes, its units lines; cell i of layer 0 fires at the second letter of pair i."""
    found = scanned(tiny("opt"), tmp_path_factory.mktemp("matching"))
    patterned.store(found, {0: [ends_in(found, cell, pair) for cell, pair in enumerate(PAIRS)], 1: [key(3)]})
    return found


def bias(cell: int) -> float:
    return 0.5 - 0.3 * cell


def ends_in(run: keyhole.Run, cell: int, pair: str, **more: Any) -> Key:
    ids = [run.vocabulary.find(letter) for letter in pair]
    conditions = [{"if": "token", "back": back, "ids": [token]} for back, token in enumerate(reversed(ids))]
    rule = {"all": conditions, "amount": bias(cell)}
    return key(cell, pattern(0, 1, 2, rule=rule, description=f"ends in {pair}"), **{"threshold": 0.0, **more})


def by_hand(lines: list[str], room: int) -> dict[tuple[int, int], list[tuple[str, float]]]:
    """Per unit and position the cells, strongest first. A window sees nothing of the one before it."""
    found: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for unit, line in enumerate(lines):
        for at in range(1, len(line)):
            for cell, pair in enumerate(PAIRS):
                if at % room and line[at - 1 : at + 1] == pair:
                    found.setdefault((unit, at), []).append((f"L0.{cell}", 1 / (1 + np.exp(-bias(cell)))))
    return found


def random_lines(count: int = 30) -> list[str]:
    random = np.random.default_rng(5)
    return ["".join(random.choice(list("ath m"), random.integers(5, 150))).strip() + "." for _ in range(count)]


def test_every_position_is_found_with_its_cells(run: keyhole.Run, tmp_path: Path) -> None:
    lines = random_lines()
    assert max(map(len, lines)) > 2 * CONTEXT
    wanted = by_hand(lines, run.room)
    file = tmp_path / "text.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    for given in (str(file), file, "\n".join(lines)):
        places = list(match(run, given, limit=99))
        assert [(place.unit, place.position) for place in places] == sorted(wanted)
        for place in places:
            at = wanted[place.unit, place.position]
            assert [each.cell for each in place.cells] == [cell for cell, _ in at]
            assert [each.score for each in place.cells] == pytest.approx([score for _, score in at])
            line = lines[place.unit]
            assert place.token == line[place.position]
            assert line[: place.position].endswith("".join(place.before))
            assert place.before
            assert place.further == 0


def test_the_strongest_are_kept_and_the_others_counted(run: keyhole.Run, tmp_path: Path, monkeypatch: Any) -> None:
    """Keys that all fire at the same positions, however few matches are held at once."""
    path = tmp_path / "run"
    other = scanned(tiny("opt"), tmp_path)
    assert other.path == path
    keys = [ends_in(other, cell, "at", side=side) for cell in range(4) for side in (1, -1)]
    patterned.store(other, {1: keys})
    for held in (1, 3, 1 << 22):
        monkeypatch.setattr(matching, "HELD", held)
        places = list(match(other, "a cat sat", limit=3))
        assert [(place.position, place.further) for place in places] == [(4, 5), (8, 5)]
        for place in places:
            assert [(each.cell, each.side) for each in place.cells] == [("L1.0", 1), ("L1.0", -1), ("L1.1", 1)]


def test_a_cell_should_fire_from_its_threshold_on_by_its_first_pattern(tmp_path: Path) -> None:
    run = scanned(tiny("opt"), tmp_path)
    (one,) = ends_in(run, 0, "at").patterns
    (two,) = ends_in(run, 1, "t").patterns
    own = np.float32(1 / (1 + np.exp(np.float32(-bias(1)))))
    for threshold, wanted in ((float(own), {2: 1, 4: 2}), (float(own) + 1e-3, {2: 1}), (0.9, {})):
        patterned.store(run, {0: [key(7, one, two, threshold=threshold)]})
        found = {place.position: place.cells[0].pattern for place in match(run, "cat t")}
        assert found == wanted


def test_a_token_with_weight_can_be_enough(tmp_path: Path) -> None:
    """No pattern matches ‘m’, but its weight, with the bias, passes the threshold; that of ‘x’ does not."""
    run = scanned(tiny("opt"), tmp_path)
    weights = {run.vocabulary.find(letter): weight for letter, weight in (("m", 3.0), ("x", 0.1))}
    ids = sorted(weights)
    evidence = {"bias": -1.0, "more": [{"back": 0, "ids": ids, "weights": [weights[each] for each in ids]}]}
    (only,) = ends_in(run, 0, "at").patterns
    patterned.store(run, {0: [key(7, only, threshold=0.3, evidence=evidence)]})
    found = {place.position: place.cells[0] for place in match(run, "at mx")}
    assert {at: (each.pattern, each.score) for at, each in found.items()} == {
        1: (1, pytest.approx(1 / (1 + np.exp(0.5)))),
        3: (None, pytest.approx(1 / (1 + np.exp(-2.0)))),
    }
    assert found[3].description == "ends in at"
    assert "ends in at (no pattern matches, but the token has weight)" in ask("match", run.path, "at mx")


def test_text_is_read_as_text(run: keyhole.Run) -> None:
    """`<s>` is a special token of the model, and three characters of a text."""
    (place,) = match(run, "<s>at")
    assert (place.position, place.before) == (4, ["<", "s", ">", "a"])
    (half,) = match(run, "at\ud800")
    assert half.position == 1


def test_cells_and_layers_can_be_chosen(run: keyhole.Run) -> None:
    found = match(run, "that hat", cells=["L0.0", "0.1"], limit=9)
    assert {each.cell for place in found for each in place.cells} == {"L0.0", "L0.1"}
    assert len(match(run, "that", cells=["L0"]).keys) == len(PAIRS)
    for cells, says in (
        (["L0.99"], "no cell L0.99"),
        (["L9"], "no layer L9"),
        (["nothing"], "no layer nothing"),
    ):
        with pytest.raises(UsageError, match=says):
            match(run, "that", cells=cells)
    with pytest.raises(RunError, match="No key of the cells L1 has a pattern"):
        match(run, "that", cells=["L1"])


def test_what_cannot_be_matched_is_told(run: keyhole.Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="The text is empty"):
        match(run, " \n")
    with pytest.raises(CorpusError, match="no file"):
        match(run, tmp_path / "absent.txt")
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(CorpusError, match="it has no tokens"):
        match(run, tmp_path / "blank.txt")
    with pytest.raises(UsageError, match="limit"):
        match(run, "that", limit=0)
    bare = scanned(tiny("opt"), tmp_path)
    with pytest.raises(RunError, match="has no patterns yet. Find them: keyhole patterns"):
        match(bare, "that")
    patterned.store(bare, {0: [key(1)]})
    with pytest.raises(RunError, match="No key of .* has a pattern"):
        match(bare, "that")
    for rule in ({}, {"all": [{"if": "weather"}]}, {"all": [{"if": "token"}]}, {"all": 5}):
        patterned.store(bare, {0: [key(1, pattern(0, rule=rule))]})
        with pytest.raises(RunDamaged, match=r"A rule of L0\.1 cannot be run"):
            match(bare, "that")


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command(run: keyhole.Run) -> None:
    shown = ask("match", run.path, "that \x1b hat", "--limit", 1)
    assert "\x1b" not in shown
    assert "0:3  tha[t]" in shown
    assert "0.62  L0.0  ends in at" in shown
    assert "6 of 10 positions have a cell that should fire, by the rules of 7 keys; no model was run." in shown
    none = ask("match", run.path, "xyz")
    assert none.splitlines()[-1] == "No cell should fire, by the rules of 7 keys; no model was run."
    found = json.loads(ask("match", run.path, "aat", "--json", "--cells", "L0.0"))
    assert found == [
        {
            "unit": 0,
            "position": 2,
            "token": "t",
            "cells": [
                {
                    "cell": "L0.0",
                    "side": 1,
                    "score": pytest.approx(1 / (1 + np.exp(-0.5))),
                    "pattern": 1,
                    "description": "ends in at",
                }
            ],
            "further": 0,
        }
    ]


def test_no_model_library_is_loaded(run: keyhole.Run) -> None:
    code = """
import sys
from keyhole.cli import app
try:
    app(["match", sys.argv[1], "that"])
except SystemExit as end:
    assert not end.code
assert not {"torch", "transformers", "triton"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ends in at" in done.stdout
