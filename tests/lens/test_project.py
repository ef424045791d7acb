"""The lens against plain matrix products, on a random model of every family."""

from __future__ import annotations

import numpy as np
import paper
import pytest
import torch
from families import TINY, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import ProofFailed, UsageError
from keyhole.lens import project
from keyhole.lens.head import Head
from keyhole.lens.maps import Maps
from keyhole.models.proof import prove
from keyhole.store import values


@pytest.mark.parametrize("family", sorted(TINY))
def test_the_lens_of_the_last_residual_is_the_models_own_logits(family: str) -> None:
    model = tiny(family)
    ids = torch.arange(10)[None] * 7 % 250
    kept: list[torch.Tensor] = []
    take = lambda _, __, out: kept.append((out[0] if isinstance(out, tuple) else out).detach().clone())  # noqa: E731
    handle = model.blocks[-1].register_forward_hook(take)
    with torch.no_grad():
        own = model.lm(input_ids=ids, use_cache=False).logits[0]
    handle.remove()
    torch.testing.assert_close(Head(model).logits(kept[0][0]), own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", sorted(TINY))
@pytest.mark.parametrize("name", values.LENSES)
def test_a_lens_reads_a_value_as_defined(family: str, name: str) -> None:
    model = tiny(family)
    head = Head(model)
    width = head.weight.shape[1]
    random = np.random.default_rng(0)
    head.maps = Maps(*(random.normal(size=(3, *rest)).astype(np.float32) for rest in ((width, width), (width,))), {})
    seen = head.see(name, head.values(1), 1)
    for cell in (0, 7, model.cells.size(1) - 1):
        v = paper.value(model, 1, cell)
        v = v @ torch.from_numpy(head.maps.linear[1]) if name == "mapped" else v
        expected = v if name == "raw" else paper.folded(model, v)
        torch.testing.assert_close(seen[cell], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("family", "centres"), [("gpt2", True), ("olmo", True), ("llama", False), ("gemma", False)])
def test_a_layer_norm_centres_and_an_rms_norm_does_not(family: str, centres: bool) -> None:
    head = Head(tiny(family))
    assert head.norm.centres is centres
    shifted = head.see("norm", torch.ones(1, head.weight.shape[1]))
    assert bool(shifted.abs().max() < 1e-6) is centres


def test_gemma_keeps_the_gain_less_one() -> None:
    head = Head(tiny("gemma"))
    torch.testing.assert_close(head.norm.gain, 1 + head.final_norm.weight.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("breakage", ["cap", "scale"])
def test_a_head_that_is_not_understood_is_refused(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gemma2", rms_norm_eps=1.1e-6)  # one of its own, to break
    forward = model.lm.forward
    if breakage == "cap":
        monkeypatch.setattr(model.lm, "forward", lambda *args, **kwargs: _capped(forward, *args, **kwargs))
    else:
        monkeypatch.setattr(model.config, "logit_scale", 2.0, raising=False)
    with pytest.raises(ProofFailed, match="own logits"):
        prove(model)


def _capped(forward: object, *args: object, **kwargs: object) -> object:
    out = forward(*args, **kwargs)  # type: ignore[operator]
    out.logits = torch.tanh(out.logits / 3) * 3
    return out


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": False}, {"tie_word_embeddings": True}])
def test_tied_and_untied_heads(changes: dict[str, bool]) -> None:
    model = tiny("llama", **changes)
    embeddings = model.lm.get_input_embeddings().weight
    assert (Head(model).weight is embeddings) is changes["tie_word_embeddings"]


@pytest.mark.parametrize("block_bytes", [1, 7000, 1 << 28])
def test_streaming_equals_the_whole_product(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "BLOCK_BYTES", block_bytes)
    torch.manual_seed(1)
    vectors, weight = torch.randn(37, 8), torch.randn(301, 8)
    targets = torch.randint(-1, 301, (37,))
    got = project.project(vectors, weight, kept=9, targets=targets)
    logits = vectors @ weight.T
    p = torch.softmax(logits.double(), 1)
    order = torch.sort(logits, dim=1, descending=True).indices
    assert torch.equal(got.top_tokens, order[:, :9])
    assert torch.equal(got.bottom_tokens, order.flip(1)[:, :9])
    torch.testing.assert_close(got.top_logits, logits.gather(1, order[:, :9]))
    torch.testing.assert_close(got.bottom_logits, logits.gather(1, order.flip(1)[:, :9]))
    torch.testing.assert_close(got.max_prob.double(), p.amax(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.entropy.double(), -(p * p.log()).sum(1), rtol=1e-5, atol=1e-5)
    for row, target in enumerate(targets.tolist()):
        assert int(got.ranks[row]) == (0 if target < 0 else order[row].tolist().index(target) + 1)
    asked = torch.tensor([3, 77])
    assert project.ranks(vectors, weight, asked)[5].tolist() == [order[5].tolist().index(t) + 1 for t in (3, 77)]


def test_masked_tokens_count_nowhere() -> None:
    torch.manual_seed(2)
    vectors, weight, masked = torch.randn(20, 8), torch.randn(5000, 8), torch.arange(0, 5000, 3)
    kept = torch.tensor([i for i in range(5000) if i % 3])
    got = project.project(vectors, weight, masked=masked)
    alone = project.project(vectors, weight[kept])
    assert torch.equal(got.top_tokens, kept[alone.top_tokens])
    assert torch.equal(got.bottom_tokens, kept[alone.bottom_tokens])
    torch.testing.assert_close(got.max_prob, alone.max_prob)
    torch.testing.assert_close(got.entropy, alone.entropy)


def test_half_precision_weights_are_read_in_full() -> None:
    torch.manual_seed(3)
    vectors, weight = torch.randn(5, 8), torch.randn(900, 8).bfloat16()
    got = project.project(vectors, weight, kept=4)
    assert torch.equal(got.top_tokens, (vectors @ weight.float().T).topk(4).indices)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 9000), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_the_largest_are_found_in_a_total_order(seed: int, kept: int, width: int, kinds: int) -> None:
    rows = torch.randint(0, kinds, (3, width), generator=torch.Generator().manual_seed(seed)).float()
    found, places = project.largest(rows, kept)
    expected, order = torch.sort(rows, dim=1, descending=True, stable=True)
    assert torch.equal(found, expected[:, :kept])
    assert torch.equal(places, order[:, :kept])


def test_never_more_than_a_block_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    empty = torch.empty

    def watched(*shape: object, **options: object) -> torch.Tensor:
        made = empty(*shape, **options)  # type: ignore[call-overload]
        sizes.append(made.numel() * made.element_size())
        return made

    monkeypatch.setattr(project, "BLOCK_BYTES", 1 << 20)
    monkeypatch.setattr(torch, "empty", watched)
    project.project(torch.randn(1000, 4), torch.randn(2000, 4), kept=3)
    assert max(sizes) <= 1 << 20


def test_nearest_by_cosine() -> None:
    torch.manual_seed(4)
    vectors = torch.randn(50, 6)
    cosines, places = project.nearest(vectors, 4)
    units = vectors / vectors.norm(dim=1, keepdim=True)
    every = (units @ units.T).fill_diagonal_(-2)
    torch.testing.assert_close(cosines, every.topk(4).values)
    assert torch.equal(places, every.topk(4).indices)


def test_tokens_that_seem_untrained_and_never_occur() -> None:
    model = tiny("llama", rms_norm_eps=1.2e-6)
    head = Head(model)
    weight = head.weight.data
    before = weight.clone()
    weight[100] *= 1e-3
    weight[101] *= 1e-3
    masked = set(project.seem_untrained(head.weight, 259, torch.tensor([101, 280])).tolist())
    weight.copy_(before)
    assert 100 in masked
    assert 101 not in masked  # it occurs
    assert set(range(259, 300)) - {280} <= masked
    assert len(masked) < 60


def test_an_unknown_lens_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"no lens 'tuned'.*norm, raw, mapped"):
        Head(tiny("llama")).see("tuned", torch.zeros(1, 16))


def test_the_index_by_token_lists_every_place_strongest_first() -> None:
    random = np.random.default_rng(0)
    tokens, logits = random.integers(0, 50, (2, 6, 5)), random.normal(size=(2, 6, 5))
    offsets, places = values.index(tokens, logits, 50)
    for token in range(50):
        expected = sorted(np.flatnonzero(tokens.ravel() == token), key=lambda place: -logits.ravel()[place])
        assert places[offsets[token] : offsets[token + 1]].tolist() == expected
