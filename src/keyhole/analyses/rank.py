"""The rank of the top-1 trigger's next token in the value's logits (Figure 5); 1 is the top."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from ..store.values import Values
from .agreement import lens_aside
from .claims import trend
from .record import (
    VALUES,
    Analysis,
    Baseline,
    Claim,
    Column,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Row,
    Rows,
    Series,
    Verdict,
    main_lens,
)


def rows(run: Run, lenses: list[Values]) -> Found:
    return Found([row for values in lenses for row in of_lens(run, values)])


def of_lens(run: Run, values: Values) -> list[Row]:
    found = []
    for layer in range(run.layers):
        ranks = np.asarray(values.ranks[run.cells.span(layer)])
        ranks = ranks[ranks > 0]
        five = np.percentile(ranks, [5, 25, 50, 75, 95]) if len(ranks) else [None] * 5
        names = ("p5", "p25", "median", "p75", "p95")
        found.append(
            {"layer": layer, "lens": values.lens, "n": len(ranks), **dict(zip(names, map(_plain, five), strict=True))}
        )
    return found


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)


# How it is judged and shown


def improves(measured: Measurement) -> Verdict:
    lens = main_lens(measured.rows)
    rows = [row for row in measured.rows if row["lens"] == lens]
    return trend(rows, "median", rising=False, show=lambda value: f"rank {value:,.0f}")


def series(rows: Rows) -> list[Series]:
    name, where = "median rank, with the middle 50 % and 90 %", {"lens": main_lens(rows)}
    return [Series(name, "median", band=("p25", "p75"), outer=("p5", "p95"), where=where)]


ANALYSIS = Analysis(
    name="rank",
    question="How high does a value rank the token that follows its key's trigger?",
    part=VALUES,
    order=5,
    columns={
        "layer": Column("INTEGER", "the layer"),
        "lens": Column("VARCHAR", "the lens the value is read through"),
        "n": Column("BIGINT", "cells whose top-1 trigger has a next token"),
        "p5": Column(
            "DOUBLE", "rank of that token in the value's logits, 1 being the top: 5th percentile over the cells"
        ),
        "p25": Column("DOUBLE", "25th percentile"),
        "median": Column("DOUBLE", "median"),
        "p75": Column("DOUBLE", "75th percentile"),
        "p95": Column("DOUBLE", "95th percentile"),
    },
    needs=("lenses",),
    rows=rows,
    figures=(
        Figure(
            name="rank",
            label="Figure 5",
            title="How high a value ranks that token",
            caption="Rank of the trigger's next token in the value's distribution over the vocabulary; 1 is the top. "
            "Logarithmic.",
            mark=Lines(
                "rank of the next token",
                series,
                [Baseline("baseline: a random order", lambda shape: (shape.vocabulary + 1) / 2)],
                format="~s",
                tooltip=",.0f",
                low=1,
                high=lambda shape: max(2, shape.vocabulary),
                log=True,
            ),
            claims=(
                Claim("The trigger's next token ranks higher in the value's distribution in upper layers", improves),
            ),
            paper=Paper(
                "Even if the next token is not the top one, values of higher layers rank it higher.",
                "the rank improves with depth",
            ),
            aside=lens_aside,
        ),
    ),
)
