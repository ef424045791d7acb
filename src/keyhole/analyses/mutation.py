"""What a key's coefficient loses when a token of its triggers is dropped: the first, the last, or a random one (Figure 3).

The model is causal, so one run of a sentence with a token left out answers for every trigger that sees that far. The random
place is drawn as a reservoir: p(j) = j with chance 1/(j+1), else p(j−1). It is uniform over each prefix x_0..x_j, and a
sentence has only a few different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..models.model import Model
from ..store.run import Run
from .stats import clustered_mean

DROPPED = ("first", "last", "random")
MOST = 50
"""Triggers a cell, at most."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picked:
    """Triggers of the chosen cells, one an entry."""

    layer: Ints
    cell: Ints
    unit: Ints
    start: Ints
    """where in its unit the trigger's window starts"""
    length: Ints
    """tokens of the prefix"""
    coefficient: npt.NDArray[np.float64]
    skipped: int
    """prefixes of one token: dropping it leaves nothing"""


def rows(
    run: Run,
    model: Model,
    *,
    cells: int = 100,
    seed: int = 0,
    begin: Callable[[int], Callable[[int], None]] = lambda total: lambda done: None,
) -> tuple[list[dict[str, Any]], str]:
    """The table, and what it leaves out."""
    picked = pick(run, cells, seed)
    changed = {name: np.full(len(picked.layer), np.nan) for name in DROPPED}
    work = _windows(run, picked, seed)
    advance = begin(len(work))
    for batch in _batches(work, int(run.manifest["config"]["batch_tokens"])):
        _measure(run, model, picked, batch, changed)
        advance(len(batch))
    found = []
    for layer in range(run.layers):
        here = picked.layer == layer
        for name in DROPPED:
            change = changed[name][here] / picked.coefficient[here] - 1
            mean, lo, hi = clustered_mean(change, picked.cell[here])
            found.append({"layer": layer, "dropped": name, "n": len(change), "mean_change": mean, "lo": lo, "hi": hi})
    note = (
        f"{_at_most(run, cells)} cells a layer, up to {min(MOST, run.top)} triggers each; "
        f"{picked.skipped:,} triggers of one token have nothing to drop from and are left out"
    )
    return found, note


def _at_most(run: Run, cells: int) -> str:
    """How many cells of a layer are picked, for the note; a range if layers are too narrow for as many."""
    picked = {min(cells, run.cells.size(layer)) for layer in range(run.layers)}
    return f"{min(picked)} to {max(picked)}" if len(picked) > 1 else f"{picked.pop()}"


def pick(run: Run, cells: int, seed: int) -> Picked:
    """The triggers of `cells` random cells a layer, those that fire."""
    random = np.random.default_rng(seed)
    parts: list[tuple[Ints, ...]] = []
    for layer in range(run.layers):
        here = run.layer(layer)
        alive = np.flatnonzero(here.units[:, 0] >= 0)
        chosen = np.sort(random.choice(alive, min(cells, len(alive)), replace=False))
        units = here.units[chosen, :MOST].astype(np.int64)
        which, slot = np.nonzero(units >= 0)
        parts.append((np.full(len(which), layer), chosen[which], run.cells.places(layer, chosen[which]), slot))
    layers, inside, places, slots = (np.concatenate(column) for column in zip(*parts, strict=True))
    positions = run.positions[places, slots].astype(np.int64)
    starts = positions // run.room * run.room
    lengths = positions - starts + 1
    kept = lengths > 1
    at = (places[kept], slots[kept])
    return Picked(
        layer=layers[kept],
        cell=inside[kept],
        unit=run.units[at].astype(np.int64),
        start=starts[kept],
        length=lengths[kept],
        coefficient=run.coefficients[at].astype(np.float64),
        skipped=int((~kept).sum()),
    )


@dataclass(frozen=True)
class _Window:
    """A stretch of a unit, without one token, and the triggers it answers for."""

    name: str
    unit: int
    start: int
    dropped: int
    """place in the window of the token left out; −1 where none is (the last token goes by looking one earlier)"""
    length: int
    """tokens that are run"""
    triggers: Ints


def _windows(run: Run, picked: Picked, seed: int) -> list[_Window]:
    windows: list[_Window] = []
    by_window: dict[tuple[int, int], list[int]] = {}
    for i, key in enumerate(zip(picked.unit.tolist(), picked.start.tolist(), strict=True)):
        by_window.setdefault(key, []).append(i)
    for (unit, start), members in sorted(by_window.items()):
        inside = np.array(members)
        lengths = picked.length[inside]
        longest = int(lengths.max())
        windows.append(_Window("last", unit, start, -1, longest - 1, inside))
        windows.append(_Window("first", unit, start, 0, longest - 1, inside))
        places = reservoir(longest, np.random.default_rng((seed, unit, start)))[lengths - 1]
        for place in np.unique(places):
            those = inside[places == place]
            windows.append(_Window("random", unit, start, int(place), int(picked.length[those].max()) - 1, those))
    return windows


def reservoir(length: int, random: np.random.Generator) -> Ints:
    """For each prefix x_0..x_j of a window the place that is dropped: uniform over 0..j, and seldom a new one."""
    fresh = random.random(length) < 1 / np.arange(1, length + 1)
    return np.maximum.accumulate(np.where(fresh, np.arange(length), 0))


def _batches(windows: list[_Window], tokens: int) -> Iterator[list[_Window]]:
    ordered = sorted(windows, key=lambda window: -window.length)
    at = 0
    while at < len(ordered):
        rows = max(1, tokens // (ordered[at].length + 1))
        yield ordered[at : at + rows]
        at += rows


def _measure(
    run: Run, model: Model, picked: Picked, batch: list[_Window], changed: dict[str, npt.NDArray[np.float64]]
) -> None:
    texts = []
    for window in batch:
        tokens = np.asarray(run.unit_tokens(window.unit)[window.start : window.start + window.length + 1])
        texts.append(np.delete(tokens, window.dropped) if window.dropped >= 0 else tokens[:-1])
    prepared = model.batch(texts, bos=bool(run.manifest["config"]["bos"]))
    row = np.repeat(np.arange(len(batch)), [len(window.triggers) for window in batch])
    which = np.concatenate([window.triggers for window in batch])
    column = prepared.n_special + picked.length[which] - 2  # the mutated prefix is one shorter
    got = np.empty(len(which))

    def sink(layer: int, x: torch.Tensor, tokens: torch.Tensor | None) -> None:
        here = np.flatnonzero(picked.layer[which] == layer)
        if len(here):
            at = [torch.from_numpy(index[here]).to(x.device) for index in (row, column, picked.cell[which])]
            got[here] = x[at[0], at[1], at[2]].double().cpu().numpy()

    model.run(prepared.ids, sink)
    names = np.repeat([window.name for window in batch], [len(window.triggers) for window in batch])
    for name in DROPPED:
        changed[name][which[names == name]] = got[names == name]
