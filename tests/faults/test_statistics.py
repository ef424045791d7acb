"""Means and deviations of coefficients that sums of 32- and 64-bit numbers cannot hold: within the bound, or no number."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny, tokenizer

import keyhole
from keyhole.cells import Cells
from keyhole.kernels.sums import add_exactly, add_integers
from keyhole.models.model import Model
from keyhole.scanning.cpu import CpuIndex
from keyhole.store.stats import moments
from keyhole.views import notebook
from keyhole.views import terminal as show
from keyhole.views.worth import worth_showing
from keyhole.web.contract import Explorer
from keyhole.web.pack import compact

CHAIN = 65
"""Additions of 32 bits that a coefficient goes through on a CPU, at most, and the rounding of its square: docs/runs.md."""


def index_of(values: np.ndarray, rows: int = 16) -> CpuIndex:
    """Values [prefixes, cells] through the index, 128 prefixes per row."""
    index = CpuIndex(Cells.of_widths([values.shape[1]]), 3, signed=True)
    for begin in range(0, len(values), rows * 128):
        part = values[begin : begin + rows * 128].reshape(-1, 128, values.shape[1])
        lengths = np.full(len(part), 128)
        first = begin + 128 * np.arange(len(part))
        picked = index.prepare(128, 0, lengths, np.zeros(len(part), np.int32), first)
        index.update(0, torch.from_numpy(part), picked)
        index.n += 128 * len(part)
    return index


def bounds(values: np.ndarray, chain: int = CHAIN) -> tuple[np.ndarray, np.ndarray]:
    """By how much mean and std may be off: what docs/runs.md promises."""
    mean, std = np.abs(values).mean(0), values.std(0)
    unit = chain * 2.0**-24
    variance = 3 * unit * (values**2).mean(0) + 2.0**-52 * (1 + 2 * mean)
    return unit * mean + 2.0**-52, np.minimum(np.sqrt(variance), variance / np.maximum(std, 1e-30))


def adversarial(n: int = 8192) -> np.ndarray:
    """Cells whose mean is large compared with their deviation, or whose rounding always goes one way, or which are tiny."""
    rng = np.random.default_rng(0)
    cells = []
    for mean in (0.1, 1 / 3, 1.0, 999.7, 3e4, 1e6):
        for std in (0.0, 1e-7, 1e-5, 1e-3, 0.1, 3.0):
            cells += [mean + std * mean * rng.normal(size=n), mean + std * mean * np.sign(rng.normal(size=n))]
    one = np.full(n, 1e4)
    one[17] = 1.0
    cells += [one, -one, np.full(n, 0.1), np.full(n, 16777215.0), 1e-9 * rng.normal(size=n), np.zeros(n)]
    return np.stack(cells, -1).astype(np.float32)


def test_mean_and_deviation_stay_within_their_bound() -> None:
    values = adversarial()
    state = index_of(values).state()
    mean, std = moments(state["sums"], state["extremes"], len(values))
    exact = values.astype(np.float64)
    of_mean, of_std = bounds(exact)
    assert (np.abs(mean - exact.mean(0)) <= of_mean).all()
    assert (np.abs(std - exact.std(0)) <= of_std).all()


def test_the_extremes_correct_what_rounding_made_impossible() -> None:
    values = adversarial()
    state = index_of(values).state()
    mean, std = moments(state["sums"], state["extremes"], len(values))
    high, low = values.max(0).astype(np.float64), values.min(0).astype(np.float64)
    assert ((low <= mean) & (mean <= high)).all()
    spread = high - low
    assert (std <= spread / 2).all()
    assert (std >= spread / np.sqrt(2 * len(values))).all()
    assert (std[spread == 0] == 0).all()
    assert (std[spread > 0] > 0).all()


@pytest.mark.parametrize("size", [1e7, 3e9, 1e12, 1e19, 1e25, 3e38])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_that_left_their_bits_are_no_number(size: float, sign: int) -> None:
    """The range of the sums ends at 2⁶³. No warning on the way: those are errors here."""
    rng = np.random.default_rng(1)
    values = (sign * size * rng.uniform(0.5, 1.0, (2048, 3))).astype(np.float32)
    values[:, 2] = rng.normal(size=2048)
    state = index_of(values).state()
    mean, std = moments(state["sums"], state["extremes"], len(values))
    exact = values.astype(np.float64)
    assert np.isfinite([mean[2], std[2]]).all()
    of_mean, of_std = bounds(exact)
    for got, wanted, allowed in ((mean, exact.mean(0), of_mean), (std, exact.std(0), of_std)):
        assert (np.isnan(got) | (np.abs(got - wanted) <= allowed)).all()
    assert np.isnan(std[:2]).all() == (size >= 3e9)
    assert np.isnan(mean[:2]).all() == (size >= 1e19)


@pytest.mark.parametrize("shift", [2.0**-20, 1.0, 2.0**20])
def test_a_deviation_is_right_up_to_the_edge_and_no_number_beyond(shift: float) -> None:
    """Around n·m² = 2⁶²: the last size that is trusted is right."""
    n = 2048
    size = np.sqrt(2.0**62 / n)
    for factor, trusted in ((0.999, True), (1.001, False)):
        values = np.full((n, 1), size * factor, np.float32)
        values[::2] = -size * factor + shift
        state = index_of(values).state()
        _, std = moments(state["sums"], state["extremes"], n)
        assert np.isfinite(std[0]) == trusted
        if trusted:
            assert std[0] == pytest.approx(values.astype(np.float64).std(), rel=1e-5)


def test_wrapped_sums_are_the_same_bytes_in_any_order() -> None:
    values = [3e38, -2e19, 1.5, np.inf, -np.inf, np.nan, 9.2e18, 9.2e18, -0.25]
    totals = []
    for order in (values, values[::-1], sorted(values, key=str)):
        total = np.zeros((1, 2), np.int64)
        for value in order:
            add_exactly(total, np.array([value]))
        totals.append(total.tolist())
    assert totals[0] == totals[1] == totals[2]
    halves = [np.zeros((1, 2), np.int64) for _ in range(2)]
    for place, value in enumerate(values):
        add_exactly(halves[place % 2], np.array([value]))
    add_integers(halves[0], halves[1])
    assert halves[0].tolist() == totals[0]


def test_ordinary_sums_keep_their_bytes() -> None:
    """The integers that a sum is kept as, written out by hand."""
    total = np.zeros((3, 2), np.int64)
    add_exactly(total, np.array([1.25, -0.75, 2.0**61]))
    add_exactly(total, np.array([0.75, 0.5, 1.0]))
    half = 1 << 51
    assert total.tolist() == [[2, 0], [-1, half + half // 2], [2**61 + 1, 0]]


@pytest.mark.usefixtures("no_numpy_noise")
def test_the_kernels_sums_are_cut_the_same_way() -> None:
    from triton_here import DEVICE

    from keyhole.scanning.gpu import GpuIndex, Tiling

    values = np.array([[3e9, 1e25, 1.5, -1e19], [2e9, 1e25, 2.5, -1e19]], np.float32)[None]
    small = Tiling(rows=1, lanes=1, block=4, unroll=2, warps=1, fill=1)
    index, plain = (
        GpuIndex([DEVICE], Cells.of_widths([4]), 3, signed=True, per="sentence", tiling=small, slots=4),
        CpuIndex(Cells.of_widths([4]), 3, signed=True),
    )
    given = (2, 0, np.array([2]), np.zeros(1, np.int32), np.zeros(1, np.int64))
    index.update(0, torch.from_numpy(values).to(DEVICE), index.prepare(*given))
    plain.update(0, torch.from_numpy(values), plain.prepare(*given))
    got, wanted = index.state(), plain.state()
    np.testing.assert_array_equal(got["sums"], wanted["sums"])
    _, std = moments(got["sums"], got["extremes"], 2)
    assert np.isnan(std).tolist() == [True, True, False, True]


# Every view


def huge(factor: float) -> Model:
    """A model whose coefficients are `factor` times as large, and which says the same."""
    lm = copy.deepcopy(tiny("opt").lm)
    with torch.no_grad():
        for layer in lm.model.decoder.layers:
            layer.fc1.weight *= factor
            layer.fc1.bias *= factor
            layer.fc2.weight /= factor
    return Model(lm, tokenizer(), source="huge")


@pytest.mark.parametrize("factor", [1e11, 1e22])
def test_every_view_says_that_there_is_no_number(factor: float, text: Path, tmp_path: Path) -> None:
    run = keyhole.scan(huge(factor), [text], out=tmp_path / "run", top=3, unit="line")
    plain = keyhole.scan(tiny("opt"), [text], out=tmp_path / "plain", top=3, unit="line")
    np.testing.assert_array_equal(run.stats.active, plain.stats.active)
    cell = next(cell for layer in range(3) for cell in run.layer(layer) if cell.triggers)
    assert np.isnan(cell.stats.std)
    assert np.isnan(cell.stats.mean) == (factor > 1e19)
    assert np.isfinite(plain[cell.address].stats.std)
    console = show.console()
    with console.capture() as shown:
        console.print(show.cell(cell))
        console.print(show.info(run))
    assert "std –" in shown.get()
    assert "nan" not in shown.get()
    assert ("mean –" in notebook.cell(cell)) == (factor > 1e19)
    assert "nan" not in notebook.cell(cell) + notebook.layer(run.layer(0))
    said = Explorer(run).cell(cell.layer, cell.index)
    assert said.stats.std is None
    compact(said)
    assert len(worth_showing(run)) <= 3


def test_a_shard_without_a_prefix_has_no_statistics(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word\n")
    parts = [
        keyhole.scan(tiny("gpt2"), [tmp_path / "a.txt"], out=tmp_path / f"{i}", top=3, unit="line", shard=f"{i}/3")
        for i in (1, 2, 3)
    ]
    empty = next(part for part in parts if part.manifest["corpus"]["scanned_prefixes"] == 0)
    assert np.isnan(empty["L0.0"].stats.mean)
    assert np.isnan(empty["L0.0"].stats.active_fraction)
    console = show.console()
    with console.capture() as shown:
        console.print(show.cell(empty["L0.0"]))
        console.print(show.info(empty))
    assert "nan" not in shown.get()
    assert "inf" not in shown.get().replace("info", "")
    assert "nan" not in notebook.cell(empty["L0.0"]) + notebook.layer(empty.layer(1))
    notebook.layer_chart(empty.layer(0)).to_json()
