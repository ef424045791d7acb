"""The states of every layer at chosen positions of a batch: r, y, o and the coefficients.

In the paper's words: x = LN(r) after attention, y = FF(x), o = r + y. `r` is the block's input plus the output of its
attention, also if attention and feed-forward run side by side. `y` is what reaches the residual: after a post-norm, if there
is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .model import Model
from .taps import Sink, Taps, every_token, join_experts, tapped


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
    keys: list[Tensor] = field(default_factory=list)
    """if asked for, the same of x·k + b, what the activation is given; if there is a gate, the gate's"""
    ups: list[Tensor] = field(default_factory=list)
    """if asked for and if there is a gate, the same of what act(gate) is multiplied by"""


def states(model: Model, ids: Tensor, positions: Tensor, wants: Collection[str] = ()) -> States:
    """Run windows [n, columns] and keep one position of each (a column of `ids`). `wants` names the fields that are empty unless
    they are asked for: `keys`, `ups`."""
    at = (torch.arange(len(ids)) * ids.shape[1] + positions).to(model.device)
    kept: dict[str, list[Tensor]] = {name: [] for name in ("in", "attention", "ff", "out")}
    by_site: dict[str, dict[int, Tensor]] = {"coefficients": {}, **{name: {} for name in wants}}

    def pick(x: Tensor) -> Tensor:
        """A copy: some blocks go on to add in place."""
        return x.detach().reshape(-1, x.shape[-1]).index_select(0, at)

    def keep(name: str) -> Callable[[int, Tensor], None]:
        return lambda layer, x: kept[name].append(pick(x))

    def sink(name: str) -> Sink | None:
        def put(site: int, x: Tensor, tokens: Tensor | None) -> None:
            by_site[name][site] = pick(every_token(x, tokens, ids.numel()))

        return put if name in by_site else None

    taps = Taps(
        coefficients=sink("coefficients"),
        keys=sink("keys"),
        ups=sink("ups"),
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
        **{name: join_experts(model, rows) for name, rows in by_site.items() if rows},
    )
