"""Any single damaged file of a run or of a plan is noticed, or makes no difference."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny
from stopping import stop_after

import keyhole
from keyhole.errors import Interrupted, KeyholeError, RunDamaged
from keyhole.store import annotations, collections, layout, shading, unfinished
from keyhole.store.values import Values
from keyhole.views import terminal as show
from keyhole.views.report import write as report

OPTIONS: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60}


def _flip(data: bytes, at: int) -> bytes:
    return data and data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda data: None,
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) * 2 // 3],
    "last byte": lambda data: data[:-1],
    "zeroed": lambda data: b"\0" * len(data),
    "zeroed page": lambda data: data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2),
    "first flipped": lambda data: _flip(data, 0),
    "middle flipped": lambda data: _flip(data, len(data) // 2),
    "last flipped": lambda data: _flip(data, len(data) - 1),
    "longer": lambda data: data + b"\0" * 64,
    "garbage": lambda data: np.random.default_rng(0).bytes(max(1, len(data))),
}


def look(path: Path) -> list[Any]:
    """Everything a run says, as the commands and pages read it."""
    run = keyhole.open(path)
    cells = [run.cell(layer, cell) for layer, cell in list(run.cells)[::5]]
    said: list[Any] = [(repr(cell.triggers), repr(cell.triggers_negative), repr(cell.stats)) for cell in cells]
    said.append([repr(run.unit_source(unit)) for unit in range(int(run.manifest["corpus"]["units"]))])
    for lens in ("norm",):
        values = Values(run, lens)
        said.append([repr(values.promoted(cell.layer, cell.index)) for cell in cells])
        said.append([repr(values.promoting(token)) for token in range(0, 300, 17)])
        said.append([values.ranks.tolist(), values.norms.tolist(), values.entropy.tolist()])
    shades = shading.of(run)
    assert shades is not None
    said.append([shades.row(cell.layer, cell.index, 0).tolist() for cell in cells if cell.triggers])
    said.append([repr(shades.histogram(cell.layer, cell.index)) for cell in cells])
    said.append(repr(report.data(run)["tables"]))
    if lost := annotations.summary(run)["damaged_lines"]:
        raise RunDamaged(f"{lost} lines of annotations or notes are damaged")
    said.append([repr(annotations.read_annotations(run)), collections.read_notes(run)])
    console = show.console()
    with console.capture() as shown:
        console.print(show.info(run))
    lines = [line.split() for line in shown.get().splitlines()]
    said.append([words for words in lines if words[-1:] != ["second"] and words[:1] not in (["run"], ["on"])])
    return said


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyzed")
    text = folder / "text.txt"
    text.write_text("".join(f"The cat number {i} sat on mat {i * i % 7}.\n" for i in range(20)))
    run = keyhole.scan(tiny("llama"), [text], out=folder / "run", **OPTIONS)
    keyhole.analyze(run, model=tiny("llama"), only=["activity", "agreement", "rank", "shading"])
    pattern = {"triggers": [0, 1, 2], "description": "a cat", "kind": "shallow"}
    annotations.save(run, {"annotator": "ann", "layer": 1, "cell": 2, "patterns": [pattern]})
    collections.save_note(run, {"layer": 1, "cell": 2, "text": "about cats"})
    return run.path


def damaged(path: Path, name: str, kind: str) -> bool:
    """Damage a file; whether that changed anything."""
    file = path / name
    before = file.read_bytes()
    after = DAMAGE[kind](before)
    if after is None:
        file.unlink()
    else:
        file.write_bytes(after)
    return after != before


PEOPLE = ("annotations/ann.jsonl", "marks.jsonl")
"""What people wrote line by line: a line that is lost with its line end cannot be missed by anyone."""


@pytest.mark.slow(seconds=7)
def test_a_damaged_file_of_a_run_is_noticed_or_harmless(analyzed: Path, tmp_path: Path) -> None:
    whole = look(analyzed)
    names = sorted(str(file.relative_to(analyzed)) for file in analyzed.rglob("*") if file.is_file())
    assert {"manifest.json", "tokens.npy", "tables.duckdb", "analyses.json", *PEOPLE} <= set(names)
    missed: list[tuple[str, str]] = []
    noticed: list[str] = []
    for number, name in enumerate(names):
        for kind in list(DAMAGE)[number % 2 :: 2]:  # every kind on every second file
            path = shutil.copytree(analyzed, tmp_path / "run")
            if damaged(path, name, kind):
                try:
                    if look(path) != whole and not (name in PEOPLE and kind in ("gone", "empty")):
                        missed.append((name, kind))
                except KeyholeError as error:
                    noticed.append(str(error))
            shutil.rmtree(path)
    assert missed == []
    assert len(noticed) > 100
    assert not [message for message in noticed if "\n" in message]


@pytest.mark.slow(seconds=4)
def test_a_damaged_analysis_is_made_again(analyzed: Path, tmp_path: Path) -> None:
    right = look(analyzed)
    listed = [name for group in layout.analyses(analyzed).values() for name in list(group["files"])[::4]]
    for name in [*listed, "analyses.json"]:
        path = shutil.copytree(analyzed, tmp_path / "run")
        damaged(path, name, "zeroed page")
        with pytest.raises(RunDamaged, match=f"{name}.*keyhole analyze"):
            keyhole.open(path)
        keyhole.analyze(path, model=tiny("llama"), only=["activity", "agreement", "rank", "shading"])
        assert look(path) == right
        shutil.rmtree(path)


def test_a_large_run_is_checked_by_size_and_by_verify(
    analyzed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "CHECK_ON_OPEN", 10)
    for name in ("positions.npy", "values_norm_top_tokens.npy", "tables.duckdb"):
        path = shutil.copytree(analyzed, tmp_path / "run")
        damaged(path, name, "last byte")
        with pytest.raises(RunDamaged, match=f"{name} has .* bytes where"):
            keyhole.open(path)
        shutil.rmtree(path)
        path = shutil.copytree(analyzed, tmp_path / "run")
        damaged(path, name, "middle flipped")
        with pytest.raises(RunDamaged, match=f"the content of {name} changed"):
            keyhole.verify(keyhole.open(path), model=tiny("llama"))
        shutil.rmtree(path)


def test_a_damaged_file_of_a_plan_is_noticed_or_harmless(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    whole = keyhole.scan(model, [text], out=tmp_path / "whole", **OPTIONS).path
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Interrupted):
            keyhole.scan(model, [text], out=tmp_path / "run", **OPTIONS)
    partial = unfinished.Partial(tmp_path / "run").path
    names = sorted(str(file.relative_to(partial)) for file in partial.rglob("*") if file.is_file())
    assert {"plan/summary.json", "plan/identity.json", "plan/1-of-1.checkpoint.npz", "tokens.npy"} <= set(names)
    shutil.copytree(partial, tmp_path / "kept")
    noticed: list[str] = []
    for name in names:
        for kind in DAMAGE:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(tmp_path / "kept", partial)
            if not damaged(partial, name, kind):
                continue
            try:
                run = keyhole.scan(model, [text], out=tmp_path / "run", resume=True, **OPTIONS)
            except KeyholeError as error:
                noticed.append(str(error))
            else:
                for file in whole.iterdir():
                    if file.name != "log.json":
                        assert (run.path / file.name).read_bytes() == file.read_bytes(), (name, kind, file.name)
                shutil.rmtree(run.path)
    assert len(noticed) > 100
    assert all("--force" in message for message in noticed)


def test_verify_finds_a_coefficient_that_is_no_number(analyzed: Path) -> None:
    run = keyhole.open(analyzed)
    run.coefficients = np.array(run.coefficients)
    run.coefficients[run.cells.place(1, 3), 0] = np.nan
    found = keyhole.verify(run, cells=72, model=tiny("llama"))
    assert not found.ok
    assert found.worst == "L1.3"
