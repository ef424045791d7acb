"""Do the weights of a gated cell point the same way: its gate, its other factor (up) and its value? And do such cells open their
gates more often?

Cosines are of the weights as they are stored. Up and value are taken in the cell's orientation o, so that negating both changes
nothing: gate·(o·up), gate·(o·v), (o·up)·(o·v) = up·v.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store import percell
from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, judge, minus, read_effect
from .record import (
    VALUES,
    Analysis,
    Baseline,
    CellMeasure,
    Claim,
    Column,
    Effect,
    Figure,
    Found,
    Lines,
    Measurement,
    Series,
    Verdict,
    present,
)
from .stats import Interval, clustered_mean, correlation_interval, pooled_correlation

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..store.values import Values
    from .gate_states import OpenGates
    from .heldout import Prefixes

PAIRS = ("gate_up", "gate_value", "up_value")
NAMES = {"gate_up": "gate and up", "gate_value": "gate and value", "up_value": "up and value"}
CLOSER = 0.02
"""The smallest mean |cosine| above dealt partners that would matter."""
RELATED = 0.1
"""The smallest rank correlation that would matter."""


def observe(run: Run, head: Head, values: Values, prefixes: Prefixes) -> OpenGates:
    from .gate_states import OpenGates

    return OpenGates(run, head)


def rows(run: Run, prefixes: Prefixes, observed: OpenGates, seed: int = 0) -> Found:
    from scipy.stats import spearmanr

    from .gate_states import cosines

    if not observed.applies:
        return Found([])
    random = np.random.default_rng(seed)
    table: list[dict[str, Any]] = []
    closer: dict[str, list[npt.NDArray[Any]]] = {pair: [] for pair in PAIRS}
    for layer in range(run.layers):
        span = run.cells.span(layer)
        size, is_open = run.cells.size(layer), observed.open[span]
        own = cosines(run, observed.head, layer)
        dealt = cosines(run, observed.head, layer, random.permutation(size))
        for pair in PAIRS:
            mean, lo, hi = clustered_mean(np.abs(own[pair]), np.arange(size))
            closer[pair].append(np.abs(own[pair]) - np.abs(dealt[pair]))
            varies = size > 2 and np.ptp(is_open) > 0 and np.ptp(own[pair]) > 0
            rho = float(spearmanr(own[pair], is_open).statistic) if varies else math.nan
            chance = float(spearmanr(own[pair], random.permutation(is_open)).statistic) if varies else math.nan
            related = correlation_interval(rho, size)
            table.append(
                {"layer": layer, "pair": pair, "n": size, "cosine": float(own[pair].mean())}
                | {"size": mean, "lo": lo, "hi": hi, "dealt": float(np.abs(dealt[pair]).mean())}
                | {
                    "rho": _known(related.value),
                    "rho_lo": related.lo,
                    "rho_hi": related.hi,
                    "rho_dealt": _known(chance),
                }
            )
    facts = dict(prefixes.facts)
    for pair in PAIRS:
        every = np.concatenate(closer[pair])
        mean, lo, hi = clustered_mean(every, np.arange(len(every)))
        facts |= effect_facts(f"{pair}_closer", Interval(math.nan if mean is None else mean, lo, hi))
        here = [row for row in table if row["pair"] == pair]
        found = pooled_correlation(
            [math.nan if row["rho"] is None else row["rho"] for row in here], [row["n"] for row in here]
        )
        facts |= effect_facts(f"{pair}_rho", found)
    return Found(table, facts)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def fill(run: Run, prefixes: Prefixes, observed: OpenGates, seed: int = 0) -> None:
    """Store the cosines of every cell."""
    from .gate_states import cosines

    if observed.applies:
        every = [cosines(run, observed.head, layer) for layer in range(run.layers)]
        arrays = {pair: np.concatenate([each[pair] for each in every]).astype(np.float32) for pair in PAIRS}
        percell.save(run, "alignment", {}, arrays)


def aligned(pair: str) -> Claim:
    def judged(measured: Measurement) -> Verdict:
        effect = read_effect(measured.facts, f"{pair}_closer", CLOSER)
        here = [row for row in present(measured.rows, "size", "dealt") if row["pair"] == pair]
        own, dealt = (float(np.mean([row[name] for row in here])) if here else 0.0 for name in ("size", "dealt"))
        return judge(
            effect,
            f"mean |cosine| of a cell's {NAMES[pair]} minus that of dealt-out partners in its layer, interval over cells; smallest "
            f"effect {CLOSER}",
            f"mean |cosine| {minus(own, 3)}, dealt out {minus(dealt, 3)}",
        )

    return Claim(f"The {NAMES[pair]} of a cell are aligned", judged)


def related(pair: str) -> Claim:
    def judged(measured: Measurement) -> Verdict:
        found = read_effect(measured.facts, f"{pair}_rho", RELATED)
        test = (
            f"|Spearman's ρ| over the cells of a layer between the cosine of {NAMES[pair]} and how often the gate is open, pooled over "
            f"layers by Fisher's z, interval over cells; smallest effect {RELATED}"
        )
        if found is None:
            return judge(None, test, "")
        said = f"ρ = {minus(found.value, 2)}"
        if found.value < 0 and found.lo is not None and found.hi is not None:
            found = Effect(-found.value, -found.hi, -found.lo, RELATED)
        return judge(found, test, said)

    return Claim(f"How often a gate is open goes with how {NAMES[pair]} are aligned", judged)


def _series(column: str, ends: tuple[str, str]) -> list[Series]:
    colours: dict[str, Any] = {"gate_up": "blue", "gate_value": "orange", "up_value": "green"}
    return [Series(NAMES[pair], column, band=ends, colour=colours[pair], where={"pair": pair}) for pair in PAIRS]


ANALYSIS = Analysis(
    name="alignment",
    question="Do a gated cell's gate, up and value point the same way?",
    part=VALUES,
    order=111,
    method="Cosines of a cell's rows of the gate projection, of the up projection, and of its value, as the weights are stored: "
    "norms before the layer are not folded in. Up and value are taken in the cell's orientation o, so that negating both "
    "changes nothing: gate·(o·up), gate·(o·v), up·v. How often a gate is open is counted at the ends of held-out prefixes. A "
    "model without a gate has no rows.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "pair": Column("VARCHAR", "`gate_up`, `gate_value` or `up_value`"),
        "n": Column("BIGINT", "cells"),
        "cosine": Column("DOUBLE", "mean cosine over the cells, in their orientation"),
        "size": Column("DOUBLE", "mean |cosine|"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval over cells"),
        "hi": Column("DOUBLE", "upper end"),
        "dealt": Column("DOUBLE", "mean |cosine| if the second of the pair is that of a random cell of the layer"),
        "rho": Column("DOUBLE", "Spearman's correlation over the cells of the cosine with how often the gate is open"),
        "rho_lo": Column("DOUBLE", "lower end of its 95 % interval over cells, by Fisher's z"),
        "rho_hi": Column("DOUBLE", "upper end"),
        "rho_dealt": Column(
            "DOUBLE", "the same correlation with the open shares dealt out over the cells of the layer"
        ),
    },
    facts={
        **heldout.FACTS,
        **{
            name: column
            for pair in PAIRS
            for name, column in {
                **effect_columns(
                    f"{pair}_closer", f"mean |cosine| of {NAMES[pair]} minus that of dealt-out partners, over all cells"
                ),
                **effect_columns(
                    f"{pair}_rho",
                    f"ρ of the cosine of {NAMES[pair]} with how often the gate is open, pooled over layers",
                ),
            }.items()
        },
    },
    needs=("prefixes", "observed", "seed"),
    rows=rows,
    fill=fill,
    observe=observe,
    note=heldout.note,
    empty="not measured: there is a layer without a gate, or with one that cannot be read",
    figures=(
        Figure(
            name="alignment",
            label="Figure S5",
            title="How far gate, up and value of a cell are aligned",
            caption="Mean |cosine| over the cells of a layer. Bands: 95 % intervals over cells. Dashed: gate and up of different cells.",
            mark=Lines(
                "mean |cosine|",
                _series("size", ("lo", "hi")),
                [Baseline("gate and up, dealt out", "dealt", where={"pair": "gate_up"})],
                format=".2f",
                tooltip=".3f",
                low=0,
            ),
            claims=(aligned("gate_up"), aligned("up_value")),
            columns=("layer", "pair", "n", "cosine", "size", "lo", "hi", "dealt"),
        ),
        Figure(
            name="alignment_open",
            label="Figure S6",
            title="Aligned cells and open gates",
            caption="Spearman's correlation over the cells of a layer between a cosine and how often the gate is open. Bands: 95 % "
            "intervals over cells.",
            mark=Lines(
                "ρ with how often the gate is open",
                _series("rho", ("rho_lo", "rho_hi")),
                [Baseline("no relation", 0.0)],
                format=".1f",
                tooltip=".2f",
            ),
            claims=(related("gate_value"),),
            columns=("layer", "pair", "n", "rho", "rho_lo", "rho_hi", "rho_dealt"),
        ),
    ),
    measures=tuple(
        CellMeasure(
            f"cosine_{pair}",
            f"cosine of its {NAMES[pair]}",
            "value",
            lambda run, _, pair=pair: percell.numbers(run, "alignment", pair),  # type: ignore[misc]
        )
        for pair in PAIRS
    ),
)
