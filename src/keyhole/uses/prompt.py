"""A prompt, layer by layer: what the residual predicts before and after each feed-forward layer, and which cells cause the
difference. With edits, next to what the model predicts without them.

Two measures of a cell at one position:

    strength    |m|·‖v‖, how much it adds to the residual
    effect      what its addition does to the chosen token's logit (effects.py)

A third one runs the model again without the cell: `ablate`. What each whole layer does at every position: `by_layer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..lens.project import largest
from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Model
from ..models.states import States, states
from ..store.run import Run
from .ablate import Ablated, Ablation, ablate
from .asked import Asked, ask, check_finite, check_positions, check_run, check_text, not_finite
from .by_layer import LayerEffects, by_layer
from .effects import Effects

__all__ = [
    "Ablated",
    "Ablation",
    "Chosen",
    "Contribution",
    "LayerEffects",
    "LayerView",
    "PromptView",
    "RankedCell",
    "Reading",
    "ablate",
    "by_layer",
    "check_positions",
    "check_text",
    "not_finite",
    "read",
]

PREDICTED = 10
"""Tokens per prediction."""
PER_LAYER = 5
"""Tokens per residual."""
CELLS = 10
"""Cells per layer and measure."""
RANKED = 50
"""Cells of all layers per measure."""

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
class RankedCell(Contribution):
    """The same, among the cells of all layers."""

    layer: int


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
class Reading:
    """One pass through the model: its layers, and its cells of all layers."""

    layers: list[LayerView]
    ranked: list[RankedCell]
    """the cells with the largest effects and those with the largest strengths, `RANKED` of each, the largest effect first"""

    def to_json(self) -> dict[str, Any]:
        return {
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
            "ranked": [{"layer": one.layer, **_cell(one)} for one in self.ranked],
        }


@dataclass(frozen=True)
class PromptView:
    """What was read at one position of a text. `original` is the prediction without the edits, `layers` and `ranked` are of the
    pass with them."""

    tokens: list[str]
    ids: list[int]
    position: int
    edited: bool
    prediction: Prediction
    original: Prediction
    chosen: Chosen
    layers: list[LayerView]
    ranked: list[RankedCell]
    without: Reading | None
    """the pass without the edits; None if there are none"""

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
            **Reading(self.layers, self.ranked).to_json(),
            "without": None if self.without is None else self.without.to_json(),
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
    """Read one position of a text, by default the last. Effects are on one token, by default the one that is predicted without
    the edits.

    Edits act on this call only. With a run of the model, coefficients have the signs that its cells are read with
    (`Run.orientation`). Several threads may call this at once.
    """
    asked = ask(model, text, position, token, edits, bos)
    with model.lock:
        plain = seen = states(model, asked.batch.ids, asked.column)
        if asked.edits:
            with intervene.applied(model, asked.edits, asked.batch.n_special):
                seen = states(model, asked.batch.ids, asked.column)
        check_finite(model, plain.o, edited=False)
        check_finite(model, seen.o, edited=True)
        return _Reader(model, None if run is None else _signs(run, model)).view(asked, plain, seen)


def _signs(run: Run, model: Model) -> Tensor:
    """[cells] the signs that the cells of a run are read with."""
    check_run(run, model)
    return torch.from_numpy(np.array(run.orientation))


class _Reader:
    """Reads states as predictions and cells."""

    def __init__(self, model: Model, signs: Tensor | None = None) -> None:
        self.model, self.signs = model, signs
        self.effects = Effects(model)

    @torch.inference_mode()
    def view(self, asked: Asked, plain: States, seen: States) -> PromptView:
        passes = [seen] if seen is plain else [seen, plain]
        head, piece = self.effects.head, self.model.vocabulary.piece
        residuals = torch.cat([each for one in passes for each in (one.r[:, 0], one.o[:, 0])]).to(head.weight.device)
        logits = head.logits(residuals, exact=True)
        normalizers = logits.logsumexp(1)
        values, tokens = largest(logits, PREDICTED)
        p = (values - normalizers[:, None]).exp().tolist()
        predictions = [
            [(piece(t), q) for t, q in zip(row, chances, strict=True)]
            for row, chances in zip(tokens.tolist(), p, strict=True)
        ]
        both = 2 * self.model.layers
        last, original = both - 1, len(passes) * both - 1
        token = int(tokens[original, 0]) if asked.token is None else asked.token
        of_token = logits[:, token]
        chances = (of_token - normalizers).exp()
        chosen = Chosen(
            token=token,
            piece=piece(token),
            logit=float(of_token[last]),
            p=float(chances[last]),
            original_logit=float(of_token[original]),
            original_p=float(chances[original]),
        )
        readings = []
        for number, one in enumerate(passes):
            # the first pass is that with the edits, if there are any: a cell adds the value it had there
            with intervene.values_changed(self.model, () if number else asked.edits):
                readings.append(self.reading(one, predictions[number * both : (number + 1) * both], token))
        return PromptView(
            tokens=[piece(i) for i in asked.ids],
            ids=asked.ids,
            position=asked.position,
            edited=bool(asked.edits),
            prediction=predictions[last],
            original=predictions[original],
            chosen=chosen,
            layers=readings[0].layers,
            ranked=readings[0].ranked,
            without=readings[1] if len(readings) > 1 else None,
        )

    def reading(self, seen: States, predictions: list[Prediction], token: int) -> Reading:
        """A pass as it is shown: what its residuals predict is given, those of r first."""
        layers = self.model.layers
        views, strongest, effective = [], list[RankedCell](), list[RankedCell]()
        for layer in range(layers):
            by_strength, by_effect = self.cells(layer, seen, token)
            before, after = predictions[layer][:PER_LAYER], predictions[layers + layer][:PER_LAYER]
            views.append(LayerView(layer, before, after, list(by_strength[:CELLS]), list(by_effect[:CELLS])))
            strongest += by_strength
            effective += by_effect
        strongest.sort(
            key=lambda one: -one.strength
        )  # the sort is stable: equal ones stay in the order of their places
        effective.sort(key=lambda one: -abs(one.effect))
        both = {(one.layer, one.cell): one for one in (*effective[:RANKED], *strongest[:RANKED])}
        return Reading(views, sorted(both.values(), key=lambda one: -abs(one.effect)))

    def cells(self, layer: int, seen: States, token: int) -> tuple[list[RankedCell], list[RankedCell]]:
        """The cells of a layer with the largest strength, and those with the largest effect on the token's logit."""
        m = seen.coefficients[layer][0].float()
        strength, effect = self.effects.of_cells(layer, m, seen.y[layer, 0], seen.o[-1, 0], token)
        shown = m if self.signs is None else m * self.signs[self.model.cells.span(layer)].to(m)

        def first(measure: Tensor) -> list[RankedCell]:
            order = largest(measure[None], RANKED)[1][0]
            columns = [column[order].tolist() for column in (shown, strength, effect)]
            found = zip(order.tolist(), *columns, strict=True)
            return [RankedCell(cell, m, of_strength, of_effect, layer) for cell, m, of_strength, of_effect in found]

        return first(strength), first(effect.abs())
