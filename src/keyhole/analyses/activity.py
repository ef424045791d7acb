"""How many coefficients are above zero over the whole corpus, and how many keys never fire.

"Above zero" means something without a gate: ReLU is 0 otherwise, and GELU and SiLU are positive exactly if ReLU is. With a gate the
sign of a coefficient is a convention (the same model has it the other way round), so about half are above zero whatever the model
does. A gated cell is called dead by what it writes at most: the largest |m|·‖v‖, which no such convention changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store import shading
from ..store.run import Run, Stats
from ..store.values import Values
from .claims import interval, judge, not_applicable, percent
from .record import (
    KEYS,
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
    Paper,
    Rows,
    Series,
    Verdict,
)
from .stats import rate_interval, wilson

if TYPE_CHECKING:
    from ..lens.head import Head

PAPER_SAMPLE = 160
"""Keys the paper's annotators read: ten in each of sixteen layers. All of them fired."""
FEWEST = rate_interval(1.0, PAPER_SAMPLE)[0]
"""The share of keys that must fire: the lower end of Wilson's interval of the paper's 160 of 160."""
WEAK = 0.01
"""A gated cell is dead if the most it writes is under this share of its layer's median."""


def rows(run: Run, head: Head) -> Found:
    """One row per layer. For the interval, each distinct prefix is one draw, and its share of active cells is what was drawn."""
    n = int(run.stats.n[0])
    found = []
    for layer in range(run.layers):
        stats = run.layer(layer).stats
        if run.gated:
            fraction, lo, hi = None, None, None
            dead = int(dead_by_strength(largest(stats), head.values(layer).norm(dim=1).cpu().numpy()).sum())
        else:
            fraction = float(stats.active.sum() / (n * len(stats.active)))
            lo, hi = wilson(fraction * n, n)
            dead = int(np.count_nonzero(stats.dead))
        size = run.cells.size(layer)
        ends = wilson(size - dead, size)
        found.append(
            {"layer": layer, "n": n, "active_fraction": fraction, "lo": lo, "hi": hi, "dead": dead}
            | {"cells": size, "alive": (size - dead) / size, "alive_lo": ends[0], "alive_hi": ends[1]}
        )
    return Found(found)


def largest(stats: Stats) -> npt.NDArray[np.float64]:
    """The largest |m| of each cell."""
    return np.asarray(np.maximum(np.abs(stats.max), np.abs(stats.min)), np.float64)


def dead_by_strength(largest: npt.NDArray[Any], norms: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether the most that each cell of a layer writes, |m|·‖v‖, is under `WEAK` of the median over the layer."""
    written = largest * norms
    return np.asarray(written <= WEAK * np.median(written))


def every_key_fires(measured: Measurement) -> Verdict:
    test = (
        "share of keys with a coefficient above zero somewhere in the corpus; Wilson's interval over keys; it must be above "
        f"{percent(FEWEST)}, what the paper's {PAPER_SAMPLE} of {PAPER_SAMPLE} keys prove"
    )
    dead, total = sum(row["dead"] or 0 for row in measured.rows), len(measured.shape.cells)
    if measured.shape.gated:
        return not_applicable(
            test,
            f"with a gate, the sign of a coefficient is a convention, so every key “fires”. By what they write at most, {dead:,} of "
            f"{total:,} cells are dead",
        )
    if not measured.rows or any(row["dead"] is None for row in measured.rows):
        return judge(None, test, "")
    alive = 1 - dead / total
    lo, hi = rate_interval(alive, total)
    said = f"{dead:,} of {total:,} keys never fire: {percent(alive)} fire ({interval(lo, hi)})"
    return judge(Effect(alive, lo, hi, FEWEST), test, said)


def reach(run: Run, values: Values | None) -> npt.NDArray[np.float64] | None:
    return largest(run.stats) * np.asarray(values.norms) if run.gated and values is not None else None


def series(rows: Rows) -> list[Series]:
    alive = Series("cells that are not dead", "alive", band=("alive_lo", "alive_hi"), colour="green")
    active = Series("coefficients above zero", "active_fraction", band=("lo", "hi"))
    return [active, alive] if any(row["active_fraction"] is not None for row in rows) else [alive]


def baselines(rows: Rows) -> list[Baseline]:
    known = any(row["active_fraction"] is not None for row in rows)
    return [Baseline("baseline: random signs", 0.5)] if known else []


def signs_note(measured: Measurement) -> str:
    if measured.shape.gated:
        return "This model has a gate, so the sign of a coefficient is a convention, and how many are above zero is not shown."
    return "This model's coefficients can be negative; those are not counted." if measured.shape.signed else ""


ANALYSIS = Analysis(
    name="activity",
    question="How often do keys fire?",
    part=KEYS,
    method="Without a gate, a key fires with a prefix if its coefficient is above zero, and is dead if it never does. With a gate the sign "
    f"of a coefficient is a convention; a cell is dead there if its largest |m|·‖v‖ in the corpus is at most {WEAK:.0%} of the median of its "
    f"layer. Every key is said to fire if the share that does lies above {FEWEST:.1%}: that is what the paper's {PAPER_SAMPLE} of "
    f"{PAPER_SAMPLE} sampled keys prove (Wilson's interval).",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "distinct prefixes of the scanned corpus"),
        "active_fraction": Column(
            "DOUBLE",
            "share of the layer's coefficients above zero, over these prefixes; NULL if the layers have a gate",
        ),
        "lo": Column("DOUBLE", "lower end of its 95 % interval, which counts each prefix once"),
        "hi": Column("DOUBLE", "upper end"),
        "dead": Column("BIGINT", "dead cells: keys that never fire; with a gate, cells that write next to nothing"),
        "cells": Column("BIGINT", "cells of the layer"),
        "alive": Column("DOUBLE", "share of the cells that are not dead"),
        "alive_lo": Column("DOUBLE", "lower end of its 95 % interval, over cells"),
        "alive_hi": Column("DOUBLE", "upper end"),
    },
    needs=("head",),
    rows=rows,
    figures=(
        Figure(
            name="activity",
            label="Figure S1",
            title="How often keys fire",
            caption="Share of coefficients above zero, over every distinct prefix of the corpus (band: 95 % interval, taking prefixes as "
            "the sample), and share of cells that are not dead (over cells).",
            mark=Lines("share of coefficients, share of cells", series, baselines, low=0),
            claims=(Claim("Every key fires somewhere in the corpus", every_key_fires),),
            paper=Paper(
                "Every key that was read had a recognisable pattern among its triggers. A key that never fires could have "
                "none.",
                "160 of 160 sampled keys",
            ),
            aside=signs_note,
        ),
    ),
    measures=(
        CellMeasure(
            "firing",
            "how often the key fires (share of sampled prefixes with a coefficient above a tenth of the cell's largest)",
            "key",
            lambda run, _: shading.firing(run),
            format="percent",
        ),
        CellMeasure(
            "peak",
            "how far the strongest coefficient stands out (largest |m| per root mean square)",
            "key",
            lambda run, _: run.stats.peak,
            log=True,
        ),
        CellMeasure(
            "activity",
            "share of coefficients above zero, which the paper counts",
            "key",
            lambda run, _: None if run.gated else run.stats.active_fraction,
            format="percent",
        ),
        CellMeasure("reach", "the most the cell writes, |m|·‖v‖", "key", reach, log=True),
    ),
)
