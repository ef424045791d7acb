"""A small model whose middle layer has experts, and its coefficients by hooks and products written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from families import D, tiny
from torch import Tensor, nn

from keyhole.models.model import Model
from keyhole.models.sites import Site, axis_of

EXPERTS, CHOSEN, WIDTH = 5, 2, D
"""An expert is as wide as the model, so that a matrix and its transpose have the same shape."""


class RoutedLinear(nn.Linear):
    """A down-projection that is told which tokens its rows are."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Experts(nn.Module):
    """A feed-forward layer of experts. Each token goes to some of them; each expert gets its tokens in an order of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(D, EXPERTS, bias=False)
        self.up = nn.ModuleList(nn.Linear(D, WIDTH) for _ in range(EXPERTS))
        self.down = nn.ModuleList(RoutedLinear(WIDTH, D) for _ in range(EXPERTS))

    def coefficients(self, expert: int, x: Tensor) -> Tensor:
        return torch.tanh(self.up[expert](x))

    def chosen(self, x: Tensor) -> Tensor:
        return self.router(x).topk(CHOSEN, -1).indices

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, D)
        chosen, out = self.chosen(flat), torch.zeros_like(flat)
        for expert in range(EXPERTS):
            tokens = (chosen == expert).any(1).nonzero().flatten().flip(0)  # descending: taps have to sort
            if len(tokens):
                out[tokens] += self.down[expert](self.coefficients(expert, flat[tokens]), tokens)
        return out.reshape(x.shape)


def with_experts() -> Model:
    """A small model whose middle layer has experts."""
    torch.manual_seed(5)
    model = tiny("llama", rms_norm_eps=1.7e-6)  # one of its own, to rebuild
    if not isinstance(model.blocks[1].mlp, Experts):
        experts = Experts()
        for parameter in experts.parameters():
            nn.init.normal_(parameter, std=0.4)
        model.blocks[1].mlp = experts.requires_grad_(False)
        routed = [
            Site(1, module, expert=number, routing=lambda args: args[1]) for number, module in enumerate(experts.down)
        ]
        model.sites = (model.sites[0], *routed, model.sites[2])
        model.cells = axis_of(model.sites)
        model.family = replace(model.family, ff_norm="mlp")  # what reaches the residual is the sum of the experts
    return model


def every_coefficient(model: Model, ids: list[int]) -> np.ndarray:
    """[tokens, cells] of a text after its start token. A token that an expert does not get has coefficient 0 there."""
    seen: dict[int, Tensor] = {}
    given = {0: model.blocks[0].mlp.down_proj, 1: model.blocks[1].mlp, 2: model.blocks[2].mlp.down_proj}

    def hook(layer: int) -> object:
        return given[layer].register_forward_pre_hook(lambda _, args: seen.update({layer: args[0][0].clone()}))

    handles = [hook(layer) for layer in given]
    with torch.no_grad():
        model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False)
    for handle in handles:
        handle.remove()  # type: ignore[attr-defined]
    mlp, x = model.blocks[1].mlp, seen[1]
    chosen = mlp.chosen(x)
    experts = [
        torch.stack(
            [mlp.coefficients(expert, row) * float(expert in some) for row, some in zip(x, chosen, strict=True)]
        )
        for expert in range(EXPERTS)
    ]
    return torch.cat([seen[0], *experts, seen[2]], 1)[1:].numpy()
