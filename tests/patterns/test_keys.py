"""From coefficients to a key: where it fires, how strongly, its threshold and kind."""

from __future__ import annotations

import numpy as np
import pytest

from keyhole.patterns import evidence, rules
from keyhole.patterns.keys import (
    FIRING,
    LEVELS,
    Fires,
    Rule,
    Triggers,
    best_threshold,
    find_rules,
    fires,
    key_kind,
    kind_of,
    make_key,
)
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.scores import f1
from keyhole.patterns.text import Text

LENGTH = 20_000
LEXICON = Lexicon([f" w{token}" for token in range(40)])


def above(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and coefficients above 0, in a random order."""
    positions = np.random.default_rng(1).permutation(np.flatnonzero(values > 0))
    return positions.astype(np.int32), values[positions].astype(np.float32)


def levels(values: np.ndarray, least: float = 0.0) -> np.ndarray:
    """[positions] from the definition, over the coefficients at all positions: how many levels each is in."""
    ranked = np.sort(np.maximum(values, least))[::-1]
    bars = [ranked[round(share * len(values))] for share in LEVELS]
    return np.array([sum(value > bar for bar in bars) for value in values.tolist()])


@pytest.mark.parametrize("sparse", [1.0, 0.5, 0.003, 0.0009, 0.0])
@pytest.mark.parametrize("ties", [False, True])
def test_a_key_fires_above_its_percentile_and_other_levels_grade_it(sparse: float, ties: bool) -> None:
    random = np.random.default_rng(0)
    values = np.where(random.random(LENGTH) < sparse, random.exponential(1, LENGTH), -1).astype(np.float32)
    values = np.round(values) if ties else values
    found, true = fires(*above(values), LENGTH), levels(values.astype(np.float64))
    np.testing.assert_array_equal(found.positions, np.flatnonzero(true))
    np.testing.assert_array_equal(found.levels, true[true > 0])
    np.testing.assert_array_equal(found.fired, np.flatnonzero(true > FIRING))
    assert len(found.fired) <= round(LEVELS[FIRING] * LENGTH)
    if not ties and sparse > 0.01:
        assert np.bincount(true)[1:].tolist() == [
            round(a * LENGTH) - round(b * LENGTH) for a, b in zip(LEVELS, (*LEVELS[1:], 0), strict=True)
        ]


def test_what_was_kept_is_the_lowest_level_if_it_is_too_little() -> None:
    """As if the pass had kept too few: the same firing positions, and no others in the lowest level."""
    values = np.random.default_rng(3).exponential(1, LENGTH)
    least = float(np.sort(values)[::-1][round(LEVELS[0] * LENGTH / 2)])
    positions = np.flatnonzero(values > least)
    found = fires(positions, values[positions], LENGTH, least)
    np.testing.assert_array_equal(found.positions, positions)
    np.testing.assert_array_equal(found.levels, levels(values, least)[positions])
    np.testing.assert_array_equal(found.fired, np.flatnonzero(levels(values) > FIRING))


def test_a_key_whose_largest_coefficients_are_all_equal_fires_nowhere() -> None:
    """Strictly above the percentile; at which of equal ones it fires cannot be said."""
    values = np.where(np.arange(LENGTH) % 50 == 0, 2.0, 0.0)
    assert len(fires(*above(values), LENGTH).fired) == 0


def tried(scores: np.ndarray, hits: np.ndarray, total: int) -> dict[float, float]:
    """F1 of every threshold."""
    return {
        float(bar): float(2 * hits[scores >= bar].sum() / ((scores >= bar).sum() + total)) for bar in np.unique(scores)
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_threshold_is_the_lowest_that_is_as_good_as_the_best(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.round(random.random(300), 1 if seed % 2 else 4)  # with many ties, or few
    hits = random.random(300) < scores**3
    total = int(hits.sum()) + seed
    f1 = tried(scores, hits, total)
    best = max(f1.values())
    enough = best - np.sqrt(best * (1 - best) / total) / 4
    assert best_threshold(scores, hits, total) == pytest.approx(min(bar for bar in f1 if f1[bar] >= enough), abs=1e-4)


def test_equal_scores_are_predicted_together() -> None:
    """If only the first of many positions with the same score is a hit, a threshold there predicts them all."""
    scores = np.array([0.9, 0.9, *[0.5] * 100])
    hits = np.array([True, True, True, *[False] * 99])
    assert best_threshold(scores, hits, 3) == pytest.approx(0.9, abs=1e-4)


def test_a_threshold_without_hits_is_a_half() -> None:
    assert best_threshold(np.empty(0), np.empty(0, bool), 3) == 0.5
    assert best_threshold(np.array([0.2]), np.array([False]), 3) == 0.5


def test_kinds() -> None:
    last, topic = {"if": "token", "back": 0, "ids": [1]}, {"if": "topic", "ids": [1], "least": 2}
    near = {"if": "near", "centroid": [1.0], "least": 0.5}
    assert kind_of([last, {"if": "within", "back": 1, "farthest": 4, "ids": [2]}]) == "shallow"
    assert kind_of([last, {"if": "absent", "ids": [2]}]) == "shallow"
    assert kind_of([last, topic]) == kind_of([{"if": "anywhere", "ids": [1]}]) == "semantic"
    assert (kind_of([{**near, "back": 0}]), kind_of([{**near, "back": None}])) == ("shallow", "semantic")
    assert key_kind([]) == "none"
    assert key_kind(["shallow", "shallow"]) == "shallow"
    assert key_kind(["semantic"]) == "semantic"
    assert key_kind(["shallow", "semantic"]) == "both"


def a_text() -> Text:
    random = np.random.default_rng(3)
    windows = [random.integers(0, 40, 25).tolist() for _ in range(800)]
    return Text.of(windows, np.arange(800), LEXICON)


def test_a_key_is_made_of_its_rules() -> None:
    """It fires after 5 if the last token is 7, now and then elsewhere."""
    text = a_text()
    true = rules.where({"all": [{"if": "token", "back": 0, "ids": [7]}, {"if": "token", "back": 1, "ids": [5]}]}, text)
    there = Fires(true, np.full(len(true), FIRING + 1))
    found = find_rules(text, there, seed=0)
    assert [each["if"] for each in found[0].conditions] == ["token", "token"]
    assert {(each["back"], tuple(each["ids"])) for each in found[0].conditions} == {(0, (7,)), (1, (5,))}
    assert (found[0].hits, found[0].matches) == (len(true), len(true))
    rare = Rule(({"if": "token", "back": 0, "ids": [9]},), 50.0, 30, 20)
    triggers = Triggers(Text.of([[1, 5, 7], [5, 7], [2, 2, 5, 7], [9], [3, 9], [7]], np.zeros(6), LEXICON))
    key = make_key(4, -1, text, there, [(found[0], 0.01), (rare, 0.02)], triggers, seed=0, needs=(0.5,))
    assert (key.cell, key.side, key.kind, key.read, key.needs) == (4, -1, "shallow", 6, (0.5,))
    (only,) = key.patterns  # the other is in two triggers only
    assert only.triggers == (0, 1, 2)
    assert only.lift == pytest.approx(len(text) / len(true))
    assert (only.q_value, only.bits) == (0.01, found[0].bits)
    assert 0 < key.threshold < 1
    fired = rules.fire(key, text)
    np.testing.assert_array_equal(fired.positions[fired.scores >= key.threshold], true)


def test_tokens_that_more_triggers_have_are_named_first() -> None:
    text = a_text()
    rule = Rule(({"if": "token", "back": 0, "ids": [2, 7, 9]}, {"if": "anywhere", "ids": [3, 5]}), 50.0, 30, 20)
    prefixes = [[5, 9], [5, 7], [3, 9], [1, 2], [5, 1, 9]]  # the fourth does not carry it
    triggers = Triggers(Text.of(prefixes, np.zeros(5), LEXICON))
    there = Fires(np.arange(20), np.full(20, FIRING + 1))
    (only,) = make_key(4, 1, text, there, [(rule, 0.01)], triggers, seed=0).patterns
    assert only.triggers == (0, 1, 2, 4)
    assert [each["ids"] for each in only.rule["all"]] == [[9, 7, 2], [3, 5]]
    assert only.description.startswith("‘w9’, ‘w7’ or ‘w2’")


def test_a_key_without_rules_says_nothing() -> None:
    text = a_text()
    key = make_key(
        4, 1, text, Fires(np.arange(20), np.full(20, FIRING + 1)), [], Triggers(Text.of([], [], LEXICON)), seed=0
    )
    assert (key.kind, key.patterns, key.read, key.evidence, key.threshold) == ("none", (), 0, {}, 1.0)
    assert not len(rules.fire(key, text).positions)


def test_a_key_that_fires_too_rarely_is_not_looked_at() -> None:
    text = a_text()
    where = text.where(7)
    assert find_rules(text, Fires(where[:9], np.full(9, FIRING + 1)), seed=0) == []
    assert find_rules(text, Fires(where[:200], np.full(200, FIRING + 1)), seed=0)


def test_where_a_key_fires_in_a_part_of_the_text() -> None:
    text = a_text()
    part, at = text.part(len(text) // 3)
    there = Fires(text.where(7), (np.arange(len(text.where(7))) % 3 + 1).astype(np.int8))
    inside = there.within(at)
    assert inside.positions.tolist() == part.where(7).tolist()
    known = dict(zip(there.positions.tolist(), there.levels.tolist(), strict=True))
    assert inside.levels.tolist() == [known[position] for position in at[inside.positions].tolist()]


def test_a_threshold_counts_positions_for_as_many_as_they_stand() -> None:
    """Every position stands for itself, or one in three of those that do not fire for all of them: the same threshold."""
    random = np.random.default_rng(2)
    hits = random.random(30_000) < 0.1
    scores = np.round(np.clip(random.normal(np.where(hits, 0.6, 0.4), 0.1), 0, 1), 2)
    kept = hits | (np.arange(len(hits)) % 3 == 0)
    every = best_threshold(scores, hits, int(hits.sum()))
    few = best_threshold(scores[kept], hits[kept], int(hits.sum()), np.where(hits[kept], 1, 3))
    unweighted = best_threshold(scores[kept], hits[kept], int(hits.sum()))
    assert few == pytest.approx(every, abs=0.011)
    assert unweighted < every - 0.015


def test_evidence_of_a_sample_of_a_long_text_says_the_same() -> None:
    """A key that fires at some tokens more often than at others: whether all misses are looked at or one in a few, scores estimate
    how often it does, and it is predicted equally well."""
    random = np.random.default_rng(5)
    text = Text.of([random.integers(0, 40, 25).tolist() for _ in range(4000)], np.arange(4000), LEXICON)
    share = np.zeros(40)
    share[:8] = [0.9, 0.8, 0.7, 0.6, 0.3, 0.2, 0.1, 0.05]
    true = np.flatnonzero(random.random(len(text)) < share[text.tokens])
    there = Fires(true, np.full(len(true), FIRING + 1, np.int8))
    rule = Rule(({"if": "token", "back": 0, "ids": list(range(8))},), 50.0, 30, 20)
    triggers = Triggers(Text.of([[1], [2], [3]], np.zeros(3), LEXICON))
    made = {}
    for name, few in (("all", evidence.FULL._replace(among=0)), ("some", evidence.FULL)):
        effort = few._replace(ridge={(0,): 1.5, (1,): 2.5}, misses=400, misses_per_firing=0.1)
        made[name] = make_key(4, 1, text, there, [(rule, 0.01)], triggers, seed=0, effort=effort)
    assert evidence.FULL._replace(misses=400, misses_per_firing=0.1).step(len(text), len(true)) > 5
    other = Text.of([random.integers(0, 40, 25).tolist() for _ in range(400)], np.arange(400), LEXICON)
    for key in made.values():
        fired = rules.fire(key, other)
        means = [fired.scores[other.tokens[fired.positions] == token].mean() for token in range(8)]
        np.testing.assert_allclose(means, share[:8], atol=0.1)
    fires_there = np.flatnonzero(random.random(len(other)) < share[other.tokens])
    quality = []
    for key in made.values():
        fired = rules.fire(key, other)
        quality.append(f1(fired.positions[fired.scores >= key.threshold], fires_there))
    assert min(quality) > 0.65
    assert abs(quality[0] - quality[1]) < 0.05


def test_a_rule_matches_the_same_among_some_positions() -> None:
    text = a_text()
    among = np.flatnonzero(np.random.default_rng(8).random(len(text)) < 0.3)
    for conditions in (
        [{"if": "token", "back": 0, "ids": [7, 8, 9]}, {"if": "anywhere", "ids": [3]}],
        [{"if": "position", "from": 2, "to": 9}],
        [{"if": "within", "back": 1, "farthest": 4, "ids": [5]}, {"if": "token", "back": 1, "ids": [2, 4, 6]}],
    ):
        every = rules.where({"all": conditions}, text)
        assert rules.where({"all": conditions}, text, among).tolist() == np.intersect1d(every, among).tolist()
        assert len(every)
