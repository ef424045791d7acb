"""The fast index against the plain reference, fed in every way a scan can feed it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.cells import Cells
from keyhole.kernels.order import brute_force, unpack
from keyhole.kernels.sums import FRACTION_BITS, add_exactly
from keyhole.scanning.cpu import CpuIndex


def feed(
    index: CpuIndex,
    values: np.ndarray,
    lengths: np.ndarray,
    seen_before: np.ndarray,
    order: np.ndarray,
    rows: int,
    n_special: int,
) -> None:
    """Windows through the index in batches of `rows`, padded, with junk in every position that is no candidate."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rng = np.random.default_rng(1)
    for begin in range(0, len(order), rows):
        batch = order[begin : begin + rows]
        columns = n_special + int(lengths[batch].max())
        x = rng.choice([-1e9, 1e9], size=(len(batch), columns, values.shape[1])).astype(np.float32)
        for row, window in enumerate(batch):
            x[row, n_special : n_special + lengths[window]] = values[offsets[window] : offsets[window + 1]]
            x[row, n_special : n_special + seen_before[window]] = 1e9
        picked = index.prepare(columns, n_special, lengths[batch], seen_before[batch], offsets[batch])
        for site in range(len(index.cells.sites)):
            index.update(site, torch.from_numpy(x[..., : index.cells.size(site)]), picked)
        index.n += int((lengths[batch] - seen_before[batch]).sum())


@given(st.integers(0, 10_000), st.sampled_from(["sentence", "prefix"]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_index_equals_brute_force(seed: int, per: str, coarse: bool, split: bool) -> None:
    rng = np.random.default_rng(seed)
    windows, cells, top = int(rng.integers(1, 30)), int(rng.integers(1, 6)), int(rng.integers(1, 8))
    lengths = rng.integers(1, 9, windows)
    seen_before = (lengths * rng.random(windows) * rng.integers(0, 2, windows)).astype(np.int32)
    values = rng.normal(size=(lengths.sum(), cells + 1)).astype(np.float32)  # the second layer is wider
    if coarse:  # many ties
        values = np.round(values)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # with split units, neighbouring windows belong to one unit
    unit_of_window = np.arange(windows) // (2 if split else 1)
    unit_begin = np.array([offsets[np.flatnonzero(unit_of_window == u)[0]] for u in range(unit_of_window.max() + 1)])

    def unit_of(tokens: np.ndarray) -> np.ndarray:
        return np.searchsorted(unit_begin, tokens, side="right") - 1

    results = []
    for order, rows in ((rng.permutation(windows), int(rng.integers(1, 6))), (np.arange(windows), windows)):
        index = CpuIndex(
            Cells.of_widths([cells, cells + 1]),
            top,
            signed=True,
            per=per,
            unit_offsets=unit_begin if split and per == "sentence" else None,
        )
        feed(index, values, lengths, seen_before, order, rows, n_special=int(rng.integers(0, 2)))
        results.append(index.state())
    for name in ("n", "keys", "active", "extremes"):
        np.testing.assert_array_equal(results[0][name], results[1][name])

    window = np.repeat(np.arange(windows), lengths)
    place = np.arange(len(window)) - offsets[window]
    new = place >= seen_before[window]
    tokens = np.flatnonzero(new)
    units = unit_of(tokens)
    for side, sign in ((0, 1), (1, -1)):
        coefficients, best_units, positions = brute_force(
            sign * values[new], units, tokens - unit_begin[units], top, per=per
        )
        got, places = unpack(results[0]["keys"][side, cells:])
        np.testing.assert_array_equal(results[0]["keys"][side, :cells], results[0]["keys"][side, cells:-1])
        np.testing.assert_array_equal(got, coefficients)
        np.testing.assert_array_equal(np.where(places < 0, -1, unit_of(places)), best_units)
        np.testing.assert_array_equal(np.where(places < 0, -1, places - unit_begin[unit_of(places)]), positions)
    assert results[0]["n"] == new.sum()
    np.testing.assert_array_equal(results[0]["active"][cells:], (values[new] > 0).sum(0))
    np.testing.assert_array_equal(
        results[0]["extremes"][cells:], np.stack([values[new].max(0), values[new].min(0)], -1)
    )
    totals = results[0]["sums"][cells:].astype(np.float64)
    np.testing.assert_allclose(totals[:, 0, 0] + totals[:, 0, 1] / 2**FRACTION_BITS, values[new].sum(0), atol=1e-4)
    np.testing.assert_allclose(
        totals[:, 1, 0] + totals[:, 1, 1] / 2**FRACTION_BITS, (values[new] ** 2).sum(0), atol=1e-4
    )


def test_a_cell_that_gets_very_many_survivors_at_once() -> None:
    values = np.sort(np.random.default_rng(0).random((4000, 1)).astype(np.float32), axis=0)  # each beats all before
    index = CpuIndex(Cells.of_widths([1]), 3, signed=False)
    feed(index, values, np.ones(4000, int), np.zeros(4000, np.int32), np.arange(4000), 500, 0)
    assert unpack(index.state()["keys"][0])[1].tolist() == [[3999, 3998, 3997]]


def test_the_state_goes_on_where_it_was_saved() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(60, 4)).astype(np.float32)
    lengths, seen_before = np.full(20, 3), np.zeros(20, np.int32)
    whole, first, second = (CpuIndex(Cells.of_widths([4]), 5, signed=True) for _ in range(3))
    feed(whole, values, lengths, seen_before, np.arange(20), 4, 1)
    feed(first, values, lengths, seen_before, np.arange(8), 4, 1)
    second.load(first.state())
    feed(second, values, lengths, seen_before, np.arange(8, 20), 4, 1)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(second.state()[name], array)


def test_zeros_of_either_sign_give_the_same_bytes_in_any_order() -> None:
    """A ReLU times a negative number is −0, and −0 = 0 but for their bytes."""
    values = np.array([[0.0, -0.0], [-0.0, 0.0], [0.0, -1.0], [-0.0, -0.0]], np.float32)
    found = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        index = CpuIndex(Cells.of_widths([2]), 2, signed=True)
        feed(index, values, np.ones(4, np.int64), np.zeros(4, np.int32), np.array(order), 1, 0)
        found.append(index.state()["extremes"].tobytes())
    assert set(found) == {np.array([[0, 0], [0, -1]], np.float32).tobytes()}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_sums_are_the_same_bytes_in_any_order(values: list[float], random: object) -> None:
    one, other = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for value in values:
        add_exactly(one, np.array(value))
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for value in shuffled:
        add_exactly(other, np.array(value))
    assert one.tolist() == other.tolist()
    assert one[0] + one[1] / 2**FRACTION_BITS == pytest.approx(sum(values), abs=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_coefficients_that_are_not_finite_are_refused(bad: float) -> None:
    index = CpuIndex(Cells.of_widths([3, 2]), 3, signed=True)
    picked = index.prepare(2, 0, np.array([2]), np.zeros(1, np.int32), np.zeros(1, np.int64))
    with pytest.raises(FloatingPointError, match="Layer 1"):
        index.update(1, torch.tensor([[[1.0, bad], [2.0, 1.0]]]), picked)
