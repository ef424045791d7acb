"""The sign that a cell of a gated layer is read with: against its definition, and stored so that every part of a scan agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import TINY, save, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from small import corpus

import keyhole
from keyhole.errors import RunDamaged
from keyhole.kernels.order import UNFILLED, brute_force, pack
from keyhole.kernels.sums import FRACTION_BITS, add_exactly
from keyhole.scanning.merge import state_of
from keyhole.scanning.orientation import orient, orientation_of, turn

GATED = {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "olmo", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}


def state_from(coefficients: np.ndarray, units: np.ndarray, positions: np.ndarray, top: int) -> dict[str, np.ndarray]:
    """What an index holds of coefficients [prefixes, cells], from the definitions."""
    keys = np.full((2, coefficients.shape[1], top), UNFILLED)
    for side, sign in enumerate((1, -1)):
        found, _, at = brute_force(sign * coefficients, units, positions, top)
        filled = at >= 0
        keys[side] = np.where(filled, pack(np.where(filled, found, 1), np.where(filled, at, 0)), UNFILLED)
    sums = np.zeros((coefficients.shape[1], 2, 2), np.int64)
    for row in coefficients.astype(np.float64):
        add_exactly(sums, np.stack([row, row**2], -1))
    extremes = np.stack([coefficients.max(0), coefficients.min(0)], -1).astype(np.float32)
    return {"keys": keys, "sums": sums, "extremes": extremes, "active": (coefficients > 0).sum(0)}


def made_up(seed: int, prefixes: int, cells: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients with many ties and zeros of both signs. The sum of few multiples of 1/8 is exact."""
    rng = np.random.default_rng(seed)
    coefficients = (rng.integers(-3, 4, (prefixes, cells)) / 8).astype(np.float32)
    coefficients[:, rng.random(cells) < 0.2] = 0
    coefficients = np.where(rng.random(coefficients.shape) < 0.3, -0.0 * coefficients, coefficients).astype(np.float32)
    return coefficients, np.arange(prefixes) // 2, np.arange(prefixes)


@given(seed=st.integers(0, 10_000), prefixes=st.integers(1, 9), top=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_the_strongest_coefficient_decides_and_of_equal_ones_the_first(seed: int, prefixes: int, top: int) -> None:
    coefficients, units, positions = made_up(seed, prefixes, 12)
    expected = []
    for column in coefficients.T:
        best = min(range(prefixes), key=lambda i: (-abs(float(column[i])), i))
        expected.append(-1 if column[best] < 0 else 1)
    state = state_from(coefficients, units, positions, top)
    assert orientation_of(state["keys"]).tolist() == expected
    orient(state, whole=True)
    direct = state_from(coefficients * np.array(expected, np.float32) + np.float32(0), units, positions, top)
    assert state["orientation"].tolist() == expected
    for name in ("keys", "sums", "extremes"):
        assert state[name].tobytes() == direct[name].tobytes(), name


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_flipped_cell_gives_the_same_bytes_and_the_other_sign(seed: int) -> None:
    coefficients, units, positions = made_up(seed, 8, 12)
    flips = np.random.default_rng(seed).choice([-1, 1], 12).astype(np.float32)
    states = [state_from(x, units, positions, 3) for x in (coefficients, coefficients * flips)]
    for state in states:
        orient(state, whole=True)
    for name in ("keys", "sums", "extremes"):
        assert states[0][name].tobytes() == states[1][name].tobytes(), name
    fires = (coefficients != 0).any(0)
    assert (states[1]["orientation"] == np.where(fires, flips, 1) * states[0]["orientation"]).all()


def test_sums_are_negated_exactly() -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-(2**40), 2**40, 200)
    fraction = np.where(rng.random(200) < 0.2, 0, rng.integers(0, 1 << FRACTION_BITS, 200))
    state = {
        "keys": np.zeros((2, 200, 1), np.int64),
        "sums": np.stack([np.stack([whole, fraction], -1)] * 2, 1),
        "extremes": np.zeros((200, 2), np.float32),
    }
    before = state["sums"].copy()
    turn(state, np.full(200, -1, np.int8))
    for was, now in zip(before[:, 0].tolist(), state["sums"][:, 0].tolist(), strict=True):
        assert (was[0] << FRACTION_BITS) + was[1] == -((now[0] << FRACTION_BITS) + now[1])
        assert 0 <= now[1] < 1 << FRACTION_BITS
    assert (state["sums"][:, 1] == before[:, 1]).all()  # squares have no sign
    turn(state, np.full(200, -1, np.int8))
    assert (state["sums"] == before).all()


@pytest.mark.parametrize("family", sorted(TINY))
def test_which_families_are_gated(family: str) -> None:
    """Found from the model: the coefficients of a layer without a gate are what an activation, here none, gives of one product."""
    model = tiny(family)
    names = {name.rpartition(".")[2] for name, _ in model.blocks[0].named_modules()}
    assert model.gated == (family in GATED) == bool(names & {"up_proj", "gate_up_proj"})


def test_a_run_without_a_gate_has_no_orientation_file(text: Path, tmp_path: Path) -> None:
    run = keyhole.scan(tiny("gpt2"), [text], tmp_path / "run", top=3, unit="line")
    assert not run.gated
    assert not (run.path / "orientation.npy").exists()
    assert (run.orientation == 1).all()
    assert run.stats.active.dtype.kind == "i"


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_shards_keep_the_models_signs_and_the_merged_run_is_oriented(family: str, tmp_path: Path) -> None:
    model, text, options = tiny(family), corpus(tmp_path / "text.txt"), {"top": 3, "unit": "line", "batch_tokens": 90}
    whole = keyhole.scan(model, [text], tmp_path / "whole", **options)
    parts = [keyhole.scan(model, [text], tmp_path / f"{i}", shard=(i, 3), **options) for i in (1, 2, 3)]
    assert all((part.orientation == 1).all() for part in parts)
    assert ((whole.orientation == -1).sum() > 10) == model.gated
    merged = keyhole.merge(tmp_path / "merged", [part.path for part in parts])
    for file in whole.manifest["files"]:
        assert (merged.path / file).read_bytes() == (whole.path / file).read_bytes(), file
    assert merged.manifest == whole.manifest
    # the shards' own signs: their largest coefficients are those of the bare model
    high = np.max([part.stats.max for part in parts], 0)
    low = np.min([part.stats.min for part in parts], 0)
    turned = whole.orientation < 0
    np.testing.assert_array_equal(whole.stats.max, np.where(turned, -low, high))
    np.testing.assert_array_equal(whole.stats.min, np.where(turned, -high, low))
    assert (whole.stats.max >= -whole.stats.min).all() or not model.gated
    again = state_of(whole)
    np.testing.assert_array_equal(again["extremes"], np.stack([high, low], -1))


@pytest.mark.slow(seconds=12)
def test_processes_give_the_same_bytes(tmp_path: Path) -> None:
    folder, text = save(tiny("llama"), tmp_path / "model"), corpus(tmp_path / "text.txt")
    one, two = (
        keyhole.scan(folder, [text], tmp_path / f"{n}", top=3, unit="line", batch_tokens=90, processes=n)
        for n in (1, 2)
    )
    assert one.manifest == two.manifest
    assert (one.orientation < 0).any()


def test_verify_compares_in_the_orientation(tmp_path: Path) -> None:
    run = keyhole.scan(tiny("llama"), [corpus(tmp_path / "text.txt")], tmp_path / "run", top=3, unit="line")
    assert keyhole.verify(run, model=tiny("llama")).ok
    run.__dict__["orientation"] = -run.orientation
    assert not keyhole.verify(run, model=tiny("llama")).ok


@pytest.mark.parametrize("wrong", [np.zeros(72, np.int8), np.full(72, 2, np.int8), np.ones(71, np.int8), np.ones(72)])
def test_an_orientation_that_is_none_is_refused(wrong: Any, tmp_path: Path) -> None:
    run = keyhole.scan(tiny("llama"), [corpus(tmp_path / "text.txt")], tmp_path / "run", top=3, unit="line")
    np.save(run.path / "orientation.npy", wrong)
    with pytest.raises(RunDamaged, match=r"orientation\.npy"):
        keyhole.open(run.path)
    manifest = run.manifest
    from keyhole.store.manifest import check_arrays

    with pytest.raises(RunDamaged, match=r"orientation\.npy does not fit"):
        check_arrays(run.path, manifest, contents=False)
