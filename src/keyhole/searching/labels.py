"""What names a cell: its kinds, its patterns, and the tags, notes and annotations of people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..store import annotations as annotated
from ..store import collections, kinds
from ..store.patterns import Patterns
from ..store.run import Run
from .query import Term
from .words import words


class Named(NamedTuple):
    """A pattern that names a term: where it is, its side, its number there."""

    place: int
    side: int
    number: int


class Ranked(NamedTuple):
    """All patterns of a run, the best first; arrays of one length."""

    places: npt.NDArray[np.int64]
    sides: npt.NDArray[np.int8]
    numbers: npt.NDArray[np.int64]


def ranked(patterns: Patterns) -> Ranked:
    """All patterns, by AUPRC × the share of triggers that carry them. Among equals, those that more triggers carry come first:
    patterns that were not scored come last, by that share."""
    rows = [
        (place, key.side, number, pattern.auprc or 0.0, len(pattern.triggers) / max(key.read, 1))
        for place, key in patterns
        for number, pattern in enumerate(key.patterns)
    ]
    places, sides, numbers, auprc, covered = np.array(rows, np.float64).reshape(-1, 5).T
    order = np.lexsort((-covered, -auprc * covered))  # stable: then by place
    return Ranked(places[order].astype(np.int64), sides[order].astype(np.int8), numbers[order].astype(np.int64))


def tokens(rule: dict[str, Any]) -> Iterator[int]:
    """The token ids that a rule's conditions name: whatever they list under "ids"."""
    for condition in rule.get("all", ()):
        yield from condition.get("ids", ())


def naming(patterns: Patterns, terms: Sequence[tuple[Term, Sequence[int]]]) -> list[Named]:
    """The patterns whose description contains all words of a term, or whose rule names one of its tokens: the best of each cell."""
    asked = [(set(words(term.text)), set(ids)) for term, ids in terms]
    found: dict[int, Named] = {}
    for place, side, number in zip(*(column.tolist() for column in ranked(patterns)), strict=True):
        key = patterns.key(place, side)
        if place in found or key is None:
            continue
        pattern = key.patterns[number]
        said, ids = set(words(pattern.description)), set(tokens(pattern.rule))
        if any((wanted and wanted <= said) or ids & own for wanted, own in asked):
            found[place] = Named(place, side, number)
    return list(found.values())


def kinds_named(run: Run, terms: Iterable[Term]) -> dict[str, int]:
    """The kinds of cells whose name contains a term, each with its number of cells."""
    known = kinds.of(run)
    if known is None:
        return {}
    has = _has(terms)
    return {
        kind.name: int(((known.labels >> bit) & 1).sum())
        for bit, kind in enumerate(kinds.KINDS)
        if has(kind.title) or has(kind.name)
    }


def people(run: Run, terms: Iterable[Term]) -> dict[int, list[str]]:
    """What people say that contains a term, by place: tags, notes, descriptions of patterns."""
    has = _has(terms)
    found: dict[int, list[str]] = {}
    for place, marks in collections.read(run).items():
        found.setdefault(place, []).extend(text for text in (*marks.tags, marks.note) if has(text))
    for each in annotated.read_annotations(run):
        if not each.skipped:
            place = run.cells.place(each.layer, each.cell)
            found.setdefault(place, []).extend(p.description for p in each.patterns if has(p.description))
    return {place: texts for place, texts in found.items() if texts}


def _has(terms: Iterable[Term]) -> Any:
    wanted = [low for term in terms if (low := term.text.strip().lower())]
    return lambda text: any(low in text.lower() for low in wanted)
