"""Rules: conditions on a position and what stands before it, run on any text without a model.

A rule is plain JSON: `{"all": [condition, …], "amount": a}`. It matches a position if all its conditions hold there. A
condition is one of these, `back` counting tokens back from the position, 0 being the position's own:

    {"if": "token", "back": 0, "ids": […]}                      the token there is one of a set
    {"if": "form", "back": 0, "form": "number"}                 it has a form; "suffix" and "prefix" have a "text"
    {"if": "within", "back": 1, "farthest": 4, "ids": […]}      one of a set stands 1 to 4 tokens back (a skip-gram)
    {"if": "anywhere", "ids": […]}                              one of a set stands anywhere before it in the prefix
    {"if": "absent", "ids": […]}                                none of a set does
    {"if": "position", "from": 0, "to": 2}                      the number of tokens before it is in a range; "to" may be null
    {"if": "topic", "ids": […], "least": 3}                     at least that many tokens of the prefix are of a topic
    {"if": "near", "back": 0, "centroid": […], "least": 0.6}    the token's vector is near a centroid (cosine)
    {"if": "near", "back": null, …}                             the mean vector of the prefix's last 16 tokens is

A key has a list of patterns and, with them, its evidence `{"bias": b, "more": […]}`, which gives every position that the rules
reach a score: 1 / (1 + exp(−z)), an estimate of the probability that the key fires. z is the bias, plus the amount of the first
pattern that matches, plus what each entry of `more` adds: `{"back": 1, "ids": […], "weights": […]}` a weight per token,
`{"back": [0, 1], "ids": [[…, …], …], "weights": […]}` a weight for the tokens at several places together,
`{"back": 1, "farthest": 24, "ids": […], "weights": […]}` a weight per token, once for each time it stands 1 to 24 tokens back,
`{"back": 1, "direction": […]}` the product of a direction and the token's vector (if `back` is null, the prefix's mean vector),
`{"places": […]}` a weight per number of tokens before the position, the last one for all larger numbers.
`ids` are in ascending order. Long lists are packed as text (`packing.py`): weights in hundredths, tokens at several places as one
number each (`text.joined`).
The rules reach what a pattern matches, and positions whose last token has a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..store.patterns import Key, Pattern
from .packing import unpacked
from .text import Ints, Text, gram, joined

Condition = Mapping[str, Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
BLOCK = 1 << 16
"""Positions that are looked at together."""
MEANING = 16
"""Tokens of a prefix, the last ones, whose mean vector is compared with a centroid."""
MEANINGS = 1 << 21
"""Positions of a text, at most, of which these mean vectors are kept: each takes 128 bytes."""


class Fired(NamedTuple):
    """Where a key's rules match, and how strongly."""

    positions: Ints
    """ascending"""
    scores: Floats
    pattern: Ints
    """the number of the first pattern that matches there; −1 if only the last token has a weight"""
    before: Floats
    """what the scores are made of but for the amount of the pattern: z without it"""


def fire(key: Key, text: Text) -> Fired:
    """Run a key's decision list. A position that no pattern matches is reached if its last token has a weight."""
    none = np.empty(0, np.float32)
    if not key.patterns:
        return Fired(np.empty(0, np.int64), none, np.empty(0, np.int64), none)
    found = [*(where(pattern.rule, text) for pattern in key.patterns), leaning(key.evidence, text)]
    positions = np.concatenate(found)
    number = np.repeat([*range(len(key.patterns)), -1], [len(each) for each in found])
    positions, first = np.unique(positions, return_index=True)  # of equal ones the first: that of the first pattern
    number = number[first]
    before = total(key.evidence, text, positions)
    amounts = np.array([*map(_amount, key.patterns), 0.0], np.float32)
    return Fired(positions, probability(before + amounts[number]), number, before)


def alone(key: Key, number: int, text: Text, fired: Fired) -> Fired:
    """One pattern of a key without the others; `fired`: where all of them match."""
    pattern = key.patterns[number]
    positions = where(pattern.rule, text)
    before = fired.before[np.searchsorted(fired.positions, positions)]
    scores = probability(before + np.float32(_amount(pattern)))
    return Fired(positions, scores, np.full(len(positions), number), before)


def _amount(pattern: Pattern) -> float:
    return float(pattern.rule.get("amount", 0.0))


def leaning(evidence: Mapping[str, Any], text: Text) -> Ints:
    """The positions whose last token has a weight, ascending."""
    ids = [
        unpacked(each["ids"]).tolist() for each in evidence.get("more", ()) if each.get("back") == 0 and "ids" in each
    ]
    return text.where_any([token for each in ids for token in each])


def where(rule: Mapping[str, Any], text: Text, among: Ints | None = None) -> Ints:
    """The positions that a rule matches, ascending; only those `among` others, if they are given."""
    conditions = list(rule["all"])
    first = next((each for each in conditions if each["if"] == "token"), None)
    if among is not None:
        positions = among
    elif first is not None:
        positions = standing(first, text)
        conditions = [each for each in conditions if each is not first]
    else:
        positions = np.arange(len(text))
    for condition in conditions:
        positions = positions[holds(condition, text, positions)]
    return positions


def standing(condition: Condition, text: Text) -> Ints:
    """The positions at which a `token` condition holds, ascending."""
    back = int(condition["back"])
    found = text.where_any(condition["ids"])
    if not back:
        return found
    found = found[found + back < len(text)]
    same = text.windows[found] == text.windows[found + back]
    shifted: Ints = found[same] + back
    return shifted


def holds(condition: Condition, text: Text, positions: Ints) -> Bools:
    """Whether a condition holds at each position."""
    found: Bools = _HOLDS[condition["if"]](condition, text, positions)
    return found


def _token(condition: Condition, text: Text, positions: Ints) -> Bools:
    return is_in(text.token(positions, condition["back"]), condition["ids"])


def _form(condition: Condition, text: Text, positions: Ints) -> Bools:
    table = text.lexicon.form(condition["form"], condition.get("text", ""))
    return np.asarray(table[text.token(positions, condition["back"])])  # no token is −1: the last entry


def _within(condition: Condition, text: Text, positions: Ints) -> Bools:
    near, far = condition["back"], condition["farthest"]
    return np.asarray(text.before(condition["ids"], positions, nearest=near, farthest=far) > 0)


def _anywhere(condition: Condition, text: Text, positions: Ints) -> Bools:
    return np.asarray(text.before(condition["ids"], positions, nearest=1) > 0)


def _absent(condition: Condition, text: Text, positions: Ints) -> Bools:
    return np.asarray(text.before(condition["ids"], positions, nearest=1) == 0)


def _position(condition: Condition, text: Text, positions: Ints) -> Bools:
    place, to = text.places[positions], condition["to"]
    return np.asarray((place >= condition["from"]) & (place <= (np.iinfo(np.int32).max if to is None else to)))


def _topic(condition: Condition, text: Text, positions: Ints) -> Bools:
    return np.asarray(text.before(condition["ids"], positions, nearest=0) >= condition["least"])


def _near(condition: Condition, text: Text, positions: Ints) -> Bools:
    if condition["back"] is not None:
        near = np.append(_along(text.lexicon.vectors, condition["centroid"]), -2.0)
        return np.asarray(near[text.token(positions, condition["back"])] >= condition["least"])
    return np.asarray(_along(meaning(text, positions), condition["centroid"]) >= condition["least"])


_HOLDS: dict[str, Callable[[Condition, Text, Ints], Bools]] = {
    "token": _token,
    "form": _form,
    "within": _within,
    "anywhere": _anywhere,
    "absent": _absent,
    "position": _position,
    "topic": _topic,
    "near": _near,
}
KINDS = tuple(_HOLDS)
SEMANTIC = ("anywhere", "topic")
"""Conditions of a semantic pattern; `near` is one too if it is about the whole prefix."""


def is_semantic(condition: Condition) -> bool:
    return condition["if"] in SEMANTIC or (condition["if"] == "near" and condition["back"] is None)


def is_in(tokens: npt.NDArray[Any], ids: Sequence[int]) -> Bools:
    """Whether each token is one of a few ids."""
    if not len(ids):
        return np.zeros(len(tokens), bool)
    known = np.sort(np.asarray(ids))
    at = np.minimum(np.searchsorted(known, tokens), len(known) - 1)
    return np.asarray(known[at] == tokens)


def _along(vectors: Floats, direction: Sequence[float]) -> Floats:
    """The products of vectors with a direction. Not by a matrix library: for so little work its threads only wait for each other,
    and their sums depend on how many there are."""
    return np.asarray(np.einsum("ij,j->i", vectors, np.asarray(direction, np.float32)), np.float32)


def meaning(text: Text, positions: Ints) -> Floats:
    """[positions, dimensions] the mean vector of the prefix's last tokens, of length 1 and rounded to 16 bits. Those of the whole
    text are kept, unless it is long."""
    if len(text) > MEANINGS:
        return np.asarray(_meanings(text, positions), np.float32)
    known = text.cache.get("meaning")
    if known is None:
        known = text.cache["meaning"] = _meanings(text, np.arange(len(text)))
    return np.asarray(known[positions], np.float32)


def _meanings(text: Text, positions: Ints) -> npt.NDArray[np.float16]:
    found = np.empty((len(positions), text.lexicon.padded.shape[1]), np.float16)
    for begin in range(0, len(positions), BLOCK):
        found[begin : begin + BLOCK] = _meaning(text, positions[begin : begin + BLOCK])
    return found


def _meaning(text: Text, positions: Ints) -> Floats:
    total = np.zeros((len(positions), text.lexicon.padded.shape[1]), np.float32)
    for back in range(MEANING):
        total += text.lexicon.padded[text.token(positions, back)]
    return np.asarray(total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12))


# Scores


def weighted(entry: Mapping[str, Any], places: int, size: int) -> tuple[Ints, Floats]:
    """The tokens of an entry that has weights, those at several places as one number (`joined`), and the weight of each. `size`: of
    the vocabulary."""
    ids, weights = entry["ids"], entry["weights"]
    if isinstance(ids, str):
        return unpacked(ids), np.asarray(unpacked(weights) / 100, np.float32)
    return joined(np.asarray(ids).reshape(-1, places), size), np.asarray(weights, np.float32)


def score(evidence: Mapping[str, Any], text: Text, positions: Ints, amounts: Floats) -> Floats:
    """The score at positions that the rules reach; `amounts`: what the first matching pattern adds at each."""
    return probability(total(evidence, text, positions) + amounts)


def probability(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -30, 30))), np.float32)


def total(evidence: Mapping[str, Any], text: Text, positions: Ints) -> Floats:
    """z at each position, but for the amount of a pattern."""
    z = np.full(len(positions), evidence.get("bias", 0.0), np.float32)
    size = len(text.lexicon)
    tokens: dict[int, npt.NDArray[np.int32]] = {}

    def at(back: int) -> npt.NDArray[np.int32]:
        if back not in tokens:
            tokens[back] = text.token(positions, back)
        return tokens[back]

    for each in evidence.get("more", ()):
        if "places" in each:
            weights = np.asarray(each["places"], np.float32)
            z += weights[np.minimum(text.places[positions], len(weights) - 1)]
        elif each["back"] is None:
            z += _along(meaning(text, positions), each["direction"])
        elif "direction" in each:
            z += np.append(_along(text.lexicon.vectors, each["direction"]), 0)[at(each["back"])]
        elif isinstance(each["back"], list):
            ids, weights = weighted(each, len(each["back"]), size)
            grams = gram([at(back) for back in each["back"]], size)
            row = np.minimum(np.searchsorted(ids, grams), len(ids) - 1)
            z += np.where(ids[row] == grams, weights[row], 0)
        else:
            ids, weights = weighted(each, 1, size)
            table = np.zeros(size + 1, np.float32)  # the last entry is for no token
            table[ids] = weights
            for back in range(each["back"], each.get("farthest", each["back"]) + 1):
                z += table[at(back)]
    return z
