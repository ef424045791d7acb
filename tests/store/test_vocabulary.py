"""Tokens in readable form, for every kind of tokenizer: words with their spaces, and everything else as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from keyhole.errors import UsageError
from keyhole.store.vocabulary import Vocabulary

WORDS = {"[UNK]": 0, "at": 1, "there": 2, "are": 3, "currently": 4, "no": 5, "asteroids": 6, ".": 7, "<0x41>": 8}


def words(pre: Any, decoder: Any = None) -> Vocabulary:
    core = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    core.add_special_tokens(["<s>"])
    core.pre_tokenizer = pre
    if decoder is not None:
        core.decoder = decoder
    return Vocabulary(core)


SPLITTERS = [
    pre_tokenizers.Whitespace(),
    pre_tokenizers.WhitespaceSplit(),
    pre_tokenizers.BertPreTokenizer(),
    pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]),
    pre_tokenizers.CharDelimiterSplit(" "),
    pre_tokenizers.Split(" ", "removed"),
    pre_tokenizers.Split(Regex(r"\s+"), "removed"),
]


@pytest.mark.parametrize("pre", SPLITTERS, ids=lambda pre: type(pre).__name__)
@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()], ids=["none", "WordPiece"])
def test_words_are_shown_with_spaces_between_them(pre: Any, decoder: Any) -> None:
    vocabulary = words(pre, decoder)
    text = "at there are currently no asteroids"
    ids = vocabulary.tokenizer.encode(text).ids
    assert ids == [1, 2, 3, 4, 5, 6]
    assert vocabulary.text(ids) == text
    assert vocabulary.texts([ids, ids[:1]]) == [text, "at"]
    assert "".join(map(vocabulary.piece, ids)) == f" {text}"
    assert vocabulary.piece(2) == " there"
    assert vocabulary.piece(8) == " <0x41>"  # a word, no byte
    special = len(vocabulary) - 1
    assert vocabulary.piece(special) == "<s>"
    assert vocabulary.piece(99) == "[99]"


@given(st.lists(st.sampled_from(range(1, 7)), min_size=1))
def test_what_is_shown_is_read_back(ids: list[int]) -> None:
    vocabulary = words(pre_tokenizers.Whitespace())
    assert vocabulary.tokenizer.encode(vocabulary.text(ids)).ids == ids
    assert vocabulary.tokenizer.encode("".join(map(vocabulary.piece, ids))).ids == ids
    assert "".join(map(vocabulary.piece, ids)).strip() == vocabulary.text(ids)


def test_a_word_is_found_with_and_without_its_space() -> None:
    vocabulary = words(pre_tokenizers.Whitespace())
    for word, token in WORDS.items():
        assert vocabulary.find(f" {word}") == vocabulary.find(word) == token
        assert vocabulary.find(vocabulary.piece(token)) == token
    assert vocabulary.find("<s>") == len(vocabulary) - 1
    for asked in ("  there", "there ", "asteroid", "", " "):
        with pytest.raises(UsageError, match="not a token of this model") as failed:
            vocabulary.find(asked)
        assert "Mind the space" not in str(failed.value)


def test_other_tokenizers_are_shown_as_before() -> None:
    """Without a splitter, or with a decoder that joins words, a token is what it says."""
    for pre, decoder in (
        (pre_tokenizers.Whitespace(), decoders.Fuse()),
        (pre_tokenizers.Whitespace(), decoders.BPEDecoder()),
        (pre_tokenizers.Metaspace(), None),
        (pre_tokenizers.ByteLevel(), None),
    ):
        vocabulary = words(pre, decoder)
        assert [vocabulary.piece(i) for i in (1, 2)] == ["at", "there"]
        with pytest.raises(UsageError, match="Mind the space"):
            vocabulary.find(" there")
    plain = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    assert [Vocabulary(plain).piece(i) for i in (0, 1)] == ["a", "b"]


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece()], ids=["none", "WordPiece"])
def test_pieces_of_words_are_put_together(decoder: Any) -> None:
    words = {word: i for i, word in enumerate(["[UNK]", "the", "cat", "##s", "sat", "##", "un", "##seen"])}
    core = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if decoder is not None:
        core.decoder = decoder
    vocabulary = Vocabulary(core)
    ids = core.encode("the unseen cats sat").ids
    assert [vocabulary.piece(i) for i in ids] == [" the", " un", "seen", " cat", "s", " sat"]
    assert vocabulary.find("cat") == words["cat"]
    assert vocabulary.find("seen") == words["##seen"]
    assert "".join(vocabulary.piece(i) for i in ids).strip() == "the unseen cats sat"


def test_a_split_that_keeps_spaces_is_left_alone() -> None:
    vocabulary = words(pre_tokenizers.Split(" ", "isolated"))
    assert vocabulary.piece(1) == "at"
