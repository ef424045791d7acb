"""Does any one cell say what its layer says? (Figure 8)

Zero agreement: no cell's top token is the layer's, ∀i top(v_i) ≠ top(y). A cell with a negative coefficient writes −v, whose top
token is the value's bottom token. The paper does not say whether cells with a coefficient of 0 count, and its public code compares
with r + y, so every reading is measured under its name. The main one: active cells against y.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, interval, judge, judge_fact, percent, read_effect
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Claim,
    Column,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Series,
    Verdict,
    lens_note,
    present,
)
from .stats import Interval, bootstrap_mean, bootstrap_rates, bootstrap_sums, weakest
from .stopwords import is_stop_word

if TYPE_CHECKING:
    from .heldout import Prefixes
    from .section5 import Section5

SHORT = 5
"""A prefix of fewer tokens is short."""
MOST = 0.5
"""More than this share of the predictions is most of them."""
ENRICHED = 0.05
"""Smallest difference between a share and its base rate that would matter."""
MAIN = {"cells": "active", "output": "y"}


def rows(run: Run, prefixes: Prefixes, states: Section5) -> Found:
    table = []
    every: dict[tuple[str, str], list[Interval]] = {}
    for (cells, output), agrees in states.agrees.items():
        every[cells, output] = bootstrap_rates(~agrees, states.clusters)
        for layer, (value, lo, hi) in enumerate(every[cells, output]):
            table.append(
                {"layer": layer, "cells": cells, "output": output, "n": states.n, "zero_agreement": value}
                | {"lo": lo, "hi": hi, "dealt": 1 - float(states.dealt[cells, output][layer])}
            )
    agrees = states.agrees["active", "y"]
    stop = np.array([is_stop_word(run.vocabulary.piece(int(token))) for token in states.following])
    facts = {**prefixes.facts, "lens": states.lens, "agreeing": int(agrees.sum())}
    facts |= effect_facts("zero_pooled", bootstrap_mean((~agrees).mean(0), states.clusters))
    facts |= effect_facts("zero_least", weakest(every["active", "y"]))
    for name, kind in (("stop", stop), ("short", states.lengths < SHORT)):
        share, base, more = enrichment(agrees, kind, states.clusters)
        facts |= effect_facts(f"{name}_share", share) | {f"{name}_base": None if math.isnan(base.value) else base.value}
        facts |= effect_facts(f"{name}_more", more)
    return Found(table, facts)


def enrichment(
    agrees: npt.NDArray[np.bool_], kind: npt.NDArray[np.bool_], clusters: npt.NDArray[np.int64] | None
) -> list[Interval]:
    """Of the pairs (layer, prefix) where a cell agrees [layers, n], the share whose prefix is of a kind [n]; the share of
    that kind among all prefixes; and the difference. Prefixes are what was drawn: each brings its layers along."""
    times = agrees.sum(0)

    def statistic(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        share, base = sums[..., 0] / sums[..., 1], sums[..., 2] / sums[..., 3]
        return np.stack([share, base, share - base], -1)

    return bootstrap_sums(np.stack([times * kind, times, kind, np.ones(len(kind))]), statistic, clusters)


# Claims


def mostly_none(measured: Measurement) -> Verdict:
    test = f"zero agreement of active cells with y, mean over layers, interval over prefixes; smallest effect {percent(MOST)}"
    return judge_fact(measured.facts, "zero_pooled", MOST, test, "no active cell says what its layer says")


def mostly_none_everywhere(measured: Measurement) -> Verdict:
    test = (
        "zero agreement of active cells with y in the layer where it is lowest, interval over prefixes, its upper end corrected for "
        f"the number of layers; smallest effect {percent(MOST)}"
    )
    known = present([row for row in measured.rows if _is_main(row)], "zero_agreement", "lo", "hi")
    said = "no layer"
    if known:
        least = min(known, key=lambda row: float(row["zero_agreement"]))
        over = sum(row["lo"] > MOST for row in known)
        said = (
            f"lowest in layer {least['layer']}: {percent(least['zero_agreement'])} ({interval(least['lo'], least['hi'])}); "
            f"clearly more than half in {over} of {len(known)} layers"
        )
    return judge(read_effect(measured.facts, "zero_least", MOST), test, said)


def _is_main(row: object) -> bool:
    return isinstance(row, dict) and all(row.get(key) == wanted for key, wanted in MAIN.items())


def _enriched(measured: Measurement, name: str, what: str) -> Verdict:
    test = (
        f"share of {what} where an active cell agrees with its layer, minus their share of all prefixes; pooled over layers, "
        f"interval over prefixes; smallest effect {percent(ENRICHED)}"
    )
    share, base = (measured.facts.get(f"{name}_{of}") for of in ("share", "base"))
    said = "" if share is None or base is None else f"; {percent(float(share))} against {percent(float(base))} of all"
    return judge_fact(measured.facts, f"{name}_more", ENRICHED, test, f"more {what}, by", said)


def more_stop_words(measured: Measurement) -> Verdict:
    return _enriched(measured, "stop", "stop words as targets")


def shorter(measured: Measurement) -> Verdict:
    return _enriched(measured, "short", f"prefixes under {SHORT} tokens")


def what_agrees(measured: Measurement) -> str:
    """What the exceptions are like: prefixes where some cell does say what its layer says."""
    facts = measured.facts
    said = []
    for name, what in (("stop", "have a stop word as target"), ("short", f"are shorter than {SHORT} tokens")):
        share, base = read_effect(facts, f"{name}_share", 0.0), facts.get(f"{name}_base")
        if share is not None and base is not None:
            said.append(f"{percent(share.value)} {what} (of all prefixes: {percent(float(base))})")
    if not said:
        return ""
    return f"Of the {facts['agreeing']:,} pairs of layer and prefix where an active cell agrees, {' and '.join(said)}."


def note(facts: Facts) -> str:
    return f"{heldout.note(facts)}; {lens_note(facts)}"


def _reading(name: str, cells: str, output: str, colour: str) -> Series:
    where = {"cells": cells, "output": output}
    return Series(name, "zero_agreement", band=("lo", "hi"), colour=colour, where=where)  # type: ignore[arg-type]


ANALYSIS = Analysis(
    name="composition",
    question="Does any one cell say what its layer says?",
    part=OUTPUT,
    order=8,
    method="The layer's output and the values are read through one lens. A cell with a negative coefficient says its value's bottom "
    "token. `dealt` compares the cells with the output of another prefix instead: the mean over all pairs of prefixes.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "cells": Column(
            "VARCHAR",
            "which cells are asked: `active` (coefficient other than 0), `all`, or `n90` (the fewest that carry 90 % of Σ|m|·‖v‖)",
        ),
        "output": Column(
            "VARCHAR", "what they are compared with: `y`, what the layer adds, or `o` = r + y, as the public code does"
        ),
        "n": Column("BIGINT", "held-out prefixes"),
        "zero_agreement": Column(
            "DOUBLE", "share of prefixes where none of these cells says what its layer says, ∀i top(v_i) ≠ top(output)"
        ),
        "lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "hi": Column("DOUBLE", "upper end"),
        "dealt": Column("DOUBLE", "the same with the output of another prefix"),
    },
    facts={
        **heldout.FACTS,
        "lens": Column("VARCHAR", "the lens values and layers are read through"),
        "agreeing": Column("BIGINT", "pairs of layer and prefix where an active cell says what y says"),
        **effect_columns("zero_pooled", "zero agreement of active cells with y, mean over layers"),
        **effect_columns(
            "zero_least", "the same in the layer where it is lowest; the upper end is corrected for the layers"
        ),
        **effect_columns("stop_share", "of the agreeing pairs, the share whose next token is an English stop word"),
        "stop_base": Column("DOUBLE", "the share of such prefixes among all"),
        **effect_columns("stop_more", "the difference of the two"),
        **effect_columns(
            "short_share", f"of the agreeing pairs, the share whose prefix is shorter than {SHORT} tokens"
        ),
        "short_base": Column("DOUBLE", "the share of such prefixes among all"),
        **effect_columns("short_more", "the difference of the two"),
    },
    needs=("prefixes", "states"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="zero_agreement",
            label="Figure 8",
            title="A layer says what no cell says",
            caption="Share of prefixes where no cell's top token is the layer's: for three sets of cells, compared with what the layer "
            "adds (y) or with the residual after it (o). Band: 95 % interval.",
            mark=Lines(
                "share of prefixes",
                [
                    _reading("active cells, y (the paper's text)", "active", "y", "blue"),
                    _reading("active cells, o", "active", "o", "sky"),
                    _reading("all cells, y", "all", "y", "green"),
                    _reading("all cells, o (the public code)", "all", "o", "faint"),
                    _reading("cells that carry 90 %, y", "n90", "y", "orange"),
                    _reading("cells that carry 90 %, o", "n90", "o", "red"),
                ],
                [
                    Baseline("baseline: active cells, y of another prefix", "dealt", where=MAIN),
                    Baseline("the paper's lowest layer, 68 %", 0.68, colour="ink"),
                ],
                low=0,
                high=1,
            ),
            claims=(
                Claim("In most predictions, no active cell says what its layer says", mostly_none),
                Claim(
                    "In every layer, no active cell says what the layer says in most predictions",
                    mostly_none_everywhere,
                ),
                Claim(
                    "Where an active cell agrees with its layer, the target is more often a stop word", more_stop_words
                ),
                Claim("Where an active cell agrees with its layer, the prefix is more often short", shorter),
            ),
            paper=Paper(
                "A layer's output is a composition: its top token is usually that of none of its cells. The exceptions are "
                "mostly stop words and very short prefixes.",
                "at least 68 % in every layer; where a cell agrees, 60 % stop words and 43 % prefixes under 5 tokens",
            ),
            aside=what_agrees,
        ),
    ),
)
