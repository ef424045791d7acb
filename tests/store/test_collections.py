"""Collections: nothing saved is lost, the newest counts, what does not fit is not imported, and hand-made files are read."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import explored
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.errors import RunError, UsageError
from keyhole.store import collections, layout, lines
from keyhole.store.collections import Marks


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("collections")
    text = folder / "a.txt"
    text.write_text("".join(f"The cat number {i} sat.\n" for i in range(9)))
    return keyhole.scan(explored.model(), [text], out=folder / "run", top=6, unit="line", context=64)


@pytest.fixture
def run(scanned: keyhole.Run, tmp_path: Path) -> keyhole.Run:
    """The run, with nothing marked."""
    said = shutil.ignore_patterns("annotations", "*.jsonl")
    return keyhole.open(shutil.copytree(scanned.path, tmp_path / "run", ignore=said))


def place(run: keyhole.Run, address: str) -> int:
    return run[address].place


def lined(run: keyhole.Run, *records: Any, file: str = "marks.jsonl") -> None:
    (run.path / file).write_text("".join(json.dumps(each) + "\n" for each in records))


def test_a_cell_is_marked_field_by_field_and_the_newest_counts(run: keyhole.Run) -> None:
    cell = run["L1.3"]
    assert (cell.starred, cell.tags, cell.note) == (False, (), "")
    cell.mark(star=True)
    cell.mark(tags=["money", "to check", "money"], note="about <cats>\n")
    run["L0.2"].mark(star=True)
    cell.mark(tags=("money",))
    run["L0.2"].mark(star=False)
    again = keyhole.open(run.path)
    assert collections.read(again) == {place(run, "L1.3"): Marks(True, ("money",), "about <cats>\n")}
    assert (again["L1.3"].starred, again["L1.3"].tags, again["L1.3"].note) == (True, ("money",), "about <cats>\n")
    records = [json.loads(line) for line in (run.path / "marks.jsonl").read_text().splitlines()]
    assert [each["cells"] for each in records] == [
        {"L1.3": {"starred": True}},
        {"L1.3": {"tags": ["money", "to check"], "note": "about <cats>\n"}},
        {"L0.2": {"starred": True}},
        {"L1.3": {"tags": ["money"]}},
        {"L0.2": {"starred": False}},
    ]


def test_lines_made_by_hand_and_notes_of_earlier_versions_are_read(run: keyhole.Run) -> None:
    lined(
        run,
        {"layer": 0, "cell": 1, "text": "old"},
        {"layer": 0, "cell": 2, "text": "kept"},
        {"layer": 0, "cell": 3, "text": "first"},
        {"layer": 0, "cell": 3, "text": " "},
        file="notes.jsonl",
    )
    lined(
        run,
        {"cells": {"0.1": {"note": "new"}, "L1.5": {"tags": ["a", "b"]}}},
        {"cells": {"L1.5": {"starred": True}}},
        {"cells": {"L1.5": {"tags": []}}, "at": "some day"},
    )
    assert collections.read(run) == {
        place(run, "L0.1"): Marks(note="new"),
        place(run, "L0.2"): Marks(note="kept"),
        place(run, "L1.5"): Marks(starred=True),
    }
    assert collections.read_notes(run) == {"L0.1": "new", "L0.2": "kept"}


@pytest.mark.parametrize(
    "bad",
    [
        None, 5, [], {}, {"cells": []}, {"cells": {"L9.1": {"starred": True}}}, {"cells": {"L0.99": {}}}, {"cells": {"": {}}},
        {"cells": {"L0.1": None}}, {"cells": {"L0.1": {"starred": 1}}}, {"cells": {"L0.1": {"tags": "money"}}},
        {"cells": {"L0.1": {"tags": [""]}}}, {"cells": {"L0.1": {"tags": ["a,b"]}}}, {"cells": {"L0.1": {"tags": ["x" * 41]}}},
        {"cells": {"L0.1": {"tags": ["a\n"]}}}, {"cells": {"L0.1": {"tags": ["\u202etsal"]}}}, {"cells": {"L0.1": {"tags": ["starred"]}}},
        {"cells": {"L0.1": {"tags": [str(i) for i in range(21)]}}}, {"cells": {"L0.1": {"note": "x" * 10_001}}},
        {"cells": {"L0.1": {"note": 3}}}, {"cells": {"L0.1": {"stared": True}}}, {"cells": {"L0": {"starred": True}}},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_counted_in_a_file_and_refused_in_an_import(run: keyhole.Run, bad: Any) -> None:
    good = {"cells": {"L0.3": {"starred": True}}}
    lined(run, good, bad, good)
    assert collections.read_counting(run) == ({3: Marks(starred=True)}, 1)
    (run.path / "marks.jsonl").unlink()
    value = (
        {"cells": good["cells"] | bad["cells"]} if isinstance(bad, dict) and isinstance(bad.get("cells"), dict) else bad
    )
    with pytest.raises(UsageError):
        collections.merge(run, value)
    assert not (run.path / "marks.jsonl").exists()


def test_an_export_is_what_an_import_takes(run: keyhole.Run, tmp_path: Path) -> None:
    run["L1.3"].mark(star=True, tags=["money", "été"], note="about\ncats ✓")
    run["L0.0"].mark(tags=["money"])
    value = json.loads(json.dumps(collections.export(run)))
    assert list(value["cells"]) == ["L0.0", "L1.3"]
    assert value["cells"]["L1.3"] == {"starred": True, "tags": ["money", "été"], "note": "about\ncats ✓"}
    other = keyhole.open(shutil.copytree(run.path, tmp_path / "other", ignore=shutil.ignore_patterns("marks.jsonl")))
    assert collections.merge(other, value) == collections.Merged(2, 2)
    assert collections.read(other) == collections.read(run)
    assert collections.export(other) == value


def test_an_import_adds_and_a_second_changes_nothing(run: keyhole.Run) -> None:
    run["L0.1"].mark(star=True, tags=["b"], note="mine")
    run["L0.2"].mark(star=True, note="mine, which says theirs")
    value = {
        "cells": {
            "L0.1": {"starred": False, "tags": ["a", "b"], "note": "theirs"},
            "L0.2": {"note": "theirs"},
            "L0.3": {"tags": ["a"]},
        }
    }
    after = {
        1: Marks(True, ("b", "a"), "mine\n\ntheirs"),
        2: Marks(True, (), "mine, which says theirs\n\ntheirs"),  # to contain a note's words is not to have said it
        3: Marks(tags=("a",)),
    }
    assert collections.merge(run, value) == collections.Merged(3, 3)
    assert collections.read(run) == after
    size = (run.path / "marks.jsonl").stat().st_size
    assert collections.merge(run, value) == collections.Merged(3, 0)
    assert (run.path / "marks.jsonl").stat().st_size == size


def test_another_models_collection_is_refused_and_its_addresses_named(run: keyhole.Run) -> None:
    run["L0.1"].mark(star=True)
    value = collections.export(run)
    with pytest.raises(UsageError, match=r"another model.*Nothing was imported"):
        collections.merge(run, value | {"model": value["model"] | {"fingerprint": "0" * 64}})
    with pytest.raises(UsageError, match=r"2 of 3 cells do not fit.*L7\.1.*L0\.999"):
        collections.merge(run, {"cells": {"L7.1": {}, "L0.2": {"starred": True}, "L0.999": {}}})
    full = {"cells": {"L0.1": {"tags": [str(i) for i in range(15)]}}}
    assert collections.merge(run, full).changed == 1
    with pytest.raises(UsageError, match=r"L0\.1 with what it has already: 30 tags"):
        collections.merge(run, {"cells": {"L0.1": {"tags": [f"x{i}" for i in range(15)]}, "L0.2": {"starred": True}}})
    assert list(collections.read(run)) == [1]


def test_only_so_many_cells_are_marked(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections, "MARKED", 2)
    for cell in (0, 1):
        run.cell(0, cell).mark(star=True)
    with pytest.raises(UsageError, match="3 marked cells are too many"):
        run.cell(0, 2).mark(star=True)
    with pytest.raises(UsageError, match="3 marked cells are too many"):
        collections.merge(run, {"cells": {"L0.2": {"starred": True}}})
    monkeypatch.setattr(collections, "MARKED", 1)
    run.cell(0, 0).mark(note="still possible")
    run.cell(0, 0).mark(star=False, note="")
    assert list(collections.read(run)) == [1]


def test_collections_by_name(run: keyhole.Run) -> None:
    run["L0.5"].mark(tags=["money"])
    run["L1.3"].mark(star=True, tags=["Zoo", "money"])
    run["L1.4"].mark(note="odd")
    five, three, four = (place(run, each) for each in ("L0.5", "L1.3", "L1.4"))
    assert collections.tags(run) == {"money": 2, "Zoo": 1}
    assert collections.places(run, "money") == [five, three]
    assert collections.places(run, " Zoo".strip()) == [three]
    assert collections.places(run, "starred") == [three]
    assert collections.places(run, "all") == [five, three, four]
    with pytest.raises(UsageError, match="tag 'moneys'. The collections are: starred, all, money, Zoo"):
        collections.places(run, "moneys")


# Commands


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(done.exception, UsageError):
        return 2, str(done.exception)
    return done.exit_code, done.stdout


def test_the_command_lists_exports_and_imports(run: keyhole.Run, tmp_path: Path) -> None:
    assert "is marked yet" in command("collections", run.path)[1]
    run["L0.5"].mark(tags=["money"], note="odd\nline")
    run["L1.3"].mark(star=True)
    lined_up = [line.split() for line in command("collections", run.path)[1].splitlines()]
    assert lined_up == [["cell", "star", "tags", "note"], ["L0.5", "money", "odd⏎line"], ["L1.3", "★"]]
    assert "L0.5" not in command("collections", run.path, "starred")[1]
    assert "odd⏎line" in command("annotations", run.path)[1]
    assert command("show", run.path, "L0.5")[1].splitlines()[1:3] == ["money", "odd⏎line"]
    assert command("show", run.path, "L1.3")[1].splitlines()[1] == "★"
    assert json.loads(command("annotations", run.path, "--json")[1])["notes"] == {"L0.5": "odd\nline"}
    file = tmp_path / "file.json"
    file.write_text(command("collections", run.path, "--json")[1])
    assert json.loads(file.read_text()) == collections.export(run)
    assert list(json.loads(command("collections", run.path, "money", "--json")[1])["cells"]) == ["L0.5"]
    other = shutil.copytree(run.path, tmp_path / "other", ignore=shutil.ignore_patterns("marks.jsonl"))
    assert command("collections", other, "--import", file)[1].endswith("2 cells, 2 of them new or changed.\n")
    assert collections.read(keyhole.open(other)) == collections.read(run)
    file.write_text('{"cells": {"L9.9": {}}}')
    assert "L9.9" in command("collections", other, "--import", file)[1]
    file.write_text("{")
    assert "cannot be read as a collection" in command("collections", other, "--import", file)[1]
    assert "cannot be read as a collection" in command("collections", other, "--import", tmp_path / "none")[1]
    with (run.path / "marks.jsonl").open("a") as lost:
        lost.write("{half a li")
    assert "1 line could not be read" in command("collections", run.path)[1]


# Crashes, links, others


def test_a_crash_costs_at_most_the_line_that_was_being_written(run: keyhole.Run) -> None:
    """Cut the file at every byte: each whole line counts, an import is there completely or not at all, and saving goes on."""
    run["L0.1"].mark(star=True, note="naïve ✓")
    collections.merge(run, {"cells": {f"L1.{i}": {"tags": ["all of it", "✓"]} for i in range(4)}})
    run["L0.1"].mark(star=False)
    file = run.path / "marks.jsonl"
    whole = file.read_bytes()
    first, second, third = (i for i, byte in enumerate(whole) if byte == ord("\n"))
    for cut in range(0, len(whole), 5):
        file.write_bytes(whole[:cut])
        found, damaged = collections.read_counting(run)
        assert (1 in found) == (cut >= first)
        assert len(found.keys() - {1}) == (4 if cut >= second else 0)
        assert cut < third or not found[1].starred
        assert damaged == (cut not in (0, first, first + 1, second, second + 1, third, third + 1))
        run["L0.7"].mark(star=True)
        assert collections.read(run) == {**found, 7: Marks(starred=True)}


@given(st.binary(max_size=300))
def test_any_bytes_can_be_in_the_files(scanned: keyhole.Run, junk: bytes) -> None:
    record = json.dumps({"cells": {"L0.3": {"starred": True}}}).encode()
    layout.marks_file(scanned.path).write_bytes(junk + b"\n" + record + b"\n")
    layout.notes_file(scanned.path).write_bytes(junk)
    assert collections.read(scanned)[3].starred


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["cells", "L0.1", "L0.2", "tags", "starred", "note", "model", "keyhole"]) | st.text(max_size=4), x, max_size=3), max_leaves=9))  # fmt: skip
def test_any_json_is_imported_or_refused(scanned: keyhole.Run, value: Any) -> None:
    layout.marks_file(scanned.path).unlink(missing_ok=True)
    layout.notes_file(scanned.path).unlink(missing_ok=True)
    try:
        done = collections.merge(scanned, value)
    except UsageError:
        assert not layout.marks_file(scanned.path).exists()
    else:
        assert done.cells == len(value["cells"]) or done.changed <= done.cells
        assert collections.read_counting(scanned)[1] == 0


def test_many_save_at_once(run: keyhole.Run) -> None:
    def work(turn: int) -> None:
        for cell in range(8):
            collections.save(run, cell, {"starred": True} if turn else {"tags": ["x"] * 3, "note": "y" * 5000})
        collections.merge(run, {"cells": {f"L1.{turn}": {"starred": True}}})

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found, damaged = collections.read_counting(run)
    assert damaged == 0
    assert [found[cell] for cell in range(8)] == [Marks(True, ("x",), "y" * 5000)] * 8
    assert len(found) == 8 + 3


def refused(run: keyhole.Run, match: str, spoil: Callable[[], object]) -> None:
    run["L0.1"].mark(star=True)
    before = collections.read(run)
    spoil()
    with pytest.raises(RunError, match=match):
        run["L0.2"].mark(star=True)
    with pytest.raises(RunError, match=match):
        collections.merge(run, {"cells": {"L0.2": {"starred": True}}})
    assert collections.read(run).keys() <= before.keys()


def test_links_are_neither_read_nor_written(run: keyhole.Run, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"

    def link() -> None:
        (run.path / "marks.jsonl").rename(elsewhere)
        (run.path / "marks.jsonl").symlink_to(elsewhere)

    refused(run, "not saved", link)
    assert collections.read(run) == {}
    assert len(elsewhere.read_text().splitlines()) == 1


def test_another_run_in_its_place_gets_nothing(run: keyhole.Run) -> None:
    def replace() -> None:
        file = run.path / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"checksum": "0" * 64}))

    refused(run, "Another run is at", replace)


def test_a_full_disk_is_told_and_loses_nothing(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill() -> None:
        def sync(file: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(lines.files, "sync", sync)

    run["L0.1"].mark(star=True)
    fill()
    with pytest.raises(RunError, match=r"No space left.*not saved"):
        run["L0.2"].mark(star=True)
    monkeypatch.undo()
    assert collections.read(run)[1] == Marks(starred=True)
