"""What else changed: a model with edits on a text, beside the same model without them.

    perplexity, change, agreement   as in `losses`
    moved     of a token of the vocabulary: the mean over the text's positions of log p(token | with the edits) − log p(token | without
              them), in nats. Every position counts, whatever token is there

The null is the same edit of other cells: for every edit, a random cell of the same layer that is not edited is edited in the same
way (the same scale, the same new value, the same move). What random cells do too is no sign that the edited ones are special. It is
drawn `DRAWS` times. Intervals are over documents. A token's move is compared with the largest move of any token in a draw, because
the tokens that are shown were chosen for their moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..analyses.stats import Interval, ratio_of_sums
from ..models import intervene
from ..models.intervene import Edit
from ..models.model import Model
from .losses import Change, Losses, change, losses
from .texts import Text, room_of

DRAWS = 3
"""Times that other cells are drawn."""
SHOWN = 10
"""Tokens that are shown per direction."""
GROUPS = 64
"""Groups that documents are put together in, for the intervals of tokens: one sum per group and token is kept."""

Floats = npt.NDArray[np.float64]
Progress = Callable[[str, int], Callable[[int], None]]


@dataclass(frozen=True)
class Moved:
    """A token, and how its mean log-probability changed."""

    token: int
    piece: str
    moved: Interval
    random: float
    """the same with edits of other cells, the mean over the draws; NaN if there was none"""


@dataclass(frozen=True)
class Null:
    """One draw of other cells."""

    change: Interval
    agreement: Interval
    largest: float
    """the largest move of any token, either way"""


@dataclass(frozen=True)
class Changed:
    """A model with edits, on a text."""

    text: Text
    windows: int
    documents: int
    edited: int
    """cells"""
    found: Change
    up: list[Moved]
    """the tokens that rose most, the first one most"""
    down: list[Moved]
    null: list[Null] = field(default_factory=list)
    """empty if the layers have too few other cells"""

    def to_json(self) -> dict[str, Any]:
        text = {"source": self.text.source, "files": self.text.files, "tokens": self.found.tokens}
        null = [{name: _plain(value) for name, value in asdict(each).items()} for each in self.null]
        measured = {name: list(getattr(self.found, name)) for name in ("before", "after", "change", "agreement")}
        moved = {
            side: [
                {"token": each.token, "piece": each.piece, "moved": list(each.moved), "random": each.random}
                for each in listed
            ]
            for side, listed in (("up", self.up), ("down", self.down))
        }
        return {
            "text": {**text, "documents": self.documents},
            "cells": self.edited,
            **measured,
            **moved,
            "random": null,
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def changed(
    model: Model,
    edits: Sequence[Edit],
    text: Text,
    *,
    seed: int = 0,
    progress: Progress = lambda what, total: lambda done: None,
) -> Changed:
    """Measure what edits do to a model on a text."""
    windows = text.windows(room_of(model))
    documents = np.unique([window.document for window in windows])
    before, sums_before = _run(model, (), windows, documents, lambda total: progress("without the edits", total))
    after, sums_after = _run(model, edits, windows, documents, lambda total: progress("with the edits", total))
    moves = sums_after.moved(sums_before)
    nulls, others = [], []
    random = np.random.default_rng(seed)
    for draw in range(DRAWS):
        elsewhere = others_of(model, edits, random)
        if elsewhere is None:
            break
        name = f"other cells, {draw + 1} of {DRAWS}"
        found, sums = _run(model, elsewhere, windows, documents, lambda total, name=name: progress(name, total))  # type: ignore[misc]
        other, said = sums.moved(sums_before), change(before, found)
        nulls.append(Null(said.change, said.agreement, float(np.abs(other).max())))
        others.append(other)
    order = np.argsort(-moves, kind="stable")
    mean = np.mean(others, 0) if others else np.full(len(moves), np.nan)

    def listed(tokens: npt.NDArray[np.int64]) -> list[Moved]:
        return [
            Moved(token, model.vocabulary.piece(token), sums_after.interval(sums_before, token), float(mean[token]))
            for token in tokens.tolist()
        ]

    up, down = order[:SHOWN], order[::-1][:SHOWN]
    return Changed(
        text=text,
        windows=len(windows),
        documents=len(documents),
        edited=len({(edit.layer, edit.cell) for edit in edits}),
        found=change(before, after),
        up=listed(up[moves[up] > 0]),
        down=listed(down[moves[down] < 0]),
        null=nulls,
    )


def others_of(model: Model, edits: Sequence[Edit], random: np.random.Generator) -> list[Edit] | None:
    """The same edits of random other cells of the same layers, none of them edited, also not before; None if a layer has too few. A
    cell whose value is 0 cannot be moved, so it is not drawn for that."""
    found: list[Edit] = []
    for layer in sorted({edit.layer for edit in edits}):
        own = [edit for edit in edits if edit.layer == layer]
        cells = sorted({edit.cell for edit in own})
        free = np.ones(model.cells.size(layer), bool)
        free[cells] = False
        free[[edit.cell for edit in model.edits if edit.layer == layer]] = False
        if any(edit.towards is not None for edit in own):
            free &= (model.values(layer).float().norm(dim=1) > 0).cpu().numpy()
        left = np.flatnonzero(free)
        if len(left) < len(cells):
            return None
        instead = dict(zip(cells, random.choice(left, len(cells), replace=False).tolist(), strict=True))
        found += [replace(edit, cell=instead[edit.cell]) for edit in own]
    return found


class _Sums:
    """Sums of the log-probability of every token of the vocabulary, over the positions of groups of documents."""

    def __init__(self, model: Model, documents: npt.NDArray[np.int64]) -> None:
        self.vocabulary = len(model.vocabulary)
        group = np.arange(len(documents)) % GROUPS
        self.group = dict(zip(documents.tolist(), group.tolist(), strict=True))
        self.sums: Tensor | None = None
        self.counts = np.zeros(int(group.max()) + 1)

    def look(self, logits: Tensor, normalizers: Tensor, documents: npt.NDArray[np.int64]) -> None:
        used = min(self.vocabulary, logits.shape[1])
        if self.sums is None:
            self.sums = torch.zeros(len(self.counts), used, dtype=torch.float64)
        for document in np.unique(documents):
            own = torch.from_numpy(np.flatnonzero(documents == document)).to(logits.device)
            group = self.group[int(document)]
            # summed in float32: in float64 the block would be twice as large, and a sum of so few numbers would hardly differ
            self.sums[group] += (logits[own, :used].sum(0).double() - normalizers[own].sum()).cpu()
            self.counts[group] += len(own)

    def _differences(self, before: _Sums) -> Floats:
        assert self.sums is not None
        assert before.sums is not None
        found: Floats = (self.sums - before.sums).numpy()
        return found

    def moved(self, before: _Sums) -> Floats:
        """[vocabulary]"""
        total: Floats = self._differences(before).sum(0) / self.counts.sum()
        return total

    def interval(self, before: _Sums, token: int) -> Interval:
        return ratio_of_sums(self._differences(before)[:, token], self.counts)


def _run(
    model: Model,
    edits: Sequence[Edit],
    windows: Sequence[Any],
    documents: npt.NDArray[np.int64],
    begin: Callable[[int], Callable[[int], None]],
) -> tuple[Losses, _Sums]:
    sums = _Sums(model, documents)
    with intervene.applied(model, edits):
        return losses(model, windows, begin, sums.look), sums
