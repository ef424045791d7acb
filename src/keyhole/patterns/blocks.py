"""The weights of evidence, in blocks: one weight per token at a place, per tokens at several places together, or per token
anywhere in a stretch of the prefix. Each block improves its own weights, given the slopes of the loss at every position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from .packing import packed
from .text import Ints, Text

LEAST_WEIGHT = 0.05
"""Weights closer to 0 are left out."""
LONGEST_STEP = 3.0
"""A weight changes by at most this much at a time."""
FASTER = 1.5
"""Steps that are certainly not too long are taken this many times as long."""
Backs = tuple[int, ...]
"""Places of tokens, the last token's first."""
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


class Block(ABC):
    """What all blocks have. Number 0 stands for no token, and its weight is 0."""

    grams: Ints
    """what has a weight, ascending; −1 first"""
    weights: Floats
    curvature: Floats
    """[grams] how much the slope of each weight changes with it"""
    steps: int
    """how often the weights are improved per sweep"""
    several: bool = False
    """whether they are for tokens at several places together"""
    last: bool = False
    """whether they are the last token's: the rules reach the positions that have one"""

    @property
    def worth(self) -> Floats:
        """[grams] how much would be lost without each weight; 0 for those that are not kept at all."""
        found: Floats = np.abs(self.weights) * np.sqrt(self.curvature + 0.1)
        found[(np.abs(self.weights) < LEAST_WEIGHT) | (self.grams < 0)] = 0
        return found

    @abstractmethod
    def step(self, gradient: Singles, curvature: Singles) -> Singles:
        """Improve the weights. Returns what each position gains."""

    @abstractmethod
    def keep(self, which: Bools) -> Singles:
        """Leave all other weights out. Returns what each position loses."""

    def _only(self, which: Bools) -> None:
        self.grams, self.weights, self.curvature = (
            np.append(none, each[which])
            for none, each in ((-1, self.grams), (0.0, self.weights), (0.0, self.curvature))
        )

    @abstractmethod
    def where(self) -> dict[str, Any]:
        """Which tokens the weights are for, as a rule says it."""

    def entry(self) -> dict[str, Any] | None:
        """The block as a part of the evidence, weights in hundredths; None if no weight is kept."""
        kept = np.flatnonzero(self.worth)
        if not len(kept):
            return None
        hundredths = np.round(100 * self.weights[kept])
        return {**self.where(), "ids": packed(self.grams[kept]), "weights": packed(hundredths)}


class Together(Block):
    """Weights of the tokens at one place, or at several together: each position has one of them."""

    steps = 1

    def __init__(self, text: Text, positions: Ints, backs: Backs, ridge: float) -> None:
        self.backs, self.ridge, self.last = backs, ridge, backs == (0,)
        self.several = len(backs) > 1
        grams, at = np.unique(text.gram(positions, backs), return_inverse=True)
        none = int(len(grams) == 0 or grams[0] >= 0)
        self.grams, self.at = np.append([-1] * none, grams).astype(np.int64), at.reshape(-1) + none
        self.weights, self.curvature = np.zeros(len(self.grams)), np.zeros(len(self.grams))

    def step(self, gradient: Singles, curvature: Singles) -> Singles:
        step, self.curvature = newton(self.at, self.weights, gradient, curvature, self.ridge)
        step[0] = 0  # that there is no token is said by the place
        self.weights += step
        return step.astype(np.float32)[self.at]

    def keep(self, which: Bools) -> Singles:
        lost = np.where(which, 0, self.weights).astype(np.float32)[self.at]
        self.at = np.where(which, np.cumsum(which), 0)[self.at]
        self._only(which)
        return lost

    def where(self) -> dict[str, Any]:
        return {"back": self.backs[0] if len(self.backs) == 1 else list(self.backs)}


class Within(Block):
    """Weights of tokens that stand anywhere from one to some places back, once for each time they do. What a token says far from
    the position depends little on its place, so one weight learns from all of them."""

    steps = 2

    def __init__(self, text: Text, positions: Ints, farthest: int, ridge: float) -> None:
        self.farthest, self.ridge = farthest, ridge
        tokens = np.stack([text.token(positions, back) for back in range(1, farthest + 1)], 1)
        there = tokens >= 0
        seen = np.zeros(len(text.lexicon), bool)
        seen[tokens[there]] = True
        self.grams = np.append(-1, np.flatnonzero(seen))
        number = np.cumsum(seen, dtype=np.int32)
        self.at = _counts(there.sum(1), number[tokens[there]], len(self.grams))
        self.weights, self.curvature = np.zeros(len(self.grams)), np.zeros(len(self.grams))

    def step(self, gradient: Singles, curvature: Singles) -> Singles:
        """All weights at once: each step is as if all other tokens of its positions moved as far, so it is certainly not too long."""
        several = np.diff(self.at.indptr).astype(np.float32)
        g, bound = self.at.T @ gradient, self.at.T @ (curvature * several)
        self.curvature = np.asarray(self.at.T @ curvature, np.float64)
        step = FASTER * (g - self.ridge * self.weights) / (bound + self.ridge)
        step = np.clip(step, -LONGEST_STEP, LONGEST_STEP)
        self.weights += step
        return np.asarray(self.at @ step.astype(np.float32))

    def keep(self, which: Bools) -> Singles:
        lost = np.asarray(self.at @ np.where(which, 0, self.weights).astype(np.float32))
        number = np.where(which, np.cumsum(which), 0).astype(np.int32)[self.at.indices]
        rows = np.repeat(np.arange(self.at.shape[0]), np.diff(self.at.indptr))[number > 0]
        self.at = _counts(np.bincount(rows, minlength=self.at.shape[0]), number[number > 0], int(which.sum()) + 1)
        self._only(which)
        return lost

    def where(self) -> dict[str, Any]:
        return {"back": 1, "farthest": self.farthest}


def newton(at: Ints, weights: Floats, gradient: Singles, curvature: Singles, ridge: float) -> tuple[Floats, Floats]:
    """The Newton step of each weight, and its curvature; `at` is the number of the weight that each position has."""
    g: Floats = np.bincount(at, gradient, len(weights)).astype(np.float64)
    c: Floats = np.bincount(at, curvature, len(weights)).astype(np.float64)
    return np.clip((g - ridge * weights) / (c + ridge), -LONGEST_STEP, LONGEST_STEP), c


def _counts(lengths: Ints, columns: npt.NDArray[np.int32], width: int) -> csr_array:
    """A sparse matrix of ones, [positions, weights]; `columns`: those of each position, one after the other. A column may be there
    several times."""
    ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return csr_array((np.ones(len(columns), np.float32), columns, ends), (len(lengths), width))
