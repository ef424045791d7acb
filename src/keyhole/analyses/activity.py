"""How many coefficients are above zero over the whole corpus, and how many keys never fire."""

from __future__ import annotations

import numpy as np

from ..store.run import Run
from .claims import LEVEL
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
    Outcome,
    Paper,
    Series,
    Verdict,
)
from .stats import wilson

PAPER_SAMPLE = 160
"""Keys the paper's annotators read: ten in each of sixteen layers."""


def rows(run: Run) -> Found:
    """One row per layer. For the interval, each distinct prefix is one draw, and its share of active cells is what was drawn."""
    stats = run.stats
    n = int(stats.n[0])
    found = []
    for layer in range(run.layers):
        here = run.cells.span(layer)
        fraction = lo = hi = None  # with a gate, the sign of a coefficient is a convention
        if not run.gated:
            fraction = float(stats.active[here].sum() / (n * len(stats.active[here])))
            lo, hi = wilson(fraction * n, n)
        dead = int(np.count_nonzero(stats.dead[here]))
        found.append({"layer": layer, "n": n, "active_fraction": fraction, "lo": lo, "hi": hi, "dead": dead})
    return Found(found)


def every_key_fires(measured: Measurement) -> Verdict:
    """Would a sample of keys as large as the paper's meet one that never fires?"""
    dead, total = sum(row["dead"] or 0 for row in measured.rows), len(measured.shape.cells)
    lucky = (1 - dead / total) ** PAPER_SAMPLE if total else 0.5
    outcome: Outcome = "holds" if lucky >= 1 - LEVEL else "does not hold" if lucky <= LEVEL else "unclear"
    likely = "under 0.01" if lucky < 0.01 else f"{lucky:.2f}"
    said = f"{dead:,} of {total:,} keys never fire; {PAPER_SAMPLE} random keys would all fire with probability {likely}"
    test = f"probability that {PAPER_SAMPLE} random keys, the paper's sample, all have a trigger"
    return Verdict(outcome, test, said, Effect(dead / total, against=0.0) if total else None)


def signs_note(measured: Measurement) -> str:
    return "This model's coefficients can be negative; those are not counted." if measured.shape.signed else ""


ANALYSIS = Analysis(
    name="activity",
    question="How often do keys fire?",
    part=KEYS,
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "distinct prefixes of the scanned corpus"),
        "active_fraction": Column("DOUBLE", "share of the layer's coefficients above zero, over these prefixes"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval, which counts each prefix once"),
        "hi": Column("DOUBLE", "upper end"),
        "dead": Column("BIGINT", "cells that never fire"),
    },
    rows=rows,
    figures=(
        Figure(
            name="activity",
            label="Figure S1",
            title="How often keys fire",
            caption="Share of coefficients above zero, over every distinct prefix of the corpus. Band: 95 % interval, taking "
            "prefixes as the sample.",
            mark=Lines(
                "coefficients above zero",
                [Series("active cells, whole corpus", "active_fraction", band=("lo", "hi"))],
                [Baseline("baseline: random signs", 0.5)],
                low=0,
            ),
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
            "activity",
            "how often the key fires",
            "key",
            lambda run, _: None if run.gated else run.stats.active_fraction,
            format="percent",
        ),
        CellMeasure(
            "peak",
            "how far the strongest coefficient stands out (largest |m| per root mean square)",
            "key",
            lambda run, _: run.stats.peak if run.gated else None,
            log=True,
        ),
    ),
)
