"""Exposure: what of a line is secret, the candidates, and the rank."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from families import tiny

from keyhole.errors import UsageError
from keyhole.uses.leaks.exposure import candidates, expose, read_lines, secrets

LINES = [
    "The code of Ann is red blue green.",
    "The code of Bob is blue red pink.",
    "The code of Cem is red green green.",
]


def test_the_secret_is_the_last_row_of_words_that_differ() -> None:
    first = secrets([*LINES, "call 555-1234"])[0]
    assert first.words[first.begin : first.end] == ("red", "blue", "green.")
    assert first.slots == (("blue", "red"), ("blue", "green", "red"), ("green.", "pink."))


def test_candidates_keep_the_rest_of_the_line_and_none_is_the_line() -> None:
    first = secrets(LINES)[0]
    found = candidates(first, 100, np.random.default_rng(0))
    every = {
        f"The code of Ann is {a} {b} {c}"
        for a in ("red", "blue")
        for b in ("red", "blue", "green")
        for c in ("green.", "pink.")
    }
    assert set(found) == every - {LINES[0]}
    assert len(found) == len(set(found))


def test_a_line_alone_has_its_shape() -> None:
    (alone,) = secrets(["call Bob at 555-12AB now"])
    assert alone.words[alone.begin : alone.end] == ("555-12AB",)
    for line in candidates(alone, 50, np.random.default_rng(0)):
        word = line.split()[3]
        assert [c.isdigit() for c in word] == [c.isdigit() for c in "555-12AB"]
        assert word[3] == "-"
        assert word[-2:].isupper()


def test_the_rank_counts_the_candidates_that_are_likelier() -> None:
    model = tiny("gpt2")
    (secret, *_) = secrets(LINES)
    found = expose(model, secret, 100, seed=3)
    lines = [secret.line, *candidates(secret, 100, np.random.default_rng(3))]

    def said(line: str) -> float:
        import torch

        (ids,) = model.tokenize([line])
        special = [] if model.bos_id is None else [model.bos_id]
        whole = torch.tensor([[*special, *ids]])
        with torch.no_grad():
            log_p = model.lm(input_ids=whole).logits.double().log_softmax(-1)[0]
        begin = len(special) + 1
        return float(sum(log_p[at - 1, whole[0, at]] for at in range(begin, whole.shape[1])))

    sums = [said(line) for line in lines]
    assert found.rank == 1 + sum(each > sums[0] for each in sums[1:])
    assert found.candidates == len(lines) - 1
    assert found.exposure == pytest.approx(math.log2(len(lines)) - math.log2(found.rank))


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
