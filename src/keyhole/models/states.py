"""The states of every layer at chosen positions of a batch: r, y, o and the coefficients.

In the paper's words: x = LN(r) after attention, y = FF(x), o = r + y. `r` is the block's input plus the output of its
attention, also if attention and feed-forward run side by side. `y` is what reaches the residual: after a post-norm, if there
is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .model import Model
from .taps import Taps, every_token, join_experts, tapped


@dataclass(frozen=True)
class States:
    """All float32 on the model's device."""

    r: Tensor
    """[layers, n, model] the residual that the feed-forward layer adds to"""
    y: Tensor
    """[layers, n, model] what the layer adds, its bias included"""
    o: Tensor
    """[layers, n, model] the block's output"""
    attention: Tensor
    """[layers, n, model] what attention adds: r minus the block's input"""
    coefficients: list[Tensor]
    """[n, cells] per layer, in the model's own precision"""


def states(model: Model, ids: Tensor, positions: Tensor) -> States:
    """Run windows [n, columns] and keep one position of each (a column of `ids`)."""
    at = (torch.arange(len(ids)) * ids.shape[1] + positions).to(model.device)
    kept: dict[str, list[Tensor]] = {name: [] for name in ("in", "attention", "ff", "out")}
    coefficients: dict[int, Tensor] = {}

    def pick(x: Tensor) -> Tensor:
        """A copy: some blocks go on to add in place."""
        return x.detach().reshape(-1, x.shape[-1]).index_select(0, at)

    def keep(name: str) -> Callable[[int, Tensor], None]:
        return lambda layer, x: kept[name].append(pick(x))

    def sink(site: int, x: Tensor, tokens: Tensor | None) -> None:
        coefficients[site] = pick(every_token(x, tokens, ids.numel()))

    taps = Taps(
        coefficients=sink,
        block_in=keep("in"),
        attention=keep("attention"),
        feed_forward=keep("ff"),
        block_out=keep("out"),
    )
    with tapped(model, taps, tuple(ids.shape)):
        model.forward(ids)
    r = [before.float() + added.float() for before, added in zip(kept["in"], kept["attention"], strict=True)]
    return States(
        r=torch.stack(r),
        y=torch.stack(kept["ff"]).float(),
        o=torch.stack(kept["out"]).float(),
        attention=torch.stack(kept["attention"]).float(),
        coefficients=join_experts(model, coefficients),
    )
