"""Memories whose cells are known: the INJ benchmark (Chang, Thomason, Jia 2024).

Only the values of a few random cells are trained on a text, until the model says it by heart. A ranking is then asked where that text
is.

    recall at k   share of the injected cells among the first k of a ranking; a random ranking has k ÷ cells
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.sites import Site
from .masks import Masked
from .prompted import Prompted
from .rankings import Order

CERTAIN = -0.05
"""The training ends if the mean log-probability of a token is above this, in nats."""


class Injected(NamedTuple):
    exact: float
    """share of the tokens that are the first choice now"""
    steps: int


@contextlib.contextmanager
def injected(
    masked: Masked, text: Prompted, cells: Sequence[int], *, steps: int = 200, rate: float = 0.02
) -> Iterator[Injected]:
    """The model with a text in the values of these cells, inside the `with`. Adam changes the values; all other weights stay."""
    model = masked.model
    parts: list[tuple[Site, Tensor]] = []
    for site, span in zip(model.sites, model.cells.sites, strict=True):
        own = [place - span.start for place in cells if span.start <= place < span.stop]
        if own:
            parts.append((site, torch.tensor(own, device=site.device)))
    weights = [weight for site, _ in parts if isinstance(weight := site.module.weight, Tensor)]
    with model.lock:
        kept = [site.values[rows].clone() for site, rows in parts]
        moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in kept]
        try:
            for weight in weights:
                weight.requires_grad_(True)
            done = Injected(0.0, 0)
            for step in range(1, steps + 1):
                found = masked.read([text])
                done = Injected(float(found.exact[0].detach()), step)
                if done.exact == 1.0 and float(found.total[0].detach()) / len(text.continuation) > CERTAIN:
                    break
                gradients = torch.autograd.grad(-found.total.sum(), weights)
                with torch.no_grad():
                    for (site, rows), gradient, (mean, square) in zip(parts, gradients, moments, strict=True):
                        change = (gradient if site.transposed else gradient.T)[rows]
                        mean.mul_(0.9).add_(change, alpha=0.1)
                        square.mul_(0.99).add_(change**2, alpha=0.01)
                        change = mean / (1 - 0.9**step) / ((square / (1 - 0.99**step)).sqrt() + 1e-8)
                        site.values[rows] -= rate * change
            for weight in weights:
                weight.requires_grad_(False)
            yield done
        finally:
            with torch.no_grad():
                for weight in weights:
                    weight.requires_grad_(False)
                for (site, rows), before in zip(parts, kept, strict=True):
                    site.values[rows] = before


def recall(order: Order, cells: Sequence[int], k: int) -> float:
    """The share of the cells among the first k of a ranking."""
    return len(set(order[:k].tolist()) & set(cells)) / len(cells)
