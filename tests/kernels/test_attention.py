"""Attention over short windows against torch's own, in double precision. Without a GPU in Triton's interpreter."""

from __future__ import annotations

import copy

import pytest
import torch
from families import tiny
from torch.nn import functional
from triton_here import CUDA, DEVICE, on_the_card

from keyhole.kernels import attention
from keyhole.models import patches
from keyhole.models.model import Model


def qkv(rows: int, heads: int, shared: int, columns: int, width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """As models give them: cut out of one array, columns before heads."""
    torch.manual_seed(columns)
    others = heads // shared
    whole = torch.randn(rows, columns, (heads + 2 * others) * width, device=DEVICE).to(dtype)
    parts = whole.split([heads * width, others * width, others * width], 2)
    return [part.view(rows, columns, -1, width).transpose(1, 2) for part in parts]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Softmax of the scores of each column with all columns up to it, column by column."""
    q, k, v = (x.double().cpu() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (scale or q.shape[3] ** -0.5)
    later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -torch.inf), 3) @ v


DTYPES = [torch.float16, torch.bfloat16] if CUDA else [torch.float16]  # the interpreter multiplies no bfloat16
SHAPES = [(2, 2, 1, 1, 16), (2, 4, 2, 13, 64), (1, 3, 3, 16, 40), (2, 2, 1, 33, 80), (1, 2, 1, 64, 128)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_short_windows_equal_plain_attention(shape: tuple[int, ...], scale: float | None, dtype: torch.dtype) -> None:
    q, k, v = qkv(*shape, dtype)
    assert attention.fits(q, k, v)
    got = attention.short(q, k, v, scale)
    assert got.shape == q.shape
    error = (got.double().cpu() - exact(q, k, v, scale)).norm() / exact(q, k, v, scale).norm()
    assert error < (2e-3 if dtype == torch.float16 else 1.5e-2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"columns": 65}, "too long"),
        ({"width": 160}, "too wide"),
        ({"dtype": torch.float32}, "full precision"),
    ],
)
def test_what_it_is_not_made_for(change: dict[str, object], why: str) -> None:
    shape = {"rows": 1, "heads": 2, "shared": 1, "columns": 8, "width": 16, "dtype": torch.float16}
    assert attention.fits(*qkv(**shape))  # type: ignore[arg-type]
    assert not attention.fits(*qkv(**(shape | change))), why  # type: ignore[arg-type]


def test_masks_dropout_and_other_devices_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []
    tried: list[float] = []
    monkeypatch.setattr(attention, "try_short", lambda q, k, v, dropout, scale: tried.append(dropout))
    instead = attention.instead_of(lambda *args, **options: asked.append((args, options)))
    module = torch.nn.Module()
    q, k, v = (x.cpu() for x in qkv(1, 2, 1, 8, 16, torch.float16))
    instead(module, q, k, v, torch.zeros(8, 8))
    instead(module, q, k, v, None, softcap=30.0)
    instead(module, q, k, v, None, is_causal=False)
    instead(module, q[:, :, :1], k, v, None)
    assert tried == []
    instead(module, q, k, v, None, dropout=0.5, scaling=2.0, is_causal=True, sliding_window=3)
    assert tried == [0.5]
    assert len(asked) == 5
    assert asked[4][0][0] is module
    assert asked[4][0][4] is None
    assert asked[4][1] == {"dropout": 0.5, "scaling": 2.0, "is_causal": True, "sliding_window": 3}
    monkeypatch.undo()
    assert attention.try_short(q, k, v, 0.0, None) is None  # on a CPU
    assert attention.try_short(*qkv(1, 2, 1, 8, 16, torch.float16), 0.5, None) is None


@on_the_card
@pytest.mark.parametrize("columns", [1, 5, 16, 17, 32, 33, 50, 64])
@pytest.mark.parametrize(("heads", "shared", "width"), [(16, 1, 64), (9, 3, 64), (32, 4, 128), (12, 1, 80)])
def test_many_windows_on_the_card(columns: int, heads: int, shared: int, width: int) -> None:
    q, k, v = qkv(300, heads, shared, columns, width, torch.bfloat16)
    expected = exact(q, k, v, None)
    got = attention.short(q, k, v).double().cpu()
    torchs = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).double().cpu()
    error, allowed = ((x - expected).norm() / expected.norm() for x in (got, torchs))
    assert error <= 1.2 * allowed + 1e-6
    assert torch.equal(attention.short(q, k, v).double().cpu(), got)


@on_the_card
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gpt_neox"])
def test_a_model_on_the_card_takes_it_for_short_windows_only(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tiny(family)
    model = Model(copy.deepcopy(plain.lm).to(DEVICE, torch.bfloat16), plain.tokenizer, source=family)
    calls: list[int] = []
    short = attention.short
    monkeypatch.setattr(attention, "short", lambda q, *rest: calls.append(q.shape[2]) or short(q, *rest))
    monkeypatch.setattr(attention, "LONGEST", 16)
    for columns in (9, 40):
        ids = torch.arange(2 * columns).view(2, columns) % 200 + 1
        found: list[list[torch.Tensor]] = []
        for fits in (attention.fits, lambda *each: False):
            kept: list[torch.Tensor] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(attention, "fits", fits)
                model.run(ids, lambda site, x, tokens, kept=kept: kept.append(x.float().clone()))  # type: ignore[misc]
            found.append(kept)
        for one, other in zip(*found, strict=True):
            assert (one - other).norm() <= 2e-2 * other.norm()
    assert calls == [9] * model.layers
    assert model.config._attn_implementation == "sdpa"
    assert not patches._replaced.users
