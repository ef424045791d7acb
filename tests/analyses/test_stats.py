"""The statistics that verdicts rest on, against their definitions and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from keyhole.analyses import claims, measured, stats
from keyhole.analyses.record import Effect, Verdict
from keyhole.analyses.stats import Interval, bootstrap_difference, bootstrap_mean, holm, thirds


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = np.random.default_rng(1).gamma(2, 1, 300)
    found = bootstrap_mean(values)
    theirs = scipy_stats.bootstrap((values,), np.mean, method="percentile", random_state=0).confidence_interval
    assert found.value == pytest.approx(values.mean())
    assert found.lo == pytest.approx(theirs.low, abs=0.02)
    assert found.hi == pytest.approx(theirs.high, abs=0.02)
    assert bootstrap_mean(values) == found


def test_values_of_one_cluster_count_as_one_draw() -> None:
    means = np.random.default_rng(2).normal(size=20)
    repeated, clusters = np.repeat(means, 50), np.repeat(np.arange(20), 50)
    alone, together = bootstrap_mean(means), bootstrap_mean(repeated, clusters)
    assert together.value == pytest.approx(alone.value)
    assert (together.lo, together.hi) == (pytest.approx(alone.lo), pytest.approx(alone.hi))
    naive = bootstrap_mean(repeated)
    assert naive.hi is not None
    assert naive.lo is not None
    assert together.hi is not None
    assert together.lo is not None
    assert naive.hi - naive.lo < 0.3 * (together.hi - together.lo)


def test_clusters_of_different_sizes_weigh_by_their_values() -> None:
    found = bootstrap_mean(np.array([1.0, 1, 1, 5]), np.array([0, 0, 0, 1]))
    assert found.value == 2
    assert (found.lo, found.hi) == (1, 5)


def test_a_difference_covers_the_truth_as_often_as_it_says() -> None:
    random, covered = np.random.default_rng(3), 0
    for _ in range(200):
        found = bootstrap_difference(random.random(60) < 0.6, random.random(40) < 0.3)
        assert found.lo is not None
        assert found.hi is not None
        covered += found.lo <= 0.3 <= found.hi
    assert 180 <= covered <= 199


@pytest.mark.parametrize("size", [0, 1])
def test_too_little_for_an_interval(size: int) -> None:
    values = np.ones(size)
    for found in (bootstrap_mean(values), bootstrap_difference(values, np.ones(5))):
        assert (found.lo, found.hi) == (None, None)
        assert math.isnan(found.value) == (size == 0)


@pytest.mark.parametrize(
    ("layers", "lowest", "highest"),
    [(1, [0], [0]), (2, [0], [1]), (5, [0], [4]), (16, list(range(5)), list(range(11, 16)))],
)
def test_thirds(layers: int, lowest: list[int], highest: list[int]) -> None:
    low, high = thirds(layers)
    assert (list(range(layers))[low], list(range(layers))[high]) == (lowest, highest)


def test_holm_is_that_of_the_definition() -> None:
    ps = [0.01, 0.04, 0.03, 0.005]
    assert holm(ps) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (Effect(3, 2, 5, 1), "holds"),
        (Effect(0, -1, 0.5, 1), "does not hold"),
        (Effect(3, 0.5, 5, 1), "unclear"),
        (Effect(3), "unclear"),
        (None, "unclear"),
    ],
)
def test_a_verdict_is_what_the_interval_says_and_p_agrees(effect: Effect | None, expected: str) -> None:
    assert claims.judge(effect, "a test", "some evidence").outcome == expected
    if effect is not None and effect.p is not None:
        assert (effect.p < 0.05) == (expected != "unclear")


def test_an_effect_is_read_back_from_its_facts() -> None:
    assert claims.read_effect(claims.effect_facts("rise", Interval(0.2, 0.1, 0.3)), "rise", 0.05) == Effect(
        0.2, 0.1, 0.3, 0.05
    )
    assert claims.read_effect(claims.effect_facts("rise", Interval(math.nan)), "rise", 0.05) is None
    assert list(claims.effect_columns("rise", "what it is")) == list(claims.effect_facts("rise", Interval(1)))


def test_claims_are_corrected_for_their_number() -> None:
    weak = Effect(2, 0.05, 3.95)  # p just under 0.05
    strong = Effect(2, 1.8, 2.2)
    verdicts = {
        "one": [claims.judge(strong, "t", "e"), claims.not_applicable("t", "why")],
        "two": [claims.judge(weak, "t", "e"), claims.judge(Effect(1.0), "t", "e")],
    }
    measured.correct(verdicts)
    found: list[Verdict] = [*verdicts["one"], *verdicts["two"]]
    assert [each.outcome for each in found] == ["holds", "not applicable", "holds", "unclear"]
    assert [each.adjusted is None for each in found] == [False, True, False, True]
    more = {"one": [claims.judge(weak, "t", "e") for _ in range(3)]}
    measured.correct(more)
    assert {each.outcome for each in more["one"]} == {"unclear"}
    assert "3 claims" in more["one"][0].evidence


@pytest.mark.parametrize("count", [2, 4, 8, 30])
def test_intervals_over_few_documents_hold_the_true_mean(count: int) -> None:
    """Documents with means of their own and of very different length. A bootstrap over two of them held it half of the time."""
    random, hits, trials = np.random.default_rng(0), 0, 600
    for _ in range(trials):
        sizes = random.integers(20, 200, count)
        documents = np.repeat(np.arange(count), sizes)
        values = random.normal(size=count)[documents] + random.normal(size=len(documents))
        mean, lo, hi = stats.clustered_mean(values, documents)
        assert mean is not None
        assert lo is not None
        assert hi is not None
        hits += lo <= 0.0 <= hi
    assert 0.89 < hits / trials < 0.99


def test_a_share_of_one_document_has_no_interval_and_one_of_many_at_least_wilsons() -> None:
    hits = np.ones(300, bool)
    assert stats.clustered_rate(hits, np.zeros(300)) == (1.0, None, None)
    found = stats.clustered_rate(hits, np.arange(300))
    assert (found.lo, found.hi) == pytest.approx(stats.wilson(300, 300))
