"""Agreement against the value's largest probability max(p), over all cells and within layers (Figure 6).

Values of upper layers are surer and agree more often. So the surer half of each layer's values is compared with the other half of
the same layer: a difference between layers then counts for nothing. Both halves are compared with values dealt out within them,
because sure values may simply name frequent tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values
from .agreement import SMALLEST, Pairs, pairs
from .claims import effect_columns, effect_facts, judge, points, read_effect, told
from .deals import excess
from .record import (
    VALUES,
    Analysis,
    Baseline,
    Bins,
    CellMeasure,
    Claim,
    Column,
    Fact,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Row,
    Series,
    Verdict,
    lens_note,
)
from .stats import difference, rate, wilson

BINS = 20
BIN, SURER, LESS_SURE = "bin", "surer half", "less sure half"
STRENGTH = (
    "max(p) is the largest probability of softmax at the strength the value has when its key fires: softmax of m·(g ⊙ v)·E/σ, with m the "
    "coefficient at the top-1 trigger, g the final norm's gain (through the lens `norm`; 1 through `raw`), and σ what the final norm divides "
    "by: the median over the ends of 64 random top-1 triggers. Softmax of v·E alone is nearly uniform in a model with a final norm."
)


def rows(run: Run, values: Values) -> Found:
    every = pairs(run, values)
    confidence = np.asarray(values.max_prob, np.float64)[every.place]
    place = np.empty(len(confidence), np.int64)
    place[np.argsort(confidence, kind="stable")] = np.arange(len(confidence))
    bins = min(BINS, max(1, len(place)))
    which = place * bins // max(1, len(place))
    found = [_row(BIN, None, number, every, confidence, which == number) for number in range(bins) if len(place)]
    upper = surer_half(every.layer, confidence)
    for number, half in enumerate((LESS_SURE, SURER)):
        of_half = upper if half == SURER else ~upper
        found += [
            _row(half, layer, number, every, confidence, of_half & (every.layer == layer))
            for layer in range(run.layers)
        ]
    more, less = (excess(some.hits, some.dealt) for some in (every.part(upper), every.part(~upper)))
    facts: dict[str, Fact] = {"lens": values.lens, "divisor": float(values.settings["divisor"])}
    return Found(found, facts | effect_facts("surer_minus_less", difference(more, less)))


def surer_half(layer: npt.NDArray[np.int64], confidence: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether a cell is in the surer half of the cells of its layer; of an odd number, the middle one is not."""
    order = np.lexsort((confidence, layer))
    sizes = np.bincount(layer, minlength=1)
    inside = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    upper = np.empty(len(order), bool)
    upper[order] = inside >= (np.repeat(sizes, sizes) + 1) // 2
    return upper


def _row(
    part: str,
    layer: int | None,
    number: int,
    every: Pairs,
    confidence: npt.NDArray[np.float64],
    which: npt.NDArray[np.bool_],
) -> Row:
    some, of_some = every.part(which), confidence[which]
    n, hits = len(of_some), int(some.hits.sum())
    lo, hi = wilson(hits, n)
    return {
        "part": part,
        "layer": layer,
        "bin": number,
        "max_prob_lo": float(of_some.min()) if n else None,
        "max_prob_hi": float(of_some.max()) if n else None,
        "n": n,
        "rate": rate(hits, n),
        "lo": lo,
        "hi": hi,
        "permuted": float(some.dealt.mean()) if n else None,
    }


def surer_agree_more(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "surer_minus_less", SMALLEST)
    test = (
        "agreement above dealt-out values: the surer half of each layer's values minus the other half, pooled over layers; interval "
        f"over cells; smallest effect {points(SMALLEST)}"
    )
    return judge(effect, test, told("surer half minus less sure half, within layers", effect))


def note(facts: Facts) -> str:
    return f"{lens_note(facts)}; the final norm divides by {facts['divisor']:.3g}"


ANALYSIS = Analysis(
    name="confidence",
    question="Does a value that is sure of its token agree with its key more often?",
    part=VALUES,
    order=6,
    method=f"{STRENGTH} Cells are put in bins of equally many by max(p), and the cells of each layer in a surer and a less sure half. The "
    "claim compares the halves within layers, because upper layers are surer and agree more; and above values dealt out within each half, "
    "because sure values may name frequent tokens.",
    columns={
        "part": Column(
            "VARCHAR", f"`{BIN}`: one of {BINS} bins of all cells; `{SURER}`, `{LESS_SURE}`: half of a layer's cells"
        ),
        "layer": Column("INTEGER", "the layer of a half; NULL for a bin"),
        "bin": Column("INTEGER", "the bin, from the least sure values to the surest; 0 and 1 for the halves"),
        "max_prob_lo": Column("DOUBLE", "smallest max(p) of these cells"),
        "max_prob_hi": Column("DOUBLE", "largest max(p)"),
        "n": Column("BIGINT", "cells"),
        "rate": Column("DOUBLE", "share of them whose value's top token follows the key's top-1 trigger"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "hi": Column("DOUBLE", "upper end"),
        "permuted": Column(
            "DOUBLE", "the rate to expect if values were dealt out among these cells, within layers (exact)"
        ),
    },
    facts={
        "lens": Column("VARCHAR", "the lens values are read through"),
        "divisor": Column(
            "DOUBLE", "what the final norm divides by: the median over the ends of random top-1 triggers"
        ),
        **effect_columns(
            "surer_minus_less",
            "`rate` − `permuted` of the surer halves of all layers, minus that of the less sure halves",
        ),
    },
    needs=("values",),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="confidence",
            label="Figure 6",
            title="Sure values agree more",
            caption="Agreement with the next token, for values grouped by the largest probability in their distribution, read at the "
            "strength of their strongest trigger. Box: 95 % interval.",
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
                where={"part": BIN},
            ),
            claims=(Claim("Within a layer, surer values agree with their keys more often", surer_agree_more),),
            paper=Paper(
                "A value that puts much probability on one token is more likely to agree with its key.",
                "agreement rises with max(p)",
            ),
        ),
        Figure(
            name="confidence_layers",
            label="Figure 6b",
            title="Sure values agree more, within layers",
            caption="Agreement of the surer half and of the less sure half of each layer's values. Band: 95 % interval over cells.",
            mark=Lines(
                "agreement",
                [
                    Series("surer half", "rate", ("lo", "hi"), colour="blue", where={"part": SURER}),
                    Series("less sure half", "rate", ("lo", "hi"), colour="orange", where={"part": LESS_SURE}),
                ],
                [
                    Baseline("surer half, dealt-out values", "permuted", "sky", {"part": SURER}),
                    Baseline("less sure half, dealt-out values", "permuted", "quiet", {"part": LESS_SURE}),
                ],
                format="~%",
                tooltip=".3~%",
                low=0,
            ),
        ),
    ),
    measures=(
        CellMeasure(
            "max_prob",
            "how sure the value is of one token, when its key fires most",
            "value",
            lambda _, values: None if values is None else np.asarray(values.max_prob),
            format="percent",
            log=True,
        ),
    ),
)
