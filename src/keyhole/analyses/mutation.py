"""How much of a key's coefficient is lost if one token of its triggers is dropped: the first, the last, or a random one (Figure 3).

The model is causal, so one forward pass over a sentence without one token answers for every trigger of that sentence. The
random token of each prefix is drawn as in reservoir sampling: p(j) = j with probability 1/(j+1), else p(j−1). This is uniform
over each prefix x_0..x_j, and neighbouring prefixes mostly share the choice, so a sentence needs only a few passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..common.batching import batch_by_length
from ..store.run import Run
from .claims import LEVEL, p_value, trend
from .record import (
    KEYS,
    Analysis,
    Baseline,
    Begin,
    Claim,
    Column,
    Effect,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Outcome,
    Paper,
    Series,
    Verdict,
    present,
)
from .stats import binomial, clustered_mean

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

DROPPED = ("first", "last", "random")
MOST = 50
"""Triggers per cell, at most."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Picked:
    """Triggers of the chosen cells, one per entry."""

    layer: Ints
    cell: Ints
    """its number in the layer"""
    place: Ints
    """of its cell, on the axis of cells"""
    unit: Ints
    start: Ints
    """where in its unit the trigger's window starts"""
    length: Ints
    """tokens of the prefix"""
    coefficient: npt.NDArray[np.float64]
    skipped: int
    """prefixes of one token: dropping it leaves nothing"""


def rows(
    run: Run, model: Model, cells: int = 100, seed: int = 0, begin: Begin = lambda total: lambda done: None
) -> Found:
    picked = pick(run, cells, seed)
    changed = {name: np.full(len(picked.layer), np.nan) for name in DROPPED}
    work = _windows(run, picked, seed)
    advance = begin(len(work))
    for numbers in batch_by_length([window.length for window in work], int(run.manifest["config"]["batch_tokens"])):
        batch = [work[number] for number in numbers]
        _measure(run, model, picked, batch, changed)
        advance(len(batch))
    found = []
    for layer in range(run.layers):
        here = picked.layer == layer
        for name in DROPPED:
            change = changed[name][here] / picked.coefficient[here] - 1
            mean, lo, hi = clustered_mean(change, picked.cell[here])
            found.append({"layer": layer, "dropped": name, "n": len(change), "mean_change": mean, "lo": lo, "hi": hi})
    most = [min(cells, run.cells.size(layer)) for layer in range(run.layers)]
    facts = {"cells": max(most), "cells_least": min(most), "triggers": min(MOST, run.top), "one_token": picked.skipped}
    return Found(found, dict(facts))


def pick(run: Run, cells: int, seed: int) -> Picked:
    """The triggers of `cells` random cells per layer, taken from those that fire."""
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
    start = run.window_start(positions)
    lengths = positions - start + 1
    kept = lengths > 1
    at = (places[kept], slots[kept])
    return Picked(
        layer=layers[kept],
        cell=inside[kept],
        place=places[kept],
        unit=run.units[at].astype(np.int64),
        start=start[kept],
        length=lengths[kept],
        coefficient=run.coefficients[at].astype(np.float64),
        skipped=int((~kept).sum()),
    )


@dataclass(frozen=True)
class _Window:
    """A part of a unit, without one token, and the triggers it answers for."""

    name: str
    unit: int
    start: int
    dropped: int
    """position of the token left out; −1 for none (dropping the last token means reading one position earlier)"""
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
    """For each prefix x_0..x_j of a window the position that is dropped: uniform over 0..j, and mostly that of x_0..x_(j−1)."""
    fresh = random.random(length) < 1 / np.arange(1, length + 1)
    return np.maximum.accumulate(np.where(fresh, np.arange(length), 0))


def _measure(
    run: Run, model: Model, picked: Picked, batch: list[_Window], changed: dict[str, npt.NDArray[np.float64]]
) -> None:
    import torch

    texts = []
    for window in batch:
        tokens = np.asarray(run.unit_tokens(window.unit)[window.start : window.start + window.length + 1])
        texts.append(np.delete(tokens, window.dropped) if window.dropped >= 0 else tokens[:-1])
    prepared = model.batch(texts, bos=bool(run.manifest["config"]["bos"]))
    row = np.repeat(np.arange(len(batch)), [len(window.triggers) for window in batch])
    which = np.concatenate([window.triggers for window in batch])
    column = prepared.n_special + picked.length[which] - 2  # the mutated prefix is one shorter
    got = np.empty(len(which))

    token, place = row * prepared.ids.shape[1] + column, picked.place[which]

    def sink(site: int, x: torch.Tensor) -> None:
        span = run.cells.sites[site]
        here = np.flatnonzero((place >= span.start) & (place < span.stop))
        if len(here):
            at = [torch.from_numpy(index[here]).to(x.device) for index in (token, place - span.start)]
            got[here] = x[at[0], at[1]].double().cpu().numpy() * run.orientation[place[here]]

    model.run_every_token(prepared.ids, sink)
    names = np.repeat([window.name for window in batch], [len(window.triggers) for window in batch])
    for name in DROPPED:
        changed[name][which[names == name]] = got[names == name]


# How it is judged and shown


def last_costs_most(measured: Measurement) -> Verdict:
    layers: dict[int, dict[str, float]] = {}
    for row in present(measured.rows, "mean_change"):
        layers.setdefault(int(row["layer"]), {})[str(row["dropped"])] = float(row["mean_change"])
    whole = {layer: changes for layer, changes in layers.items() if len(changes) == len(DROPPED)}
    worst = [min(changes, key=lambda dropped: changes[dropped]) for changes in whole.values()]
    test = "sign test over layers: is the last token the costliest of three more often than one time in three"
    count, n = worst.count("last"), len(worst)
    p = binomial(count, n, 1 / 3)
    said = f"the last token is the costliest in {count} of {n} layers, {p_value(p)}"
    others = max((worst.count(kind) for kind in ("first", "random")), default=0)
    outcome: Outcome = "unclear"
    if p < LEVEL and count > n / 3:
        outcome = "holds"
    elif n and others > count and binomial(others, n, 1 / 3) < LEVEL:
        outcome = "does not hold"
    return Verdict(outcome, test, said, Effect(count / n, against=1 / 3) if n else None)


def less_in_upper_layers(measured: Measurement) -> Verdict:
    return trend([row for row in measured.rows if row["dropped"] == "last"], "mean_change", rising=True)


def note(facts: Facts) -> str:
    least, most = facts["cells_least"], facts["cells"]
    cells = f"{most}" if least == most else f"{least} to {most}"
    return (
        f"{cells} cells per layer, up to {facts['triggers']} triggers each; {facts['one_token']:,} triggers of one token "
        "have nothing to drop from and are left out"
    )


ANALYSIS = Analysis(
    name="mutation",
    question="Which token of a trigger does a key listen to?",
    part=KEYS,
    order=3,
    method=f"`--cells` random cells per layer, up to {MOST} triggers each. m′ is the coefficient at the end of the trigger "
    "without one of its tokens. Triggers of one token are left out.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "dropped": Column("VARCHAR", "the token left out: `first`, `last` or `random`"),
        "n": Column("BIGINT", "triggers"),
        "mean_change": Column("DOUBLE", "mean of (m′ − m)/m over the triggers"),
        "lo": Column(
            "DOUBLE", "lower end of its 95 % interval, with cells as clusters: triggers of one cell are alike"
        ),
        "hi": Column("DOUBLE", "upper end"),
    },
    facts={
        "cells": Column("BIGINT", "random cells per layer, at most"),
        "cells_least": Column("BIGINT", "random cells of the narrowest layer, if it has fewer; else the same"),
        "triggers": Column("BIGINT", "triggers per cell, at most"),
        "one_token": Column("BIGINT", "triggers of one token, which are left out"),
    },
    needs=("model", "cells", "seed", "begin"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="mutation",
            label="Figure 3",
            title="Which token a key listens to",
            caption="Relative change of a cell's coefficient when one token of a trigger is dropped. Band: 95 % interval.",
            mark=Lines(
                "change of the coefficient",
                [
                    Series("last token dropped", "mean_change", ("lo", "hi"), None, "blue", {"dropped": "last"}),
                    Series("random token dropped", "mean_change", ("lo", "hi"), None, "green", {"dropped": "random"}),
                    Series("first token dropped", "mean_change", ("lo", "hi"), None, "orange", {"dropped": "first"}),
                ],
                [Baseline("no change", 0.0)],
            ),
            claims=(
                Claim("Dropping the last token costs a key most", last_costs_most),
                Claim("Dropping the last token costs less in upper layers", less_in_upper_layers),
            ),
            paper=Paper(
                "Keys react most to the end of their prefix: without its last token a trigger loses most of its strength, less "
                "so in the upper layers, where patterns are about topics more than words.",
                "the last token costs most, less so in upper layers (100 keys per layer, top 50 triggers)",
            ),
        ),
    ),
)
