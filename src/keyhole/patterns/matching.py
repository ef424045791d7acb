"""Which cells should fire where in a text, by their rules alone: no model is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..analyses.heldout import given_units
from ..cells import parse_address
from ..common.checks import whole
from ..errors import CorpusError, RunDamaged, RunError, UsageError
from ..inputs import corpus
from ..store import patterns
from ..store.patterns import Key
from ..store.run import Run
from .lexicon import Lexicon
from .rules import fire
from .text import Ints, Text

HELD = 1 << 22
"""Matches that are held before the weakest of each position are dropped."""
CONTEXT = 24
"""Tokens before a position that are shown with it, at most."""
Begin = Callable[[int], Callable[[int], None]]
"""Progress: called with the number of layers; the function that it returns is then called with each number done."""


class Match(NamedTuple):
    """A cell whose rules say that it fires."""

    cell: str
    """its address"""
    side: int
    score: float
    """the rule's estimate of the probability that the key fires"""
    pattern: int | None
    """the place in the key's list, from 1, of the first pattern that matches; None if none does and the position's last token alone
    has weight for the key"""
    description: str
    """of that pattern; without one, of the key's first"""


@dataclass(frozen=True)
class Place:
    """A position of the text at which cells should fire."""

    unit: int
    """the number of its unit in the text, from 0"""
    position: int
    """the index of the token in its unit"""
    token: str
    before: list[str]
    """the tokens before it in its window, the last ones"""
    cells: list[Match]
    """strongest first"""
    further: int
    """how many weaker ones are left out"""

    def to_json(self) -> dict[str, Any]:
        cells = [match._asdict() for match in self.cells]
        return {"unit": self.unit, "position": self.position, "token": self.token, "cells": cells} | {
            "further": self.further
        }


class Found(NamedTuple):
    """Matches, one entry each."""

    positions: Ints
    scores: npt.NDArray[np.float32]
    keys: npt.NDArray[np.int32]
    """numbers of `Matched.keys`"""
    pattern: npt.NDArray[np.int32]
    """as `rules.Fired` has it"""

    def only(self, which: Ints | npt.NDArray[np.bool_]) -> Found:
        return Found(self.positions[which], self.scores[which], self.keys[which], self.pattern[which])


@dataclass(frozen=True)
class Matched:
    """Where rules match in a text."""

    run: Run
    text: Text
    units: Ints
    """[windows] the unit that each is from"""
    starts: Ints
    """[windows] where it begins in that unit"""
    keys: list[tuple[int, Key]]
    """the keys whose rules were run, each with the place of its cell"""
    found: Found
    """the strongest of each position, by position and then strongest first"""
    counts: Ints
    """[positions] how many cells should fire there"""

    def __iter__(self) -> Iterator[Place]:
        positions = self.found.positions
        bounds = np.flatnonzero(np.diff(positions, prepend=-1, append=len(self.text)))
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield self._place(int(positions[begin]), range(begin, end))

    def _place(self, at: int, those: range) -> Place:
        text, piece = self.text, self.run.vocabulary.piece
        window, place = int(text.windows[at]), int(text.places[at])
        before = text.tokens[at - min(place, CONTEXT) : at].tolist()
        cells = [self._match(number) for number in those]
        position = int(self.starts[window]) + place
        shown = [piece(token) for token in before]
        return Place(
            int(self.units[window]),
            position,
            piece(int(text.tokens[at])),
            shown,
            cells,
            int(self.counts[at]) - len(cells),
        )

    def _match(self, number: int) -> Match:
        place, key = self.keys[int(self.found.keys[number])]
        pattern = int(self.found.pattern[number])
        return Match(
            self.run.cells.address(place),
            key.side,
            float(self.found.scores[number]),
            None if pattern < 0 else pattern + 1,
            key.patterns[max(pattern, 0)].description,
        )


def match(
    run: Run,
    given: str | os.PathLike[str],
    *,
    cells: Sequence[str] = (),
    limit: int = 5,
    begin: Begin = lambda layers: lambda done: None,
) -> Matched:
    """Run the rules of every key, or of those in `cells`, on a file or a text. Per position the `limit` strongest are kept.

    A string that names a file or folder is read as a corpus is; any other is the text itself. Text is divided and cut as the scan
    cut its corpus. A cell should fire if its score is at least its threshold."""
    limit = whole("limit", limit, 1)
    stored = patterns.of(run)
    if stored is None:
        raise RunError(f"{run.path} has no patterns yet. Find them: keyhole patterns {run.path}")
    chosen = {place for name in cells for place in _places(run, name)}
    layers = sorted({run.cells.split(place)[0] for place in chosen}) if cells else range(run.layers)
    text, units, starts = _read(run, given)
    counts = np.zeros(len(text), np.int64)
    keys: list[tuple[int, Key]] = []
    held: list[Found] = []
    size, advance = 0, begin(len(layers))
    for layer in layers:
        for key in stored.armed(layer):
            place = run.cells.place(layer, key.cell)
            if cells and place not in chosen:
                continue
            fired = _fired(run, len(keys), place, key, text)
            keys.append((place, stored.layer(layer)[key.cell, key.side]))  # without its evidence, which is large
            held.append(fired)
            counts[fired.positions] += 1
            size += len(fired.positions)
            if size > HELD:
                held = [_strongest(held, limit)]
                size = len(held[0].positions)
        advance(1)
    if not keys:
        named = f"the cells {', '.join(cells)[:200]}" if cells else str(run.path)
        raise RunError(f"No key of {named} has a pattern, so there is no rule to run.")
    return Matched(run, text, units, starts, keys, _strongest(held, limit), counts)


def _fired(run: Run, number: int, place: int, key: Key, text: Text) -> Found:
    """Where one key should fire."""
    try:
        fired = fire(key, text)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunDamaged(
            f"A rule of {run.cells.address(place)} cannot be run ({type(error).__name__}: {str(error)[:80]}). Find the patterns "
            f"again: keyhole patterns {run.path}"
        ) from None
    numbers = np.full(len(fired.positions), number, np.int32)
    found = Found(fired.positions, fired.scores, numbers, fired.pattern.astype(np.int32))
    return found.only(fired.scores >= key.threshold)


def _strongest(held: list[Found], limit: int) -> Found:
    """The strongest matches of each position, in order. Of equally strong ones the first key comes first."""
    every = Found(
        np.concatenate([each.positions for each in held]),
        np.concatenate([each.scores for each in held]),
        np.concatenate([each.keys for each in held]),
        np.concatenate([each.pattern for each in held]),
    )
    found = every.only(np.lexsort((every.keys, -every.scores, every.positions)))
    first = np.searchsorted(found.positions, found.positions)  # where the position of each begins
    return found.only(np.arange(len(first)) - first < limit)


# What is run


def _places(run: Run, name: str) -> Sequence[int]:
    """The places of a cell or of a layer's cells, by address (L12.345) or by name (L12)."""
    try:
        parse_address(name)
    except UsageError:
        span = run.cells.span(run.cells.find_layer(name))
        return range(span.start, span.stop)
    return [run.cells.find(name)]


def _read(run: Run, given: str | os.PathLike[str]) -> tuple[Text, Ints, Ints]:
    """The text in windows, and per window its unit and where it begins there."""
    named = os.fspath(given)
    config = run.manifest["config"]
    if not named.strip():
        raise UsageError("The text is empty. Give some text, or the name of a file.")
    if os.path.exists(named):
        units = list(given_units(run, [named]))
    elif isinstance(given, os.PathLike):
        raise CorpusError(f"There is no file {named[:200]}.")
    else:
        units = list(corpus.text_units(named, str(config["unit"]), language=config["language"]))
    windows, documents, numbers, starts = [], [], [], []
    for number, (unit, ids) in enumerate(zip(units, run.vocabulary.encode([unit.text for unit in units]), strict=True)):
        for start in range(0, len(ids), run.room):
            windows.append(ids[start : start + run.room])
            documents.append(unit.document)
            numbers.append(number)
            starts.append(start)
    if not windows:
        raise CorpusError(f"There is no text in {named[:200]}: it has no tokens.")
    text = Text.of(windows, documents, Lexicon.of(run))
    return text, np.array(numbers, np.int64), np.array(starts, np.int64)
