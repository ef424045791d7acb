"""The strength a value has when its cell fires: what softmax of a value means in a model with a final norm.

A cell adds m·v to the residual. The final norm divides the residual by its size σ, so the cell's part of the logits is
m·(g ⊙ v)·E/σ, where g is the norm's gain. Softmax of v·E alone is nearly uniform in such a model, because values are short and
the unembedding expects what a norm gives. So a value is read at the strength m/σ, with

    m   the coefficient at the cell's top-1 trigger
    σ   the final norm's divisor: the median over the ends of `SAMPLED` top-1 triggers, drawn at random from all cells

σ varies little from prefix to prefix, so one number serves all cells; to have each cell's own would take a forward pass over every
top-1 trigger. If there is a norm between a layer and the residual, m is divided by that norm's divisor too, measured in the same
way per layer. A logit scale of the head (Cohere, Granite) is part of the strength.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..common.batching import batch_by_length
from ..lens.head import Head
from ..lens.lenses import Norm
from ..models.states import States, states
from ..store.run import Run

SAMPLED = 64
"""Top-1 triggers that the divisors are measured on."""


def at_triggers(run: Run, head: Head) -> tuple[npt.NDArray[np.float32], float]:
    """Per cell the strength m/σ of its value at its top-1 trigger, NaN if it has none; and σ."""
    first = np.asarray(run.coefficients[:, 0], np.float64)
    chosen = _draw(run)
    if not len(chosen):
        return np.full(len(first), np.nan, np.float32), 1.0
    final, between = _divisors(run, head, chosen)
    strengths = first * head.scale / final
    for layer, divisor in between.items():
        strengths[run.cells.span(layer)] /= divisor
    return strengths.astype(np.float32), final


def _draw(run: Run) -> npt.NDArray[np.int64]:
    """The cells whose top-1 triggers are used."""
    alive = np.flatnonzero(run.units[:, 0] >= 0)
    return np.sort(np.random.default_rng(0).permutation(alive)[:SAMPLED])


@torch.inference_mode()
def _divisors(run: Run, head: Head, chosen: npt.NDArray[np.int64]) -> tuple[float, dict[int, float]]:
    """The divisor of the final norm, and by layer that of the norm between layer and residual, if there is one."""
    model, config = head.model, run.manifest["config"]
    prefixes = [_prefix(run, int(place)) for place in chosen]
    final: list[Tensor] = []
    between: dict[int, list[Tensor]] = {}
    for numbers in batch_by_length([len(ids) for ids in prefixes], int(config["batch_tokens"])):
        batch = model.batch([prefixes[number] for number in numbers], bos=bool(config["bos"]))
        ends = torch.tensor([batch.n_special + len(prefixes[number]) - 1 for number in numbers])
        seen = states(model, batch.ids, ends)
        final.append(divisor(head.norm, seen.o[-1], head.exact_norm(seen.o[-1])))
        for layer in range(run.layers):
            if (norm := head.post_norm(layer)) is not None:
                between.setdefault(layer, []).append(divisor(norm, _before(head, layer, seen), seen.y[layer]))
    medians = {layer: float(torch.cat(parts).median()) for layer, parts in between.items()}
    return float(torch.cat(final).median()), medians


def _prefix(run: Run, place: int) -> list[int]:
    unit, position = int(run.units[place, 0]), int(run.positions[place, 0])
    run.check_places(run.units[place, :1], run.positions[place, :1])
    return [int(token) for token in run.unit_tokens(unit)[run.window_start(position) : position + 1]]


def _before(head: Head, layer: int, seen: States) -> Tensor:
    """What a layer computes, before the norm between it and the residual."""
    bias = head.model.bias(layer)
    made = seen.coefficients[layer].float() @ head.model.values(layer).float()
    return made if bias is None else made + bias.float()


def divisor(norm: Norm, before: Tensor, after: Tensor) -> Tensor:
    """What a norm divided each row by, from its input and output: after = fold(before)/divisor + bias."""
    found: Tensor = norm.fold(before).norm(dim=1) / (after - norm.bias).norm(dim=1)
    return found
