"""The lenses: how a vector is changed before it meets the unembedding.

A lens is one entry of `LENSES`. All read a value vector as logits without the head's bias, cap or scale, because a value is
one summand of many:

    norm    (g ⊙ (v − c·mean v))·E    the final norm's gain g is folded in; a LayerNorm centres (c = 1), an RMSNorm does not
    raw     v·E                       as if there were no final norm
    mapped  norm of v·M_ℓ             v is first taken from its layer's basis to the last one's, by a linear map (`maps.py`)

The paper's model had no final norm, so there the two are the same; for a model that has one, `norm` is the paper's lens.

The gain is folded into the vectors, so the unembedding is never copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..store.values import LENSES as NAMES
from .maps import Map


@dataclass(frozen=True)
class Norm:
    """A norm as numbers: gain, bias, and whether it subtracts the mean."""

    gain: Tensor
    bias: Tensor
    centres: bool

    def fold(self, vectors: Tensor) -> Tensor:
        """The part of a summand that passes the norm, up to the common scale: the norm's linear part."""
        if self.centres:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain

    def fold_back(self, vectors: Tensor) -> Tensor:
        """The transpose of `fold`: fold(x)·w = x·fold_back(w). It turns a direction behind the norm into one before it."""
        vectors = vectors * self.gain
        return vectors - vectors.mean(-1, keepdim=True) if self.centres else vectors


def measure(norm: nn.Module, width: int, device: torch.device) -> Norm:
    """Gain, bias and centring of a norm, found from its outputs: how an architecture stores them (Gemma keeps the gain
    minus one, OLMo keeps none) need not be known."""
    exact = copy.deepcopy(norm).float()
    signs = 1 - 2 * (torch.arange(width, device=device) % 2)
    x = torch.linspace(1, 2, width, device=device) * signs
    x = x - x.mean()  # mean zero, and no entry near zero
    x = x / x.square().mean().sqrt() * 1e3  # so large that the norm's epsilon does not count
    with torch.inference_mode():
        plus, minus, shifted = exact(x[None])[0], exact(-x[None])[0], exact(x[None] + 1e3)[0]
    bias = (plus + minus) / 2
    gain = (plus - minus) / 2 / (x / 1e3)
    centres = bool((shifted - plus).norm() <= 1e-3 * plus.norm())
    return Norm(gain.clone(), bias.clone(), centres)


class Reader(Protocol):
    """What a lens can ask for: the head's final norm, and the map of a layer."""

    @property
    def norm(self) -> Norm: ...

    def map_of(self, layer: int | None) -> Map: ...


Lens = Callable[[Tensor, Reader, int | None], Tensor]
"""From float32 vectors [n, model] of a layer to the vectors that meet the unembedding. The layer may be None if the lens treats
all layers alike."""

LENSES: dict[str, Lens] = {
    "norm": lambda vectors, head, layer: head.norm.fold(vectors),
    "raw": lambda vectors, head, layer: vectors,
    "mapped": lambda vectors, head, layer: head.norm.fold(head.map_of(layer).summands(vectors)),
}
PER_LAYER = {"mapped"}
"""The lenses that read each layer in its own way."""
assert tuple(LENSES) == NAMES, "the lenses that a run can store are listed in store/values.py"


def check_lens(name: str) -> str:
    """The name, if there is such a lens."""
    if name not in LENSES:
        raise UsageError(f"There is no lens '{name}'. The lenses are: {', '.join(LENSES)}.")
    return name
