"""The run directory. This is the only module that knows its file names.

    manifest.json               what was scanned, how, with what; size and sha256 of every other file
    log.json                    when, how long: what two runs of the same scan do not share
    tokenizer.json              to read the tokens back
    tokens.npy                  the corpus, once; unit_offsets, unit_documents, unit_starts say where each unit stands
    repeated_tokens.npy         prefixes that occur more than once (token index of the first), repeated_counts: how often
    coefficients.npy            [layers, cells, top] with units.npy and positions.npy; *_negative for the other side
    active.npy sums.npy extremes.npy    what the statistics are made of

What the analyses add, after the scan, each file written whole or not at all:

    tables.duckdb               what they found
    values_LENS.json            what a lens was set to; written last, so where it is the arrays beside it are whole
    values_LENS_*.npy           what every value says: tokens and logits at both ends, max_prob, entropy, and the index by token
    values_norms.npy similar_cells.npy similar_cosines.npy      of the values themselves
    shading.json                how the triggers were shaded; written last, as above
    shading.npy                 a byte for each token shown with a trigger, cell after cell from where shading_offsets says
    histograms.npy              [layers, cells, bins] of coefficients over a sample of the corpus
    report/index.html           the report

What people add, a line a save:

    annotations/NAME.jsonl      the patterns an annotator found
    notes.jsonl                 notes on cells

A run is built in `NAME.partial` and renamed into place when it is whole, so a directory called NAME is a finished run.
`NAME.partial` also holds the plan and the last checkpoint, which is all a resumed scan needs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from .errors import DiskFull, RunDamaged, RunError, RunExists, SchemaTooNew

SCHEMA = 1
Array = npt.NDArray[Any]

CORPUS = ("tokens", "unit_offsets", "unit_documents", "unit_starts", "repeated_tokens", "repeated_counts")
STATISTICS = ("active", "sums", "extremes")
SIDES = ("", "_negative")
TRIGGERS = ("coefficients", "units", "positions")
SHADING = ("shading", "shading_offsets", "histograms")
CHECK_ON_OPEN = 256 << 20
"""Runs up to this many bytes are checked against their checksums whenever they are opened; larger ones by `verify`."""


class PlanFiles:
    """Where a plan is kept. What the finished run needs too lies in its directory; the rest goes when it is done."""

    def __init__(self, partial: Path) -> None:
        plan = partial / "plan"
        self.summary = plan / "summary.json"
        for name in CORPUS:
            setattr(self, name, partial / f"{name}.npy")
        for name in ("window_offsets", "window_old", "batch_windows", "batch_bounds"):
            setattr(self, name, plan / f"{name}.npy")

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


class NpyWriter:
    """A .npy file that grows along its first axis: its header is written again, with the length, at the end."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row: tuple[int, ...] = ()) -> None:
        self.dtype, self.row, self.length = np.dtype(dtype), row, 0
        self.file = path.open("wb")
        self._header()

    def _header(self) -> None:
        # numpy pads this header so that a longer shape still fits in the same bytes
        np.lib.format.write_array_header_1_0(
            self.file,
            {
                "descr": np.lib.format.dtype_to_descr(self.dtype),
                "fortran_order": False,
                "shape": (self.length, *self.row),
            },
        )

    def append(self, values: Array) -> None:
        self.file.write(np.ascontiguousarray(values, self.dtype).data)  # numpy's own `tofile` misses some full disks
        self.length += len(values)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.file:
            if kind is None:
                self.file.seek(0)
                self._header()


def new_memmap(path: Path, dtype: npt.DTypeLike, length: int) -> np.memmap[Any, np.dtype[Any]]:
    """A zeroed array on disk to be changed in place. Its room is taken now: a full disk is an error, not a crash later."""
    array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (length,))
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def write_json(path: Path, value: Any) -> None:
    """Written whole or not at all."""
    replace_file(path, lambda file: file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()))


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
        assert isinstance(value, dict)
    except (OSError, ValueError, AssertionError) as error:
        raise RunDamaged(f"{path} cannot be read ({error}). Start the scan over with --force.") from None
    return value


def replace_file(path: Path, write: Any) -> None:
    """Write beside, flush to disk, rename: a kill leaves the old file or the new one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        write(file)
        sync(file)
    beside.replace(path)


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def disk_errors(what: Path) -> Iterator[None]:
    """Turn the operating system's refusals into ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(what if what.exists() else what.parent).free
            raise DiskFull(
                f"The disk is full: writing {what} failed with {free / 1e6:,.0f} MB free. Make room and run the same command "
                "with --resume; what is done is kept."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise RunError(
                f"{error.filename or what} cannot be written: {error.strerror}. Choose another --out."
            ) from error
        raise


# Beside the runs


def cache_dir() -> Path:
    """Where what can be made again is kept, converted models and the charts' script: $KEYHOLE_CACHE, or a folder in the user's cache."""
    if chosen := os.environ.get("KEYHOLE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keyhole"


# Building a run


class Partial:
    """A run being built: `out`.partial, locked while it is open."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".partial")
        self.plan = PlanFiles(self.path)
        self._lock: BinaryIO | None = None

    @property
    def identity(self) -> Path:
        return self.path / "plan" / "identity.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "plan" / "checkpoint.npz"

    def shard(self, number: int, of: int) -> Path:
        """Where one of several processes builds its part."""
        return self.path / "plan" / f"{number}-of-{of}"

    def shards(self) -> list[tuple[int, int]]:
        """The parts that are there, finished or not."""
        names = [path.name.removesuffix(".partial").split("-of-") for path in self.path.glob("plan/*-of-*")]
        return [(int(number), int(of)) for number, of in names]

    def begin(self, *, resume: bool, force: bool) -> None:
        """Take the directory, refusing to touch what is there unless told."""
        if self.out.exists() and not force and not (resume and self.path.exists()):
            what = "a run" if (self.out / "manifest.json").exists() else "something"
            raise RunExists(f"There is {what} at {self.out} already. Choose another --out, or replace it with --force.")
        if self.path.exists() and not resume and not force:
            raise RunExists(f"An unfinished scan is at {self.path}. Go on with it (--resume), or start over (--force).")
        (self.path / "plan").mkdir(parents=True, exist_ok=True)
        self._take_lock()
        if force and not resume:
            for entry in self.path.iterdir():
                if entry.name != "lock":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            (self.path / "plan").mkdir()

    def _take_lock(self) -> None:
        self._lock = (self.path / "lock").open("wb")
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no advisory locks on this system
            pass
        except OSError:
            self._lock.close()
            raise RunExists(
                f"Another process is writing {self.path} right now. Wait for it, or choose another --out."
            ) from None

    def close(self) -> None:
        if self._lock:
            self._lock.close()

    def save(self, name: str, array: Array) -> None:
        with (self.path / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)

    def writer(self, name: str, dtype: npt.DTypeLike, row: tuple[int, ...]) -> NpyWriter:
        """An array of the run, written row by row."""
        return NpyWriter(self.path / f"{name}.npy", dtype, row)

    def finish(self, manifest: dict[str, Any], log: dict[str, Any]) -> None:
        """Drop what only the scan needed, seal the rest with a manifest, rename into place."""
        (self.path / "lock").unlink(missing_ok=True)
        names = sorted(path.name for path in self.path.iterdir() if path.is_file() and not path.name.endswith(".new"))
        files = {}
        for name in names:
            if name not in ("manifest.json", "log.json"):
                with (self.path / name).open("rb") as file:
                    os.fsync(file.fileno())
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                files[name] = {"bytes": (self.path / name).stat().st_size, "sha256": digest}
        write_json(self.path / "log.json", log)
        write_json(self.path / "manifest.json", seal({**manifest, "files": files}))
        self.put_in_place()

    def put_in_place(self) -> None:
        """The last step, which a resumed scan may have to take: the manifest is written, so the run is whole."""
        shutil.rmtree(self.path / "plan", ignore_errors=True)
        (self.path / "lock").unlink(missing_ok=True)
        old = self.out.with_name(f"{self.out.name}.replaced")
        if self.out.exists():
            shutil.rmtree(old, ignore_errors=True)
            self.out.rename(old)
        self.path.rename(self.out)
        shutil.rmtree(old, ignore_errors=True)
        self.close()


def write_checkpoint(path: Path, arrays: dict[str, Array]) -> None:
    named: dict[str, Any] = dict(arrays)
    replace_file(path, lambda file: np.savez(file, **named))


def read_checkpoint(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RunDamaged(f"The checkpoint {path} cannot be read ({error}). Start the scan over with --force.") from None


# Reading a run


def seal(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own checksum."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return {**body, "checksum": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the run at `path`, its own checksum and schema checked."""
    file = path / "manifest.json"
    if not path.exists():
        hint = ""
        if path.with_name(path.name + ".partial").exists():
            hint = " An unfinished scan is there: run the scan again with --resume."
        raise RunError(f"There is no run at {path}.{hint}")
    if not file.exists():
        raise RunDamaged(f"{path} is no run: it has no manifest.json.")
    try:
        manifest = json.loads(file.read_text("utf-8"))
        schema = manifest["schema"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise RunDamaged(f"{file} is damaged: {error!r}. Scan again, or restore the file.") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise SchemaTooNew(
            f"{path} was written by a newer Keyhole (schema {schema}, this one reads up to {SCHEMA}). "
            "Upgrade: pip install -U keyhole"
        )
    if manifest.get("checksum") != seal(manifest)["checksum"]:
        raise RunDamaged(f"{file} was changed after the run was finished: its checksum does not match. Scan again.")
    assert isinstance(manifest, dict)
    return manifest


def check_files(path: Path, manifest: dict[str, Any], *, contents: bool | None = None) -> None:
    """Every file there, whole, and (by default in runs up to `CHECK_ON_OPEN` bytes) of the recorded content."""
    if contents is None:
        contents = sum(entry["bytes"] for entry in manifest["files"].values()) <= CHECK_ON_OPEN
    for name, entry in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise RunDamaged(f"{path} is damaged: {name} is missing. Scan again, or restore the file.")
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise RunDamaged(
                f"{path} is damaged: {name} has {size:,} bytes where {entry['bytes']:,} were written. Scan again, or restore it."
            )
        if contents:
            with file.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != entry["sha256"]:
                    raise RunDamaged(
                        f"{path} is damaged: the content of {name} changed (sha256). Scan again, or restore it."
                    )


def load_array(path: Path, name: str) -> Array:
    """An array of the run, memory-mapped for look-ups here and there."""
    array = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        import mmap

        mapped.madvise(mmap.MADV_RANDOM)
    return np.asarray(array)  # as a plain array: slices of a memmap are slow to make


def report_file(path: Path) -> Path:
    return path / "report" / "index.html"


def annotations_folder(path: Path) -> Path:
    return path / "annotations"


def notes_file(path: Path) -> Path:
    return path / "notes.jsonl"


def tokenizer_file(path: Path) -> Path:
    return path / "tokenizer.json"


def tables_file(path: Path) -> Path:
    return path / "tables.duckdb"


def analyses_file(path: Path) -> Path:
    return path / "analyses.json"


# What the analyses add


def save_array(path: Path, name: str, array: Array) -> None:
    """An array beside the scan's own, whole or not at all."""
    with disk_errors(path):
        replace_file(
            path / f"{name}.npy",
            lambda file: np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False),
        )


@contextlib.contextmanager
def building(path: Path, name: str, dtype: npt.DTypeLike, length: int) -> Iterator[Array]:
    """An array beside the scan's own, filled in place on disk; it is there when the `with` ends well, or not at all."""
    file = path / f"{name}.npy"
    beside = file.with_name(file.name + ".new")
    try:
        array = new_memmap(beside, dtype, max(1, length))
        yield array
        array.flush()
        with beside.open("r+b") as opened:
            sync(opened)
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def has_array(path: Path, name: str) -> bool:
    return (path / f"{name}.npy").is_file()


def lens_array(lens: str, name: str) -> str:
    return f"values_{lens}_{name}"


def save_lens(path: Path, lens: str, settings: dict[str, Any]) -> None:
    with disk_errors(path):
        write_json(path / f"values_{lens}.json", settings)


def read_lens(path: Path, lens: str) -> dict[str, Any] | None:
    """What a lens was set to when the values were read through it; None where they were not yet."""
    file = path / f"values_{lens}.json"
    return read_json(file) if file.is_file() else None


def drop_lens(path: Path, lens: str) -> None:
    (path / f"values_{lens}.json").unlink(missing_ok=True)


def save_shading(path: Path, settings: dict[str, Any]) -> None:
    with disk_errors(path):
        write_json(path / "shading.json", settings)


def read_shading(path: Path) -> dict[str, Any] | None:
    """How the triggers were shaded; None where they were not yet."""
    file = path / "shading.json"
    return read_json(file) if file.is_file() else None


def drop_shading(path: Path) -> None:
    (path / "shading.json").unlink(missing_ok=True)


def append_line(path: Path, value: Any) -> None:
    """A record added to a JSONL file and flushed to disk. A line that a crash cut short stays alone on its line."""
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            torn = file.read(1) not in (b"", b"\n")
            file.write((b"\n" if torn else b"") + line + b"\n")
            sync(file)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror or error}): this was not saved. Put that right, and save again."
        ) from error


def read_lines(path: Path) -> list[Any]:
    """The records of a JSONL file, None for a line that is none."""
    lines: list[Any] = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        if line.strip():
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError):
                lines.append(None)
    return lines


def read_log(path: Path) -> dict[str, Any]:
    try:
        log = json.loads((path / "log.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return log if isinstance(log, dict) else {}
