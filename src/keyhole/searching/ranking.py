"""How the cells that a search finds are ranked. The page ranks by the same rules (static/ranking.js).

A key: its share is the share of its triggers (of one side) that have the relation to the term. Its lift is that share divided by
the share among all triggers of the run: what a trigger picked at random gives. Cells are ranked by the share after `PRIOR`
triggers of the run's average are added, so that one trigger of one does not come before 40 of 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

PRIOR = 5
"""Triggers of the run's average that are added to a cell's own before it is ranked."""


class Row(NamedTuple):
    """A side of a key that has the relation to a term."""

    place: int
    hits: int
    """triggers that have it; negative for triggers of the other side"""
    of: int
    """triggers of that side"""


@dataclass(frozen=True)
class Firing:
    """The keys whose triggers have one relation to one term."""

    cells: int
    """how many there are"""
    hits: int
    """triggers that have it, of all cells and sides"""
    rows: list[Row] = field(default_factory=list)
    """the best, in order"""


NOTHING = Firing(0, 0)


@dataclass(frozen=True)
class Key:
    """A key in a list of results."""

    place: int
    side: int
    hits: int
    of: int
    share: float
    lift: float
    matched: list[tuple[int, int]]
    """the terms it matched, by number, with their hits"""
    least: bool = False
    """whether there may be more hits: a term's list ends before this key, or its triggers may match different terms"""


@dataclass(frozen=True)
class Value:
    """A value in a list of results."""

    place: int
    logit: float
    """the sum over the tokens it matched"""
    matched: list[tuple[int, float, int]]
    """the terms it matched, by number, with logit and rank of their tokens"""


def score(hits: int, of: int, base: float) -> float:
    """What keys are ranked by: the smoothed share."""
    return (hits + PRIOR * base) / (of + PRIOR)


def keys(lists: Sequence[Firing], triggers: int, *, disjoint: bool) -> list[Key]:
    """The keys of one or several terms, the best first, each cell once, by its better side.

    `disjoint`: a trigger has the relation to one term at most (the terms are different tokens, and it has one last token), so hits
    add up, and the lift is that of all terms together. Else a trigger may count for several terms (it may contain both): a cell's
    hits and its lift are those of its best term.
    """
    bases = [each.hits / max(triggers, 1) for each in lists]
    cut = {number for number, each in enumerate(lists) if sum(abs(row.hits) for row in each.rows) < each.hits}
    sides: dict[tuple[int, int], tuple[int, int, list[tuple[int, int]]]] = {}
    for number, each in enumerate(lists):
        for rank, (place, signed, of) in enumerate(each.rows):
            side, hits = (1, signed) if signed > 0 else (-1, -signed)
            _, first, matched = sides.get((place, side), (of, rank, []))
            matched.append((number, hits))
            sides[place, side] = (of, min(first, rank), matched)
    ranked: list[tuple[float, int, Key]] = []
    for (place, side), (of, first, matched) in sides.items():
        if disjoint:
            hits, base = sum(count for _, count in matched), sum(bases)
        else:
            best, hits = max(matched, key=lambda item: item[1])
            base = bases[best]
        least = bool(cut - {number for number, _ in matched}) or (not disjoint and len(matched) > 1)
        share = hits / of
        key = Key(place, side, hits, of, share, share / base if base else 0.0, matched, least)
        ranked.append((score(hits, of, base), first, key))
    ranked.sort(key=lambda item: (-item[0], item[1], item[2].place, -item[2].side))
    found: dict[int, Key] = {}
    for _, _, key in ranked:
        found.setdefault(key.place, key)
    return list(found.values())


def values(lists: Sequence[Sequence[tuple[int, float, int]]]) -> list[Value]:
    """The values of one or several tokens, largest sum of logits first; a list per token, of (place, logit, rank), strongest first."""
    found: dict[int, tuple[float, int, list[tuple[int, float, int]]]] = {}
    for number, speakers in enumerate(lists):
        for at, (place, logit, rank) in enumerate(speakers):
            known = found.get(place)
            total, first, matched = known or (0.0, at, [])
            matched.append((number, logit, rank))
            found[place] = (total + logit, min(first, at), matched)
    order = sorted(found.items(), key=lambda item: (-abs(item[1][0]), item[1][1], item[0]))
    return [Value(place, total, matched) for place, (total, _, matched) in order]


def mixed(place: int) -> int:
    """A number by which cells of equal score are ordered, if nothing else tells them apart: it mixes the layers."""
    return place * 2654435761 % 2**32
