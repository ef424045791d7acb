"""Who decides: at every position of a text, what each layer's whole feed-forward output does to the predicted token's logit.

    effect of layer l at position t = logit(o) − logit(o − y_l), on the token that the model predicts after position t

y_l is what the layer adds at t, o the last residual there; every other addition stays as it is (effects.py). It takes one forward
pass, or several if the additions of all layers and positions would not fit into `HELD` numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Model
from ..models.taps import Taps, tapped
from .asked import Asked, ask, check_finite
from .effects import Effects

HELD = 1 << 28
"""Upper bound on the numbers that are held per pass: layers × tokens × model."""


@dataclass(frozen=True)
class LayerEffects:
    """What the layers do at every position of a text."""

    tokens: list[str]
    predicted: list[tuple[str, float]]
    """per position: the token that the model predicts next, with its probability"""
    effects: npt.NDArray[np.float32]
    """[tokens, layers]"""
    edited: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "predicted": [piece for piece, _ in self.predicted],
            "p": [float(f"{p:.5g}") for _, p in self.predicted],
            "effects": [[float(f"{each:.4g}") for each in row] for row in self.effects.tolist()],
            "edited": self.edited,
        }


def by_layer(model: Model, text: str, *, edits: Iterable[Edit] = (), bos: bool = True) -> LayerEffects:
    """Read every position of a text. Edits act on this call only."""
    asked = ask(model, text, None, None, edits, bos)
    reader, length = Effects(model), len(asked.ids)
    step = max(1, HELD // (length * reader.head.weight.shape[1]))
    columns: list[Tensor] = []
    tokens, chances = torch.empty(0), torch.empty(0)
    for begin in range(0, model.layers, step):
        added, final = _pass(model, asked, range(begin, min(begin + step, model.layers)))
        if not begin:
            check_finite(model, final, edited=bool(asked.edits))
            tokens, chances = _predicted(reader, final)
        columns += [reader.of_additions(y.float(), final, tokens).cpu() for y in added]
    piece = model.vocabulary.piece
    return LayerEffects(
        tokens=[piece(i) for i in asked.ids],
        predicted=[(piece(t), p) for t, p in zip(tokens.tolist(), chances.tolist(), strict=True)],
        effects=torch.stack(columns, 1).numpy(),
        edited=bool(asked.edits),
    )


def _pass(model: Model, asked: Asked, layers: range) -> tuple[list[Tensor], Tensor]:
    """What some layers add at the text's own tokens, [tokens, model] each, and the last residuals, [tokens, model]."""
    ids, n_special = asked.batch.ids, asked.batch.n_special
    added: dict[int, Tensor] = {}
    last: list[Tensor] = []

    def own(x: Tensor) -> Tensor:
        """A copy: some blocks go on to add in place."""
        return x.detach().reshape(ids.numel(), -1)[n_special:].clone()

    def keep(layer: int, x: Tensor) -> None:
        if layer in layers:
            added[layer] = own(x)

    def keep_last(layer: int, x: Tensor) -> None:
        if layer == model.layers - 1:
            last.append(own(x).float())

    with (
        intervene.applied(model, asked.edits, n_special),
        tapped(model, Taps(feed_forward=keep, block_out=keep_last), tuple(ids.shape)),
    ):
        model.forward(ids)
    return [added[layer] for layer in layers], last[0]


def _predicted(reader: Effects, final: Tensor) -> tuple[Tensor, Tensor]:
    """[tokens] the first token of each last residual, and its probability."""
    head, tokens, chances = reader.head, [], []
    for at in range(0, len(final), head.rows_at_once):
        logits = head.logits(final[at : at + head.rows_at_once], exact=True)
        largest, token = logits.max(1)
        tokens.append(token)
        chances.append((largest - logits.logsumexp(1)).exp())
    return torch.cat(tokens), torch.cat(chances)
