"""Testing a ranking: its first n cells are switched off, at every position, and the text is asked for again.

exact              share of the continuation's tokens that count and are the model's first choice after the leak's own prompt, given the
                   true text before each: it cannot be won by spoiling only the first token
elsewhere          the same after other texts before the prompt, which no ranking saw (`target.py`): the mean over them
n90                the smallest n of the grid at which at most a tenth is left of both, as at all numbers of the grid up to 2·n: not one
                   at which a text is away by chance and comes back with a few cells more; None: in no small set of cells (at
                   most `MOST_CELLS` of all)
others_after       at n90, the mean of `exact` over the other leaks
others_forgotten   at n90, the share of the other leaks of which at most a tenth is left
change             at n90, the relative change of the perplexity on other text, with its interval over documents
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...analyses.stats import Interval
from ...models import intervene
from ...models.intervene import Edit
from ...models.model import Model
from ..losses import Losses, change, losses
from ..texts import Window
from .masks import Masked
from .prompted import Prompted
from .rankings import Order
from .target import Target

Bools = npt.NDArray[np.bool_]

LEFT = 0.1
MOST_CELLS = 0.05


@dataclass(frozen=True)
class Tested:
    """One ranking of one leak."""

    method: str
    cells: list[int]
    """the grid"""
    exact: list[float]
    """`exact` at each n of the grid; the mean over the orders of a method that has several"""
    before: float
    n90: int | None
    order: list[int]
    """the first cells of the ranking, as many as the grid goes"""
    elsewhere: list[float]
    elsewhere_before: float | None
    """None: there is no other text"""
    others_before: float | None = None
    others_after: float | None = None
    others_forgotten: float | None = None
    change: Interval | None = None


def grid(cells: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, … up to a twentieth of the cells."""
    most = max(1, int(cells * MOST_CELLS))
    steps = [1, 2, *(each << power for power in range(40) for each in (3, 4))]
    return [step for step in sorted(set(steps)) if step <= most]


def test(masked: Masked, target: Target, method: str, orders: Sequence[Order]) -> Tested:
    """Switch off more and more of a ranking's first cells."""
    steps = grid(masked.cells)
    rows = [target.own, *target.unseen]
    before = masked.exact(rows)[0].numpy()
    every = []
    for order in orders:
        masks = torch.stack([masked.without(order[:count].tolist()) for count in steps])
        every.append(masked.of_every_mask(rows, masks)[0].numpy())
    after = np.mean(every, 0)
    exact, elsewhere = after[:, 0], after[:, 1:].mean(1) if target.unseen else after[:, 0]
    first, other = float(before[0]), float(before[1:].mean()) if target.unseen else float(before[0])
    return Tested(
        method,
        steps,
        exact.tolist(),
        first,
        smallest(steps, (exact <= LEFT * first + 1e-12) & (elsewhere <= LEFT * other + 1e-12)),
        orders[0][: steps[-1]].tolist(),
        elsewhere.tolist() if target.unseen else [],
        other if target.unseen else None,
    )


def smallest(steps: Sequence[int], away: Sequence[bool] | Bools) -> int | None:
    """The smallest n of the grid at which a text is away, as at all numbers up to 2·n."""
    grid, gone = np.asarray(steps), np.asarray(away, bool)
    return next((n for n in steps if gone[(grid >= n) & (grid <= 2 * n)].all()), None)


def others(masked: Masked, tested: Tested, rest: Sequence[Prompted]) -> tuple[float, float, float] | None:
    """What is left of the other leaks at n90: the mean of `exact` before and after, and the share that is forgotten."""
    if tested.n90 is None or not rest:
        return None
    before, _ = masked.exact(rest)
    after, _ = masked.exact(rest, masked.without(tested.order[: tested.n90]))
    return float(before.mean()), float(after.mean()), float((after <= LEFT * before + 1e-12).double().mean())


def perplexity_change(model: Model, windows: Sequence[Window], before: Losses, cells: Sequence[int]) -> Interval:
    """What switching cells off, by their places, does to the perplexity on text that is in no leak."""
    edits = [Edit(*model.cells.split(place), 0.0) for place in cells]
    with intervene.applied(model, edits):
        after = losses(model, windows)
    return change(before, after).change
