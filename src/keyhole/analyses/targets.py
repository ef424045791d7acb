"""Tokens at the end of triggers and after them, for all cells, and how frequent tokens are in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..scanning.hold_out import held_out
from ..store import layout
from ..store.run import Run
from ..store.vocabulary import Vocabulary

Ints = npt.NDArray[np.int64]


def next_tokens(run: Run, slots: int | None = None) -> Ints:
    """[cells, slots] the token that follows each trigger; −1 if there is no trigger or nothing follows it."""
    return run.next_tokens(run.units[:, :slots], run.positions[:, :slots])


def last_tokens(run: Run, slots: int | None = None) -> Ints:
    """[cells, slots] the last token of each trigger; −1 if there is none."""
    return run.last_tokens(run.units[:, :slots], run.positions[:, :slots])


def layers_of(run: Run) -> Ints:
    """[cells] the layer of each cell."""
    return np.repeat(np.arange(run.layers), [run.cells.size(layer) for layer in range(run.layers)])


WORD_START, INSIDE_WORD, NEITHER = 1, 2, 0


def word_parts(vocabulary: Vocabulary, last: npt.NDArray[Any], following: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Of each pair of neighbouring tokens, whether the second starts a word or goes on with one.

    It starts a word if it begins with a letter or digit, before which there is white space in it, or anything but a letter or
    digit at the end of the token before. It is inside a word if it begins with a letter or digit and the token before ends with
    one. Punctuation is neither. A byte that is only part of a character counts as a letter.
    """
    tokens, at = np.unique(np.concatenate([last, following]), return_inverse=True)
    texts = [vocabulary.raw(int(token)).decode("utf-8", "surrogateescape") for token in tokens]
    spaced = np.array([text[:1].isspace() for text in texts], bool)
    begins = np.array([_is_letter(text.lstrip()[:1]) for text in texts], bool)
    ends = np.array([_is_letter(text[-1:]) for text in texts], bool)
    before, after = np.split(at, 2)
    joined = ends[before] & ~spaced[after]
    return np.where(begins[after], np.where(joined, INSIDE_WORD, WORD_START), NEITHER).astype(np.int8)


def _is_letter(character: str) -> bool:
    return character.isalnum() or "\udc80" <= character <= "\udcff"


def unigram(run: Run, vocabulary: int) -> npt.NDArray[np.float64]:
    """The share of each token in the scanned text."""
    offsets, tokens = np.asarray(run.unit_offsets), np.asarray(run.tokens)
    scanned = np.ones(len(offsets) - 1, bool)
    scanned[held_out_units(run)] = False
    counts: npt.NDArray[Any] = np.bincount(tokens[np.repeat(scanned, np.diff(offsets))], minlength=vocabulary)
    shares: npt.NDArray[np.float64] = counts[:vocabulary] / max(1, int(counts.sum()))
    return shares


def held_out_units(run: Run) -> Ints:
    """The units that `scan --hold-out` kept out."""
    config = run.manifest["config"]
    by_document = config.get("hold_out_by") == "document"
    documents = layout.load_array(run.path, "unit_documents")
    return np.flatnonzero(held_out(documents if by_document else np.arange(len(documents)), float(config["hold_out"])))
