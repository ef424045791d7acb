"""Copies, near-duplicates, and what a prefix makes unusually likely.

repeats            places of the text where exactly the continuation stands
near               places where at least half of the tokens of prefix and continuation stand in the same order, but not all: text of the same form
control_log_prob   median of the continuation's log-probability after `CONTROLS` prefixes of other places of the text, equally long
near_log_prob      the largest log-probability of the continuation after the prefix of a near-duplicate that differs from the leak's own
                   (at most `CONTROLS` of them)
surprise           log_prob − the larger of control_log_prob and near_log_prob, in nats: what only this prefix makes likely. Leaks are
                   ranked by it, so that text that is merely predictable is below text that was learned by heart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...models.model import Model
from .find import Place
from .repeats import SEPARATOR, Corpus
from .said import Said, hear

CONTROLS = 8
ALIKE = 0.5
"""Share of tokens in which a near-duplicate is the same."""
COMPARED = 4096
"""Leaks, at most, whose surprise is measured: the longest ones."""


@dataclass(frozen=True)
class Weighed:
    """A leak with what it is compared with. Log-probabilities are in nats."""

    begin: int
    said: Said
    log_prob: float
    control_log_prob: float
    near_log_prob: float | None
    repeats: int
    near: int
    copies: int = 1
    """leaks that share `length` tokens of the continuation with it, itself included: only this one is listed"""

    @property
    def surprise(self) -> float:
        known = [self.control_log_prob, *([] if self.near_log_prob is None else [self.near_log_prob])]
        return self.log_prob - max(known)


def cluster(places: Sequence[Place], length: int) -> list[tuple[Place, int]]:
    """Leaks whose continuations share `length` tokens in a row are one: its longest, and how many there are."""
    parent = list(range(len(places)))

    def root(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    seen: dict[tuple[int, ...], int] = {}
    for number, place in enumerate(places):
        ids = place.said.continuation
        for at in range(len(ids) - length + 1):
            other = seen.setdefault(ids[at : at + length], number)
            parent[root(number)] = root(other)
    groups: dict[int, list[Place]] = {}
    for number, place in enumerate(places):
        groups.setdefault(root(number), []).append(place)
    return [
        (max(group, key=lambda place: (len(place.said.continuation), place.log_prob)), len(group))
        for group in groups.values()
    ]


def weigh(model: Model, text: Corpus, places: Sequence[tuple[Place, int]], seed: int = 0) -> list[Weighed]:
    """The leaks with their controls, the most surprising first."""
    places = sorted(places, key=lambda each: -len(each[0].said.continuation))[:COMPARED]
    random = np.random.default_rng(seed)
    counted, asked = [], list[Said]()
    for place, copies in places:
        said = place.said
        whole = [*said.prefix, *said.continuation]
        near = text.alike(whole, ALIKE)
        prefixes = _near_prefixes(text, near, said)
        dealt = _prefixes(text, len(said.prefix), random)
        asked += [Said(prefix, said.continuation) for prefix in (*dealt, *prefixes)]
        counted.append((place, copies, len(text.places(said.continuation)), len(near), len(dealt), len(prefixes)))
    heard = [float(each.log_p.sum()) for each in hear(model, asked)]
    found, at = [], 0
    for place, copies, repeats, close, dealt_count, near_count in counted:
        controls = heard[at : at + dealt_count]
        nears = heard[at + dealt_count : at + dealt_count + near_count]
        at += dealt_count + near_count
        # without any other prefix, the continuation is compared with itself: no surprise
        control = float(np.median(controls)) if controls else place.log_prob
        near_log_prob = max(nears) if nears else None
        found.append(Weighed(place.begin, place.said, place.log_prob, control, near_log_prob, repeats, close, copies))
    return sorted(found, key=lambda leak: (-leak.surprise, leak.begin))


def _near_prefixes(text: Corpus, near: np.ndarray, said: Said) -> list[tuple[int, ...]]:
    """Different prefixes of near-duplicates, those that stand most often first. Prefixes that end as the leak's own are left out: the
    same tokens right before the continuation are the leak again."""
    size = len(said.prefix)
    ends = said.prefix[-min(4, size) :]
    counts: dict[tuple[int, ...], int] = {}
    for place in near.tolist():
        prefix = tuple(text.ids(place, place + size))
        if SEPARATOR not in prefix and prefix[-len(ends) :] != ends:
            counts[prefix] = counts.get(prefix, 0) + 1
    return sorted(counts, key=lambda prefix: -counts[prefix])[:CONTROLS]


def _prefixes(text: Corpus, size: int, random: np.random.Generator) -> list[tuple[int, ...]]:
    """Prefixes of random places of the text."""
    found: list[tuple[int, ...]] = []
    for place in random.integers(0, max(1, len(text.flat) - size), 8 * CONTROLS).tolist():
        prefix = tuple(text.ids(place, place + size))
        if SEPARATOR not in prefix and len(prefix) == size and len(found) < CONTROLS:
            found.append(prefix)
    return found
