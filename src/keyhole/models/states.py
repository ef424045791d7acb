"""What happens at chosen positions of a batch: r, y and o of every layer, and its coefficients.

In the paper's words: x = LN(r) after attention, y = FF(x), o = r + y. `r` is the block's input plus its attention's output,
also where attention and feed-forward run side by side; `y` is what reaches the residual, behind a post-norm if there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .model import Model


@dataclass(frozen=True)
class States:
    """All float32 on the model's device."""

    r: Tensor
    """[layers, n, model] the residual the feed-forward layer adds to"""
    y: Tensor
    """[layers, n, model] what the layer adds, its bias included"""
    o: Tensor
    """[layers, n, model] the block's output"""
    coefficients: list[Tensor]
    """[n, cells] a layer, in the model's own precision"""


def states(model: Model, ids: Tensor, positions: Tensor) -> States:
    """Run windows [n, columns] and keep one position of each (a column of `ids`)."""
    family, columns = model.family, ids.shape[1]
    at = (torch.arange(len(ids)) * columns + positions).to(model.device)
    kept: dict[str, list[Tensor]] = {name: [] for name in ("in", "attention", "ff", "out", "coefficients")}

    def keep(name: str, side: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None) -> None:
            value = (args[0] if args else kwargs["hidden_states"]) if side == "in" else output
            value = value[0] if isinstance(value, tuple) else value
            # a copy: some blocks go on to add in place
            kept[name].append(value.detach().reshape(-1, value.shape[-1]).index_select(0, at))

        return hook

    with model.lock:
        handles = []
        for block, down in zip(model.blocks, model.downs, strict=True):
            attention = block.get_submodule(family.attention_norm or family.attention)
            ff = block.get_submodule(family.ff_norm) if family.ff_norm else down
            handles += [
                block.register_forward_pre_hook(keep("in", "in"), with_kwargs=True),
                attention.register_forward_hook(keep("attention", "out"), with_kwargs=True),
                down.register_forward_pre_hook(keep("coefficients", "in"), with_kwargs=True),
                ff.register_forward_hook(keep("ff", "out"), with_kwargs=True),
                block.register_forward_hook(keep("out", "out"), with_kwargs=True),
            ]
        try:
            model.forward(ids)
        finally:
            for handle in handles:
                handle.remove()
    r = [before.float() + added.float() for before, added in zip(kept["in"], kept["attention"], strict=True)]
    return States(
        r=torch.stack(r),
        y=torch.stack(kept["ff"]).float(),
        o=torch.stack(kept["out"]).float(),
        coefficients=kept["coefficients"],
    )
