"""How large is the feed-forward layer's part in what a block does, beside attention's?

By size: ‖y‖/(‖y‖ + ‖attention‖), of what the two add to the residual. By decisions: of the times that the residual's top token
changes in a block, the share that the feed-forward layer changes it, top(o) ≠ top(r), and not attention, top(r) ≠ top(in).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, judge_fact, percent
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
    Series,
    Verdict,
)
from .refinement import without
from .stats import Interval, bootstrap_mean, bootstrap_means, bootstrap_rates, bootstrap_sums, thirds

if TYPE_CHECKING:
    from .heldout import Prefixes
    from .section5 import Section5

LARGER = 0.05
"""Smallest difference between upper and lower layers that would matter."""


def rows(run: Run, prefixes: Prefixes, states: Section5) -> Found:
    before = np.concatenate([states.top_first[None], states.top_o[:-1]])
    by_ff, by_attention = states.top_o != states.top_r, states.top_r != before
    size = states.norm_y / np.maximum(states.norm_y + states.norm_attention, 1e-30)
    found = {
        "size": bootstrap_means(size, states.clusters),
        "ff_changes": bootstrap_rates(by_ff, states.clusters),
        "attention_changes": bootstrap_rates(by_attention, states.clusters),
        "decisions": _ratios(by_ff, by_ff.astype(int) + by_attention, states.clusters),
    }
    table = []
    for layer in range(run.layers):
        row: dict[str, Any] = {"layer": layer, "n": states.n}
        for name, each in found.items():
            value, lo, hi = each[layer]
            row |= {name: None if math.isnan(value) else value, f"{name}_lo": lo, f"{name}_hi": hi}
        table.append(row)
    lower, upper = thirds(run.layers)
    facts = {**prefixes.facts, "left_out": states.left_out}
    facts |= effect_facts("size_rise", bootstrap_mean(size[upper].mean(0) - size[lower].mean(0), states.clusters))
    facts |= effect_facts("decisions_rise", _rise(by_ff[states.kept], by_attention[states.kept], states.clusters))
    return Found(table, facts)


def _ratios(over: npt.NDArray[Any], under: npt.NDArray[Any], clusters: npt.NDArray[Any] | None) -> list[Interval]:
    k = len(over)
    return bootstrap_sums(np.concatenate([over, under]), lambda sums: sums[..., :k] / sums[..., k:], clusters)


def _rise(
    by_ff: npt.NDArray[np.bool_], by_attention: npt.NDArray[np.bool_], clusters: npt.NDArray[Any] | None
) -> Interval:
    """The feed-forward layers' share of all changes in the highest third of the layers, minus that in the lowest."""
    if not len(by_ff):
        return Interval(math.nan)
    lower, upper = thirds(len(by_ff))
    columns = [each[part].sum(0) for part in (upper, lower) for each in (by_ff, by_attention)]

    def statistic(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        high, low = (sums[..., at] / (sums[..., at] + sums[..., at + 1]) for at in (0, 2))
        return (high - low)[..., None]

    return bootstrap_sums(np.stack(columns), statistic, clusters)[0]


def larger(measured: Measurement) -> Verdict:
    test = (
        "‖y‖/(‖y‖ + ‖attention‖), highest minus lowest third of the layers, interval over prefixes; smallest effect "
        f"{percent(LARGER)}"
    )
    return judge_fact(measured.facts, "size_rise", LARGER, test, "the feed-forward layers' part grows by")


def decides(measured: Measurement) -> Verdict:
    test = (
        "share of the changes of the top token that are the feed-forward layers', highest minus lowest third of the layers, "
        f"interval over prefixes; smallest effect {percent(LARGER)}"
    )
    said = without(measured.facts)
    return judge_fact(measured.facts, "decisions_rise", LARGER, test, "their share of the changes grows by", said)


def _share(name: str, means: str) -> dict[str, Column]:
    return {
        name: Column("DOUBLE", means),
        f"{name}_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        f"{name}_hi": Column("DOUBLE", "upper end"),
    }


ANALYSIS = Analysis(
    name="part",
    question="How large is the feed-forward layers' part in what the blocks do?",
    part=OUTPUT,
    order=13,
    method="Tokens are read through the model's own final norm and head. `in` is the block's input, and r = in + attention, also if "
    "attention and feed-forward run side by side.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        **_share("size", "‖y‖/(‖y‖ + ‖attention‖), mean over the prefixes"),
        **_share("ff_changes", "share of prefixes where the feed-forward layer changes the top token, top(o) ≠ top(r)"),
        **_share("attention_changes", "share of prefixes where attention does, top(r) ≠ top(in)"),
        **_share(
            "decisions", "of all these changes, the share that are the feed-forward layer's; none if there is no change"
        ),
    },
    facts={
        **heldout.FACTS,
        "left_out": Column(
            "VARCHAR", "layers left out of `decisions_rise`, because top(r) mostly is the current token"
        ),
        **effect_columns("size_rise", "`size` in the highest third of the layers minus that in the lowest"),
        **effect_columns(
            "decisions_rise", "`decisions` pooled over the highest third of the layers minus the same of the lowest"
        ),
    },
    needs=("prefixes", "states"),
    rows=rows,
    note=heldout.note,
    figures=(
        Figure(
            name="part",
            label="Figure S10",
            title="The feed-forward layers' part",
            caption="What the feed-forward layer adds, as a share of what it and attention add (by norm), and its share of the "
            "changes of the residual's top token. Band: 95 % interval.",
            mark=Lines(
                "feed-forward share",
                [
                    Series("by size: ‖y‖/(‖y‖ + ‖attention‖)", "size", band=("size_lo", "size_hi")),
                    Series("by decisions", "decisions", band=("decisions_lo", "decisions_hi"), colour="orange"),
                ],
                [Baseline("baseline: as much as attention", 0.5)],
                low=0,
                high=1,
            ),
            claims=(
                Claim("Feed-forward layers add a larger part in the upper layers", larger),
                Claim("Feed-forward layers make a larger part of the decisions in the upper layers", decides),
            ),
            paper=Paper(
                "Readers of the paper say that feed-forward layers play a larger part in the upper layers.",
                "not measured",
            ),
        ),
    ),
)
