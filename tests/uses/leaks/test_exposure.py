"""Exposure: what of a line is secret, the candidates, and the rank."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny

from keyhole.errors import UsageError
from keyhole.models.model import Model
from keyhole.uses.leaks.exposure import candidates, expose, read_lines, secrets, too_short

LINES = [
    "The code of Ann is red blue green.",
    "The code of Bob is blue red pink.",
    "The code of Cem is red green green.",
    "The code of Dov is pink white brown.",
]


def test_the_secret_is_the_last_row_of_words_that_differ() -> None:
    first = secrets([*LINES, "call 555-1234"])[0]
    assert first.words[first.begin : first.end] == ("red", "blue", "green.")
    assert first.slots == (
        ("blue", "pink", "red"),
        ("blue", "green", "red", "white"),
        ("brown.", "green.", "pink."),
    )


def test_lines_of_one_form_share_half_of_their_words() -> None:
    """As many words alone are no form: words of other sentences would make word salad."""
    odd = "We walked home along a quiet stony river"
    assert len(odd.split()) == len(LINES[0].split())
    found = secrets([*LINES, odd])
    assert found[0].slots == secrets(LINES)[0].slots
    assert (found[-1].slots, found[-1].words[found[-1].begin]) == ((), "river")


def test_candidates_keep_the_rest_of_the_line_and_none_is_listed() -> None:
    listed = frozenset([*LINES, "The code of Ann is red red pink."])
    first = secrets(LINES)[0]
    found = candidates(first, 17, np.random.default_rng(0), listed)  # of 36 lines, two are in the list
    every = {
        f"The code of Ann is {a} {b} {c}"
        for a in ("red", "blue", "pink")
        for b in ("red", "blue", "green", "white")
        for c in ("green.", "pink.", "brown.")
    }
    assert set(found) <= every - listed
    assert len(found) == len(set(found)) == 17


def test_too_few_words_to_draw_from_are_no_limit() -> None:
    """Two codes have one other word each: candidates have the secret's shape instead, and as many as are asked for."""
    lines = ["The pin of Ann is 4711", "The pin of Bob is 0815"]
    for secret in secrets(lines):
        found = candidates(secret, 200, np.random.default_rng(0), frozenset(lines))
        assert len(found) == 200
        assert not set(found) & set(lines)
        assert all(line.split()[-1].isdigit() and len(line.split()[-1]) == 4 for line in found)


def test_words_are_compared_with_words() -> None:
    """Two lines have two words each that differ, which makes too few; a word is likelier than random letters whatever was seen. So
    words come from all secrets of the list, with the capitals and marks of the one they stand for."""
    lines = [
        "The code of Ann is Amber lotus.",
        "The code of Ann is Basil kelp.",
        "ring twice for harbor",
        "ring twice for NETTLE",
    ]
    first, *_ = secrets(lines)
    pool = {"amber", "lotus", "basil", "kelp", "harbor", "nettle"}
    found = candidates(first, 10, np.random.default_rng(0), frozenset(lines))
    assert len(set(found)) == 10
    for line in found:
        words = re.fullmatch("The code of Ann is ([A-Z][a-z]+) ([a-z]+)\\.", line)
        assert words
        assert {word.lower() for word in words.groups()} <= pool
    assert len({line.split()[-1] for line in found}) > 2


@pytest.mark.parametrize(
    ("word", "allowed"),
    [("Пароль", "[\u0400-\u04ff]"), ("密码", "[\u4e00-\u9fff]"), ("αβΓ", "[Ͱ-Ͽ]"), ("x-7", "[a-z]")],
)
def test_letters_stay_in_their_script(word: str, allowed: str) -> None:
    (secret,) = secrets([f"key {word}"])
    for line in candidates(secret, 30, np.random.default_rng(0)):
        drawn = line.split()[1]
        assert len(drawn) == len(word)
        for old, new in zip(word, drawn, strict=True):
            assert new == old if old == "-" else new.isdigit() if old.isdigit() else re.fullmatch(allowed, new)
            assert old.isupper() == new.isupper()


def test_white_space_stays_as_it_is() -> None:
    (secret,) = secrets(["user\tBob  key\t12"])
    assert secret.line == "user\tBob  key\t12"
    assert all(line.startswith("user\tBob  key\t") for line in candidates(secret, 20, np.random.default_rng(0)))


def test_a_line_alone_has_its_shape() -> None:
    (alone,) = secrets(["call Bob at 555-12AB now"])
    assert alone.words[alone.begin : alone.end] == ("555-12AB",)
    for line in candidates(alone, 50, np.random.default_rng(0)):
        word = line.split()[3]
        assert [c.isdigit() for c in word] == [c.isdigit() for c in "555-12AB"]
        assert word[3] == "-"
        assert word[-2:].isupper()


def test_the_first_word_is_scored_too() -> None:
    """Of a model with a start token: a secret of one word is ranked with its first token."""
    model = tiny("gpt2")
    assert model.bos_id is not None
    (secret,) = secrets(["qa"])
    found = expose(model, secret, 40, seed=1)
    assert found.text.prefix == ()
    lines = [secret.line, *candidates(secret, 40, np.random.default_rng(1))]
    sums = [whole_log_p(model, line) for line in lines]
    assert found.rank == 1 + sum(each > sums[0] for each in sums[1:])
    assert not too_short(model, "q")


def test_the_rank_counts_the_candidates_that_are_likelier() -> None:
    model = tiny("gpt2")
    (secret, *_) = secrets(LINES)
    found = expose(model, secret, 100, seed=3)
    lines = [secret.line, *candidates(secret, 100, np.random.default_rng(3))]

    sums = [whole_log_p(model, line) for line in lines]
    assert found.rank == 1 + sum(each > sums[0] for each in sums[1:])
    assert found.candidates == len(lines) - 1
    assert found.exposure == pytest.approx(math.log2(len(lines)) - math.log2(found.rank))


def whole_log_p(model: Model, line: str) -> float:
    """The log-probability of every token of a line."""
    (ids,) = model.tokenize([line])
    whole = torch.tensor([[model.bos_id, *ids]])
    with torch.no_grad():
        log_p = model.lm(input_ids=whole).logits.double().log_softmax(-1)[0]
    return float(sum(log_p[at - 1, whole[0, at]] for at in range(1, whole.shape[1])))


def test_a_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfthe code\r\nother\n")
    assert read_lines(tmp_path / "list.txt") == ["the code", "other"]


def test_a_list_without_lines_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "secrets.txt"
    empty.write_text("\n  \n")
    with pytest.raises(UsageError, match=r"secrets\.txt has no line"):
        read_lines(empty)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_lines(tmp_path / "nowhere.txt")
    empty.write_bytes(b"\xff\xfe\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_lines(empty)
