"""A mask over all cells, and the rankings that are made with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from experts import with_experts
from families import tiny

from keyhole.models import intervene
from keyhole.models.intervene import Edit
from keyhole.models.model import Model
from keyhole.uses.leaks import deleting, rankings
from keyhole.uses.leaks.masks import Masked
from keyhole.uses.leaks.said import Said, hear

SAID = Said((5, 9, 11), (17, 23, 4, 40, 8))
OTHER = Said((7,), (3, 12, 9))
FAMILIES = ("gpt2", "llama", "gemma2", "experts")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return with_experts() if request.param == "experts" else tiny(request.param)


def test_a_mask_of_ones_changes_nothing(model: Model) -> None:
    masked = Masked(model)
    plain = masked.read([SAID, OTHER])
    ones = masked.read([SAID, OTHER], masked.ones())
    torch.testing.assert_close(ones.log_p, plain.log_p)
    for row, heard in enumerate(hear(model, [SAID, OTHER])):
        own = plain.log_p[row][plain.there[row]].double().numpy()
        np.testing.assert_allclose(own, heard.log_p, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal((plain.margin[row] > 0)[plain.there[row]].numpy(), heard.right)


def test_zeros_of_a_mask_switch_cells_off_row_by_row(model: Model) -> None:
    masked = Masked(model)
    places = np.random.default_rng(1).choice(masked.cells, 9, replace=False).tolist()
    masks = torch.stack([masked.ones(), masked.without(places)])
    found = masked.read([SAID, SAID], masks)
    plain = hear(model, [SAID])[0]
    with intervene.applied(model, [Edit(*model.cells.split(place), 0.0) for place in places]):
        off = hear(model, [SAID])[0]
    for row, heard in enumerate((plain, off)):
        np.testing.assert_allclose(found.log_p[row].detach().double().numpy(), heard.log_p, rtol=1e-4, atol=1e-5)


def test_the_effect_is_the_derivative(model: Model) -> None:
    masked = Masked(model)
    scores = rankings.effect(masked, SAID)
    cell, step = int(np.abs(scores).argmax()), 1e-2
    up, down = masked.ones(), masked.ones()
    up[cell] += step
    down[cell] -= step
    (above,), (below,) = masked.exact([SAID], up)[1], masked.exact([SAID], down)[1]
    assert scores[cell] == pytest.approx(float(above - below) / (2 * step), rel=0.05, abs=1e-4)


def test_integrated_gradients_sum_to_what_all_cells_do(model: Model) -> None:
    if any(site.routing is not None for site in model.sites):
        pytest.skip("a mask can change which expert a token goes to, and what jumps has no path")
    if model.post_norm(0) is not None:
        pytest.skip("a norm after the layer undoes the scaling, so the path is steep at its very beginning")
    masked = Masked(model)
    scores = rankings.integrated_gradients(masked, SAID, steps=200)
    (full,), (none,) = masked.exact([SAID])[1], masked.exact([SAID], 0 * masked.ones())[1]
    assert scores.sum() == pytest.approx(float(full - none), rel=0.02, abs=2e-3)


def test_measured_ablation_is_switching_off_one_cell_at_a_time(model: Model) -> None:
    masked = Masked(model)
    first = rankings.effect(masked, SAID)
    scores = rankings.ablation(masked, SAID, first, count=6)
    places = rankings.order(first)[:6]
    (before,) = masked.exact([SAID])[1]
    lost = [float(before - masked.exact([SAID], masked.without([place]))[1][0]) for place in places.tolist()]
    np.testing.assert_allclose(scores[places], lost, atol=1e-4)
    assert set(rankings.order(scores)[:6].tolist()) == set(places.tolist())


def test_activity_is_the_size_of_what_a_cell_adds(model: Model) -> None:
    masked = Masked(model)
    found = rankings.activity(masked, SAID)
    m = model.coefficients_of([*SAID.prefix, *SAID.continuation]).double()[len(SAID.prefix) - 1 : -1]
    norms = torch.cat([model.values(layer).double().norm(dim=1) for layer in range(model.layers)])
    np.testing.assert_allclose(found, (m.abs().sum(0) * norms).numpy(), rtol=1e-4, atol=1e-7)


def test_a_learned_mask_takes_away_what_it_is_paid_for() -> None:
    """The mask is learned to lower the hinge: with what it takes away, no more tokens are right, and the hinge is smaller."""
    masked = Masked(tiny("gpt2"))
    said = greedy(masked.model, (5, 9, 11), 6)
    taken = rankings.learned(masked, said)
    assert ((taken > 0) <= (taken <= 1)).all()
    mask = torch.from_numpy(1 - taken.clip(0, 1)).float()
    before, after = (
        float((torch.relu(found.margin + 1) * found.there).sum())
        for found in (masked.read([said]), masked.read([said], mask))
    )
    assert after < before


def greedy(model: Model, prefix: tuple[int, ...], count: int) -> Said:
    special = [] if model.bos_id is None else [model.bos_id]
    ids = [*special, *prefix]
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model.lm(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return Said(prefix, tuple(ids[len(special) + len(prefix) :]))


def test_n90_is_the_first_number_at_which_a_tenth_is_left() -> None:
    masked = Masked(tiny("gpt2"))
    said = greedy(masked.model, (5, 9, 11), 6)
    order = rankings.order(rankings.activity(masked, said))
    found = deleting.test(masked, said, "activity", [order])
    assert found.before == 1.0
    assert found.cells == deleting.grid(masked.cells)
    for count, exact in zip(found.cells, found.exact, strict=True):
        with intervene.applied(masked.model, [Edit(*masked.model.cells.split(p), 0.0) for p in order[:count].tolist()]):
            assert exact == pytest.approx(float(hear(masked.model, [said])[0].right.mean()))
    reached = [count for count, exact in zip(found.cells, found.exact, strict=True) if exact <= 0.1]
    assert found.n90 == (reached[0] if reached else None)


def test_the_grid_ends_at_a_twentieth() -> None:
    assert deleting.grid(400) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert deleting.grid(3) == [1]
