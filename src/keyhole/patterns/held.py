"""The two texts of patterns: the one they are found in, and the one they are scored on.

Both are samples of whole windows, cut as the scan cut them. Rules are found in windows of given files, else of the scanned corpus,
each distinct one once. They are scored on given files, else on what the scan held out, else on the corpus itself; whole documents are drawn if
enough of them fit, so that intervals over documents are those of text as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..analyses.heldout import FEWEST_DOCUMENTS, given_units
from ..analyses.record import Fact
from ..analyses.targets import held_out_units
from ..errors import CorpusError
from ..inputs.corpus import chunks
from ..store.run import Run
from .lexicon import Lexicon
from .text import Text

Ints = npt.NDArray[np.int64]

MOST_READ = 1 << 28
"""Characters of given files, at most, that are read: of more text, the beginning."""


class Tokenizes(Protocol):
    """A model, as far as it is needed here."""

    def tokenize(self, texts: Sequence[str], /) -> list[list[int]]: ...


class _Units(NamedTuple):
    tokens: npt.NDArray[Any]
    """of all units, one after the other"""
    offsets: Ints
    """[units + 1] where each begins"""
    documents: Ints
    """[units]"""


class _Windows(NamedTuple):
    start: Ints
    """where each begins in the tokens"""
    stop: Ints
    documents: Ints

    @property
    def lengths(self) -> Ints:
        return self.stop - self.start

    def only(self, which: npt.NDArray[Any]) -> _Windows:
        return _Windows(*(each[which] for each in self))


def held_out_text(
    run: Run,
    model: Tokenizes,
    files: Sequence[str | os.PathLike[str]] | None = None,
    *,
    most_tokens: int,
    seed: int = 0,
    lexicon: Lexicon | None = None,
) -> tuple[Text, dict[str, Fact]]:
    """At most `most_tokens` tokens to score on, and where they are from: `source` is `valid` (given files), `held out` (by the
    scan), or `corpus` (what was scanned, because there is nothing else); with the files' names, and the number of tokens and
    documents."""
    names = [str(name) for name in files or ()]
    held = held_out_units(run)
    if names:
        units = _read(run, model, names)
        chosen = np.arange(len(units.documents))
    else:
        units = _of_run(run)
        chosen = held if len(held) else np.arange(len(units.documents))
    windows = _windows(units, chosen, run.room)
    if not len(windows.start):
        what = ", ".join(names) or ("what the scan held out" if len(held) else "the corpus")
        raise CorpusError(f"There is no text to score patterns on: {what} has no tokens. Give other held-out text.")
    windows = windows.only(_choose(windows, most_tokens, np.random.default_rng(seed)))
    text = _text(units, windows, lexicon or Lexicon.of(run))
    return text, {
        "source": "valid" if names else "held out" if len(held) else "corpus",
        "files": ", ".join(os.path.basename(name) for name in names),
        "tokens": len(text),
        "documents": len(np.unique(text.documents)),
    }


def mining_text(
    run: Run,
    model: Tokenizes | None = None,
    files: Sequence[str | os.PathLike[str]] | None = None,
    *,
    most_tokens: int,
    seed: int = 0,
    without: Text | None = None,
    lexicon: Lexicon | None = None,
) -> Text:
    """At most `most_tokens` tokens to find rules in: random windows of given files, which `model` tokenizes, else of what was
    scanned, in the order of the text. A window that is there several times is taken once; one that is also a window of the text
    `without`, never."""
    names = [str(name) for name in files or ()]
    if names:
        assert model is not None
        units = _read(run, model, names)
        chosen_units = np.arange(len(units.documents))
    else:
        units = _of_run(run)
        chosen_units = np.setdiff1d(np.arange(len(units.documents)), held_out_units(run))
    windows = _windows(units, chosen_units, run.room)
    seen = (
        {each.tobytes() for each in np.split(without.tokens, without.offsets[1:-1])} if without is not None else set()
    )
    left, chosen = most_tokens, []
    for number in np.random.default_rng(seed).permutation(len(windows.start)).tolist():
        window = units.tokens[windows.start[number] : windows.stop[number]]
        if (name := window.tobytes()) in seen:
            continue
        if len(window) > left:
            break
        seen.add(name)
        chosen.append(number)
        left -= len(window)
    if not chosen:
        raise CorpusError(
            f"There is no text to find patterns in: no window of {', '.join(names) or 'the scanned corpus'} fits into "
            f"{most_tokens:,} tokens{' and is not held out' if seen else ''}. Allow more."
        )
    return _text(units, windows.only(np.sort(chosen)), lexicon or Lexicon.of(run))


def _of_run(run: Run) -> _Units:
    return _Units(run.tokens, np.asarray(run.unit_offsets), np.asarray(run.array("unit_documents"), np.int64))


def _read(run: Run, model: Tokenizes, names: Sequence[str]) -> _Units:
    tokens: list[npt.NDArray[np.int32]] = []
    documents: list[int] = []
    read = 0
    for chunk in chunks(given_units(run, names)):
        tokens += [np.array(each, np.int32) for each in model.tokenize([unit.text for unit in chunk])]
        documents += [unit.document for unit in chunk]
        read += sum(len(unit.text) for unit in chunk)
        if read >= MOST_READ:
            break
    offsets = np.append(0, np.cumsum([len(each) for each in tokens], dtype=np.int64))
    return _Units(np.concatenate(tokens) if tokens else np.empty(0, np.int32), offsets, np.array(documents, np.int64))


def _windows(units: _Units, chosen: Ints, room: int) -> _Windows:
    """The windows of some units, as the scan cuts them."""
    begin, end = units.offsets[chosen], units.offsets[chosen + 1]
    pieces = -(-(end - begin) // room)
    unit = np.repeat(np.arange(len(chosen)), pieces)
    start = begin[unit] + room * (np.arange(len(unit)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    return _Windows(start, np.minimum(start + room, end[unit]), units.documents[chosen][unit])


def _choose(windows: _Windows, most: int, random: np.random.Generator) -> Ints:
    """Which windows are taken, in order: those of random documents, if enough whole ones fit, else random ones."""
    lengths = windows.lengths
    if lengths.sum() <= most:
        return np.arange(len(lengths))
    _, which = np.unique(windows.documents, return_inverse=True)
    documents = _fitting(np.bincount(which, weights=lengths).astype(np.int64), most, random)
    if len(documents) >= FEWEST_DOCUMENTS:
        return np.flatnonzero(np.isin(which, documents))
    chosen = _fitting(lengths, most, random)
    return np.sort(chosen) if len(chosen) else random.integers(0, len(lengths), 1)


def _fitting(sizes: Ints, most: int, random: np.random.Generator) -> Ints:
    """Random items, as many as fit together."""
    order = random.permutation(len(sizes))
    return order[np.cumsum(sizes[order]) <= most]


def _text(units: _Units, windows: _Windows, lexicon: Lexicon) -> Text:
    parts = [units.tokens[begin:end] for begin, end in zip(windows.start, windows.stop, strict=True)]
    return Text.of(parts, windows.documents, lexicon)
