"""The metrics of predictions, against computations written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.patterns import scores
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.text import Text

LEXICON = Lexicon([str(token) for token in range(30)])


def by_thresholds(predicted: np.ndarray, fires: np.ndarray) -> float:
    """Average precision: every distinct score is a threshold, from the highest down."""
    area, recall = 0.0, 0.0
    for threshold in sorted(set(predicted.tolist()), reverse=True):
        chosen = predicted >= threshold
        precision, reached = fires[chosen].mean(), fires[chosen].sum() / fires.sum()
        area, recall = area + (reached - recall) * precision, reached
    return float(area)


def a_text(documents: int = 12, windows: int = 60, seed: int = 0) -> Text:
    random = np.random.default_rng(seed)
    made = [random.integers(0, 30, random.integers(3, 12)) for _ in range(windows)]
    return Text.of(made, np.sort(random.integers(0, documents, windows)), LEXICON)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40))
def test_average_precision_is_the_sum_over_thresholds(pairs: list[tuple[int, bool]]) -> None:
    predicted, fires = np.array([p for p, _ in pairs]) / 4, np.array([f for _, f in pairs])
    found = scores.average_precision(predicted, fires)
    assert math.isnan(found) if not fires.any() else found == pytest.approx(by_thresholds(predicted, fires))


def test_a_constant_score_has_the_base_rate_and_the_truth_has_one() -> None:
    fires = np.arange(50) % 10 == 0
    assert scores.average_precision(np.zeros(50), fires) == pytest.approx(0.1)
    assert scores.average_precision(fires * 1.0, fires) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_every_way_to_count_gives_the_same_curve_and_replicates(seed: int) -> None:
    random = np.random.default_rng(seed)
    text = a_text(seed=seed)
    groups = scores.deal(text, seed)
    types = text.tokens.astype(np.int64)
    per_type = np.where(random.random(30) < 0.5, 0, random.integers(1, 6, 30) / 8)
    predicted = per_type[types]
    fires = random.random(len(text)) < 0.1 + 0.5 * predicted
    at, matched = np.flatnonzero(fires), np.flatnonzero(predicted)
    counts = np.stack([np.bincount(types[groups.of == group], minlength=30) for group in range(len(groups))])
    ranked = [
        scores.rank_matches(scores.Matches(matched, predicted[matched]), at, groups),
        scores.rank_types(per_type, counts, types, at, groups),
        scores.rank_scores(predicted, at, groups),
    ]
    without = [by_thresholds(predicted[groups.of != group], fires[groups.of != group]) for group in range(len(groups))]
    for each in ranked:
        assert each.average_precision == pytest.approx(by_thresholds(predicted, fires))
        np.testing.assert_allclose(each.replicates, without)


def test_a_key_without_matches_has_the_base_rate() -> None:
    text = a_text()
    groups = scores.deal(text, 0)
    none = np.empty(0, np.int64)
    fires = np.arange(0, len(text), 7)
    ranked = scores.rank_matches(scores.Matches(none, np.empty(0)), fires, groups)
    assert ranked.average_precision == pytest.approx(len(fires) / len(text))
    assert scores.f1(none, fires) == 0
    assert scores.pearson(np.empty(0), np.empty(0), len(text), 5.0, 9.0) == 0


@pytest.mark.parametrize("n", [1, 10, 999, 1000, 1001, 1002, 2001, 5000])
@pytest.mark.parametrize("percentile", [scores.HEADLINE, scores.WIDER])
def test_firing_is_strictly_above_numpys_percentile_and_above_zero(n: int, percentile: int) -> None:
    random = np.random.default_rng(n)
    for values in (random.normal(size=n), np.round(random.normal(size=n), 1), np.maximum(random.normal(size=n) - 3, 0)):
        m = values.astype(np.float32)
        order = np.argsort(-m, kind="stable")[: scores.most_firing(n, percentile) + 1]
        expected = np.flatnonzero((m > np.percentile(m.astype(np.float64), percentile / 10)) & (m > 0))
        np.testing.assert_array_equal(scores.firing(m[order], order, n, percentile), expected)


def test_f1_and_pearson_are_those_of_the_whole_arrays() -> None:
    random = np.random.default_rng(3)
    predicted = np.where(random.random(400) < 0.8, 0, random.random(400))
    m = random.normal(size=400) + predicted
    at = np.flatnonzero(predicted)
    found = scores.pearson(predicted[at], m[at], 400, float(m.sum()), float(m @ m))
    assert found == pytest.approx(np.corrcoef(predicted, m)[0, 1])
    fires, chosen = m > 1, predicted > 0.5
    precision, recall = fires[chosen].mean(), chosen[fires].mean()
    found = scores.f1(np.flatnonzero(chosen), np.flatnonzero(fires))
    assert found == pytest.approx(2 * precision * recall / (precision + recall))


def test_documents_are_dealt_as_a_whole_into_groups_of_similar_size() -> None:
    text = a_text(documents=40, windows=400)
    groups = scores.deal(text, 1)
    assert len(groups) == 20
    of_document = {(text.documents[w], g) for w, g in zip(text.windows.tolist(), groups.of.tolist(), strict=True)}
    assert len(of_document) == len(np.unique(text.documents))
    np.testing.assert_array_equal(groups.sizes, np.bincount(groups.of))
    assert groups.sizes.max() < 1.5 * groups.sizes.min()
    assert (scores.deal(text, 2).of != groups.of).any()
    np.testing.assert_array_equal(scores.deal(text, 1).of, groups.of)
    assert len(scores.deal(a_text(documents=7), 0)) == 7
    assert len(scores.deal(a_text(documents=4), 0)) == 1


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(0.5, 0.05, 20)
    without = (values.sum() - values) / 19
    found = scores.jackknife(float(values.mean()), without)
    half = 2.093024 * values.std(ddof=1) / math.sqrt(20)
    assert found.lo == pytest.approx(values.mean() - half, rel=1e-5)
    assert found.hi == pytest.approx(values.mean() + half, rel=1e-5)
    assert scores.jackknife(0.5, without[:4]).lo is None
    assert scores.jackknife(0.5, np.append(without, math.nan)).lo is None
    assert scores.jackknife(0.01, without).lo == 0.0


def test_the_interval_of_a_mean_over_keys_covers_the_truth() -> None:
    """Keys and documents both vary: of 300 samples of both, about 95 % of the intervals hold the truth, or a few more."""
    random = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        effects = random.normal(0.1, 0.2, (30, 1)) + random.normal(0, 0.1, (1, 20)) + random.normal(0, 0.2, (30, 20))
        without = (effects.sum(1, keepdims=True) - effects) / 19
        found = scores.mean_over_keys(effects.mean(1), without)
        assert found.lo is not None
        assert found.hi is not None
        held += found.lo < 0.1 < found.hi
    assert held >= 280


def test_the_mean_over_keys_leaves_a_key_out_of_a_replicate_that_it_does_not_have() -> None:
    values, without = np.array([0.2, 0.4]), np.full((2, 5), 0.3)
    without[0, 2] = math.nan
    assert scores.mean_over_keys(values, without).lo is not None
    without[1, 2] = math.nan
    assert scores.mean_over_keys(values, without).lo is None
    assert scores.mean_over_keys(values[:1], without[:1]) == (0.2, None, None)
    assert math.isnan(scores.mean_over_keys(np.empty(0), np.empty((0, 5))).value)
