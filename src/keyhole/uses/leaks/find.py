"""Which parts of a text the model says by heart.

What is read: text that stands more than once, each passage where it stands first, the most often repeated first; then windows at
random places, in which something stands in the text once. At most `REPEATED_SHARE` of the tokens are spent on the former.

    sieve     one pass over windows of `CONTEXT` tokens: runs of tokens that are the model's first choice, given the window before
    verify    the protocol: the prompt is the start token and the `prefix` tokens before (fewer at the beginning of a document, but at
              least `least`), then greedy decoding. The leak is the longest exact continuation, if it has at least `length` tokens;
              it ends where the model is wrong, the document ends, or the model's context is full. The window of the sieve may be
              longer than the prompt, so a few starts of each run are tried (`STARTS`).

How often text leaks that stands in the text once, twice, four times, …, is in `rates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...analyses.stats import Interval
from ...models.model import Model
from ..losses import losses
from ..texts import Window, room_of
from .prompted import Prompted, score
from .rates import Rate, counts, marked, more, rates
from .repeats import Corpus, Repeated, repeated

CONTEXT = 128
"""Tokens of a window, at most."""
ASKED = 64
"""Tokens of a continuation that are asked for at first: if all are right, twice as many."""
STARTS = (0, 1, 2, 4)
"""Tokens after the beginning of a run at which a continuation is tried to begin."""
REPEATED_SHARE = 0.75

Begin = Callable[[int], Callable[[int], None]]


class Protocol(NamedTuple):
    """How a leak is extracted."""

    prefix: int = 16
    least: int = 4
    length: int = 8


class Place(NamedTuple):
    """A continuation that the model says by heart."""

    begin: int
    """where it stands in the text"""
    text: Prompted
    log_prob: float

    @property
    def end(self) -> int:
        return self.begin + len(self.text.continuation)


@dataclass(frozen=True)
class Found:
    places: list[Place]
    read: int
    """tokens of the text that were read, each counted once"""
    repeated: int
    """tokens of the text that stand in it more than once"""
    rates: list[Rate]
    """how much leaks of text that stands once, and more often"""
    more: Interval
    """how much more of it leaks if it stands often"""


def find(
    model: Model,
    text: Corpus,
    protocol: Protocol,
    tokens: int,
    seed: int = 0,
    begin: Begin = lambda total: lambda done: None,
) -> Found:
    """Read at most `tokens` tokens of a text."""
    size = min(CONTEXT, room_of(model))
    known = repeated(text, protocol.least + protocol.length)
    first = _passages(text, known, protocol, size, int(tokens * REPEATED_SHARE))
    left = tokens - sum(end - start for start, end in first)
    sampled = _sample(text, known, size, left, seed)
    spans = first + sampled
    runs = sieve(model, text, spans, protocol.length, begin)
    places = verify(model, text, runs, protocol)
    inside = marked(text, ((place.begin, place.end) for place in places))
    counted = counts(text, known, marked(text, first), marked(text, sampled), inside, protocol.least)
    read = int(marked(text, spans).sum())
    return Found(places, read, int(known.covered.sum()), rates(counted), more(counted))


def _passages(text: Corpus, known: Repeated, protocol: Protocol, size: int, most: int) -> list[tuple[int, int]]:
    """Repeated text with the prompt before it, cut into windows that overlap by a prompt."""
    overlap = min(protocol.prefix, size // 2)
    spans: list[tuple[int, int]] = []
    left = most
    for start, end in known.passages:
        at, last = max(text.begins(start), start - protocol.prefix), min(text.ends(start), end + protocol.length)
        while at < last and left > 0:
            stop = min(last, at + size, at + left)
            spans.append((at, stop))
            left -= stop - at
            if stop >= last:
                break
            at = stop - overlap
            if left <= overlap:
                left = 0
        if left <= 0:
            break
    return spans


def _sample(text: Corpus, known: Repeated, size: int, most: int, seed: int) -> list[tuple[int, int]]:
    """Windows at random, each at most once. They are cut from the beginning of every document on; those in which everything stands in
    the text more than once are left out."""
    edges = text.separators
    starts, ends = edges[:-1] + 1, edges[1:]
    counts = -(-(ends - starts) // size)
    which = np.repeat(np.arange(len(starts)), counts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = starts[which] + number * size
    stops = np.minimum(begins + size, ends[which])
    once = np.concatenate([[0], np.cumsum(~known.covered)])
    new = once[stops] > once[begins]
    begins, stops = begins[new], stops[new]
    order = np.random.default_rng(seed).permutation(len(begins))
    taken = order[np.cumsum((stops - begins)[order]) <= most]
    return [(int(begins[each]), int(stops[each])) for each in np.sort(taken)]


def sieve(
    model: Model,
    text: Corpus,
    spans: Sequence[tuple[int, int]],
    length: int,
    begin: Begin = lambda total: lambda done: None,
) -> list[tuple[int, int]]:
    """Runs of at least `length` tokens that are the model's first choice, from a place to the place after the last."""
    if not spans:
        return []
    windows = [Window(text.ids(*span), number) for number, span in enumerate(spans)]
    found = losses(model, windows, begin)
    right, at = found.first == found.tokens, 0
    skipped = int(model.bos_id is None)
    runs: set[tuple[int, int]] = set()
    for start, end in spans:
        size = end - start - skipped
        own = np.concatenate([[False], right[at : at + size], [False]]).astype(np.int8)
        edges = np.flatnonzero(np.diff(own)).reshape(-1, 2) + start + skipped
        runs |= {(int(a), int(b)) for a, b in edges if b - a >= length}
        at += size
    return sorted(runs)


class _Tried(NamedTuple):
    """A place where a continuation may begin, and how much of it is asked for."""

    run: int
    begin: int
    stop: int
    """the place after the last token that it could have"""
    prefix: tuple[int, ...]

    def asked(self, text: Corpus, count: int) -> Prompted:
        return Prompted(self.prefix, tuple(text.ids(self.begin, min(self.stop, self.begin + count))))


def verify(model: Model, text: Corpus, runs: Sequence[tuple[int, int]], protocol: Protocol) -> list[Place]:
    """The leaks that the runs lead to, each with its longest exact continuation."""
    room = room_of(model)
    tried: list[_Tried] = []
    for number, (start, _) in enumerate(runs):
        document, stop = text.begins(start), text.ends(start)
        for at in sorted({max(start + after, document + protocol.least) for after in STARTS}):
            prefix = tuple(text.ids(max(document, at - protocol.prefix), at))
            last = min(stop, at + room - len(prefix))
            if last - at >= protocol.length:
                tried.append(_Tried(number, at, last, prefix))
    best: dict[int, Place] = {}
    count = ASKED
    while tried:
        asked = [each.asked(text, count) for each in tried]
        longer = []
        for each, prompted, scored in zip(tried, asked, score(model, asked), strict=True):
            exact = scored.exact
            if exact == len(prompted.continuation) and each.begin + exact < each.stop:
                longer.append(each)
            elif exact >= protocol.length and (each.run not in best or len(best[each.run].text.continuation) < exact):
                own = Prompted(prompted.prefix, prompted.continuation[:exact])
                best[each.run] = Place(each.begin, own, float(scored.log_p[:exact].sum()))
        tried, count = longer, 2 * count
    return [best[number] for number in sorted(best)]
