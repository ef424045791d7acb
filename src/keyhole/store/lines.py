"""What people add to a run: JSONL files, one record per line, each with its own checksum.

A record is added at the end of its file and never changed. A line that a crash cut short is found by its checksum and left out.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..common import files
from ..errors import RunError, UsageError


def add(run: Path, parts: tuple[str, ...], value: dict[str, Any], checksum: str) -> None:
    """`append_line` with the time it was saved."""
    append_line(run, parts, value | {"at": datetime.now(UTC).isoformat(timespec="seconds")}, checksum)


def append_line(run: Path, parts: tuple[str, ...], value: dict[str, Any], checksum: str) -> None:
    """Add a record to a file of the run whose manifest has this checksum. It is on disk when this returns.

    `parts` are the file's folders and its name, relative to the run. The run may have been replaced or moved since it was opened:
    the record is written relative to the directory whose manifest was read, and if that directory is not the run any more, the
    record is reported as not saved.
    """
    line = json.dumps(files.seal(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    try:
        with contextlib.ExitStack() as opened:
            folder = _enter(opened, run)
            with os.fdopen(os.open("manifest.json", os.O_RDONLY, dir_fd=folder), "rb") as manifest:
                if json.load(manifest).get("checksum") != checksum:
                    raise RunError(f"Another run is at {run} now, so this was not saved. Open the run again.")
            inner = folder
            for name in parts[:-1]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=inner)
                    files.sync_names(inner)
                inner = _enter(opened, name, inner)
            _append(parts[-1], inner, line)
            if not os.path.samestat(os.fstat(folder), run.stat()):
                raise RunError(f"{run} was replaced while this was being saved, so it was not saved. Open it again.")
    except (OSError, ValueError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            f"{run.joinpath(*parts)} cannot be written ({reason}): this was not saved. Put that right, and save again."
        ) from error


def _enter(opened: contextlib.ExitStack, name: str | Path, inside: int | None = None) -> int:
    """Open a folder. Inside a run, a folder that is a symbolic link is refused."""
    follow = 0 if inside is None else os.O_NOFOLLOW
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | follow, dir_fd=inside)
    opened.callback(os.close, folder)
    return folder


def _append(name: str, folder: int, line: bytes) -> None:
    """Append a line. If a crash cut the last line short, the new line does not continue it."""
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    with os.fdopen(file, "a+b") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - 1))
        torn = opened.read(1) not in (b"", b"\n")
        opened.write((b"\n" if torn else b"") + line + b"\n")
        files.sync(opened)
    files.sync_names(folder)


def stamp(path: Path) -> tuple[int, ...] | None:
    """What identifies a version of a file that only grows; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


def read_lines(path: Path) -> list[Any]:
    """The records of a file; None for a line that is not JSON or does not match its checksum.

    A line without a checksum is accepted: people may add lines by hand.
    """
    lines: list[Any] = []
    try:
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
    for line in content.split(b"\n"):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and "checksum" in record:
                told = record.pop("checksum")
                record = record if files.seal(record)["checksum"] == told else None
            lines.append(record)
    return lines


def known_fields(value: Any, what: str, needed: Sequence[str], allowed: Sequence[str] = ()) -> dict[str, Any]:
    """A record with the fields it needs and no others than those allowed."""
    if not isinstance(value, dict):
        raise UsageError(f"{what.capitalize()} is a JSON object, not {value!r:.60}.")
    if missing := [name for name in needed if name not in value]:
        raise UsageError(f"{what.capitalize()} needs {', '.join(missing)}.")
    if extra := [name for name in value if name not in (*needed, *allowed)]:
        raise UsageError(f"{what.capitalize()} has no {', '.join(map(repr, extra))[:60]}.")
    return value


def cell_named(known: dict[str, Any]) -> tuple[int, int]:
    """The layer and the cell that a record names."""
    layer, cell = known["layer"], known["cell"]
    if type(layer) is not int or type(cell) is not int:
        raise UsageError(f"'layer' and 'cell' are whole numbers, not {layer!r:.40} and {cell!r:.40}.")
    return layer, cell
