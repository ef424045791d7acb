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
from keyhole.uses.leaks.control import random_prefixes
from keyhole.uses.leaks.masks import Masked
from keyhole.uses.leaks.prompted import Prompted, score
from keyhole.uses.leaks.repeats import SEPARATOR, Corpus
from keyhole.uses.leaks.target import Target, targets

SAID = Prompted((5, 9, 11), (17, 23, 4, 40, 8))
ROWS = [SAID, SAID.after((30, 31, 32))]
OTHER = Prompted((7,), (3, 12, 9))
FAMILIES = ("gpt2", "llama", "gemma2", "experts")


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return with_experts() if request.param == "experts" else tiny(request.param)


def test_a_mask_of_ones_changes_nothing(model: Model) -> None:
    masked = Masked(model)
    plain = masked.read([SAID, OTHER])
    ones = masked.read([SAID, OTHER], masked.ones())
    torch.testing.assert_close(ones.log_p, plain.log_p)
    for row, heard in enumerate(score(model, [SAID, OTHER])):
        own = plain.log_p[row][plain.there[row]].double().numpy()
        np.testing.assert_allclose(own, heard.log_p, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal((plain.margin[row] > 0)[plain.there[row]].numpy(), heard.right)


def test_zeros_of_a_mask_switch_cells_off_row_by_row(model: Model) -> None:
    masked = Masked(model)
    places = np.random.default_rng(1).choice(masked.cells, 9, replace=False).tolist()
    masks = torch.stack([masked.ones(), masked.without(places)])
    found = masked.read([SAID, SAID], masks)
    plain = score(model, [SAID])[0]
    with intervene.applied(model, [Edit(*model.cells.split(place), 0.0) for place in places]):
        off = score(model, [SAID])[0]
    for row, heard in enumerate((plain, off)):
        np.testing.assert_allclose(found.log_p[row].detach().double().numpy(), heard.log_p, rtol=1e-4, atol=1e-5)


def test_the_effect_is_the_derivative(model: Model) -> None:
    masked = Masked(model)
    scores = rankings.effect(masked, ROWS)
    cell, step = int(np.abs(scores).argmax()), 1e-2
    up, down = masked.ones(), masked.ones()
    up[cell] += step
    down[cell] -= step
    above, below = (masked.exact(ROWS, mask)[1].mean() for mask in (up, down))
    assert scores[cell] == pytest.approx(float(above - below) / (2 * step), rel=0.05, abs=1e-4)


def test_integrated_gradients_sum_to_what_all_cells_do(model: Model) -> None:
    if any(site.routing is not None for site in model.sites):
        pytest.skip("a mask can change which expert a token goes to, and what jumps has no path")
    if model.post_norm(0) is not None:
        pytest.skip("a norm after the layer undoes the scaling, so the path is steep at its very beginning")
    masked = Masked(model)
    scores = rankings.integrated_gradients(masked, ROWS, steps=200)
    full, none = (masked.exact(ROWS, mask)[1].mean() for mask in (None, 0 * masked.ones()))
    assert scores.sum() == pytest.approx(float(full - none), rel=0.02, abs=2e-3)


def test_measured_ablation_is_switching_off_one_cell_at_a_time(model: Model) -> None:
    masked = Masked(model)
    first = rankings.effect(masked, ROWS)
    scores = rankings.ablation(masked, ROWS, first, count=6)
    places = rankings.order(first)[:6]
    before = masked.exact(ROWS)[1].mean()
    lost = [float(before - masked.exact(ROWS, masked.without([place]))[1].mean()) for place in places.tolist()]
    np.testing.assert_allclose(scores[places], lost, atol=1e-4)
    assert set(rankings.order(scores)[:6].tolist()) == set(places.tolist())


@pytest.mark.parametrize("counted", [None, (True, False, False, True, True)])
def test_activity_is_the_size_of_what_a_cell_adds(model: Model, counted: tuple[bool, ...] | None) -> None:
    found = rankings.activity(Masked(model), [row._replace(counted=counted) for row in ROWS])
    norms = torch.cat([model.values(layer).double().norm(dim=1) for layer in range(model.layers)])
    expected = torch.zeros_like(norms)
    for row in ROWS:
        m = model.coefficients_of([*row.prefix, *row.continuation]).double()[len(row.prefix) - 1 : -1]
        expected += m[list(counted or [True] * 5)].abs().sum(0) * norms
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-7)


def test_tokens_that_do_not_count_are_not_asked_for(model: Model) -> None:
    masked = Masked(model)
    some = SAID._replace(counted=(True, False, True, False, False))
    every, few = masked.read([SAID, OTHER]), masked.read([some, OTHER])
    assert few.there[0].tolist() == [True, False, True, False, False]
    assert float(few.total[0]) == pytest.approx(float(every.log_p[0, 0] + every.log_p[0, 2]), rel=1e-5)
    assert float(few.exact[0]) == pytest.approx(float((every.margin[0, [0, 2]] > 0).double().mean()))
    assert float(few.total[1]) == pytest.approx(float(every.total[1]))


def test_a_learned_mask_takes_away_what_it_is_paid_for() -> None:
    """The mask is learned to lower the hinge: with what it takes away, no more tokens are right, and the hinge is smaller."""
    masked = Masked(tiny("gpt2"))
    said = greedy(masked.model, (5, 9, 11), 6)
    taken = rankings.learned(masked, [said])
    assert ((taken > 0) <= (taken <= 1)).all()
    mask = torch.from_numpy(1 - taken.clip(0, 1)).float()
    before, after = (
        float((torch.relu(found.margin + 1) * found.there).sum())
        for found in (masked.read([said]), masked.read([said], mask))
    )
    assert after < before


def greedy(model: Model, prefix: tuple[int, ...], count: int) -> Prompted:
    special = [] if model.bos_id is None else [model.bos_id]
    ids = [*special, *prefix]
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model.lm(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return Prompted(prefix, tuple(ids[len(special) + len(prefix) :]))


def test_n90_is_where_a_tenth_is_left_of_what_was_seen_and_of_what_was_not() -> None:
    masked = Masked(tiny("gpt2"))
    own = greedy(masked.model, (5, 9, 11), 6)
    unseen = [own.after((40, 41, 42)), own.after((90, 91))]
    order = rankings.order(rankings.activity(masked, [own]))
    found = deleting.test(masked, Target(own, (own,), tuple(unseen)), "activity", [order])
    before = [row.right.mean() for row in score(masked.model, [own, *unseen])]
    assert found.before == before[0] == 1.0
    assert found.elsewhere_before == pytest.approx(np.mean(before[1:]))
    assert found.cells == deleting.grid(masked.cells)
    away = {}
    for count, exact, elsewhere in zip(found.cells, found.exact, found.elsewhere, strict=True):
        with intervene.applied(masked.model, [Edit(*masked.model.cells.split(p), 0.0) for p in order[:count].tolist()]):
            first, *rest = (row.right.mean() for row in score(masked.model, [own, *unseen]))
        assert (exact, elsewhere) == (pytest.approx(first), pytest.approx(np.mean(rest)))
        away[count] = first <= 0.1 and np.mean(rest) <= 0.1 * np.mean(before[1:])
    stays = [n for n in away if all(gone for count, gone in away.items() if n <= count <= 2 * n)]
    assert found.n90 == (min(stays) if stays else None)


@pytest.mark.parametrize(
    ("away", "n90"),
    [
        ({1: 0, 2: 1, 3: 0, 4: 0, 6: 0}, None),
        ({1: 0, 2: 1, 3: 0, 4: 1, 6: 1}, 4),
        ({1: 0, 2: 1, 3: 1, 4: 1, 6: 0}, 2),
        ({1: 1, 2: 1, 3: 0, 4: 0, 6: 0}, 1),
        ({1: 0, 2: 0, 3: 0, 4: 0, 6: 1}, 6),
    ],
)
def test_a_number_at_which_a_text_is_away_by_chance_does_not_count(away: dict[int, bool], n90: int | None) -> None:
    assert deleting.smallest(list(away), list(away.values())) == n90


def test_contexts_that_are_tested_are_not_those_that_rankings_see() -> None:
    model = tiny("gpt2")
    random = np.random.default_rng(0)
    own = greedy(model, (5, 9, 11), 9)
    documents = [random.integers(3, 290, 40).tolist() for _ in range(20)]
    flat = [SEPARATOR]
    for document in [*documents, [*own.prefix, *own.continuation]]:
        flat += [*document, SEPARATOR]
    (found,) = targets(model, Corpus(np.array(flat, np.int32), "text"), [own])
    assert found.own.prefix == own.prefix
    assert found.own.counted is None or any(found.own.counted)
    contexts = [row.prefix[: -len(own.prefix)] for row in (*found.fitted[1:], *found.unseen)]
    assert len(set(contexts)) == len(contexts) == 6
    assert {len(each) for each in contexts} == {16, 32, 64 - len(own.prefix) - len(own.continuation) - 1}
    for row in (*found.fitted, *found.unseen):
        assert row.prefix[-len(own.prefix) :] == own.prefix
        assert row.continuation == own.continuation
        assert len(row.prefix) + len(row.continuation) < 64  # the model's context, with the start token
        assert SEPARATOR not in row.prefix


def test_what_the_model_says_anyway_does_not_count() -> None:
    """Its first choice after most prefixes: here a token that it always says last."""
    model = tiny("gpt2")
    random = np.random.default_rng(1)
    documents = [random.integers(3, 290, 30).tolist() for _ in range(20)]
    flat = [SEPARATOR]
    for document in documents:
        flat += [*document, SEPARATOR]
    text = Corpus(np.array(flat, np.int32), "text")
    asked = greedy(model, (5, 9, 11), 9)
    (found,) = targets(model, text, [asked], seed=3)
    others = random_prefixes(text, 3, np.random.default_rng(3))
    right = np.mean([row.right for row in score(model, [Prompted(p, asked.continuation) for p in others])], 0)
    expected = tuple((right < 0.5).tolist())
    assert found.own.counted == (expected if any(expected) else None)


def test_the_grid_ends_at_a_twentieth() -> None:
    assert deleting.grid(400) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert deleting.grid(3) == [1]
