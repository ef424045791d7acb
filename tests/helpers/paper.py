"""The paper's definitions, spelled out one cell and one prefix at a time. Slow and plain."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import keyhole
from keyhole.models.model import Model

FINAL_NORM = re.compile(
    r"^(model\.norm|transformer\.ln_f|gpt_neox\.final_layer_norm|model\.decoder\.final_layer_norm|model\.final_layernorm)$"
)
DOWN = re.compile(r"\.(mlp\.(c_proj|down_proj|dense_4h_to_h|fc_out|fc2)|layers\.\d+\.fc2)$")
BLOCK = re.compile(r"^(model|transformer|gpt_neox|model\.decoder)\.(layers|h)\.\d+$")


def named(model: Model, pattern: re.Pattern[str]) -> list[Any]:
    return [module for name, module in model.lm.named_modules() if pattern.search(name)]


def unembedding(model: Model) -> Tensor:
    return model.lm.get_output_embeddings().weight.detach().float()


def own_logits(model: Model, residual: Tensor) -> Tensor:
    """Final norm, head, cap: as the architecture's own code does it."""
    (norm,) = named(model, FINAL_NORM)
    with torch.no_grad():
        logits = model.lm.get_output_embeddings()(norm(residual))
    if model.config.model_type == "gemma2":
        logits = torch.tanh(logits / model.config.final_logit_softcapping) * model.config.final_logit_softcapping
    return logits


def value(model: Model, layer: int, cell: int) -> Tensor:
    """v_i as it is added to the residual: a column of the down-projection, times a post-norm's gain."""
    weight = named(model, DOWN)[layer].weight.detach().float()
    v = weight[cell] if model.config.model_type == "gpt2" else weight[:, cell]
    if model.config.model_type in ("gemma2", "gemma3_text", "olmo2"):
        gain = model.blocks[layer].post_feedforward_layernorm.weight.detach()
        v = v * (gain if model.config.model_type == "olmo2" else 1 + gain)
    return v


def folded(model: Model, v: Tensor) -> Tensor:
    """The `norm` lens: the final norm's gain; a LayerNorm centres first."""
    (norm,) = named(model, FINAL_NORM)
    centres = isinstance(norm, torch.nn.LayerNorm) or model.config.model_type == "olmo"
    v = v - v.mean() if centres else v
    gain = getattr(norm, "weight", None)
    if gain is None:
        return v
    return v * (1 + gain.detach() if model.config.model_type.startswith("gemma") else gain.detach())


@dataclass
class Seen:
    """One prefix, every layer: [layers, …]."""

    m: list[np.ndarray]
    r: list[Tensor]
    y: list[Tensor]
    o: list[Tensor]


def look(model: Model, ids: list[int], bos: bool = True) -> Seen:
    """A bare forward of one prefix; the last position of each layer. y is rebuilt from coefficients, values and bias."""
    special = [model.tokenizer.bos_token_id] if bos and model.tokenizer.bos_token_id is not None else []
    m: list[Tensor] = []
    o: list[Tensor] = []
    handles = [
        d.register_forward_pre_hook(lambda _, a: m.append(a[0].detach().reshape(-1, a[0].shape[-1])[-1].clone()))
        for d in named(model, DOWN)
    ]
    take = lambda out: (out[0] if isinstance(out, tuple) else out).detach()[0, -1].clone()  # noqa: E731
    handles += [b.register_forward_hook(lambda _, __, out: o.append(take(out))) for b in named(model, BLOCK)]
    with torch.no_grad():
        model.lm(input_ids=torch.tensor([special + ids]), use_cache=False)
    for handle in handles:
        handle.remove()
    assert len(m) == len(o) == model.layers
    y = []
    for layer, down in enumerate(named(model, DOWN)):
        with torch.no_grad():
            out = down(m[layer][None])[0]
            if model.config.model_type in ("gemma2", "gemma3_text", "olmo2"):
                out = model.blocks[layer].post_feedforward_layernorm(out[None])[0]
        y.append(out)
    return Seen([x.numpy() for x in m], [a - b for a, b in zip(o, y, strict=True)], y, o)


def agreement(run: keyhole.Run, model: Model, layer: int, target: str, lens: str) -> tuple[int, int, list[int]]:
    """(n, hits, ranks of the target) over the cells of a layer that have a top-1 trigger with a known target."""
    n, hits, ranks = 0, 0, []
    for cell in range(run.cells.size(layer)):
        triggers = run.triggers(layer, cell)
        if not triggers:
            continue
        wanted = triggers[0].next_id if target == "next" else triggers[0].ids[-1]
        if wanted is None:
            continue
        v = value(model, layer, cell) * run.cell(layer, cell).orientation
        logits = (folded(model, v) if lens == "norm" else v) @ unembedding(model).T
        p = torch.softmax(logits, 0)
        n += 1
        hits += int(p.argmax()) == wanted
        ranks.append(1 + int((logits > logits[wanted]).sum()))
    return n, hits, ranks


def zero_agreement(model: Model, layer: int, seen: Seen, top: list[int], bottom: list[int]) -> bool:
    """∀ active i: top(v_i) ≠ top(y); −v_i where the coefficient is negative."""
    said = int((seen.y[layer] @ unembedding(model).T).argmax())
    for cell, m in enumerate(seen.m[layer]):
        if (m > 0 and top[cell] == said) or (m < 0 and bottom[cell] == said):
            return False
    return True
