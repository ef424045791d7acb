"""A run while it is being built: the directory `NAME.partial`, locked by the process that builds it, renamed to `NAME` when it
is whole.

It also holds the plan, the last checkpoint and the results of shards, which is all that a resumed scan needs. Each step is
flushed to disk before the next one relies on it: the plan's files before its summary, every file before the manifest, the
manifest before the rename. A directory is deleted only if everything in it is recognisably part of a run.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy.typing as npt

from ..common import files
from ..errors import RunDamaged, RunExists, UsageError
from . import layout, trust

PLANNED = ("window_offsets", "window_seen_before", "batch_windows", "batch_bounds")
AGAIN = "Start the scan over with --force."
MERGE = "merge"
"""The file that marks an unfinished merge."""


class PlanFiles:
    """The files of a plan, in the directory of an unfinished run. Those in the folder `plan` are deleted when the run is
    finished; the others are part of it."""

    def __init__(self, partial: Path) -> None:
        self.folders = (partial, plan := partial / "plan")
        self.summary, self.identity = plan / "summary.json", plan / "identity.json"
        for name in layout.CORPUS:
            setattr(self, name, partial / f"{name}.npy")
        for name in PLANNED:
            setattr(self, name, plan / f"{name}.npy")

    folders: tuple[Path, ...]
    tokens: Path
    unit_offsets: Path
    unit_documents: Path
    unit_starts: Path
    repeated_tokens: Path
    repeated_counts: Path
    window_offsets: Path
    window_seen_before: Path
    batch_windows: Path
    batch_bounds: Path

    def seal(self, summary: dict[str, Any], identity: dict[str, Any]) -> None:
        """Write what the plan is a plan of, and the summary last: it lists the arrays, which are on disk by now."""
        files.write_json(self.identity, identity)
        listed = {name: files.fingerprint(getattr(self, name)) for name in (*layout.CORPUS, *PLANNED)}
        for folder in self.folders:
            files.sync_folder(folder)
        files.write_json(self.summary, {**summary, "files": listed})

    def read_summary(self, *, contents: bool = True) -> dict[str, Any]:
        """The summary, after every array was compared with what it lists: its size and, with `contents`, its sha256."""
        summary = files.read_json(self.summary, AGAIN)
        listed = summary.pop("files", None)
        if not isinstance(listed, dict) or not all(map(files.is_fingerprint, listed.values())):
            raise RunDamaged(f"{self.summary} is damaged: it lists no files. {AGAIN}")
        for name in (*layout.CORPUS, *PLANNED):
            file: Path = getattr(self, name)
            if name not in listed or layout.problem(file.parent, file.name, [listed[name]], contents):
                raise RunDamaged(
                    f"{file} is not what the plan wrote: a power cut or a fault of the disk damaged it. {AGAIN}"
                )
        return summary

    def read_identity(self) -> dict[str, Any]:
        """What the plan is a plan of: model, corpus and configuration."""
        return files.read_json(self.identity, AGAIN)

    def fingerprint(self) -> str:
        """A hash of the plan and of what it is a plan of. A shard's result holds it, so that it is never merged into another
        scan."""
        read = [files.read_json(file, AGAIN) for file in (self.summary, self.identity)]
        return hashlib.sha256("".join(files.seal(each)["checksum"] for each in read).encode()).hexdigest()


class Partial:
    """The unfinished run of `out`. `kind` says what builds it, a scan or a merge. Only a scan can be resumed."""

    def __init__(self, out: Path, kind: str = "scan") -> None:
        self.out, self.kind = _destination(out), kind
        self.path = self.out.with_name(self.out.name + ".partial")
        self.plan = PlanFiles(self.path)
        self._lock: BinaryIO | None = None

    @property
    def sealed(self) -> bool:
        """Whether only the last step is missing: the manifest is there, so the run is whole."""
        return (self.path / "manifest.json").exists()

    def shard(self, number: int, of: int) -> Path:
        """The file for the result of a shard."""
        return self.path / "plan" / f"{number}-of-{of}.npz"

    def begin(self, *, resume: bool, force: bool, inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Create and lock the directory. If there is one already, it is refused unless `resume` or `force` is given. `inputs`
        are the files that the run is made from, which `force` must not delete."""
        self._check(resume=resume, force=force, inputs=inputs)
        new = not self.path.exists()
        files.make_folder(self.path / "plan")
        self._lock = layout.lock(self.path)
        try:
            self._check(resume=resume, force=force, inputs=inputs)  # another process may have finished meanwhile
            if force and not resume:
                layout.empty(self.path)
                (self.path / "plan").mkdir()
            if self.kind == "merge":
                (self.path / "plan" / MERGE).touch()
        except BaseException:
            if new:
                self.drop()
            self.close()
            raise

    def _check(self, *, resume: bool, force: bool, inputs: Iterable[str | os.PathLike[str]]) -> None:
        if os.path.lexists(self.out) and not force and not (resume and self.path.exists()):
            what = "a run" if (self.out / "manifest.json").exists() else "something"
            advice = ", or replace it with --force" if layout.is_ours(self.out) else ""
            raise RunExists(f"There is {what} at {self.out} already. Choose another directory{advice}.")
        if os.path.lexists(self.path):
            layout.check_ours(self.path)
            if not resume and not force and self._lock is None:
                raise RunExists(unfinished(self.out) or "")
        if force:
            if os.path.lexists(self.out):
                layout.check_ours(self.out)
            for name in inputs:
                for folder in (self.out, self.path):
                    if os.path.exists(name) and Path(os.path.realpath(name)).is_relative_to(os.path.realpath(folder)):
                        raise RunExists(
                            f"{os.fspath(name)} lies inside {folder}, which --force would replace. Choose another directory."
                        )

    def close(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def drop(self) -> None:
        """Remove the unfinished run. The caller holds its lock, so no other process uses it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def save(self, name: str, array: npt.NDArray[Any]) -> None:
        files.write_array(self.path / f"{name}.npy", array)

    def writer(self, name: str, dtype: npt.DTypeLike, row: tuple[int, ...]) -> files.NpyWriter:
        """An array of the run, written row by row."""
        return files.NpyWriter(self.path / f"{name}.npy", dtype, row)

    def save_tokenizer(self, text: str) -> None:
        files.replace_bytes(layout.tokenizer_file(self.path), text.encode())

    def finish(self, manifest: dict[str, Any], log: dict[str, Any], *, sign: bool = True) -> None:
        """List every array in a manifest and put the run in place. `sign` if this user chose the model and the corpus."""
        names = layout.sealed_names(signed=manifest["model"]["signed"], gated=manifest["model"]["gated"])
        sealed = files.seal({**manifest, "files": {name: files.fingerprint(self.path / name) for name in names}})
        files.write_json(self.path / "log.json", log | (trust.signature(sealed["checksum"]) if sign else {}))
        files.sync_folder(self.path)
        files.write_json(self.path / "manifest.json", sealed)
        self.put_in_place()

    def put_in_place(self) -> None:
        """The last step: rename the directory. A resumed scan may have nothing else to do. The locks are held to the end."""
        for entry in (self.path / "plan").glob("*"):
            if entry.name != MERGE:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            if os.path.lexists(self.out):
                stack.enter_context(self._lock_old())
            aside = self.out.with_name(f"{self.out.name}.replaced-{secrets.token_hex(4)}")
            files.put_in_place(self.path, self.out, aside)
            for replaced in self.out.parent.glob(f"{glob.escape(self.out.name)}.replaced-????????"):
                if layout.is_ours(replaced):  # this one, and any that a kill between two renames left
                    shutil.rmtree(replaced, ignore_errors=True)
        shutil.rmtree(self.out / "plan", ignore_errors=True)
        (self.out / "lock").unlink(missing_ok=True)
        files.sync_folder(self.out)
        self.close()

    def _lock_old(self) -> BinaryIO:
        """Lock the run that is replaced: an analysis that writes to it now would end up in the new run."""
        try:
            layout.check_ours(self.out)
            return layout.lock(self.out)
        except RunExists as error:
            again = (
                "merge again with --force"
                if self.kind == "merge"
                else "run the same command with --resume, not --force"
            )
            raise RunExists(f"The new run is finished, and kept in {self.path}. {error} Then {again}.") from None


def unfinished(out: Path) -> str | None:
    """A message that says what to do about the unfinished run of `out`; None if there is none."""
    path = out.with_name(out.name + ".partial")
    if not path.is_dir():
        return None
    if (path / "plan" / MERGE).exists():
        return f"An unfinished merge is at {path}. Merge again with --force."
    return f"An unfinished scan is at {path}. Go on with it (--resume), or start over (--force)."


def _destination(out: Path) -> Path:
    """Where a run is written, with `.` and links resolved, so that the last step is a rename of plain names."""
    with files.disk_errors(out):
        if out.is_symlink() or out.name in ("", ".."):
            out = Path(os.path.realpath(out))
    if not out.name:
        raise UsageError(f"--out {out} is the root of the file system. Name a directory to write.")
    return out
