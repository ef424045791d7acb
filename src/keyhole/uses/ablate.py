"""Measured ablation: the model is run again with a cell switched off, and the chosen token's logit and log p are compared.

    logit    logit(token) − logit(token | m = 0)
    log_p    log p(token) − log p(token | m = 0)

Both have the sign of the direct effect (effects.py): above 0, the cell speaks for the token. The direct effect leaves all other
additions as they are; here the layers above compute theirs anew. In the last layer nothing comes after, so the two are the same
there (up to the norm between a layer and the residual, if there is one).

A cell is switched off at the position that is read, or at every position of the text. With edits, it is switched off in addition
to them. Cells are the rows of a batch. If they are switched off at the position only, the tokens before it are run once: all rows
continue from their keys and values.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..lens.head import Head
from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Model
from ..models.patches import without_readbacks
from ..models.taps import Taps, tapped
from .asked import Asked, ask, check_finite

BATCH_TOKENS = 4096
"""Upper bound on the tokens of a batch, those in the cache included."""


@dataclass(frozen=True)
class Ablated:
    """What is lost with a cell."""

    layer: int
    cell: int
    logit: float
    log_p: float


@dataclass(frozen=True)
class Ablation:
    token: int
    piece: str
    logit: float
    """with all cells, and with the edits if there are any"""
    p: float
    everywhere: bool
    cells: list[Ablated]


def ablate(
    model: Model,
    text: str,
    cells: Iterable[tuple[int, int]],
    *,
    position: int | None = None,
    token: str | None = None,
    edits: Iterable[Edit] = (),
    everywhere: bool = False,
    bos: bool = True,
) -> Ablation:
    """Switch each of the cells (layer, cell) off on its own, and say what the chosen token loses; by default that is the token
    which is predicted without the edits."""
    asked, places = ask(model, text, position, token, edits, bos), [(int(layer), int(cell)) for layer, cell in cells]
    off = [Edit(*place, 0.0, None if everywhere else (asked.position,)) for place in places]
    head = Head(model)
    with model.lock:
        with intervene.applied(model, asked.edits, asked.batch.n_special):
            rows = _Rows(model, asked, everywhere=everywhere)
            # the row without a change is one of the batch, so that rounding is the same in all of them
            last = torch.cat([rows.last(part) for part in _parts([[], *([each] for each in off)], rows.most)])
        check_finite(model, last, edited=bool(asked.edits))
        chosen = asked.token
        if chosen is None:
            plain = _Rows(model, asked).last([[]]) if asked.edits else last[:1]
            chosen = int(head.logits(plain, exact=True)[0].argmax())
    logits, log_ps = _said(head, last, chosen)
    lost = zip(places, (logits[0] - logits[1:]).tolist(), (log_ps[0] - log_ps[1:]).tolist(), strict=True)
    return Ablation(
        token=chosen,
        piece=model.vocabulary.piece(chosen),
        logit=float(logits[0]),
        p=float(log_ps[0].exp()),
        everywhere=everywhere,
        cells=[Ablated(*place, logit, log_p) for place, logit, log_p in lost],
    )


def _parts(rows: Sequence[list[Edit]], most: int) -> list[Sequence[list[Edit]]]:
    return [rows[at : at + most] for at in range(0, len(rows), most)]


def _said(head: Head, last: Tensor, token: int) -> tuple[Tensor, Tensor]:
    """[rows] the token's logit and log p, of last residuals [rows, model]."""
    found = []
    for at in range(0, len(last), head.rows_at_once):
        logits = head.logits(last[at : at + head.rows_at_once], exact=True).double()
        found.append((logits[:, token], logits[:, token] - logits.logsumexp(1)))
    logits, log_p = (torch.cat(each) for each in zip(*found, strict=True))
    return logits, log_p


class _Rows:
    """A text, run as often as there are rows, each row with edits of its own."""

    def __init__(self, model: Model, asked: Asked, *, everywhere: bool = False) -> None:
        self.model, self.n_special = model, asked.batch.n_special
        self.ids = asked.batch.ids.to(model.device)
        self.most = max(1, BATCH_TOKENS // self.ids.shape[1])
        self.before: Any = None
        if not everywhere and self.ids.shape[1] > 1:
            self.before = self._run(self.ids[:, :-1], None, cached=True)[1]
            self.ids = self.ids[:, -1:]

    def last(self, rows: Sequence[list[Edit]]) -> Tensor:
        """[rows, model] the last residual at the position."""
        ids = self.ids.expand(len(rows), -1)
        past = copy.deepcopy(self.before)  # running a token adds to its keys and values
        if past is not None:
            past.batch_repeat_interleave(len(rows))
        with intervene.applied_by_row(self.model, rows, self.n_special):
            return self._run(ids, past, cached=past is not None)[0]

    def _run(self, ids: Tensor, past: Any, *, cached: bool) -> tuple[Tensor, Any]:
        model, kept = self.model, dict[str, Tensor]()

        def keep(layer: int, x: Tensor) -> None:
            if layer == model.layers - 1:
                kept["o"] = x.detach().reshape(*ids.shape, -1)[:, -1].float()

        with tapped(model, Taps(block_out=keep), tuple(ids.shape)):
            if not cached:
                model.forward(ids)
                return kept["o"], None
            with without_readbacks(), torch.inference_mode():
                found = model.lm.base_model(input_ids=ids, past_key_values=past, use_cache=True)
        return kept["o"], found.past_key_values
