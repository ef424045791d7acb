"""The same gated model with other signs: (up_i, v_i) → (−up_i, −v_i) for random cells changes nothing that it computes."""

from __future__ import annotations

import copy

import numpy as np
import torch
from families import tokenizer

from keyhole.models.model import Model


def flipped(model: Model, seed: int = 0) -> tuple[Model, np.ndarray]:
    """A copy of a gated model in which about half of the cells have both signs flipped, and the factors [cells]. Its logits are
    the same to the last bit."""
    assert model.gated
    signs = np.random.default_rng(seed).choice([-1, 1], len(model.cells)).astype(np.int8)
    lm = copy.deepcopy(model.lm)
    other = Model(lm, tokenizer(), source=model.source)
    for layer, block in enumerate(other.blocks):
        factors = torch.from_numpy(signs[model.cells.span(layer)]).float()
        mlp = block.mlp
        # a fused projection holds the gate's rows first
        up = mlp.up_proj.weight if hasattr(mlp, "up_proj") else mlp.gate_up_proj.weight[len(factors) :]
        up.mul_(factors[:, None])
        mlp.down_proj.weight.mul_(factors)
    ids = torch.tensor([model.tokenize(["The cat sat on the mat, and the dog looked on."])[0]])
    with torch.no_grad():
        before, after = (each.lm(input_ids=ids, use_cache=False).logits for each in (model, other))
    assert torch.equal(before, after)
    assert model.fingerprint != other.fingerprint
    return other, signs
