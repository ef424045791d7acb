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
from .prompted import Prompted, score
from .repeats import SEPARATOR, SHORT, Corpus

CONTROLS = 8
ALIKE = 0.5
"""Share of tokens in which a near-duplicate is the same."""
SAME = 0.5
"""Share of the shorter of two continuations that must stand in the other for both to be one leak."""
COMPARED = 4096
"""Leaks, at most, that are compared and listed: those that are likeliest per token."""


@dataclass(frozen=True)
class Weighed:
    """A leak with what it is compared with. Log-probabilities are in nats."""

    begin: int
    text: Prompted
    log_prob: float
    control_log_prob: float | None
    near_log_prob: float | None
    repeats: int
    near: int
    copies: int = 1
    """leaks that are mostly the same text, itself included: only this one is listed"""

    @property
    def surprise(self) -> float:
        """0 if there is nothing to compare with."""
        known = [each for each in (self.control_log_prob, self.near_log_prob) if each is not None]
        return self.log_prob - max(known, default=self.log_prob)


def cluster(places: Sequence[Place]) -> list[tuple[Place, int]]:
    """Leaks of which most of the shorter stands in the longer are one: the longest, and how many there are. A common end, such as a
    signature, does not make two leaks one."""
    order = sorted(range(len(places)), key=lambda number: -len(places[number].text.continuation))
    groups: list[tuple[Place, int]] = []
    holding: dict[tuple[int, ...], list[int]] = {}
    for number in order:
        ids = places[number].text.continuation
        grams = [ids[at : at + SHORT] for at in range(len(ids) - SHORT + 1)]
        shared: dict[int, int] = {}
        for gram in grams:
            for group in holding.get(gram, ()):
                shared[group] = shared.get(group, 0) + 1
        best = max(shared, key=lambda group: shared[group], default=None)
        if best is not None and shared[best] >= SAME * len(grams):
            groups[best] = (groups[best][0], groups[best][1] + 1)
            continue
        for gram in set(grams):
            holding.setdefault(gram, []).append(len(groups))
        groups.append((places[number], 1))
    return sorted(groups, key=lambda group: group[0].begin)


def weigh(model: Model, text: Corpus, places: Sequence[tuple[Place, int]], seed: int = 0) -> list[Weighed]:
    """The leaks with their controls, the most surprising first."""
    places = sorted(places, key=lambda each: -each[0].log_prob / len(each[0].text.continuation))[:COMPARED]
    random = np.random.default_rng(seed)
    counted, asked = [], list[Prompted]()
    for place, copies in places:
        prompted = place.text
        near = text.alike([*prompted.prefix, *prompted.continuation], ALIKE)
        others = random_prefixes(text, len(prompted.prefix), random)
        prefixes = _near_prefixes(text, near, prompted)
        asked += [Prompted(prefix, prompted.continuation) for prefix in (*others, *prefixes)]
        repeats = len(text.places(prompted.continuation))
        counted.append((place, copies, repeats, len(near), len(others), len(prefixes)))
    scored = [float(each.log_p.sum()) for each in score(model, asked)]
    found, at = [], 0
    for place, copies, repeats, close, other_count, near_count in counted:
        controls = scored[at : at + other_count]
        nears = scored[at + other_count : at + other_count + near_count]
        at += other_count + near_count
        control = float(np.median(controls)) if controls else None
        near_log_prob = max(nears) if nears else None
        found.append(Weighed(place.begin, place.text, place.log_prob, control, near_log_prob, repeats, close, copies))
    return sorted(found, key=lambda leak: (-leak.surprise, leak.begin))


def _near_prefixes(text: Corpus, near: np.ndarray, prompted: Prompted) -> list[tuple[int, ...]]:
    """Different prefixes of near-duplicates, those that stand most often first. Prefixes that end as the leak's own are left out: the
    same tokens right before the continuation are the leak again."""
    size = len(prompted.prefix)
    ends = prompted.prefix[-min(4, size) :]
    counts: dict[tuple[int, ...], int] = {}
    for place in near.tolist():
        prefix = tuple(text.ids(place, place + size))
        if SEPARATOR not in prefix and prefix[-len(ends) :] != ends:
            counts[prefix] = counts.get(prefix, 0) + 1
    return sorted(counts, key=lambda prefix: -counts[prefix])[:CONTROLS]


def random_prefixes(
    text: Corpus, size: int, random: np.random.Generator, most: int = CONTROLS
) -> list[tuple[int, ...]]:
    """Prefixes of random places of the text, each within a document."""
    found: list[tuple[int, ...]] = []
    for place in random.integers(0, max(1, len(text.flat) - size), 8 * most).tolist():
        prefix = tuple(text.ids(place, place + size))
        if SEPARATOR not in prefix and len(prefix) == size and len(found) < most:
            found.append(prefix)
    return found
