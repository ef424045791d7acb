"""How much of a key's coefficient is lost if one token of its triggers is dropped (Figure 3): the first, the last, a random one, one
from the middle; and by how far from the end the token is.

The model is causal, so one forward pass over a sentence without one token answers for every trigger of that sentence whose token it
is. Which middle token of each prefix is dropped is drawn as in reservoir sampling (`reservoir`): uniform over each prefix, and the
same for most neighbouring prefixes, so a sentence needs only a few passes. The random token of a prefix of L tokens is its first with
probability 1/L, its last with probability 1/L, and else the one from the middle: uniform, and without a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.batching import batch_by_length
from ..store.run import Run
from .claims import effect_columns, effect_facts, judge, points, read_effect, told
from .record import (
    KEYS,
    Analysis,
    Baseline,
    Begin,
    Claim,
    Column,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Row,
    Series,
    Verdict,
)
from .stats import bootstrap_difference, bootstrap_mean, clustered_mean, median_interval, thirds

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

DROPPED = ("first", "last", "random", "middle")
DISTANCES = range(1, 9)
"""How far from the end the dropped token is; 1 is the last."""
MOST = 50
"""Triggers per cell, at most."""
NEAREST = 2
"""Of these, the strongest that are measured by distance: each distance is a forward pass."""
SMALLEST = 0.05
"""The smallest difference of changes that would matter: 5 % of the coefficient."""
RIVALS = ("first", "random", "middle")
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Picked:
    """Triggers of the chosen cells, one per entry."""

    layer: Ints
    cell: Ints
    """its number in the layer"""
    place: Ints
    """of its cell, on the axis of cells"""
    slot: Ints
    """its rank among the triggers of the cell, from 0"""
    unit: Ints
    start: Ints
    """where in its unit the trigger's window starts"""
    length: Ints
    """tokens of the prefix"""
    coefficient: Floats
    skipped: int
    """prefixes of one token: dropping it leaves nothing"""


def rows(
    run: Run, model: Model, cells: int = 100, seed: int = 0, begin: Begin = lambda total: lambda done: None
) -> Found:
    picked = pick(run, cells, seed)
    changes = measure(run, model, picked, seed, begin)
    most = [min(cells, run.cells.size(layer)) for layer in range(run.layers)]
    facts = {"cells": max(most), "cells_least": min(most), "triggers": min(MOST, run.top), "one_token": picked.skipped}
    found = [
        row
        for layer in range(run.layers)
        for name, distance, change in _kinds(changes)
        for row in [_row(layer, name, distance, change, picked)]
    ]
    return Found(found, dict(facts) | effects(changes, picked, run.layers))


def _kinds(changes: dict[str | int, Floats]) -> list[tuple[str, int | None, Floats]]:
    named: list[tuple[str, int | None, Floats]] = [(name, None, changes[name]) for name in DROPPED]
    return named + [("distance", d, changes[d]) for d in DISTANCES]


def _row(layer: int, name: str, distance: int | None, change: Floats, picked: Picked) -> Row:
    here = (picked.layer == layer) & ~np.isnan(change)
    mean, lo, hi = clustered_mean(change[here], picked.cell[here])
    medians = per_cell(change[here], picked.cell[here], np.median)
    median = median_interval(medians)
    return {
        "layer": layer,
        "dropped": name,
        "distance": distance,
        "n": int(here.sum()),
        "cells": len(medians),
        "mean_change": mean,
        "lo": lo,
        "hi": hi,
        "median_change": median.value if len(medians) else None,
        "median_lo": median.lo,
        "median_hi": median.hi,
    }


def per_cell(change: Floats, cell: Ints, summary: Callable[[Floats], Any]) -> Floats:
    """A summary of the changes of each cell, in the order of the cells."""
    order = np.argsort(cell, kind="stable")
    begins = np.unique(cell[order], return_index=True)[1]
    return np.array([summary(part) for part in np.split(change[order], begins[1:]) if len(part)], np.float64)


def effects(changes: dict[str | int, Floats], picked: Picked, layers: int) -> dict[str, Any]:
    """What the claims rest on. A cell is one draw: the mean over its triggers."""
    found: dict[str, Any] = {}
    for rival in RIVALS:
        both = ~np.isnan(changes[rival]) & ~np.isnan(changes["last"])
        paired = per_cell((changes[rival] - changes["last"])[both], picked.place[both], np.mean)
        found |= effect_facts(f"over_{rival}", bootstrap_mean(paired))
    known = ~np.isnan(changes["last"])
    means = per_cell(changes["last"][known], picked.place[known], np.mean)
    layer = picked.layer[known][np.unique(picked.place[known], return_index=True)[1]]
    lower, upper = (means[(layer >= part.start) & (layer < part.stop)] for part in thirds(layers))
    return found | effect_facts("less_above", bootstrap_difference(upper, lower))


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
        slot=slots[kept],
        unit=run.units[at].astype(np.int64),
        start=start[kept],
        length=lengths[kept],
        coefficient=run.coefficients[at].astype(np.float64),
        skipped=int((~kept).sum()),
    )


# What is dropped


@dataclass(frozen=True)
class Drops:
    """Per trigger the position, from the start of its window, of the token that is dropped; −1 if nothing is."""

    at: dict[str | int, Ints]
    """by the kind of the drop: a name, or a distance from the end"""
    random: npt.NDArray[np.int8]
    """what the random token is: 0 the first, 1 the last, 2 the one from the middle"""


def drops(picked: Picked, seed: int) -> Drops:
    length = picked.length
    middle = np.full(len(length), -1)
    for key, members in windows_of(picked).items():
        places = reservoir(int(length[members].max()), np.random.default_rng((seed, *key)))
        long = members[length[members] > 2]
        middle[long] = 1 + places[length[long] - 3]
    at: dict[str | int, Ints] = {"first": np.zeros(len(length), np.int64), "last": length - 1, "middle": middle}
    near = picked.slot < NEAREST
    at |= {d: np.where(near & (length >= d), length - d, -1) for d in DISTANCES}
    draw = np.random.default_rng((seed, 1)).random(len(length)) * length
    return Drops(at, np.where(draw < 1, 0, np.where(draw < 2, 1, 2)).astype(np.int8))


def windows_of(picked: Picked) -> dict[tuple[int, int], Ints]:
    """The triggers of each window, by its unit and start."""
    found: dict[tuple[int, int], list[int]] = {}
    for i, key in enumerate(zip(picked.unit.tolist(), picked.start.tolist(), strict=True)):
        found.setdefault(key, []).append(i)
    return {key: np.array(found[key]) for key in sorted(found)}


def reservoir(length: int, random: np.random.Generator) -> Ints:
    """For each j < length a number that is uniform over 0..j, and mostly that of j − 1: j with probability 1/(j+1), else as before."""
    fresh = random.random(length) < 1 / np.arange(1, length + 1)
    return np.maximum.accumulate(np.where(fresh, np.arange(length), 0))


# What the model says without it


@dataclass(frozen=True)
class _Window:
    """A part of a unit without one token, and the triggers it answers for."""

    unit: int
    start: int
    dropped: int
    """position of the token left out; −1 for none: dropping the last token of a trigger is to read one position earlier"""
    length: int
    """tokens that are run"""
    triggers: Ints


def measure(run: Run, model: Model, picked: Picked, seed: int, begin: Begin) -> dict[str | int, Floats]:
    """By kind of drop, the relative change (m′ − m)/m of each trigger; NaN if it has no such token."""
    chosen = drops(picked, seed)
    found = changes(run, model, picked, chosen.at, begin)
    found["random"] = np.choose(chosen.random, [found["first"], found["last"], found["middle"]])
    return found


def changes(
    run: Run, model: Model, picked: Picked, at: Mapping[str | int, Ints], begin: Begin
) -> dict[str | int, Floats]:
    """The same for given drops: per kind, the position of the token that each trigger loses; −1 if it loses none."""
    without: dict[tuple[int, int], float] = {}
    work = _windows(picked, list(at.values()))
    advance = begin(len(work))
    for numbers in batch_by_length([window.length for window in work], int(run.manifest["config"]["batch_tokens"])):
        batch = [work[number] for number in numbers]
        _measure(run, model, picked, batch, without)
        advance(len(batch))
    found: dict[str | int, Floats] = {}
    for kind, positions in at.items():
        after = [without[i, place] if place >= 0 else np.nan for i, place in enumerate(positions.tolist())]
        found[kind] = np.array(after) / picked.coefficient - 1
    return found


def _windows(picked: Picked, positions: Sequence[Ints]) -> list[_Window]:
    """One per token that is dropped from a window, for all triggers that ask for it."""
    windows = []
    for (unit, start), members in windows_of(picked).items():
        length = picked.length[members]
        for place in np.unique(np.concatenate([each[members] for each in positions])):
            asks = np.any([each[members] == place for each in positions], axis=0) & (place < length - 1)
            if place >= 0 and asks.any():
                windows.append(_Window(unit, start, int(place), int(length[asks].max()) - 1, members[asks]))
        windows.append(_Window(unit, start, -1, int(length.max()) - 1, members))
    return windows


def _measure(
    run: Run, model: Model, picked: Picked, batch: list[_Window], without: dict[tuple[int, int], float]
) -> None:
    import torch

    texts = []
    for window in batch:
        tokens = np.asarray(run.unit_tokens(window.unit)[window.start : window.start + window.length + 1])
        texts.append(np.delete(tokens, window.dropped) if window.dropped >= 0 else tokens[:-1])
    prepared = model.batch(texts, bos=bool(run.manifest["config"]["bos"]))
    sizes = [len(window.triggers) for window in batch]
    row, dropped = np.repeat(np.arange(len(batch)), sizes), np.repeat([window.dropped for window in batch], sizes)
    which = np.concatenate([window.triggers for window in batch])
    column = prepared.n_special + picked.length[which] - 2  # the mutated prefix is one shorter
    got = np.empty(len(which))

    token, place = row * prepared.ids.shape[1] + column, picked.place[which]

    def sink(site: int, x: torch.Tensor) -> None:
        span = run.cells.sites[site]
        here = np.flatnonzero((place >= span.start) & (place < span.stop))
        if len(here):
            at = [torch.from_numpy(index[here]).to(x.device) for index in (token, place - span.start)]
            got[here] = x[at[0], at[1]].double().cpu().numpy()

    model.run_every_token(prepared.ids, sink)
    got *= run.orientation[place]
    position = np.where(dropped < 0, picked.length[which] - 1, dropped)
    without.update(zip(zip(which.tolist(), position.tolist(), strict=True), got.tolist(), strict=True))


# How it is judged and shown


def last_costs_most(measured: Measurement) -> Verdict:
    """Against each other way to drop a token; the verdict rests on the one that comes closest."""
    found = {rival: read_effect(measured.facts, f"over_{rival}", SMALLEST) for rival in RIVALS}
    test = (
        "mean change without another token minus that without the last, paired per cell and pooled over layers: the least of the "
        f"three differences (first, random, middle); interval over cells; smallest effect {points(SMALLEST)}"
    )
    known = {rival: effect for rival, effect in found.items() if effect is not None}
    if len(known) < len(found):
        return judge(None, test, "")
    said = [told(f"the last token costs more than the {rival}", effect) for rival, effect in known.items()]
    effect = min(known.values(), key=lambda each: each.value if each.lo is None else each.lo)
    return judge(effect, test, "; ".join(said))


def less_in_upper_layers(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "less_above", SMALLEST)
    test = (
        "mean change without the last token, highest third of the layers minus lowest; interval over cells; smallest effect "
        f"{points(SMALLEST)}"
    )
    return judge(effect, test, told("highest third minus lowest", effect))


def note(facts: Facts) -> str:
    least, most = facts["cells_least"], facts["cells"]
    cells = f"{most}" if least == most else f"{least} to {most}"
    return (
        f"{cells} cells per layer, up to {facts['triggers']} triggers each; {facts['one_token']:,} triggers of one token "
        "have nothing to drop from and are left out"
    )


def _by_distance(distance: int, name: str, colour: Any) -> Series:
    return Series(name, "mean_change", ("lo", "hi"), None, colour, {"dropped": "distance", "distance": distance})


_SHOWN = (
    "layer",
    "dropped",
    "distance",
    "n",
    "cells",
    "mean_change",
    "lo",
    "hi",
    "median_change",
    "median_lo",
    "median_hi",
)
ANALYSIS = Analysis(
    name="mutation",
    question="Which token of a trigger does a key listen to?",
    part=KEYS,
    order=3,
    method=f"`--cells` random cells per layer, up to {MOST} triggers each. m′ is the coefficient at the end of the trigger "
    f"without one of its tokens. Triggers of one token are left out. By distance, the {NEAREST} strongest triggers of each cell are measured. "
    "With a gate, coefficients are read in the cell's orientation. A claim takes cells as the sample: the mean over the triggers of a cell is "
    f"one draw, and layers are pooled. The smallest difference that matters is {SMALLEST:.0%} of the coefficient.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "dropped": Column(
            "VARCHAR",
            "the token left out: `first`, `last`, `random` (any), `middle` (random, never first or last), or `distance`: the one that is "
            "`distance` tokens before the end",
        ),
        "distance": Column("INTEGER", "1 is the last token; NULL for the other kinds"),
        "n": Column("BIGINT", "triggers that have such a token"),
        "cells": Column("BIGINT", "their cells"),
        "mean_change": Column("DOUBLE", "mean of (m′ − m)/m over the triggers"),
        "lo": Column(
            "DOUBLE", "lower end of its 95 % interval, with cells as clusters: triggers of one cell are alike"
        ),
        "hi": Column("DOUBLE", "upper end"),
        "median_change": Column("DOUBLE", "median over the cells of each cell's median change"),
        "median_lo": Column(
            "DOUBLE", "lower end of its 95 % interval over cells, by order statistics; NULL for under six cells"
        ),
        "median_hi": Column("DOUBLE", "upper end"),
    },
    facts={
        "cells": Column("BIGINT", "random cells per layer, at most"),
        "cells_least": Column("BIGINT", "random cells of the narrowest layer, if it has fewer; else the same"),
        "triggers": Column("BIGINT", "triggers per cell, at most"),
        "one_token": Column("BIGINT", "triggers of one token, which are left out"),
        **{
            name: column
            for rival in RIVALS
            for name, column in effect_columns(
                f"over_{rival}",
                f"change without the {rival} token minus that without the last, mean over cells of all layers",
            ).items()
        },
        **effect_columns(
            "less_above",
            "change without the last token, mean over the cells of the highest third of layers minus lowest",
        ),
    },
    needs=("model", "cells", "seed", "begin"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="mutation",
            label="Figure 3",
            title="Which token a key listens to",
            caption="Relative change of a cell's coefficient when one token of a trigger is dropped: mean over triggers. Band: 95 % "
            "interval over cells.",
            mark=Lines(
                "change of the coefficient",
                [
                    Series("last token dropped", "mean_change", ("lo", "hi"), None, "blue", {"dropped": "last"}),
                    Series("random token dropped", "mean_change", ("lo", "hi"), None, "green", {"dropped": "random"}),
                    Series("middle token dropped", "mean_change", ("lo", "hi"), None, "red", {"dropped": "middle"}),
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
            columns=_SHOWN,
        ),
        Figure(
            name="mutation_distance",
            label="Figure 3b",
            title="How far back a key listens",
            caption=f"The same by how far from the end the dropped token is, for the {NEAREST} strongest triggers of each cell. Band: 95 % "
            "interval over cells.",
            mark=Lines(
                "change of the coefficient",
                [
                    _by_distance(1, "the last token", "blue"),
                    _by_distance(2, "2 from the end", "green"),
                    _by_distance(4, "4 from the end", "red"),
                    _by_distance(8, "8 from the end", "orange"),
                ],
                [Baseline("no change", 0.0)],
            ),
            columns=_SHOWN,
        ),
    ),
)
