"""One model over two corpora: does a cell look the same in both?

A key is fixed, and what is seen of it is not: its triggers are the best prefixes of one corpus. Per cell, of its strongest
triggers in each run (the first side, in the cell's orientation; as many as both runs keep):

    triggers   the share of prefixes that are triggers in both, of the run that has fewer. Two corpora that share no text can
               have none in common, so this says something only if they overlap.
    last       how much the distributions of the triggers' last tokens overlap: Σ min(p, q) over tokens; 1 if they are equal, 0
               if no token is in both
    next       the same for the tokens that follow the triggers

The null deals the second run's cells out anew within each layer: what overlaps between a cell and another cell of its layer is
what any two cells have in common. Intervals are over cells. A cell with fewer than `LEAST` triggers (or, of the tokens that follow
them, fewer than `LEAST` known ones) in a run is left out.

A cell that looks like one thing here and like another there has triggers that are concentrated in both runs, on different
tokens. Cells are ranked by min(c, d)·(1 − overlap), where c and d are the largest shares of one token in either run; of last
and next tokens, the larger counts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..common.checks import whole
from ..common.output import plain
from ..errors import RunError
from ..store.run import Run
from .beside import check, labels
from .stats import clustered_mean

LEAST = 3
"""Triggers, or next tokens, that a cell must have in both runs."""
DEALS = 8
"""Deals of the null; a cell's null is the mean over them."""
AT_ONCE = 4096
"""Cells that are compared together: a step takes that many times the square of the triggers kept."""
EXAMPLES = 3
"""Triggers of each run that are shown of a cell."""
What = Literal["last", "next"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mean:
    """A mean over cells, its 95 % interval, and the same under the null."""

    value: float | None
    lo: float | None
    hi: float | None
    dealt: float | None
    """None: the null says nothing of it"""


@dataclass(frozen=True)
class LayerCompared:
    layer: int
    n: int
    """cells that have enough triggers in both runs"""
    triggers: Mean
    last: Mean
    next: Mean
    turned: int
    """cells of these that the two runs read with opposite signs"""


@dataclass(frozen=True)
class Looks:
    """What a cell's triggers in one run have in common."""

    token: str
    """the most frequent last (or next) token"""
    share: float
    triggers: list[tuple[str, str | None]]
    """the strongest prefixes as text, each with the token that follows"""


@dataclass(frozen=True)
class Different:
    """A cell that looks like one thing in one run and like another in the other."""

    address: str
    what: What
    """which of its tokens tell"""
    score: float
    overlap: float
    here: Looks
    there: Looks
    turned: bool
    """whether the two runs read it with opposite signs"""


@dataclass(frozen=True)
class Comparison:
    """Two runs of one model, compared."""

    names: tuple[str, str]
    same_text: bool
    """whether both runs read the same text"""
    top: int
    """triggers per cell that are compared"""
    distinct: tuple[int, int]
    """distinct prefixes that are triggers, per run"""
    common: int
    """how many of them are triggers in both"""
    seed: int
    total: LayerCompared
    """over all layers; its layer is −1"""
    layers: list[LayerCompared]
    different: list[Different]
    cells: dict[str, Floats]
    """per cell, in the order of the axis: triggers, last, next; NaN for a cell that is left out"""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(asdict(self) | {"cells": {name: list(each) for name, each in self.cells.items()}})
        return found


def compare(
    a: Run | str | os.PathLike[str], b: Run | str | os.PathLike[str], *, cells: int = 20, seed: int = 0
) -> Comparison:
    """Compare two runs of one model over two corpora. `cells` of those that look different are listed; `seed` is the null's."""
    here, there = (run if isinstance(run, Run) else Run(run) for run in (a, b))
    cells, seed = whole("cells", cells, 0), whole("seed", seed, 0)
    check(here, [there])
    _check_one_model(here, there)
    sides = [_Side(run, np.arange(len(run.cells)), min(here.top, there.top)) for run in (here, there)]
    found = _measured(sides)
    usable = {name: ~np.isnan(each) for name, each in found.items()}
    turned = usable["triggers"] & (here.orientation != there.orientation)
    null = {name: _dealt(here, sides, name, usable[name], seed) for name in MEASURES}

    def row(layer: int, span: slice) -> LayerCompared:
        return _row(layer, _part(found, span), _part(null, span), turned[span])

    kept = [set(np.unique(side.slots["triggers"]).tolist()) - {-1} for side in sides]
    names = labels([here, there])
    return Comparison(
        names=(names[0], names[1]),
        same_text=here.manifest["corpus"]["hash"] == there.manifest["corpus"]["hash"],
        top=sides[0].top,
        distinct=(len(kept[0]), len(kept[1])),
        common=len(kept[0] & kept[1]),
        seed=seed,
        total=row(-1, slice(None)),
        layers=[row(layer, here.cells.span(layer)) for layer in range(here.layers)],
        different=list(_different(here, sides, found, turned, cells)),
        cells=found,
    )


def compare_layer(here: Run, there: Run, layer: int, *, seed: int = 0) -> tuple[LayerCompared, dict[str, Floats]]:
    """One layer of two runs with the same axis of cells, and its cells. Of one model, the numbers are those of `compare`; of a
    model and its control, they say what the two have in common by chance."""
    span = here.cells.span(layer)
    sides = [_Side(run, np.arange(span.start, span.stop), min(here.top, there.top)) for run in (here, there)]
    found = _measured(sides)
    a, b = (side.slots for side in sides)
    null = {name: _dealt_layer(name, a[name], b[name], ~np.isnan(found[name]), layer, seed) for name in MEASURES}
    turned = ~np.isnan(found["triggers"]) & (here.orientation[span] != there.orientation[span])
    return _row(layer, found, null, turned), found


def _part(numbers: dict[str, Floats], span: slice) -> dict[str, Floats]:
    return {name: each[span] for name, each in numbers.items()}


def _row(layer: int, found: dict[str, Floats], null: dict[str, Floats], turned: npt.NDArray[np.bool_]) -> LayerCompared:
    means = {name: _mean(found[name], null[name]) for name in MEASURES}
    return LayerCompared(layer, int((~np.isnan(found["triggers"])).sum()), turned=int(turned.sum()), **means)


def _check_one_model(here: Run, there: Run) -> None:
    told = [run.manifest["model"]["fingerprint"] for run in (here, there)]
    if told[0] != told[1] or here.cells != there.cells:
        raise RunError(
            f"{here.path} and {there.path} are runs of two models: the fingerprints of their weights are {told[0][:16]}… "
            f"({here.model_name}) and {told[1][:16]}… ({there.model_name}). A cell of one has nothing to do with a cell of the "
            f"other. Scan one model over two corpora, or show both reports: keyhole report {here.path} --beside {there.path}"
        )


class _Side:
    """The triggers of some cells in one run, [cells, top]: their prefixes, last and next tokens; −1 where there is none."""

    def __init__(self, run: Run, places: Ints, top: int) -> None:
        self.run, self.top = run, top
        units, positions = run.units[places, :top], run.positions[places, :top]
        self.slots: dict[str, Ints] = {
            "triggers": prefix_keys(run, units, positions),
            "last": run.last_tokens(units, positions),
            "next": run.next_tokens(units, positions),
        }


def measure_cells(runs: Sequence[Run], places: Ints, top: int) -> dict[str, Floats]:
    """[places] the share of triggers that two runs share, and the overlap of last and next tokens; NaN for a cell with too few."""
    return _measured([_Side(run, places, top) for run in runs])


def _measured(sides: Sequence[_Side]) -> dict[str, Floats]:
    a, b = (side.slots for side in sides)
    return {
        name: np.where(_enough(a[name]) & _enough(b[name]), measure(a[name], b[name]), np.nan)
        for name, measure in MEASURES.items()
    }


def prefix_keys(run: Run, units: npt.NDArray[Any], positions: npt.NDArray[Any]) -> Ints:
    """A number for each prefix that is the same in every run: a hash of its token ids. −1 where there is no trigger."""
    found = np.full(units.shape, -1, np.int64)
    filled = units >= 0
    run.check_places(units[filled], positions[filled])
    places = run.unit_offsets[units[filled]] + positions[filled]
    distinct, first, which = np.unique(places, return_index=True, return_inverse=True)
    ends = positions[filled][first].astype(np.int64)
    starts = distinct - ends + run.window_start(ends)
    keys = np.empty(len(distinct), np.int64)
    for number, (start, end) in enumerate(zip(starts.tolist(), distinct.tolist(), strict=True)):
        digest = hashlib.blake2b(run.tokens[start : end + 1].astype("<u4").tobytes(), digest_size=8).digest()
        keys[number] = int.from_bytes(digest, "little") >> 1
    found[filled] = keys[which]
    return found


# Per cell


def shared(a: Ints, b: Ints) -> Floats:
    """[cells] the share of prefixes [cells, top] that both have, of the side with fewer; NaN if one has none."""
    found = np.full(len(a), np.nan)
    for part in _parts(len(a)):
        both = ((a[part, :, None] == b[part, None, :]) & (a[part, :, None] >= 0)).sum((1, 2))
        fewer = np.minimum((a[part] >= 0).sum(1), (b[part] >= 0).sum(1))
        np.divide(both, fewer, out=found[part], where=fewer > 0)
    return found


def overlap(a: Ints, b: Ints) -> Floats:
    """[cells] Σ min(p, q) of the distributions of tokens [cells, top]; −1 stands for no token. NaN if one side has none."""
    found = np.full(len(a), np.nan)
    for part in _parts(len(a)):
        mine, theirs = a[part], b[part]
        known = mine >= 0
        sizes = known.sum(1), (theirs >= 0).sum(1)
        own = (mine[:, :, None] == mine[:, None, :]).sum(2)  # how often each slot's token is on its own side
        other = (mine[:, :, None] == theirs[:, None, :]).sum(2)
        least = np.minimum(own / np.maximum(sizes[0], 1)[:, None], other / np.maximum(sizes[1], 1)[:, None])
        total = np.where(known, least / own, 0.0).sum(1).round(12)  # a token that is in `own` slots counts once
        found[part] = np.where((sizes[0] > 0) & (sizes[1] > 0), total, np.nan)
    return found


MEASURES = {"triggers": shared, "last": overlap, "next": overlap}


def _enough(slots: Ints) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (slots >= 0).sum(1) >= LEAST
    return found


def concentration(tokens: Ints) -> tuple[Floats, Ints]:
    """[cells] the largest share of one token of [cells, top], and that token; 0 and −1 if there is none."""
    share, which = np.zeros(len(tokens)), np.full(len(tokens), -1, np.int64)
    for part in _parts(len(tokens)):
        mine = tokens[part]
        counts = np.where(mine >= 0, (mine[:, :, None] == mine[:, None, :]).sum(2), 0)
        best = counts.argmax(1)
        rows = np.arange(len(mine))
        share[part] = counts[rows, best] / np.maximum((mine >= 0).sum(1), 1)
        which[part] = mine[rows, best]
    return share, which


def _parts(cells: int) -> Iterator[slice]:
    return (slice(at, min(at + AT_ONCE, cells)) for at in range(0, cells, AT_ONCE))


# Over cells


def _dealt(run: Run, sides: list[_Side], name: str, usable: npt.NDArray[np.bool_], seed: int) -> Floats:
    """[cells] a measure of each cell with other cells of its layer in the second run, the mean over the deals. NaN for a cell
    that is left out, or that is alone in its layer."""
    a, b = (side.slots[name] for side in sides)
    spans = [run.cells.span(layer) for layer in range(run.layers)]
    return np.concatenate(
        [_dealt_layer(name, a[span], b[span], usable[span], layer, seed) for layer, span in enumerate(spans)]
    )


def _dealt_layer(name: str, a: Ints, b: Ints, usable: npt.NDArray[np.bool_], layer: int, seed: int) -> Floats:
    """`_dealt` of one layer. Each layer and measure has its own random numbers, so a layer alone gives the same."""
    total, places = np.zeros(len(usable)), np.flatnonzero(usable)
    if len(places) < 2:
        return np.full(len(usable), np.nan)
    random = np.random.default_rng([seed, layer, list(MEASURES).index(name)])
    for _ in range(DEALS):
        other = np.arange(len(usable))
        order = random.permutation(places)  # each takes the next one's, so nobody gets its own
        other[order] = np.roll(order, 1)
        total += MEASURES[name](a, b[other])
    return np.where(usable, total / DEALS, np.nan)


def _mean(values: Floats, null: Floats) -> Mean:
    known, dealt = values[~np.isnan(values)], null[~np.isnan(null)]
    value, lo, hi = clustered_mean(known, np.arange(len(known)))
    lo, hi = (None if end is None else min(1.0, max(0.0, end)) for end in (lo, hi))
    return Mean(value, lo, hi, float(dealt.mean()) if len(dealt) else None)


# Cells that look different


def _different(
    run: Run, sides: list[_Side], found: dict[str, Floats], turned: npt.NDArray[np.bool_], count: int
) -> Iterator[Different]:
    scores: list[Floats] = []
    shares: dict[What, list[tuple[Floats, Ints]]] = {}
    names: tuple[What, ...] = ("last", "next")
    for what in names:
        shares[what] = [concentration(side.slots[what]) for side in sides]
        both = np.minimum(shares[what][0][0], shares[what][1][0])
        scores.append(np.nan_to_num(both * (1 - found[what])))
    best = np.max(scores, axis=0)
    for place in np.argsort(-best, kind="stable")[:count].tolist():
        if best[place] <= 0:
            return
        what = names[int(np.argmax([each[place] for each in scores]))]
        here, there = (
            _looks(side.run, place, float(share[place]), int(token[place]))
            for side, (share, token) in zip(sides, shares[what], strict=True)
        )
        yield Different(
            address=run.cells.address(place),
            what=what,
            score=float(best[place]),
            overlap=float(found[what][place]),
            here=here,
            there=there,
            turned=bool(turned[place]),
        )


def _looks(run: Run, place: int, share: float, token: int) -> Looks:
    triggers = run.triggers(*run.cells.split(place))[:EXAMPLES]
    return Looks(run.vocabulary.piece(token), share, [(each.prefix, each.next_token) for each in triggers])
