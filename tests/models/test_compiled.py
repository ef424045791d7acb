"""Compiled blocks give the coefficients of the plain ones, and leave the model as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny

import keyhole
from keyhole.errors import ModelError, UsageError
from keyhole.models.compiled import compiled
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"
)


def coefficients(model: Model, ids: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    kept: list[tuple[int, torch.Tensor]] = []
    model.run(ids, lambda site, x, tokens: kept.append((site, x.clone())))
    return kept


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize(
    "family", ["llama", "opt", "gemma3_text", "gpt_neo"]
)  # of the last two, layers attend differently
def test_coefficients_are_the_same_whatever_the_shape_and_the_model_is_as_it_was_afterwards(family: str) -> None:
    model = tiny(family)
    random = torch.Generator().manual_seed(0)
    batches = [torch.randint(1, 250, shape, generator=random) for shape in ((3, 7), (5, 33), (1, 9))]
    before = [coefficients(model, ids) for ids in batches]
    for _ in range(2):  # what was compiled serves again
        with compiled(model):
            within = [coefficients(model, ids) for ids in batches]
            model.forward(batches[0])  # nobody listens
        for plain, other in zip(before, within, strict=True):
            assert [layer for layer, _ in other] == list(range(model.layers))
            for (_, one), (_, two) in zip(plain, other, strict=True):
                assert one.shape == two.shape
                torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    for plain, again in zip(before, (coefficients(model, ids) for ids in batches), strict=True):
        assert all(torch.equal(one, two) for (_, one), (_, two) in zip(plain, again, strict=True))
    assert not any(site.module._forward_pre_hooks for site in model.sites)


@pytest.mark.slow(seconds=3)
def test_a_compiled_scan_finds_what_a_plain_one_does(text: Path, tmp_path: Path) -> None:
    model = tiny("llama")
    plain = keyhole.scan(model, text, tmp_path / "plain", top=4)
    other = keyhole.scan(model, text, tmp_path / "compiled", top=4, compile=True)
    assert other.manifest["config"]["compile"] is True
    np.testing.assert_allclose(plain.coefficients, other.coefficients, rtol=1e-3, atol=1e-5)
    assert (plain.units == other.units).mean() > 0.99
    assert model.tap is None


def test_what_cannot_be_compiled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")

    def fails(*args: object) -> None:
        raise RuntimeError("no compiler\nhere")

    with monkeypatch.context() as patch:
        patch.setattr(Model, "forward", fails)
        with pytest.raises(ModelError, match=r"not be compiled \(RuntimeError: no compiler\).*without --compile"):
            enter(model)
    assert not any(site.module._forward_pre_hooks for site in model.sites)
    monkeypatch.setattr(model, "split", True)
    with pytest.raises(UsageError, match="one device"):
        enter(model)


def test_a_scan_that_cannot_be_compiled_leaves_nothing_behind(text: Path, tmp_path: Path) -> None:
    model = tiny("llama")
    with applied(model, [Edit(layer=1, cell=3, scale=0.0)]), pytest.raises(UsageError, match="scan without it"):
        keyhole.scan(model, text, tmp_path / "run", compile=True)
    assert list(tmp_path.glob("run*")) == []


def test_an_edited_model_is_not_compiled() -> None:
    model = tiny("llama")
    with applied(model, [Edit(layer=1, cell=3, scale=0.0)]), pytest.raises(UsageError, match="hooks"):
        enter(model)


def enter(model: Model) -> None:
    with compiled(model):
        raise AssertionError


def test_our_attention_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it hands every call to torch's, so the coefficients are those of plain blocks."""
    from keyhole.models import patches

    model = tiny("llama")
    ids = torch.randint(1, 250, (3, 9), generator=torch.Generator().manual_seed(0))
    before = coefficients(model, ids)
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    with compiled(model):
        within = coefficients(model, ids)
    for (_, one), (_, two) in zip(before, within, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    assert model.config._attn_implementation == "sdpa"
