"""A key on a text of one's own: one cell's coefficient at every token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..models.model import Model
from ..store.run import Run
from .asked import check_finite, window


@dataclass(frozen=True)
class Tried:
    """A text, with the cell's coefficient at each of its tokens."""

    tokens: list[str]
    coefficients: list[float]
    """in the cell's orientation; special tokens are left out"""


def try_key(run: Run, model: Model, layer: int, index: int, text: str) -> Tried:
    """The coefficients that a scan would find if the text were a unit of its corpus: with the start token if the run has it, and
    in the cell's orientation. Only this cell's coefficients are kept, so memory does not grow with the model's cells."""
    place = run.cells.place(layer, index)
    ids = window(run, model, text)
    batch = model.batch([ids], bos=bool(run.manifest["config"]["bos"]))
    own = next(number for number, site in enumerate(run.cells.sites) if site.start <= place < site.stop)
    column = place - run.cells.sites[own].start
    found: list[float] = []

    def keep(site: int, x: torch.Tensor) -> None:
        if site == own:
            found.extend(x[batch.n_special :, column].float().cpu().tolist())

    model.run_every_token(batch.ids, keep)
    check_finite(model, torch.tensor(found), edited=False)
    sign = int(run.orientation[place])
    return Tried([model.vocabulary.piece(i) for i in ids], [sign * m for m in found])
