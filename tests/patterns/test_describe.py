"""What a rule is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keyhole.patterns.describe import describe
from keyhole.patterns.lexicon import FORMS, Lexicon

PIECES = [" fact", " facts", " truth", " that", "ing", "\n", " a", " b", " c", " d", " river", " lake", " ocean"]
LEXICON = Lexicon(PIECES, np.eye(len(PIECES), dtype=np.float32))
FACT: dict[str, Any] = {"if": "token", "back": 0, "ids": [0, 1, 2]}
WATER = [0.0] * 10 + [0.7, 0.6, 0.5]


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ([FACT], "‘fact’, ‘facts’ or ‘truth’"),
        ([{"if": "token", "back": 0, "ids": [3]}], "‘that’"),
        ([{"if": "token", "back": 0, "ids": [4]}], "‘-ing’"),
        ([{"if": "token", "back": 0, "ids": [5]}], "‘\n’"),
        ([{"if": "token", "back": 0, "ids": [99]}], "‘[99]’"),
        ([{"if": "token", "back": 0, "ids": [6, 7, 8, 9, 3]}], "‘a’, ‘b’, ‘c’, ‘d’ or ‘that’"),
        ([{"if": "token", "back": 0, "ids": [6, 7, 8, 9, 3, 0]}], "‘a’, ‘b’, ‘c’, ‘d’ or 2 others"),
        ([{"if": "token", "back": 1, "ids": [3]}], "after ‘that’"),
        ([{"if": "token", "back": 3, "ids": [3]}], "‘that’ 3 tokens before"),
        ([{"if": "form", "back": 0, "form": "suffix", "text": "ing"}], "a token in -ing"),
        ([{"if": "form", "back": 0, "form": "prefix", "text": "un"}], "a token in un-"),
        ([{"if": "form", "back": 1, "form": "number"}], "after a number"),
        ([{"if": "form", "back": 2, "form": "number"}], "a number 2 tokens before"),
        ([{"if": "within", "back": 1, "farthest": 4, "ids": [3]}], "‘that’ within 4 tokens before"),
        ([{"if": "anywhere", "ids": [3, 0]}], "‘that’ or ‘fact’ earlier"),
        ([{"if": "absent", "ids": [3]}], "without ‘that’ before"),
        ([{"if": "position", "from": 0, "to": 0}], "the first token"),
        ([{"if": "position", "from": 0, "to": 2}], "among the first 3 tokens"),
        ([{"if": "position", "from": 1, "to": None}], "not the first token"),
        ([{"if": "position", "from": 5, "to": None}], "after the first 5 tokens"),
        ([{"if": "topic", "ids": [0, 3], "least": 1}], "a prefix with words such as ‘fact’ and ‘that’"),
        ([{"if": "topic", "ids": [0, 3], "least": 3}], "a prefix with words such as ‘fact’ and ‘that’ (at least 3)"),
        ([{"if": "near", "back": 0, "centroid": WATER, "least": 0.3}], "a token like ‘river’, ‘lake’, ‘ocean’"),
        (
            [{"if": "near", "back": None, "centroid": WATER, "least": 0.3}],
            "a prefix about ‘river’, ‘lake’, ‘ocean’ and the like",
        ),
    ],
)
def test_a_condition_is_said(conditions: list[dict[str, Any]], said: str) -> None:
    assert describe(conditions, LEXICON) == said


def test_every_form_has_a_name() -> None:
    for form, (name, _) in FORMS.items():
        assert describe([{"if": "form", "back": 0, "form": form}], LEXICON) == name


def test_the_last_token_is_said_first_and_the_rest_in_order() -> None:
    conditions = [
        {"if": "position", "from": 0, "to": 9},
        {"if": "absent", "ids": [6]},
        {"if": "token", "back": 1, "ids": [3]},
        FACT,
    ]
    said = "‘fact’, ‘facts’ or ‘truth’, after ‘that’, without ‘a’ before, among the first 10 tokens"
    assert describe(conditions, LEXICON) == describe(conditions[::-1], LEXICON) == said


def test_tokens_that_look_alike_are_named_once() -> None:
    lexicon = Lexicon([" fact", "  fact", " x"])
    assert describe([{"if": "token", "back": 0, "ids": [0, 1]}], lexicon) == "‘fact’"


def test_without_spaces_before_words_no_token_is_called_a_part() -> None:
    assert describe([{"if": "token", "back": 0, "ids": [0]}], Lexicon(["fact", "s"])) == "‘fact’"
