"""One pass of the model over a text: the coefficients of chosen cells at every position, given away batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..common.batching import batch_by_length
from ..store.run import Run
from .text import Text

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

Take = Callable[[int, "npt.NDArray[np.int64]", "torch.Tensor"], None]
"""Called with a layer, positions of the text, and their coefficients [positions, cells of that layer] in the cells' orientation.
float32, on the model's device; they may be changed only if no other taker sees them."""


def observe(
    run: Run,
    model: Model,
    text: Text,
    cells: Mapping[int, npt.NDArray[np.int64]],
    take: Take,
    *,
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Run the model over every window. `cells`: per layer the numbers of the cells in that layer, ascending."""
    import torch

    config = run.manifest["config"]
    lengths = np.diff(text.offsets)
    sites = [run.cells.split(site.start)[0] for site in run.cells.sites]
    signs: dict[int, torch.Tensor | None] = {}
    chosen: dict[int, torch.Tensor | slice] = {}
    for number, site in enumerate(run.cells.sites):
        first = run.cells.split(site.start)[1]
        inside = cells.get(sites[number], np.empty(0, np.int64))
        inside = inside[(inside >= first) & (inside < first + site.stop - site.start)] - first
        sign = np.array(run.orientation[site], np.float32)[inside]
        if not len(inside):
            continue
        # if all cells of a layer are chosen, none has to be looked up; if all signs are 1, there is nothing to turn
        chosen[number] = (
            slice(None) if len(inside) == site.stop - site.start else torch.from_numpy(inside).to(model.device)
        )
        signs[number] = None if (sign > 0).all() else torch.from_numpy(sign).to(model.device)
    for numbers in batch_by_length(lengths, int(config["batch_tokens"])):
        windows = [text.tokens[text.offsets[i] : text.offsets[i + 1]] for i in numbers]
        batch = model.batch(windows, bos=bool(config["bos"]))
        columns = np.arange(batch.ids.shape[1] - batch.n_special)
        there = columns < lengths[numbers][:, None]
        positions = (text.offsets[numbers][:, None] + columns)[there]
        rows = np.flatnonzero(np.pad(there, ((0, 0), (batch.n_special, 0))))
        at = torch.from_numpy(rows).to(model.device)
        parts: dict[int, list[torch.Tensor]] = {}

        def sink(site: int, x: torch.Tensor) -> None:
            if site in chosen:
                which, sign = chosen[site], signs[site]
                rows = x[at] if isinstance(which, slice) else x[at[:, None], which]  # noqa: B023 - called within this iteration
                kept = rows.float() if sign is None else rows.float().mul_(sign)
                parts.setdefault(sites[site], []).append(kept)  # noqa: B023

        model.run_every_token(batch.ids, sink)
        for layer, found in parts.items():
            take(layer, positions, found[0] if len(found) == 1 else torch.cat(found, 1))
        advance(len(positions))
