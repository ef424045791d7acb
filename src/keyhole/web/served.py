"""What is served now: one run, known by the checksum of its manifest, and what was opened of it.

A run directory may be replaced, moved or analysed again while its explorer is open. What belongs to one run must never be
shown or saved as another's, so every request looks at the directory, before and after its work: two calls of `stat`, and the
manifest is read again only if it is another file. Another run is opened when a page is loaded, never in between.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import store
from ..errors import KeyholeError, RunError
from ..run import Run
from .answers import Refused
from .contract import Explorer
from .live import Live, Read

if TYPE_CHECKING:
    from ..models import Model

HEADER = "Keyhole-Run"
"""The request header that names the run a page was loaded for: its checksum."""
Stamp = tuple[int, int, int, int] | None


@dataclass(frozen=True)
class Opened:
    """A run, with what its answers are made from."""

    run: Run
    explorer: Explorer
    live: Live

    @property
    def checksum(self) -> str:
        return str(self.run.manifest["checksum"])


class Served:
    """The run that is served. Safe to be asked by many threads."""

    def __init__(self, run: Run, *, model: Model | None = None, read: Read | None = None) -> None:
        self.path = run.path
        self._file = run.path / "manifest.json"
        self._lock = threading.Lock()
        self._analyses = _stamp(store.analyses_file(self.path))
        self._manifest = _stamp(self._file)
        self._opened = Opened(run, Explorer(run, live=True), Live(run, model=model, read=read))
        self._unusable = ""
        """why the run that took this one's place cannot be opened"""
        self._known: tuple[Stamp, str] = (None, "")
        """the manifest that was read last, and what it says"""
        if self._found(self._manifest) != self._opened.checksum:  # replaced since it was opened
            self._manifest = None

    @property
    def explorer(self) -> Explorer:
        return self._opened.explorer

    @contextlib.contextmanager
    def asked(self, named: str | None) -> Iterator[Opened]:
        """The run for one request; `named` is the checksum of the run it is meant for, if it says so. A request whose run
        changes meanwhile is refused, whatever it came to: its answer may be of two runs."""
        opened = self.now(named)
        try:
            yield opened
        except Exception:  # files of two runs do not fit together: anything may have failed
            self.still(opened)
            raise
        self.still(opened)

    def now(self, named: str | None) -> Opened:
        """What is served, if the request means it and it is still there; opened again if there are new analyses."""
        with self._lock:
            self._refuse_changed(named, "Nothing was saved.")
            stamp, analyses = _stamp(self._file), _stamp(store.analyses_file(self.path))
            if (stamp, analyses) != (self._manifest, self._analyses):
                with contextlib.suppress(KeyholeError, OSError):  # what was open is of the same run: it goes on
                    run = Run(self.path)
                    if run.manifest["checksum"] == self._opened.checksum:
                        self._opened = Opened(run, Explorer(run, live=True), self._opened.live)
                        self._manifest, self._analyses = stamp, analyses
            return self._opened

    def still(self, opened: Opened) -> None:
        """Refuse a request during which the run was replaced or went away."""
        with self._lock:
            self._refuse_changed(opened.checksum, "It happened during this request: nothing of it counts as saved.")

    def reopen(self) -> None:
        """Serve the run that is at the path now, if it can be opened."""
        with self._lock:
            stamp, analyses = _stamp(self._file), _stamp(store.analyses_file(self.path))
            if stamp is None or self._found(stamp) == self._opened.checksum:
                return
            try:
                run = Run(self.path)
                explorer = Explorer(run, live=True)
            except (KeyholeError, OSError) as error:
                self._unusable = f" It cannot be opened: {error}"
                return
            self._unusable = ""
            self._opened = Opened(run, explorer, self._opened.live.of(run))
            self._manifest, self._analyses = stamp, analyses

    def _refuse_changed(self, named: str | None, saved: str) -> None:
        stamp = _stamp(self._file)
        if stamp is None:
            self._manifest = None  # what comes back is opened anew
            raise Refused(
                410,
                "run_gone",
                f"There is no run at {self.path} any more: it was moved, deleted, or made unreadable. {saved}",
            )
        here = self._opened.checksum
        if stamp != self._manifest and self._found(stamp) != here:
            self._manifest = None
            message = (
                f"The run at {self.path} was replaced by another one. {saved} Reload the page to see what is there."
            )
            raise Refused(409, "run_changed", message + self._unusable)
        if named is not None and named != here:
            message = f"This page shows a run that is no longer served from {self.path}. {saved} Reload the page."
            raise Refused(409, "run_changed", message)

    def _found(self, stamp: Stamp) -> str:
        """The checksum of the run that is there; nothing if its manifest cannot be read."""
        if stamp is None or self._known[0] != stamp:
            found = ""
            with contextlib.suppress(RunError, OSError):
                found = str(store.read_manifest(self.path)["checksum"])
            self._known = (stamp, found)
        return self._known[1]


def _stamp(file: Path) -> Stamp:
    """What tells a file from the one that takes its place; None if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
