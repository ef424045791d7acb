"""From an order of cells to a smaller model: how many go per layer, what the others get, and the two ways to run it.

`masked` runs the model with the values of the cells that are gone at 0; nothing changes its size, and it is as before afterwards.
`cut` takes the cells out. Both compute the same.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...models import resize
from ...models.model import Model
from ...models.widths import SETTING
from .methods import Layer, Method, Order, flap, standardised
from .refit import refitted


@dataclass(frozen=True)
class Cut:
    """What becomes of a layer."""

    stay: Tensor
    """[n] the cells that stay, ascending"""
    values: Tensor | None = None
    """[n, model] their values, if they are not as they were"""
    bias: Tensor | None = None
    """[model] what is added to the layer's bias"""


# How many go


def check_share(share: float) -> float:
    """The share of cells that go: more than none, fewer than all."""
    if not 0 < share < 1:
        raise UsageError(
            f"A share of {share:g} of the cells cannot go: it must be above 0 and below 1. To keep three quarters: --keep 0.75."
        )
    return share


def uniform(widths: Sequence[int], share: float) -> list[int]:
    """How many cells of each layer go, if every layer loses the same share."""
    counts = [round(check_share(share) * width) for width in widths]
    if not all(counts) or any(count >= width for count, width in zip(counts, widths, strict=True)):
        raise UsageError(
            f"{share:g} of {min(widths)} cells is {min(counts)}: at least one cell must go and one must stay per layer."
        )
    return counts


def check_total(widths: Sequence[int], share: float) -> None:
    """Refuse a share of all cells that is none of them."""
    if not round(check_share(share) * sum(widths)):
        raise UsageError(f"{share:g} of {sum(widths):,} cells is none: at least one must go.")


def by_cost(widths: Sequence[int], orders: Sequence[Order], share: float, method: Method) -> list[int]:
    """How many cells of each layer go, if those of all layers are compared. One at least stays in each."""
    check_total(widths, share)
    costs = [order.costs for order in orders]
    if method.order is flap:
        costs = [standardised(each) for each in costs]
    costs = [each[: width - 1] for each, width in zip(costs, widths, strict=True)]
    costs = [each.cummax(0).values if len(each) else each for each in costs]  # in each layer its own order
    total = min(round(share * sum(widths)), sum(map(len, costs)))
    layers = torch.cat([torch.full((len(each),), number) for number, each in enumerate(costs)])
    first = torch.cat(costs).argsort(stable=True)[:total]
    return torch.bincount(layers[first], minlength=len(widths)).tolist()


# What the others get


def cut_of(layer: Layer, order: Order, count: int, repair: str, *, as_published: bool = False) -> Cut:
    """What becomes of a layer if the first `count` cells of the order go. `as_published`: FLAP's bias is there, also if no checkpoint of
    the architecture can hold it."""
    gone = order.cells[:count]
    there = torch.ones(layer.cells, dtype=torch.bool)
    there[gone] = False
    stay = there.nonzero()[:, 0]
    values, moments = layer.values, layer.moments
    if repair == "refit" and count:
        centred = layer.refittable_bias
        mean = moments.mean if centred else None
        return Cut(stay, *refitted(moments.second(centred=centred), values, stay.to(values.device), mean))
    if repair == "mean" and (layer.refittable_bias or as_published):
        mean = moments.mean[gone].to(values.device)
        return Cut(stay, None, (mean @ values[gone].double()).to(values.dtype))
    if repair == "merge":
        return Cut(stay, _merged(values, order, count)[stay])
    return Cut(stay)


def _merged(values: Tensor, order: Order, count: int) -> Tensor:
    """The values after those of the first `count` cells were added to their twins', one after the other."""
    assert order.twins is not None
    assert order.factors is not None
    values = values.clone()
    for cell, twin, factor in zip(order.cells[:count], order.twins[:count], order.factors[:count], strict=True):
        if twin >= 0:
            values[twin] += float(factor) * values[cell]
    return values


# Running it


@contextlib.contextmanager
def masked(model: Model, cuts: Sequence[Cut]) -> Iterator[None]:
    """Run the model as if it were cut, inside the `with`. Afterwards, also after an error, it is as before."""
    with model.lock, contextlib.ExitStack() as stack:
        for site, each in zip(model.sites, cuts, strict=True):
            stack.callback(_put, site.module, site.values, site.values.clone(), site.bias)
            values, stay = torch.zeros_like(site.values), each.stay.to(site.device)
            values[stay] = site.values[stay] if each.values is None else each.values.to(values)
            _put(site.module, site.values, values, _sum(site.bias, each.bias, values))
        yield


@torch.no_grad()
def _put(module: Any, rows: Tensor, values: Tensor, bias: Tensor | None) -> None:
    rows.copy_(values)
    if bias is not getattr(module, "bias", None):
        module.bias = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias, False)


def _sum(bias: Tensor | None, more: Tensor | None, like: Tensor) -> Tensor | None:
    if more is None:
        return bias
    more = more.to(like)
    return more if bias is None else bias.detach() + more


@torch.no_grad()
def cut(model: Model, cuts: Sequence[Cut]) -> Model:
    """A copy of the model without the cells that go. If all layers keep as many, its configuration says how many, as that of any
    checkpoint does; else, or if the architecture has no such setting, it lists them."""
    widths = [len(each.stay) for each in cuts]
    lm = copy.deepcopy(model.lm)
    if len(set(widths)) == 1 and model.family.width is not None:
        resize.say_width(lm.config, model.family, widths[0])
        if hasattr(lm.config, SETTING):
            delattr(lm.config, SETTING)
    else:
        setattr(lm.config, SETTING, widths)
    about: dict[str, Any] = {
        "source": model.source,
        "revision": model.revision,
        "control": model.control,
        "stored": model.stored,
        "widest": model.widest,
    }
    smaller = Model(lm, model.tokenizer, **about)
    if any(each.bias is not None for each in cuts):
        resize.give_biases(lm, smaller.sites, smaller.family)
    for site, each in zip(smaller.sites, cuts, strict=True):
        stay = each.stay.to(site.device)
        if each.values is not None:
            site.values[stay] = each.values.to(site.values)
        if each.bias is not None:
            bias = site.bias
            assert bias is not None
            bias += each.bias.to(bias)
        resize.keep(site, stay)
    found = Model(lm, model.tokenizer, **about)
    found.wide = model.wide
    return found


def can_have_biases(model: Model) -> bool:
    """Whether a pruned layer of this model can have a bias of its own."""
    return all(resize.can_have_bias(site, model.config, model.family) for site in model.sites)
