"""What is being computed for a run right now: a note in the run's lock, so that its explorer can say what is still coming.

The process that holds the lock (`layout.locked`) writes which analyses it was asked for and how far it is. Nothing depends on
the note: one that cannot be written or read is left out, and one whose process has ended does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

EVERY = 0.3
"""Seconds between two notes on how far a stage is."""
LARGEST = 64 << 10
"""Bytes of a note that are read."""
FRESH = 120.0
"""Seconds for which a note counts whose process runs on another machine, where it cannot be seen."""

Progress = Callable[[str, int], Callable[[int], None]]
"""Called with the name of a step and its total; the function that it returns is then called with each amount done."""


@dataclass(frozen=True)
class Underway:
    """What a process computes for a run."""

    steps: tuple[str, ...]
    """what it was asked for, in the order in which it is done"""
    done: int
    """how many of them are done"""
    now: str
    """the stage it is in"""
    share: float
    """how much of that stage is done"""


class Note:
    """Writes the note. `file` is the open lock."""

    def __init__(self, file: BinaryIO, steps: Sequence[str]) -> None:
        self._file, self._steps = file, list(steps)
        self._done, self._now, self._share, self._written = 0, "", 0.0, 0.0
        self._write()

    def finished(self) -> None:
        """One more of the steps is done."""
        self._done += 1
        self._write()

    def watching(self, progress: Progress) -> Progress:
        """The same progress, noted as well."""

        def begin(what: str, total: int) -> Callable[[int], None]:
            advance, done = progress(what, total), 0
            self._now, self._share = what, 0.0
            self._write()

            def advanced(amount: int) -> None:
                nonlocal done
                advance(amount)
                done += amount
                self._now, self._share = what, min(1.0, done / max(total, 1))
                if time.monotonic() - self._written > EVERY:
                    self._write()

            return advanced

        return begin

    def _write(self) -> None:
        self._written = time.monotonic()
        note = {
            "pid": os.getpid(),
            "machine": platform.node(),
            "steps": self._steps,
            "done": self._done,
            "now": self._now,
            "share": round(self._share, 3),
        }
        with contextlib.suppress(OSError, ValueError):
            # the file's own number: a copy of the run, lock included, is not being analyzed
            note["file"] = os.fstat(self._file.fileno()).st_ino
            self._file.seek(0)
            self._file.write(json.dumps(note).encode())
            self._file.truncate()
            self._file.flush()


def read(path: Path) -> Underway | None:
    """What is being computed for the run at a path; None if nothing is, or if it cannot be told."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        with open(os.open(path / "lock", os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            about, note = os.fstat(file.fileno()), json.loads(file.read(LARGEST))
        if note["file"] != about.st_ino or not _goes_on(note, about.st_mtime):
            return None
        steps = tuple(str(name)[:60] for name in note["steps"][:100])
        done = min(max(0, int(note["done"])), len(steps))
        return Underway(steps, done, str(note["now"])[:60], min(1.0, max(0.0, float(note["share"]))))
    return None


def _goes_on(note: dict[str, Any], written: float) -> bool:
    """Whether the process that wrote a note is still there."""
    if note["machine"] != platform.node():
        return time.time() - written < FRESH
    try:
        os.kill(int(note["pid"]), 0)
    except PermissionError:
        return True  # it belongs to another user
    except (OSError, OverflowError):
        return False
    return int(note["pid"]) > 0
