"""Does a cell matter where it fires? What happens to the next token of its triggers if the cell is silenced.

    Δ = log p(next) − log p(next | m = 0)

at the end of a trigger: the coefficient there is set to 0, and nothing else is changed. It is the end of the trigger that the
coefficient was found at, so this is the plain reading of "without this cell". The tokens before are run once: all variants of a
trigger continue from the same keys and values of the attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store import layout
from ..store.run import Run
from ..store.values import Values
from .claims import effect_columns, effect_facts, judge, minus, percent, read_effect
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Begin,
    CellMeasure,
    Claim,
    Column,
    Effect,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Row,
    Series,
    Verdict,
    present,
)
from .stats import Interval, bootstrap_difference, bootstrap_mean, thirds

if TYPE_CHECKING:
    from torch import Tensor

    from ..lens.head import Head
    from ..models.model import Model

CELLS = 20
"""Cells per layer, at most."""
TRIGGERS = 5
"""Triggers per cell, at most, the strongest first."""
MATTERS = 0.001
"""The smallest effect, in nats: one thousandth of the probability of a token. Thousands of cells share a layer."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Picked:
    """Triggers of the chosen cells, one per entry."""

    layer: Ints
    cell: Ints
    """its number in the layer"""
    prefixes: list[list[int]]
    following: Ints
    """the next token"""
    other: Ints
    """the next token of another trigger, never the same token; −1 if all have the same"""


def rows(
    run: Run, head: Head, cells: int = 100, seed: int = 0, begin: Begin = lambda total: lambda done: None
) -> Found:
    picked = pick(run, min(cells, CELLS), seed)
    lost = silence(run, head, picked, begin)
    table: list[Row] = []
    means: list[Floats] = []
    for layer in range(run.layers):
        here = picked.layer == layer
        chosen = np.unique(picked.cell[here])
        which = [here & (picked.cell == cell) for cell in chosen]
        each = np.array([lost[:, members].mean(1) for members in which]).reshape(-1, 3)
        means.append(each)
        table += [
            {"layer": layer, "cell": int(cell), "n": 1, "triggers": int(members.sum()), **_numbers(numbers[None])}
            for cell, members, numbers in zip(chosen, which, each, strict=True)
        ]
        if len(chosen):
            table.append(
                {"layer": layer, "cell": None, "n": len(chosen), "triggers": int(here.sum()), **_numbers(each)}
            )
    return Found(table, {"cells": min(cells, CELLS), "triggers": TRIGGERS, "seed": seed, **effects(means)})


def _numbers(each: Floats) -> Row:
    """Of cells [n, 3]: the loss of their own next tokens, with another cell silenced, and of other tokens."""
    own = bootstrap_mean(each[:, 0])
    nulls = [float(column.mean()) for column in each[:, 1:].T]
    above = float((each[:, :1] > each[:, 1:]).all(1).mean())
    null_cell, null_token = (None if math.isnan(null) else null for null in nulls)
    return {
        "delta": own.value,
        "lo": own.lo,
        "hi": own.hi,
        "null_cell": null_cell,
        "null_token": null_token,
        "above": above,
    }


def effects(means: list[Floats]) -> dict[str, Any]:
    """The effects that claims rest on, over cells, from each layer's cells [n, 3]."""
    every = np.concatenate(means)
    excess = [each[:, 0] - each[:, 1] for each in means]
    token = every[:, 0] - every[:, 2]
    low, high = thirds(len(means))
    found = {
        "own_cell": bootstrap_mean(np.concatenate(excess)),
        "own_token": bootstrap_mean(token[~np.isnan(token)]),
        "depth": bootstrap_difference(np.concatenate(excess[high]), np.concatenate(excess[low]))
        if len(means) > 1
        else Interval(math.nan),
    }
    return {key: fact for name, effect in found.items() for key, fact in effect_facts(name, effect).items()}


# The triggers


def pick(run: Run, cells: int, seed: int) -> Picked:
    """Random cells per layer, of those that have a trigger with a next token, and their strongest triggers of that kind."""
    random = np.random.default_rng(seed)
    layers: list[int] = []
    inside: list[int] = []
    prefixes: list[list[int]] = []
    following: list[int] = []
    for layer in range(run.layers):
        here = run.layer(layer)
        units, positions = (np.asarray(array, np.int64) for array in (here.units, here.positions))
        after = run.next_tokens(units, positions)
        alive = np.flatnonzero((after >= 0).any(1))
        for cell in np.sort(random.choice(alive, min(cells, len(alive)), replace=False)):
            for slot in np.flatnonzero(after[cell] >= 0)[:TRIGGERS]:
                position = int(positions[cell, slot])
                tokens = run.unit_tokens(int(units[cell, slot]))[int(run.window_start(position)) : position + 1]
                layers.append(layer)
                inside.append(int(cell))
                prefixes.append([int(token) for token in tokens])
                following.append(int(after[cell, slot]))
    found = np.array(following, np.int64)
    return Picked(np.array(layers, np.int64), np.array(inside, np.int64), prefixes, found, others(found, random))


def others(following: Ints, random: np.random.Generator) -> Ints:
    """For each trigger the next token of another one, drawn from those that have another next token."""
    found = np.full(len(following), -1, np.int64)
    for token in np.unique(following):
        own = following == token
        if (~own).any():
            found[own] = random.choice(following[~own], int(own.sum()))
    return found


# Silencing


def silence(run: Run, head: Head, picked: Picked, begin: Begin = lambda total: lambda done: None) -> Floats:
    """[3, triggers] the log-probability that is lost: by the next token if its cell is silenced, by the next token if another cell
    of the layer is, and by another token if the cell is."""
    import torch

    model = head.model
    lost = np.full((3, len(picked.layer)), np.nan)
    norms = [head.values(layer).norm(dim=1) for layer in range(model.layers)]
    lengths = np.array([len(prefix) for prefix in picked.prefixes])
    most = int(run.manifest["config"]["batch_tokens"])
    advance = begin(len(lengths))
    for length in np.unique(lengths):  # without padding, the last token of all rows is in the same column
        alike = np.flatnonzero(lengths == length)
        step = max(1, most // int(length))
        for at in range(0, len(alike), step):
            which = alike[at : at + step]
            batch = model.batch([picked.prefixes[i] for i in which], bos=bool(run.manifest["config"]["bos"]))
            variants = Variants(model, batch.ids)
            layers, own = picked.layer[which].tolist(), picked.cell[which].tolist()
            other = [
                matched((row.abs().float() * norms[layer]), cell)
                for row, layer, cell in zip(variants.coefficients(layers), layers, own, strict=True)
            ]
            asked = torch.from_numpy(np.stack([picked.following[which], np.maximum(picked.other[which], 0)], 1))
            before, without, control = (
                head.logits(o).double().log_softmax(1).gather(1, asked.to(o.device)).cpu().numpy()
                for o in (variants.output, variants.without(layers, own), variants.without(layers, other))
            )
            lost[0, which], lost[1, which] = before[:, 0] - without[:, 0], before[:, 0] - control[:, 0]
            lost[2, which] = np.where(picked.other[which] < 0, np.nan, before[:, 1] - without[:, 1])
            advance(len(which))
    return lost


def matched(strengths: Tensor, cell: int) -> int:
    """The other cell whose strength |m|·‖v‖ is nearest to that of a cell."""
    distance = (strengths - strengths[cell]).abs()
    distance[cell] = math.inf
    return int(distance.argmin())


class Variants:
    """The last tokens of a batch of equally long windows, run again and again with other coefficients."""

    def __init__(self, model: Model, ids: Tensor) -> None:
        self._model, self._ids = model, ids.to(model.device)
        self._coefficients: dict[int, Tensor] = {}
        self._before = self._run(self._ids[:, :-1], None, None, None)[1] if ids.shape[1] > 1 else None

        def keep(site: int, x: Tensor, tokens: Tensor | None) -> None:
            from ..models.taps import every_token

            self._coefficients[site] = every_token(x, tokens, len(self._ids)).detach().clone()

        self.output = self._last(keep, {})
        """[rows, model] the last residual, nothing changed"""

    def coefficients(self, layers: list[int]) -> list[Tensor]:
        """Per row the coefficients of a layer, [cells], at the last token."""
        from ..models.taps import join_experts

        joined = join_experts(self._model, self._coefficients)
        return [joined[layer][row] for row, layer in enumerate(layers)]

    def without(self, layers: list[int], cells: list[int]) -> Tensor:
        """[rows, model] the last residual if each row's own cell is silenced at the last token."""
        from ..models.sites import locate

        by_site: dict[int, list[tuple[int, int]]] = {}
        for row, (layer, cell) in enumerate(zip(layers, cells, strict=True)):
            site, inside = locate(self._model.sites, layer, cell)
            by_site.setdefault(site, []).append((row, inside))
        return self._last(None, {site: _zero(members) for site, members in by_site.items()})

    def _last(self, sink: Any, replace: dict[int, Callable[[Tensor, Tensor | None], Tensor]]) -> Tensor:
        import copy

        # running a token adds to its keys and values, so each run gets a copy
        return self._run(self._ids[:, -1:], copy.deepcopy(self._before), sink, replace)[0]

    def _run(self, ids: Tensor, past: Any, sink: Any, replace: Any) -> tuple[Tensor, Any]:
        """The last residual at the last column, and the keys and values after it."""
        import torch

        from ..models.patches import without_readbacks
        from ..models.taps import Taps, tapped

        model, kept = self._model, {}

        def keep(layer: int, x: Tensor) -> None:
            if layer == model.layers - 1:
                kept["o"] = x.detach().reshape(*ids.shape, -1)[:, -1].float()

        taps = Taps(coefficients=sink, block_out=keep, replace=replace or {})
        with tapped(model, taps, tuple(ids.shape)), without_readbacks(), torch.inference_mode():
            found = model.lm.base_model(input_ids=ids, past_key_values=past, use_cache=True)
        return kept["o"], found.past_key_values


def _zero(members: list[tuple[int, int]]) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Sets the coefficients of some (row, cell) to 0."""

    def replace(x: Tensor, tokens: Tensor | None) -> Tensor:
        changed = x.clone()
        flat = changed.view(-1, x.shape[-1])
        for row, cell in members:
            if tokens is None:
                flat[row, cell] = 0
            else:
                flat[tokens == row, cell] = 0
        return changed

    return replace


# How it is judged and shown


def _told(effect: Effect | None) -> str:
    if effect is None:
        return "not known"
    ends = "" if effect.lo is None or effect.hi is None else f" ({minus(effect.lo, 4)} to {minus(effect.hi, 4)})"
    return f"{minus(effect.value, 4)} nats{ends}"


def _share(measured: Measurement) -> str:
    cells = [row for row in present(measured.rows, "above") if row["cell"] is not None]
    if not cells:
        return ""
    return f"; above both nulls for {percent(sum(row['above'] for row in cells) / len(cells))} of {len(cells):,} cells"


def matters(measured: Measurement) -> Verdict:
    test = f"Δ minus Δ of a norm-matched other cell: 95 % interval over cells against {MATTERS} nats"
    effect = read_effect(measured.facts, "own_cell", MATTERS)
    return judge(effect, test, f"mean difference {_told(effect)}{_share(measured)}")


def specific(measured: Measurement) -> Verdict:
    test = f"Δ minus the loss of another trigger's next token: 95 % interval over cells against {MATTERS} nats"
    effect = read_effect(measured.facts, "own_token", MATTERS)
    return judge(effect, test, f"mean difference {_told(effect)}")


def upwards(measured: Measurement) -> Verdict:
    test = (
        "Δ minus Δ of a norm-matched other cell, highest minus lowest third of the layers: 95 % interval over cells against "
        f"{MATTERS} nats"
    )
    effect = read_effect(measured.facts, "depth", MATTERS)
    return judge(effect, test, f"difference {_told(effect)}")


def note(facts: Facts) -> str:
    return (
        f"up to {facts['cells']} random cells per layer, up to {facts['triggers']} triggers each (seed {facts['seed']})"
    )


def measure(run: Run, values: Values | None) -> npt.NDArray[np.float64] | None:
    """Δ of the cells that were silenced."""
    from ..errors import RunError

    if not layout.has_tables(run.path):
        return None
    try:
        table = run.table(ANALYSIS.name)
    except RunError:
        return None
    found = np.full(len(run.cells), np.nan)
    for row in table:
        if row["cell"] is not None:
            found[run.cells.place(row["layer"], row["cell"])] = row["delta"]
    return found


SUMMARY = {"cell": None}

ANALYSIS = Analysis(
    name="ablation",
    question="Does a cell matter where it fires?",
    part=OUTPUT,
    order=102,
    method=f"`--cells` random cells per layer, at most {CELLS}, with up to {TRIGGERS} of their strongest triggers that have a next token. "
    "Δ = log p(next) − log p(next | m = 0) in nats: the cell's coefficient is set to 0 at the last token of the trigger, and nothing "
    "else is changed. Nulls: another cell of the same layer is silenced instead, whose |m|·‖v‖ there is nearest to the cell's; and the "
    "loss of another token, the next token of another trigger of the sample. A row per cell, and one per layer for the mean over its "
    "cells.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "cell": Column("INTEGER", "the cell's number in its layer; none in the row for the layer's mean"),
        "n": Column("BIGINT", "cells: 1, or those that the mean is over"),
        "triggers": Column("BIGINT", "their triggers"),
        "delta": Column("DOUBLE", "Δ in nats: mean over a cell's triggers, then over cells"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval over cells, by the bootstrap; none for a single cell"),
        "hi": Column("DOUBLE", "upper end"),
        "null_cell": Column("DOUBLE", "the same if the norm-matched other cell is silenced"),
        "null_token": Column("DOUBLE", "what another trigger's next token loses if the cell is silenced"),
        "above": Column("DOUBLE", "share of the cells whose Δ is above both"),
    },
    facts={
        "cells": Column("BIGINT", "random cells per layer, at most"),
        "triggers": Column("BIGINT", "triggers per cell, at most"),
        "seed": Column("BIGINT", "the seed of the random choices"),
        **effect_columns("own_cell", "mean over cells of Δ minus that of the norm-matched other cell, in nats"),
        **effect_columns("own_token", "mean over cells of Δ minus the loss of another trigger's next token, in nats"),
        **effect_columns("depth", "`own_cell` over the highest third of the layers minus that over the lowest third"),
    },
    needs=("head", "cells", "seed", "begin"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="ablation",
            label="Figure S16",
            title="What the next token loses without the cell",
            caption="Loss of log-probability of a trigger's next token when the cell is silenced at the trigger's end: mean over random "
            "cells. Band: 95 % interval over cells.",
            mark=Lines(
                "loss in nats",
                [Series("the cell is silenced", "delta", ("lo", "hi"), None, "blue", SUMMARY)],
                [
                    Baseline("null: a norm-matched other cell is silenced", "null_cell", "orange", SUMMARY),
                    Baseline("null: loss of another trigger's next token", "null_token", "green", SUMMARY),
                ],
                format=".2~f",
                tooltip=".4f",
            ),
            claims=(
                Claim(
                    "A cell's own next token loses probability when the cell is silenced, more than with a norm-matched other cell",
                    matters,
                ),
                Claim("It loses more than another trigger's next token does", specific),
                Claim("Cells of upper layers matter more for the next token than cells of lower layers", upwards),
            ),
        ),
    ),
    measures=(CellMeasure("silenced", "loss of the next token when the cell is silenced (nats)", "value", measure),),
)
