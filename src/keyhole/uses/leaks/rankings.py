"""Which cells hold a text: rankings of all cells of a model, the one to switch off first in front.

f is the log-probability of the continuation after its prompt, in nats, the mean over the prompts that rankings see (`target.py`); m a
cell's coefficient, v its value.

    learned                a mask over all cells, learned for this text by `LEARNING` steps of gradient descent: it starts at 1
                           everywhere, and is moved to make every token of the continuation lose its first place (Σ max(0, margin + 1)),
                           while each cell that is taken away costs `COST`, and each nat per token that other text becomes less likely
                           costs `KEEP`. Ranked by how much of a cell is taken away. Without the last it is published as Slimming:
                           sparse scaling factors. It alone is fitted to what is tested, so all are tested on other prompts and text
    effect                 the ablation effect to first order: Σ over positions of m·∂f/∂m, from one backward pass
    ablation               the first `MEASURED` cells of `effect`, ranked by what switching each of them off alone takes from f
    integrated_gradients   the gradient along the path from all coefficients at 0 to what they are, `STEPS` points: Σ over all cells is
                           f(m) − f(0), up to the error of the sum (which is large if a norm stands between a layer and the residual:
                           such a norm undoes the scaling until the very beginning of the path)
    activity               Σ over prompts and the positions that predict the continuation of |m|·‖v‖
    triggers               how many of the cell's stored triggers lie in copies of the text in the run
    random                 a random order, `SEEDS` times; what is measured is the mean

A tie is decided at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...store.run import Run
from .masks import Masked
from .prompted import Prompted
from .target import Target

METHODS = ("learned", "integrated_gradients", "ablation", "effect", "activity", "triggers", "random")
COST = 0.1
KEEP = 30.0
LEARNING = 40
"""Steps of gradient descent."""
RATE = 0.1
STEPS = 16
MEASURED = 128
MASKS = 32
"""Masks at a time: each is as long as the model has cells."""
SEEDS = 3

Ints = npt.NDArray[np.int64]
Order = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


def rankings(
    masked: Masked, target: Target, run: Run | None = None, *, seed: int = 0, methods: Sequence[str] = METHODS
) -> dict[str, list[Order]]:
    """Per method the places of all cells, the first first; `random` has several orders. `triggers` is missing if the run's text
    holds no copy of the continuation."""
    found: dict[str, list[Order]] = {}
    rows = target.fitted
    first = effect(masked, rows) if {"effect", "ablation"} & set(methods) else None
    for method in methods:
        if method == "random":
            draws = [np.random.default_rng([seed, each]) for each in range(SEEDS)]
            found[method] = [draw.permutation(masked.cells) for draw in draws]
            continue
        if method == "triggers":
            counts = None if run is None else triggers(run, target.own)
            if counts is not None:
                found[method] = [order(counts, seed)]
            continue
        if method in ("effect", "ablation"):
            assert first is not None
            scores = first if method == "effect" else ablation(masked, rows, first)
        elif method == "learned":
            scores = learned(masked, rows, target.keep)
        else:
            scores = SCORES[method](masked, rows)
        found[method] = [order(scores, seed)]
    return found


def order(scores: Scores, seed: int = 0) -> Order:
    """Places by score, the largest first, ties at random."""
    ties = np.random.default_rng(seed).permutation(len(scores))
    return np.lexsort((ties, -scores)).astype(np.int64)


def effect(masked: Masked, rows: Sequence[Prompted]) -> Scores:
    return _array(masked.gradient(rows, masked.ones())[0])


def integrated_gradients(masked: Masked, rows: Sequence[Prompted], steps: int = STEPS) -> Scores:
    total = torch.zeros(masked.cells, device=masked.model.device, dtype=torch.float64)
    for at in range(steps):
        total += masked.gradient(rows, masked.ones() * ((at + 0.5) / steps))[0].double()
    return _array(total / steps)


def ablation(masked: Masked, rows: Sequence[Prompted], first: Scores, count: int = MEASURED) -> Scores:
    """The first cells of another ranking by what switching them off takes; the others follow as they were."""
    cells = order(first)[:count]
    before = float(masked.exact(rows)[1].mean())
    lost = []
    for at in range(0, len(cells), MASKS):
        part = cells[at : at + MASKS]
        masks = masked.ones().repeat(len(part), 1)
        masks[torch.arange(len(part)), torch.as_tensor(part)] = 0
        lost.append(before - masked.of_every_mask(rows, masks)[1].mean(1).numpy())
    measured = np.concatenate(lost)
    scores: Scores = first - first.max() + measured.min() - 1.0
    scores[cells] = measured
    return scores


def activity(masked: Masked, rows: Sequence[Prompted]) -> Scores:
    model = masked.model
    found = np.zeros(masked.cells)
    norms = [site.values.float().norm(dim=1) for site in model.sites]
    for row in rows:
        batch = model.batch([[*row.prefix, *row.continuation]])
        begin = batch.n_special + len(row.prefix) - 1
        asked = torch.arange(len(row.continuation))
        places = begin + (asked if row.counted is None else asked[list(row.counted)])

        def keep(site: int, x: Tensor, places: Tensor = places) -> None:
            found[model.cells.sites[site]] += _array(x[places.to(x.device)].float().abs().sum(0) * norms[site])

        model.run_every_token(batch.ids, keep)
    return found


def learned(masked: Masked, rows: Sequence[Prompted], keep: Sequence[Prompted] = (), steps: int = LEARNING) -> Scores:
    """How much of each cell is taken away: above 0, and at most 1. Cells that keep all follow by the gradient, below 0. `keep` is other
    text, one of which is looked at per step: it counts if it is less likely than with all cells."""
    mask = masked.ones()
    mean, square = torch.zeros_like(mask), torch.zeros_like(mask)
    gradient = mask
    likely = masked.exact(keep)[1] if keep else torch.zeros(0)
    for step in range(1, steps + 1):
        gradient, _ = masked.gradient(rows, mask, "hinge")
        if keep:
            which = step % len(keep)
            other, scores = masked.gradient([keep[which]], mask)
            if float(scores.total[0]) < float(likely[which]):
                gradient = gradient - KEEP / len(keep[which].continuation) * other
        pull = gradient - COST
        mean, square = 0.9 * mean + 0.1 * pull, 0.99 * square + 0.01 * pull**2
        change = mean / (1 - 0.9**step) / ((square / (1 - 0.99**step)).sqrt() + 1e-3)
        mask = (mask - RATE * change).clamp(0, 1)
    taken = _array(1 - mask)
    rest = _array(gradient)
    found: Scores = np.where(taken > 0, taken, (rest - rest.max() - 1e-9) / (np.abs(rest).max() + 1e-9))
    return found


def triggers(run: Run, text: Prompted) -> Scores | None:
    """[cells] how many of a cell's stored triggers lie where the continuation stands; None if it does not stand in the run's text."""
    tokens, ids = np.asarray(run.tokens), text.continuation
    starts = np.flatnonzero(tokens[: len(tokens) - len(ids) + 1] == ids[0])
    for at, token in enumerate(ids):
        starts = starts[tokens[starts + at] == token]
    if not len(starts):
        return None
    inside = np.zeros(len(tokens) + 1, bool)
    for at in range(len(ids)):
        inside[np.maximum(starts + at - 1, 0)] = True
    offsets = np.asarray(run.unit_offsets)
    counts = np.zeros(len(run.cells))
    for side in run.sides.values():
        units, positions = np.asarray(side.units), np.asarray(side.positions)
        filled = units >= 0
        places = np.where(filled, offsets[np.maximum(units, 0)] + positions, len(tokens))
        counts += inside[places].sum(1)
    return counts


SCORES: dict[str, Callable[[Masked, Sequence[Prompted]], Scores]] = {
    "integrated_gradients": integrated_gradients,
    "activity": activity,
}


def _array(x: Tensor) -> Scores:
    found: Scores = x.detach().double().cpu().numpy()
    return found
