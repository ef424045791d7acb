"""Rules against a naive computation, position by position over the windows of random text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from patterned import pattern

from keyhole.patterns import rules
from keyhole.patterns.lexicon import FORMS, Lexicon
from keyhole.patterns.packing import packed
from keyhole.patterns.text import Text, joined
from keyhole.store.patterns import Key

PIECES = [
    *(f" word{letter}" for letter in "abcdef"),
    " Paris",
    "ing",
    "ed",
    " 1945",
    " 7",
    ".",
    "(",
    " USA",
    "é",
    " running",
    " x",
    " 42",
    "“",
    " ",
]
DIMENSIONS = 5


def a_lexicon(seed: int = 0) -> Lexicon:
    vectors = np.random.default_rng(seed).normal(size=(len(PIECES), DIMENSIONS)).astype(np.float32)
    return Lexicon(PIECES, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def windows_of(seed: int, count: int = 40) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, len(PIECES), random.integers(1, 30)).tolist() for _ in range(count)]


def a_text(windows: list[list[int]]) -> Text:
    return Text.of(windows, np.arange(len(windows)) // 3, a_lexicon())


def mean_vector(prefix: list[int]) -> np.ndarray:
    """Of the last 16 tokens, of length 1, in 16 bits."""
    total = a_lexicon().vectors[prefix[-16:]].astype(np.float64).sum(0)
    found: np.ndarray = (total / np.linalg.norm(total)).astype(np.float16).astype(np.float64)
    return found


def naive(condition: dict[str, Any], prefix: list[int]) -> bool:
    """Whether a condition holds for a prefix, from its description."""
    kind, back = condition["if"], condition.get("back")
    ids = set(condition.get("ids", ()))
    there = prefix[-1 - back] if back is not None and back < len(prefix) else None
    before = prefix[:-1]
    match kind:
        case "token":
            return there in ids
        case "form":
            if there is None:
                return False
            bare, text = PIECES[there].strip(), condition.get("text", "")
            if condition["form"] in ("suffix", "prefix"):
                ends = bare.endswith(text) if condition["form"] == "suffix" else bare.startswith(text)
                return ends and len(bare) > len(text)
            return bool(FORMS[condition["form"]][1](PIECES[there]))
        case "within":
            return any(prefix[-1 - k] in ids for k in range(back, condition["farthest"] + 1) if k < len(prefix))
        case "anywhere":
            return any(token in ids for token in before)
        case "absent":
            return all(token not in ids for token in before)
        case "position":
            return condition["from"] <= len(before) <= (condition["to"] if condition["to"] is not None else 10**9)
        case "topic":
            return sum(token in ids for token in prefix) >= condition["least"]
        case "near":
            if back is not None:
                return (
                    there is not None
                    and float(a_lexicon().vectors[there] @ condition["centroid"]) >= condition["least"]
                )
            return float(mean_vector(prefix) @ condition["centroid"]) >= condition["least"]
    raise AssertionError(kind)


def prefixes(windows: list[list[int]]) -> list[list[int]]:
    return [window[: end + 1] for window in windows for end in range(len(window))]


CENTROID = [0.6, -0.3, 0.5, 0.2, -0.4]
CONDITIONS: list[dict[str, Any]] = [
    {"if": "token", "back": 0, "ids": [3]},
    {"if": "token", "back": 0, "ids": [9, 1, 4]},
    {"if": "token", "back": 1, "ids": [2, 0]},
    {"if": "token", "back": 6, "ids": [2, 5, 16]},
    {"if": "token", "back": 0, "ids": []},
    {"if": "token", "back": 0, "ids": [10_000]},
    *({"if": "form", "back": back, "form": form} for form in FORMS for back in (0, 2)),
    {"if": "form", "back": 0, "form": "suffix", "text": "ing"},
    {"if": "form", "back": 1, "form": "prefix", "text": "wor"},
    {"if": "within", "back": 1, "farthest": 4, "ids": [7, 8]},
    {"if": "within", "back": 1, "farthest": 1, "ids": [7]},
    {"if": "within", "back": 0, "farthest": 2, "ids": [7]},
    {"if": "within", "back": 3, "farthest": 8, "ids": [11, 12]},
    {"if": "anywhere", "ids": [3, 4]},
    {"if": "absent", "ids": [3, 4]},
    {"if": "absent", "ids": []},
    {"if": "position", "from": 0, "to": 2},
    {"if": "position", "from": 3, "to": None},
    {"if": "position", "from": 4, "to": 9},
    {"if": "topic", "ids": [0, 5, 9], "least": 3},
    {"if": "topic", "ids": [2], "least": 1},
    {"if": "near", "back": 0, "centroid": CENTROID, "least": 0.3},
    {"if": "near", "back": 2, "centroid": CENTROID, "least": 0.1},
    {"if": "near", "back": None, "centroid": CENTROID, "least": 0.15},
]


def test_every_kind_of_condition_is_tried() -> None:
    assert {condition["if"] for condition in CONDITIONS} == set(rules.KINDS)


@pytest.mark.parametrize(
    "condition", CONDITIONS, ids=lambda each: f"{each['if']}-{each.get('form', '')}{each.get('back', '')}"
)
def test_a_condition_holds_where_a_naive_reading_says(condition: dict[str, Any]) -> None:
    for seed in range(3):
        windows = windows_of(seed)
        text = a_text(windows)
        wanted = np.flatnonzero([naive(condition, prefix) for prefix in prefixes(windows)])
        np.testing.assert_array_equal(rules.where({"all": [condition]}, text), wanted)
        asked = np.random.default_rng(seed).permutation(len(text))[:50]
        np.testing.assert_array_equal(rules.holds(condition, text, asked), np.isin(asked, wanted))


def test_every_form_is_had_by_some_token() -> None:
    """Otherwise the comparison of forms above would be empty."""
    assert {form for form in FORMS if a_lexicon().form(form).any()} == set(FORMS)


def test_a_rule_is_the_conjunction_of_its_conditions() -> None:
    random = np.random.default_rng(5)
    windows = windows_of(5, 150)
    text, every = a_text(windows), prefixes(windows)
    seen = 0
    for _ in range(60):
        chosen = [CONDITIONS[i] for i in random.permutation(len(CONDITIONS))[: random.integers(1, 4)]]
        wanted = [all(naive(condition, prefix) for condition in chosen) for prefix in every]
        found = rules.where({"all": chosen}, text)
        np.testing.assert_array_equal(found, np.flatnonzero(wanted))
        seen += 0 < len(found) < len(text)
    assert seen > 15


def test_a_rule_without_conditions_matches_everything() -> None:
    text = a_text(windows_of(1))
    np.testing.assert_array_equal(rules.where({"all": []}, text), np.arange(len(text)))


def test_what_is_before_a_window_does_not_count() -> None:
    text = a_text([[3, 1], [1, 1]])
    assert rules.where({"all": [{"if": "token", "back": 1, "ids": [3]}]}, text).tolist() == [1]
    assert rules.where({"all": [{"if": "anywhere", "ids": [3]}]}, text).tolist() == [1]
    assert rules.where({"all": [{"if": "within", "back": 1, "farthest": 8, "ids": [3]}]}, text).tolist() == [1]
    assert rules.where({"all": [{"if": "absent", "ids": [3]}]}, text).tolist() == [0, 2, 3]
    assert rules.where({"all": [{"if": "topic", "ids": [3], "least": 1}]}, text).tolist() == [0, 1]


EVIDENCE = {
    "bias": -1.25,
    "more": [
        {"back": 0, "ids": [1, 3, 9], "weights": [0.5, -0.75, 2.0]},
        {"back": 1, "ids": [0, 2], "weights": [1.5, -0.5]},
        {"back": 0, "direction": [0.3, 0.1, -0.2, 0.4, 0.0]},
        {"back": 2, "direction": [0.1, -0.6, 0.2, 0.0, 0.3]},
        {"back": None, "direction": [-0.5, 0.2, 0.8, 0.1, 0.1]},
        {"back": [0, 1], "ids": [[1, 1], [3, 3], [3, 8], [9, 1]], "weights": [1.25, -2.0, 0.5, 1.75]},
        {"back": [0, 1, 2], "ids": [[1, 2, 3], [3, 3, 1]], "weights": [3.0, -1.0]},
        {"back": 1, "farthest": 3, "ids": [1, 2, 8], "weights": [0.5, -0.25, 1.0]},
        {"places": [0.25, -1.0, 0.5]},
    ],
}
AMOUNTS = [1.5, -0.5, 0.75]
LIST = [
    [{"if": "token", "back": 0, "ids": [3, 4, 5]}, {"if": "anywhere", "ids": [2, 7]}],
    [{"if": "token", "back": 0, "ids": [3, 6]}],
    [{"if": "form", "back": 0, "form": "suffix", "text": "ing"}],
]


def a_key(evidence: dict[str, Any] = EVIDENCE) -> Key:
    made = [
        pattern(0, rule={"all": conditions, "amount": amount}) for conditions, amount in zip(LIST, AMOUNTS, strict=True)
    ]
    return Key(3, 1, "both", 0.5, tuple(made), 4, evidence=evidence)


def naive_score(prefix: list[int], amount: float) -> float:
    z, vectors = EVIDENCE["bias"] + amount, a_lexicon().vectors  # type: ignore[operator]
    for each in EVIDENCE["more"]:  # type: ignore[attr-defined]
        if "places" in each:
            z += each["places"][min(len(prefix) - 1, 2)]
        elif isinstance(each["back"], list):
            last = [prefix[-1 - back] for back in each["back"] if back < len(prefix)]
            z += sum(weight for ids, weight in zip(each["ids"], each["weights"], strict=True) if ids == last)
        elif "farthest" in each:
            before = prefix[-1 - each["farthest"] : -1]
            z += sum(dict(zip(each["ids"], each["weights"], strict=True)).get(token, 0.0) for token in before)
        elif each["back"] is None:
            z += float(mean_vector(prefix) @ each["direction"])
        elif each["back"] < len(prefix):
            token = prefix[-1 - each["back"]]
            if "ids" in each:
                z += dict(zip(each["ids"], each["weights"], strict=True)).get(token, 0.0)
            else:
                z += float(vectors[token] @ each["direction"])
    return float(1 / (1 + np.exp(-z)))


def test_a_decision_list_counts_the_first_pattern_that_matches() -> None:
    windows = windows_of(7, 80)
    text, every = a_text(windows), prefixes(windows)
    found = rules.fire(a_key(), text)
    wanted: dict[int, int] = {}
    for at, prefix in enumerate(every):
        matching = [number for number, each in enumerate(LIST) if all(naive(condition, prefix) for condition in each)]
        if matching:
            wanted[at] = matching[0]
        elif prefix[-1] in (1, 3, 9):
            wanted[at] = -1
    assert found.positions.tolist() == sorted(wanted)
    assert found.pattern.tolist() == [wanted[at] for at in sorted(wanted)]
    assert set(found.pattern.tolist()) == {-1, 0, 1, 2}
    amounts = [*AMOUNTS, 0.0]
    scores = [naive_score(every[at], amounts[number]) for at, number in sorted(wanted.items())]
    np.testing.assert_allclose(found.scores, scores, atol=1e-3)
    assert (np.diff(found.positions) > 0).all()
    assert found.scores.dtype == np.float32


def test_a_pattern_alone_matches_what_earlier_ones_would_take() -> None:
    windows = windows_of(8, 80)
    text, every = a_text(windows), prefixes(windows)
    for number, conditions in enumerate(LIST):
        found = rules.alone(a_key(), number, text, rules.fire(a_key(), text))
        wanted = [at for at, prefix in enumerate(every) if all(naive(condition, prefix) for condition in conditions)]
        assert found.positions.tolist() == wanted
        assert (found.pattern == number).all()
        scores = [naive_score(every[at], AMOUNTS[number]) for at in wanted]
        np.testing.assert_allclose(found.scores, scores, atol=2e-3)
    assert (
        len(rules.alone(a_key(), 1, text, rules.fire(a_key(), text)).positions)
        > (rules.fire(a_key(), text).pattern == 1).sum()
    )


def test_without_patterns_nothing_fires_whatever_the_evidence() -> None:
    key = Key(3, 1, "none", 0.5, (), 4, evidence=EVIDENCE)
    assert [len(each) for each in rules.fire(key, a_text(windows_of(1)))] == [0, 0, 0, 0]


def test_a_key_without_evidence_is_scored_by_its_amounts() -> None:
    found = rules.fire(a_key({}), a_text(windows_of(3)))
    assert (found.pattern >= 0).all()
    np.testing.assert_allclose(found.scores, 1 / (1 + np.exp(-np.array(AMOUNTS)[found.pattern])), rtol=1e-5)


def test_scores_stay_between_0_and_1() -> None:
    """However large the weights are; never 0: a position that is reached has a score."""
    text = a_text(windows_of(4))
    for bias in (-1e4, 1e4):
        scores = rules.fire(a_key({"bias": bias, "more": []}), text).scores
        assert len(scores)
        assert (scores > 0).all()
        assert (scores <= 1).all()


def test_the_mean_vector_of_a_prefix_is_that_of_its_last_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = windows_of(9)
    monkeypatch.setattr(rules, "BLOCK", 17)
    text = a_text(windows)
    asked = np.random.default_rng(0).permutation(len(text))
    found = rules.meaning(text, asked)
    wanted = np.array([mean_vector(prefix) for prefix in prefixes(windows)])[asked]
    np.testing.assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("windows", [[], [[]]], ids=["no window", "an empty window"])
def test_an_empty_text_matches_nothing(windows: list[list[int]]) -> None:
    text = a_text(windows)
    for condition in CONDITIONS:
        assert rules.where({"all": [condition]}, text).tolist() == []
    assert [len(each) for each in rules.fire(a_key(), text)] == [0, 0, 0, 0]
    assert [len(each) for each in rules.alone(a_key(), 0, text, rules.fire(a_key(), text))] == [0, 0, 0, 0]


def counted(count: Callable[[list[int]], int], windows: list[list[int]]) -> list[int]:
    return [count(prefix) for prefix in prefixes(windows)]


def test_a_text_counts_what_is_before_a_position() -> None:
    windows = windows_of(11)
    text = a_text(windows)
    every = np.arange(len(text))
    ids = {3, 8, 9}
    for nearest, farthest in ((0, None), (1, None), (1, 4), (2, 2), (3, 20)):

        def count(prefix: list[int], nearest: int = nearest, farthest: int | None = farthest) -> int:
            back = range(nearest, min(len(prefix) - 1, 10**6 if farthest is None else farthest) + 1)
            return sum(prefix[-1 - k] in ids for k in back)

        found = text.before(sorted(ids), every, nearest=nearest, farthest=farthest)
        assert found.tolist() == counted(count, windows)
    assert text.token(every, 2).tolist() == counted(lambda prefix: prefix[-3] if len(prefix) > 2 else -1, windows)


def test_a_part_of_a_text_is_whole_windows_from_everywhere() -> None:
    windows = windows_of(12)
    text = a_text(windows)
    for most in (1, len(text) // 7, len(text) // 2, len(text) - 1):
        part, at = text.part(most)
        kept = sorted({int(each) for each in text.windows[at]})
        assert part.tokens.tolist() == [token for number in kept for token in windows[number]]
        assert part.documents.tolist() == text.documents[kept].tolist()
        assert part.tokens.tolist() == text.tokens[at].tolist()
        assert part.places.tolist() == text.places[at].tolist()
        assert len(part) <= most or len(kept) == 1
    half, at = text.part(len(text) // 2)
    assert len(half) > len(text) // 3
    assert at[0] < len(text) // 4 < 3 * len(text) // 4 < at[-1]
    whole, at = text.part(len(text))
    assert whole is text
    assert at.tolist() == list(range(len(text)))


def test_tokens_are_joined_in_their_order() -> None:
    tokens = np.random.default_rng(0).integers(0, 300_000, (500, 3))
    numbers = joined(tokens, 300_000)
    assert len(np.unique(numbers)) == len(np.unique(tokens, axis=0))
    assert numbers[np.lexsort(tokens.T[::-1])].tolist() == sorted(numbers.tolist())


def test_packed_weights_say_the_same_as_lists() -> None:
    text = a_text(windows_of(5))
    size = len(text.lexicon)
    listed: list[dict[str, Any]] = EVIDENCE["more"]  # type: ignore[assignment]
    assert any("ids" in each for each in listed)
    more = []
    for each in listed:
        if "ids" in each:
            places = len(each["back"]) if isinstance(each["back"], list) else 1
            ids, weights = rules.weighted(each, places, size)
            more.append(each | {"ids": packed(ids), "weights": packed(np.round(100 * weights))})
        else:
            more.append(each)
    plain, short = rules.fire(a_key(), text), rules.fire(a_key({**EVIDENCE, "more": more}), text)
    assert plain.positions.tolist() == short.positions.tolist()
    np.testing.assert_allclose(plain.scores, short.scores, rtol=1e-5)
    assert len(plain.positions) > 10


def test_the_meaning_of_a_long_text_is_that_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text, again = a_text(windows_of(6)), a_text(windows_of(6))
    positions = np.random.default_rng(0).integers(0, len(text), 50)
    kept = rules.meaning(text, positions)
    monkeypatch.setattr(rules, "MEANINGS", 10)
    assert np.array_equal(rules.meaning(again, positions), kept)
    assert "meaning" not in again.cache
