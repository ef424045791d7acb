"""The note in a run's lock, which says what is being computed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keyhole.store import layout, underway
from keyhole.store.underway import Note, Underway


def silent(what: str, total: int) -> Any:
    return lambda done: None


def test_it_says_how_far_the_work_is(tmp_path: Path) -> None:
    assert underway.read(tmp_path) is None
    with layout.locked(tmp_path) as held:
        assert underway.read(tmp_path) is None, "a lock without a note says nothing"
        note = Note(held, ["agreement", "rank"])
        assert underway.read(tmp_path) == Underway(("agreement", "rank"), 0, "", 0.0)
        progress = note.watching(silent)
        advance = progress("values, lens norm", 8)
        note._written = 0.0
        advance(2)
        assert underway.read(tmp_path) == Underway(("agreement", "rank"), 0, "values, lens norm", 0.25)
        note.finished()
        assert underway.read(tmp_path) == Underway(("agreement", "rank"), 1, "values, lens norm", 0.25)
        progress("x", 1)  # a shorter note replaces the whole of a longer one
        assert underway.read(tmp_path) == Underway(("agreement", "rank"), 1, "x", 0.0)
    assert underway.read(tmp_path) is None


def test_the_progress_that_was_asked_for_is_told_too(tmp_path: Path) -> None:
    told: list[Any] = []

    def progress(what: str, total: int) -> Any:
        told.append((what, total))
        return told.append

    with layout.locked(tmp_path) as held:
        advance = Note(held, []).watching(progress)("a", 3)
        advance(1)
        advance(2)
    assert told == [("a", 3), 1, 2]


def test_work_that_ended_or_goes_on_elsewhere(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with layout.locked(tmp_path) as held:
        Note(held, ["rank"])
        lock = tmp_path / "lock"
        note = json.loads(lock.read_text())
        copy = Path(shutil.copytree(tmp_path, tmp_path.with_name("copy")))
        assert underway.read(copy) is None, "a copy of the run is not being analyzed"

        def changed(**values: Any) -> Underway | None:
            lock.write_text(json.dumps(note | values))
            return underway.read(tmp_path)

        assert changed() is not None
        assert changed(pid=int(gone.stdout)) is None
        assert changed(machine="elsewhere", pid=int(gone.stdout)) is not None, "its process cannot be seen from here"
        os.utime(lock, (1, 1))
        assert underway.read(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", '{"pid": -1}', '{"pid": 1e999}', "[" * 100_000],
)
def test_a_note_that_cannot_be_read_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert underway.read(tmp_path) is None


@pytest.mark.parametrize("change", [{"steps": 3}, {"done": "x"}, {"pid": 0}, {"pid": 10**30}, {"share": None}])
def test_values_that_no_note_has(tmp_path: Path, change: dict[str, Any]) -> None:
    with layout.locked(tmp_path) as held:
        Note(held, ["rank"])
        lock = tmp_path / "lock"
        lock.write_text(json.dumps(json.loads(lock.read_text()) | change))
        assert underway.read(tmp_path) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    assert underway.read(tmp_path) is None
