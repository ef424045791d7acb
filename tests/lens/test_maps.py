"""Maps between layers: ridge regression against least squares with augmented rows, planted maps, and the lens that uses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families import TINY, tiny
from small import scanned

import keyhole
from keyhole.errors import RunDamaged, UsageError
from keyhole.lens import maps
from keyhole.lens.head import Head
from keyhole.lens.maps import Maps, Pairs
from keyhole.store import layout

CPU = torch.device("cpu")


def fitted(x: torch.Tensor, y: torch.Tensor, towards: float = 1.0) -> tuple[maps.Map, float]:
    pairs = Pairs(x.shape[1], CPU, (towards,))
    for part in range(0, len(x), 37):
        pairs.add(x[part : part + 37], y[part : part + 37])
    return pairs.fit()[0]


def planted(n: int, width: int, noise: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    x, m = torch.randn(n, width, generator=random) + 3, torch.randn(width, width, generator=random)
    return x, x @ m + 1.5 + noise * torch.randn(n, width, generator=random), m


@pytest.mark.parametrize(("n", "towards"), [(40, 1.0), (40, 0.0), (8, 1.0)])
def test_a_map_is_the_solution_of_augmented_least_squares(n: int, towards: float) -> None:
    x, y, _ = planted(n, 6, noise=2.0)
    found, alpha = fitted(x, y, towards)
    a, b = x.double().numpy(), y.double().numpy()
    centred, wanted = a - a.mean(0), b - b.mean(0) - towards * (a - a.mean(0))
    rows = np.concatenate([centred, np.sqrt(alpha) * np.eye(6)])
    shrunk = np.linalg.lstsq(rows, np.concatenate([wanted, np.zeros((6, 6))]), rcond=None)[0]
    linear = shrunk + towards * np.eye(6)
    np.testing.assert_allclose(found.linear.numpy(), linear, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.offset.numpy(), b.mean(0) - a.mean(0) @ linear, rtol=1e-4, atol=1e-4)


def test_the_strength_has_the_least_cross_validation_error() -> None:
    x, y, _ = planted(40, 6, noise=2.0)
    _, alpha = fitted(x, y)
    a, b = x.double().numpy(), y.double().numpy()
    centred, step = a - a.mean(0), b - a - (b - a).mean(0)
    largest = np.linalg.eigvalsh(centred.T @ centred)[-1]

    def error(strength: float) -> float:
        hat = centred @ np.linalg.inv(centred.T @ centred + strength * np.eye(6)) @ centred.T + 1 / len(a)
        return float(len(a) * ((step - hat @ step) ** 2).sum() / (len(a) - np.trace(hat)) ** 2)

    tried = maps.STRENGTHS * largest
    assert alpha == pytest.approx(min(tried, key=error))
    assert tried[0] < alpha < tried[-1]


def test_a_planted_map_is_recovered_and_shuffled_pairs_give_none() -> None:
    x, y, m = planted(600, 12, noise=0.01)
    train, test = slice(0, 400), slice(400, None)
    found, _ = fitted(x[train], y[train])
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    null, _ = fitted(x[train], y[train][order], towards=0.0)
    spread = (y[test] - y[test].mean(0)).square().sum()
    r2 = [float(1 - (y[test] - each.residuals(x[test])).square().sum() / spread) for each in (found, null)]
    assert r2[0] > 0.999
    assert -0.1 < r2[1] < 0.02
    torch.testing.assert_close(found.linear, m, rtol=0.02, atol=0.02)


def test_the_map_of_the_last_layer_is_exactly_the_identity() -> None:
    x, _, _ = planted(50, 6)
    found, _ = fitted(x, x)
    assert torch.equal(found.linear, torch.eye(6))
    assert torch.equal(found.offset, torch.zeros(6))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo"])
def test_through_the_identity_the_lens_is_norm(family: str) -> None:
    head = Head(tiny(family))
    head.maps = Maps.identity(3, head.weight.shape[1])
    vectors = head.values(1).contiguous()  # the mean of another layout is rounded otherwise
    assert torch.equal(head.see("mapped", vectors, 1), head.see("norm", vectors))
    assert torch.equal(head.top("mapped", vectors, 1), head.top("norm", vectors))


def test_a_vector_is_read_through_the_map_of_its_own_layer() -> None:
    head = Head(tiny("llama"))
    random = np.random.default_rng(0)
    linear = random.normal(size=(3, 16, 16)).astype(np.float32)
    head.maps = Maps(linear, random.normal(size=(3, 16)).astype(np.float32), {})
    vectors, layers = head.values(1)[:6], torch.tensor([2, 0, 1, 0, 2, 2])
    seen = head.see("mapped", vectors, layers)
    for vector, layer, got in zip(vectors, layers.tolist(), seen, strict=True):
        expected = head.norm.gain * (vector @ torch.from_numpy(linear[layer]))  # an RMSNorm does not centre
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(head.see("norm", vectors, layers), head.see("norm", vectors))


def test_without_maps_or_without_a_layer_the_lens_says_what_is_missing() -> None:
    head = Head(tiny("llama"))
    with pytest.raises(UsageError, match=r"none was fitted.*--lens mapped"):
        head.see("mapped", torch.zeros(1, 16), 0)
    head.maps = Maps.identity(3, 16)
    with pytest.raises(UsageError, match="which layer"):
        head.see("mapped", torch.zeros(1, 16))


@pytest.mark.parametrize("family", sorted(TINY))
def test_without_the_final_norm_logits_are_the_plain_product(family: str) -> None:
    model = tiny(family)
    x = torch.randn(4, Head(model).weight.shape[1], generator=torch.Generator().manual_seed(0))
    output = model.lm.get_output_embeddings()
    expected = x @ output.weight.T + (output.bias if output.bias is not None else 0)
    if cap := getattr(model.config, "final_logit_softcapping", None):
        expected = torch.tanh(expected / cap) * cap
    torch.testing.assert_close(Head(model).without_norm(x), expected, rtol=1e-4, atol=1e-5)


def test_maps_are_stored_and_read_back_unless_other_ones_are_asked_for(tmp_path: Path) -> None:
    run = scanned(tiny("llama"), tmp_path)
    random = np.random.default_rng(0)
    made = Maps(random.random((3, 16, 16), np.float32), random.random((3, 16), np.float32), {"states": 5})
    assert Maps.read(run, {"states": 5}) is None
    made.save(run)
    found = Maps.read(keyhole.open(run.path), {"states": 5})
    assert found is not None
    np.testing.assert_array_equal(found.linear, made.linear)
    np.testing.assert_array_equal(found.offset, made.offset)
    assert Maps.read(run, {"states": 6}) is None
    assert layout.foreign(run.path) is None


@pytest.mark.parametrize("broken", [np.zeros((3, 16, 8), np.float32), np.zeros((2, 16, 16), np.float32), np.zeros(3)])
def test_maps_that_do_not_fit_the_run_are_refused(tmp_path: Path, broken: np.ndarray) -> None:
    run = scanned(tiny("llama"), tmp_path)
    Maps.identity(3, 16).save(run)
    layout.save_array(run.path, "maps_linear", broken)
    with pytest.raises(RunDamaged, match="maps_linear"):
        Maps.read(run, {})
