"""What stands in a text more than once, against counting it the slow way."""

from __future__ import annotations

import numpy as np
import pytest

from keyhole.uses.leaks.repeats import SEPARATOR, SHORT, Corpus, repeated


def corpus(documents: list[list[int]]) -> Corpus:
    flat = [SEPARATOR]
    for document in documents:
        flat += [*document, SEPARATOR]
    return Corpus(np.array(flat, np.int32), "text")


@pytest.fixture(scope="module")
def text() -> Corpus:
    random = np.random.default_rng(0)
    pieces = [random.integers(0, 50, 12).tolist() for _ in range(4)]
    documents = []
    for number in range(30):
        own = random.integers(0, 50, random.integers(1, 30)).tolist()
        documents.append([*own, *pieces[number % 4], *own[:3]] if number % 3 else own)
    return corpus(documents)


def windows(text: Corpus, n: int) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for at in range(len(text.flat) - n + 1):
        ids = tuple(text.ids(at, at + n))
        if SEPARATOR not in ids:
            found.setdefault(ids, []).append(at)
    return found


@pytest.mark.parametrize("n", [4, 7, 12])
def test_repeated_text_is_what_counting_every_sequence_finds(text: Corpus, n: int) -> None:
    covered, first = np.zeros(len(text.flat), bool), np.zeros(len(text.flat), bool)
    for places in windows(text, n).values():
        if len(places) > 1:
            for place in places:
                covered[place : place + n] = True
            first[places[0] : places[0] + n] = True
    found = repeated(text, n)
    assert covered.any()
    np.testing.assert_array_equal(found.covered, covered)
    inside = np.zeros(len(text.flat), bool)
    for begin, end in found.passages:
        assert not inside[begin:end].any()
        inside[begin:end] = True
    np.testing.assert_array_equal(inside, first)


def test_the_most_often_repeated_passage_comes_first() -> None:
    often, seldom = list(range(10, 20)), list(range(30, 40))
    text = corpus([[1, *seldom], [2, *often], [3, *seldom], [4, *often], [5, *often]])
    passages = repeated(text, 8).passages
    assert [tuple(text.ids(*span)) for span in passages] == [tuple(often), tuple(seldom)]


@pytest.mark.parametrize("n", [SHORT, 6, 12])
def test_places_are_all_places_and_only_those(text: Corpus, n: int) -> None:
    for ids, places in windows(text, n).items():
        assert text.places(ids).tolist() == places
    assert text.places([99] * n).tolist() == []


def test_near_duplicates_share_half_of_the_tokens_but_not_all() -> None:
    whole = list(range(10, 22))
    half = [*whole[:6], 1, 2, 3, 4, 5, 6]
    less = [*whole[:5], 1, 2, 3, 4, 5, 6, 7]
    text = corpus([whole, [7, *half], less, whole])
    assert text.alike(whole, 0.5).tolist() == [text.begins(len(whole) + 3) + 1]


def test_documents_have_a_beginning_and_an_end() -> None:
    text = corpus([[1, 2, 3], [4], [5, 6]])
    assert text.tokens == 6
    assert [text.ids(text.begins(at), text.ends(at)) for at in (1, 3, 5, 8)] == [[1, 2, 3], [1, 2, 3], [4], [5, 6]]
    assert text.document([1, 5, 8]).tolist() == [0, 1, 2]
