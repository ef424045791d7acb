"""How layers come to the prediction (Figures 9 to 11).

r is the residual before a feed-forward layer, y what the layer adds, o = r + y. All three are read through the model's own final
norm and head. The prediction is top(o) of the last layer.

If the embeddings are tied, the residual of the lowest layers still says the current token, the last of the prefix. How often it
does is measured, and a layer where it mostly does is left out of pooled verdicts: it says nothing about the next token yet.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, judge_fact, layer_ranges, percent
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
    Part,
    Series,
    Shape,
    Stack,
    Verdict,
)
from .stats import Interval, bootstrap_mean, bootstrap_means, bootstrap_rates, bootstrap_sums, thirds

if TYPE_CHECKING:
    from .heldout import Prefixes
    from .section5 import Section5

SETTLED, SURER = 0.1, 0.05
"""Smallest growth of a share of prefixes, and of a probability, that would matter."""
EARLY = 0.25
"""A good part of the predictions."""
MOST = 0.5
SHARES = ("residual", "ffn", "agreement", "composition")


def rows(run: Run, prefixes: Prefixes, states: Section5) -> Found:
    r, y, o, final = states.top_r, states.top_y, states.top_o, states.top_o[-1]
    kinds = {
        "residual_match": r == final,
        "current": states.is_current,
        "residual": (o == r) & (o != y),
        "ffn": (o == y) & (o != r),
        "agreement": (o == r) & (o == y),
        "composition": (o != r) & (o != y),
    }
    shares = {name: bootstrap_rates(each, states.clusters) for name, each in kinds.items()}
    probability = bootstrap_means(states.final_prob, states.clusters)
    table = []
    for layer in range(run.layers):
        row: dict[str, Any] = {"layer": layer, "n": states.n}
        for name, found in shares.items():
            row |= _with_ends(name, found[layer])
        row["match_dealt"] = _by_chance(r[layer], final)
        row |= _with_ends("final_prob", probability[layer])
        quartiles = np.percentile(states.final_prob[layer], [25, 50, 75])
        row |= {f"final_prob_{name}": float(q) for name, q in zip(("p25", "median", "p75"), quartiles, strict=True)}
        table.append(row)
    facts = {**prefixes.facts, "left_out": states.left_out}
    for name, effect in _effects(kinds, states).items():
        facts |= effect_facts(name, effect)
    return Found(table, facts)


def _with_ends(name: str, found: Interval) -> dict[str, Any]:
    return {name: found.value, f"{name}_lo": found.lo, f"{name}_hi": found.hi}


def _by_chance(said: Any, wanted: Any) -> float:
    """How often what one prefix says is what another one wants, over all pairs."""
    tokens, which = np.unique(np.concatenate([said, wanted]), return_inverse=True)
    n = len(said)
    one, other = (np.bincount(part, minlength=len(tokens)).astype(np.float64) for part in (which[:n], which[n:]))
    return float((one @ other - (said == wanted).sum()) / max(1, n * (n - 1)))


def _effects(kinds: dict[str, Any], states: Section5) -> dict[str, Interval]:
    kept = states.kept
    if not kept:
        return dict.fromkeys(EFFECTS, Interval(math.nan))
    lower, upper = thirds(len(kept))

    def rise(values: Any) -> Interval:
        here = values[kept]
        return bootstrap_mean(here[upper].mean(0) - here[lower].mean(0), states.clusters)

    kept_is = (kinds["residual"] | kinds["agreement"])[kept]
    composed, replaced = (kinds[name][kept].sum(0) for name in ("composition", "ffn"))
    (compromise,) = bootstrap_sums(
        np.stack([composed, composed + replaced]),
        lambda sums: (sums[..., 0] / sums[..., 1])[..., None],
        states.clusters,
    )
    return {
        "match_rise": rise(kinds["residual_match"]),
        "match_early": bootstrap_mean(kinds["residual_match"][kept][lower].mean(0), states.clusters),
        "prob_rise": rise(states.final_prob),
        "stands": bootstrap_mean(kept_is.mean(0), states.clusters),
        "compromise": compromise,
    }


EFFECTS = {
    "match_rise": "`residual_match` in the highest third of the layers minus that in the lowest",
    "match_early": "`residual_match` in the lowest third of the layers",
    "prob_rise": "`final_prob` in the highest third of the layers minus that in the lowest",
    "stands": "share of prefixes where top(o) = top(r), mean over layers",
    "compromise": "of the changes (top(o) ≠ top(r)) of all layers together, the share where top(o) is not top(y) either",
}


# Claims


def _judged(measured: Measurement, name: str, against: float, compared: str, what: str) -> Verdict:
    test = f"{compared}, interval over prefixes; smallest effect {percent(against)}"
    return judge_fact(measured.facts, name, against, test, what, without(measured.facts))


def without(facts: Facts) -> str:
    """Which layers are left out of a pooled verdict, as the end of a sentence."""
    out = [int(layer) for layer in re.findall(r"[0-9]{1,6}", str(facts.get("left_out") or ""))]  # a run may be forged
    if not out:
        return ""
    return f"; without layer{'s' if len(out) > 1 else ''} {layer_ranges(out)}, whose residual mostly says the current token"


def settles(measured: Measurement) -> Verdict:
    compared = "share of prefixes whose residual has the prediction, highest minus lowest third of the layers"
    return _judged(measured, "match_rise", SETTLED, compared, "the share grows by")


def early(measured: Measurement) -> Verdict:
    compared = "share of prefixes whose residual has the prediction, mean over the lowest third of the layers"
    return _judged(measured, "match_early", EARLY, compared, "lowest third of the layers")


def surer(measured: Measurement) -> Verdict:
    compared = "probability of the prediction under r, highest minus lowest third of the layers"
    return _judged(measured, "prob_rise", SURER, compared, "the probability grows by")


def stands(measured: Measurement) -> Verdict:
    compared = "share of prefixes where top(o) = top(r), mean over layers"
    return _judged(measured, "stands", MOST, compared, "the residual's token is kept")


def compromise(measured: Measurement) -> Verdict:
    compared = "compositions among all changes, pooled over layers"
    return _judged(measured, "compromise", MOST, compared, "changes to a third token")


def current(measured: Measurement) -> str:
    """What the residual of the lowest layers says, if that is the current token."""
    first = measured.rows[0]["current"] if measured.rows else None
    out = without(measured.facts).removeprefix("; without ")
    said = "" if first is None else f"In layer 0 it is the current token at {percent(first)} of the prefixes."
    return f"{said} Left out of the verdicts: {out}." if out else said


def one_token(shape: Shape) -> float:
    return 1 / max(1, shape.vocabulary)


def _share(name: str, means: str) -> dict[str, Column]:
    return {
        name: Column("DOUBLE", means),
        f"{name}_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        f"{name}_hi": Column("DOUBLE", "upper end"),
    }


ANALYSIS = Analysis(
    name="refinement",
    question="How do layers come to the prediction?",
    part=OUTPUT,
    order=9,
    method="r, y and o are read through the model's own final norm and head. The four shares sum to 1. A layer where top(r) is the "
    "current token at more than half of the prefixes is left out of what is pooled over layers.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        **_share("residual_match", "share of prefixes where top(r) is the model's prediction"),
        "match_dealt": Column("DOUBLE", "the same with the prediction at another prefix: the mean over all pairs"),
        **_share("current", "share of prefixes where top(r) is the current token, the last of the prefix"),
        **_share("final_prob", "the probability that r gives to the prediction: mean over the prefixes"),
        "final_prob_p25": Column("DOUBLE", "25th percentile over the prefixes"),
        "final_prob_median": Column("DOUBLE", "median"),
        "final_prob_p75": Column("DOUBLE", "75th percentile"),
        **_share("residual", "share of prefixes where top(o) = top(r) ≠ top(y)"),
        **_share("ffn", "share where top(o) = top(y) ≠ top(r)"),
        **_share("agreement", "share where all three are equal"),
        **_share("composition", "share where top(o) is neither top(r) nor top(y)"),
    },
    facts={
        **heldout.FACTS,
        "left_out": Column("VARCHAR", "layers left out of what is pooled, because top(r) mostly is the current token"),
        **{key: column for name, means in EFFECTS.items() for key, column in effect_columns(name, means).items()},
    },
    needs=("prefixes", "states"),
    rows=rows,
    note=heldout.note,
    figures=(
        Figure(
            name="residual_match",
            label="Figure 9",
            title="When the prediction is made",
            caption="Share of prefixes where the residual's top token, before the layer, is the model's final one, and where it is the "
            "current token. Band: 95 % interval.",
            mark=Lines(
                "share of prefixes",
                [
                    Series(
                        "the residual's top token is the model's",
                        "residual_match",
                        band=("residual_match_lo", "residual_match_hi"),
                    ),
                    Series("it is the current token", "current", band=("current_lo", "current_hi"), colour="orange"),
                ],
                [Baseline("baseline: the prediction at another prefix", "match_dealt")],
                low=0,
                high=1,
            ),
            claims=(
                Claim("The residual holds the final prediction more often in the upper layers", settles),
                Claim("The lowest layers already hold a good part of the predictions", early),
            ),
            paper=Paper(
                "Part of the predictions are fixed from the lowest layers on; the rest are settled fast in the upper layers.",
                "about a third in the lowest layers, growing fast from layer 10 of 16",
            ),
            columns=(
                *("layer", "n", "residual_match", "residual_match_lo", "residual_match_hi", "match_dealt"),
                *("current", "current_lo", "current_hi"),
            ),
            aside=current,
        ),
        Figure(
            name="final_probability",
            label="Figure 10",
            title="How sure the residual is of it",
            caption="Probability that the residual, before the layer, gives the model's final token: mean with its 95 % interval, and "
            "the median with the middle half of the prefixes.",
            mark=Lines(
                "probability of the final token",
                [
                    Series("mean over the prefixes", "final_prob", band=("final_prob_lo", "final_prob_hi")),
                    Series(
                        "median, with the middle 50 %",
                        "final_prob_median",
                        band=("final_prob_p25", "final_prob_p75"),
                        colour="sky",
                    ),
                ],
                [Baseline("baseline: one token in the vocabulary", one_token)],
                format=".1f",
                tooltip=".3f",
                low=0,
                high=1,
            ),
            claims=(Claim("The final token's probability is larger in the upper layers", surer),),
            paper=Paper(
                "The residual's probability for the final token grows along the same curve.", "same trend as Figure 9"
            ),
            columns=(
                *("layer", "n", "final_prob", "final_prob_lo", "final_prob_hi"),
                *("final_prob_p25", "final_prob_median", "final_prob_p75"),
            ),
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
            columns=("layer", "n", *(f"{name}{end}" for name in SHARES for end in ("", "_lo", "_hi"))),
        ),
    ),
)
