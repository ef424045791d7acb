"""A simulated disk that knows what a power cut would leave.

A file's content is safe from the moment it is flushed, a name from the moment its folder is. What was not flushed may be
there or not, and a file whose name is safe may be empty or full of zeros: so a journalling file system leaves it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

MODES = ("flushed", "zeros", "empty")
"""Only what was flushed; or all names, and what was not flushed is zeros, or nothing."""


class Disk:
    """Watches a folder while the code under test writes to it; `image` is what a power cut would leave now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {root.stat().st_ino: {}}
        self.folders: set[int] = {root.stat().st_ino}
        self._held: list[int] = []
        """open for as long as the disk is watched, so that no inode's number is used again"""

    def watch(self, patch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
        """Call `step` after everything that changes what a power cut would leave, or that names a file."""
        fsync = os.fsync

        def flushed(descriptor: int) -> None:
            fsync(descriptor)
            self._note(descriptor)
            step()

        patch.setattr(os, "fsync", flushed)
        for name in ("rename", "replace", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, _then(getattr(os, name), step))

    def _note(self, descriptor: int) -> None:
        self._held.append(os.dup(descriptor))
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            entries = list(os.scandir(descriptor))
            self.names[about.st_ino] = {entry.name: entry.inode() for entry in entries}
            self.folders |= {entry.inode() for entry in entries if entry.is_dir(follow_symlinks=False)}
        else:
            self.contents[about.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def image(self, mode: str) -> dict[str, bytes | None]:
        """Every path that would be there, with its content; None for a folder."""
        found: dict[str, bytes | None] = {}
        if mode == "flushed":
            self._safe(self.root.stat().st_ino, "", found)
            return found
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_dir():
                found[name] = None
            else:
                about = path.stat()
                lost = b"\0" * about.st_size if mode == "zeros" else b""
                found[name] = self.contents.get(about.st_ino, lost)
        return found

    def _safe(self, folder: int, prefix: str, found: dict[str, bytes | None]) -> None:
        for name, inode in self.names.get(folder, {}).items():
            if inode in self.folders:
                found[prefix + name] = None
                self._safe(inode, f"{prefix}{name}/", found)
            else:
                found[prefix + name] = self.contents.get(inode, b"")

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def _then(real: Callable[..., object], step: Callable[[], None]) -> Callable[..., object]:
    def call(*args: object, **options: object) -> object:
        result = real(*args, **options)
        step()
        return result

    return call


def lay_out(image: dict[str, bytes | None], folder: Path) -> None:
    """Write an image down as files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in sorted(image.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
