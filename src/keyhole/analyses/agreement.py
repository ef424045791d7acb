"""Does a value say what its key saw? argmax(softmax(v·E)) is compared with a token of the key's top-1 trigger (Figure 4).

The top-1 trigger is the prefix with the largest coefficient, which is above zero, so the value is read with a plus sign. The
paper compares with the *next* token; its public code with the prefix's *last* token. Both are measured, by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values, shares
from . import targets
from .claims import above, percent, trend
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
    Paper,
    Row,
    Rows,
    Series,
    Verdict,
    main_lens,
    present,
)
from .stats import rate, rate_interval, wilson

TARGETS: tuple[tuple[str, Colour], ...] = (("next", "blue"), ("last", "orange"))


def rows(run: Run, lenses: list[Values]) -> Found:
    return Found([row for values in lenses for row in of_lens(run, values)])


def of_lens(run: Run, values: Values) -> list[Row]:
    top = np.asarray(values.top_tokens[..., 0])
    vocabulary = int(values.settings["vocabulary"])
    frequency = targets.unigram(run, vocabulary)
    found = []
    for name, wanted in (("next", targets.next_tokens(run, 1)), ("last", targets.last_tokens(run, 1))):
        for layer in range(run.layers):
            span = run.cells.span(layer)
            found.append(_row(layer, name, values.lens, top[span], wanted[span, 0], frequency))
    return found


def _row(
    layer: int,
    target: str,
    lens: str,
    top: npt.NDArray[Any],
    wanted: npt.NDArray[np.int64],
    frequency: npt.NDArray[np.float64],
) -> Row:
    counted = wanted >= 0
    top, wanted, n = top[counted], wanted[counted], int(counted.sum())
    hits = int((top == wanted).sum())
    lo, hi = wilson(hits, n)
    return {
        "layer": layer,
        "target": target,
        "lens": lens,
        "n": n,
        "rate": rate(hits, n),
        "lo": lo,
        "hi": hi,
        "permuted": permuted(top, wanted, len(frequency)),
        "unigram": float(frequency[wanted].mean()) if n else None,
    }


def permuted(top: npt.NDArray[Any], wanted: npt.NDArray[Any], vocabulary: int) -> float | None:
    """The agreement to expect if the layer's values were shuffled among its keys: the exact mean over all permutations."""
    if not len(top):
        return None
    says, wants = (np.bincount(tokens, minlength=vocabulary).astype(np.float64) for tokens in (top, wanted))
    return float(says @ wants / len(top) ** 2)


# How it is judged and shown


def next_token_rows(rows: Rows) -> list[Row]:
    """The rows that verdicts use: those of the next token, read through the main lens, with a rate."""
    lens = main_lens(rows)
    known = present(rows, "rate", "n")
    return [row for row in known if row["lens"] == lens and row["target"] == "next" and row["n"] > 0]


def rises(measured: Measurement) -> Verdict:
    return trend(next_token_rows(measured.rows), "rate", rising=True)


def above_chance(measured: Measurement) -> Verdict:
    rows = next_token_rows(measured.rows)
    upper = rows[-max(1, len(rows) // 3) :] if rows else []
    n = sum(row["n"] for row in upper)
    if not n:
        return Verdict("unclear", "95 % interval against the baselines", "no layer has a rate")
    share = sum(row["rate"] * row["n"] for row in upper) / n
    known = {
        name: sum(row[column] * row["n"] for row in upper) / n
        for column, name in (("permuted", "shuffled values"), ("unigram", "a token drawn by frequency"))
        if len(present(upper, column)) == len(upper)
    }
    name = max(known, key=lambda k: known[k]) if known else "zero"
    bound = known.get(name, 0.0)
    said = f"; {name}: {percent(bound)}" if known else ""
    spread = rate_interval(share, n)
    return above(share, *spread, bound, "highest third of the layers", "the larger baseline", said)


def series(rows: Rows) -> list[Series]:
    """Both targets through the main lens; the next token through another lens, if there is one."""
    lens = main_lens(rows)
    other = next((row["lens"] for row in rows if row["lens"] != lens), None)
    lines = [
        Series(f"{target} token", "rate", ("lo", "hi"), colour=colour, where={"target": target, "lens": lens})
        for target, colour in TARGETS
    ]
    if other is not None:
        where = {"target": "next", "lens": other}
        lines.append(Series(f"next token, {other} lens", "rate", ("lo", "hi"), colour="green", where=where))
    return lines


def baselines(rows: Rows) -> list[Baseline]:
    where = {"target": "next", "lens": main_lens(rows)}
    return [
        Baseline("baseline: shuffled values", "permuted", "quiet", where),
        Baseline("baseline: a token drawn by frequency", "unigram", "faint", where),
    ]


def lens_aside(measured: Measurement) -> str:
    return f"Values are read through the lens “{main_lens(measured.rows)}”." if measured.rows else ""


ANALYSIS = Analysis(
    name="agreement",
    question="Does a value say what its key saw?",
    part=VALUES,
    order=4,
    columns={
        "layer": Column("INTEGER", "the layer"),
        "target": Column(
            "VARCHAR", "`next`: the token that follows the key's top-1 trigger; `last`: the token that ends it"
        ),
        "lens": Column("VARCHAR", "the lens the value is read through"),
        "n": Column("BIGINT", "cells that have such a token"),
        "rate": Column("DOUBLE", "share of these cells whose value's top token it is"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "hi": Column("DOUBLE", "upper end"),
        "permuted": Column("DOUBLE", "the rate to expect if the layer's values were shuffled among its keys (exact)"),
        "unigram": Column("DOUBLE", "the rate if a value's token were drawn by its frequency in the text"),
    },
    needs=("lenses",),
    rows=rows,
    figures=(
        Figure(
            name="agreement",
            label="Figure 4",
            title="Whether a value says what its key saw",
            caption="Share of cells whose value's top token is the token that follows the key's strongest trigger (next), or "
            "the one that ends it (last). Band: 95 % interval.",
            mark=Lines("agreement", series, baselines, format="~%", tooltip=".3~%"),
            claims=(
                Claim("Values agree with their keys more in upper layers", rises),
                Claim("Agreement in upper layers is above chance", above_chance),
            ),
            paper=Paper(
                "In the lower layers a value's top token has nothing to do with what follows its key's trigger. In the upper "
                "layers it agrees far more often than chance.",
                "about 0 in layers 1–10, up to 3.5 % above; chance 0.0004 %",
            ),
            aside=lens_aside,
        ),
    ),
    measures=(
        CellMeasure(
            "agreement",
            "how often the value's top token follows the key's triggers",
            "value",
            lambda _, values: None if values is None else shares(*values.hits(slice(None))),
            format="percent",
        ),
    ),
)
