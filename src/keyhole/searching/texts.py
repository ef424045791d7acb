"""The texts that triggers come from: which words are in which units, and which cells' triggers end where in a unit's text."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..common.once import Once
from ..store.run import Run
from .words import bucket, buckets, words

BLOCK = 1024
"""Tokens of a unit that are decoded together to find where each of them ends."""
BATCH = 1000
"""Units that are decoded together."""


class Held(NamedTuple):
    """The triggers of one side that end at the same place of a unit."""

    side: int
    end: int
    """characters of the unit's text up to and including their last token"""
    places: npt.NDArray[np.int32]
    """of their cells, ascending"""


class Unit(NamedTuple):
    """A unit that holds triggers."""

    text: str
    starts: list[int]
    """characters at which its windows start: a prefix begins at the last of them before its end"""
    held: list[Held]
    """in the order of their ends, per side"""


class Texts:
    """The texts of one run."""

    def __init__(self, run: Run) -> None:
        self.run, self.buckets, self._once = run, buckets(run), Once()

    def units(self) -> npt.NDArray[Any]:
        """The numbers of the units that hold triggers, ascending."""
        found: npt.NDArray[Any] = np.unique(self._by_unit[0])
        return found

    def text(self, unit: int) -> str:
        return self.run.vocabulary.text(self.run.unit_tokens(unit).tolist())

    def unit(self, number: int) -> Unit | None:
        """A unit, if it holds triggers."""
        units, places, positions, signs = self._by_unit
        a, b = np.searchsorted(units, [number, number + 1]).tolist()
        if a == b:
            return None
        opens = list(range(self.run.room, int(positions[a:b].max()) + 1, self.run.room))
        text, ends = self._ends(number, sorted({*positions[a:b].tolist(), *(start - 1 for start in opens)}))
        new = np.flatnonzero((np.diff(positions[a:b]) != 0) | (np.diff(signs[a:b]) != 0)) + 1
        bounds = zip([0, *new.tolist()], [*new.tolist(), b - a], strict=True)
        held = [Held(int(signs[a + i]), ends[int(positions[a + i])], places[a + i : a + j]) for i, j in bounds]
        return Unit(text, [0, *(ends[start - 1] for start in opens)], held)

    @property
    def filled(self) -> dict[int, npt.NDArray[np.int64]]:
        """[cells] per side, 1 and −1: how many triggers a cell has."""

        def make() -> dict[int, npt.NDArray[np.int64]]:
            found = {-1 if negative else 1: (side.units >= 0).sum(1) for negative, side in self.run.sides.items()}
            return {-1: np.zeros(len(self.run.cells), np.int64), **found}

        return self._once.get("filled", make)

    def _ends(self, unit: int, positions: list[int]) -> tuple[str, dict[int, int]]:
        """A unit's text, and for each position the number of characters up to and including its token."""
        ids = [int(i) for i in self.run.unit_tokens(unit)]
        decode, text, ends = self.run.vocabulary.text, self.text(unit), {}
        begin = before = 0
        for position in positions:
            while position >= begin + BLOCK:  # so a long unit is not decoded from its beginning each time
                before += len(decode(ids[begin : begin + BLOCK]))
                begin += BLOCK
            part = decode(ids[begin : position + 1])
            if not text.startswith(part, before):  # it ends in the middle of a character
                part = part.rstrip("\ufffd")
            ends[position] = min(before + len(part), len(text))
        return text, ends

    @property
    def _by_unit(self) -> tuple[npt.NDArray[Any], ...]:
        """The triggers of both sides, ordered by unit, side (the cells' own triggers first), position and place of the cell: units,
        places, positions, signs."""

        def make() -> tuple[npt.NDArray[Any], ...]:
            sides = []
            for negative, side in self.run.sides.items():
                filled = side.units >= 0
                places = np.nonzero(filled)[0].astype(np.int32)
                signs = np.full(len(places), -1 if negative else 1, np.int8)
                sides.append((side.units[filled], places, side.positions[filled], signs))
            columns = [np.concatenate(parts) for parts in zip(*sides, strict=True)]
            order = np.lexsort((columns[1], columns[2], -columns[3], columns[0]))
            return tuple(column[order] for column in columns)

        return self._once.get("units", make)

    # Words

    def words(self, number: int) -> dict[str, list[int]]:
        """The words of a bucket, each with the units in which it occurs and that hold triggers."""
        found = self._by_word[number]
        return {word: found[word].tolist() for word in sorted(found)}

    def holding(self, word: str) -> list[int]:
        """The units in which a word occurs and that hold triggers."""
        found = self._by_word[bucket(word, self.buckets)].get(word)
        return [] if found is None else found.tolist()

    @property
    def _by_word(self) -> list[dict[str, array[int]]]:
        def make() -> list[dict[str, array[int]]]:
            units = self.units().tolist()
            every: dict[str, array[int]] = {}
            for first in range(0, len(units), BATCH):
                batch = units[first : first + BATCH]
                texts = self.run.vocabulary.texts([self.run.unit_tokens(unit).tolist() for unit in batch])
                for unit, text in zip(batch, texts, strict=True):
                    for word in set(words(text)):
                        every.setdefault(word, array("i")).append(unit)
            dealt: list[dict[str, array[int]]] = [{} for _ in range(self.buckets)]
            for word, where in every.items():
                dealt[bucket(word, self.buckets)][word] = where
            return dealt

        return self._once.get("words", make)
