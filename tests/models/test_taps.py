"""Taps against hooks and products written by hand; a toy model with experts, whose sites give ragged rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from experts import CHOSEN, EXPERTS, WIDTH, with_experts
from families import TINY, D, tiny
from torch import Tensor, nn
from torch.nn import functional

from keyhole.errors import ModelError, ProofFailed, UsageError
from keyhole.kernels.order import brute_force, unpack
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.models.proof import prove
from keyhole.models.sites import Site, axis_of, locate, module_at, path_of
from keyhole.models.states import states
from keyhole.models.taps import Taps, every_token, join_experts, tapped
from keyhole.scanning.contract import make_index


def residual_before(model: Model, ids: Tensor, run: Callable[[], None]) -> Tensor:
    """What the experts' layer is given, by a hook of its own."""
    seen: list[Tensor] = []
    handle = model.blocks[1].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    try:
        run()
    finally:
        handle.remove()
    return seen[0].reshape(-1, D)


def test_experts_give_their_tokens_with_their_rows() -> None:
    model = with_experts()
    ids = torch.randint(1, 250, (3, 7), generator=torch.Generator().manual_seed(1))
    got: dict[int, tuple[Tensor, Tensor | None]] = {}
    x = residual_before(model, ids, lambda: model.run(ids, lambda site, x, tokens: got.update({site: (x, tokens)})))
    mlp = model.blocks[1].mlp
    expected = {
        expert: sorted(token for token in range(21) if expert in mlp.chosen(x)[token].tolist())
        for expert in range(EXPERTS)
    }
    assert sum(map(len, expected.values())) == CHOSEN * 21
    assert {site - 1: tokens.tolist() for site, (_, tokens) in got.items() if tokens is not None} == {
        expert: tokens for expert, tokens in expected.items() if tokens
    }
    for expert, tokens in expected.items():
        if tokens:
            rows, where = got[1 + expert]
            assert where is not None
            assert where.dtype == torch.int64
            torch.testing.assert_close(rows, mlp.coefficients(expert, x[tokens]), rtol=1e-5, atol=1e-6)
            whole = every_token(rows, where, 21)
            assert torch.equal(whole[tokens], rows)
            assert not whole[[token for token in range(21) if token not in tokens]].any()
    for site in (0, len(model.sites) - 1):
        assert got[site][1] is None
        assert got[site][0].shape == (3, 7, model.sites[site].width)


def test_a_model_with_experts_is_proved_and_a_wrong_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_experts()
    prove(model)
    monkeypatch.setattr(model, "sites", (*model.sites[:2], replace(model.sites[2], transposed=True), *model.sites[3:]))
    with pytest.raises(ProofFailed, match=r"in layer 1, coefficients @ V.*relative difference"):
        prove(model)


def test_a_site_that_is_never_called_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    monkeypatch.setattr(model, "sites", (replace(model.sites[0], module=nn.Linear(24, D)), *model.sites[1:]))
    with pytest.raises(ProofFailed, match="the coefficients of layer 0 never came"):
        prove(model)


def test_states_of_experts_are_zero_unless_routed() -> None:
    model = with_experts()
    ids = torch.randint(1, 250, (4, 6), generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([5, 0, 3, 2])
    seen = states(model, ids, positions)
    x = residual_before(model, ids, lambda: model.forward(ids))[torch.arange(4) * 6 + positions]
    mlp = model.blocks[1].mlp
    expected = torch.zeros(4, EXPERTS, WIDTH)
    for row in range(4):
        for expert in mlp.chosen(x[row]).tolist():
            expected[row, expert] = mlp.coefficients(expert, x[row])
    torch.testing.assert_close(seen.coefficients[1], expected.flatten(1), rtol=1e-5, atol=1e-6)
    assert model.values(1).shape == (EXPERTS * WIDTH, D)
    biases = torch.stack([sum(mlp.down[e].bias for e in mlp.chosen(x[row]).tolist()) for row in range(4)])
    torch.testing.assert_close(expected.flatten(1) @ model.values(1) + biases, seen.y[1], rtol=1e-4, atol=1e-5)


def test_an_edit_acts_on_an_experts_cell_at_its_positions() -> None:
    model = with_experts()
    ids = torch.randint(1, 250, (2, 8), generator=torch.Generator().manual_seed(3))
    plain: dict[int, tuple[Tensor, Tensor | None]] = {}
    model.run(ids, lambda site, x, tokens: plain.update({site: (x.clone(), tokens)}))
    site = next(number for number in range(1, 1 + EXPERTS) if number in plain and len(plain[number][0]) > 1)
    tokens = plain[site][1]
    assert tokens is not None
    token, cell = int(tokens[1]), 4
    number, inside = locate(model.sites, 1, (site - 1) * WIDTH + cell)
    assert (number, inside) == (site, cell)
    edited: dict[int, tuple[Tensor, Tensor | None]] = {}
    edit = Edit(1, (site - 1) * WIDTH + cell, 3.0, (token % 8,))
    with applied(model, [edit], 0):
        model.run(ids, lambda site, x, tokens: edited.update({site: (x.clone(), tokens)}))
    expected = plain[site][0].clone()
    for row, each in enumerate(tokens.tolist()):
        if each % 8 == token % 8:
            expected[row, cell] *= 3.0
    assert torch.equal(edited[site][0], expected)
    assert not torch.equal(expected, plain[site][0])


def test_experts_through_taps_into_an_index_equal_brute_force() -> None:
    model, top = with_experts(), 4
    cells = model.cells
    assert [layer.experts for layer in cells.layers] == [0, EXPERTS, 0]
    assert cells.address(cells.place(1, 2 * WIDTH + 3)) == "L1.E2.3"
    index = make_index([site.device for site in model.sites], cells, top, signed=True, per="prefix", context=16)
    random = torch.Generator().manual_seed(6)
    lengths, seen_before = np.array([7, 5, 3]), np.array([0, 2, 1])
    every: list[np.ndarray[Any, Any]] = []
    places: list[int] = []
    for number in range(3):
        ids = torch.randint(1, 250, (3, 8), generator=random)  # a start token and at most 7 others
        first_tokens = 100 * number + np.array([0, 20, 40])
        batch = index.prepare(8, 1, lengths, seen_before, first_tokens)
        given: dict[int, Tensor] = {}

        def sink(site: int, x: Tensor, tokens: Tensor | None, batch: Any = batch, given: Any = given) -> None:
            index.update(site, x, batch, tokens)
            given[site] = every_token(x, tokens, 24)

        model.run(ids, sink)
        joined = torch.cat(join_experts(model, given), 1).numpy()
        for row in range(3):
            for own in range(seen_before[row], lengths[row]):
                every.append(joined[row * 8 + 1 + own])
                places.append(int(first_tokens[row]) + own)
        index.n += int((lengths - seen_before).sum())
    state = index.state()
    whole, where = np.stack(every), np.array(places)
    for side, sign in enumerate((1, -1)):
        best, units, _ = brute_force(sign * whole, where, np.zeros_like(where), top, per="prefix")
        coefficients, tokens = unpack(state["keys"][side])
        np.testing.assert_array_equal(coefficients, best)
        np.testing.assert_array_equal(tokens, units)
    np.testing.assert_array_equal(state["active"], (whole > 0).sum(0))
    assert state["keys"].shape == (2, len(cells), top)


def test_experts_of_different_widths_are_refused() -> None:
    sites = [Site(0, nn.Linear(width, D), expert=number) for number, width in enumerate((4, 5))]
    with pytest.raises(ModelError, match=r"experts of layer 0 differ in width: \[4, 5\]"):
        axis_of(sites)


def test_experts_are_not_compiled() -> None:
    from keyhole.models.compiled import compiled

    with pytest.raises(UsageError, match="does not work with experts"), compiled(with_experts()):
        raise AssertionError


# Every family


@pytest.mark.parametrize("family", sorted(TINY))
def test_taps_see_what_hooks_written_by_hand_see(family: str) -> None:
    model = tiny(family)
    ids = torch.randint(1, 250, (2, 6), generator=torch.Generator().manual_seed(4))
    kept: dict[tuple[str, int], Tensor] = {}

    def watch(name: str) -> Callable[[int, Tensor], None]:
        return lambda layer, x: kept.update({(name, layer): x.detach().reshape(12, -1).clone()})

    taps = Taps(
        coefficients=lambda site, x, tokens: kept.update({("m", site): x.clone()}),
        projected=lambda site, x, tokens: kept.update({("down", site): x.clone()}),
        block_in=watch("in"),
        attention=watch("attention"),
        feed_forward=watch("ff"),
        block_out=watch("out"),
    )
    inside = [module for block in model.blocks for module in block.modules()]
    before = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in inside]
    with tapped(model, taps, (2, 6)):
        model.forward(ids)
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in inside] == before
    with torch.no_grad():
        hidden = model.lm(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    for layer in range(model.layers):
        torch.testing.assert_close(kept["in", layer], hidden[layer].reshape(12, -1), rtol=1e-4, atol=1e-5)
        m = kept["m", layer]
        assert m.shape == (2, 6, model.sites[layer].width)
        rebuilt = m @ model.values(layer)
        bias = model.bias(layer)
        rebuilt = rebuilt if bias is None else rebuilt + bias
        torch.testing.assert_close(kept["down", layer], rebuilt, rtol=1e-4, atol=1e-4)
        total = sum(kept[name, layer] for name in ("in", "attention", "ff"))
        torch.testing.assert_close(kept["out", layer], total, rtol=1e-4, atol=1e-4)


def test_coefficients_are_not_copied_on_their_way() -> None:
    """A scan's sink gets the very memory that the down-projection reads."""
    for family in ("llama", "opt", "gpt2"):
        model, own, given = tiny(family), [], []
        handles = [
            site.module.register_forward_pre_hook(lambda _, args, own=own: own.append(args[0].data_ptr()))
            for site in model.sites
        ]
        model.run(torch.arange(12).view(2, 6), lambda site, x, tokens, given=given: given.append(x.data_ptr()))
        for handle in handles:
            handle.remove()
        assert own == given


def another_thread_could_run(model: Model) -> bool:
    free: list[bool] = []

    def ask() -> None:
        free.append(model.lock.acquire(blocking=False))
        if free[0]:
            model.lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return free[0]


def test_hooks_are_removed_after_an_error_and_the_lock_is_free() -> None:
    model = tiny("gpt2")

    def fails(site: int, x: Tensor, tokens: Tensor | None) -> None:
        raise KeyError(site)

    with pytest.raises(KeyError):
        model.run(torch.arange(5)[None], fails)
    assert not any(site.module._forward_pre_hooks for site in model.sites)
    assert another_thread_could_run(model)


def test_the_lock_is_held_while_taps_are_there() -> None:
    model = tiny("gpt2")
    with tapped(model, Taps(block_in=lambda layer, x: None)):
        assert not another_thread_could_run(model)


def test_compiled_blocks_give_coefficients_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    model, given = tiny("llama"), []

    @contextmanager
    def tap(give: Any) -> Any:
        give(2, torch.arange(10.0).view(10, 1))
        yield

    monkeypatch.setattr(model, "tap", tap)
    with tapped(model, Taps(coefficients=lambda *args: given.append(args)), (2, 5)):
        assert not any(site.module._forward_pre_hooks for site in model.sites)
    ((site, x, tokens),) = given
    assert (site, tokens) == (2, None)
    assert x[1, 0].tolist() == [5.0]
    with pytest.raises(UsageError, match="compiled, so only coefficients"):
        states(model, torch.arange(4)[None], torch.tensor([1]))
    with pytest.raises(UsageError, match="compiled, so only coefficients"), applied(model, [Edit(0, 1, 0.0)]):
        raise AssertionError
    assert model.edits == ()


# Paths


def test_the_first_candidate_that_exists_counts() -> None:
    model = tiny("llama")
    family = replace(model.family, down=("feed_forward.w2", "mlp.down_proj", "mlp.up_proj"), layers="model.layers")
    assert family.layers == ("model.layers",)
    assert path_of(model.blocks[0], family.down) == "mlp.down_proj"
    assert module_at(model.blocks[0], family.down) is model.sites[0].module
    with pytest.raises(AttributeError, match="has no a.b and no c"):
        path_of(model.blocks[0], ("a.b", "c"))


def test_a_row_with_candidates_is_proved_and_one_without_a_match_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from keyhole.models.families import FAMILIES

    plain = tiny("llama")
    renamed = replace(
        plain.family,
        layers=("decoder.layers", "model.layers"),
        down=("mlp.w2", "mlp.down_proj"),
        attention=("attn.out", "self_attn.o_proj"),
        final_norm=("model.ln", "model.norm"),
    )
    monkeypatch.setitem(FAMILIES, "llama", renamed)
    model = Model(plain.lm, plain.tokenizer, source="renamed")
    prove(model)
    expected = plain.coefficients("The cat")
    assert torch.equal(model.coefficients("The cat"), expected)
    with applied(model, [Edit(0, 2, 0.0, (3,))]):
        assert not torch.equal(model.coefficients("The cat"), expected)
    monkeypatch.setitem(FAMILIES, "llama", replace(renamed, down=("mlp.w2", "mlp.w3")))
    with pytest.raises(ProofFailed, match="no module at the family's path: .*mlp.w2 and no mlp.w3"):
        Model(plain.lm, plain.tokenizer, source="nowhere")


def test_coefficients_written_by_hand() -> None:
    """The gate's product, of every token of a batch, by plain matrix products."""
    model = tiny("llama")
    ids, seen = torch.arange(10).view(2, 5), []
    handle = model.blocks[0].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    got: dict[int, Tensor] = {}
    model.run(ids, lambda site, x, tokens: got.update({site: x.clone()}))
    handle.remove()
    mlp = model.blocks[0].mlp
    gate, up = seen[0] @ mlp.gate_proj.weight.T, seen[0] @ mlp.up_proj.weight.T
    torch.testing.assert_close(got[0], functional.silu(gate) * up)
