"""What a search reads, as answers: from tokens, words and texts to cells. The indexes are in `searching/`."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from ..common.once import Once
from ..searching import texts
from ..searching.alike import Alike
from ..searching.find import SPEAKERS
from ..searching.phrases import MOST_UNITS
from ..searching.ranking import PRIOR, Firing
from ..searching.relations import MOST, RELATIONS, Relation, Relations
from ..searching.words import bucket, words
from ..store.run import Run
from ..store.values import Values
from . import schema
from .pack import short

__all__ = ["PAGE", "SIMILAR", "Once", "Search", "bucket", "words"]

PAGE = 64
"""Tokens, and units, per answer."""
SIMILAR = 10
"""Similar keys, and similar values, per cell."""
TOGETHER = 16
"""Pages of tokens whose keys an export counts together, in one pass over the triggers. A server counts a page at a time, because a
reader waits for it."""


class Search:
    """The indexes of one run."""

    def __init__(self, run: Run, *, together: int = TOGETHER, only: npt.NDArray[np.bool_] | None = None) -> None:
        self.run, self.together = run, together
        self.only = only
        """[cells] which are listed by token; None: all"""
        self.texts, self.relations, self.alike = texts.Texts(run), Relations(run, only), Alike(run)
        self.buckets = self.texts.buckets
        self._counted: tuple[int, dict[Relation, dict[int, Firing]]] = (-1, {})
        """the pages that were counted last"""
        self._counting = threading.Lock()

    def about(self) -> schema.Searching:
        return schema.Searching(self.buckets, PRIOR, MOST, SPEAKERS, MOST_UNITS)

    # Tokens

    @property
    def token_pages(self) -> int:
        return -(-len(self.run.vocabulary) // PAGE)

    def tokens(self, values: Values | None, page: int) -> schema.Tokens:
        """Per token of a page: the cells whose values promote and demote it, and those whose triggers end in it, contain it, or
        are followed by it."""
        found = schema.Tokens(self.relations.triggers, {}, {}, *self._firing(page))  # type: ignore[arg-type]
        if values is None:
            return found
        cut: dict[str, tuple[int, int]] = {}
        for token in range(page * PAGE, min((page + 1) * PAGE, values.vocabulary)):
            counts = []
            for side, into in (("top", found.promoted), ("bottom", found.demoted)):
                said = values.said_by(side, token)
                kept = slice(None) if self.only is None else self.only[said[0]]
                rows = [column[kept].tolist() for column in said]
                counts.append(len(rows[0]))
                listed = zip(*(column[:SPEAKERS] for column in rows), strict=True)
                if speakers := [schema.Speaker(place, short(logit, 3), rank) for place, rank, logit in listed]:
                    into[str(token)] = speakers
            if max(counts) > SPEAKERS:
                cut[str(token)] = (counts[0], counts[1])
        if cut:
            found.cut = cut
        return found

    def _firing(self, page: int) -> list[dict[str, schema.TokenKeys]]:
        """Per relation, the keys of a page's tokens."""
        group, size = page // self.together, self.together * PAGE
        with self._counting:
            if self._counted[0] != group:
                asked = np.arange(group * size, (group + 1) * size)
                self._counted = (group, {relation: self.relations.of(relation, asked) for relation in RELATIONS})
            known = self._counted[1]
        return [
            {
                str(token): schema.TokenKeys(of.cells, of.hits, [schema.Fires(*row) for row in of.rows])
                for token in range(page * PAGE, (page + 1) * PAGE)
                if (of := known[relation].get(token))
            }
            for relation in RELATIONS
        ]

    # Units and words

    @property
    def unit_pages(self) -> int:
        return -(-int(self.run.manifest["corpus"]["units"]) // PAGE)

    def pages_with_triggers(self) -> list[int]:
        """The pages of units that hold any."""
        found: list[int] = np.unique(self.texts.units() // PAGE).tolist()
        return found

    def units(self, page: int) -> schema.Units:
        """The texts of a page's units that hold triggers, and whose."""
        found: dict[str, schema.Unit] = {}
        for number in range(page * PAGE, (page + 1) * PAGE):
            if unit := self.texts.unit(number):
                found[str(number)] = self._unit(unit)
        return schema.Units(self.relations.triggers, found)

    def _unit(self, unit: texts.Unit) -> schema.Unit:
        sides: dict[int, list[schema.Held]] = {1: [], -1: []}
        for side, end, places in unit.held:
            sides[side].append(schema.Held(end, np.diff(places, prepend=0).tolist()))
        every = np.unique(np.concatenate([places for *_, places in unit.held]))
        counts = [self.texts.filled[side][every] for side in (1, -1)]
        few = (np.minimum(*counts) if self.run.signed else counts[0]) < self.run.top
        rows = zip(every[few].tolist(), *(count[few].tolist() for count in counts), strict=True)
        return schema.Unit(unit.text, unit.starts, sides[1], sides[-1], {str(place): (a, b) for place, a, b in rows})

    def words(self, number: int) -> schema.Words:
        """The words of a bucket, each with the units in which it occurs and that hold triggers."""
        return schema.Words(self.texts.words(number))

    # Keys that fire on the same prefixes

    def similar_keys(self, own: int, limit: int = SIMILAR) -> list[tuple[int, int]]:
        return self.alike.keys(own, limit)
