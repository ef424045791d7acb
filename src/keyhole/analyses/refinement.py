"""How layers come to the prediction (Figures 9 to 11).

r is the residual before a feed-forward layer, y what the layer adds, o = r + y. All three are read through the model's own final
norm and head. The prediction is top(o) of the last layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..store.run import Run
from . import heldout
from .claims import above, in_most_layers, trend
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Claim,
    Column,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Part,
    Series,
    Shape,
    Stack,
    Verdict,
    present,
)
from .stats import rate_interval

if TYPE_CHECKING:
    from .heldout import Prefixes
    from .section5 import Section5


def rows(run: Run, prefixes: Prefixes, states: Section5) -> Found:
    table = []
    for layer in range(run.layers):
        r, y, o = states.top_r[layer], states.top_y[layer], states.top_o[layer]
        low, middle, high = np.percentile(states.final_prob[layer], [25, 50, 75])
        table.append(
            {
                "layer": layer,
                "n": len(states.lengths),
                "residual_match": float((r == states.top_o[-1]).mean()),
                "final_prob_p25": float(low),
                "final_prob_median": float(middle),
                "final_prob_p75": float(high),
                "residual": float(((o == r) & (o != y)).mean()),
                "ffn": float(((o == y) & (o != r)).mean()),
                "agreement": float(((o == r) & (o == y)).mean()),
                "composition": float(((o != r) & (o != y)).mean()),
            }
        )
    return Found(table, prefixes.facts)


def settles(measured: Measurement) -> Verdict:
    return trend(present(measured.rows, "residual_match", "n"), "residual_match", rising=True)


def early(measured: Measurement) -> Verdict:
    rows = present(measured.rows, "residual_match", "n")
    lower = rows[: max(1, len(rows) // 3)]
    if not lower:
        return Verdict("unclear", "95 % interval against a quarter", "no layer")
    rate = float(np.mean([row["residual_match"] for row in lower]))
    n = min(row["n"] for row in lower)  # every layer sees the same prefixes: more layers are not more samples
    return above(rate, *rate_interval(rate, n), 0.25, "lowest third of the layers", "a quarter")


def surer(measured: Measurement) -> Verdict:
    return trend(measured.rows, "final_prob_median", rising=True)


def stands(measured: Measurement) -> Verdict:
    rows = present(measured.rows, *SHARES, "n")
    spans = [(row["layer"], *rate_interval(min(1.0, row["residual"] + row["agreement"]), row["n"])) for row in rows]
    return in_most_layers(spans, 0.5, "clearly more than half")


def compromise(measured: Measurement) -> Verdict:
    rows = present(measured.rows, *SHARES, "n")
    changed = float(sum((row["ffn"] + row["composition"]) * row["n"] for row in rows))
    if changed == 0:
        return Verdict("unclear", "95 % interval against a half", "no prediction is ever changed")
    rate = float(sum(row["composition"] * row["n"] for row in rows)) / changed
    n = changed / len(rows)  # every layer sees the same prefixes: more layers are not more samples
    return above(rate, *rate_interval(rate, n), 0.5, "compromises among changes", "a half")


def one_token(shape: Shape) -> float:
    return 1 / max(1, shape.vocabulary)


SHARES = ("residual", "ffn", "agreement", "composition")

ANALYSIS = Analysis(
    name="refinement",
    question="How do layers come to the prediction?",
    part=OUTPUT,
    order=9,
    method="r, y and o are read through the model's own final norm and head. The four shares sum to 1.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        "residual_match": Column("DOUBLE", "share of prefixes where top(r) is the model's prediction"),
        "final_prob_p25": Column(
            "DOUBLE", "the probability that r gives to the prediction: 25th percentile over the prefixes"
        ),
        "final_prob_median": Column("DOUBLE", "median"),
        "final_prob_p75": Column("DOUBLE", "75th percentile"),
        "residual": Column("DOUBLE", "share of prefixes where top(o) = top(r) ≠ top(y)"),
        "ffn": Column("DOUBLE", "share where top(o) = top(y) ≠ top(r)"),
        "agreement": Column("DOUBLE", "share where all three are equal"),
        "composition": Column("DOUBLE", "share where top(o) is neither top(r) nor top(y)"),
    },
    facts=heldout.FACTS,
    needs=("prefixes", "states"),
    rows=rows,
    note=heldout.note,
    figures=(
        Figure(
            name="residual_match",
            label="Figure 9",
            title="When the prediction is made",
            caption="Share of prefixes where the residual's top token, before the layer, is the model's final one. Band: 95 % "
            "interval.",
            mark=Lines(
                "share of prefixes",
                [Series("the residual's top token is the model's", "residual_match", band="wilson")],
                [Baseline("baseline: one token in the vocabulary", one_token)],
                low=0,
                high=1,
            ),
            claims=(
                Claim("The residual holds the final prediction more often, layer by layer", settles),
                Claim("The lowest layers already hold a good part of the predictions", early),
            ),
            paper=Paper(
                "Part of the predictions are fixed from the lowest layers on; the rest are settled fast in the upper layers.",
                "about a third in the lowest layers, growing fast from layer 10 of 16",
            ),
            columns=("layer", "n", "residual_match"),
        ),
        Figure(
            name="final_probability",
            label="Figure 10",
            title="How sure the residual is of it",
            caption="Probability that the residual, before the layer, gives the model's final token. Band: the middle half of "
            "the prefixes.",
            mark=Lines(
                "probability of the final token",
                [
                    Series(
                        "median, with the middle 50 %", "final_prob_median", band=("final_prob_p25", "final_prob_p75")
                    )
                ],
                [Baseline("baseline: one token in the vocabulary", one_token)],
                format=".1f",
                tooltip=".3f",
                low=0,
                high=1,
            ),
            claims=(Claim("The final token's probability grows layer by layer", surer),),
            paper=Paper(
                "The residual's probability for the final token grows along the same curve.", "same trend as Figure 9"
            ),
            columns=("layer", "n", "final_prob_p25", "final_prob_median", "final_prob_p75"),
        ),
        Figure(
            name="shares",
            label="Figure 11",
            title="Who decides",
            caption="Top tokens of the residual r, the layer y and their sum o, compared. Whisker: 95 % interval of the line "
            "between what is kept and what changes.",
            mark=Stack(
                "share of prefixes",
                (
                    Part("residual: r is kept, y differs", "residual", "blue"),
                    Part("agreement: all equal", "agreement", "sky"),
                    Part("composition: a third token", "composition", "orange"),
                    Part("ffn: y replaces r", "ffn", "red"),
                ),
                whisker=2,
            ),
            claims=(
                Claim("The residual's prediction is usually kept", stands),
                Claim(
                    "Where a layer changes the prediction, the result is mostly a compromise, not the layer's own token",
                    compromise,
                ),
            ),
            paper=Paper(
                "The residual's prediction is mostly kept. A layer's own token hardly ever becomes the prediction; when the prediction "
                "changes, it changes to a compromise.",
                "residual and agreement dominate; ffn is rare",
            ),
            columns=("layer", "n", *SHARES),
        ),
    ),
)
