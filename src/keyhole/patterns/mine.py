"""Find a key's patterns: a short decision list of rules that describes where the key fires in the scanned text.

Everything is measured in bits. Saying at which of n positions the key fires costs less if a rule separates them into positions
where it fires often and the rest, and a rule costs its own description (`bits.py`). Rules are grown greedily: the condition that
saves most bits on the positions that no earlier rule matches, then a further condition as long as that saves more. A condition
is compared on every position that the rule matches so far, so the near misses (same last token, low coefficient) decide it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import rules
from .bits import best_set, saved, saved_once, set_bits
from .evidence import rounded
from .lexicon import AFFIXES, FORMS
from .rules import Bools, Condition
from .text import Ints, Text

PATTERNS, CONDITIONS = 8, 4
"""Upper bounds: patterns of a key, conditions of a pattern."""
LEAST_BITS = 10.0
"""A pattern saves at least this many bits."""
LEAST_HITS = 3
"""The fewest firing positions of a pattern."""
BACK = 7
"""How far back a condition names a single token."""
WITHIN = (4, 8)
"""How far back a skip-gram reaches."""
PREFIX = 32
"""How far back words of the prefix are counted."""
SAMPLE = 4096
"""Misses, at most, on which conditions are compared; a random part of them stands for the others."""
WORDS = 8
"""Words of a skip-gram, or of which one is anywhere in the prefix, at most."""
ABSENT = 4
"""Words of which none is there, at most."""
MARGIN, WORTH = 4.0, 0.05
"""A further condition saves at least this many bits more than it costs, and this share of the bits so far: in much text even what
hardly matters saves some."""
TOPIC = 24
"""Words of a topic, at most."""
TOPICS = (6, 12, 24)
"""Sizes of topics that are tried, the words that save most first."""
AFFIX_LENGTHS, MOST_AFFIXES = (2, 3, 4), 6
"""Letters of the suffixes and prefixes that are tried, and how many of each, the most frequent."""
LEAST_NEAR = 0.1
"""The least cosine with a centroid that can be called near."""
DECIDED = 0.4
"""If a condition on the last token saves this share of the bits that a perfect one would, meaning is not looked at."""
KIND_BITS, BACK_BITS, FORM_BITS, POSITION_BITS, LETTER_BITS, VECTOR_BITS = 3.0, 3.0, 4.0, 6.0, 5.0, 100.0
"""What the parts of a condition cost."""


class Rule(NamedTuple):
    """A rule that was found."""

    conditions: tuple[Condition, ...]
    positions: Ints
    """that it matches and no earlier rule does"""
    hits: Bools
    """[positions] whether the key fires there"""
    bits: float


@dataclass
class Residual:
    """A text, where a key fires in it, and what earlier rules have left of both."""

    text: Text
    is_hit: Bools
    taken: Bools
    share: float
    """of all positions, those at which the key fires"""
    random: np.random.Generator
    weights: npt.NDArray[np.float64]
    """[back] bits added to a condition on the token so far back: what the key does not need costs more"""

    @property
    def hits(self) -> Ints:
        return np.flatnonzero(self.is_hit & ~self.taken)

    def free(self, positions: Ints) -> Ints:
        return positions[~self.taken[positions]]

    @property
    def token_bits(self) -> float:
        return float(np.log2(max(2, len(self.text.lexicon))))

    def saved(self, hits: Any, matches: Any) -> Any:
        return saved(hits, matches, self.share)

    def saved_once(self, hits: float, matches: float) -> float:
        return saved_once(float(hits), float(matches), self.share)

    def back_bits(self, back: int) -> float:
        return KIND_BITS + BACK_BITS + float(self.weights[back] if back < len(self.weights) else 0.0)


def mine(
    text: Text,
    fired: Ints,
    *,
    seed: int = 0,
    penalties: Sequence[float] = (),
    most: int = PATTERNS,
) -> list[Rule]:
    """The decision list of a key that fires at `fired` (positions of `text`, ascending)."""
    is_hit = np.zeros(len(text), bool)
    is_hit[fired] = True
    left = Residual(
        text,
        is_hit,
        np.zeros(len(text), bool),
        max(1, len(fired)) / max(1, len(text)),
        np.random.default_rng(seed),
        np.asarray(penalties, np.float64),
    )
    found: list[Rule] = []
    while len(found) < most and (rule := next_rule(left)) is not None:
        found.append(rule)
        left.taken[rule.positions] = True
    return found


def next_rule(left: Residual) -> Rule | None:
    """The rule that saves most bits on what is left; None if none saves enough."""
    hits = left.hits
    if len(hits) < LEAST_HITS:
        return None
    options = list(_by_form(left, hits))
    best = max((bits for _, bits in options), default=0.0)
    if best < DECIDED * left.saved_once(len(hits), len(hits)):
        options += _by_meaning(left, hits, best)
    if not options:
        return None
    rule = _grown(left, *max(options, key=lambda each: each[1]))
    if rule.bits < LEAST_BITS or rule.hits.sum() < LEAST_HITS:
        return None
    return rule


def _grown(left: Residual, first: Condition, cost_less: float) -> Rule:
    """Add conditions to the first as long as each saves bits. `cost_less`: bits saved by the first, its own paid."""
    text, conditions = left.text, [first]
    positions = left.free(rules.where({"all": conditions}, text))
    paid = left.saved_once(left.is_hit[positions].sum(), len(positions)) - cost_less
    best = cost_less
    while len(conditions) < CONDITIONS:
        hits = left.is_hit[positions]
        if hits.all():
            break
        looked, weight = _compared(left, positions, hits)
        mine = left.is_hit[looked]
        options: list[tuple[float, int, Condition, float]] = []
        for condition, cost in _further(left, conditions, looked[mine], looked[~mine], weight):
            inside = rules.holds(condition, text, looked)
            h = int((inside & mine).sum())
            options.append(
                (left.saved_once(h, h + weight * (inside & ~mine).sum()) - cost, len(options), condition, cost)
            )
        if not options:
            break
        _, _, condition, cost = max(options, key=lambda each: (each[0], -each[1]))
        inside = rules.holds(condition, text, positions)
        bits = left.saved_once(hits[inside].sum(), inside.sum()) - paid - cost
        if bits < best + max(MARGIN, WORTH * best) or hits[inside].sum() < LEAST_HITS:
            break
        conditions, positions, best, paid = [*conditions, condition], positions[inside], bits, paid + cost
    return Rule(tuple(conditions), positions, left.is_hit[positions], best)


def _compared(left: Residual, positions: Ints, hits: Bools) -> tuple[Ints, float]:
    """The positions on which conditions are compared, all hits and some misses, and for how many misses each of these stands."""
    misses = positions[~hits]
    if len(misses) <= SAMPLE:
        return positions, 1.0
    some = left.random.choice(misses, SAMPLE, replace=False)
    return np.sort(np.concatenate([positions[hits], some])), len(misses) / SAMPLE


# The first condition of a rule, which is looked for in the whole text


def _by_form(left: Residual, hits: Ints) -> Iterator[tuple[Condition, float]]:
    """Conditions on the last tokens, their form and their place, with the bits that each saves."""
    text, taken = left.text, np.flatnonzero(left.taken)
    size = len(text.lexicon)
    for back in range(3):
        there = text.token(hits, back)
        h = np.bincount(there[there >= 0], minlength=size)
        gone = text.token(taken, back)
        n = counts_at(text, back) - np.bincount(gone[gone >= 0], minlength=size)
        tokens = np.flatnonzero(h)
        chosen, bits = best_set(h[tokens], n[tokens], left.share, left.token_bits)
        if len(chosen):
            yield (
                {"if": "token", "back": back, "ids": by_hits(tokens[chosen], h)},
                bits - left.back_bits(back),
            )
        if back < 2:
            for form, table, cost in _forms(left, h, tokens):
                bits = left.saved_once(h[table].sum(), n[table].sum())
                yield {"if": "form", "back": back, **form}, bits - cost - left.back_bits(back)
    free = counts_by_place(text) - np.bincount(text.places[taken], minlength=len(counts_by_place(text)))
    at_hits = np.bincount(text.places[hits], minlength=len(free))
    for condition, cost in _places(left, hits):
        inside = slice(condition["from"], None if condition["to"] is None else condition["to"] + 1)
        yield condition, left.saved_once(at_hits[inside].sum(), free[inside].sum()) - cost


def _by_meaning(left: Residual, hits: Ints, best: float) -> Iterator[tuple[Condition, float]]:
    """Conditions on meaning, with the bits that each saves; a topic only if it may save more than `best`."""
    text, size = left.text, len(left.text.lexicon)
    if text.lexicon.has_vectors:
        h = np.bincount(text.tokens[hits], minlength=size)
        n = text.counts - np.bincount(text.tokens[left.taken], minlength=size)
        yield from _near_token(left, h, n)
    yield from _topic_first(left, hits, best)


def by_hits(tokens: Ints, h: npt.NDArray[Any]) -> list[int]:
    """Tokens, those with most hits first."""
    found: list[int] = tokens[np.lexsort((tokens, -h[tokens]))].tolist()
    return found


def counts_at(text: Text, back: int) -> Ints:
    """[tokens] how often each token stands so far back from a position."""
    known = text.cache.get(("counts", back))
    if known is None:
        there = text.token(np.arange(len(text)), back)
        known = text.cache[("counts", back)] = np.bincount(there[there >= 0], minlength=len(text.lexicon))
    found: Ints = known
    return found


def counts_by_place(text: Text) -> Ints:
    """[places] the number of positions per number of tokens before them."""
    known = text.cache.get("places")
    if known is None:
        known = text.cache["places"] = np.bincount(text.places, minlength=1)
    found: Ints = known
    return found


def _forms(left: Residual, h: Ints, tokens: Ints) -> Iterator[tuple[dict[str, str], Bools, float]]:
    """Forms that the hits' tokens have: the form, a table over tokens, its cost. `h`: hits per token."""
    lexicon, total = left.text.lexicon, int(h.sum())
    for form in FORMS:
        table = lexicon.form(form)[:-1]
        if h[tokens][table[tokens]].sum() >= max(LEAST_HITS, total // 4):
            yield {"form": form}, table, FORM_BITS
    for form in AFFIXES:
        common: list[tuple[int, str]] = []
        for length in AFFIX_LENGTHS:
            affixes = lexicon.affixes(form, length)
            of = affixes.of[tokens]
            counts = np.bincount(of[of >= 0], h[tokens][of >= 0])
            often = np.flatnonzero(counts >= max(LEAST_HITS, total // 8))
            common += [(-int(counts[number]), affixes.texts[number]) for number in often.tolist()]
        for _, text in sorted(common)[:MOST_AFFIXES]:
            yield {"form": form, "text": text}, lexicon.form(form, text)[:-1], 2 + LETTER_BITS * len(text)


def _near_token(left: Residual, h: Ints, n: Ints) -> Iterator[tuple[Condition, float]]:
    """The last token is near the mean of the hits' last tokens."""
    vectors = left.text.lexicon.vectors
    mean = (h[: len(vectors)] @ vectors) / max(1, h.sum()) - _mean_vector(left.text)
    centroid = rounded(mean / max(float(np.linalg.norm(mean)), 1e-12))
    near = vectors @ centroid
    order = np.argsort(-near, kind="stable")
    order = order[n[order] > 0]
    bits = left.saved(np.cumsum(h[order]), np.cumsum(n[order]))
    if len(bits):
        at = int(np.argmax(bits))
        least = float(np.floor(near[order[at]] * 1000) / 1000)
        inside = near >= least
        total = left.saved_once(h[: len(near)][inside].sum(), n[: len(near)][inside].sum())
        cost = left.back_bits(0) + VECTOR_BITS
        yield {"if": "near", "back": 0, "centroid": _listed(centroid), "least": least}, total - cost


def _listed(vector: npt.NDArray[np.float32]) -> list[float]:
    return [round(float(each), 3) for each in vector]


def _mean_vector(text: Text) -> npt.NDArray[np.float32]:
    known = text.cache.get("mean vector")
    if known is None:
        vectors = text.lexicon.vectors
        mean = (text.counts[: len(vectors)] @ vectors) / max(1, len(text))
        known = text.cache["mean vector"] = mean.astype(np.float32)
    found: npt.NDArray[np.float32] = known
    return found


def _places(left: Residual, positions: Ints) -> Iterator[tuple[Condition, float]]:
    """Ranges of positions in which nearly all of these positions are."""
    places = np.sort(left.text.places[positions])
    for part in (0.0, 0.05):
        skipped = int(part * len(places))
        begin, to = int(places[skipped]), int(places[-1 - skipped])
        if begin > 0:
            yield {"if": "position", "from": begin, "to": None}, KIND_BITS + POSITION_BITS
        yield {"if": "position", "from": 0, "to": to}, KIND_BITS + POSITION_BITS


def _topic_first(left: Residual, hits: Ints, best: float) -> Iterator[tuple[Condition, float]]:
    """Topic words that are over-represented in the prefixes of the hits, whatever the last token is."""
    text = left.text
    some = hits if len(hits) <= SAMPLE // 4 else np.sort(left.random.choice(hits, SAMPLE // 4, replace=False))
    h, n = _prefix_words(text, some), _background_words(left)
    scale = len(some) / max(1, len(hits))
    words = _topic(left, h / scale, n)
    if not words:
        return
    around = left.free(_sample(text))
    each = len(text) / max(1, len(_sample(text)))
    options = []
    for size in TOPICS:
        if len(words) < size and size > TOPICS[0]:
            break
        ids = words[:size]
        there, elsewhere = (text.before(ids, positions, nearest=0) for positions in (hits, around))
        cost = KIND_BITS + 2 + set_bits(len(ids), left.token_bits)
        for least in (1, 2, 3, 4):
            inside = int((there >= least).sum())
            bits = left.saved_once(inside, max(inside, each * (elsewhere >= least).sum())) - cost
            options.append((bits, {"if": "topic", "ids": ids, "least": least}, cost))
    bits, topic, cost = max(options, key=lambda option: option[0])
    if bits > best:
        matched = left.free(rules.where({"all": [topic]}, text))
        yield topic, left.saved_once(left.is_hit[matched].sum(), len(matched)) - cost


def _sample(text: Text) -> Ints:
    """Random positions of a text, the same ones each time, that stand for all."""
    known = text.cache.get("sample")
    if known is None:
        size = min(len(text), 4 * SAMPLE)
        known = text.cache["sample"] = np.sort(np.random.default_rng(0).choice(len(text), size, replace=False))
    found: Ints = known
    return found


def _prefix_words(text: Text, positions: Ints) -> Ints:
    """[tokens] in how many of these prefixes each token occurs, the last one included."""
    return np.bincount(_distinct(text, positions, 0, PREFIX)[1], minlength=len(text.lexicon))


def _background_words(left: Residual) -> npt.NDArray[np.float64]:
    """[tokens] in how many prefixes of the whole text each token occurs, from a random sample of them."""
    text = left.text
    known = text.cache.get("background words")
    if known is None:
        words = _prefix_words(text, _sample(text)).astype(np.float64)
        known = text.cache["background words"] = (words + 0.5) * (len(text) / max(1, len(_sample(text))))
    found: npt.NDArray[np.float64] = known
    return found


def _topic(left: Residual, h: npt.NDArray[Any], n: npt.NDArray[Any]) -> list[int]:
    """Tokens whose presence in the prefix saves most bits each, at most `TOPIC`."""
    tokens = np.flatnonzero(h >= LEAST_HITS)
    if not len(tokens):
        return []
    each = left.saved(h[tokens], np.maximum(n[tokens], h[tokens]))
    each = np.where(h[tokens] / np.maximum(n[tokens], 1e-9) > left.share, each, 0) - left.token_bits
    best = np.argsort(-each, kind="stable")[:TOPIC]
    found: list[int] = tokens[best[each[best] > 0]].tolist()
    return found


def _distinct(text: Text, positions: Ints, nearest: int, farthest: int) -> tuple[Ints, Ints]:
    """Every token that stands from `nearest` to `farthest` tokens back, once per position: (row, token) pairs."""
    farthest = min(farthest, int(text.places[positions].max(initial=0)))
    if farthest < nearest:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    window = np.stack([text.token(positions, back) for back in range(nearest, farthest + 1)], 1)
    window.sort(axis=1)
    kept = np.ones(window.shape, bool)
    kept[:, 1:] = window[:, 1:] != window[:, :-1]
    rows, columns = np.nonzero(kept & (window >= 0))
    return rows, window[rows, columns].astype(np.int64)


# Further conditions, which are compared on the positions that the rule matches so far


def _further(
    left: Residual, conditions: list[Condition], yes: Ints, no: Ints, weight: float
) -> Iterator[tuple[Condition, float]]:
    """Conditions that may separate the hits `yes` from the misses `no`, each of which stands for `weight`, and their costs."""
    text, size = left.text, len(left.text.lexicon)
    used = {each["back"] for each in conditions if each["if"] == "token"}
    for back in range(BACK):
        there, others = text.token(yes, back), text.token(no, back)
        h = np.bincount(there[there >= 0], minlength=size)
        n = h + weight * np.bincount(others[others >= 0], minlength=size)
        tokens = np.flatnonzero(h)
        if back not in used:
            chosen, _ = best_set(h[tokens], n[tokens], left.share, left.token_bits)
            if len(chosen):
                ids = by_hits(tokens[chosen], h)
                yield (
                    {"if": "token", "back": back, "ids": ids},
                    left.back_bits(back) + set_bits(len(ids), left.token_bits),
                )
        if back < 3:
            for form, _, cost in _forms(left, h, tokens):
                yield {"if": "form", "back": back, **form}, cost + left.back_bits(back)
    for farthest in WITHIN:
        yield from _word_sets(left, yes, no, weight, "within", farthest)
    yield from _word_sets(left, yes, no, weight, "anywhere", PREFIX)
    yield from _places(left, yes)
    meant = any(each["if"] == "near" and each["back"] is None for each in conditions)
    if text.lexicon.has_vectors and len(yes) >= 8 and not meant:
        yield from _near_prefix(left, yes, no, weight)


def _word_sets(
    left: Residual, yes: Ints, no: Ints, weight: float, kind: str, farthest: int
) -> Iterator[tuple[Condition, float]]:
    """Tokens before the last one that are there with hits, or (`absent`) with misses; topics."""
    text = left.text
    pairs = _Pairs(_distinct(text, yes, 1, farthest), _distinct(text, no, 1, farthest), len(yes), len(no), weight, left)
    where = {"back": 1, "farthest": farthest} if kind == "within" else {}
    cost = left.back_bits(1) if kind == "within" else KIND_BITS
    if ids := pairs.present():
        yield {"if": kind, **where, "ids": ids}, cost + set_bits(len(ids), left.token_bits)
    if kind != "anywhere":
        return
    if ids := pairs.absent():
        yield {"if": "absent", "ids": ids}, cost + set_bits(len(ids), left.token_bits)
    ids = pairs.topic()
    if len(ids) > 1:
        for least in (1, 2, 3):
            yield {"if": "topic", "ids": ids, "least": least}, cost + 2 + set_bits(len(ids), left.token_bits)


class _Pairs:
    """Which tokens are before which hits and misses: (row, token) pairs, each once. Tokens are numbered anew."""

    def __init__(
        self, yes: tuple[Ints, Ints], no: tuple[Ints, Ints], hits: int, misses: int, weight: float, left: Residual
    ) -> None:
        seen = np.zeros(len(left.text.lexicon), bool)
        seen[yes[1]] = True
        seen[no[1]] = True
        self.tokens = np.flatnonzero(seen)
        """[numbers] the token of each number"""
        number = np.cumsum(seen) - 1
        self.yes, self.no = (yes[0], number[yes[1]]), (no[0], number[no[1]])
        self.hits, self.misses, self.weight, self.left = hits, misses, weight, left
        self.h, self.n = self._count(np.ones(hits, bool), np.ones(misses, bool))

    def _count(self, hits: Bools, misses: Bools) -> tuple[Ints, npt.NDArray[np.float64]]:
        """[numbers] hits, and all positions, among some rows before which each token is."""
        h = np.bincount(self.yes[1][hits[self.yes[0]]], minlength=len(self.tokens))
        return h, h + self.weight * np.bincount(self.no[1][misses[self.no[0]]], minlength=len(self.tokens))

    def _rows(self, number: int) -> tuple[Bools, Bools]:
        """The hits and the misses that a token is before."""
        found = np.zeros(self.hits, bool), np.zeros(self.misses, bool)
        for rows, (at, numbers) in zip(found, (self.yes, self.no), strict=True):
            rows[at[numbers == number]] = True
        return found

    def present(self) -> list[int]:
        """Tokens, one of which is there: the best one, then each that saves more than it costs on rows without the others."""
        chosen: list[int] = []
        best, total_h, total_n = 0.0, 0, 0.0
        hits, misses = np.ones(self.hits, bool), np.ones(self.misses, bool)
        while len(chosen) < WORDS and len(self.tokens):
            h, n = (self.h, self.n) if not chosen else self._count(hits, misses)
            bits = self.left.saved(total_h + h, total_n + n)
            bits[h < (LEAST_HITS if not chosen else 1)] = -np.inf
            one = int(np.argmax(bits))
            if not bits[one] > best + self.left.token_bits:
                break
            chosen.append(one)
            best, total_h, total_n = float(bits[one]), total_h + int(h[one]), total_n + float(n[one])
            gone = self._rows(one)
            hits, misses = hits & ~gone[0], misses & ~gone[1]
        return self.tokens[chosen].tolist() if chosen else []

    def absent(self) -> list[int]:
        """Tokens, none of which is there: each one's absence saves more than it costs on the rows that are left."""
        chosen: list[int] = []
        total_h, total_n = self.hits, self.hits + self.weight * self.misses
        hits, misses = np.ones(self.hits, bool), np.ones(self.misses, bool)
        while len(chosen) < ABSENT and len(self.tokens):
            h, n = (self.h, self.n) if not chosen else self._count(hits, misses)
            bits = self.left.saved(total_h - h, total_n - n)
            one = int(np.argmax(bits))
            if bits[one] <= self.left.saved_once(total_h, total_n) + self.left.token_bits + MARGIN:
                break
            chosen.append(one)
            total_h, total_n = total_h - int(h[one]), total_n - float(n[one])
            gone = self._rows(one)
            hits, misses = hits & ~gone[0], misses & ~gone[1]
        return self.tokens[chosen].tolist() if chosen else []

    def topic(self) -> list[int]:
        """Tokens that are with hits more often than with misses, those that save most first, at most `TOPIC`."""
        share = self.hits / max(1.0, self.hits + self.weight * self.misses)
        some = np.flatnonzero((self.h >= LEAST_HITS) & (self.h > share * self.n))
        each = saved(self.h[some], self.n[some], share) - self.left.token_bits
        best = np.argsort(-each, kind="stable")[:TOPIC]
        found: list[int] = self.tokens[some[best[each[best] > 0]]].tolist()
        return found


def _near_prefix(left: Residual, yes: Ints, no: Ints, weight: float) -> Iterator[tuple[Condition, float]]:
    """The mean vector of the prefix is on the hits' side of the misses'."""
    a, b = rules.meaning(left.text, yes), rules.meaning(left.text, no)
    mean = a.mean(0) - (b.mean(0) if len(b) else 0)
    centroid = rounded(mean / max(float(np.linalg.norm(mean)), 1e-12))
    near_a, near_b = np.sort(a @ centroid)[::-1], np.sort(b @ centroid)
    h = np.arange(1, len(near_a) + 1)
    n = h + weight * (len(near_b) - np.searchsorted(near_b, near_a))
    at = int(np.argmax(left.saved(h, n)))
    least = float(np.floor(near_a[at] * 1000) / 1000)
    if least < LEAST_NEAR:
        return
    yield {"if": "near", "back": None, "centroid": _listed(centroid), "least": least}, KIND_BITS + VECTOR_BITS
