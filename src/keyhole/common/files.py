"""How bytes reach the disk. Runs, plans and analyses are written through this module, for three promises:

whole      a file appears complete or not at all: written beside under another name, then renamed
durable    data is flushed before the name that points to it, and the folder after: a power cut leaves the old file or the new
checked    a short write is an error; numpy's own `tofile` writes part of an array to a full disk and raises nothing

No write follows a symbolic link: a directory that came from elsewhere could point anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..errors import DiskFull, RunDamaged, RunError

Array = npt.NDArray[Any]
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


# Files


def create(path: Path) -> BinaryIO:
    """A new file to write. What had this name before is removed, a symbolic link itself and not what it points to."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666), "w+b")


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names. Systems that cannot open a folder have no such step."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_names(folder)
    finally:
        os.close(folder)


def sync_names(folder: int) -> None:
    """`sync_folder`, of a folder that is open. Some network file systems refuse it."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise


def make_folder(path: Path) -> None:
    """A folder with its parents, each flushed into the folder above it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


@contextlib.contextmanager
def beside(path: Path, *, alone: bool = True) -> Iterator[Path]:
    """The name under which a file is written, and flushed by the caller, before it replaces `path`: a kill or a power cut
    leaves the old file or the new one. Without a lock (`alone` is False) each writer has a name of its own."""
    name = path.with_name(f"{path.name}.new" if alone else f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        yield name
        name.replace(path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_file(path: Path, write: Callable[[BinaryIO], object], *, alone: bool = True) -> None:
    """Write a file, whole or not at all."""
    with beside(path, alone=alone) as name, create(name) as file:
        write(file)
        sync(file)


def replace_bytes(path: Path, content: bytes, *, alone: bool = True) -> None:
    """`replace_file`, of bytes."""
    replace_file(path, lambda file: file.write(content), alone=alone)


def copy_file(source: Path, target: Path) -> None:
    """A copy, flushed."""
    with source.open("rb") as before, create(target) as after:
        shutil.copyfileobj(before, after, 1 << 20)
        sync(after)


def subfolder(path: Path, name: str) -> Path:
    """A folder inside `path`, made if it is not there. It must be a folder itself, not a link to one."""
    folder = path / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        sync_folder(path)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise RunError(f"{folder} is a link or a file, and a folder is needed. Remove it, and try again.")
    return folder


def fingerprint(path: Path) -> dict[str, Any]:
    """A file's size and sha256, as lists of files hold them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest}


def is_fingerprint(value: Any) -> bool:
    """Whether a value read from a file has the form of `fingerprint`'s."""
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "sha256"}
        and type(value["bytes"]) is int
        and 0 <= value["bytes"] < 1 << 60
        and isinstance(value["sha256"], str)
        and bool(re.fullmatch(r"[0-9a-f]{64}", value["sha256"]))
    )


def is_plain_name(value: Any) -> bool:
    """Whether a name read from a file is one that Keyhole gives its files: no path, no other ending."""
    return isinstance(value, str) and bool(re.fullmatch(r"\w+\.(npy|json|jsonl|duckdb)", value, re.ASCII))


def read_small(path: Path, most: int = 64 << 20) -> bytes:
    """The content of a file that may come from anyone: refused if it is not a plain file of at most `most` bytes."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_FOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise OSError(errno.EINVAL, f"it is not a plain file of at most {most:,} bytes")
        return file.read(most)


def swap(one: Path, other: Path) -> bool:
    """Give each of two paths the other's name, in one step; False if this system cannot."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            return bool(libc.renamex_np(os.fsencode(one), os.fsencode(other), 2) == 0)
        return bool(libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def put_in_place(new: Path, place: Path, aside: Path) -> None:
    """Give the folder `new` the name `place`, flushed. A folder that had this name is called `aside` afterwards, for the caller
    to delete. Readers find a folder at `place` at every moment if the system can swap two names."""
    if not os.path.lexists(place):
        new.rename(place)
    elif swap(new, place):
        new.rename(aside)
    else:
        place.rename(aside)
        try:
            new.rename(place)
        except BaseException:
            aside.rename(place)
            raise
    sync_folder(place.parent)


# JSON


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """The value with a checksum of itself, which shows damage. It has no key, so it does not show who wrote the value."""
    body = {key: each for key, each in value.items() if key != "checksum"}
    return {**body, "checksum": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A sealed JSON object, whole or not at all."""
    text = json.dumps(seal(value), indent=2, ensure_ascii=False) + "\n"
    replace_bytes(path, text.encode("utf-8", "backslashreplace"))


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """What `write_json` wrote, without its checksum; anything else is damage, and `advice` says what to do."""
    try:
        value = json.loads(read_small(path))
        if not isinstance(value, dict) or value.get("checksum") != seal(value)["checksum"]:
            raise ValueError("its checksum does not match")
    except (OSError, ValueError, RecursionError) as error:
        raise RunDamaged(f"{path} is damaged: {error}. {advice}") from None
    return {key: each for key, each in value.items() if key != "checksum"}


# Arrays


class NpyWriter:
    """A .npy file that grows along its first axis: its header is written again, with the length, at the end."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, row: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.row, self.length = path, np.dtype(dtype), row, 0
        self.file = create(path)
        try:
            self._header()
        except BaseException:
            self.file.close()
            raise

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
        self.file.write(np.ascontiguousarray(values, self.dtype).data)
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
                rows = self.length * int(np.prod(self.row, dtype=np.int64)) * self.dtype.itemsize
                expected = self.file.tell() + rows
                sync(self.file)
                if (size := os.fstat(self.file.fileno()).st_size) != expected:
                    raise OSError(errno.EIO, f"{size:,} of {expected:,} bytes were written", str(self.path))


def write_array(path: Path, array: Array) -> None:
    """A .npy file, flushed and of the right size."""
    with NpyWriter(path, array.dtype, array.shape[1:]) as file:
        file.append(array)


def replace_array(path: Path, array: Array) -> None:
    """A .npy file, whole or not at all."""
    with beside(path) as name:
        write_array(name, array)


def new_memmap(path: Path, dtype: npt.DTypeLike, length: int) -> np.memmap[Any, np.dtype[Any]]:
    """A zeroed array on disk to be changed in place, then given to `flush_memmap`. Its space is reserved now, so that a full
    disk is an error here and not a crash later."""
    create(path).close()
    array = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), (length,))
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def flush_memmap(path: Path, array: np.memmap[Any, np.dtype[Any]]) -> None:
    array.flush()
    with path.open("r+b") as file:
        sync(file)


# Errors

REFUSALS = {
    getattr(errno, name)
    for name in (
        "EACCES",
        "EPERM",
        "EROFS",
        "EIO",
        "EFBIG",
        "ENOENT",
        "ENOTDIR",
        "EEXIST",
        "EISDIR",
        "ENAMETOOLONG",
        "ELOOP",
    )
}
"""Errors that mean: this cannot be written here."""


@contextlib.contextmanager
def disk_errors(
    what: Path,
    full: str = "Make room and run the same command with --resume; what is done is kept.",
    refused: str = "Choose another directory.",
) -> Iterator[None]:
    """Turn errors of the operating system into `KeyholeError`s. `full` and `refused` say what to do about each."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output is gone, which is not an error of the disk
        raise
    except OSError as error:
        name = error.filename or what
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"The disk is full: writing {name} failed with {_free(what) / 1e6:,.0f} MB free. {full}"
            ) from error
        if error.errno in REFUSALS:
            raise RunError(f"{name} cannot be written: {error.strerror}. {refused}") from error
        raise RunError(f"The operating system refused something: {error}") from error


def _free(path: Path) -> int:
    """Bytes free on the disk of a path, which may not be there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free
