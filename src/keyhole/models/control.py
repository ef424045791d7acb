"""The weights of a control: a model of the same configuration and vocabulary that has learned nothing in its layers.

`random`: every weight is drawn again by the model class's own initialisation: attention, feed-forward, norms, biases and
position embeddings. `shuffled`: the entries of every weight matrix are permuted among themselves, so that their distribution
stays and their order is lost; norms and biases, which are vectors, stay.

Both keep the trained token embeddings and the trained unembedding, with its bias if it has one. So what goes in and how the
result is read are those of the model, and only what is between them is lost. Weights are made on the CPU from the seed, so a
control is the same on every device.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from torch import nn

from ..store.control import Control


@torch.no_grad()
def make_control(lm: Any, control: Control) -> None:
    """Replace the weights of a language model by those of its control, in place."""
    {"random": _draw, "shuffled": _shuffle}[control.kind](lm, control.seed)


def kept(lm: Any) -> set[int]:
    """The parameters that a control keeps, by `id`: token embeddings and unembedding."""
    modules: tuple[nn.Module | None, ...] = (lm.get_input_embeddings(), lm.get_output_embeddings())
    return {id(weight) for module in modules if module is not None for weight in module.parameters()}


def _draw(lm: Any, seed: int) -> None:
    stay = kept(lm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw_seed(seed))
        fresh = dict(type(lm)(_plain(lm.config)).named_parameters())
    for name, weight in lm.named_parameters():
        if id(weight) not in stay:
            weight.copy_(fresh.pop(name))


def draw_seed(seed: int) -> int:
    """What torch is seeded with. Not the seed itself: training often begins with `torch.manual_seed(0)`, and the control would be the
    beginning of the very model that it is compared with, whose weights stay close to it."""
    return _hashed(f"control {seed}")


def _plain(config: Any) -> Any:
    """A configuration for weights in float32: a draw in a smaller type would be another one."""
    config = copy.deepcopy(config)
    config.dtype = torch.float32
    return config


def _shuffle(lm: Any, seed: int) -> None:
    stay = kept(lm)
    for name, weight in lm.named_parameters():
        if id(weight) not in stay and weight.dim() > 1:
            order = torch.randperm(weight.numel(), generator=_generator(seed, name)).to(weight.device)
            weight.copy_(weight.flatten()[order].view_as(weight))


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator of a weight's own: matrices of the same size are permuted differently, and independently of their order."""
    return torch.Generator().manual_seed(_hashed(f"{seed} {name}"))


def _hashed(text: str) -> int:
    """A seed below 2⁶³."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
