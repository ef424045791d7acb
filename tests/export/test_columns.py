"""Columns: whatever is packed comes out as it went in, read by a second reader of the same description."""

from __future__ import annotations

import base64
import gzip
import json
import math
import random
from typing import Any

import packed
import pytest

from keyhole.export import packs
from keyhole.export.columns import Columns

TEXTS = ["", "a", "ab|c", "\ufeffstart", "é𝔘", "日本", "\x00", "__proto__", "a" * 300, '"\\', "<b>"]
NUMBERS: list[Any] = [
    0,
    1,
    -1,
    255,
    256,
    -256,
    1.5,
    12.07,
    -0.0012345,
    1e-12,
    123456.0,
    2**50,
    0.1 + 0.2,
    1e300,
    5e-324,
]


def there_and_back(values: list[Any]) -> Any:
    columns = Columns()
    head = json.dumps(
        {"count": len(values), "numbers": columns.column([[i] for i in range(len(values))]), "texts": None}
        | {"answers": columns.column(values)}
    ).encode()
    return packed.Reader(len(head).to_bytes(4, "little") + head + bytes(columns.bytes)).answers


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [None, 1, None, 2],
        NUMBERS,
        [7] * 5,
        [True, False, True],
        [True, True],
        [1, True, "x", None, [1], {"a": 1}],
        TEXTS,
        TEXTS * 3,
        list(range(1000)),
        [math.pi * i for i in range(50)],
        [[], [1], [1, 2]],
        [[1, "a"], [2, "b"]],
        [[[1, 2], []], []],
        [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        [{"1": [1, 2]}, {"7": [3]}, {}],
        [{"__proto__": 1, "x": 2}],
        [{str(i): i for i in range(40)}] * 3,
        [0, 2**53 + 1.0],
        [base64.b64encode(bytes(range(256)) * n).decode() for n in (1, 2, 3)],
        [base64.b64encode(b"\x01\x02\x03" * 101).decode()] * 2 + ["A" * 300],
        ["A" * 255 + "é", "A" * 256],
    ],
)
def test_values(values: list[Any]) -> None:
    assert there_and_back(values) == values


def test_anything_nested() -> None:
    draw = random.Random(3)

    def value(depth: int) -> Any:
        kind = draw.choice(
            ["null", "flag", "number", "text", "list", "object"] if depth else ["null", "number", "text"]
        )
        made: dict[str, Any] = {
            "null": None,
            "flag": draw.random() < 0.5,
            "number": draw.choice([draw.randrange(-(10**6), 10**6), round(draw.gauss(0, 10), 3), draw.random()]),
            "text": draw.choice(TEXTS),
        }
        if kind == "list":
            return [value(depth - 1) for _ in range(draw.randrange(5))]
        if kind == "object":
            return {draw.choice(["a", "b", "c"]): value(depth - 1) for _ in range(draw.randrange(4))}
        return made[kind]

    for _ in range(300):
        values = [value(3) for _ in range(draw.randrange(1, 8))]
        assert there_and_back(values) == values


def test_half_a_character_becomes_a_question_mark_as_in_json() -> None:
    assert there_and_back(["a\ud800b", "\udfff", "é"]) == ["a?b", "?", "é"]


def test_numbers_take_few_bytes() -> None:
    """Ascending places, as lists of cells have them: their differences are small."""
    draw = random.Random(1)
    places = sorted(draw.sample(range(10**6), 20_000))
    columns = Columns()
    columns.column(places)
    assert len(gzip.compress(columns.bytes)) < 1.2 * len(places)
    assert packs.BYTES < 300_000
