"""Agreement against the value's largest probability (Figure 6), in bins of equally many cells."""

from __future__ import annotations

import math

import numpy as np

from ..store.run import Run
from ..store.values import Values
from . import targets
from .claims import decide, minus, p_value, percent
from .record import (
    VALUES,
    Analysis,
    Bins,
    CellMeasure,
    Claim,
    Column,
    Effect,
    Figure,
    Found,
    Measurement,
    Paper,
    Verdict,
    lens_note,
    present,
)
from .stats import normal_p

BINS = 20


def rows(run: Run, values: Values) -> Found:
    wanted = targets.next_tokens(run, 1)[:, 0]
    known = wanted >= 0
    wanted = wanted[known]
    top = np.asarray(values.top_tokens[:, 0])[known]
    confidence = np.asarray(values.max_prob)[known]
    order = np.argsort(confidence, kind="stable")
    found = []
    for number, part in enumerate(np.array_split(order, min(BINS, max(1, len(order))))):
        if len(part):
            found.append(
                {
                    "bin": number,
                    "max_prob_lo": float(confidence[part].min()),
                    "max_prob_hi": float(confidence[part].max()),
                    "n": len(part),
                    "rate": float((top[part] == wanted[part]).mean()),
                }
            )
    return Found(found, {"lens": values.lens})


def surer_agree_more(measured: Measurement) -> Verdict:
    test = "Cochran–Armitage test for a trend over the bins of max(p)"
    rows = [row for row in present(measured.rows, "rate", "n") if row["n"] > 0]
    n = np.array([row["n"] for row in rows], np.float64)
    rate = np.array([row["rate"] for row in rows], np.float64)
    score = np.arange(len(rows), dtype=np.float64)
    total = n.sum()
    pooled = float((n * rate).sum() / total) if total else 0.0
    spread = float((n * score**2).sum() - (n * score).sum() ** 2 / total) if total else 0.0
    if len(rows) < 2 or pooled in (0.0, 1.0) or spread <= 0:
        return Verdict("unclear", test, "no trend can be determined: the rate is the same in every bin")
    z = float((n * score * (rate - pooled)).sum() / math.sqrt(pooled * (1 - pooled) * spread))
    p = normal_p(z)
    said = f"{percent(rate[0])} in the lowest bin, {percent(rate[-1])} in the highest; z = {minus(z, 1)}, {p_value(p)}"
    return Verdict(decide(p, z > 0), test, said, Effect(float(rate[-1] - rate[0]), against=0.0))


ANALYSIS = Analysis(
    name="confidence",
    question="Does a value that is sure of its token agree with its key more often?",
    part=VALUES,
    order=6,
    method="Cells are put in bins of equally many, by their value's largest probability max(p).",
    columns={
        "bin": Column("INTEGER", "the bin, from the least sure values to the surest"),
        "max_prob_lo": Column("DOUBLE", "smallest max(p) in the bin"),
        "max_prob_hi": Column("DOUBLE", "largest max(p) in the bin"),
        "n": Column("BIGINT", "cells in the bin"),
        "rate": Column("DOUBLE", "share of them whose value's top token follows the key's top-1 trigger"),
    },
    facts={"lens": Column("VARCHAR", "the lens values are read through")},
    needs=("values",),
    rows=rows,
    note=lens_note,
    figures=(
        Figure(
            name="confidence",
            label="Figure 6",
            title="Sure values agree more",
            caption="Agreement with the next token, for values grouped by the largest probability in their distribution. "
            "Box: 95 % interval.",
            mark=Bins(
                x_title="largest probability of the value, max(p)",
                x_name="max(p)",
                y_title="agreement",
                noun="values",
                lo="max_prob_lo",
                hi="max_prob_hi",
                y="rate",
                name="agreement in the bin",
                overall="baseline: all values",
            ),
            claims=(Claim("The surer a value, the more often it agrees with its key", surer_agree_more),),
            paper=Paper(
                "A value that puts much probability on one token is more likely to agree with its key.",
                "agreement rises with max(p)",
            ),
        ),
    ),
    measures=(
        CellMeasure(
            "max_prob",
            "how sure the value is of one token",
            "value",
            lambda _, values: None if values is None else np.asarray(values.max_prob),
            format="percent",
            log=True,
        ),
    ),
)
