"""The run that is served, identified by the checksum of its manifest.

A run directory may be replaced, moved or analysed again while its explorer is open. Data of one run must never be shown or
saved as another's. So every request checks the directory before and after its work. A check is two calls of `stat`; the
manifest is read again only if the file changed. Another run is opened only when a page is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..analyses import measured
from ..errors import KeyholeError, RunError
from ..store import layout, manifest, underway
from ..store.run import Run
from . import schema
from .answers import Refused
from .contract import Explorer
from .live import Live, Load, Read

if TYPE_CHECKING:
    from ..models.model import Model

HEADER = "Keyhole-Run"
"""The request header with the checksum of the run for which a page was loaded."""
VERSION = "Keyhole-Analyses"
"""The header of an answer that says which analyses it was made from (`Opened.version`)."""
Stamp = tuple[int, int, int, int] | None


@dataclass(frozen=True)
class Opened:
    """A run, and the objects that answer for it."""

    run: Run
    explorer: Explorer
    live: Live
    manifest: Stamp
    """the version of the manifest it was opened with; None if the file may have changed since"""
    analyses: Stamp
    turn: int
    """how often the run was replaced before this one was opened; new analyses do not count"""

    @property
    def checksum(self) -> str:
        return str(self.run.manifest["checksum"])

    @property
    def version(self) -> str:
        """Another one if there are new analyses."""
        return hashlib.blake2b(f"{self.checksum} {self.analyses}".encode(), digest_size=8).hexdigest()


class Served:
    """The run that is served. Safe to use from many threads."""

    def __init__(
        self,
        run: Run,
        *,
        model: Model | None = None,
        read: Read | None = None,
        load: Load | None = None,
        beside: Run | None = None,
    ) -> None:
        self.path = run.path
        self.beside = beside
        """the run that is shown beside it; opened again if it was replaced or analysed again"""
        self._beside: tuple[Stamp, Stamp] = _stamps(beside)
        """the versions of its manifest and analyses that are open, or that could not be opened"""
        self._manifest, self._analyses = run.path / "manifest.json", layout.analyses_file(run.path)
        self._lock = threading.Lock()
        self._known: tuple[Stamp, str] = (None, "")
        """the manifest that was read last, and its checksum"""
        self._failed: tuple[Stamp, Stamp] | None = None
        """versions of manifest and analyses that could not be opened: later requests do not try again"""
        self._missing: tuple[str, list[str]] = ("", [])
        """the analyses that a version lacks"""
        self._unusable = ""
        """why the run that replaced this one cannot be opened"""
        found, analyses = _stamp(self._manifest), _stamp(self._analyses)
        if self._found(found) != run.manifest["checksum"]:  # replaced since it was opened
            found = None
        live = Live(run, model=model, read=read, load=load)
        self._opened = Opened(run, self._explorer(run), live, found, analyses, turn=0)

    def _explorer(self, run: Run) -> Explorer:
        return Explorer(run, live=True, other=self.beside)

    @property
    def explorer(self) -> Explorer:
        return self._opened.explorer

    @contextlib.contextmanager
    def asked(self, named: str | None) -> Iterator[Opened]:
        """The run for one request. `named` is the checksum of the run that the request names, if it names one. If the run
        changes during the request, the request is refused even if it succeeded: its answer may mix two runs."""
        opened = self.now(named)
        try:
            yield opened
        except Exception:  # the error may come from mixing files of two runs
            self.still(opened)
            raise
        self.still(opened)

    def now(self, named: str | None) -> Opened:
        """The run that is served, if it is the one the request names and still there. It is opened again if there are new analyses."""
        with self._lock:
            found, analyses = self._check(named, "Nothing was saved."), _stamp(self._analyses)
            was = self._opened
            if self.beside is not None and (versions := _stamps(self.beside)) != self._beside:
                self._beside = versions
                was = self._opened = self._with_beside_again(was, self.beside)
            if (found, analyses) not in ((was.manifest, was.analyses), self._failed):
                self._failed = (found, analyses)
                with contextlib.suppress(KeyholeError, OSError):  # the run that is open stays usable
                    run = Run(self.path)
                    if run.manifest["checksum"] == was.checksum:
                        turn = was.turn + (found != was.manifest)
                        self._opened = Opened(run, self._explorer(run), was.live, found, analyses, turn)
            return self._opened

    def coming(self, named: str | None) -> schema.Coming:
        """What is being computed for the run. A request that names no run is never refused: a page asks again and again."""
        try:
            opened = self.now(named)
        except Refused:
            if named is not None:
                raise
            return schema.Coming("", False, [], 0, "", None, [])
        if self._missing[0] != opened.version:
            with contextlib.suppress(KeyholeError, OSError):  # the tables are being replaced: asked again later
                self._missing = (opened.version, measured.missing(opened.run))
        missing, found = self._missing[1], underway.read(self.path)
        if found is None:
            return schema.Coming(opened.version, False, [], 0, "", None, missing)
        return schema.Coming(opened.version, True, list(found.steps), found.done, found.now, found.share, missing)

    def _with_beside_again(self, was: Opened, beside: Run) -> Opened:
        """With the run beside it as it is now. If that is gone or damaged, the one that is open stays."""
        try:
            self.beside = Run(beside.path)
            return replace(was, explorer=self._explorer(was.run))
        except (KeyholeError, OSError):
            self.beside = beside
            return was

    def still(self, opened: Opened) -> None:
        """Refuse a request during which the run was replaced or deleted, even if it is back by now."""
        saved = "It happened during this request: nothing of it counts as saved."
        with self._lock:
            if self._check(opened.checksum, saved) != opened.manifest or self._opened.turn != opened.turn:
                raise self._changed(saved)

    def reopen(self) -> None:
        """Serve the run that is at the path now, if it can be opened."""
        with self._lock:
            found, analyses, was = _stamp(self._manifest), _stamp(self._analyses), self._opened
            if found is None or self._found(found) == was.checksum:
                return
            try:
                run = Run(self.path)
                explorer = self._explorer(run)
            except (KeyholeError, OSError) as error:
                self._unusable = f" It cannot be opened: {error}"
                return
            self._unusable = ""
            self._opened = Opened(run, explorer, was.live.of(run), found, analyses, was.turn + 1)

    def _check(self, named: str | None, saved: str) -> Stamp:
        """The version of the manifest on disk, if it belongs to the run that is served and that the request names."""
        found, was = _stamp(self._manifest), self._opened
        if found is None:
            self._opened = replace(was, manifest=None, turn=was.turn + 1)  # if it comes back, it is opened again
            message = f"There is no run at {self.path} any more: it was moved, deleted, or made unreadable. {saved}"
            raise Refused(410, "run_gone", message)
        if found != was.manifest and self._found(found) != was.checksum:
            self._opened = replace(was, manifest=None, turn=was.turn + 1)
            raise self._changed(saved)
        if named is not None and named != was.checksum:
            message = f"This page shows a run that is no longer served from {self.path}. {saved} Reload the page."
            raise Refused(409, "run_changed", message)
        return found

    def _changed(self, saved: str) -> Refused:
        message = f"The run at {self.path} was replaced by another one. {saved} Reload the page to see what is there."
        return Refused(409, "run_changed", message + self._unusable)

    def _found(self, stamp: Stamp) -> str:
        """The checksum of the run on disk; empty if its manifest cannot be read."""
        if self._known[0] != stamp:
            found = ""
            with contextlib.suppress(RunError, OSError):
                found = str(manifest.read_manifest(self.path)["checksum"])
            self._known = (stamp, found)
        return self._known[1]


def _stamps(run: Run | None) -> tuple[Stamp, Stamp]:
    if run is None:
        return None, None
    return _stamp(run.path / "manifest.json"), _stamp(layout.analyses_file(run.path))


def _stamp(file: Path) -> Stamp:
    """What identifies a version of a file; None if the file is missing."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
