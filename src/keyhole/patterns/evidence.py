"""How strongly a key's rules say that it fires: a score for every position that they reach.

The score is a logistic model: a bias, an amount for each pattern, a weight for tokens at each of the last places, for the last
two and three tokens together and for the number of tokens before the position and, if it saves enough bits, a direction per place
in which the vectors of tokens point. It is fitted by ridge regression, one block of weights at a time, so that a token seen once
says little.

It is fitted to several levels at once: whether a coefficient is among the largest 0.5 %, the largest 0.1 % (the key fires), the
largest 0.03 %. All levels share the weights, and each has a bias of its own (proportional odds). So a position just below the
firing threshold is no counterexample, and a strong one says more than a weak one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import rules
from .text import Ints, Text, parted

RIDGE_VECTORS, RIDGE_PATTERN = 1.0, 0.1
LEAST_BITS = 25.0
"""A direction saves at least this many bits."""
LEAST_WEIGHT = 0.05
"""Weights closer to 0 are left out."""
PLACES, RIDGE_PLACE = 8, 1.0
"""Numbers of tokens before a position that have a weight each; more have one together."""
Backs = tuple[int, ...]
"""Places of tokens, the last token's first."""


class Effort(NamedTuple):
    """How much is learned of a key."""

    ridge: dict[Backs, float]
    """The places that have weights, alone and together: by how many positions' worth of doubt each weight is shrunk."""
    directions: tuple[int | None, ...]
    """Places whose vectors may add a direction; None is the mean of the prefix."""
    sweeps: int
    """How often all weights are improved in turn."""
    last: int
    """Weights of the last token, at most. The rules reach the positions that have one."""
    kept: int
    """Weights of any other place, or places together, at most."""
    misses: int
    """Positions of no level that are looked at, at most."""


_LAST: dict[Backs, float] = {(0,): 1.5, (1,): 2.5, (2,): 5.0, (3,): 8.0}
FULL = Effort({**_LAST, (0, 1): 2.0, (0, 1, 2): 2.0}, (0, 1, 2, None), sweeps=5, last=1024, kept=384, misses=100_000)
QUICK = Effort(_LAST, (0, None), sweeps=3, last=64, kept=64, misses=4096)
"""The second is for all keys of a model."""
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


def reach(text: Text, positions: Ints) -> Ints:
    """The last tokens that the key leans to: the strongest positions end in them more often than others do."""
    often = np.bincount(text.tokens[positions], minlength=len(text.lexicon))
    return np.flatnonzero(often > text.counts * (len(positions) / max(1, len(text))))


def fit(
    text: Text,
    positions: Ints,
    levels: npt.NDArray[np.int8],
    pattern: Ints,
    patterns: int,
    random: np.random.Generator,
    *,
    firing: int,
    effort: Effort = FULL,
) -> tuple[dict[str, Any], list[float]]:
    """The evidence of a key, and the amount that each of its patterns adds.

    `positions`: all that the rules reach; `levels`: how many levels each is in, above `firing` if the key fires there; `pattern`:
    the first pattern that matches, −1 if none does. Of the positions of no level, a random part stands for the others.
    """
    weight = np.ones(len(positions), np.float32)
    misses, most = np.flatnonzero(levels == 0), effort.misses
    if len(misses) > most:
        some = np.concatenate([np.flatnonzero(levels), random.choice(misses, most, replace=False)])
        some.sort()
        weight = np.where(levels[some] > 0, 1.0, len(misses) / most).astype(np.float32)
        positions, levels, pattern = positions[some], levels[some], pattern[some]
    found = _Fit(text, positions, levels, weight, pattern, patterns, effort)
    return found.evidence(firing), np.round(found.amounts[:-1], 2).tolist()


class _Block:
    """The weights of the tokens at some places."""

    def __init__(self, text: Text, positions: Ints, backs: Backs, ridge: float) -> None:
        self.backs, self.ridge = backs, ridge
        self.grams, self.at = np.unique(text.gram(positions, backs), return_inverse=True)
        """what has a weight, and the number of it at each position; −1 first: there is no token, and no weight"""
        self.weights, self.curvature = np.zeros(len(self.grams)), np.zeros(len(self.grams))


class _Fit:
    def __init__(
        self,
        text: Text,
        positions: Ints,
        levels: npt.NDArray[np.int8],
        weight: Singles,
        pattern: Ints,
        patterns: int,
        effort: Effort,
    ) -> None:
        self.text, self.positions, self.weight, self.effort = text, positions, weight, effort
        self.pattern = np.where(pattern < 0, patterns, pattern)
        self.inside = [(levels > level).astype(np.float32) for level in range(int(levels.max(initial=0)) or 1)]
        """per level, 1 for each position that is in it"""
        shares = [(float(weight @ each) + 0.5) / (float(weight.sum()) + 1) for each in self.inside]
        self.biases = np.log(shares) - np.log1p(np.negative(shares))
        self.z: Singles = np.zeros(len(positions), np.float32)
        """what is added to the bias at each position"""
        self.amounts = np.zeros(patterns + 1)
        """per pattern; the last entry, of positions without one, stays 0"""
        self.blocks = [_Block(text, positions, backs, ridge) for backs, ridge in effort.ridge.items()]
        self.place, self.places = np.minimum(text.places[positions], PLACES), np.zeros(PLACES + 1)
        self.directions: dict[int | None, npt.NDArray[np.float32]] = {}
        if len(positions) == 0:
            return
        self._sweep([block for block in self.blocks if len(block.backs) == 1])
        if text.lexicon.has_vectors:
            for back in effort.directions:
                self._direction(back)
        for _ in range(effort.sweeps - 1):
            self._sweep(self.blocks)

    def _slopes(self) -> list[tuple[Singles, Singles]]:
        """Per level, the gradient and the curvature at each position."""
        found = []
        for inside, bias in zip(self.inside, self.biases, strict=True):
            p = 1 / (1 + np.exp(np.minimum(-(self.z + np.float32(bias)), 80)))
            found.append((self.weight * (inside - p), self.weight * (p * (1 - p))))
        return found

    def _slope(self) -> tuple[Singles, Singles]:
        """Those of all levels together."""
        gradients, curvatures = zip(*self._slopes(), strict=True)
        return sum(gradients[1:], gradients[0]), sum(curvatures[1:], curvatures[0])

    def _step(self, at: Ints, weights: Floats, ridge: float, fixed: int = 0) -> Floats:
        """One Newton step of a block of weights, of which the first `fixed` stay as they are; `at` is the weight of each position.
        Returns the block's curvature."""
        gradient, curvature = self._slope()
        g: Floats = np.bincount(at, gradient, len(weights)).astype(np.float64)
        c: Floats = np.bincount(at, curvature, len(weights)).astype(np.float64)
        step = np.clip((g - ridge * weights) / (c + ridge), -3, 3)
        step[:fixed] = 0  # that there is no token is said by the place
        weights += step
        self.z += step.astype(np.float32)[at]
        return c

    def _sweep(self, blocks: Sequence[_Block]) -> None:
        for level, (gradient, curvature) in enumerate(self._slopes()):
            self.biases[level] += np.clip(gradient.sum() / max(float(curvature.sum()), 1e-9), -2, 2)
        if len(self.amounts) > 1:
            before = self.amounts[-1]
            self._step(self.pattern, self.amounts, RIDGE_PATTERN)
            self.z[self.pattern == len(self.amounts) - 1] -= self.amounts[-1] - before
            self.amounts[-1] = before
        for block in blocks:
            block.curvature = self._step(block.at, block.weights, block.ridge, fixed=int(block.grams[0] < 0))
        self._step(self.place, self.places, RIDGE_PLACE)

    def _vectors(self, back: int | None) -> npt.NDArray[np.float32]:
        if back is None:
            return rules.meaning(self.text, self.positions)
        return self.text.lexicon.padded[self.text.token(self.positions, back)]

    def _direction(self, back: int | None) -> None:
        """Add a direction if it saves enough bits."""
        x = self._vectors(back)
        direction, before, cost = np.zeros(x.shape[1], np.float32), self.z, self._loss()
        gradient, curvature = self._slope()
        a = (x * curvature[:, None]).T @ x + np.float32(RIDGE_VECTORS) * np.eye(x.shape[1], dtype=np.float32)
        for again in range(2):  # the second step with the curvature of the first, which is most of the work
            gradient = self._slope()[0] if again else gradient
            step = np.linalg.solve(a, gradient @ x - RIDGE_VECTORS * direction)
            direction += np.clip(step, -4, 4).astype(np.float32)
            self.z = before + x @ direction
        found = rounded(direction)
        self.z = before + x @ found
        if cost - self._loss() > LEAST_BITS:
            self.directions[back] = found
        else:
            self.z = before

    def _loss(self) -> float:
        """Bits that the levels cost."""
        total = 0.0
        for inside, bias in zip(self.inside, self.biases, strict=True):
            z = self.z + np.float32(bias)
            total += float((self.weight * (np.logaddexp(0, z) - inside * z)).sum())
        return total / float(np.log(2))

    def evidence(self, firing: int) -> dict[str, Any]:
        more: list[dict[str, Any]] = []
        for block in self.blocks:
            kept = self.effort.last if block.backs == (0,) else self.effort.kept
            worth = np.abs(block.weights) * np.sqrt(block.curvature + 0.1)
            worth[(np.abs(block.weights) < LEAST_WEIGHT) | (block.grams < 0)] = 0
            best = np.sort(np.argsort(-worth, kind="stable")[:kept])
            best = best[worth[best] > 0]
            if len(best):
                tokens = parted(block.grams[best], len(block.backs), len(self.text.lexicon))
                alone = len(block.backs) == 1
                more.append(
                    {
                        "back": block.backs[0] if alone else list(block.backs),
                        "ids": (tokens[:, 0] if alone else tokens).tolist(),
                        "weights": np.round(block.weights[best], 2).tolist(),
                    }
                )
        more += [
            {"back": back, "direction": [round(float(each), 3) for each in found]}
            for back, found in self.directions.items()
        ]
        if np.abs(self.places).max() >= LEAST_WEIGHT:
            more.append({"places": np.round(self.places, 2).tolist()})
        return {"bias": round(float(self.biases[min(firing, len(self.biases) - 1)]), 2), "more": more}


def rounded(vector: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A vector as it is written into a rule: JSON gives the same numbers back."""
    return np.round(vector.astype(np.float64), 3).astype(np.float32)
