"""Sites: the places of a model where memory coefficients are read, in the order of the axis of cells.

A layer without experts is one site; a layer with experts is one site per expert. A site gives rows of coefficients, each
with the token it belongs to, and it holds the values these coefficients weigh. Edits act on the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..cells import Cells, Layer
from ..errors import ModelError
from .families import Family, Paths, candidates

Routing = Callable[[tuple[Any, ...]], Tensor]
"""From the arguments of a call of a site's module to the tokens [n] of the n rows of its input (row × columns + column)."""


@dataclass(frozen=True, eq=False)
class Projection:
    """A projection from the model's width to a site's cells: its keys, or the other factor of a gate."""

    module: nn.Module
    transposed: bool = False
    """True if its weight is [model, cells], as in a Conv1D; a Linear's is [cells, model]"""
    part: slice = field(default_factory=lambda: slice(None))
    """which of its outputs it is, if a module computes two projections at once"""

    @property
    def rows(self) -> Tensor:
        """[width, model]: a view of the weight."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return (weight.T if self.transposed else weight)[self.part]


@dataclass(frozen=True, eq=False)
class Site:
    """One place where coefficients are read."""

    layer: int
    module: nn.Module
    """the down-projection: the first argument of its call is the coefficients"""
    transposed: bool = False
    """True if its weight is [width, model], as in a Conv1D; a Linear's is [model, width]"""
    expert: int | None = None
    """the expert's number in its layer; None if the layer has no experts"""
    routing: Routing | None = None
    """which tokens a call is about, if not about every token of the batch"""
    key: Projection | None = None
    """the projection before the activation; if there is a gate, the gate's. None if it is not known, as that of an expert"""
    up: Projection | None = None
    """if there is a gate: the projection that act(gate) is multiplied by"""
    function: nn.Module | None = None
    """the activation"""

    @property
    def values(self) -> Tensor:
        """The value vectors, [width, model]: a view of the weight."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight if self.transposed else weight.T

    @property
    def width(self) -> int:
        """How many cells it has."""
        return int(self.values.shape[0])

    @property
    def bias(self) -> Tensor | None:
        """What the projection adds whatever its input is."""
        bias = getattr(self.module, "bias", None)
        return bias if isinstance(bias, Tensor) else None

    @property
    def device(self) -> torch.device:
        return self.values.device

    def tokens(self, args: tuple[Any, ...]) -> Tensor | None:
        """The tokens of the rows of a call; None if the rows are all tokens of the batch, in order."""
        return None if self.routing is None else self.routing(args)


def path_of(root: nn.Module, paths: Paths) -> str:
    """The first candidate that leads to a module below `root`."""
    for path in candidates(paths):
        try:
            root.get_submodule(path)
        except AttributeError:
            continue
        return path
    raise AttributeError(f"{type(root).__name__} has no {' and no '.join(candidates(paths))}")


def module_at(root: nn.Module, paths: Paths) -> nn.Module:
    """The module at the first candidate that exists."""
    return root.get_submodule(path_of(root, paths))


def blocks_of(lm: nn.Module, family: Family) -> list[nn.Module]:
    """The blocks of a language model, in order."""
    return list(module_at(lm, family.layers).children())


def find_sites(blocks: Iterable[nn.Module], family: Family) -> tuple[Site, ...]:
    """One site per block: its down-projection."""
    return tuple(_site(layer, block, family) for layer, block in enumerate(blocks))


def _site(layer: int, block: nn.Module, family: Family) -> Site:
    site = Site(layer, module_at(block, family.down), family.transposed, function=module_at(block, family.function))
    key = Projection(module_at(block, family.key), family.transposed)
    if family.up is None:
        return replace(site, key=key)
    up = Projection(module_at(block, family.up), family.transposed)
    if up.module is key.module:
        key, up = replace(key, part=slice(site.width)), replace(up, part=slice(site.width, None))
    return replace(site, key=key, up=up)


def of_layer(sites: Sequence[Site], layer: int) -> list[Site]:
    """The sites of a layer: one, or one per expert."""
    return [site for site in sites if site.layer == layer]


def axis_of(sites: Sequence[Site]) -> Cells:
    """The axis of cells that the sites make up, in their order. Layers may differ in width, the experts of a layer may not."""
    layers = []
    for layer, inside in groupby(sites, key=lambda site: site.layer):
        found = list(inside)
        widths = {site.width for site in found}
        if len(widths) > 1:
            raise ModelError(
                f"The experts of layer {layer} differ in width: {sorted(widths)} cells. Keyhole needs one width."
            )
        layers.append(Layer(widths.pop(), experts=0 if found[0].expert is None else len(found), number=layer))
    return Cells(layers)


def locate(sites: Sequence[Site], layer: int, index: int) -> tuple[int, int]:
    """The site of a layer's cell, and the cell's number there; cells of experts are counted through the layer."""
    for number, site in enumerate(sites):
        if site.layer == layer:
            if index < site.width:
                return number, index
            index -= site.width
    raise IndexError(f"layer {layer} has no cell at {index} after its last")
