"""A tokenised text as one array, and what stands in it more than once.

Documents follow each other with a separator between them, so that no sequence of tokens spans two documents. Sequences of n tokens
are found by a hash of 64 bits; places that are looked up are compared token by token.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import CorpusError
from ...inputs import corpus
from ...models.model import Model
from ...store.run import Run
from .. import texts
from ..sequences import hashes

SEPARATOR = -1
MOST = 1 << 25
"""Tokens, at most, of a text in which repeats are counted."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Corpus:
    """A tokenised text."""

    flat: npt.NDArray[np.int32]
    """its tokens, with a separator before, between and after documents"""
    source: str
    """`text` (given files) or `corpus` (what the run scanned)"""
    files: str = ""
    cut: bool = False
    """whether the text is longer, and only its beginning is here"""

    @property
    def tokens(self) -> int:
        return len(self.flat) - len(self.separators)

    @cached_property
    def separators(self) -> Ints:
        return np.flatnonzero(self.flat == SEPARATOR)

    def document(self, places: npt.ArrayLike) -> Ints:
        """The number of the document that a token is in, from 0."""
        return np.searchsorted(self.separators, places, side="right").astype(np.int64) - 1

    def begins(self, place: int) -> int:
        """Where the document of a token begins."""
        return int(self.separators[int(self.document(place))]) + 1

    def ends(self, place: int) -> int:
        """Where it ends: the place after its last token."""
        return int(self.separators[int(self.document(place)) + 1])

    def ids(self, begin: int, end: int) -> list[int]:
        return [int(each) for each in self.flat[begin:end]]

    # Sequences

    def hashes(self, n: int) -> tuple[npt.NDArray[np.uint64], Bools]:
        """A hash of the n tokens from each place on, and whether they lie in one document."""
        count = max(0, len(self.flat) - n + 1)
        whole, apart = np.ones(count, bool), self.flat == SEPARATOR
        for each in range(n):
            whole &= ~apart[each : each + count]
        return hashes(self.flat, n), whole

    @cached_property
    def _short(self) -> tuple[npt.NDArray[np.uint64], Ints]:
        """Sorted hashes of all sequences of `SHORT` tokens, and their places."""
        hashes, whole = self.hashes(SHORT)
        places = np.flatnonzero(whole)
        order = np.argsort(hashes[places], kind="stable")
        return hashes[places][order], places[order]

    def places(self, ids: Sequence[int]) -> Ints:
        """Every place where exactly these tokens stand (at least `SHORT` of them), in order."""
        assert len(ids) >= SHORT
        needle = np.asarray(ids, np.int32)
        found = self._candidates(needle[:SHORT])
        found = found[found + len(needle) <= len(self.flat)]
        for at, token in enumerate(needle):
            found = found[self.flat[found + at] == token]
        return np.sort(found)

    def _candidates(self, few: npt.NDArray[np.int32]) -> Ints:
        """Places whose next `SHORT` tokens have the hash of these."""
        one = Corpus(few.astype(np.int32), "").hashes(SHORT)[0][0]
        hashes, places = self._short
        lo, hi = np.searchsorted(hashes, one, "left"), np.searchsorted(hashes, one, "right")
        return places[lo:hi]

    def alike(self, ids: Sequence[int], share: float, most: int = 20_000) -> Ints:
        """Places where at least `share` of these tokens stand in the same order and distance, but not all of them. Candidates share
        `SHORT` tokens in a row; at most `most` are compared per such row of tokens."""
        needle = np.asarray(ids, np.int32)
        starts = [
            self._candidates(needle[at : at + SHORT])[:most] - at for at in range(max(0, len(needle) - SHORT + 1))
        ]
        places = np.unique(np.concatenate(starts)) if starts else np.empty(0, np.int64)
        places = places[(places >= 0) & (places + len(needle) <= len(self.flat))]
        same = np.zeros(len(places))
        for at, token in enumerate(needle):
            same += self.flat[places + at] == token
        found: Ints = places[(same >= share * len(needle)) & (same < len(needle))]
        return found


SHORT = 4
"""Tokens of the shortest sequence that can be looked up."""


def of_files(model: Model, names: Sequence[str | os.PathLike[str]], most: int = MOST) -> Corpus:
    """The text of files, at most `most` tokens of it."""
    documents: list[npt.NDArray[np.int32]] = []
    left = most
    for chunk in corpus.chunks(corpus.units(names, "document")):
        for ids in model.tokenize([unit.text for unit in chunk]):
            if ids and left > 0:
                model.check_ids(max(ids))
                documents.append(np.asarray(ids[:left], np.int32))
            left -= len(ids)
        if left < 0:
            break
    shown = ", ".join(os.path.basename(os.path.normpath(name)) for name in names)
    return _joined(documents, "text", shown, cut=left < 0)


def of_run(run: Run, model: Model, most: int = MOST) -> Corpus:
    """What the run scanned and held out, at most `most` tokens of it."""
    units = np.arange(len(run.unit_documents))
    own = texts.of_units(run, model, units, most, "corpus")
    return _joined((np.asarray(piece, np.int32) for piece in own.pieces), "corpus", cut=own.tokens == most)


def _joined(documents: Iterable[npt.NDArray[np.int32]], source: str, files: str = "", *, cut: bool = False) -> Corpus:
    between = np.full(1, SEPARATOR, np.int32)
    parts = [between]
    for document in documents:
        parts += [document, between]
    if len(parts) == 1:
        raise CorpusError(
            f"The text {files or 'of the run'} has no tokens. Give the text that the model was trained on: --text FILE"
        )
    return Corpus(np.concatenate(parts), source, files, cut)


# What stands more than once


class Repeated(NamedTuple):
    times: Ints
    """of each token: in how many places the most frequent of the sequences that it lies in stands; 1 if it lies in none that is repeated"""
    passages: list[tuple[int, int]]
    """where text that stands more than once stands first: from a place to the place after its end. The most often repeated first"""

    @property
    def covered(self) -> Bools:
        """Which tokens lie in a sequence that stands more than once."""
        covered: Bools = self.times > 1
        return covered


def repeated(text: Corpus, n: int) -> Repeated:
    """The text that stands more than once, as sequences of n tokens. It is found by hashes of 64 bits."""
    hashes, whole = text.hashes(n)
    places = np.flatnonzero(whole)
    _, first, which, counts = np.unique(hashes[places], return_index=True, return_inverse=True, return_counts=True)
    begins = places[first[counts > 1]]
    passages = _spans(_spread(len(text.flat), begins, n))
    starts = np.ones(len(hashes), np.int64)
    starts[places] = counts[which]
    times = np.ones(len(text.flat), np.int64)
    for each in range(n if len(starts) else 0):
        np.maximum(times[each : each + len(starts)], starts, out=times[each : each + len(starts)])
    return Repeated(times, sorted(passages, key=lambda span: (-int(times[span[0] : span[1]].max()), span[0])))


def _spread(length: int, begins: Ints, n: int) -> Bools:
    """[length] which places lie in one of the sequences of n tokens that begin there."""
    edges = np.zeros(length + 1, np.int64)
    np.add.at(edges, begins, 1)
    np.add.at(edges, begins + n, -1)
    return np.cumsum(edges[:-1]) > 0


def _spans(inside: Bools) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]
