"""What kind of cell is it? A set of labels per cell: dead, rare, last-token, n-gram, positional, frequency, entropy,
token-promoting, token-suppressing, duplicate.

A label is a number compared with a threshold. What the number is, and which null sets the threshold, is in `store/kinds.py`; how
it is computed, in `kind_numbers.py`. So that a label can be wrong, the threshold is at least the 99th percentile of the same number
under the null, and the table says which share of cells would pass by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store import kinds as stored
from ..store import percell
from ..store.kinds import KINDS, NAMES, NONE
from ..store.run import Run
from ..store.values import Values
from . import heldout
from .claims import effect_columns, effect_facts, judge, percent, read_effect
from .record import (
    VALUES,
    Analysis,
    Baseline,
    CellMeasure,
    Claim,
    Colour,
    Column,
    Figure,
    Found,
    Lines,
    Measurement,
    Series,
    Verdict,
    present,
)
from .stats import Interval, rate, rate_difference, thirds, wilson

if TYPE_CHECKING:
    from ..lens.head import Head
    from .heldout import Prefixes
    from .kind_numbers import Compared, Positions

PASSING = 99
"""The percentile of the null that a number must pass."""
FEWER, FEW, BEYOND = 0.05, 0.01, 0.01
"""The smallest effects that would matter: differences between thirds of the layers, and a share beyond chance."""

Floats = npt.NDArray[np.float64]


@dataclass
class Labelled:
    """What was found of every cell: arrays [cells, kinds]."""

    numbers: Floats
    thresholds: Floats
    chance: Floats
    """how likely the label is under its null; NaN if it has none"""
    labels: npt.NDArray[np.bool_]


def observe(run: Run, head: Head, values: Values, prefixes: Prefixes) -> Positions:
    from .kind_numbers import Positions

    return Positions(run, head, prefixes)


def label(run: Run, head: Head, values: Values, positions: Compared, seed: int) -> Labelled:
    """Every number of every cell, its threshold, and the labels."""
    from .kind_numbers import Reading, Tails, nearest_twin

    shape = (len(run.cells), len(KINDS))
    found = Labelled(np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, np.nan), np.zeros(shape, bool))
    ends, reading, random = Tails(run, seed), Reading(run, head, values, seed), np.random.default_rng(seed)
    directions = reading.null()
    peak, rms = np.maximum(np.abs(run.stats.max), np.abs(run.stats.min)), np.hypot(run.stats.mean, run.stats.std)
    written = peak * np.asarray(values.norms)
    dead = np.asarray(run.units[:, 0]) < 0
    for layer in range(run.layers):
        span = run.cells.span(layer)
        single, together, needed, reached = ends.of_layer(layer)
        _put(found, span, "last_token", single.own, single.null)
        _put(found, span, "ngram", together, threshold=needed, chance=reached)
        _put(found, span, "positional", positions.own[span], positions.null[span])
        for name, own in reading.of_layer(layer).items():
            _put(found, span, name, own, directions[name])
        _put(found, span, "duplicate", *nearest_twin(run, head, layer, random))
        with np.errstate(invalid="ignore", divide="ignore"):
            _put(found, span, "rare", peak[span] / rms[span])
            usual = np.nanmedian(written[span])
            _put(found, span, "dead", np.where(dead[span], 0, written[span] / usual))
    found.labels[:, NAMES.index("last_token")] &= ~found.labels[:, NAMES.index("ngram")]
    return found


def _put(
    found: Labelled,
    span: slice,
    name: str,
    own: Floats,
    null: Floats | None = None,
    threshold: Floats | None = None,
    chance: Floats | None = None,
) -> None:
    """One number of a layer's cells. Its threshold is given, or the kind's floor, or what the null reaches in 1 % of cases if that is
    more."""
    at = NAMES.index(name)
    kind = KINDS[at]
    limit: Any = kind.floor if threshold is None else threshold
    if null is not None:
        known = null[np.isfinite(null)]
        if len(known):
            limit = max(kind.floor, float(np.percentile(known, PASSING)))
            chance = np.full(len(own), float((known > limit).mean()))
    found.numbers[span, at] = own
    found.thresholds[span, at] = limit
    if chance is not None:
        found.chance[span, at] = chance
    with np.errstate(invalid="ignore"):
        beyond = own > limit if threshold is None else own >= limit
        found.labels[span, at] = own <= limit if kind.below else beyond


def rows(run: Run, head: Head, values: Values, prefixes: Prefixes, observed: Positions, seed: int = 0) -> Found:
    found = observed.labelled = label(run, head, values, observed.found(), seed)
    table = []
    for layer in range(run.layers):
        span = run.cells.span(layer)
        for at, kind in enumerate(KINDS):
            numbers, here = found.numbers[span, at], found.labels[span, at]
            known = np.isfinite(numbers)
            table.append(_row(layer, kind.name, int(known.sum()), int(here.sum())) | _about(found, span, at, known))
        none = int((~found.labels[span].any(1)).sum())
        table.append(
            _row(layer, NONE, run.cells.size(layer), none) | {"expected": None, "threshold": None, "median": None}
        )
    return Found(table, {**prefixes.facts, "lens": values.lens, **_effects(run, found)})


def _row(layer: int, kind: str, n: int, count: int) -> dict[str, Any]:
    lo, hi = wilson(count, n)
    return {"layer": layer, "kind": kind, "n": n, "count": count, "share": rate(count, n), "lo": lo, "hi": hi}


def _about(found: Labelled, span: slice, at: int, known: npt.NDArray[np.bool_]) -> dict[str, float | None]:
    def middle(array: Floats, how: Any) -> float | None:
        some = array[span, at][known]
        some = some[np.isfinite(some)]
        return float(how(some)) if len(some) else None

    return {
        "expected": middle(found.chance, np.mean),
        "threshold": middle(found.thresholds, np.median),
        "median": middle(found.numbers, np.median),
    }


def _effects(run: Run, found: Labelled) -> dict[str, Any]:
    low, high = thirds(run.layers)

    def cells(layers: slice) -> slice:
        spans = [run.cells.span(layer) for layer in range(run.layers)[layers]]
        return slice(spans[0].start, spans[-1].stop)

    def difference(names: tuple[str, ...], more: slice, less: slice) -> Interval:
        chosen = [NAMES.index(name) for name in names]
        hits = np.asarray(found.labels[:, chosen].any(1))
        known = np.asarray(np.isfinite(found.numbers[:, chosen]).any(1))
        spans = (cells(more), cells(less))
        sizes = tuple(int(known[span].sum()) for span in spans)
        return rate_difference((hits[spans[0]].sum(), hits[spans[1]].sum()), (sizes[0], sizes[1]))

    chosen = [NAMES.index("frequency"), NAMES.index("entropy")]
    hits, known = int(found.labels[:, chosen].any(1).sum()), int(np.isfinite(found.numbers[:, chosen]).any(1).sum())
    expected = float(np.nansum(np.nanmean(found.chance[:, chosen], 0))) if known else math.nan
    lo, hi = wilson(hits, known)
    beyond = (
        Interval(math.nan)
        if lo is None or hi is None
        else Interval(hits / known - expected, lo - expected, hi - expected)
    )
    return {
        **effect_facts("ends", difference(("last_token", "ngram"), low, high)),
        **effect_facts("positional", difference(("positional",), low, high)),
        **effect_facts("promoting", difference(("promoting",), high, low)),
        **effect_facts("silent", beyond),
    }


def fill(run: Run, head: Head, values: Values, prefixes: Prefixes, observed: Positions, seed: int = 0) -> None:
    """Store labels, numbers and thresholds of every cell."""
    found = observed.labelled or label(run, head, values, observed.found(), seed)
    bits = (found.labels * (1 << np.arange(len(KINDS)))).sum(1).astype(np.uint16)
    arrays = {
        "labels": bits,
        "numbers": found.numbers.astype(np.float32),
        "thresholds": found.thresholds.astype(np.float32),
    }
    percell.save(run, stored.GROUP, {"kinds": list(NAMES), "lens": values.lens}, arrays)


# Claims


def _shares(measured: Measurement, names: tuple[str, ...]) -> tuple[float, float]:
    """The share of cells of these kinds, summed, over the lowest and over the highest third of the layers."""
    found = []
    for part in thirds(measured.shape.layers):
        layers = set(range(measured.shape.layers)[part])
        known = present(measured.rows, "n", "count")
        here = [row for row in known if row["layer"] in layers and row["kind"] in names]
        cells = sum(row["n"] for row in here) / len(names)
        found.append(sum(row["count"] for row in here) / cells if cells else math.nan)
    return found[0], found[1]


def _compared(
    measured: Measurement, fact: str, names: tuple[str, ...], against: float, *, what: str, lower: bool
) -> Verdict:
    low, high = _shares(measured, names)
    first, second = ("lowest", "highest") if lower else ("highest", "lowest")
    return judge(
        read_effect(measured.facts, fact, against),
        f"share of {what} in the {first} third of the layers minus that in the {second}, interval over cells; smallest effect "
        f"{percent(against)}",
        f"{percent(low)} in the lowest third, {percent(high)} in the highest",
    )


def ends_below(measured: Measurement) -> Verdict:
    what = "last-token and n-gram cells"
    return _compared(measured, "ends", ("last_token", "ngram"), FEWER, what=what, lower=True)


def positional_below(measured: Measurement) -> Verdict:
    return _compared(measured, "positional", ("positional",), FEW, what="positional cells", lower=True)


def promoting_above(measured: Measurement) -> Verdict:
    return _compared(measured, "promoting", ("promoting",), FEWER, what="token-promoting cells", lower=False)


def silent(measured: Measurement) -> Verdict:
    here = [row for row in present(measured.rows, "count") if row["kind"] in ("frequency", "entropy")]
    counts = {name: sum(row["count"] for row in here if row["kind"] == name) for name in ("frequency", "entropy")}
    return judge(
        read_effect(measured.facts, "silent", BEYOND),
        "share of frequency and entropy cells minus the share that random directions have, interval over cells; smallest effect "
        f"{percent(BEYOND)}",
        f"{counts['frequency']:,} frequency and {counts['entropy']:,} entropy cells of {len(measured.shape.cells):,}",
    )


def _series(names: tuple[str, ...]) -> list[Series]:
    colours: tuple[Colour, ...] = ("blue", "orange", "green", "sky", "red")
    titles = {kind.name: kind.title for kind in KINDS}
    return [
        Series(titles[name], "share", band=("lo", "hi"), colour=colour, where={"kind": name})
        for name, colour in zip(names, colours, strict=True)
    ]


def _described() -> str:
    said = []
    for kind in KINDS:
        than = "at most" if kind.below else "more than"
        limit = f"{than} {kind.floor:.3g}"
        if kind.name == "ngram":
            limit = (
                "at least 0.5, and more than random prefixes with the same last token reach in 1 % of draws (binomial)"
            )
        elif kind.null is not None:
            limit = f"more than the 99th percentile of {kind.null}" + (f", and {limit}" if kind.floor else "")
        said.append(f"`{kind.name}`: {kind.meaning}. Number: {kind.number}; {limit}.")
    return " ".join(said)


ANALYSIS = Analysis(
    name="kinds",
    question="What kinds of cells are there?",
    part=VALUES,
    order=120,
    method="A cell can have several labels. Triggers are those of the cell's orientation, and its value is read as o·v. A cell with "
    "fewer than five triggers is not compared by them. Positions are those of the ends of held-out prefixes. Ends of values "
    "are read through the lens of the table. " + _described(),
    columns={
        "layer": Column("INTEGER", "the layer"),
        "kind": Column("VARCHAR", f"the label, or `{NONE}` for cells without any"),
        "n": Column("BIGINT", "cells that have the number"),
        "count": Column("BIGINT", "cells with the label"),
        "share": Column("DOUBLE", "count / n"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval, taking the layer's cells as draws"),
        "hi": Column("DOUBLE", "upper end"),
        "expected": Column(
            "DOUBLE", "the share that would have the label under its null; none for labels that only count"
        ),
        "threshold": Column(
            "DOUBLE", "what the number is compared with; the median over cells if it differs between them"
        ),
        "median": Column("DOUBLE", "the median of the number over the layer's cells"),
    },
    facts={
        **heldout.FACTS,
        "lens": Column("VARCHAR", "the lens that ends of values are read through"),
        **effect_columns(
            "ends", "share of last-token and n-gram cells in the lowest third of the layers minus the highest"
        ),
        **effect_columns("positional", "share of positional cells in the lowest third of the layers minus the highest"),
        **effect_columns(
            "promoting", "share of token-promoting cells in the highest third of the layers minus the lowest"
        ),
        **effect_columns("silent", "share of frequency and entropy cells minus that of random directions"),
    },
    needs=("head", "values", "prefixes", "observed", "seed"),
    rows=rows,
    fill=fill,
    observe=observe,
    is_filled=lambda run: stored.of(run) is not None,
    note=lambda facts: f"{heldout.note(facts)}; values through the lens '{facts['lens']}'",
    figures=(
        Figure(
            name="kinds_of_keys",
            label="Figure S7",
            title="Kinds of keys",
            caption="Share of a layer's cells by what makes them fire. Bands: 95 % intervals, taking cells as draws. Dashed: what 1 % "
            "of the null would give.",
            mark=Lines(
                "share of cells",
                _series(("last_token", "ngram", "positional", "rare", "dead")),
                [Baseline("at most this by chance", 0.01)],
                low=0,
            ),
            claims=(
                Claim("The last token or the last two explain more keys in the lower layers", ends_below),
                Claim("Positional cells are in the lower layers", positional_below),
            ),
        ),
        Figure(
            name="kinds_of_values",
            label="Figure S8",
            title="Kinds of values",
            caption="Share of a layer's cells by what their values do to the logits. Bands: 95 % intervals, taking cells as draws. "
            "Dashed: what 1 % of the null would give.",
            mark=Lines(
                "share of cells",
                _series(("promoting", "suppressing", "frequency", "entropy", "duplicate")),
                [Baseline("at most this by chance", 0.01)],
                low=0,
            ),
            claims=(
                Claim("Values that promote a few tokens are more common in the upper layers", promoting_above),
                Claim("Some values act on no token in particular: along the unigram direction or unread", silent),
            ),
        ),
    ),
    measures=(
        CellMeasure(
            "kind",
            "kind of cell",
            "value",
            lambda run, _: stored.levels(run),
            kinds=(NONE, *(kind.title for kind in KINDS)),
        ),
    ),
)
