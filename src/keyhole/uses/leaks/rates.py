"""How much of a text leaks, by how often it stands there.

times    of a token: in how many places the most frequent of the sequences of `least + length` tokens stands that it lies in
rate     tokens that lie in a leak ÷ tokens that were read, among those that stand `times` to 2·`times` − 1 times. Tokens with fewer
         than `least` tokens before them in their document do not count: they cannot be in a leak. Of text that stands more than once
         only the first place counts, of other text only the windows at random places
more     the rate of what stands `OFTEN` times or more, minus that of what stands once

Intervals are over documents, because tokens of one document are alike: Student's t, and at least as wide as Wilson's if every document
leaked whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...analyses.stats import Interval, clustered_mean, difference, wilson
from .repeats import Corpus, Repeated

OFTEN = 16

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Rate(NamedTuple):
    times: int
    """1, 2, 4, 8, …"""
    tokens: int
    leaked: int
    documents: int
    rate: Interval


class Counts(NamedTuple):
    """Of every token that counts."""

    times: Ints
    leaked: Bools
    documents: Ints


def marked(text: Corpus, spans: Iterable[tuple[int, int]]) -> Bools:
    """[tokens] which lie in one of the spans."""
    found = np.zeros(len(text.flat), bool)
    for begin, end in spans:
        found[begin:end] = True
    return found


def counts(text: Corpus, known: Repeated, first: Bools, sampled: Bools, inside: Bools, least: int) -> Counts:
    """What was read of repeated text (`first`) and at random places (`sampled`), and which of it lies in a leak (`inside`)."""
    own = (first & marked(text, known.passages) & known.covered) | (sampled & ~known.covered)
    places = np.flatnonzero(own)
    documents = text.document(places)
    kept = places - text.separators[documents] - 1 >= least
    return Counts(known.times[places[kept]], inside[places[kept]], documents[kept])


def rates(found: Counts) -> list[Rate]:
    """The rate of what stands once, and of 2 to 3 times, 4 to 7, … as far as any was read."""
    steps = np.frexp(found.times)[1] - 1
    return [_rate(1 << int(step), found, steps == step) for step in np.unique(steps)]


def _rate(times: int, found: Counts, own: Bools) -> Rate:
    leaked, documents = found.leaked[own], found.documents[own]
    return Rate(times, len(leaked), int(leaked.sum()), len(np.unique(documents)), _share(leaked, documents))


def _share(leaked: Bools, documents: Ints) -> Interval:
    value, lo, hi = clustered_mean(leaked, documents)
    assert value is not None
    count = len(np.unique(documents))
    least, most = wilson(count * value, count)
    if lo is None or hi is None or least is None or most is None:
        return Interval(value)
    return Interval(value, max(0.0, min(lo, least)), min(1.0, max(hi, most)))


def more(found: Counts) -> Interval:
    often, once = found.times >= OFTEN, found.times == 1
    if not often.any() or not once.any():
        return Interval(float("nan"))
    upper, lower = (_share(found.leaked[own], found.documents[own]) for own in (often, once))
    return difference(upper, lower)
