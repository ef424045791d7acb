"""Which keys' triggers end in a text of several tokens, contain it, or are followed by it: found in the texts themselves.

The page does the same with the files of an export (static/phrases.js).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .query import Term
from .ranking import Firing, Row, mixed, score
from .relations import MOST, RELATIONS, Relation
from .texts import Texts
from .words import word, words

MOST_UNITS = 300
"""Texts that are looked at, at most."""


@dataclass(frozen=True)
class Phrase:
    """What was found."""

    firing: dict[Relation, Firing]
    texts: int
    """texts that have all its words"""
    read: int
    """those that were looked at: the first"""
    unknown: list[str]
    """words that no text has"""


def find(texts: Texts, term: Term, triggers: int) -> Phrase:
    """The keys whose triggers have each relation to a text. Case does not matter, unless the term is exact."""
    wanted = list(dict.fromkeys(words(term.text)))
    lists = {each: texts.holding(each) for each in wanted}
    unknown = [each for each in wanted if not lists[each]]
    if unknown or not wanted:
        return Phrase({relation: Firing(0, 0) for relation in RELATIONS}, 0, 0, unknown)
    units = sorted(set.intersection(*(set(each) for each in lists.values())))
    counts: dict[Relation, Counter[tuple[int, int]]] = {relation: Counter() for relation in RELATIONS}
    for number in units[:MOST_UNITS]:
        unit = texts.unit(number)
        if unit is None:
            continue
        look = Look(unit.text, term)
        for side, end, places in unit.held:
            begin = unit.starts[bisect_left(unit.starts, end) - 1]
            for relation in look.relations(begin, end):
                counts[relation].update((place, side) for place in places.tolist())
    firing = {relation: _firing(count, texts.filled, triggers) for relation, count in counts.items()}
    return Phrase(firing, len(units), min(len(units), MOST_UNITS), [])


def _firing(counts: Counter[tuple[int, int]], filled: dict[int, npt.NDArray[np.int64]], triggers: int) -> Firing:
    hits = sum(counts.values())
    base = hits / max(triggers, 1)
    rows = [Row(place, side * n, int(filled[side][place])) for (place, side), n in counts.items()]
    rows.sort(key=lambda row: (-score(abs(row.hits), row.of, base), mixed(row.place), -row.hits))
    return Firing(len({row.place for row in rows}), hits, rows[:MOST])


class Look:
    """Looks for a term in one text, at whole words."""

    def __init__(self, text: str, term: Term) -> None:
        bare = term.text.strip()
        self.text = text if term.exact else folded(text)
        self.wanted = bare if term.exact else folded(bare)
        self.found = [at for at in _everywhere(self.text, self.wanted) if self._begins(at)]

    def relations(self, begin: int, end: int) -> list[Relation]:
        """How the prefix from `begin` to `end` stands to the term."""
        found: list[Relation] = []
        size, at = len(self.wanted), bisect_left(self.found, begin)
        if end - size >= begin and _has(self.found, end - size):
            found.append("ends")
        for start in self.found[at:]:
            if start + size > end:
                break
            if start + size == end or self._ends(start + size):
                found.append("contains")
                break
        after = end
        while after < len(self.text) and self.text[after].isspace():
            after += 1
        if _has(self.found, after) and self._ends(after + size):
            found.append("next")
        return found

    def _begins(self, at: int) -> bool:
        return at == 0 or not (_letter(self.text[at - 1]) and _letter(self.wanted[0]))

    def _ends(self, at: int) -> bool:
        return at >= len(self.text) or not (_letter(self.text[at]) and _letter(self.wanted[-1]))


def folded(text: str) -> str:
    """Lower case, letter by letter, so that no letter changes its place."""
    return "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)


def _everywhere(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted) if wanted else -1
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _has(ordered: list[int], wanted: int) -> bool:
    at = bisect_left(ordered, wanted)
    return at < len(ordered) and ordered[at] == wanted


def _letter(letter: str) -> bool:
    return word().match(letter) is not None
