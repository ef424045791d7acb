"""How strongly a key's rules say that it fires: a score for every position that they reach.

The score is a logistic model: a bias, an amount for each pattern, a weight for tokens at each of the last places, for some of the
last tokens together, for tokens anywhere in the prefix and for the number of tokens before the position and, if it saves enough bits,
a direction per place in which the vectors of tokens point. It is fitted by ridge regression, one block of weights at a time
(`blocks.py`), so that a token seen once says little.

It is fitted to several levels at once: whether a coefficient is among the largest 0.5 %, the largest 0.1 % (the key fires), the
largest 0.03 %. All levels share the weights, and each has a bias of its own (proportional odds). So a position just below the
firing threshold is no counterexample, and a strong one says more than a weak one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import rules
from .blocks import LEAST_WEIGHT, Backs, Block, Floats, Singles, Together, Within, newton
from .text import LARGEST, Ints, Text

RIDGE_VECTORS, RIDGE_PATTERN, RIDGE_WITHIN = 1.0, 0.1, 10.0
LEAST_BITS = 25.0
"""A direction saves at least this many bits."""
LOOKED_AT = 1 << 16
"""Positions of some level, and positions of none, at most, on which a direction is looked for."""
PLACES, RIDGE_PLACE = 8, 1.0
"""Numbers of tokens before a position that have a weight each; more have one together."""


class Effort(NamedTuple):
    """How much is learned of a key."""

    ridge: dict[Backs, float]
    """The places that have weights, alone and together: by how many positions' worth of doubt each weight is shrunk."""
    farthest: int
    """Places back, at most, of tokens that have one weight wherever they stand; 0: there are no such weights."""
    directions: tuple[int | None, ...]
    """Places whose vectors may add a direction; None is the mean of the prefix."""
    sweeps: int
    """How often all weights are improved in turn, before the least useful ones are left out."""
    last: int
    """Weights of the last token, at most. The rules reach the positions that have one."""
    kept: int
    """All other weights together, at most."""
    kept_per_firing: float
    """The same per position at which the key fires, if that is more: what much text shows is kept."""
    misses: int
    """Positions of no level that are looked at, at most."""
    misses_per_firing: float
    """The same per position at which the key fires, if that is more."""
    among: int
    """Positions of a long text, per miss, that are looked through for misses; 0: all."""

    def most_misses(self, fired: int) -> int:
        return max(self.misses, round(self.misses_per_firing * fired))

    def step(self, positions: int, fired: int) -> int:
        """One position in this many is looked through, in a text of `positions`."""
        return max(1, positions // (self.among * self.most_misses(fired))) if self.among else 1


_LAST: dict[Backs, float] = {(0,): 1.5, (1,): 2.5, (2,): 5.0, (3,): 8.0}
_TOGETHER: dict[Backs, float] = {(0, 1): 2.0, (0, 2): 3.0, (1, 2): 3.0, (0, 1, 2): 2.0, (0, 1, 2, 3): 2.0}
FULL = Effort(
    {**_LAST, **_TOGETHER},
    farthest=24,
    directions=(0, 1, 2, 3, 4, 5, None),
    sweeps=5,
    last=4096,
    kept=6144,
    kept_per_firing=2.0,
    misses=100_000,
    misses_per_firing=25.0,
    among=8,
)
QUICK = Effort(
    _LAST,
    farthest=0,
    directions=(0, None),
    sweeps=3,
    last=64,
    kept=192,
    kept_per_firing=0,
    misses=4096,
    misses_per_firing=0,
    among=0,
)
"""The second is for all keys of a model."""
AGAIN = 2
"""How often the weights that are kept are improved once more."""


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
    shares: Sequence[float] = (),
    each_miss: float = 1.0,
    effort: Effort = FULL,
) -> tuple[dict[str, Any], list[float]]:
    """The evidence of a key, and the amount that each of its patterns adds.

    `positions`: all that the rules reach; `levels`: how many levels each is in, above `firing` if the key fires there; `pattern`:
    the first pattern that matches, −1 if none does. `shares`: how much each level counts, all the same if it is not given.
    `each_miss`: for how many positions each one of no level stands. Of these a random part stands for the others, if they are many.
    """
    weight = np.where(levels > 0, 1.0, each_miss).astype(np.float32)
    fired = int((levels > firing).sum())
    misses, most = np.flatnonzero(levels == 0), effort.most_misses(fired)
    if len(misses) > most:
        some = np.concatenate([np.flatnonzero(levels), random.choice(misses, most, replace=False)])
        some.sort()
        weight = np.where(levels[some] > 0, 1.0, each_miss * len(misses) / most).astype(np.float32)
        positions, levels, pattern = positions[some], levels[some], pattern[some]
    found = _Fit(text, positions, levels, weight, pattern, patterns, effort, shares)
    found.leave_out(max(effort.kept, round(effort.kept_per_firing * fired)))
    return found.evidence(firing), np.round(found.amounts[:-1], 2).tolist()


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
        shares: Sequence[float],
    ) -> None:
        self.text, self.positions, self.weight, self.effort = text, positions, weight, effort
        self.pattern = np.where(pattern < 0, patterns, pattern)
        self.inside = [(levels > level).astype(np.float32) for level in range(int(levels.max(initial=0)) or 1)]
        """per level, 1 for each position that is in it"""
        self.shares = [np.float32(shares[level] if shares else 1.0) for level in range(len(self.inside))]
        often = [(float(weight @ each) + 0.5) / (float(weight.sum()) + 1) for each in self.inside]
        self.biases = np.log(often) - np.log1p(np.negative(often))
        self.z: Singles = np.zeros(len(positions), np.float32)
        """what is added to the bias at each position"""
        self.amounts = np.zeros(patterns + 1)
        """per pattern; the last entry, of positions without one, stays 0"""
        self.blocks: list[Block] = [
            Together(text, positions, backs, ridge)
            for backs, ridge in effort.ridge.items()
            if len(text.lexicon) ** len(backs) < LARGEST  # four tokens of a large vocabulary are no number of 64 bits
        ]
        if effort.farthest:
            self.blocks.append(Within(text, positions, effort.farthest, RIDGE_WITHIN))
        self.place, self.places = np.minimum(text.places[positions], PLACES), np.zeros(PLACES + 1)
        self.directions: dict[int | None, npt.NDArray[np.float32]] = {}
        if len(positions) == 0:
            return
        self._sweep([block for block in self.blocks if not block.several])
        if text.lexicon.has_vectors:
            for back in effort.directions:
                self._direction(back)
        for _ in range(effort.sweeps - 1):
            self._sweep(self.blocks)

    def _slopes(
        self, rows: Ints | slice = slice(None), weight: Singles | None = None, z: Singles | None = None
    ) -> list[tuple[Singles, Singles]]:
        """Per level, the gradient and the curvature at each position; or at some, with other weights and other sums z."""
        found = []
        weight, z = self.weight if weight is None else weight, self.z if z is None else z
        for inside, bias, share in zip(self.inside, self.biases, self.shares, strict=True):
            p = 1 / (1 + np.exp(np.minimum(-(z + np.float32(bias)), 80)))
            scaled = share * weight
            found.append((scaled * (inside[rows] - p), scaled * (p * (1 - p))))
        return found

    @cached_property
    def _some(self) -> tuple[Ints, Singles]:
        """Positions on which directions are looked for, evenly spaced ones of each kind, and for how many positions each stands."""
        rows, scales = [], []
        for kind in (self.inside[0] > 0, self.inside[0] == 0):
            those = np.flatnonzero(kind)
            step = -(-len(those) // LOOKED_AT) or 1
            rows.append(those[::step])
            scales.append(self.weight[those[::step]] * np.float32(step))
        return np.concatenate(rows), np.concatenate(scales)

    def _slope(self) -> tuple[Singles, Singles]:
        """Those of all levels together."""
        gradients, curvatures = zip(*self._slopes(), strict=True)
        return sum(gradients[1:], gradients[0]), sum(curvatures[1:], curvatures[0])

    def _step(self, at: Ints, weights: Floats, ridge: float) -> None:
        """One Newton step of some weights; `at` is the weight of each position."""
        step, _ = newton(at, weights, *self._slope(), ridge)
        weights += step
        self.z += step.astype(np.float32)[at]

    def _sweep(self, blocks: Sequence[Block]) -> None:
        for level, (gradient, curvature) in enumerate(self._slopes()):
            self.biases[level] += np.clip(gradient.sum() / max(float(curvature.sum()), 1e-9), -2, 2)
        if len(self.amounts) > 1:
            before = self.amounts[-1]
            self._step(self.pattern, self.amounts, RIDGE_PATTERN)
            self.z[self.pattern == len(self.amounts) - 1] -= self.amounts[-1] - before
            self.amounts[-1] = before
        for block in blocks:
            for _ in range(block.steps):
                self.z += block.step(*self._slope())
        self._step(self.place, self.places, RIDGE_PLACE)

    def _vectors(self, back: int | None, rows: Ints) -> npt.NDArray[np.float32]:
        if back is None:
            return rules.meaning(self.text, self.positions[rows])
        return self.text.lexicon.padded[self.text.token(self.positions[rows], back)]

    def _along(self, back: int | None, direction: Singles) -> Singles:
        """[positions] the product of each position's vector with a direction."""
        if back is None:
            return self._vectors(None, np.arange(len(self.positions))) @ direction
        return (self.text.lexicon.padded @ direction)[self.text.token(self.positions, back)]

    def _direction(self, back: int | None) -> None:
        """Add a direction if it saves enough bits. It is looked for on some of the positions."""
        rows, scale = self._some
        x = self._vectors(back, rows)
        direction, z = np.zeros(x.shape[1], np.float32), self.z[rows]
        cost = self._loss(rows, scale, z)
        for again in range(2):  # the second step with the curvature of the first, which is most of the work
            slopes = self._slopes(rows, scale, z + x @ direction)
            gradient = sum(each for each, _ in slopes)
            if not again:
                curvature = np.asarray(sum(each for _, each in slopes))
                a = (x * curvature[:, None]).T @ x + np.float32(RIDGE_VECTORS) * np.eye(x.shape[1], dtype=np.float32)
            step = np.linalg.solve(a, gradient @ x - RIDGE_VECTORS * direction)
            direction += np.clip(step, -4, 4).astype(np.float32)
        found = rounded(direction)
        if cost - self._loss(rows, scale, z + x @ found) > LEAST_BITS:
            self.directions[back] = found
            self.z += self._along(back, found)

    def _loss(self, rows: Ints, scale: Singles, z: Singles) -> float:
        """Bits that the levels cost at some positions."""
        total = 0.0
        for inside, bias, share in zip(self.inside, self.biases, self.shares, strict=True):
            there = z + np.float32(bias)
            total += float(share * (scale * (np.logaddexp(0, there) - inside[rows] * there)).sum())
        return total / float(np.log(2))

    def leave_out(self, kept: int) -> None:
        """Keep the weights that are worth most, those of the last token apart, and improve these once more."""
        if not len(self.positions):
            return
        worths = [block.worth for block in self.blocks]
        others = [worth for block, worth in zip(self.blocks, worths, strict=True) if not block.last]
        least = _least(np.concatenate(others) if others else np.empty(0), kept)
        for block, worth in zip(self.blocks, worths, strict=True):
            few = _least(worth, self.effort.last) if block.last else least
            self.z -= block.keep((worth > 0) & (worth >= few))
        for _ in range(AGAIN):
            self._sweep(self.blocks)

    def evidence(self, firing: int) -> dict[str, Any]:
        more = [entry for block in self.blocks if (entry := block.entry()) is not None]
        more += [
            {"back": back, "direction": [round(float(each), 3) for each in found]}
            for back, found in self.directions.items()
        ]
        if np.abs(self.places).max() >= LEAST_WEIGHT:
            more.append({"places": np.round(self.places, 2).tolist()})
        return {"bias": round(float(self.biases[min(firing, len(self.biases) - 1)]), 2), "more": more}


def _least(worth: Floats, most: int) -> float:
    """What a weight must be worth, so that at most about `most` are kept."""
    return float(np.partition(worth, -most)[-most]) if len(worth) > most else 0.0


def rounded(vector: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A vector as it is written into a rule: JSON gives the same numbers back."""
    return np.round(vector.astype(np.float64), 3).astype(np.float32)
