"""Description length against likelihoods that are written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from keyhole.patterns.bits import best_set, saved, saved_once, set_bits


def cost(hits: int, misses: int, share: float) -> float:
    """Bits of saying, position by position, which of them fire."""
    return sum([-math.log2(share)] * hits) + sum([-math.log2(1 - share)] * misses)


@pytest.mark.parametrize(("hits", "matches"), [(1, 1), (3, 3), (3, 10), (40, 1000), (200, 200), (7, 6000)])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.2])
def test_bits_saved_are_the_difference_of_two_descriptions(hits: int, matches: int, share: float) -> None:
    own = (hits + 0.5) / (matches + 1)
    wanted = cost(hits, matches - hits, share) - cost(hits, matches - hits, own) if own > share else 0.0
    assert float(saved(hits, matches, share)) == pytest.approx(wanted, abs=1e-9)


def test_a_rule_that_fires_more_rarely_than_the_text_saves_nothing() -> None:
    assert saved([0, 1, 4], [5000, 2000, 5000], 0.001).tolist() == [0.0, 0.0, 0.0]
    assert float(saved(20, 5000, 0.001)) > 0


def test_more_hits_and_fewer_matches_save_more() -> None:
    hits = saved(np.arange(5, 60), 100, 0.001)
    assert (np.diff(hits) > 0).all()
    matches = saved(20, np.arange(20, 2000), 0.001)
    assert (np.diff(matches) < 0).all()


def test_a_set_costs_its_tokens_in_no_order_and_their_number() -> None:
    for size in (1, 2, 5, 20):
        wanted = size * 12.0 - math.log2(math.factorial(size)) + 2 * math.log2(size + 1)
        assert set_bits(size, 12.0) == pytest.approx(wanted)
    np.testing.assert_allclose(set_bits(np.arange(1, 4), 9.0), [set_bits(size, 9.0) for size in (1, 2, 3)])


def test_the_best_set_is_the_best_of_all_sets() -> None:
    """For tokens that are clearly good or bad; of those in between, the order by their share of hits decides."""
    hits = np.array([30, 0, 25, 1, 4, 0])
    matches = np.array([31, 900, 40, 800, 5, 20])
    share, token_bits = 0.001, 10.0

    def worth(chosen: tuple[int, ...]) -> float:
        some = list(chosen)
        return float(saved(hits[some].sum(), matches[some].sum(), share)) - float(set_bits(len(some), token_bits))

    every = [each for size in range(1, 7) for each in itertools.combinations(range(6), size)]
    best = max(every, key=worth)
    chosen, bits = best_set(hits, matches, share, token_bits)
    assert tuple(sorted(chosen.tolist())) == best == (0, 2, 4)
    assert bits == pytest.approx(worth(best))


def test_a_set_of_nothing_that_pays_for_itself_is_empty() -> None:
    chosen, bits = best_set(np.array([1, 0]), np.array([900, 10]), 0.001, 10.0)
    assert (len(chosen), bits) == (0, 0.0)


def test_a_set_has_at_most_so_many_tokens() -> None:
    chosen, _ = best_set(np.full(30, 10), np.full(30, 10), 0.001, 10.0, most=7)
    assert len(chosen) == 7


def test_one_rule_saves_what_it_does_among_many() -> None:
    random = np.random.default_rng(0)
    matches = random.integers(0, 500, 400)
    hits = random.binomial(matches, random.random(400))
    for share in (0.001, 0.2, 1.0):
        found = [saved_once(h, n, share) for h, n in zip(hits.tolist(), matches.tolist(), strict=True)]
        np.testing.assert_allclose(found, saved(hits, matches, share), rtol=1e-9, atol=1e-9)
