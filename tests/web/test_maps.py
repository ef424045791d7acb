"""The map's answers against the numbers of every cell: whole for a small model, in bins and blocks for a large one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import explored
import numpy as np
import numpy.typing as npt
import pytest

import keyhole
from keyhole.analyses import registry
from keyhole.analyses.record import CellMeasure
from keyhole.export.site import export
from keyhole.store import planes
from keyhole.web import maps
from keyhole.web.contract import Explorer
from keyhole.web.pack import LEVELS, UNKNOWN, quantized
from keyhole.web.points import FAR

BINS = 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("maps"))


@pytest.fixture
def numbers(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> npt.NDArray[np.float64]:
    """A measure with equal numbers and unknown ones, of a model that has more cells than one answer holds."""
    found = np.random.default_rng(0).integers(0, 30, len(run.cells)) / 29
    found[[0, 1, 2, 3, 30]] = np.nan
    measure = CellMeasure("planted", "planted", "key", lambda run, values: found)
    monkeypatch.setattr(registry, "offered_measures", lambda run, values: [measure])
    monkeypatch.setattr(maps, "WHOLE", BINS)
    return found


def data(explorer: Explorer, path: str) -> Any:
    return json.loads(explorer.body(path))


def unpacked(text: str, kind: str = "u1") -> npt.NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind)


def test_bins_hold_their_strongest_cell(run: keyhole.Run, numbers: npt.NDArray[np.float64]) -> None:
    explorer = Explorer(run)
    listed, found = data(explorer, "map.json"), data(explorer, "maps/0.json")
    size, bins = listed["bin"], 0
    assert (size, listed["blocks"] > 0) == (4, True)  # 3 layers of 24 cells in at most 20 bins
    data_, strongest = unpacked(found["data"]), unpacked(found["strongest"], "<u2")
    counts = unpacked(found["counts"], "<u4").reshape(len(run.cells.layers), 256)
    for layer in range(len(run.cells.layers)):
        own = numbers[run.cells.span(layer)]
        for begin in range(0, len(own), size):
            part = own[begin : begin + size]
            if np.isnan(part).all():
                assert data_[bins] == UNKNOWN
            else:
                assert strongest[bins] == np.nanargmax(part)
                assert data_[bins] / LEVELS == pytest.approx(np.nanmax(part), abs=1 / LEVELS)
            bins += 1
        assert counts[layer].sum() == len(own)
        assert counts[layer, UNKNOWN] == np.isnan(own).sum()
    assert bins == len(data_) == len(strongest) <= BINS
    assert found["unknown"] is True


def test_blocks_hold_the_same_cells_of_every_layer(run: keyhole.Run, numbers: npt.NDArray[np.float64]) -> None:
    explorer = Explorer(run)
    listed = data(explorer, "map.json")
    seen: list[list[Any]] = [[] for _ in run.cells.layers]
    ranked: list[list[Any]] = [[] for _ in run.cells.layers]
    for block in range(listed["blocks"]):
        cells = unpacked(data(explorer, f"mapcells/0/{block}.json")["data"])
        ranks = unpacked(data(explorer, f"mapranks/0/{block}.json")["data"], "<u4")
        at = 0
        for layer in range(len(run.cells.layers)):
            wide = min(listed["block"], run.cells.size(layer) - block * listed["block"])
            seen[layer] += cells[at : at + wide].tolist()
            ranked[layer] += ranks[at : at + wide].tolist()
            at += wide
        assert at == len(cells) == len(ranks)
    whole = quantized(numbers).data
    for layer in range(len(run.cells.layers)):
        own = numbers[run.cells.span(layer)]
        assert seen[layer] == whole[run.cells.span(layer)].tolist()
        assert ranked[layer] == sorted(range(len(own)), key=lambda i: (-np.nan_to_num(own[i], nan=-1), i))


def test_an_export_has_the_blocks(run: keyhole.Run, numbers: npt.NDArray[np.float64], tmp_path: Path) -> None:
    export(run, tmp_path / "site")
    written = {file.name for file in (tmp_path / "site" / "data").iterdir()}
    assert {"maps-0.pack", "mapcells-0-0.pack", "mapranks-0-0.pack"} <= written
    export(run, tmp_path / "site", force=True)  # it recognizes its own files


@pytest.mark.parametrize("log", [False, True])
def test_bytes_are_the_same_in_chunks(log: bool) -> None:
    numbers = np.random.default_rng(1).gamma(2, size=1000)
    numbers[::7] = np.nan
    whole, parts = quantized(numbers, log=log), quantized(numbers, log=log, chunk=64)
    assert (whole.lo, whole.hi) == (parts.lo, parts.hi)
    np.testing.assert_array_equal(whole.data, parts.data)
    back = whole.data / LEVELS
    back = whole.lo * (whole.hi / whole.lo) ** back if log else whole.lo + back * (whole.hi - whole.lo)
    known = ~np.isnan(numbers)
    np.testing.assert_array_equal(whole.data == UNKNOWN, ~known)
    np.testing.assert_allclose(back[known], numbers[known], rtol=0.02, atol=whole.hi / 250)


def test_a_measure_without_any_number() -> None:
    for log in (False, True):
        assert (quantized(np.full(5, np.nan), log=log).data == UNKNOWN).all()


# A plane of points


def test_bins_and_tiles_of_a_plane(
    run: keyhole.Run, numbers: npt.NDArray[np.float64], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at = np.random.default_rng(5).normal(size=(len(run.cells), 2)).astype(np.float32)
    at[7:12] = at[6]  # several cells at one point are one bin
    side = planes.Side(at, (0.3, 0.2), (0.1, 0.1), len(at))
    monkeypatch.setattr(planes, "of", lambda run: planes.Planes("pca", 0, {"values": side}))
    explorer = Explorer(run)
    assert "pointbins/0/0.json" in set(explorer.paths())
    assert "points/0.json" not in set(explorer.paths())
    (plane,) = data(explorer, "planes.json")["planes"]
    scale = FAR / np.ptp(at, axis=0).max()
    right = np.stack([at[:, 0] - at[:, 0].min(), at[:, 1].max() - at[:, 1]], 1) * scale
    bins = data(explorer, "pointbins/0/0.json")
    where, counts = unpacked(bins["places"], "<u4"), unpacked(bins["counts"], "<u4")
    coordinates = unpacked(bins["at"], "<u2").reshape(-1, 2)
    np.testing.assert_allclose(coordinates, right[where], atol=1)
    assert counts.sum() == len(at)
    own = np.rint(right).astype(int) >> 8
    for place, count in zip(where, counts, strict=True):
        mates = np.flatnonzero((own == own[place]).all(1))
        assert len(mates) == count
        strengths = np.nan_to_num(numbers[mates], nan=-1)
        assert np.nan_to_num(numbers[place], nan=-1) == strengths.max()
    seen: list[int] = []
    for tile, (left, upper, far, lower) in enumerate(plane["tiles"]):
        found = data(explorer, f"pointcells/0/0/{tile}.json")
        places = unpacked(found["places"], "<u4")
        inside = unpacked(found["at"], "<u2").reshape(-1, 2)
        np.testing.assert_allclose(inside, right[places], atol=1)
        assert [*inside.min(0), *inside.max(0)] == [left, upper, far, lower]
        np.testing.assert_array_equal(unpacked(found["data"]), quantized(numbers).data[places])
        seen += places.tolist()
    assert sorted(seen) == list(range(len(run.cells)))
    assert len(plane["tiles"]) > 1
