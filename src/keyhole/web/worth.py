"""Cells to begin with: those whose values promote the tokens that follow their triggers, and more than common words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..store.run import Run

COMMON = 0.05
"""A token with at least this share of the corpus counts nothing: that a value promotes it shows little."""
FRAGMENT = 0.5
"""Weight of a token that does not begin a word, relative to one that does."""
DIFFERENT = 5
"""Promoting several different next tokens counts more than promoting one repeatedly, up to this number of them."""
PER_LAYER = 2
"""Upper bound on the cells of one layer, so that several layers are shown."""


def speaking(
    run: Run,
    promoted: npt.NDArray[np.integer],
    follows: Callable[[int], npt.NDArray[np.integer]],
    count: int,
) -> list[str]:
    """Addresses of the cells whose values promote most of what follows their triggers, the best first. No two of them promote
    the same tokens.

    `promoted` [cells, k] are the tokens that the values promote most. `follows(layer)` [cells of the layer, t] are the tokens
    that follow each trigger, −1 if there is none.
    """
    weights = _weights(run)
    layers = run.cells.by_layer(np.asarray(promoted))
    scores = np.concatenate([_scores(part, follows(layer), weights) for layer, part in enumerate(layers)])
    chosen: list[tuple[int, str]] = []
    said: list[set[str]] = []
    for place in np.argsort(-scores, kind="stable")[: 100 * count].tolist():
        layer, _ = run.cells.split(place)
        if scores[place] <= 0 or len(chosen) == count:
            break
        words = {run.vocabulary.piece(token).strip().lower() for token in promoted[place, :8].tolist()}
        full = sum(other == layer for other, _ in chosen) >= PER_LAYER
        if not full and all(len(words & others) < 2 for others in said):
            said.append(words)
            chosen.append((layer, run.cells.address(place)))
    return [address for _, address in chosen]


def _weights(run: Run) -> npt.NDArray[np.float64]:
    """The weight of each token: the rarer, the larger; 0 for a token without a letter."""
    tokens = np.asarray(run.tokens)
    counts = np.bincount(tokens, minlength=1)
    weights: npt.NDArray[np.float64] = np.log(COMMON) - np.log(np.maximum(counts, 1) / max(len(tokens), 1))
    for token in np.flatnonzero(counts).tolist():
        piece = run.vocabulary.piece(token)
        weights[token] *= FRAGMENT if piece[:1] != " " else 1
        weights[token] *= any(letter.isalpha() for letter in piece)
    return np.where(counts > 0, np.maximum(weights, 0), 0)


def _scores(
    promoted: npt.NDArray[np.integer], follows: npt.NDArray[np.integer], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """[cells] the mean weight per trigger of the next tokens that the value promotes, larger if they differ."""
    named = np.zeros(follows.shape, bool)
    for slot in range(promoted.shape[1]):
        named |= follows == promoted[:, slot, None]
    named &= follows >= 0
    kept = np.sort(np.where(named, follows, -1), axis=1)
    different = ((kept[:, 1:] != kept[:, :-1]) & (kept[:, 1:] >= 0)).sum(1) + (kept[:, 0] >= 0)
    average = (named * weights[np.maximum(follows, 0)]).sum(1) / np.maximum((follows >= 0).sum(1), 1)
    found: npt.NDArray[np.float64] = average * np.sqrt(np.minimum(different, DIFFERENT))
    return found
