"""Sets of cells by name, to be switched off together or looked at together. A name says where the set comes from:

    kind:dead            the cells of a kind (`store/kinds.py`)
    collection:mine      those that people gave a tag; `collection:starred` and `collection:all` too
    search:QUERY         of the keys that a search lists (the best 100 per term), those of which at least half of the triggers of one
                         side contain one of the query's terms
    pattern:TEXT         those with a pattern whose description has all words of the text, or whose rule names it as a token
    leak:1               those that a leaked text is kept in, by its rank

A set is never empty: what finds no cell is refused, with what there is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from ..store import collections, kinds, leaks, patterns
from ..store.run import Run
from . import find, labels, query

SHARE = 0.5
"""The smallest share of a cell's triggers that a search's terms must be in."""
TITLE = 40
"""Characters of a leaked text that are shown."""
FORMS = "kind:NAME, collection:NAME, search:QUERY, pattern:TEXT, leak:RANK"


class Offered(NamedTuple):
    """A set that a run has."""

    name: str
    title: str
    cells: int


def cells_of(run: Run, name: str) -> list[int]:
    """The places of a set's cells, ascending."""
    what, _, which = name.partition(":")
    what, which = what.strip().lower(), which.strip()
    readers = {"kind": _kind, "collection": _collection, "search": _search, "pattern": _pattern, "leak": _leak}
    if what not in readers or not which:
        raise UsageError(f"{name!r:.80} is no set of cells. A set is written as one of: {FORMS}.")
    return sorted(set(map(int, readers[what](run, which))))


def offered(run: Run) -> list[Offered]:
    """The sets of a run that need no text: kinds, collections, leaks. Those without a cell are left out."""
    found = []
    known = kinds.of(run)
    if known is not None:
        counts = ((kind, int(known.has(kind.name).sum())) for kind in kinds.KINDS)
        found += [Offered(f"kind:{kind.name}", f"{kind.title} cells", count) for kind, count in counts]
    marked = collections.read(run).values()
    starred = sum(marks.starred for marks in marked)
    found += [
        Offered(f"collection:{collections.STARRED}", "cells with a star", starred),
        *(Offered(f"collection:{tag}", f"tagged “{tag}”", count) for tag, count in collections.tags(run).items()),
    ]
    found += _leaks_offered(run)
    return [each for each in found if each.cells]


def _kind(run: Run, name: str) -> list[int]:
    kinds.bit(name)
    known = kinds.of(run)
    if known is None:
        raise UsageError(f"The kinds of {run.path}'s cells are not known yet: keyhole analyze {run.path} --only kinds")
    places: list[int] = np.flatnonzero(known.has(name)).tolist()
    if not places:
        counts = {kind: int(known.has(kind).sum()) for kind in kinds.NAMES}
        there = ", ".join(f"{kind} ({count:,})" for kind, count in counts.items() if count)
        raise UsageError(f"{run.path} has no cell of the kind '{name}'. It has: {there or 'none of any kind'}.")
    return places


def _collection(run: Run, name: str) -> list[int]:
    places = collections.places(run, name)
    if not places:
        raise UsageError(
            f"The collection '{name}' of {run.path} is empty: mark cells in the explorer, or choose another."
        )
    return places


def _search(run: Run, asked: str) -> list[int]:
    if query.like(asked) is not None:
        raise UsageError(
            f"'{asked:.60}' asks for neighbours, of which every cell has some: name the cells that you mean instead, as in "
            '{"cells": ["L12.345"]}.'
        )
    found = find.search(run, asked)
    if found.ignored:
        raise UsageError(f"A search has at most {query.MOST_TERMS} terms; this one has {len(found.ignored)} more.")
    places = [key.place for key in found.keys["contains"] if key.share >= SHARE]
    if not places:
        best = max(found.keys["contains"], key=lambda key: key.share, default=None)
        nearest = f" The most is {best.share:.0%}, in {run.cells.address(best.place)}." if best else ""
        raise UsageError(
            f"{asked!r:.60} is in half of the triggers of no cell of {run.path}.{nearest} Search: keyhole search {run.path} {asked!r:.60}"
        )
    return places


def _pattern(run: Run, asked: str) -> list[int]:
    known = patterns.of(run)
    if known is None:
        raise UsageError(f"The patterns of {run.path} are not known yet: keyhole patterns {run.path}")
    pieces = [run.vocabulary.piece(token) for token in range(len(run.vocabulary))]
    terms = [(term, [each.token for each in query.meant(pieces, term) if each.is_it]) for term in query.terms(asked)]
    places = [place for place, _, _ in labels.naming(known, terms)]
    if not places:
        raise UsageError(
            f"No pattern of {run.path} names {asked!r:.60}. Search: keyhole search {run.path} {asked!r:.60}"
        )
    return places


def _leak(run: Run, rank: str) -> list[int]:
    if not rank.isdecimal() or len(rank) > 9:
        raise UsageError(f"A leak is named by its rank, as in leak:1; this is {rank!r:.40}.")
    return leaks.cells_of(run, int(rank))


def _leaks_offered(run: Run) -> list[Offered]:
    """The leaks whose cells are known."""
    known = leaks.of(run)
    if known is None:
        return []
    found = [(rank, leak, known.best(rank)) for rank, leak in enumerate(known.leaks, 1)]
    return [
        Offered(f"leak:{rank}", f"leak {rank}: “{leak.continuation.strip()[:TITLE]}”", best.n90 or 0)
        for rank, leak, best in found
        if best is not None
    ]
