"""A disk that is full at any write: an error that says so, nothing lost, nothing cut short that looks whole."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from families import tiny

import keyhole
from keyhole.common import files
from keyhole.errors import DiskFull, KeyholeError, RunError
from keyhole.scanning import shard
from keyhole.store import tables

OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}
STEPS = ["activity", "agreement", "shading"]


class _Filling:
    """A file whose n-th write, counted over all files, is cut short by a full disk."""

    def __init__(self, inner: BinaryIO, count: Callable[[], bool]) -> None:
        self.inner, self.count = inner, count

    def write(self, data: Any) -> int:
        if self.count():
            view = memoryview(data).cast("B")
            self.inner.write(view[: len(view) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.inner.write(data)

    def __enter__(self) -> _Filling:
        return self

    def __exit__(self, *exception: object) -> None:
        self.inner.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def full_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The disk is full at the n-th write and after. Gives the count of writes so far."""
    written = [0]

    def count() -> bool:
        written[0] += 1
        return written[0] >= number

    create = files.create
    with monkeypatch.context() as patch:
        for module in (files, tables):
            patch.setattr(module, "create", lambda path: _Filling(create(path), count))
        yield written


def content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.name != "log.json"}


@pytest.mark.slow(seconds=2)
def test_a_scan_on_a_disk_that_fills_at_any_write(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(shard, "CHECKPOINT_SHARE", 1e9)
    model = tiny("llama")
    with full_at(1 << 30, monkeypatch) as written:
        whole = content(keyhole.scan(model, [text], out=tmp_path / "whole", **OPTIONS).path)
    assert written[0] > 100
    for number in range(1, written[0] + 1, 17):
        out = tmp_path / f"run{number}"
        with full_at(number, monkeypatch), pytest.raises(DiskFull, match="disk is full.*--resume"):
            keyhole.scan(model, [text], out=out, **OPTIONS)
        assert not out.exists()
        assert content(keyhole.scan(model, [text], out=out, resume=True, **OPTIONS).path) == whole


@pytest.mark.slow(seconds=3)
def test_an_analysis_on_a_disk_that_fills_at_any_write(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    first = keyhole.scan(model, [text], out=tmp_path / "first", **OPTIONS)
    with full_at(1 << 30, monkeypatch) as written:
        keyhole.analyze(first, model=model, only=STEPS)
    right = {name: first.table(name) for name in STEPS[:2]}
    assert written[0] > 30
    scanned = keyhole.scan(model, [text], out=tmp_path / "scanned", **OPTIONS)
    for number in range(1, written[0] + 1, 9):
        run = keyhole.open(shutil.copytree(scanned.path, tmp_path / f"run{number}"))
        with full_at(number, monkeypatch), pytest.raises(DiskFull, match="disk is full.*same command again"):
            keyhole.analyze(run.path, model=model, only=STEPS)
        opened = keyhole.open(run.path)  # what is there is whole
        for name, rows in right.items():
            assert _table(opened, name) in (None, rows)
        assert not list(run.path.glob("*.new*"))
        assert not (run.path / "lock").exists()
        keyhole.analyze(run.path, model=model, only=STEPS)
        assert {name: keyhole.open(run.path).table(name) for name in right} == right


def _table(run: keyhole.Run, name: str) -> Any:
    """A table; None if it is not filled yet."""
    try:
        return run.table(name)
    except RunError as error:
        return None if "yet" in str(error) else error


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: what writes more, DuckDB too, meets the operating system's refusal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size", [10_000, 20_000, 270_000])
def test_a_database_that_cannot_be_written_is_not_left_behind(text: Path, tmp_path: Path, size: int) -> None:
    model = tiny("llama")
    run = keyhole.scan(model, [text], out=tmp_path / "run", **OPTIONS)
    with at_most(size), pytest.raises(KeyholeError):
        keyhole.analyze(run.path, model=model, only=["activity"])
    assert not list(run.path.glob("tables.duckdb*"))
    keyhole.analyze(run.path, model=model, only=["activity"])
    before = keyhole.open(run.path).table("activity")
    with at_most(size), pytest.raises(KeyholeError):
        keyhole.analyze(run.path, model=model, only=["agreement"])
    assert keyhole.open(run.path).table("activity") == before
    assert not list(run.path.glob("*.new*"))


def test_arrays_are_written_in_full_or_not_at_all(tmp_path: Path) -> None:
    """numpy's own `write_array` loses the end of such an array on a full disk without an error."""
    array = np.arange(1000, dtype=np.float64)
    with at_most(4096):
        with pytest.raises(OSError, match="File too large"):
            files.replace_array(tmp_path / "a.npy", array)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(OSError, match="File too large"):
            files.write_array(tmp_path / "b.npy", array)
    files.replace_array(tmp_path / "a.npy", array)
    assert (np.load(tmp_path / "a.npy") == array).all()


def test_every_shape_of_array_reads_back(tmp_path: Path) -> None:
    for array in (np.zeros(0, np.int64), np.zeros((2, 0, 3), np.float32), np.ones((2, 3, 4), np.int32)[:, ::2]):
        files.replace_array(tmp_path / "a.npy", array)
        back = np.load(tmp_path / "a.npy")
        assert (back.shape, back.dtype) == (array.shape, array.dtype)
        assert (back == array).all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for very little."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(made, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_file_system_that_really_is_full(text: Path, tmp_path: Path, small_disk: Path) -> None:
    model = tiny("llama")
    whole = content(keyhole.scan(model, [text], out=tmp_path / "whole", **OPTIONS).path)
    filler = small_disk / "filler"
    for free in (8_000, 40_000, 90_000):
        filler.write_bytes(b"\1" * (200 * 1024 - free))
        with pytest.raises(KeyholeError, match="MB free"):
            keyhole.scan(model, [text], out=small_disk / "run", **OPTIONS)
        filler.unlink()
        run = keyhole.scan(model, [text], out=small_disk / "run", resume=True, **OPTIONS)
        assert content(run.path) == whole
        filler.write_bytes(b"\1" * 60_000)
        with pytest.raises(KeyholeError, match="disk is full|cannot be"):
            keyhole.analyze(run.path, model=model, only=STEPS)
        assert keyhole.open(run.path).stats.n[0] == run.stats.n[0]
        filler.unlink()
        shutil.rmtree(small_disk / "run")
