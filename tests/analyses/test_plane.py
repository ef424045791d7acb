"""The planes of values and of keys against numpy's SVD, planted groups, and a model with other signs."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from families import tiny
from flipping import flipped
from small import scanned

import keyhole
from keyhole.analyses import plane
from keyhole.errors import MissingExtra, UsageError
from keyhole.models.model import Model
from keyhole.store import planes


def made(model: Model, folder: Path, **options: Any) -> tuple[keyhole.Run, planes.Planes]:
    folder.mkdir(parents=True, exist_ok=True)
    run = keyhole.analyze(scanned(model, folder, batch_tokens=300), only=["plane"], model=model, **options)
    found = planes.of(keyhole.open(run.path))
    assert found is not None
    return run, found


def unit(x: torch.Tensor) -> npt.NDArray[np.float64]:
    rows = x.double().numpy()
    found: npt.NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def by_svd(x: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Coordinates along the first two principal axes, and the share of the variance of each."""
    centred = x - x.mean(0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    for axis in axes[:2]:
        axis *= np.sign(axis[np.abs(axis).argmax()])
    return centred @ axes[:2].T, sizes[:2] ** 2 / (sizes**2).sum()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_planes_are_those_of_numpys_svd(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run, found = made(model, tmp_path)
    signs = run.orientation.astype(float)[:, None]
    assert run.gated == (family == "llama")
    assert not run.gated or (signs < 0).any()
    layers = range(run.layers)
    values = signs * unit(torch.cat([model.values(layer) for layer in layers]))
    keys = unit(torch.cat([model.keys(layer) for layer in layers]))
    if run.gated:
        ups = signs * unit(torch.cat([model.ups(layer) for layer in layers]))
        keys = np.concatenate([keys, ups], 1) / np.sqrt(2)
    for name, vectors in (("values", values), ("keys", keys)):
        at, shares = by_svd(vectors)
        side = found.sides[name]
        np.testing.assert_allclose(side.at, at, atol=1e-4)
        np.testing.assert_allclose(side.explained, shares, rtol=1e-4)
        assert side.sample == len(run.cells)
        assert 0 < side.shuffled[1] <= side.shuffled[0] < 1


def test_other_signs_leave_the_picture_as_it_is(tmp_path: Path) -> None:
    model = tiny("llama")
    other, signs = flipped(model)
    assert (signs < 0).any()
    (_, one), (_, two) = made(model, tmp_path / "one"), made(other, tmp_path / "two")
    for name in planes.SIDES:
        np.testing.assert_array_equal(one.sides[name].at, two.sides[name].at)
        assert one.sides[name][1:] == two.sides[name][1:]


@pytest.mark.parametrize("way", ["exact", "sampled", "randomized"])
def test_planted_groups_lie_apart(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    groups = np.arange(len(model.cells)) % 3
    random = np.random.default_rng(0)
    middles = random.standard_normal((3, model.values(0).shape[1]))
    for layer in range(len(model.cells.layers)):
        own = groups[model.cells.span(layer)]
        noise = 0.15 * random.standard_normal((len(own), middles.shape[1]))
        rows = torch.from_numpy((middles[own] + noise) * random.uniform(0.2, 5, (len(own), 1)))
        model.values(layer).copy_(rows.float())  # lengths differ a lot, directions do not
    if way == "sampled":
        monkeypatch.setattr(plane, "SAMPLE_CELLS", len(model.cells) // 2)
    if way == "randomized":
        monkeypatch.setattr(plane, "EXACT", 1)
    _, found = made(model, tmp_path)
    side = found.sides["values"]
    assert side.sample == (len(model.cells) if way != "sampled" else len(model.cells) // 2)
    centres = np.stack([side.at[groups == group].mean(0) for group in range(3)])
    nearest = np.linalg.norm(side.at[:, None] - centres, axis=2).argmin(1)
    np.testing.assert_array_equal(nearest, groups)
    assert sum(side.explained) > 0.8
    assert sum(side.explained) > 2 * sum(side.shuffled)


def test_random_vectors_are_no_more_than_chance(tmp_path: Path) -> None:
    model = tiny("gpt2")
    random = np.random.default_rng(1)
    for layer in range(len(model.cells.layers)):
        values = model.values(layer)
        values.copy_(torch.from_numpy(random.standard_normal(tuple(values.shape))).float())
    side = made(model, tmp_path)[1].sides["values"]
    assert sum(side.explained) == pytest.approx(sum(side.shuffled), rel=0.15)


def test_umap_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path, batch_tokens=300)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(MissingExtra, match=r"umap-learn.*\[umap\]"):
        keyhole.analyze(run, only=["plane"], model=model, map="umap")
    with pytest.raises(UsageError, match="pca, umap"):
        keyhole.analyze(run, only=["plane"], model=model, map="tsne")

    class Fake:
        def __init__(self, **asked: Any) -> None:
            assert asked == {"n_components": 2, "metric": "cosine", "random_state": 3}

        def fit_transform(self, vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Fake))
    found = planes.of(keyhole.analyze(run, only=["plane"], model=model, map="umap", seed=3))
    assert found is not None
    assert found.method == "umap"
    np.testing.assert_allclose(
        found.sides["values"].at,
        np.concatenate([unit(model.values(layer))[:, :2] for layer in range(run.layers)]),
        atol=1e-5,
    )
