"""How strongly a key's rules say that it fires: a score for every position that they reach.

The score is a logistic model: a bias, an amount for each pattern, a weight for tokens at each of the last places and, if it
saves enough bits, a direction per place in which the vectors of tokens point. It is fitted by ridge regression, one block of
weights at a time, so that a token seen once says little. What it is fitted to is graded: 1 at positions above the firing
threshold, falling to 0 at the cell's 99th percentile, so that a position just below the threshold is no counterexample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import rules
from .text import Ints, Text

DIRECTIONS = (0, 1, 2, None)
"""Places whose vectors may add a direction; None is the mean of the prefix."""
RIDGE = (0.6, 1.0, 2.0, 4.0)
"""Per place, the last token first: how many positions' worth of doubt a token's weight is shrunk by."""
RIDGE_VECTORS, RIDGE_PATTERN = 1.0, 0.1
SWEEPS = 3
LEAST_BITS = 25.0
"""A direction saves at least this many bits."""
LEAST_WEIGHT = 0.15
"""Weights closer to 0 are left out."""
LEAST_MASS = 0.3
"""A last token is reached if positions of at least this much firing in total end in it."""
KEPT, MISSES = 256, 64
"""Weights per place, and positions without any firing per weight, at most."""
Floats = npt.NDArray[np.float64]


def reach(text: Text, positions: Ints, graded: Floats) -> Ints:
    """The last tokens that the key leans to: it fires at them more than elsewhere. `graded`: at `positions`, 0 at all others."""
    size = len(text.lexicon)
    mass = np.bincount(text.tokens[positions], graded, size)
    share = float(graded.sum()) / max(1, len(text))
    return np.flatnonzero((mass > LEAST_MASS) & (mass > share * text.counts))


def fit(
    text: Text,
    positions: Ints,
    graded: Floats,
    pattern: Ints,
    patterns: int,
    random: np.random.Generator,
    kept: int = KEPT,
) -> tuple[dict[str, Any], list[float]]:
    """The evidence of a key, and the amount that each of its patterns adds.

    `positions`: all that the rules reach; `graded`: how much the key fires there; `pattern`: the first pattern that matches, −1
    if none does. At most `kept` weights per place are kept, and at most `MISSES` · `kept` positions without any firing are looked
    at: a random part stands for the others.
    """
    weight = np.ones(len(positions))
    misses, most = np.flatnonzero(graded <= 0), MISSES * kept
    if len(misses) > most:
        some = np.concatenate([np.flatnonzero(graded > 0), random.choice(misses, most, replace=False)])
        some.sort()
        weight = np.where(graded[some] > 0, 1.0, len(misses) / most)
        positions, graded, pattern = positions[some], graded[some], pattern[some]
    found = _Fit(text, positions, graded, weight, pattern, patterns)
    return found.evidence(kept), np.round(found.amounts[:-1], 2).tolist()


class _Fit:
    def __init__(self, text: Text, positions: Ints, y: Floats, weight: Floats, pattern: Ints, patterns: int) -> None:
        self.text, self.positions, self.y, self.weight = text, positions, y, weight
        self.pattern = np.where(pattern < 0, patterns, pattern)
        share = (float((weight * y).sum()) + 0.5) / (float(weight.sum()) + 1)
        self.bias = float(np.log(share / (1 - share)))
        self.z = np.full(len(y), self.bias)
        self.amounts = np.zeros(patterns + 1)
        """per pattern; the last entry, of positions without one, stays 0"""
        self.tokens = [np.unique(text.token(positions, back), return_inverse=True) for back in range(len(RIDGE))]
        self.weights = [np.zeros(len(ids)) for ids, _ in self.tokens]
        self.curvature = [np.zeros(len(ids)) for ids, _ in self.tokens]
        self.directions: dict[int | None, npt.NDArray[np.float32]] = {}
        if len(y) == 0:
            return
        self._sweep()
        if text.lexicon.has_vectors:
            for back in DIRECTIONS:
                self._direction(back)
        for _ in range(SWEEPS - 1):
            self._sweep()

    def _slope(self) -> tuple[Floats, Floats]:
        p = 1 / (1 + np.exp(-self.z))
        return self.weight * (self.y - p), self.weight * p * (1 - p)

    def _step(self, at: Ints, weights: Floats, ridge: float) -> Floats:
        """One Newton step of a block of weights; `at` is the weight of each position. Returns the block's curvature."""
        gradient, curvature = self._slope()
        g: Floats = np.bincount(at, gradient, len(weights)).astype(np.float64)
        c: Floats = np.bincount(at, curvature, len(weights)).astype(np.float64)
        step = np.clip((g - ridge * weights) / (c + ridge), -3, 3)
        weights += step
        self.z += step[at]
        return c

    def _sweep(self) -> None:
        gradient, curvature = self._slope()
        step = float(np.clip(gradient.sum() / max(float(curvature.sum()), 1e-9), -2, 2))
        self.bias += step
        self.z += step
        if len(self.amounts) > 1:
            before = self.amounts[-1]
            self._step(self.pattern, self.amounts, RIDGE_PATTERN)
            self.z[self.pattern == len(self.amounts) - 1] -= self.amounts[-1] - before
            self.amounts[-1] = before
        for number, (_, at) in enumerate(self.tokens):
            self.curvature[number] = self._step(at, self.weights[number], RIDGE[number])

    def _vectors(self, back: int | None) -> npt.NDArray[np.float32]:
        if back is None:
            return rules.meaning(self.text, self.positions)
        return self.text.lexicon.padded[self.text.token(self.positions, back)]

    def _direction(self, back: int | None) -> None:
        """Add a direction if it saves enough bits."""
        x = self._vectors(back)
        direction, z = np.zeros(x.shape[1], np.float32), self.z
        for _ in range(2):
            p = 1 / (1 + np.exp(-z))
            curvature = (self.weight * p * (1 - p)).astype(np.float32)
            a = (x * curvature[:, None]).T @ x + np.float32(RIDGE_VECTORS) * np.eye(x.shape[1], dtype=np.float32)
            slope = (self.weight * (self.y - p)).astype(np.float32) @ x
            direction += np.clip(np.linalg.solve(a, slope - RIDGE_VECTORS * direction), -4, 4).astype(np.float32)
            z = self.z + x @ direction
        found = rounded(direction)
        z = self.z + x @ found
        if self._loss(self.z) - self._loss(z) > LEAST_BITS:
            self.directions[back], self.z = found, z

    def _loss(self, z: Floats) -> float:
        """Bits that the grades cost."""
        return float((self.weight * (np.logaddexp(0, z) - self.y * z)).sum() / np.log(2))

    def evidence(self, kept: int) -> dict[str, Any]:
        more: list[dict[str, Any]] = []
        for back, (ids, _) in enumerate(self.tokens):
            weights = self.weights[back]
            worth = np.abs(weights) * np.sqrt(self.curvature[back] + 0.1)
            worth[(np.abs(weights) < LEAST_WEIGHT) | (ids < 0)] = 0
            best = np.sort(np.argsort(-worth, kind="stable")[:kept])
            best = best[worth[best] > 0]
            if len(best):
                more.append({"back": back, "ids": ids[best].tolist(), "weights": np.round(weights[best], 2).tolist()})
        more += [
            {"back": back, "direction": [round(float(each), 3) for each in found]}
            for back, found in self.directions.items()
        ]
        return {"bias": round(self.bias, 2), "more": more}


def rounded(vector: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A vector as it is written into a rule: JSON gives the same numbers back."""
    return np.round(vector.astype(np.float64), 3).astype(np.float32)
