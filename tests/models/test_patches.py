"""Our attention through transformers' interface: chosen only where it should be, the same results, and nothing left."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from families import TINY, tiny
from torch import Tensor

from keyhole.kernels import attention
from keyhole.models import patches
from keyhole.models.model import Model

BY_NAME = {name for name in TINY if name not in ("bloom", "falcon", "gemma2", "gpt_neo", "gptj")}
"""Families that choose torch's attention by name, and need no mask for causal windows (falcon always makes one)."""


def coefficients(model: Model) -> list[Tensor]:
    kept: list[Tensor] = []
    ids = torch.randint(1, 250, (3, 11), generator=torch.Generator().manual_seed(0))
    model.run(ids, lambda site, x, tokens: kept.append(x.clone()))
    return kept


@pytest.mark.parametrize("family", sorted(TINY))
def test_forced_on_a_cpu_it_gives_the_same_bytes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family)
    before = model.config._attn_implementation
    plain = coefficients(model)
    asked: list[str] = []
    usual = attention.try_short

    def watched(*args: object) -> Tensor | None:
        asked.append(model.config._attn_implementation)
        return usual(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "try_short", watched)
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    forced = coefficients(model)
    assert all(torch.equal(one, two) for one, two in zip(plain, forced, strict=True))
    assert asked == ["keyhole"] * (model.layers if family in BY_NAME else 0)
    assert model.config._attn_implementation == before
    assert not patches._replaced.users


@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_windows_longer_than_a_sliding_window_keep_their_mask(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family, sliding_window=4)
    wide = tiny(family)
    plain = coefficients(model)
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    assert all(torch.equal(one, two) for one, two in zip(plain, coefficients(model), strict=True))
    assert not torch.equal(plain[-1], coefficients(wide)[-1])


def test_heads_that_share_keys_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", num_key_value_heads=1)
    plain = coefficients(model)
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    assert all(torch.equal(one, two) for one, two in zip(plain, coefficients(model), strict=True))


def test_a_kernel_that_answers_is_used_and_laid_out_as_the_model_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the kernel, plain causal attention: what it returns must reach the projection in the right order."""
    for family in ("llama", "gpt2", "qwen3"):
        model = tiny(family)
        plain = coefficients(model)
        calls: list[tuple[int, ...]] = []

        def short(
            q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: float | None, calls: list[tuple[int, ...]] = calls
        ) -> Tensor:
            calls.append(tuple(q.shape))
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(2, 3)) * (q.shape[3] ** -0.5 if scale is None else scale)
            return torch.softmax(scores.masked_fill(later, -torch.inf), 3) @ v

        with monkeypatch.context() as patch:
            patch.setattr(attention, "try_short", short)
            patch.setattr(patches, "kernel_runs", lambda: True)
            got = coefficients(model)
        assert len(calls) == model.layers
        for one, two in zip(plain, got, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_two_threads_share_a_model_and_the_last_one_puts_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = copy.deepcopy(tiny("llama").lm)
    models = [Model(lm, tiny("llama").tokenizer, source=str(number)) for number in range(2)]  # a lock each
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    ids = torch.arange(12).view(2, 6)
    expected = lm.config._attn_implementation
    threads = [threading.Thread(target=lambda m=m: [m.forward(ids) for _ in range(20)]) for m in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lm.config._attn_implementation == expected == "sdpa"
    first, second = patches.own_attention(lm), patches.own_attention(lm)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert lm.config._attn_implementation == "keyhole"
    second.__exit__(None, None, None)
    assert lm.config._attn_implementation == "sdpa"


def test_it_is_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    model, within = tiny("llama"), []

    def fails(site: int, x: Tensor, tokens: Tensor | None) -> None:
        within.append(model.config._attn_implementation)
        raise KeyError

    with pytest.raises(KeyError):
        model.run(torch.arange(5)[None], fails)
    assert within == ["keyhole"]
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", ["falcon", "bloom"])
def test_families_without_the_interface_never_need_the_kernel(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's attention is called with there has a mask, which the kernel does not take."""
    model, called = tiny(family), []
    usual = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: object, **options: object) -> Tensor:
        called.append((options.get("attn_mask") is not None, options.get("is_causal")))
        return usual(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    model.forward(torch.arange(12).view(2, 6))
    assert called == [(True, False)] * (model.layers if family == "falcon" else 0)


def test_a_model_that_asks_for_another_attention_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", attn_implementation="eager")
    monkeypatch.setattr(patches, "kernel_runs", lambda: True)
    with patches.own_attention(model.lm):
        assert model.config._attn_implementation == "eager"
