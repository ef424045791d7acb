"""Blocks of weights: many small steps end where a general optimiser does, and a block that lost weights says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize

from keyhole.patterns.blocks import Block, Together, Within
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.packing import unpacked
from keyhole.patterns.text import Text

TOKENS, RIDGE, FARTHEST = 8, 2.0, 5
TEXT = Text.of(
    [np.random.default_rng(number).integers(0, TOKENS, 3 + number % 9).tolist() for number in range(60)],
    np.arange(60),
    Lexicon([f" w{token}" for token in range(TOKENS)]),
)
POSITIONS = np.arange(len(TEXT))
MADE: dict[str, Callable[[], Block]] = {
    "one place": lambda: Together(TEXT, POSITIONS, (1,), RIDGE),
    "two together": lambda: Together(TEXT, POSITIONS, (0, 2), RIDGE),
    "anywhere": lambda: Within(TEXT, POSITIONS, FARTHEST, RIDGE),
}


def grams(name: str, position: int) -> list[int]:
    """What has a weight at a position, as numbers, read off the text by hand."""
    begin = TEXT.offsets[TEXT.windows[position]]
    prefix = TEXT.tokens[begin : position + 1].tolist()
    if name == "one place":
        return prefix[-2:-1]
    if name == "two together":
        return [prefix[-1] * TOKENS + prefix[-3]] if len(prefix) > 2 else []
    return prefix[-1 - FARTHEST : -1]


def dense(name: str, block: Block) -> np.ndarray:
    """[positions, weights] how often each weight counts."""
    found, number = np.zeros((len(TEXT), len(block.grams))), {gram: i for i, gram in enumerate(block.grams.tolist())}
    for position in POSITIONS.tolist():
        for gram in grams(name, position):
            found[position, number[gram]] += 1
    return found


@pytest.mark.parametrize("name", MADE)
def test_steps_end_at_the_optimum(name: str) -> None:
    random = np.random.default_rng(1)
    block = MADE[name]()
    x, y = dense(name, block), random.random(len(TEXT)) < 0.4
    weight = random.integers(1, 5, len(TEXT))

    def cost(weights: np.ndarray) -> float:
        z = x @ weights
        return float((weight * (np.logaddexp(0, z) - y * z)).sum() + RIDGE / 2 * (weights @ weights))

    z, costs = np.zeros(len(TEXT), np.float32), []
    for _ in range(400):
        p = 1 / (1 + np.exp(-z))
        z += block.step((weight * (y - p)).astype(np.float32), (weight * p * (1 - p)).astype(np.float32))
        costs.append(cost(block.weights))
    best = minimize(cost, np.zeros(len(block.grams)), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(block.weights, best.x, atol=2e-3)
    np.testing.assert_allclose(z, x @ block.weights, atol=1e-3)
    assert (np.diff(costs) < 1e-3).all()
    assert block.weights[0] == 0


@pytest.mark.parametrize("name", MADE)
def test_what_is_left_out_is_lost_where_it_stood(name: str) -> None:
    random, block = np.random.default_rng(2), MADE[name]()
    x = dense(name, block)
    block.weights[1:] = random.normal(size=len(block.grams) - 1)
    before, which = x @ block.weights, random.random(len(block.grams)) < 0.5
    which[0] = False
    kept = block.grams[which].tolist()
    assert 0 < len(kept) < len(block.grams) - 1
    lost = before - x @ np.where(which, block.weights, 0)
    np.testing.assert_allclose(block.keep(which), lost, atol=1e-5)
    assert block.grams.tolist() == [-1, *kept]
    gained = block.step(*random.random((2, len(TEXT))).astype(np.float32))
    only = np.isin(range(x.shape[1]), np.flatnonzero(which))
    assert (gained[x[:, only].sum(1) == 0] == 0).all()
    assert (gained[x[:, only].sum(1) > 0] != 0).all()


def test_an_entry_says_where_its_tokens_stand() -> None:
    for name, where in (
        ("one place", {"back": 1}),
        ("two together", {"back": [0, 2]}),
        ("anywhere", {"back": 1, "farthest": FARTHEST}),
    ):
        block = MADE[name]()
        assert block.entry() is None
        block.weights[1], block.weights[2] = 0.01, 1.25
        entry = block.entry()
        assert entry is not None
        assert {key: each for key, each in entry.items() if key not in ("ids", "weights")} == where
        assert unpacked(entry["ids"]).tolist() == [block.grams[2]]
        assert unpacked(entry["weights"]).tolist() == [125]
