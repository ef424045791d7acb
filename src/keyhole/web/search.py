"""The indexes that a search needs: from tokens, words and prefixes to cells. Each is made once, when it is first needed."""

from __future__ import annotations

import re
import threading
import unicodedata
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values
from . import schema
from .pack import short

PAGE = 64
"""Tokens, and units, per answer."""
SIMILAR = 10
"""Similar keys, and similar values, per cell."""
BLOCK = 1024
"""Tokens of a unit that are decoded together to find where each of them ends."""
BATCH = 1000
"""Units that are decoded together."""
_Made = TypeVar("_Made")


class Once:
    """Values that are made at most once. Threads that ask while one is being made wait for it."""

    def __init__(self) -> None:
        self._lock, self._locks, self._made = threading.Lock(), dict[str, threading.Lock](), dict[str, Any]()

    def get(self, name: str, make: Callable[[], _Made]) -> _Made:
        if name not in self._made:
            with self._lock:
                own = self._locks.setdefault(name, threading.Lock())
            with own:
                if name not in self._made:
                    self._made[name] = make()
        found: _Made = self._made[name]
        return found


# Words


@cache
def _word() -> re.Pattern[str]:
    """A maximal run of letters, marks, digits and apostrophes: `[\\p{L}\\p{M}\\p{N}'’]+`, which Python's re cannot spell."""
    ranges: list[list[int]] = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] in "LMN":
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    letters = "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges)
    return re.compile(f"[{letters}'’]+")


def words(text: str) -> list[str]:
    """The words of a text, in order, lower-cased."""
    return [word.lower() for word in _word().findall(text)]


def bucket(word: str, buckets: int) -> int:
    """FNV-1a, 32 bits, of the word's UTF-8: the page computes the same."""
    value = 0x811C9DC5
    for byte in word.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value % buckets


def buckets(run: Run) -> int:
    """The number of answers over which the words are distributed: large enough that each stays small."""
    tokens = int(run.manifest["corpus"]["tokens"])
    return 64 if tokens < 2_000_000 else 256 if tokens < 20_000_000 else 1024


class Search:
    """The indexes of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.buckets = buckets(run)
        self._once = Once()

    # Tokens

    @property
    def token_pages(self) -> int:
        return -(-len(self.run.vocabulary) // PAGE)

    def tokens(self, values: Values | None, page: int) -> schema.Tokens:
        """The cells whose values promote and demote each token of a page."""
        if values is None:
            return schema.Tokens({}, {})
        promoted, demoted = (self._speakers(values, side, page) for side in ("top", "bottom"))
        return schema.Tokens(promoted, demoted)

    def _speakers(self, values: Values, side: str, page: int) -> dict[str, list[schema.Speaker]]:
        found = {}
        for token in range(page * PAGE, min((page + 1) * PAGE, values.vocabulary)):
            rows = zip(*(column.tolist() for column in values.said_by(side, token)), strict=True)
            if speakers := [schema.Speaker(place, short(logit, 3), rank) for place, rank, logit in rows]:
                found[str(token)] = speakers
        return found

    # Units and words

    @property
    def unit_pages(self) -> int:
        return -(-int(self.run.manifest["corpus"]["units"]) // PAGE)

    def pages_with_triggers(self) -> list[int]:
        """The pages of units that hold any."""
        found: list[int] = np.unique(self._once.get("units", self._by_unit)[0] // PAGE).tolist()
        return found

    def unit_text(self, unit: int) -> str:
        return self.run.vocabulary.text(self.run.unit_tokens(unit).tolist())

    def units(self, page: int) -> schema.Units:
        """The texts of a page's units that hold triggers, and whose."""
        units, places, positions, signs = self._once.get("units", self._by_unit)
        found: dict[str, schema.Unit] = {}
        edges = np.arange(page * PAGE, (page + 1) * PAGE + 1, dtype=units.dtype)
        bounds = np.searchsorted(units, edges).tolist()
        for number, a, b in zip(edges.tolist(), bounds, bounds[1:], strict=False):
            if a == b:
                continue
            text, ends = self._ends(number, np.unique(positions[a:b]).tolist())
            unit = found[str(number)] = schema.Unit(text, [], [])
            rows = zip(places[a:b].tolist(), positions[a:b].tolist(), signs[a:b].tolist(), strict=True)
            for place, position, sign in rows:
                (unit.cells if sign > 0 else unit.negative).append(schema.Held(place, ends[position]))
        return schema.Units(found)

    def _ends(self, unit: int, positions: list[int]) -> tuple[str, dict[int, int]]:
        """A unit's text, and for each position the number of characters up to and including its token."""
        ids = [int(i) for i in self.run.unit_tokens(unit)]
        decode, text, ends = self.run.vocabulary.text, self.unit_text(unit), {}
        begin = before = 0
        for position in sorted(positions):
            while position >= begin + BLOCK:  # so a long unit is not decoded from its beginning each time
                before += len(decode(ids[begin : begin + BLOCK]))
                begin += BLOCK
            part = decode(ids[begin : position + 1])
            if not text.startswith(part, before):  # it ends in the middle of a character
                part = part.rstrip("\ufffd")
            ends[position] = min(before + len(part), len(text))
        return text, ends

    def _by_unit(self) -> tuple[npt.NDArray[Any], ...]:
        """The triggers of both sides, ordered by unit: units, places of the cells, positions, signs."""
        sides = []
        for negative, side in self.run.sides.items():
            filled = side.units >= 0
            places = np.nonzero(filled)[0].astype(np.int32)
            signs = np.full(len(places), -1 if negative else 1, np.int8)
            sides.append((side.units[filled], places, side.positions[filled], signs))
        columns = [np.concatenate(parts) for parts in zip(*sides, strict=True)]
        order = np.argsort(columns[0], kind="stable")  # within a unit: the positive side first, by cell
        return tuple(column[order] for column in columns)

    def words(self, number: int) -> schema.Words:
        """The words of a bucket, each with the units in which it occurs and that hold triggers."""
        found = self._once.get("words", self._by_word)[number]
        return schema.Words({word: found[word].tolist() for word in sorted(found)})

    def _by_word(self) -> list[dict[str, array[int]]]:
        units = np.unique(self._once.get("units", self._by_unit)[0]).tolist()
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

    # Keys that fire on the same prefixes

    def similar_keys(self, own: int) -> list[tuple[int, int]]:
        """The keys that share most triggers with the one at place `own`: (place, number of shared triggers)."""
        prefixes, cells = self._once.get("prefixes", self._by_prefix)
        mine = self._prefixes(own)
        begins, ends = np.searchsorted(prefixes, mine), np.searchsorted(prefixes, mine, "right")
        shared = [cells[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
        if not shared:
            return []
        others, counts = np.unique(np.concatenate(shared), return_counts=True)
        counts[others == own] = 0
        most = np.argsort(-counts, kind="stable")[:SIMILAR]
        return [(int(others[i]), int(counts[i])) for i in most if counts[i]]

    def _prefixes(self, place: int) -> npt.NDArray[np.int64]:
        """A cell's triggers, each as the place of its last token in the corpus."""
        units, positions = self.run.units[place], self.run.positions[place]
        filled = units >= 0
        found: npt.NDArray[np.int64] = self._offsets[units[filled]] + positions[filled]
        return found

    @property
    def _offsets(self) -> npt.NDArray[np.int64]:
        return self._once.get("offsets", lambda: np.asarray(self.run.unit_offsets, np.int64))

    def _by_prefix(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        filled = self.run.units >= 0
        prefixes = self._offsets[self.run.units[filled]] + self.run.positions[filled]
        order = np.argsort(prefixes, kind="stable")
        return prefixes[order], np.nonzero(filled)[0][order].astype(np.int32)
