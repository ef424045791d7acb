"""What pruning does to a model: methods × shares, each measured on text that nothing was fitted to.

One pass over the run's text gives the moments of a group of layers, and every method its order and its cuts. All cuts are made
first; then the model is run once per method and share. The whole model is measured on the same tokens.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import ModelError
from ...models.model import Model
from ..losses import Change, Losses, batches, change, losses
from ..texts import Window
from .calibrate import calibrate, groups
from .cuts import Cut, by_cost, can_have_biases, check_total, cut_of, masked, uniform
from .methods import METHODS, Layer, Method, Order, layer_of

Begin = Callable[[int], Callable[[int], None]]


@dataclass
class Plan:
    """The orders of a method, and its cuts by share."""

    method: Method
    orders: list[Order] = field(default_factory=list)
    cuts: dict[float, list[Cut]] = field(default_factory=dict)


def plans(
    model: Model,
    names: Sequence[str],
    shares: Sequence[float],
    windows: Sequence[Window],
    *,
    whole: bool = False,
    as_published: bool = False,
    seed: int = 0,
    begin: Begin = lambda total: lambda done: None,
) -> dict[str, Plan]:
    """The cuts of some methods at some shares of cells that go. `whole`: layers may keep different numbers of cells. `as_published`:
    see `cut_of`."""
    methods = [METHODS[name] for name in names]
    found = {method.name: Plan(method) for method in methods}
    widths = [site.width for site in model.sites]
    bias, pairs = can_have_biases(model), any(method.pairs for method in methods)
    pull = any(method.pull for method in methods)
    # before any work: a share that is not possible is refused
    for share in shares if whole else ():
        check_total(widths, share)
    counts = {} if whole else {share: uniform(widths, share) for share in shares}
    passes = list(groups(model, pairs))
    advance = begin((1 + whole) * len(passes) * sum(len(window.ids) for window in windows))

    def looked(*, pull: bool) -> Iterator[Layer]:
        for layers in passes:
            needs: dict[str, Any] = {"pairs": pairs, "pull": pull, "seed": seed}
            moments = calibrate(model, windows, layers, begin=lambda total: advance, **needs)
            for layer in layers:
                yield layer_of(model, layer, moments.pop(layer), bias=bias)

    def put_aside(plan: Plan, share: float, layer: Layer, order: Order, count: int) -> None:
        own = cut_of(layer, order, count, plan.method.repair, as_published=as_published)
        # in main memory, in the type of the model: the cuts of all methods and shares are there at once
        values, added = (None if each is None else each.to("cpu", model.dtype) for each in (own.values, own.bias))
        plan.cuts.setdefault(share, []).append(Cut(own.stay, values, added))

    for layer in looked(pull=pull):
        for plan in found.values():
            order = plan.method.order(layer, seed)
            plan.orders.append(order)
            for share in counts:
                put_aside(plan, share, layer, order, counts[share][layer.number])
    if whole:
        # how many go per layer is known after all layers were looked at
        chosen = {
            (plan.method.name, share): by_cost(widths, plan.orders, share, plan.method)
            for plan in found.values()
            for share in shares
        }
        for layer in looked(pull=False):
            for plan in found.values():
                for share in shares:
                    count = chosen[plan.method.name, share][layer.number]
                    put_aside(plan, share, layer, plan.orders[layer.number], count)
    return found


def measured(
    model: Model, windows: Sequence[Window], before: Losses, cuts: Sequence[Cut], begin: Begin
) -> tuple[Change, Losses]:
    """What becomes of a model on a text with these cuts."""
    with masked(model, cuts):
        after = losses(model, windows, begin)
    found = change(before, after)
    if not math.isfinite(found.after.value):
        raise ModelError(
            f"Without {1 - sum(len(cut.stay) for cut in cuts) / len(model.cells):.0%} of its cells, what the model says is NaN in "
            f"{str(model.dtype).removeprefix('torch.')}. Give it in a wider type: model=keyhole.load(MODEL, dtype='float32'). What was "
            "measured before is kept."
        )
    return found, after


def row(model: Model, method: str, cuts: Sequence[Cut], share: float, scope: str, found: Change) -> dict[str, Any]:
    """What is stored of one method at one share."""
    return {
        "method": method,
        "scope": scope,
        "share": share,
        "gone": sum(site.width - len(cut.stay) for site, cut in zip(model.sites, cuts, strict=True)),
        "parameters": left(model, cuts),
        "bias": can_have_biases(model),
        "perplexity_before": found.before.value,
        "perplexity": found.after.value,
        "perplexity_lo": found.after.lo,
        "perplexity_hi": found.after.hi,
        "change": found.change.value,
        "change_lo": found.change.lo,
        "change_hi": found.change.hi,
        "agreement": found.agreement.value,
        "agreement_lo": found.agreement.lo,
        "agreement_hi": found.agreement.hi,
    }


def parameters(model: Model) -> int:
    """Weights of a model, shared ones once."""
    return sum(weight.numel() for weight in model.lm.parameters())


def left(model: Model, cuts: Sequence[Cut]) -> int:
    """Weights of the model with these cuts: without keys, values, gates and biases of the cells that go, and with the biases that a
    refitted layer of an architecture without any is given."""
    found = parameters(model)
    given = any(cut.bias is not None for cut in cuts) and any(site.bias is None for site in model.sites)
    keys_too = given and can_have_biases(model)  # a setting of the architecture gives all projections one
    for site, cut in zip(model.sites, cuts, strict=True):
        size = site.values.shape[1]
        each = size  # weights of one cell: its value first
        for projection in filter(None, (site.key, site.up)):
            biased = getattr(projection.module, "bias", None) is not None
            each += projection.rows.shape[1] + int(biased)
            found += len(cut.stay) if keys_too and not biased else 0
        found -= each * (site.width - len(cut.stay))
        found += size if given and site.bias is None else 0
    return found


# Speed

TIMES = 7
"""Runs of each model."""


def speed(whole: Model, smaller: Model, windows: Sequence[Window]) -> dict[str, float]:
    """Tokens per second of the two models' blocks, in turns on one batch of the text: medians, and their ratio with the smallest
    and the largest of the turns."""
    rows = batches(whole, windows)[0]
    batch = whole.batch([windows[row].ids for row in rows])
    tokens = sum(len(windows[row].ids) for row in rows)
    took: dict[str, list[float]] = {"whole": [], "smaller": []}
    for turn in range(TIMES + 1):
        for name, model in (("whole", whole), ("smaller", smaller)):
            _wait(model)
            began = time.perf_counter()
            model.forward(batch.ids)
            _wait(model)
            if turn:  # the first run makes what the later ones reuse
                took[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(took["whole"], took["smaller"], strict=True)]
    return {
        "tokens_per_second_before": tokens / statistics.median(took["whole"]),
        "tokens_per_second_after": tokens / statistics.median(took["smaller"]),
        "faster": statistics.median(ratios),
        "faster_least": min(ratios),
        "faster_most": max(ratios),
    }


def _wait(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
