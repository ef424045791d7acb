"""Evidence: what was planted weighs most, and scores are better than a constant on windows it was not fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keyhole.patterns import evidence, rules
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.packing import unpacked
from keyhole.patterns.scores import average_precision
from keyhole.patterns.text import Text

TOKENS = 60
STRONG, WEAK, NEVER = [3, 4], [5, 6], [7, 8]
SHARES = {**dict.fromkeys(STRONG, 0.6), **dict.fromkeys(WEAK, 0.15), **dict.fromkeys(NEVER, 0.0)}
"""How often the key fires at these tokens; 1 before it makes it four times as rare."""


def a_lexicon(seed: int = 0) -> Lexicon:
    vectors = np.random.default_rng(seed).normal(size=(TOKENS, 6)).astype(np.float32)
    return Lexicon([f" w{token}" for token in range(TOKENS)], vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def fired(seed: int) -> tuple[Text, np.ndarray, np.ndarray]:
    """A text, the positions that end in one of the tokens above, and whether the key fires there."""
    random = np.random.default_rng(seed)
    text = Text.of([random.integers(0, TOKENS, 30).tolist() for _ in range(1500)], np.arange(1500), a_lexicon())
    positions = text.where_any(list(SHARES))
    share = np.array([SHARES[token] for token in text.tokens[positions].tolist()])
    share = np.where(text.token(positions, 1) < 15, share / 4, share)
    return text, positions, (random.random(len(positions)) < share).astype(np.int8)


def weights(found: dict[str, Any], back: int) -> dict[int, float]:
    entry = next((each for each in found["more"] if each.get("back") == back and "ids" in each), None)
    ids, values = rules.weighted(entry, 1, TOKENS) if entry else ([], [])
    return dict(zip(map(int, ids), map(float, values), strict=True))


def cost(p: Any, y: np.ndarray) -> float:
    """Bits per position."""
    return float(-(y * np.log2(p) + (1 - y) * np.log2(1 - p)).mean())


@pytest.mark.parametrize("seed", range(3))
def test_strong_tokens_weigh_more_than_weak_ones(seed: int) -> None:
    text, positions, y = fired(seed)
    found, amounts = evidence.fit(text, positions, y, np.full(len(y), -1), 0, np.random.default_rng(0), firing=0)
    assert amounts == []
    last, before = weights(found, 0), weights(found, 1)
    strong, weak, never = ([last.get(token, 0.0) for token in each] for each in (STRONG, WEAK, NEVER))
    assert min(strong) > max(weak)
    assert min(weak) > max(never)
    assert np.mean([before.get(token, 0.0) for token in range(15)]) < -0.3
    for each in found["more"]:
        assert (np.diff(unpacked(each.get("ids", []))) > 0).all()


def test_two_tokens_together_have_a_weight() -> None:
    """A key that fires at one token if it follows another, and at neither alone: sums of their weights cannot say that."""
    random = np.random.default_rng(11)
    text = fired(11)[0]
    ends = text.where_any(range(10))
    positions = ends[text.places[ends] > 0]
    pair = (text.tokens[positions] < 5) == (text.token(positions, 1) < 30)
    y = (random.random(len(positions)) < np.where(pair, 0.5, 0.02)).astype(np.int8)
    nothing = np.zeros(len(positions), np.float32)
    bits = {}
    for name, effort in (("full", evidence.FULL), ("quick", evidence.QUICK)):
        found, _ = evidence.fit(text, positions, y, np.full(len(y), -1), 0, random, firing=0, effort=effort)
        bits[name] = cost(rules.score(found, text, positions, nothing), y)
    assert any(
        each.get("back") == [0, 1]
        for each in evidence.fit(text, positions, y, np.full(len(y), -1), 0, random, firing=0)[0]["more"]
    )
    assert bits["full"] < bits["quick"] - 0.1


def test_a_token_anywhere_before_has_one_weight() -> None:
    """A key that fires if one of two tokens stands somewhere before: no place says much, and one weight for all of them does."""
    random = np.random.default_rng(14)
    text, positions, _ = fired(14)
    there = text.before([20, 21], positions, nearest=1, farthest=24) > 0
    y = (random.random(len(positions)) < np.where(there, 0.5, 0.05)).astype(np.int8)
    none, nothing = np.full(len(y), -1), np.zeros(len(y), np.float32)
    bits = {}
    for farthest in (0, 24):
        effort = evidence.FULL._replace(farthest=farthest)
        found, _ = evidence.fit(text, positions, y, none, 0, np.random.default_rng(0), firing=0, effort=effort)
        bits[farthest] = cost(rules.score(found, text, positions, nothing), y)
    entry = next(each for each in found["more"] if each.get("farthest") == 24)
    ids, values = rules.weighted(entry, 1, TOKENS)
    assert sorted(ids[np.argsort(-values)[:2]].tolist()) == [20, 21]
    assert bits[24] < bits[0] - 0.05


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_better_than_a_constant_on_other_windows(seed: int) -> None:
    text, positions, y = fired(seed)
    found, _ = evidence.fit(text, positions, y, np.full(len(y), -1), 0, np.random.default_rng(0), firing=0)
    other, there, fires = fired(seed + 100)
    scores = rules.score(found, other, there, np.zeros(len(there), np.float32))
    constant, tokens = cost(fires.mean(), fires), np.array([SHARES[token] for token in other.tokens[there].tolist()])
    assert cost(scores, fires) < constant - 0.1
    assert cost(scores, fires) < cost(np.clip(tokens * 0.8, 1e-3, 1), fires) + 0.02
    assert scores.mean() == pytest.approx(fires.mean(), abs=0.03)


def test_a_pattern_adds_its_amount() -> None:
    """Positions of the first pattern fire often, of the second rarely; the tokens say nothing."""
    random = np.random.default_rng(4)
    text, positions, _ = fired(4)
    pattern = random.integers(-1, 2, len(positions))
    y = (random.random(len(positions)) < np.array([0.7, 0.05, 0.2])[pattern]).astype(np.int8)
    _, (often, rarely) = evidence.fit(text, positions, y, pattern, 2, random, firing=0)
    assert often > 1
    assert rarely < -0.5


def test_the_place_in_the_window_has_a_weight() -> None:
    """A key that fires at the first two tokens of a window, whatever they are."""
    random = np.random.default_rng(5)
    text, positions, _ = fired(5)
    y = (random.random(len(positions)) < np.where(text.places[positions] < 2, 0.6, 0.05)).astype(np.int8)
    found, _ = evidence.fit(text, positions, y, np.full(len(y), -1), 0, random, firing=0)
    (places,) = (each["places"] for each in found["more"] if "places" in each)
    assert min(places[:2]) > max(places[2:]) + 1.5
    scores = rules.score(found, text, positions, np.zeros(len(positions), np.float32))
    assert scores[text.places[positions] == 1].mean() == pytest.approx(0.6, abs=0.05)
    assert scores[text.places[positions] > 8].mean() == pytest.approx(0.05, abs=0.02)


def test_levels_share_weights_and_the_score_is_that_of_the_firing_one() -> None:
    """A coefficient that depends on the last token, and noise. The higher of two levels is rare; how often each token is in the
    lower one tells which tokens are in the higher one."""
    random = np.random.default_rng(7)
    strength = random.normal(0, 1.5, TOKENS)

    def levels(seed: int) -> tuple[Text, np.ndarray]:
        text = fired(seed)[0]
        m = strength[text.tokens] + np.random.default_rng(seed).logistic(size=len(text))
        return text, ((m > 2).astype(np.int8) + (m > 6)).astype(np.int8)

    text, y = levels(7)
    every, none = np.arange(len(text)), np.full(len(text), -1)
    both, _ = evidence.fit(text, every, y, none, 0, random, firing=1)
    alone, _ = evidence.fit(text, every, (y > 1).astype(np.int8), none, 0, random, firing=0)
    others = [levels(seed) for seed in range(107, 115)]
    fires = np.concatenate([true for _, true in others]) > 1
    score = {
        name: np.concatenate(
            [rules.score(found, other, np.arange(len(other)), np.zeros(len(other), np.float32)) for other, _ in others]
        )
        for name, found in (("both", both), ("alone", alone))
    }
    assert score["both"].mean() == pytest.approx(fires.mean(), rel=0.2)
    assert cost(score["both"], fires) < cost(score["alone"], fires)
    assert average_precision(score["both"], fires) > average_precision(score["alone"], fires)


def test_a_part_of_the_misses_stands_for_the_others() -> None:
    """The estimate is of the same size as with all of them."""
    text, positions, y = fired(6)
    few_weights = evidence.QUICK._replace(last=8, kept=8, misses=512)
    few, _ = evidence.fit(
        text, positions, y, np.full(len(y), -1), 0, np.random.default_rng(0), firing=0, effort=few_weights
    )
    scores = rules.score(few, text, positions, np.zeros(len(positions), np.float32))
    assert (y == 0).sum() > 2 * few_weights.misses
    assert scores.mean() == pytest.approx(y.mean(), abs=0.03)
    counts = {str(each["back"]): len(unpacked(each["ids"])) for each in few["more"] if "ids" in each}
    assert 0 < counts.pop("0") <= 8
    assert sum(counts.values()) <= 8


def test_more_weights_are_kept_if_the_key_fires_more_often() -> None:
    text, positions, y = fired(6)
    kept = []
    for per_firing in (0.0, 0.02, 0.2):
        effort = evidence.FULL._replace(kept=10, kept_per_firing=per_firing)
        found, _ = evidence.fit(
            text, positions, y, np.full(len(y), -1), 0, np.random.default_rng(0), firing=0, effort=effort
        )
        kept.append(sum(len(unpacked(each["ids"])) for each in found["more"] if "ids" in each and each["back"] != 0))
    fires = int(y.sum())
    assert kept[0] <= 10
    assert 10 < kept[1] <= round(0.02 * fires)
    assert kept[1] < kept[2] <= round(0.2 * fires)


def test_weights_that_are_left_out_are_made_up_for() -> None:
    """With few weights, those that stay are fitted again: the scores still estimate how often the key fires."""
    text, positions, y = fired(12)
    effort = evidence.FULL._replace(last=4, kept=4, kept_per_firing=0)
    found, _ = evidence.fit(
        text, positions, y, np.full(len(y), -1), 0, np.random.default_rng(0), firing=0, effort=effort
    )
    scores = rules.score(found, text, positions, np.zeros(len(positions), np.float32))
    assert scores.mean() == pytest.approx(y.mean(), abs=0.01)


def test_a_level_that_counts_nothing_changes_nothing() -> None:
    """Levels count as much as they are given: with a share near 0, another level's positions might as well not be there."""
    text, positions, y = fired(13)
    noise = np.random.default_rng(3).random(len(y)) < 0.3
    both = np.where(y > 0, 2, noise.astype(np.int8)).astype(np.int8)
    none = np.full(len(y), -1)
    last = []
    for levels, firing, shares in ((both, 1, (1e-6, 1.0)), (y, 0, (1.0,)), (both, 1, (1.0, 1.0))):
        found, _ = evidence.fit(
            text, positions, levels, none, 0, np.random.default_rng(0), firing=firing, shares=shares
        )
        last.append(np.array([weights(found, 0).get(token, 0.0) for token in SHARES]))
    assert np.abs(last[0] - last[1]).max() <= 0.02
    assert np.abs(last[2] - last[1]).max() > 0.1


def test_tokens_that_are_no_number_together_have_no_weight() -> None:
    """Four tokens of a vocabulary of 60,000 are not one number of 64 bits: they are left out, and nothing else changes."""
    pieces = [f" w{token}" for token in range(60_000)]
    text = Text.of([[1, 2, 3, 4, 59_999] for _ in range(30)], np.arange(30), Lexicon(pieces))
    positions, y = np.arange(len(text)), (text.tokens == 59_999).astype(np.int8)
    found, _ = evidence.fit(text, positions, y, np.full(len(y), -1), 0, np.random.default_rng(0), firing=0)
    backs = [each["back"] for each in found["more"] if "ids" in each]
    assert [0, 1, 2] in backs
    assert [0, 1, 2, 3] not in backs


def test_a_last_token_is_reached_if_the_key_leans_to_it() -> None:
    text, positions, y = fired(8)
    reached = evidence.reach(text, positions[y > 0]).tolist()
    assert set(STRONG + WEAK) <= set(reached)
    assert not set(NEVER) & set(reached)
    assert evidence.reach(text, positions[:0]).tolist() == []


def test_nothing_to_fit_is_no_evidence() -> None:
    text, positions, y = fired(9)
    found, amounts = evidence.fit(text, positions[:0], y[:0], positions[:0], 2, np.random.default_rng(0), firing=0)
    assert (found["more"], amounts) == ([], [0.0, 0.0])


def test_what_is_written_is_what_is_read() -> None:
    vector = np.random.default_rng(0).normal(size=64)
    kept = evidence.rounded(vector)
    assert np.array_equal(evidence.rounded(np.array([round(float(each), 3) for each in kept])), kept)
    assert np.abs(kept - vector).max() <= 5.1e-4
