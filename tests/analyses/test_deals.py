"""The null of agreement: values dealt out among keys, against all permutations; and how often what it gives is wrong."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from keyhole.analyses.agreement import SMALLEST, Pairs, effects, first_upper
from keyhole.analyses.claims import read_effect
from keyhole.analyses.deals import deal, excess
from keyhole.analyses.stats import (
    Interval,
    difference,
    median_interval,
    rate_with_interval,
    sample_difference,
    sample_mean,
)


def brute_force(said: list[int], wanted: list[int], groups: list[int]) -> float:
    """The mean number of hits over all permutations that keep every value in its group, per cell."""
    orders = [
        order for order in permutations(range(len(said))) if all(groups[i] == groups[j] for i, j in enumerate(order))
    ]
    hits = [sum(said[j] == wanted[i] for i, j in enumerate(order)) for order in orders]
    return float(np.mean(hits)) / len(said)


@pytest.mark.parametrize("groups", [[0] * 7, [0, 0, 1, 1, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])
def test_a_deal_is_the_mean_over_all_permutations(groups: list[int]) -> None:
    random = np.random.default_rng(len(set(groups)))
    for _ in range(5):
        said, wanted = random.integers(0, 3, (2, 7)).tolist()
        assert deal(np.array(said), np.array(wanted), np.array(groups)).mean() == pytest.approx(
            brute_force(said, wanted, groups)
        )


def test_a_cell_that_is_alone_is_credited_with_nothing() -> None:
    said, wanted = np.array([3, 4, 5]), np.array([3, 9, 5])
    dealt = deal(said, wanted, np.arange(3))
    assert dealt.tolist() == [1, 0, 1]
    assert excess(said == wanted, dealt).value == 0


def test_a_bigram_is_not_credited_under_the_same_last_token() -> None:
    """Every value says what usually follows its trigger's last token: agreement is perfect, and all of it is the bigram's."""
    last = np.repeat(np.arange(20), 30)
    every = Pairs(np.arange(600), np.zeros(600, np.int64), last + 100, last + 100, last)
    assert every.hits.all()
    assert every.dealt.mean() == pytest.approx(1 / 20)
    assert excess(every.hits, every.dealt_same_last).value == pytest.approx(0)
    found = excess(every.hits, every.dealt)
    assert found.lo is not None
    assert found.lo > 0.9


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Cells agree with probability 0.05 on top of chance; said and wanted tokens are skewed alike."""
    random, covered = np.random.default_rng(4), 0
    share = 1 / np.arange(1, 41)
    share /= share.sum()
    truth = 0.05 * (1 - float((share**2).sum()))
    for _ in range(300):
        wanted, said = random.choice(40, (2, 400), p=share)
        said = np.where(random.random(400) < 0.05, wanted, said)
        found = excess(said == wanted, deal(said, wanted, np.zeros(400)))
        assert found.lo is not None
        assert found.hi is not None
        covered += found.lo <= truth <= found.hi
    assert 0.92 <= covered / 300 <= 0.99


def test_no_hits_among_few_cells_prove_nothing() -> None:
    found = excess(np.zeros(24, bool), np.zeros(24))
    assert found.value == 0
    assert found.hi is not None
    assert found.hi > 0.1


def cells(random: np.random.Generator, rate: list[float], width: int = 200) -> Pairs:
    """Cells that agree at a rate per layer, over tokens that never agree by chance."""
    layer = np.repeat(np.arange(len(rate)), width)
    wanted = np.arange(len(layer)) + 10
    said = np.where(random.random(len(layer)) < np.repeat(rate, width), wanted, 0)
    return Pairs(np.arange(len(layer)), layer, said, wanted, random.integers(0, 9, len(layer)))


def test_noise_that_is_smooth_over_layers_does_not_rise() -> None:
    """Cells with one and the same rate in every layer: whatever a layer's rate happens to be, depth plays no part."""
    random, holds = np.random.default_rng(5), 0
    for _ in range(200):
        effect = read_effect(effects(cells(random, [0.05] * 12), 12), "rise", 0.0)  # even without a smallest effect
        assert effect is not None
        assert effect.lo is not None
        holds += effect.lo > 0
    assert holds <= 0.05 * 200


def test_a_planted_rise_is_found_and_only_where_it_is() -> None:
    random = np.random.default_rng(6)
    assert first_upper(16) == 10
    found = effects(cells(random, [0.0] * 10 + [0.04] * 6, 2000), 16)
    for name, sign in (("above_chance", 1), ("rise", 1), ("lower_part", -1)):
        effect = read_effect(found, name, SMALLEST)
        assert effect is not None
        assert effect.lo is not None
        assert effect.hi is not None
        assert (effect.lo > SMALLEST) if sign > 0 else (effect.hi < SMALLEST)
    assert found["above_chance"] == pytest.approx(0.04, abs=0.005)


# What the intervals are made of


def test_the_difference_of_two_rates_is_newcombes() -> None:
    """The worked example of Newcombe (1998), method 10: 56 of 70 and 48 of 80."""
    found = difference(rate_with_interval(56, 70), rate_with_interval(48, 80))
    assert found.value == pytest.approx(0.2)
    assert found.lo == pytest.approx(0.0524, abs=5e-4)
    assert found.hi == pytest.approx(0.3339, abs=5e-4)
    same = Interval(0.3, 0.2, 0.4)
    perfect = difference(same, same, correlation=1.0)
    assert (perfect.lo, perfect.hi) == (0, 0)
    assert difference(same, Interval(0.1)) == Interval(pytest.approx(0.2))
    assert math.isnan(rate_with_interval(0, 0).value)


def test_many_values_have_a_normal_interval_that_the_bootstrap_agrees_with() -> None:
    random = np.random.default_rng(7)
    many, few = random.gamma(2, 1, 30_000), random.gamma(2, 1, 10_000)
    normal, resampled = sample_mean(many), sample_mean(many[:20_000])
    assert normal.hi is not None
    assert resampled.hi is not None
    assert (normal.hi - normal.value) * math.sqrt(1.5) == pytest.approx(resampled.hi - resampled.value, rel=0.1)
    apart = sample_difference(many + 0.5, few)
    assert apart.value == pytest.approx(many.mean() + 0.5 - few.mean())
    assert apart.lo is not None
    assert 0.4 < apart.lo < 0.5


def test_a_median_has_the_interval_of_its_order_statistics() -> None:
    found = median_interval(np.arange(100.0))
    assert found.value == 49.5
    assert (found.lo, found.hi) == (39, 60)  # 1 + the 2.5 % quantile of Binomial(100, ½), from either end
    assert median_interval(np.arange(5.0)) == Interval(2.0)
    covered = 0
    random = np.random.default_rng(8)
    for _ in range(300):
        found = median_interval(random.exponential(size=31))
        assert found.lo is not None
        assert found.hi is not None
        covered += found.lo <= math.log(2) <= found.hi
    assert covered >= 0.93 * 300
