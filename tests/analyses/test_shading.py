"""Shades and histograms against one forward pass per unit, window by window."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import CONTEXT, tiny
from hypothesis import given
from hypothesis import strategies as st

import keyhole
from keyhole.analyses import registry
from keyhole.analyses import shading as filling
from keyhole.analyses.measured import filled
from keyhole.analyses.targets import held_out_units
from keyhole.errors import UsageError
from keyhole.models.model import Model
from keyhole.store import layout, shading, tables


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Lines short and long, some alike, one with nothing in it."""
    random = np.random.default_rng(3)
    words = ["the", "cat", "sat", "on", "a", "mat", "of", "Paris", "dog", "ran", "to", "it"]
    lines = [" ".join(random.choice(words, random.integers(1, 16))) for _ in range(30)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*lines, lines[3], "", "x", "y" * 150]) + "\n", encoding="utf-8")
    return path


def scanned(model: Model, corpus: Path, **options: Any) -> keyhole.Run:
    chosen = {"unit": "line", "top": 4, "context": CONTEXT, "batch_tokens": 300, **options}
    return keyhole.scan(model, [corpus], out=corpus.parent / "run", **chosen)


def coefficients(run: keyhole.Run, model: Model, unit: int) -> np.ndarray[Any, Any]:
    """[tokens, cells] of a whole unit, each of its windows run alone, in the signs that the cells are read with."""
    ids = [int(i) for i in run.unit_tokens(unit)]
    room = run.context - run.manifest["config"]["n_special"]
    bos = run.manifest["config"]["bos"]
    parts = [model.coefficients_of(ids[at : at + room], bos=bos).numpy() for at in range(0, len(ids), room)]
    return np.concatenate(parts) * run.orientation


CASES = [
    ("llama", {}),
    ("opt", {}),
    ("gemma2", {"per": "prefix"}),
    ("gpt2", {"context": 12}),
    ("opt", {"context": 20, "per": "prefix", "top": 9}),
    ("gpt_neox", {"bos": False, "hold_out": 0.3}),
    ("llama", {"top": 60, "context": 64}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "options"), CASES)
def test_every_shade_is_the_coefficient_of_its_prefix(
    family: str, options: dict[str, Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "PIECE", 7)
    model = tiny(family)
    run = scanned(model, corpus, **options)
    assert shading.of(run) is None
    assert shading.histogram(run, 0, 0) is None
    keyhole.analyze(run, model=model, only=["shading"])
    found = shading.of(run)
    assert found is not None
    room = run.context - run.manifest["config"]["n_special"]
    units = {
        unit: coefficients(run, model, unit)
        for unit in range(run.manifest["corpus"]["units"])
        if len(run.unit_tokens(unit))
    }
    checked = 0
    for layer in range(run.layers):
        for index in range(run.cells.size(layer)):
            sides = [run.triggers(layer, index), run.triggers(layer, index, negative=True)]
            largest = max([abs(t.coefficient) for side in sides for t in side], default=0.0)
            for negative, side in enumerate(sides):
                for slot, trigger in enumerate(side):
                    length = len(run.unit_tokens(trigger.unit))
                    begin, end = shading.shown(length, trigger.position, room)
                    got = found.row(layer, index, slot, bool(negative))
                    assert got.dtype == np.int8
                    assert len(got) == end - begin
                    expected = units[trigger.unit][begin:end, run.cells.place(layer, index)] / largest * 127
                    behind = (trigger.position // room + 1) * room - begin  # of another window
                    np.testing.assert_allclose(got[:behind], expected[:behind], atol=0.6)
                    assert not got[behind:].any()
                    at = trigger.position - begin
                    assert got[at] == pytest.approx(127 * trigger.coefficient / largest, abs=0.6)
                    checked += 1
    assert checked == (run.units >= 0).sum() + (run.units_negative >= 0).sum() > 100


@pytest.mark.parametrize(("family", "options"), CASES)
def test_histograms_count_the_sample(family: str, options: dict[str, Any], corpus: Path) -> None:
    model = tiny(family)
    run = scanned(model, corpus, **options)
    filling.fill(run, model)
    held = set(held_out_units(run).tolist())
    inside = [u for u in range(run.manifest["corpus"]["units"]) if u not in held and len(run.unit_tokens(u))]
    every = np.concatenate([coefficients(run, model, unit) for unit in inside])  # fewer than the sample would be
    for layer in range(run.layers):
        for index in range(run.cells.size(layer)):
            got, stats = shading.histogram(run, layer, index), run.cell(layer, index).stats
            if stats.min == stats.max:
                assert got is None
                continue
            assert got is not None
            edges, counts, n = got
            assert (edges[0], edges[-1], len(edges)) == (stats.min, stats.max, 33)
            assert counts.sum() == n == len(every)
            # up to values that lie on an edge, but for rounding
            slack = 1e-3 * (stats.max - stats.min)
            x = every[:, run.cells.place(layer, index)]
            for edge, below in zip(edges[1:-1], np.cumsum(counts)[:-1], strict=True):
                assert (x < edge - slack).sum() <= below <= (x < edge + slack).sum()


def test_dead_cells_have_nothing_to_shade(corpus: Path) -> None:
    model = tiny("opt")
    run = scanned(model, corpus)
    filling.fill(run, model)
    found = shading.of(run)
    assert found is not None
    assert run.dead
    for address in run.dead:
        cell = run[address]
        assert cell.triggers == []
        assert len(found.row(cell.layer, cell.index, 0)) == 0
        assert found.histogram(cell.layer, cell.index) is None


def test_a_sample_is_about_as_large_as_asked_and_the_same_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "SAMPLE", 200)
    model = tiny("llama")
    run = scanned(model, corpus, hold_out=0.3)
    filling.fill(run, model, seed=5)
    _, counts, n = shading.histogram(run, 1, 3) or (None, np.zeros(0), 0)
    assert 200 <= n < 200 + run.context
    assert counts.sum() == n
    windows = filling._Windows(run)
    first, again = windows.sample(200, 5), windows.sample(200, 5)
    assert first.tolist() == again.tolist() != windows.sample(200, 6).tolist()
    assert not set(windows.units[first].tolist()) & set(held_out_units(run).tolist())
    for name in layout.SHADING:
        kept = layout.load_array(run.path, name).copy()
        layout.drop_shading(run.path)
        filling.fill(run, model, seed=5)
        assert np.array_equal(kept, layout.load_array(run.path, name))


def test_what_is_there_is_not_made_again(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    run = scanned(model, corpus)
    told: list[tuple[str, int]] = []

    def progress(what: str, total: int) -> Any:
        told.append((what, total))
        return lambda done: None

    keyhole.analyze(run, model=model, only=["activity", "shading"], progress=progress)
    assert [what for what, _ in told] == ["shading"]
    assert run.table("activity")
    assert filled(run) == ["activity"]
    assert tables.query(run.path, "select table_name from information_schema.tables where table_name = 'shading'") == []
    told.clear()
    keyhole.analyze(run, model=model, only=["shading"], progress=progress)
    assert told == []
    keyhole.analyze(run, model=model, only=["shading"], seed=1, progress=progress)
    assert len(told) == 1
    keyhole.open(run.path)  # what analyses add does not damage a run
    monkeypatch.setattr(shading, "BEFORE", 39)
    assert shading.of(keyhole.open(run.path)) is None  # shaded to another pattern: none rather than a wrong one


def test_a_pass_that_breaks_off_leaves_no_shading(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    run = scanned(model, corpus)
    before = sorted(path.name for path in run.path.iterdir())
    calls = []

    def breaks(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(filling, "_run", breaks)
    with pytest.raises(KeyboardInterrupt):
        filling.fill(run, model)
    assert sorted(path.name for path in run.path.iterdir()) == before
    assert shading.of(run) is None


def test_an_unknown_step_is_told_what_there_is() -> None:
    from keyhole.analyses.analyze import _choose

    chosen = [each.name for each in _choose(None)]
    assert chosen == [name for name in registry.BUILT_IN if name in chosen] == registry.steps()
    assert set(chosen) - set(registry.schemas()) == {"plane", "shading"}
    assert set(registry.schemas()) < set(chosen)
    assert [each.name for each in _choose(["shading", "rank"])] == ["rank", "shading"]
    with pytest.raises(UsageError, match=r"no table 'shade'.*activity, .*A step without a table is: shading, plane"):
        _choose(["shade"])


@given(st.integers(1, 3000), st.data())
def test_what_is_shown_around_a_trigger(length: int, data: st.DataObject) -> None:
    position, room = data.draw(st.integers(0, length - 1)), data.draw(st.integers(1, 4000))
    begin, end = shading.shown(length, position, room)
    assert 0 <= begin <= position < end <= length
    assert position - begin <= 40
    assert end - position <= 9
    assert begin // room == position // room
    assert begin in (0, position - 40, position // room * room)
    assert end in (length, position + 9)
    arrays = shading.spans(np.array([length]), np.array([position]), room)
    assert (begin, end) == (arrays[0][0], arrays[1][0])


def test_the_shading_that_is_kept_does_not_keep_its_run(corpus: Path) -> None:
    model = tiny("opt")
    path = scanned(model, corpus).path
    keyhole.analyze(path, only=["shading"], model=model)
    run = keyhole.open(path)
    found = shading.of(run)
    assert found is not None
    assert shading.of(run) is found
    known = weakref.ref(run)
    del run, found
    gc.collect()
    assert known() is None
