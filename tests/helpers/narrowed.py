"""Models whose layers differ in width: those of `families`, cut by hand."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from families import CELLS, D, tiny, tokenizer
from torch import nn

from keyhole.models.model import Model
from keyhole.models.proof import prove

WIDTHS = (11, 24, 17)
"""Cells of each layer. The widest is in the middle, so that a place computed with the first or the last width is wrong."""

UP = {"opt": ("fc1",), "gpt2": ("mlp.c_fc",), "llama": ("mlp.gate_proj", "mlp.up_proj")}
"""Modules whose outputs are the cells, and below the module whose inputs are."""
DOWN = {"opt": "fc2", "gpt2": "mlp.c_proj", "llama": "mlp.down_proj"}


def _cut(module: Any, dimension: int, width: int) -> int:
    """Keep `width` of a module's outputs (dimension 0) or inputs (1); how many parameters are gone."""
    before = sum(p.numel() for p in module.parameters())
    if type(module).__name__ == "Conv1D":  # stored [inputs, outputs]
        kept = module.weight[:, :width] if dimension == 0 else module.weight[:width]
        module.nf = width if dimension == 0 else module.nf
    else:
        kept = module.weight[:width] if dimension == 0 else module.weight[:, :width]
    module.weight = nn.Parameter(kept.clone())
    if dimension == 0 and module.bias is not None:
        module.bias = nn.Parameter(module.bias[:width].clone())
    return before - sum(p.numel() for p in module.parameters())


@cache
def narrowed(family: str) -> Model:
    """A proved random model with layers of `WIDTHS` cells."""
    whole = tiny(family).lm
    lm = copy.deepcopy(whole)
    gone = 0
    base = lm.model.decoder.layers if family == "opt" else lm.transformer.h if family == "gpt2" else lm.model.layers
    with torch.no_grad():
        for block, width in zip(base, WIDTHS, strict=True):
            gone += sum(_cut(block.get_submodule(name), 0, width) for name in UP[family])
            gone += _cut(block.get_submodule(DOWN[family]), 1, width)
    biases = len(UP[family]) if family != "llama" else 0
    assert gone == sum((CELLS - width) * ((len(UP[family]) + 1) * D + biases) for width in WIDTHS)
    assert sum(p.numel() for p in lm.parameters()) == sum(p.numel() for p in whole.parameters()) - gone
    model = Model(lm, tokenizer(), source=f"narrowed-{family}")
    prove(model)
    return model
