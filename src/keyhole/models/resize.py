"""Fewer cells per layer: the feed-forward projections of a model, cut in place to the cells that stay.

A cell goes whole: its key, its gate's other factor if there is one, its value, and their biases. What is left computes what the
model computes if the coefficients of the other cells are 0. If all layers keep as many cells, the result is an ordinary
checkpoint of a smaller width, and its configuration says so; the name of that setting is in the family's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .families import Family
from .sites import Projection, Site, blocks_of, find_sites


def check_resizable(sites: Sequence[Site], source: str) -> None:
    """Refuse a model whose cells cannot be taken out one by one."""
    for site in sites:
        if site.expert is not None or site.key is None:
            raise UsageError(
                f"The cells of {source} cannot be taken out: those of experts, and of layers whose keys are not known, stay. "
                "Models whose layers have one feed-forward layer each can be pruned."
            )


@torch.no_grad()
def keep(site: Site, cells: Tensor) -> None:
    """Cut the projections of a site to these cells, in place."""
    assert site.key is not None
    width = site.width
    cells = cells.to(site.device)
    if site.up is not None and site.up.module is site.key.module:
        _cut_out(site.key.module, torch.cat([cells, cells + width]), site.key.transposed)
    else:
        for projection in filter(None, (site.key, site.up)):
            _cut_out(projection.module, cells, projection.transposed)
    _cut_in(site.module, cells, site.transposed)


def _cut_out(module: nn.Module, rows: Tensor, transposed: bool) -> None:
    """Keep some outputs of a projection."""
    weight, bias = _parameter(module, "weight"), getattr(module, "bias", None)
    module.weight = _like(weight, weight[:, rows] if transposed else weight[rows])
    if isinstance(bias, Tensor):
        module.bias = _like(bias, bias[rows])
    _say_size(module, outputs=len(rows))


def _cut_in(module: nn.Module, columns: Tensor, transposed: bool) -> None:
    """Keep some inputs of a projection."""
    weight = _parameter(module, "weight")
    module.weight = _like(weight, weight[columns] if transposed else weight[:, columns])
    _say_size(module, inputs=len(columns))


def _parameter(module: nn.Module, name: str) -> Tensor:
    weight = getattr(module, name)
    assert isinstance(weight, Tensor)
    return weight


def _like(old: Tensor, new: Tensor) -> nn.Parameter:
    return nn.Parameter(new.contiguous().clone(), requires_grad=old.requires_grad)


def _say_size(module: Any, inputs: int | None = None, outputs: int | None = None) -> None:
    """What a module knows of its own size: a Linear prints it, a Conv1D computes with it."""
    for name, size in (("in_features", inputs), ("nx", inputs), ("out_features", outputs), ("nf", outputs)):
        if size is not None and hasattr(module, name):
            setattr(module, name, size)


def shrink(lm: nn.Module, family: Family, widths: Sequence[int]) -> None:
    """Give the layers of a language model these widths. Which cells stay does not matter: the weights are read afterwards."""
    sites = find_sites(blocks_of(lm, family), family)
    if len(sites) != len(widths) or any(width > site.width for site, width in zip(sites, widths, strict=True)):
        raise UsageError(
            f"The widths {list(widths)[:8]} are not those of a model with {len(sites)} layers of {sites[0].width} cells."
        )
    for site, width in zip(sites, widths, strict=True):
        keep(site, torch.arange(width))


# Biases


def can_have_bias(site: Site, config: Any, family: Family) -> bool:
    """Whether a checkpoint of this architecture can hold a bias of the down-projection."""
    return site.bias is not None or (family.bias is not None and hasattr(config, family.bias))


@torch.no_grad()
def give_biases(lm: Any, sites: Sequence[Site], family: Family) -> None:
    """Biases of 0 for the feed-forward projections, if the architecture has a setting for them and they are not there."""
    if family.bias is None or all(site.bias is not None for site in sites):
        return
    setattr(lm.config, family.bias, True)
    for site in sites:
        for module, outputs in _projections(site):
            if getattr(module, "bias", None) is None:
                weight = _parameter(module, "weight")
                module.bias = nn.Parameter(weight.new_zeros(outputs), requires_grad=weight.requires_grad)


def _projections(site: Site) -> list[tuple[nn.Module, int]]:
    """The projections of a site, once each, with the number of their outputs."""
    projections: list[Projection] = [each for each in (site.key, site.up) if each is not None]
    modules = {id(each.module): (each.module, each.transposed) for each in projections}
    modules[id(site.module)] = (site.module, site.transposed)
    return [(module, _parameter(module, "weight").shape[int(transposed)]) for module, transposed in modules.values()]


# The configuration


def say_width(config: Any, family: Family, width: int) -> None:
    """Set the width of the feed-forward layers in a configuration."""
    setattr(config, width_setting(config, family), width)


def width_setting(config: Any, family: Family) -> str:
    """The name of the width in a configuration; an architecture whose width cannot be chosen is refused."""
    if family.width is None:
        raise UsageError(
            f"The configuration of {config.model_type} has no width of its feed-forward layers: they are always a multiple of the model's. "
            "A pruned one is no ordinary checkpoint; --global keeps it in Keyhole's own format."
        )
    return family.width
