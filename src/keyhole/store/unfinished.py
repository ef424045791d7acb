"""A run being built: `NAME.partial`, locked by the process that builds it, renamed to `NAME` when it is whole.

It also holds the plan and the last checkpoint, which is all a resumed scan needs. Each step is flushed to disk before the
next one relies on it: the plan's files before its summary, every file before the manifest, the manifest before the name.
Nothing is deleted that is not recognisably a run, or the beginning of one.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..common import files
from ..errors import RunDamaged, RunExists, UsageError
from . import layout as store
from . import trust

PLANNED = ("window_offsets", "window_old", "batch_windows", "batch_bounds")
AGAIN = "Start the scan over with --force."
MERGE = "merge"
"""The file that marks an unfinished merge."""


class PlanFiles:
    """Where a plan is kept. Files that the finished run also needs are in its directory; the others are deleted at the end."""

    def __init__(self, partial: Path) -> None:
        self.folders = (partial, plan := partial / "plan")
        self.summary = plan / "summary.json"
        for name in store.CORPUS:
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
    window_old: Path
    batch_windows: Path
    batch_bounds: Path

    def seal(self, summary: dict[str, Any]) -> None:
        """Write the summary, last of all: it lists the arrays, which are on disk by now."""
        listed = {name: files.fingerprint(getattr(self, name)) for name in (*store.CORPUS, *PLANNED)}
        for folder in self.folders:
            files.sync_folder(folder)
        files.write_json(self.summary, {**summary, "files": listed})

    def read(self) -> dict[str, Any]:
        """The summary, after every array was compared with what it lists."""
        summary = files.read_json(self.summary, AGAIN)
        listed = summary.pop("files", None)
        if not isinstance(listed, dict):
            raise RunDamaged(f"{self.summary} is damaged: it lists no files. {AGAIN}")
        for name in (*store.CORPUS, *PLANNED):
            file: Path = getattr(self, name)
            if not file.is_file() or files.fingerprint(file) != listed.get(name):
                raise RunDamaged(
                    f"{file} is not what the plan wrote: a power cut or a fault of the disk damaged it. {AGAIN}"
                )
        return summary


class Partial:
    """The unfinished run of `out`. `kind` is what builds it, a scan or a merge; only a scan can be resumed."""

    def __init__(self, out: Path, kind: str = "scan") -> None:
        self.out, self.kind = _destination(out), kind
        self.path = self.out.with_name(self.out.name + ".partial")
        self.plan = PlanFiles(self.path)
        self._lock: BinaryIO | None = None

    @property
    def identity(self) -> Path:
        return self.path / "plan" / "identity.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "plan" / "checkpoint.npz"

    @property
    def sealed(self) -> bool:
        """Whether all but the last step is done: the manifest is there, so the run is whole."""
        return (self.path / "manifest.json").exists()

    def shard(self, number: int, of: int) -> Path:
        """Where one of several processes builds its part."""
        return self.path / "plan" / f"{number}-of-{of}"

    def shards(self) -> list[tuple[int, int]]:
        """The parts that are there, finished or not."""
        names = [re.fullmatch(r"([0-9]+)-of-([0-9]+)(\.partial)?", path.name) for path in self.path.glob("plan/*-of-*")]
        return [(int(name[1]), int(name[2])) for name in names if name]

    def begin(self, *, resume: bool, force: bool, inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Take the directory. What is there is refused unless `resume` or `force` is given. `inputs` are the files that the
        run is made from."""
        self._check(resume=resume, force=force, inputs=inputs)
        new = not self.path.exists()
        files.make_folder(self.path / "plan")
        self._lock = store.lock(self.path)
        try:
            self._check(resume=resume, force=force, inputs=inputs)  # another process may have finished meanwhile
            if force and not resume:
                store.empty(self.path)
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
            advice = ", or replace it with --force" if store.is_ours(self.out) else ""
            raise RunExists(f"There is {what} at {self.out} already. Choose another directory{advice}.")
        if os.path.lexists(self.path):
            store.check_ours(self.path)
            if not resume and not force and self._lock is None:
                raise RunExists(unfinished(self.out) or "")
        if force:
            if os.path.lexists(self.out):
                store.check_ours(self.out)
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
        """Remove the unfinished run; the lock is held, so it is this process's own."""
        shutil.rmtree(self.path, ignore_errors=True)

    def save(self, name: str, array: npt.NDArray[Any]) -> None:
        files.write_array(self.path / f"{name}.npy", array)

    def writer(self, name: str, dtype: npt.DTypeLike, row: tuple[int, ...]) -> files.NpyWriter:
        """An array of the run, written row by row."""
        return files.NpyWriter(self.path / f"{name}.npy", dtype, row)

    def save_tokenizer(self, text: str) -> None:
        files.replace_bytes(store.tokenizer_file(self.path), text.encode())

    def finish(self, manifest: dict[str, Any], log: dict[str, Any], *, sign: bool = True) -> None:
        """Seal every array with a manifest and put the run in place. `sign`: this user chose the model and the corpus."""
        names = store.sealed_names(bool(manifest["model"]["signed"]))
        sealed = files.seal({**manifest, "files": {name: files.fingerprint(self.path / name) for name in names}})
        files.write_json(self.path / "log.json", log | (trust.signature(sealed["checksum"]) if sign else {}))
        files.sync_folder(self.path)
        files.write_json(self.path / "manifest.json", sealed)
        self.put_in_place()

    def put_in_place(self) -> None:
        """The last step, which a resumed scan may have to take. The locks are held to its end."""
        for entry in (self.path / "plan").glob("*"):
            if entry.name != MERGE:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
        with contextlib.ExitStack() as stack:
            if os.path.lexists(self.out):
                stack.enter_context(self._lock_old())
                old = self.out.with_name(f"{self.out.name}.replaced-{secrets.token_hex(4)}")
                if files.swap(self.path, self.out):  # readers find a run at every moment
                    self.path.rename(old)
                else:
                    self.out.rename(old)
                    try:
                        self.path.rename(self.out)
                    except BaseException:
                        old.rename(self.out)
                        raise
            else:
                self.path.rename(self.out)
            files.sync_folder(self.out.parent)
            for replaced in self.out.parent.glob(f"{glob.escape(self.out.name)}.replaced-????????"):
                if store.is_ours(replaced):  # also what a kill between the two renames left
                    shutil.rmtree(replaced, ignore_errors=True)
        shutil.rmtree(self.out / "plan", ignore_errors=True)
        (self.out / "lock").unlink(missing_ok=True)
        files.sync_folder(self.out)
        self.close()

    def _lock_old(self) -> BinaryIO:
        """Hold the run that is replaced: an analysis that is being written would land in the new one."""
        try:
            store.check_ours(self.out)
            return store.lock(self.out)
        except RunExists as error:
            again = (
                "merge again with --force"
                if self.kind == "merge"
                else "run the same command with --resume, not --force"
            )
            raise RunExists(f"The new run is finished, and kept in {self.path}. {error} Then {again}.") from None


def unfinished(out: Path) -> str | None:
    """What to do about the unfinished run of `out`; None if there is none."""
    path = out.with_name(out.name + ".partial")
    if not path.is_dir():
        return None
    if (path / "plan" / MERGE).exists():
        return f"An unfinished merge is at {path}. Merge again with --force."
    return f"An unfinished scan is at {path}. Go on with it (--resume), or start over (--force)."


def _destination(out: Path) -> Path:
    """Where a run really goes: `.` and links resolved, so that the last step is a rename of plain names."""
    with files.disk_errors(out):
        if out.is_symlink() or out.name in ("", ".."):
            out = Path(os.path.realpath(out))
    if not out.name:
        raise UsageError(f"--out {out} is the root of the file system. Name a directory to write.")
    return out


# Checkpoints


def write_checkpoint(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Arrays as an .npz file, with its sha256 after its end."""
    named: dict[str, Any] = dict(arrays)

    def write(file: BinaryIO) -> None:
        np.savez(file, **named)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        file.seek(0, os.SEEK_END)
        file.write(digest)

    files.replace_file(path, write)


def read_checkpoint(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as file:
            file.seek(-32, os.SEEK_END)
            size, told = file.tell(), file.read()
            file.seek(0)
            digest = hashlib.sha256()
            while size and (part := file.read(min(size, 1 << 20))):
                digest.update(part)
                size -= len(part)
            if digest.digest() != told:
                raise ValueError("its checksum does not match")
            file.seek(0)
            with np.load(file, allow_pickle=False) as saved:
                return {name: saved[name] for name in saved.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RunDamaged(f"The checkpoint {path} cannot be read ({error}). {AGAIN}") from None
