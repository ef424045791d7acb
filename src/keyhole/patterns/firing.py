"""Where the chosen keys fire in a text: one pass of the model that keeps the positions with the largest coefficients of each.

A key fires at one position in a thousand. The pass keeps about one in a hundred, whose coefficients are above a threshold that a
first look at a few windows sets, so its memory does not depend on how many positions are below. What it found
stays in files of the run until the patterns are complete: an interrupted search goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..store import layout
from ..store.run import Run
from .keys import LEVELS, Fires, fires
from .passing import Take, observe
from .text import Text

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

PILOT = 8192
"""Positions, about this many, that set the thresholds."""
MARGIN = 2.0
"""The pass keeps about this many times the share of positions that is needed."""
Cells = Mapping[int, "npt.NDArray[np.int64]"]
"""per layer the numbers of its chosen cells, ascending"""


class Pairs(NamedTuple):
    """The strongest positions of the chosen cells of a layer, one side."""

    offsets: npt.NDArray[np.int64]
    """[cells + 1] where each cell's entries begin"""
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    """coefficients, of the other side with their sign turned: above 0"""
    least: npt.NDArray[np.float32]
    """[cells] what they are above"""

    def fires(self, number: int, length: int) -> Fires:
        """Where a cell fires in the text, which has `length` positions."""
        begin, end = self.offsets[number : number + 2]
        return fires(self.positions[begin:end], self.values[begin:end], length, float(self.least[number]))


def gather(
    run: Run,
    model: Model,
    text: Text,
    cells: Cells,
    what: str,
    *,
    sides: tuple[int, ...],
    also: Take | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Store the pairs of every layer under the name `what`. `also` is shown the coefficients at all positions."""
    import torch

    least = _thresholds(run, model, text, cells, sides, seed)
    kept: dict[tuple[int, int], list[tuple[npt.NDArray[np.int32], ...]]] = {at: [] for at in least}

    def take(layer: int, positions: npt.NDArray[np.int64], x: torch.Tensor) -> None:
        for side in sides:
            signed = x if side > 0 else -x
            rows, columns = torch.nonzero(signed > least[layer, side], as_tuple=True)
            values = signed[rows, columns].float().cpu().numpy()
            found = positions[rows.cpu().numpy()].astype(np.int32), columns.cpu().numpy().astype(np.int32), values
            kept[layer, side].append(found)
        if also is not None:
            also(layer, positions, x)

    observe(run, model, text, cells, take, advance=advance)
    for (layer, side), parts in kept.items():
        positions, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        parts.clear()
        order = np.argsort(columns, kind="stable")
        offsets = np.searchsorted(columns[order], np.arange(len(cells[layer]) + 1))
        pairs = Pairs(offsets, positions[order], values[order], least[layer, side].cpu().numpy())
        for name, array in pairs._asdict().items():
            layout.save_array(run.path, _name(what, layer, side, name), array)


def read(run: Run, what: str, layer: int, side: int) -> Pairs:
    return Pairs(*(layout.load_array(run.path, _name(what, layer, side, name)) for name in Pairs._fields))


def _name(what: str, layer: int, side: int, name: str) -> str:
    return f"{layout.PATTERNS_FIRED}_{what}_{layer}_{'key' if side > 0 else 'other'}_{name}"


def _thresholds(
    run: Run, model: Model, text: Text, cells: Cells, sides: tuple[int, ...], seed: int
) -> dict[tuple[int, int], torch.Tensor]:
    """Per layer and side, [cells] what a coefficient must be above to be kept: never below 0."""
    import torch

    order = np.random.default_rng(seed).permutation(len(text.offsets) - 1)
    lengths = np.diff(text.offsets)[order]
    some = np.sort(order[: int(np.searchsorted(np.cumsum(lengths), PILOT)) + 1])
    windows = [text.tokens[text.offsets[i] : text.offsets[i + 1]] for i in some]
    seen: dict[int, list[torch.Tensor]] = {}
    observe(
        run,
        model,
        Text.of(windows, text.documents[some], text.lexicon),
        cells,
        lambda layer, positions, x: seen.setdefault(layer, []).append(x),
    )
    found = {}
    for layer, parts in seen.items():
        x = torch.cat(parts)
        parts.clear()
        rank = max(1, int(len(x) * LEVELS[0] * MARGIN))
        for side in sides:
            largest = torch.topk(x if side > 0 else -x, min(rank, len(x)), dim=0).values[-1]
            found[layer, side] = largest.clamp_min(0) if len(x) > 2 * rank else torch.zeros_like(largest)
    return found
