"""Annotations: nothing saved is lost, the newest counts, and what they come to is counted by hand."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import explored
import numpy as np
import patterned
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.errors import RunError, UsageError
from keyhole.store import annotations, collections, manifest
from keyhole.store import layout as store


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("annotations")
    text = folder / "a.txt"
    text.write_text("".join(f"The cat number {i} sat.\n" for i in range(9)))
    return keyhole.scan(explored.model(), [text], out=folder / "run", top=6, unit="line", context=64)


@pytest.fixture
def run(scanned: keyhole.Run, tmp_path: Path) -> keyhole.Run:
    """The run, with nothing said of it yet."""
    said = shutil.ignore_patterns("annotations", "notes.jsonl", "marks.jsonl")
    return keyhole.open(shutil.copytree(scanned.path, tmp_path / "run", ignore=said))


def pattern(*triggers: int, kind: str = "shallow", description: str = "ends in cat") -> dict[str, Any]:
    return {"triggers": list(triggers), "description": description, "kind": kind}


def said(run: keyhole.Run, number: int = 0, who: str = "ann", *patterns: Any, **changes: Any) -> dict[str, Any]:
    """An annotation of the number-th cell of layer 1 that has six triggers."""
    cell = int(np.flatnonzero(run.layer(1).units[:, -1] >= 0)[number])
    return {"annotator": who, "layer": 1, "cell": cell, "patterns": list(patterns), "skipped": False} | changes


def test_saved_is_read_back_and_the_newest_counts(run: keyhole.Run) -> None:
    first, second = said(run, 0, "ann", pattern(0, 1, 2)), said(run, 0, "ann", pattern(5, 3, 4, kind="semantic"))
    other = said(run, 1, "bob", skipped=True)
    for one in (first, other, second):
        annotations.save(run, one)
    kept = second | {"patterns": [pattern(3, 4, 5, kind="semantic")]}
    assert [a.to_json() for a in annotations.read_annotations(keyhole.open(run.path))] == [kept, other]
    assert len((run.path / "annotations" / "ann.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"annotator": "../evil"}, {"annotator": ""}, {"annotator": "a/b"}, {"annotator": "a\n"}, {"annotator": "."},
        {"annotator": "é" * 61}, {"annotator": "a" * 200}, {"annotator": 5}, {"annotator": "-x"}, {"layer": 3}, {"layer": True},
        {"layer": "1"}, {"cell": -1}, {"cell": 24}, {"cell": 1.0}, {"patterns": {}}, {"patterns": [1]}, {"skipped": 1},
        {"surplus": 1}, {"patterns": [pattern(0, 1)]}, {"patterns": [pattern(0, 1, 1)]}, {"patterns": [pattern(0, 1, 6)]},
        {"patterns": [pattern(0, 1, -1)]}, {"patterns": [pattern(0, 1, 2, kind="odd")]},
        {"patterns": [pattern(0, 1, 2, description=" ")]}, {"patterns": [pattern(0, 1, 2, description="x" * 2001)]},
        {"patterns": [pattern(0, 1, 2)] * 51}, {"patterns": [pattern(0, 1, 2)], "skipped": True},
        {"patterns": [pattern(0, 1, True)]}, {"patterns": [pattern(0, 1, 2) | {"more": 1}]},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_leaves_nothing(run: keyhole.Run, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        annotations.save(run, said(run) | change)
    assert not (run.path / "annotations").exists()


def test_a_field_that_is_missing_or_no_object_is_told(run: keyhole.Run) -> None:
    whole = said(run)
    for name in ("annotator", "layer", "cell", "patterns"):
        with pytest.raises(UsageError, match=name):
            annotations.parse(run, {key: value for key, value in whole.items() if key != name})
    for value in (None, [], "x", 5):
        with pytest.raises(UsageError, match="JSON object"):
            annotations.parse(run, value)


def test_names_are_one_file_whatever_their_case(run: keyhole.Run) -> None:
    annotations.save(run, said(run, 0, "Ann"))
    annotations.save(run, said(run, 1, "ann"))
    assert [path.name for path in (run.path / "annotations").iterdir()] == ["ann.jsonl"]


def test_a_crash_costs_at_most_what_was_not_saved(run: keyhole.Run) -> None:
    """Cut the file at every byte: what was saved whole before the cut is there, and saving goes on."""
    for number in range(3):
        annotations.save(run, said(run, number, "ann", pattern(0, 1, 2, description="naïve ✓")))
    file = run.path / "annotations" / "ann.jsonl"
    whole = file.read_bytes()
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(0, len(whole), 7):
        file.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)  # a whole line counts without its line end too
        assert len(annotations.read_annotations(run)) == complete
        annotations.save(run, said(run, 4, "ann"))
        assert len(annotations.read_annotations(run)) == complete + 1


@given(st.binary(max_size=300))
def test_any_bytes_can_be_in_the_file(scanned: keyhole.Run, junk: bytes) -> None:
    folder = store.annotations_folder(scanned.path)
    folder.mkdir(exist_ok=True)
    record = json.dumps(said(scanned)).encode()
    (folder / "ann.jsonl").write_bytes(junk + b"\n" + record + b"\n")
    store.notes_file(scanned.path).write_bytes(junk)
    store.marks_file(scanned.path).write_bytes(junk)
    assert len(annotations.read_annotations(scanned)) == 1
    assert collections.read_notes(scanned) == {}


def test_many_save_at_once(run: keyhole.Run) -> None:
    def work(who: str) -> None:
        for number in range(8):
            annotations.save(run, said(run, number % 4, who, pattern(0, 1, 2)))
            collections.save_note(run, {"layer": 0, "cell": number, "text": "x" * 5000})

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ann", "ann", "bob")]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert annotations._read_annotations(run)[1] == 0
    assert len(annotations.read_annotations(run)) == 8
    assert len(collections.read_notes(run)) == 8


def test_what_cannot_be_written_is_told(run: keyhole.Run) -> None:
    (run.path / "annotations").write_text("in the way")
    with pytest.raises(RunError, match="was not saved"):
        annotations.save(run, said(run))


def test_a_run_with_annotations_opens_and_verifies(run: keyhole.Run) -> None:
    annotations.save(run, said(run))
    collections.save_note(run, {"layer": 0, "cell": 0, "text": "odd"})
    manifest.check_files(run.path, keyhole.open(run.path).manifest, contents=True)


def test_notes(run: keyhole.Run) -> None:
    for text in ("first", "second", "  "):
        collections.save_note(run, {"layer": 0, "cell": 2, "text": text})
        assert collections.read_notes(run) == ({} if text == "  " else {"L0.2": text})
    for bad in ({"layer": 0, "cell": 99, "text": "x"}, {"layer": 0, "cell": 0}, {"layer": 0, "cell": 0, "text": 5}):
        with pytest.raises(UsageError):
            collections.save_note(run, bad)
    with pytest.raises(UsageError, match="10,000"):
        collections.save_note(run, {"layer": 0, "cell": 0, "text": "x" * 10_001})


def test_coverage_and_agreement_counted_by_hand(run: keyhole.Run) -> None:
    # six triggers a cell.           triggers: 0        1     2     3         4         5
    # ann, cell 0                              shallow  both  both  semantic  none      none
    # bob, cell 0                              shallow  shal. shal. none      none      none
    # ann, cell 1                              none × 6
    annotations.save(run, said(run, 0, "ann", pattern(0, 1, 2), pattern(1, 2, 3, kind="semantic")))
    annotations.save(run, said(run, 0, "bob", pattern(0, 1, 2)))
    annotations.save(run, said(run, 1, "ann"))
    annotations.save(run, said(run, 2, "cy", skipped=True))
    found = annotations.summary(run)
    assert found["annotators"] == ["ann", "bob", "cy"]
    assert (found["cells"], found["skipped"], found["damaged_lines"]) == (2, 1, 0)
    (row,) = found["coverage"]
    assert row == {
        "layer": 1, "keys": 2, "readings": 3, "triggers": 18, "shallow": 4 / 18, "semantic": 1 / 18, "both": 2 / 18,
        "none": 11 / 18, "patterns_per_key": 1.0,
    }  # fmt: skip
    pairs = {(r["annotator"], r["other"]): r for r in found["agreement"]}
    assert set(pairs) == {("ann", "bob"), ("ann", "cy"), ("bob", "cy")}
    both = pairs["ann", "bob"]
    assert (both["keys"], both["triggers"], both["same_covered"]) == (1, 6, 5 / 6)
    # observed 3/6; chance: shallow 1/6·3/6 + none 2/6·3/6 = 9/36
    assert both["kappa"] == pytest.approx((3 / 6 - 9 / 36) / (1 - 9 / 36))
    assert pairs["ann", "cy"]["kappa"] is None
    assert annotations.kinds(run) == {
        (1, said(run, 0)["cell"]): "both",
        (1, said(run, 1)["cell"]): "none",
    }


def test_rules_are_one_more_annotator_of_the_annotated_cells(run: keyhole.Run) -> None:
    # six triggers a cell.           triggers: 0        1     2     3         4         5
    # ann, cell 0                              shallow  both  both  semantic  none      none
    # rules, cell 0                            none     shal. both  both      semantic  none
    # ann, cell 1                              none × 6;  rules looked at nothing there; ann skipped cell 2
    annotations.save(run, said(run, 0, "ann", pattern(0, 1, 2), pattern(1, 2, 3, kind="semantic")))
    annotations.save(run, said(run, 1, "ann"))
    annotations.save(run, said(run, 2, "ann", skipped=True))
    before = annotations.summary(run)
    cells = [said(run, number)["cell"] for number in range(4)]
    looked = patterned.key(cells[0], patterned.pattern(1, 2, 3), patterned.pattern(2, 3, 4, kind="semantic"), read=6)
    other = patterned.key(cells[0], patterned.pattern(0, 1, 2), side=-1, read=6)
    everything = patterned.pattern(0, 1, 2, 3, 4, 5)
    patterned.store(run, {1: [looked, other, *(patterned.key(cells[at], everything, read=6) for at in (2, 3))]})
    found = annotations.summary(run)
    (row,) = found.pop("agreement")
    assert (row["annotator"], row["other"], row["keys"], row["triggers"]) == ("ann", "rules", 1, 6)
    assert row["same_covered"] == pytest.approx(4 / 6)
    # observed 2/6 (triggers 2 and 5); chance: none 2·2 + shallow 1·1 + semantic 1·1 + both 2·2, of 36
    assert row["kappa"] == pytest.approx((2 / 6 - 10 / 36) / (1 - 10 / 36))
    assert before.pop("agreement") == []
    assert found == before  # people's own numbers are theirs
    printed = CliRunner().invoke(app, ["annotations", str(run.path)]).output
    assert "rules: the patterns that keyhole patterns found" in printed
    assert json.loads(CliRunner().invoke(app, ["annotations", str(run.path), "--json"]).output)["agreement"] == [row]


def test_rules_that_nobody_can_be_compared_with_are_not_listed(run: keyhole.Run) -> None:
    patterned.store(run, {1: [patterned.key(said(run, 3)["cell"], patterned.pattern(0, 1, 2), read=6)]})
    assert annotations.agreement(run) == []
    annotations.save(run, said(run, 0, "ann"))
    assert annotations.agreement(run) == []


def test_nobody_can_take_the_name_of_the_rules(run: keyhole.Run) -> None:
    with pytest.raises(UsageError, match="stands for the patterns"):
        annotations.save(run, said(run, 0, "Rules"))


def test_kappa_where_chance_says_all() -> None:
    assert annotations.kappa([]) is None
    assert annotations.kappa([("none", "none")] * 5) is None
    assert annotations.kappa([("none", "shallow"), ("shallow", "none")]) == -1
    assert annotations.kappa([("none", "none"), ("both", "both")]) == 1


def test_the_command(run: keyhole.Run) -> None:
    empty = CliRunner().invoke(app, ["annotations", str(run.path)])
    assert empty.exit_code == 0
    assert "keyhole serve" in empty.output
    annotations.save(run, said(run, 0, "ann", pattern(0, 1, 2)))
    annotations.save(run, said(run, 0, "bob", pattern(0, 1, 2)))
    with (run.path / "annotations" / "bob.jsonl").open("a") as file:
        file.write('{"annotator": "bo')
    result = CliRunner().invoke(app, ["annotations", str(run.path)])
    assert result.exit_code == 0, result.output
    for text in ("ann, bob", "patterns_per_key", "same_covered", "kappa", "1 line"):
        assert text in result.output
    found = json.loads(CliRunner().invoke(app, ["annotations", str(run.path), "--json"]).output)
    assert found == annotations.summary(run)


def test_the_strongest_25_triggers_are_read_if_more_are_stored(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"The cat number {i} sat.\n" for i in range(40)))
    run = keyhole.scan(explored.model(), [tmp_path / "a.txt"], tmp_path / "run", unit="line", context=64)
    assert run.top == 50
    cell = int(np.flatnonzero(run.layer(1).units[:, 29] >= 0)[0])
    one = {"annotator": "ann", "layer": 1, "cell": cell, "skipped": False}
    annotations.save(run, one | {"patterns": [pattern(0, 1, 24)]})
    with pytest.raises(UsageError, match="numbers from 0 to 24"):
        annotations.save(run, one | {"patterns": [pattern(0, 1, 25)]})
    (row,) = annotations.coverage(run)
    assert (row["triggers"], row["shallow"]) == (25, 3 / 25)
