"""The patterns of one key, from where it fires to rules with their evidence and threshold. Nothing here needs the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..store.patterns import Key, KeyKind, Kind, Pattern
from . import evidence as strength
from . import rules
from .describe import describe
from .evidence import Effort
from .mine import mine
from .rules import Condition
from .text import Ints, Text

LEVELS, FIRING = (0.005, 0.001, 0.0003), 1
"""Shares of all positions, those with the largest coefficients, and the number of the one at which the key fires. The others grade
the positions: the evidence learns from them too."""
LEVEL_SHARES = (0.3, 1.0, 0.7)
"""How much each level counts while evidence is fitted: most of all, whether the key fires."""
LEAST_FIRES = 10
"""A key that fires at fewer positions is not looked at."""
LEAST_TRIGGERS = 3
"""A pattern recurs in at least this many triggers, as in the paper."""
FOLDS, ENOUGH = 4, 300
"""The threshold is chosen on windows that the evidence was not fitted to: one in the first number is left out, each once. If the key
fires at the second number of positions, one part of them is enough. For all keys of a model only one part is left out too, and the
evidence of the others is kept as it is."""
PLENTY, OF_PLENTY = 4000, 8
"""The same if the key fires at the first number of positions: one window in the second number is left out, and the evidence of the
others is kept. Fitting it again would take as long, and find hardly more."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fires:
    """Where a key fires in a text."""

    positions: Ints
    """ascending: those with the largest coefficients"""
    levels: npt.NDArray[np.int8]
    """[positions] how many of `LEVELS` it is in, at least 1"""

    @property
    def fired(self) -> Ints:
        return self.positions[self.levels > FIRING]

    def within(self, at: Ints) -> Fires:
        """Of a part of the text, which has the positions `at` (ascending)."""
        rows = np.minimum(np.searchsorted(at, self.positions), max(0, len(at) - 1))
        inside = at[rows] == self.positions
        return Fires(rows[inside], self.levels[inside])


class Rule(NamedTuple):
    """A rule as it was mined."""

    conditions: tuple[Condition, ...]
    bits: float
    matches: int
    hits: int


def fires(positions: npt.NDArray[Any], values: npt.NDArray[Any], length: int, least: float = 0.0) -> Fires:
    """From the positions with the largest coefficients of a key, of a text of `length` positions: all above `least`, in any order.
    A level is what is strictly above the coefficient that comes next. If there are not that many, the key is silent elsewhere (then
    `least` is 0), or the pass kept fewer than it should: all of them are in that level."""
    ranked = np.sort(values)[::-1]
    levels = np.zeros(len(values), np.int8)
    for share in LEVELS:
        most = round(length * share)
        levels += values > (ranked[most] if most < len(ranked) else least)
    order = np.argsort(positions, kind="stable")
    order = order[levels[order] > 0]
    return Fires(positions[order].astype(np.int64), levels[order])


def find_rules(text: Text, there: Fires, *, seed: int, penalties: Sequence[float] = ()) -> list[Rule]:
    """The decision list of a key, as conditions."""
    fired = there.fired
    if len(fired) < LEAST_FIRES:
        return []
    found = mine(text, fired, seed=seed, penalties=penalties)
    return [Rule(each.conditions, each.bits, len(each.positions), int(each.hits.sum())) for each in found]


@dataclass(frozen=True)
class Triggers:
    """A key's strongest triggers as a text: each window is a prefix, and the trigger is its last position."""

    text: Text

    def carry(self, conditions: Sequence[Condition]) -> tuple[int, ...]:
        """The numbers of the triggers that a rule matches."""
        ends = self.text.offsets[1:] - 1
        inside = np.isin(ends, rules.where({"all": conditions}, self.text))
        return tuple(np.flatnonzero(inside).tolist())

    def ordered(self, condition: Condition, carried: Sequence[int]) -> Condition:
        """A condition whose tokens come in the order of how many of these triggers have them: the first ones are named."""
        if condition["if"] != "token":
            return condition
        there = self.text.token(self.text.offsets[1:][list(carried)] - 1, condition["back"])
        counts = np.bincount(there[there >= 0], minlength=len(self.text.lexicon))
        return {**condition, "ids": sorted(condition["ids"], key=lambda token: -counts[token])}


def make_key(
    cell: int,
    side: int,
    text: Text,
    there: Fires,
    found: Sequence[tuple[Rule, float]],
    triggers: Triggers,
    *,
    seed: int,
    needs: Sequence[float] = (),
    effort: Effort = strength.FULL,
) -> Key:
    """A key with its patterns. `found`: its rules, each with its q-value; those of fewer than three triggers are left out."""
    share = len(there.fired) / max(1, len(text))
    patterns: list[Pattern] = []
    for rule, q in found:
        carried = triggers.carry(rule.conditions)
        if len(carried) >= LEAST_TRIGGERS:
            conditions = [triggers.ordered(each, carried) for each in rule.conditions]
            patterns.append(
                Pattern(
                    kind=kind_of(conditions),
                    description=describe(conditions, text.lexicon),
                    rule={"all": conditions},
                    triggers=carried,
                    matches=rule.matches,
                    hits=rule.hits,
                    lift=rule.hits / max(1, rule.matches) / max(share, 1e-12),
                    bits=rule.bits,
                    q_value=q,
                )
            )
    evidence, amounts, threshold = _armed(text, there, patterns, seed, effort)
    patterns = [_with_amount(each, amount) for each, amount in zip(patterns, amounts, strict=True)]
    return Key(
        cell=cell,
        side=1 if side > 0 else -1,
        kind=key_kind([each.kind for each in patterns]),
        threshold=threshold,
        patterns=tuple(patterns),
        read=len(triggers.text.offsets) - 1,
        needs=tuple(float(each) for each in needs),
        evidence=evidence,
    )


def _with_amount(pattern: Pattern, amount: float) -> Pattern:
    import msgspec

    return msgspec.structs.replace(pattern, rule={**pattern.rule, "amount": amount})


def kind_of(conditions: Sequence[Condition]) -> Kind:
    """Semantic if a condition is about the topic or the meaning of the prefix: it is only there because it saves bits beyond what
    the last tokens say. Else shallow."""
    return "semantic" if any(map(rules.is_semantic, conditions)) else "shallow"


def key_kind(kinds: Sequence[Kind]) -> KeyKind:
    seen = set(kinds)
    if len(seen) > 1:
        return "both"
    return seen.pop() if seen else "none"


def _armed(
    text: Text, there: Fires, patterns: Sequence[Pattern], seed: int, effort: Effort
) -> tuple[dict[str, Any], list[float], float]:
    """Evidence, the amount of each pattern, and the threshold that is best on windows that the evidence was not fitted to."""
    if not patterns:
        return {}, [], 1.0
    random = np.random.default_rng(seed)
    step = effort.step(len(text), len(there.fired))
    among = _some(text, step, there.positions) if step > 1 else None
    matched = [rules.where(pattern.rule, text, among) for pattern in patterns]
    leaning = _ending_in(text, strength.reach(text, there.positions), among)
    every = np.concatenate([*matched, leaning])
    number = np.repeat([*range(len(patterns)), -1], [len(each) for each in (*matched, leaning)])
    every, first = np.unique(every, return_index=True)
    number = number[first]
    levels = np.zeros(len(every), np.int8)
    at = np.minimum(np.searchsorted(every, there.positions), max(0, len(every) - 1))
    inside = every[at] == there.positions
    levels[at[inside]] = there.levels[inside]

    def fitted(rows: npt.NDArray[np.bool_]) -> tuple[dict[str, Any], list[float]]:
        return strength.fit(
            text,
            every[rows],
            levels[rows],
            number[rows],
            len(patterns),
            random,
            firing=FIRING,
            shares=LEVEL_SHARES,
            each_miss=step,
            effort=effort,
        )

    number_fired = len(there.fired)
    once = effort == strength.QUICK or number_fired >= PLENTY
    parts = OF_PLENTY if number_fired >= PLENTY else FOLDS
    part, scores, found, total = text.windows[every] % parts, [], [], 0
    for fold in range(1 if once or number_fired >= ENOUGH else parts):
        test = part == fold
        evidence, amounts = fitted(~test)
        scores.append(rules.score(evidence, text, every[test], np.array([*amounts, 0.0], np.float32)[number[test]]))
        found.append(levels[test])
        total += int((text.windows[there.fired] % parts == fold).sum())
    if not once:
        evidence, amounts = fitted(np.ones(len(every), bool))
    of = np.concatenate(found)
    weights = np.where(of > 0, 1, step)
    return evidence, amounts, best_threshold(np.concatenate(scores), of > FIRING, total, weights)


def _some(text: Text, step: int, also: Ints) -> Ints:
    """One position of a text in every `step`, and some others."""
    chosen = np.zeros(len(text), bool)
    chosen[::step] = True
    chosen[also] = True
    return np.flatnonzero(chosen)


def _ending_in(text: Text, tokens: Ints, among: Ints | None) -> Ints:
    """The positions, all or among others, whose last token is one of these."""
    if among is None:
        return text.where_any(tokens.tolist())
    table = np.zeros(len(text.lexicon), bool)
    table[tokens] = True
    return among[table[text.tokens[among]]]


def best_threshold(
    scores: npt.NDArray[Any], hits: npt.NDArray[np.bool_], total: int, weights: npt.NDArray[Any] | None = None
) -> float:
    """The lowest score at which predicting "fires" has the largest F1, up to a quarter of its standard error; `total`: hits, those
    included that have no score; `weights`: for how many positions each stands."""
    if not len(scores) or not hits.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(hits[order])
    predicted = np.arange(1, len(order) + 1) if weights is None else np.cumsum(weights[order])
    f1 = 2 * right / (predicted + total)
    f1[:-1][np.diff(scores[order]) == 0] = 0  # equal scores are predicted together
    best = float(f1.max())
    doubt = np.sqrt(best * (1 - best) / max(1, total)) / 4
    last = int(np.flatnonzero((f1 > 0) & (f1 >= best - doubt))[-1])
    return float(np.floor(scores[order][last] * 1e4) / 1e4)
