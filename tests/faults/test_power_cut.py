"""A power cut at any moment of a scan, a merge or an analysis leaves nothing wrong that looks right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from families import tiny
from power import MODES, Disk, lay_out

import keyhole
from keyhole.errors import RunError
from keyhole.scanning import shard
from keyhole.store import layout
from keyhole.store.values import Values, available

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to see what a flush wrote")
OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}
Image = dict[str, bytes | None]


def content(run: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(run.iterdir())
        if path.is_file() and path.name not in ("log.json", "lock")
    }


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    made = Disk(root)
    yield made
    made.close()


def images_of(disk: Disk, work: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Image]]:
    """What a power cut would leave after each step of some work, in each mode, every state once."""
    found: list[tuple[str, Image]] = []
    seen: set[int] = set()

    def step() -> None:
        for mode in MODES:
            image = disk.image(mode)
            key = hash(tuple(sorted((name, data) for name, data in image.items() if not name.endswith("log.json"))))
            if key not in seen:
                seen.add(key)
                found.append((mode, image))

    with monkeypatch.context() as patch:
        patch.setattr(shard, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(shard, "CHECKPOINT_SHARE", 1e9)
        disk.watch(patch, step)
        work()
    return found


@pytest.mark.slow(seconds=3)
def test_a_scan_cut_anywhere_resumes_to_the_same_bytes_or_says_what_is_damaged(
    text: Path, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = tiny("llama"), {**OPTIONS, "batch_tokens": 45}
    whole = content(keyhole.scan(model, [text], out=tmp_path / "whole", **options).path)
    out = disk.root / "run"
    states = images_of(disk, lambda: keyhole.scan(model, [text], out=out, **options), monkeypatch)
    assert len(states) > 40, "too few states were seen: the test tests little"
    for mode in MODES:  # the scan said that it is finished
        image = disk.image(mode)
        assert {name.removeprefix("run/"): data for name, data in image.items() if data is not None} == {
            path.name: path.read_bytes() for path in out.iterdir()
        }
    resumed = noticed = with_checkpoint = with_result = 0
    for number, (_, image) in enumerate(states):
        if number % 3 and number < len(states) - 12:  # every third, and the last steps
            continue
        lay_out(image, tmp_path / "after")
        with_checkpoint += bool(image.get("run.partial/plan/1-of-1.checkpoint.npz"))
        with_result += bool(image.get("run.partial/plan/1-of-1.npz"))
        try:
            run = keyhole.scan(model, [text], out=tmp_path / "after" / "run", resume=True, **options)
        except RunError:
            noticed += 1
            run = keyhole.scan(model, [text], out=tmp_path / "after" / "run", force=True, **options)
        else:
            resumed += 1
        assert content(run.path) == whole
    assert resumed > 20
    assert with_checkpoint > 5
    assert with_result > 5


def test_a_first_analysis_cut_anywhere_leaves_no_damage(
    text: Path, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    scanned = keyhole.scan(model, [text], out=tmp_path / "run", **OPTIONS)
    run = on_disk(disk, scanned.path, monkeypatch)
    work = ["activity", "shading"]
    states = images_of(disk, lambda: keyhole.analyze(run, model=model, only=work), monkeypatch)
    after = keyhole.open(run).table("activity")
    filled = absent = 0
    for _, image in states:
        lay_out(image, tmp_path / "after")
        opened = keyhole.open(tmp_path / "after" / "run")  # never damaged
        if layout.has_tables(opened.path):
            assert opened.table("activity") == after
            filled += 1
        else:
            absent += 1
    assert filled > 2
    assert absent > 2


@pytest.mark.slow(seconds=3)
def test_an_analysis_cut_anywhere_leaves_each_table_as_it_was_or_as_it_will_be(
    text: Path, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    scanned = keyhole.scan(model, [text], out=tmp_path / "run", **OPTIONS)
    keyhole.analyze(scanned, model=model, only=["activity", "agreement"])
    before = {name: scanned.table(name) for name in ("activity", "agreement")}
    run = on_disk(disk, scanned.path, monkeypatch)

    def again() -> None:  # with other settings, so that what is there is replaced
        keyhole.analyze(run, model=model, only=["activity", "agreement", "shading"], mask_untrained=True)

    states = images_of(disk, again, monkeypatch)
    opened = keyhole.open(run)
    after = {name: opened.table(name) for name in before}
    assert len(states) > 30
    kept = replaced = read_again = 0
    for number, (_, image) in enumerate(states):
        if number % 2 and number < len(states) - 6:
            continue
        lay_out(image, tmp_path / "after")
        opened = keyhole.open(tmp_path / "after" / "run")  # never damaged
        for name in before:
            found = opened.table(name)
            assert found in (before[name], after[name])
            kept, replaced = kept + (found == before[name]), replaced + (found == after[name])
        if "norm" in available(opened):
            read_again += Values(opened, "norm").settings["masked"]
    assert kept > 5
    assert replaced > 5
    assert read_again > 2


def on_disk(disk: Disk, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run on the watched disk, all of it flushed."""
    copy = disk.root / "run"
    with monkeypatch.context() as patch:
        disk.watch(patch, lambda: None)
        shutil.copytree(run, copy)
        for path in (*copy.iterdir(), copy, disk.root):
            _flush(path)
    return copy


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
