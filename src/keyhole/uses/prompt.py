"""A prompt, layer by layer: what the residual predicts before and after each feed-forward layer, and which cells cause the
difference. With edits, next to what the model predicts without them.

Two measures of a cell at one position:

    strength    |m|·‖v‖, how much it adds to the residual
    effect      what its addition does to the chosen token's logit: logit(o) − logit(o − m·v) at the last layer, with all other
                additions unchanged, through the model's own final norm, head, scale and cap

If a norm stands between a layer and the residual, m·v is scaled as that norm scales the layer's whole output.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError, UsageError
from ..lens.head import Head
from ..lens.project import largest
from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Model
from ..models.states import States, states
from ..store.run import Run

PREDICTED = 10
"""Tokens per prediction."""
PER_LAYER = 5
"""Tokens per residual."""
CELLS = 10
"""Cells per layer and measure."""
BLOCK = 1 << 24
"""Upper bound on the numbers of an intermediate array."""

Prediction = list[tuple[str, float]]
"""Tokens with their probabilities, the largest first."""


@dataclass(frozen=True)
class Contribution:
    """What a cell adds at the position."""

    cell: int
    m: float
    """its coefficient, after the edits; in the cell's orientation if the run was given"""
    strength: float
    effect: float


@dataclass(frozen=True)
class LayerView:
    layer: int
    before: Prediction
    """what the residual predicts before the feed-forward layer adds to it"""
    after: Prediction
    """what the block's output predicts; in the last layer this is the model's prediction"""
    strongest: list[Contribution]
    effective: list[Contribution]


@dataclass(frozen=True)
class Chosen:
    """The token the effects are on."""

    token: int
    piece: str
    logit: float
    p: float
    original_logit: float
    original_p: float


@dataclass(frozen=True)
class PromptView:
    """What was read at one position of a text. `original` is the prediction without the edits."""

    tokens: list[str]
    ids: list[int]
    position: int
    edited: bool
    prediction: Prediction
    original: Prediction
    chosen: Chosen
    layers: list[LayerView]

    def to_json(self) -> dict[str, Any]:
        chosen = self.chosen
        numbers = {name: _short(getattr(chosen, name)) for name in ("logit", "p", "original_logit", "original_p")}
        return {
            "tokens": self.tokens,
            "position": self.position,
            "token": chosen.piece,
            "edited": self.edited,
            "prediction": _pairs(self.prediction),
            "original": _pairs(self.original),
            "chosen": {"piece": chosen.piece, **numbers},
            "layers": [
                {
                    "layer": view.layer,
                    "before": _pairs(view.before),
                    "after": _pairs(view.after),
                    "strongest": [_cell(one) for one in view.strongest],
                    "effective": [_cell(one) for one in view.effective],
                }
                for view in self.layers
            ],
        }

    def _repr_html_(self) -> str:
        from ..views.notebook import prompt

        return prompt(self.to_json())


def _short(x: float) -> float | None:
    return float(f"{x:.5g}") if math.isfinite(x) else None


def _pairs(prediction: Prediction) -> list[list[Any]]:
    return [[piece, _short(p)] for piece, p in prediction]


def _cell(one: Contribution) -> dict[str, Any]:
    return {"cell": one.cell, "m": _short(one.m), "strength": _short(one.strength), "effect": _short(one.effect)}


def read(
    model: Model,
    text: str,
    *,
    position: int | None = None,
    token: str | None = None,
    edits: Iterable[Edit] = (),
    bos: bool = True,
    run: Run | None = None,
) -> PromptView:
    """Read one position of a text, by default the last. Effects are on one token, by default the predicted one.

    Edits act on this call only. With a run of the model, coefficients have the signs that its cells are read with
    (`Run.orientation`). Several threads may call this at once.
    """
    if model.split:
        raise UsageError("A prompt needs the model on one device: load it with device='cuda' or 'cpu', not split.")
    edits = intervene.check(edits, model)
    check_text(text)
    (ids,) = model.tokenize([text])
    position = _check(model, text, ids, position, edits, bos)
    wanted = None if token is None else model.vocabulary.find(token)
    batch = model.batch([ids[: position + 1]], bos=bos)  # what follows the position cannot reach it
    at = torch.tensor([batch.n_special + position])
    with model.lock:
        plain = seen = states(model, batch.ids, at)
        if edits:
            with intervene.applied(model, edits, batch.n_special):
                seen = states(model, batch.ids, at)
    _check_finite(model, plain, seen)
    reader = _Reader(model, None if run is None else _signs(run, model))
    if wanted is not None and wanted >= reader.head.vocabulary:
        raise UsageError(f"The token {token!r} is one the model cannot predict: its head has no row for it.")
    return reader.view(ids, position, plain, seen, wanted, edited=bool(edits))


def _signs(run: Run, model: Model) -> Tensor:
    """[cells] the signs that the cells of a run are read with."""
    if run.cells != model.cells:
        raise UsageError(
            f"{run.path} is a run of another model: it has {run.cells.summary}, and {model.source} has {model.cells.summary}."
        )
    return torch.from_numpy(np.array(run.orientation))


def check_text(text: str) -> None:
    """Refuse lone surrogates (half characters): JSON and Python's strings can hold them, tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"Character {error.start} of the text is U+{ord(text[error.start]):04X}, half of a character. Take it out."
        ) from None


def _check(model: Model, text: str, ids: list[int], position: int | None, edits: list[Edit], bos: bool) -> int:
    if not ids:
        raise UsageError(f"The text {text!r} has no tokens." if text else "The text is empty.")
    if position is None:
        position = len(ids) - 1
    elif not 0 <= position < len(ids):
        raise UsageError(f"There is no position {position}: the text has {len(ids)} tokens, 0 to {len(ids) - 1}.")
    most, length = model.max_context, position + 1 + int(bos and model.bos_id is not None)
    if most is not None and length > most:
        raise UsageError(
            f"The text up to position {position} is {length} tokens long with its start token; {model.source} was built for "
            f"{most}. Shorten it, or choose an earlier position."
        )
    for edit in edits:
        if edit.positions and edit.positions[-1] >= len(ids):
            raise UsageError(
                f"{edit.address} is edited at position {edit.positions[-1]}, but the text has {len(ids)} tokens, "
                f"0 to {len(ids) - 1}."
            )
    return position


def _check_finite(model: Model, plain: States, seen: States) -> None:
    if not bool(torch.isfinite(plain.o).all()):
        raise ModelError(
            f"{model.source} gives numbers that are not finite in {str(model.dtype).removeprefix('torch.')}. Load it in a wider "
            "type: dtype='float32', or bfloat16 instead of float16."
        )
    if not bool(torch.isfinite(seen.o).all()):
        raise UsageError("With these edits the model's numbers are not finite any more. Use smaller scales.")


class _Reader:
    """Reads residuals and cells through the model's final norm and head, in float32 whatever type its weights have."""

    def __init__(self, model: Model, signs: Tensor | None = None) -> None:
        self.model, self.head, self.signs = model, Head(model), signs
        self.norm = self.head.exact_norm

    @torch.inference_mode()
    def view(
        self, ids: list[int], position: int, plain: States, seen: States, wanted: int | None, *, edited: bool
    ) -> PromptView:
        layers, device = self.model.layers, self.head.weight.device
        residuals = torch.cat([seen.r[:, 0], seen.o[:, 0], plain.o[-1]]).to(device)
        logits = self.head.logits(residuals, exact=True)
        normalizers = logits.logsumexp(1)
        values, tokens = largest(logits, PREDICTED)
        p = (values - normalizers[:, None]).exp().tolist()
        piece = self.model.vocabulary.piece
        predictions = [
            [(piece(t), q) for t, q in zip(row, chances, strict=True)]
            for row, chances in zip(tokens.tolist(), p, strict=True)
        ]
        last, original = 2 * layers - 1, 2 * layers
        token = int(tokens[last, 0]) if wanted is None else wanted
        asked = logits[:, token]
        chances = (asked - normalizers).exp()
        chosen = Chosen(
            token=token,
            piece=piece(token),
            logit=float(asked[last]),
            p=float(chances[last]),
            original_logit=float(asked[original]),
            original_p=float(chances[original]),
        )
        views = []
        for layer in range(layers):
            strongest, effective = self.cells(layer, seen, token)
            before, after = predictions[layer][:PER_LAYER], predictions[layers + layer][:PER_LAYER]
            views.append(LayerView(layer, before, after, strongest, effective))
        return PromptView(
            tokens=[piece(i) for i in ids],
            ids=ids,
            position=position,
            edited=edited,
            prediction=predictions[last],
            original=predictions[original],
            chosen=chosen,
            layers=views,
        )

    def cells(self, layer: int, seen: States, token: int) -> tuple[list[Contribution], list[Contribution]]:
        """The cells of a layer with the largest strength, and those with the largest effect on the token's logit."""
        m = seen.coefficients[layer][0].float()
        values, scale = self.reaching(layer, m, seen.y[layer, 0].to(m.device))
        strength = m.abs() * values.norm(dim=1)
        device = self.head.weight.device
        shown = m if self.signs is None else m * self.signs[self.model.cells.span(layer)].to(m)
        effect = self.effects(seen.o[-1, 0].to(device), values.to(device), (m * scale).to(device), token).to(m.device)

        def first(measure: Tensor) -> list[Contribution]:
            order = largest(measure[None], CELLS)[1][0]
            columns = [column[order].tolist() for column in (shown, strength, effect)]
            return [Contribution(*one) for one in zip(order.tolist(), *columns, strict=True)]

        return first(strength), first(effect.abs())

    def reaching(self, layer: int, m: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's values [cells, model] as they reach the residual, and the scale of a norm on the way at this position."""
        model, values = self.model, self.model.values(layer).float()
        post = self.head.post_norm(layer)
        if post is None:
            return values, values.new_ones(())
        values, bias = post.fold(values), model.bias(layer)
        before = m @ values if bias is None else m @ values + post.fold(bias.float())
        return values, (y - post.bias) @ before / (before @ before).clamp_min(1e-30)

    def effects(self, final: Tensor, values: Tensor, weights: Tensor, token: int) -> Tensor:
        """[cells] what each addition weight·value does to the token's logit."""
        row = self.head.weight[token].float()
        whole = self.norm(final[None])
        step = max(1, BLOCK // values.shape[1])
        lost = torch.cat(
            [
                (whole - self.norm(final - weights[at : at + step, None] * values[at : at + step])) @ row
                for at in range(0, len(values), step)
            ]
        )
        lost = lost.double() * self.head.scale
        if self.head.cap is None:
            return lost.float()
        logit = (whole[0] @ row + (0.0 if self.head.bias is None else self.head.bias[token])).double() * self.head.scale
        return (self.head.capped(logit) - self.head.capped(logit - lost)).float()
