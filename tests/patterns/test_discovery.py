"""False discoveries against counting."""

from __future__ import annotations

import numpy as np
import pytest

from keyhole.patterns.discovery import LARGEST_Q, q_values


def counted(bits: list[float], null: list[float], keys: int, null_keys: int) -> list[float]:
    """Per pattern: false ones per key, one more than were found, over real ones per key; the least of any lower bar."""

    def rate(bar: float) -> float:
        false = (sum(each >= bar for each in null) + 1) / null_keys
        return min(1.0, false / (sum(each >= bar for each in bits) / keys))

    return [min(rate(bar) for bar in bits if bar <= each) for each in bits]


@pytest.mark.parametrize("seed", range(6))
def test_q_values_are_counted(seed: int) -> None:
    random = np.random.default_rng(seed)
    bits = np.round(random.exponential(30, random.integers(1, 60)) + 10).tolist()  # with ties
    null = np.round(random.exponential(12, random.integers(0, 80)) + 10).tolist()
    assert q_values(bits, null, 40, 150) == pytest.approx(counted(bits, null, 40, 150))


def test_more_bits_never_have_a_larger_q_value() -> None:
    random = np.random.default_rng(1)
    bits = random.exponential(20, 200)
    q = np.array(q_values(bits.tolist(), random.exponential(10, 100).tolist(), 100, 150))
    assert (np.diff(q[np.argsort(bits)]) <= 0).all()
    assert q.max() <= 1


def test_nothing_found_has_no_q_value() -> None:
    assert q_values([], [3.0], 10, 10) == []


def test_few_nulls_cannot_promise_too_much() -> None:
    """One pattern in 10 keys, and none in 10 nulls: it may well be false."""
    assert q_values([1000.0], [], 10, 10) == [1.0]
    assert q_values([1000.0], [], 10, 1000) == pytest.approx([0.01])


def test_patterns_that_are_like_those_of_dealt_out_triggers_are_left_out() -> None:
    """The share of false discoveries: here every discovery is one, so it is the share of searches with any."""
    random, any_found = np.random.default_rng(0), 0
    for _ in range(400):
        keys, null_keys = 100, 150
        bits, null = (random.exponential(20, random.binomial(2 * n, 0.3)).tolist() for n in (keys, null_keys))
        any_found += any(q <= LARGEST_Q for q in q_values(bits, null, keys, null_keys))
    assert any_found / 400 <= LARGEST_Q


def test_true_patterns_among_false_ones_are_kept_at_the_stated_rate() -> None:
    random, shares, kept = np.random.default_rng(2), [], []
    for _ in range(200):
        false, true = random.exponential(15, 60), random.normal(150, 30, 60)
        q = np.array(q_values([*false, *true], random.exponential(15, 90).tolist(), 100, 150))
        found = q <= LARGEST_Q
        shares.append(found[:60].sum() / max(1, found.sum()))
        kept.append(found[60:].mean())
    assert np.mean(shares) <= LARGEST_Q
    assert np.mean(kept) > 0.9
