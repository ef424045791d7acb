"""Does any one cell say what its layer says? (Figures 7 and 8)

Zero agreement: no active cell's top token is the layer's, ∀i top(v_i) ≠ top(y). A cell with a negative coefficient writes −v,
whose top token is the value's bottom token. Inactive cells (coefficient 0) do not count; y is the layer's output alone, not r + y.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..store.run import Run
from . import heldout
from .activity import signs_note
from .claims import in_every_layer, percent, trend
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Claim,
    Column,
    Effect,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Outcome,
    Paper,
    Series,
    Verdict,
    lens_note,
    present,
)
from .stats import rate, wilson
from .stopwords import is_stop_word

if TYPE_CHECKING:
    from .heldout import Prefixes
    from .section5 import Section5

SHORT = 5
"""A prefix of fewer tokens is short."""


def rows(run: Run, prefixes: Prefixes, states: Section5) -> Found:
    n = len(states.lengths)
    stop = np.array([is_stop_word(run.vocabulary.piece(int(token))) for token in states.following])
    table = []
    for layer in range(run.layers):
        agrees = states.agrees[layer]
        zero = int((~agrees).sum())
        lo, hi = wilson(zero, n)
        table.append(
            {
                "layer": layer,
                "n": n,
                "active_fraction": float(states.active[layer].mean()),
                "zero_agreement": rate(zero, n),
                "lo": lo,
                "hi": hi,
                "agreeing_stopword_share": rate(float(stop[agrees].sum()), n - zero),
                "agreeing_short_share": rate(float((states.lengths[agrees] < SHORT).sum()), n - zero),
            }
        )
    return Found(table, {**prefixes.facts, "lens": states.lens})


def tenth_to_half(measured: Measurement) -> Verdict:
    rows = present(measured.rows, "active_fraction")
    inside = [row for row in rows if 0.1 <= row["active_fraction"] <= 0.5]
    shares = [row["active_fraction"] for row in rows]
    outcome: Outcome = "unclear"
    if rows and len(inside) == len(rows):
        outcome = "holds"
    elif rows and len(inside) < len(rows) / 2:
        outcome = "does not hold"
    test = "count of layers between 10 and 50 %"
    if not rows:
        return Verdict(outcome, test, "no layer")
    said = f"{percent(min(shares))} to {percent(max(shares))}; {len(inside)} of {len(rows)} layers"
    return Verdict(outcome, test, said, Effect(len(inside) / len(rows), against=1.0))


def fewer_with_depth(measured: Measurement) -> Verdict:
    rows = present(measured.rows, "active_fraction")
    lower = rows[: math.ceil(len(rows) * 10 / 16)]
    return trend(lower, "active_fraction", rising=False, among="these layers")


def no_cell_says_it(measured: Measurement) -> Verdict:
    rows = present(measured.rows, "zero_agreement", "lo", "hi")
    spans = [(row["layer"], row["lo"], row["hi"]) for row in rows]
    return in_every_layer(spans, 0.5, "clearly more than half")


def what_agrees(measured: Measurement) -> str:
    """What the exceptions are like: prefixes where some cell does say what its layer says."""
    said = []
    for column, what in (
        ("agreeing_stopword_share", "stop words"),
        ("agreeing_short_share", f"prefixes under {SHORT} tokens"),
    ):
        if known := present(measured.rows, column):
            said.append(f"{percent(sum(row[column] for row in known) / len(known))} {what}")
    return f"Where a cell agrees: {' and '.join(said)}, averaged over layers." if said else ""


def note(facts: Facts) -> str:
    return f"{heldout.note(facts)}; {lens_note(facts)}"


ANALYSIS = Analysis(
    name="composition",
    question="Does any one cell say what its layer says?",
    part=OUTPUT,
    order=7,
    method="y, the layer's output, and the values are read through one lens. A cell with a negative coefficient says its value's "
    "bottom token.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        "active_fraction": Column("DOUBLE", "share of the layer's coefficients above zero"),
        "zero_agreement": Column(
            "DOUBLE", "share of prefixes where no active cell says what its layer says, ∀i top(v_i) ≠ top(y)"
        ),
        "lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "hi": Column("DOUBLE", "upper end"),
        "agreeing_stopword_share": Column(
            "DOUBLE", "of the prefixes where some cell does, the share whose next token is an English stop word"
        ),
        "agreeing_short_share": Column("DOUBLE", f"of the same, the share of prefixes shorter than {SHORT} tokens"),
    },
    facts={**heldout.FACTS, "lens": Column("VARCHAR", "the lens values and layers are read through")},
    needs=("prefixes", "states"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="active",
            label="Figure 7",
            title="How many cells are active at once",
            caption="Share of a layer's coefficients above zero, at sampled prefixes. Band: 95 % interval, taking prefixes as the "
            "sample.",
            mark=Lines(
                "coefficients above zero",
                [Series("active cells", "active_fraction", band="wilson")],
                [Baseline("baseline: random signs", 0.5)],
                low=0,
            ),
            claims=(
                Claim("A tenth to a half of a layer's cells are active", tenth_to_half),
                Claim("Fewer cells are active from layer to layer, up to 10/16 of the depth", fewer_with_depth),
            ),
            paper=Paper(
                "Each prediction activates hundreds to thousands of cells in every layer, fewer towards the upper middle.",
                "10 to 50 %, lowest near layer 10 of 16",
            ),
            columns=("layer", "n", "active_fraction"),
            aside=signs_note,
        ),
        Figure(
            name="zero_agreement",
            label="Figure 8",
            title="A layer says what no cell says",
            caption="Share of prefixes where no active cell's top token is the layer's top token. Band: 95 % interval.",
            mark=Lines(
                "share of prefixes",
                [Series("no active cell agrees with the layer", "zero_agreement", band=("lo", "hi"))],
                [Baseline("the paper's lowest layer, 68 %", 0.68)],
                low=0,
                high=1,
            ),
            claims=(
                Claim("In most predictions of every layer, no active cell says what the layer says", no_cell_says_it),
            ),
            paper=Paper(
                "A layer's output is a composition: its top token is usually that of none of its cells. The exceptions are "
                "mostly stop words and very short prefixes.",
                "at least 68 % in every layer; where a cell agrees, 60 % stop words and 43 % prefixes under 5 tokens",
            ),
            columns=("layer", "n", "zero_agreement", "lo", "hi", "agreeing_stopword_share", "agreeing_short_share"),
            aside=what_agrees,
        ),
    ),
)
