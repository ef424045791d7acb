"""A search over a run, as the explorer's page shows it: keys, values and labels for a query, or the cells nearest to a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..store import patterns, values
from ..store.run import Run
from . import labels, phrases, query, ranking
from .alike import Alike
from .query import MOST_TERMS, Term
from .ranking import NOTHING, Firing
from .relations import RELATIONS, Relation, Relations
from .texts import Texts

SPEAKERS = 500
"""Upper bound on the cells that are listed per token and end of a value."""
FORMS = 4
"""Tokens that may be a term, of which the first that is used is taken."""
_SIDES = ("top", "bottom")


@dataclass(frozen=True)
class Sought:
    """A term, and the token that it means; None if it is a text of several tokens."""

    term: Term
    token: int | None
    piece: str
    forms: list[int]
    """all tokens that are the term, apart from case and a space"""
    firing: dict[Relation, Firing]
    speaking: tuple[int, int] = (0, 0)
    """how many values promote its token, and how many demote it"""
    unread: int = 0
    """texts with all its words that were not looked at"""


@dataclass(frozen=True)
class Found:
    """What a query finds."""

    run: Run
    asked: str
    sought: list[Sought] = field(default_factory=list)
    keys: dict[Relation, list[ranking.Key]] = field(default_factory=dict)
    promote: list[ranking.Value] = field(default_factory=list)
    demote: list[ranking.Value] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    patterns: list[labels.Named] = field(default_factory=list)
    people: dict[int, list[str]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    """terms beyond the first `MOST_TERMS`, which are not searched"""
    like: str | None = None
    """the cell whose neighbours were asked for"""
    near_keys: list[tuple[int, int]] = field(default_factory=list)
    near_values: list[tuple[int, float]] = field(default_factory=list)

    def cells(self, relation: Relation) -> int | None:
        """How many cells have the relation to the term; None for several terms, of whose lists only the best are known."""
        return self.sought[0].firing[relation].cells if len(self.sought) == 1 else None

    def speaking(self, side: int) -> int | None:
        """How many values promote the token (side 0) or demote it (side 1); None for several."""
        return self.sought[0].speaking[side] if len(self.sought) == 1 else None

    def cut(self, side: int) -> bool:
        """Whether more values promote (side 0) or demote (side 1) one of the tokens than are listed for it."""
        return any(each.speaking[side] > SPEAKERS for each in self.sought)

    def to_json(self, limit: int | None = None) -> dict[str, Any]:
        """The lists, each with at most `limit` entries."""
        if self.like is not None:
            return {
                "query": self.asked,
                "like": self.like,
                "keys": [self.cell(place) | {"shared": shared} for place, shared in self.near_keys[:limit]],
                "values": [self.cell(place) | {"cosine": cosine} for place, cosine in self.near_values[:limit]],
            }
        known = patterns.of(self.run)
        return {
            "query": self.asked,
            "terms": [
                {"text": each.term.text, "exact": each.term.exact, "token": each.token, "piece": each.piece}
                for each in self.sought
            ],
            "ignored": self.ignored,
            "keys": {
                relation: {
                    "cells": self.cells(relation),
                    "listed": [self._key(key) for key in self.keys[relation][:limit]],
                }
                for relation in RELATIONS
            },
            "values": {
                verb: {"cells": self.speaking(side), "listed": [self._value(value) for value in found[:limit]]}
                for side, (verb, found) in enumerate((("promote", self.promote), ("demote", self.demote)))
            },
            "kinds": self.kinds,
            "patterns": [
                self.cell(place) | {"side": side, "description": key.patterns[number].description}
                for place, side, number in self.patterns[:limit]
                if known and (key := known.key(place, side))
            ],
            "people": [self.cell(place) | {"texts": texts} for place, texts in list(self.people.items())[:limit]],
        }

    def cell(self, place: int) -> dict[str, Any]:
        """The fields that name a cell, as in the JSON of `show` and `tokens`."""
        layer, cell = self.run.cells.split(place)
        return {"address": self.run.cells.address(place), "layer": layer, "cell": cell}

    def _key(self, key: ranking.Key) -> dict[str, Any]:
        matched = {self.sought[number].piece: hits for number, hits in key.matched}
        numbers = {"hits": key.hits, "of": key.of, "share": key.share, "lift": key.lift, "at_least": key.least}
        return self.cell(key.place) | {"side": key.side, **numbers, "matched": matched}

    def _value(self, value: ranking.Value) -> dict[str, Any]:
        tokens = [each for each in self.sought if each.token is not None]
        matched = {tokens[number].piece: {"logit": logit, "rank": rank} for number, logit, rank in value.matched}
        return self.cell(value.place) | {"logit": float(f"{value.logit:.3g}"), "matched": matched}


def search(run: Run, asked: str, *, nearest: int = 50) -> Found:
    """What a query finds in a run. `like "a text"` needs the model: `keyhole.uses.nearest`."""
    if (wanted := query.like(asked)) is not None:
        return _like(run, asked, wanted, nearest)
    relations, texts = Relations(run), Texts(run)
    lenses = values.available(run)
    said = values.Values(run, lenses[0]) if lenses else None
    pieces = [run.vocabulary.piece(token) for token in range(len(run.vocabulary))]
    sought = _distinct(_sought(term, pieces, relations, texts, said) for term in query.terms(asked)[:MOST_TERMS])
    tokens = all(each.token is not None for each in sought)
    keys = {
        relation: ranking.keys(
            [each.firing[relation] for each in sought], relations.triggers, disjoint=tokens and relation != "contains"
        )
        for relation in RELATIONS
    }
    known, terms = patterns.of(run), [each.term for each in sought]
    promote, demote = (ranking.values(_speakers(said, side, sought)) for side in _SIDES)
    return Found(
        run,
        asked,
        sought,
        keys,
        promote,
        demote,
        kinds=labels.kinds_named(run, terms),
        patterns=[] if known is None else labels.naming(known, [(each.term, each.forms) for each in sought]),
        people=labels.people(run, terms),
        ignored=[each.text for each in query.terms(asked)[MOST_TERMS:]],
    )


def _sought(
    term: Term, pieces: Sequence[str], relations: Relations, texts: Texts, said: values.Values | None
) -> Sought:
    forms = [each.token for each in query.meant(pieces, term) if each.is_it]
    if not forms or (term.exact and pieces[forms[0]] != term.text):
        found = phrases.find(texts, term, relations.triggers)
        return Sought(term, None, term.text, forms, found.firing, unread=found.texts - found.read)
    token = next((form for form in forms[:FORMS] if _is_used(form, relations, said)), forms[0])
    firing = {each: relations.one(each, token) for each in RELATIONS}
    promote, demote = (_spoken(said, side, token) for side in _SIDES)
    return Sought(term, token, pieces[token], forms, firing, (promote, demote))


def _distinct(every: Iterable[Sought]) -> list[Sought]:
    """The terms that mean something else than those before them: `money or money` is one term."""
    found: dict[object, Sought] = {}
    for each in every:
        text = each.term.text if each.term.exact else each.term.text.strip().lower()
        found.setdefault((text, each.term.exact) if each.token is None else each.token, each)
    return list(found.values())


def _is_used(token: int, relations: Relations, said: values.Values | None) -> bool:
    """Whether a trigger contains a token or is followed by it, or a value promotes or demotes it."""
    return any(_spoken(said, side, token) for side in _SIDES) or any(
        relations.one(relation, token) != NOTHING for relation in ("contains", "next")
    )


def _spoken(said: values.Values | None, side: str, token: int) -> int:
    """How many cells have a token at one end of their value."""
    return len(said.said_by(side, token)[0]) if said is not None and token < said.vocabulary else 0


def _speakers(said: values.Values | None, side: str, sought: Sequence[Sought]) -> list[list[tuple[int, float, int]]]:
    """Per token: places, logits in the digits that the page has, ranks."""
    found = []
    for each in sought:
        if each.token is None:
            continue
        rows: list[tuple[int, float, int]] = []
        if said is not None and each.token < said.vocabulary:
            places, ranks, logits = (column.tolist() for column in said.said_by(side, each.token, SPEAKERS))
            rows = [
                (place, float(f"{logit:.3g}"), rank) for place, rank, logit in zip(places, ranks, logits, strict=True)
            ]
        found.append(rows)
    return found


def _like(run: Run, asked: str, wanted: str, limit: int) -> Found:
    place, alike = run[wanted].place, Alike(run)
    name = run.cells.address(place)
    near = alike.values(place, limit) or []
    return Found(run, asked, like=name, near_keys=alike.keys(place, limit), near_values=near)
