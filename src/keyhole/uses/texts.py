"""Text that a use of the memories is fitted to or measured on, as the model reads it: documents, cut into windows.

A run stores the tokens of its units, which are read alone: a sentence has no tokens of the one before. Here neighbouring units
of a document are put together again and tokenised as one text, a *piece*. Text that is given is read from its files, and every
document is a piece.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..analyses import targets
from ..errors import CorpusError, UsageError
from ..inputs import corpus
from ..models.model import Model
from ..store.run import Run
from .sequences import hashes

LONGEST = 512
"""Bound on the tokens of a window: what most of a language model's skill needs, and what fits in memory many times."""
FEWEST = 256
"""Fewest tokens for which a perplexity means something."""
SET_ASIDE = 5
"""If no documents were held out, one of five is measured on, and the others are fitted to."""
ENOUGH = 8
"""More than one of five, if that makes as many documents as this: intervals resample documents."""
MOST = 1 << 16
"""Tokens, at most, of a text by default."""
ALIKE, SHARED = 64, 0.5
"""A piece of text is known if this share of its sequences of `ALIKE` bytes, white space left out, stands in the other text. Of a shorter
piece, all of it must."""

Ints = npt.NDArray[np.int64]


class Window(NamedTuple):
    """Tokens that the model reads alone, after its start token."""

    ids: list[int]
    document: int
    """what its tokens are alike in, and intervals resample"""


@dataclass(frozen=True)
class Text:
    """Tokenised pieces of documents."""

    pieces: list[list[int]]
    documents: list[int]
    """the document of each piece"""
    source: str
    """`valid` (given text), `held out` (text that was not scanned), `set aside` (documents of the run that nothing was fitted to),
    `end` (of the run's one document) or `corpus` (the scanned text)"""
    files: str = ""
    """the names of the given files, if `source` is `valid`"""
    known: int = 0
    """tokens that were left out because they stand in the text that something was fitted to"""

    @property
    def tokens(self) -> int:
        return sum(map(len, self.pieces))

    def windows(self, room: int) -> list[Window]:
        """Its pieces, cut after every `room` tokens."""
        return [
            Window(piece[at : at + room], document)
            for piece, document in zip(self.pieces, self.documents, strict=True)
            for at in range(0, len(piece), room)
        ]


def room_of(model: Model) -> int:
    """How many tokens of text a window has: as many as the model was built for, without its start token, at most `LONGEST`."""
    context = model.max_context or LONGEST
    return min(context, LONGEST) - int(model.bos_id is not None)


def given(model: Model, names: Sequence[str | os.PathLike[str]], most: int = MOST) -> Text:
    """Text from files, at most `most` tokens of it."""
    shown = ", ".join(os.path.basename(os.path.normpath(name)) for name in names)
    return _gathered(model, _documents(names), most, "valid", shown)


def _documents(names: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[int, str]]:
    for unit in corpus.units(names, "document"):
        yield unit.document, unit.text


def of_units(run: Run, model: Model, units: Ints, most: int, source: str) -> Text:
    """Text of some units of a run's corpus (ascending), at most `most` tokens of it: units that follow each other in a document are
    one piece, with a space between them where the document has something."""
    return _gathered(model, _joined(run, units), most, source)


def _joined(run: Run, units: Ints) -> Iterator[tuple[int, str]]:
    said, before, document, end = "", -2, -1, 0
    for unit in map(int, units):
        number, start = run.unit_source(unit)
        text = run.vocabulary.text([int(i) for i in run.unit_tokens(unit)])
        if unit == before + 1 and number == document:
            said += (" " if start > end and not text[:1].isspace() else "") + text
        else:
            if said.strip():
                yield document, said
            said = text
        before, document, end = unit, number, start + len(text)
    if said.strip():
        yield document, said


def _gathered(
    model: Model, texts: Iterable[tuple[int, str]], most: int, source: str, files: str = "", each: int | None = None
) -> Text:
    """At most `most` tokens, and at most `each` of a document."""
    pieces: list[list[int]] = []
    documents: list[int] = []
    taken: Counter[int] = Counter()
    left = most
    for document, text in texts:
        if left <= 0:
            break
        room = left if each is None else min(left, each - taken[document])
        if room <= 0:
            continue
        (ids,) = model.tokenize([text])
        if not ids:
            continue
        model.check_ids(max(ids))
        pieces.append(ids[:room])
        documents.append(document)
        left -= len(pieces[-1])
        taken[document] += len(pieces[-1])
    return Text(pieces, documents, source, files)


def of_run(run: Run, model: Model, most: int = MOST, seed: int = 0) -> Text:
    """Text of a run to measure on what was not fitted to any: what the scan held out, or what it scanned if it held out too little.
    Documents are taken in random order."""
    held = targets.held_out_units(run)
    order = np.random.default_rng(seed).permutation(np.unique(run.unit_documents))
    found = _taken(run, model, np.sort(np.asarray(held, np.int64)), order, most, "held out")
    if found.tokens < FEWEST:
        found = _taken(run, model, np.arange(len(run.unit_documents)), order, most, "corpus")
    if found.tokens < FEWEST:
        raise CorpusError(
            f"The run {run.path} has {found.tokens:,} tokens of text, and at least {FEWEST} are needed. Name a text of your own."
        )
    return found


def fitted_and_measured(
    run: Run,
    model: Model,
    valid: Sequence[str | os.PathLike[str]] | None = None,
    *,
    fitted: int = MOST,
    measured: int = MOST,
    seed: int = 0,
) -> tuple[Text, Text]:
    """The text of a run that something is fitted to, and other text that it is measured on: `valid`, else documents that the scan held
    out as a whole, else documents that are set aside. No document is in both, unless the run has one document only: then its end
    is set aside. Whatever the files are called: what stands in the text that is fitted to is not measured on. Documents are
    taken in random order, and what is measured on is spread over them, so that a part of the corpus stands for all of it."""
    documents = np.asarray(run.unit_documents)
    units = np.arange(len(documents))
    scanned = np.ones(len(units), bool)
    scanned[targets.held_out_units(run)] = False
    numbers = np.unique(documents)
    order = np.random.default_rng(seed).permutation(numbers)
    if valid:
        _refuse_own(run, valid)
        aside, source = np.zeros(len(units), bool), "valid"
    elif not scanned.all() and not np.isin(documents[~scanned], documents[scanned]).any():
        aside, source = ~scanned, "held out"
    elif len(numbers) >= 2:
        few = order[: max(1, len(numbers) // SET_ASIDE, min(ENOUGH, len(numbers) // 2))]
        aside, source = np.isin(documents, few), "set aside"
    else:
        aside, source = units >= len(units) - max(1, len(units) // SET_ASIDE), "end"
    own = _taken(run, model, units[scanned & ~aside], order, fitted, "corpus")
    if valid:
        other = given(model, valid, measured)
    else:
        each = max(LONGEST, -(-measured // max(1, len(np.unique(documents[aside])))))
        other = _taken(run, model, units[aside], order, measured, source, each)
    given_tokens, other = other.tokens, unknown(model, other, own)
    if given_tokens >= FEWEST > other.tokens:
        raise CorpusError(
            f"Of {given_tokens:,} tokens to measure on ({other.files or other.source}), all but {other.tokens:,} stand in the text of the run "
            f"{run.path} that is fitted to. Name other text: --valid FILE."
        )
    for text, what in ((own, "to fit to"), (other, "to measure on")):
        if text.tokens < FEWEST:
            raise CorpusError(
                f"There are {text.tokens:,} tokens of text {what} ({text.files or f'of the run {run.path}'}), and at least {FEWEST} are "
                f"needed. {_advice(text, fitted if text is own else measured)}"
            )
    return own, other


def _advice(text: Text, asked: int) -> str:
    if asked < FEWEST:
        return f"{asked} were asked for: ask for more."
    if text.files:
        return "Give more of it."
    return "Scan more text." if text.source == "corpus" else "Scan more text, or give some: --valid FILE."


def unknown(model: Model, text: Text, fitted: Text) -> Text:
    """A text without its pieces that stand in another one, mostly."""
    said = [_bytes(model, piece) for piece in fitted.pieces]
    there = np.unique(np.concatenate([hashes(each, ALIKE) for each in said])) if said else np.empty(0, np.uint64)
    short = {each.tobytes() for each in said if len(each) < ALIKE}

    def is_known(piece: list[int]) -> bool:
        own = _bytes(model, piece)
        return own.tobytes() in short if len(own) < ALIKE else bool(np.isin(hashes(own, ALIKE), there).mean() >= SHARED)

    kept = [number for number, piece in enumerate(text.pieces) if not is_known(piece)]
    pieces, documents = [text.pieces[number] for number in kept], [text.documents[number] for number in kept]
    return Text(pieces, documents, text.source, text.files, text.tokens - sum(map(len, pieces)))


def _bytes(model: Model, piece: list[int]) -> npt.NDArray[np.uint8]:
    """A piece as bytes without white space: units of a run are put together with other white space than their files have."""
    return np.frombuffer("".join(model.vocabulary.text(piece).split()).encode("utf-8", "replace"), np.uint8)


def _refuse_own(run: Run, names: Sequence[str | os.PathLike[str]]) -> None:
    """Refuse text that was scanned: what is fitted to it and measured on it looks better than it is."""
    own = {os.path.realpath(str(source)) for source in run.manifest["corpus"]["sources"]}
    for name in names:
        if os.path.realpath(os.fspath(name)) in own:
            raise UsageError(
                f"{os.fspath(name)} is the text that was scanned, so it cannot be measured on too. Name other text, or leave --valid out: then "
                "documents of the run are set aside."
            )


def _taken(run: Run, model: Model, units: Ints, order: Ints, most: int, source: str, each: int | None = None) -> Text:
    """Units of documents in the order of `order`, until there are `most` tokens."""
    documents = np.asarray(run.unit_documents)[units]
    place = np.empty(int(order.max(initial=-1)) + 1, np.int64)
    place[order] = np.arange(len(order))
    return _gathered(model, _joined(run, units[np.lexsort((units, place[documents]))]), most, source, each=each)
