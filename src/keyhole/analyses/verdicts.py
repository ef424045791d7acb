"""Does a finding of the paper hold for this model? Plain functions from a table's rows to verdicts, each naming its test.

Three outcomes. `holds` and `does not hold` need numbers that say so at the 5 % level; everything else is `unclear`.
A trend over depth is Spearman's correlation with the layer, its p by permutation of the layers (all of them where
there are few, else 10,000 seeded draws). A rate is compared by its 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import stats as intervals

Row = dict[str, Any]
Rows = Sequence[Row]
Outcome = Literal["holds", "does not hold", "unclear"]

LEVEL = 0.05
DRAWS = 10_000
PAPER_SAMPLE = 160
"""Keys the paper's annotators read: ten in each of sixteen layers."""
DISTANT = 0.3
"""Cosine up to which two tokens count as distant, where the table does not say what chance gives."""


@dataclass(frozen=True)
class Verdict:
    """One finding, weighed."""

    claim: str
    outcome: Outcome
    test: str
    evidence: str


# Statistics


def wilson(rate: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a rate (Wilson's score); anything where it is of nothing."""
    lo, hi = intervals.wilson(rate * n, n) if n > 0 else (None, None)
    return (0.0, 1.0) if lo is None or hi is None else (lo, hi)


def binomial(successes: int, n: int, chance: float) -> float:
    """Two-sided exact p: all outcomes no more likely than this one."""
    likelihood = [math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(n + 1)]
    return min(1.0, sum(p for p in likelihood if p <= likelihood[successes] * (1 + 1e-9)))


def ranks(values: Iterable[float]) -> npt.NDArray[np.float64]:
    """Ranks from 0, ties sharing their mean."""
    array = np.asarray(list(values), np.float64)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array], np.float64)


def spearman(x: Iterable[float], y: Iterable[float]) -> tuple[float, float]:
    """Spearman's correlation and its two-sided p by permutation; (nan, 1) where one side does not vary."""
    a, b = ranks(x), ranks(y)
    if len(a) < 3:
        return math.nan, 1.0
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    if scale == 0:
        return math.nan, 1.0
    rho = float(a @ b) / scale
    if len(a) <= 7:
        shuffled = np.array(list(permutations(b)))
        extra = 0
    else:
        rng = np.random.default_rng(0)
        shuffled = rng.permuted(np.broadcast_to(b, (DRAWS, len(b))), axis=1)
        extra = 1
    as_far = int((np.abs(shuffled @ a) / scale >= abs(rho) - 1e-9).sum())
    return rho, (as_far + extra) / (len(shuffled) + extra)


# Numbers as text


def percent(value: float) -> str:
    """A share for reading: 0.04 %, 3.5 %, 68 %."""
    value = 100 * value
    digits = f"{value:.0f}" if value == 0 or abs(value) >= 10 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"
    return digits.replace("-", "−") + " %"


def interval(lo: float, hi: float) -> str:
    low, high = percent(lo).removesuffix(" %"), percent(hi)
    return f"{low} to {high}"


def minus(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


# Three kinds of test


def present(rows: Rows, *columns: str) -> list[Row]:
    """Rows that have a number in every column asked for."""
    return [r for r in rows if all(r[c] is not None and not math.isnan(r[c]) for c in columns)]


def trend(
    rows: Rows,
    column: str,
    claim: str,
    *,
    rising: bool,
    against: str = "layer",
    show: Callable[[float], str] = percent,
    among: str = "the layers",
) -> Verdict:
    """Whether a column rises (or falls) with the layer."""
    rows = present(rows, column)
    rho, p = spearman([r[against] for r in rows], [r[column] for r in rows])
    test = f"Spearman correlation with the {against}, p by permutation"
    if math.isnan(rho):
        why = "fewer than three layers" if len(rows) < 3 else "the same in every layer"
        return Verdict(claim, "unclear", test, f"no trend can be told: {why}")
    third = max(1, len(rows) // 3)
    first, last = (float(np.mean([r[column] for r in part])) for part in (rows[:third], rows[-third:]))
    said = f"{show(first)} over the lowest third of {among}, {show(last)} over the highest; ρ = {minus(rho, 2)}, {p_value(p)}"
    if p >= LEVEL:
        return Verdict(claim, "unclear", test, said)
    return Verdict(claim, "holds" if (rho > 0) == rising else "does not hold", test, said)


def above(
    rate: float, lo: float, hi: float, bound: float, claim: str, what: str, against: str, said: str = ""
) -> Verdict:
    """Whether a rate lies above a bound, by its interval."""
    outcome: Outcome = "holds" if lo > bound else "does not hold" if hi < bound else "unclear"
    return Verdict(
        claim, outcome, f"95 % interval against {against}", f"{what}: {percent(rate)} ({interval(lo, hi)}){said}"
    )


def in_every_layer(spans: Sequence[tuple[int, float, float]], bound: float, claim: str, what: str) -> Verdict:
    """Whether an interval lies above a bound in every layer. `spans` holds (layer, lo, hi)."""
    under = [layer for layer, _, hi in spans if hi < bound]
    over = [layer for layer, lo, _ in spans if lo > bound]
    outcome: Outcome = "holds" if spans and len(over) == len(spans) else "does not hold" if under else "unclear"
    said = f"{what} in {len(over)} of {len(spans)} layers"
    if under:
        said += f"; clearly less in {len(under)} ({span(under)})"
    return Verdict(claim, outcome, f"95 % interval of every layer against {percent(bound)}", said)


def in_most_layers(spans: Sequence[tuple[int, float, float]], bound: float, claim: str, what: str) -> Verdict:
    """Whether an interval lies above a bound in clearly more layers than below. `spans` holds (layer, lo, hi)."""
    under = [layer for layer, _, hi in spans if hi < bound]
    over = [layer for layer, lo, _ in spans if lo > bound]
    p = binomial(len(over), len(over) + len(under), 0.5)
    outcome: Outcome = "unclear" if p >= LEVEL else "holds" if len(over) > len(under) else "does not hold"
    said = f"{what} in {len(over)} of {len(spans)} layers, clearly less in {len(under)}"
    said += f" ({span(under)}); {p_value(p)}" if under else f"; {p_value(p)}"
    return Verdict(claim, outcome, f"sign test over layers whose 95 % interval excludes {percent(bound)}", said)


def span(layers: Sequence[int]) -> str:
    """Layers named in few words: runs of neighbours, at most three."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    named = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(named[:3]) + (", …" if len(named) > 3 else "")


# The paper's findings, table by table


def main_lens(rows: Rows) -> str | None:
    """The lens the verdicts read: the paper's, or the first there is."""
    lenses = [str(r["lens"]) for r in rows]
    return "raw" if "raw" in lenses else lenses[0] if lenses else None


def mutation(rows: Rows) -> list[Verdict]:
    layers: dict[int, dict[str, float]] = {}
    for r in present(rows, "mean_change"):
        layers.setdefault(int(r["layer"]), {})[str(r["dropped"])] = float(r["mean_change"])
    whole = {layer: changes for layer, changes in layers.items() if len(changes) == 3}
    worst = [min(changes, key=lambda dropped: changes[dropped]) for changes in whole.values()]
    claim = "Dropping the last token costs a key most"
    test = "sign test over layers: is the last token the costliest of three more often than one time in three"
    count, n = worst.count("last"), len(worst)
    p = binomial(count, n, 1 / 3) if n else 1.0
    said = f"the last token is the costliest in {count} of {n} layers, {p_value(p)}"
    others = max((worst.count(kind) for kind in ("first", "random")), default=0)
    outcome: Outcome = "unclear"
    if p < LEVEL and count > n / 3:
        outcome = "holds"
    elif n and others > count and binomial(others, n, 1 / 3) < LEVEL:
        outcome = "does not hold"
    last = [r for r in rows if r["dropped"] == "last"]
    return [
        Verdict(claim, outcome, test, said),
        trend(last, "mean_change", "Dropping the last token costs less in upper layers", rising=True),
    ]


def agreement(rows: Rows) -> list[Verdict]:
    lens = main_lens(rows)
    rows = [r for r in present(rows, "rate", "n") if r["lens"] == lens and r["target"] == "next" and r["n"] > 0]
    verdicts = [trend(rows, "rate", "Values agree with their keys more in upper layers", rising=True)]
    upper = rows[-max(1, len(rows) // 3) :] if rows else []
    n = sum(r["n"] for r in upper)
    claim = "Agreement in upper layers is above chance"
    if not n:
        return [*verdicts, Verdict(claim, "unclear", "95 % interval against the baselines", "no layer has a rate")]
    rate = sum(r["rate"] * r["n"] for r in upper) / n
    known = {
        name: sum(r[column] * r["n"] for r in upper) / n
        for column, name in (("permuted", "values dealt out anew"), ("unigram", "a token drawn by frequency"))
        if len(present(upper, column)) == len(upper)
    }
    name = max(known, key=lambda k: known[k]) if known else "zero"
    bound = known.get(name, 0.0)
    said = f"; {name}: {percent(bound)}" if known else ""
    spread = wilson(rate, n)
    verdicts.append(above(rate, *spread, bound, claim, "highest third of the layers", "the larger baseline", said))
    return verdicts


def rank(rows: Rows) -> list[Verdict]:
    lens = main_lens(rows)
    rows = [r for r in rows if r["lens"] == lens]
    claim = "The trigger's next token ranks higher in the value's distribution in upper layers"
    return [trend(rows, "median", claim, rising=False, show=lambda value: f"rank {value:,.0f}")]


def confidence(rows: Rows) -> list[Verdict]:
    claim = "The surer a value, the more often it agrees with its key"
    test = "Cochran–Armitage test for a trend over the bins of max(p)"
    rows = [r for r in present(rows, "rate", "n") if r["n"] > 0]
    n = np.array([r["n"] for r in rows], np.float64)
    rate = np.array([r["rate"] for r in rows], np.float64)
    score = np.arange(len(rows), dtype=np.float64)
    total = n.sum()
    pooled = float((n * rate).sum() / total) if total else 0.0
    spread = float((n * score**2).sum() - (n * score).sum() ** 2 / total) if total else 0.0
    if len(rows) < 2 or pooled in (0.0, 1.0) or spread <= 0:
        return [Verdict(claim, "unclear", test, "no trend can be told: the rate is the same in every bin")]
    z = float((n * score * (rate - pooled)).sum() / math.sqrt(pooled * (1 - pooled) * spread))
    p = math.erfc(abs(z) / math.sqrt(2))
    said = f"{percent(rate[0])} in the lowest bin, {percent(rate[-1])} in the highest; z = {minus(z, 1)}, {p_value(p)}"
    return [Verdict(claim, "unclear" if p >= LEVEL else "holds" if z > 0 else "does not hold", test, said)]


def confident(rows: Rows, layers: int) -> list[Verdict]:
    """The paper's 97 of 100 sit in the upper six of sixteen layers: here, in the same share of the layers."""
    first = math.floor(layers * 10 / 16)
    count, n = sum(r["layer"] >= first for r in rows), len(rows)
    chance = (layers - first) / layers
    p = binomial(count, n, chance) if n else 1.0
    outcome: Outcome = "unclear" if p >= LEVEL else "holds" if count > n * chance else "does not hold"
    said = f"{count} of {n} in layers {first}–{layers - 1}, which hold {percent(chance)} of all values; {p_value(p)}"
    return [Verdict("The surest values sit in upper layers", outcome, "exact binomial test", said)]


def active(rows: Rows) -> list[Verdict]:
    """Figure 7: how many coefficients are above zero."""
    rows = present(rows, "active_fraction")
    inside = [r for r in rows if 0.1 <= r["active_fraction"] <= 0.5]
    shares = [r["active_fraction"] for r in rows]
    outcome: Outcome = "unclear"
    if rows and len(inside) == len(rows):
        outcome = "holds"
    elif rows and len(inside) < len(rows) / 2:
        outcome = "does not hold"
    said = (
        f"{percent(min(shares))} to {percent(max(shares))}; {len(inside)} of {len(rows)} layers" if rows else "no layer"
    )
    lower = rows[: math.ceil(len(rows) * 10 / 16)]
    fall = trend(
        lower,
        "active_fraction",
        "Fewer cells are active from layer to layer, up to 10/16 of the depth",
        rising=False,
        among="these layers",
    )
    return [
        Verdict(
            "A tenth to a half of a layer's cells are active", outcome, "count of layers between 10 and 50 %", said
        ),
        fall,
    ]


def activity(rows: Rows, cells: int) -> list[Verdict]:
    """Over the whole corpus: would a sample of keys as large as the paper's meet one that never fires?"""
    dead, total = sum(r["dead"] or 0 for r in rows), cells
    lucky = (1 - dead / total) ** PAPER_SAMPLE if total else 0.5
    outcome: Outcome = "holds" if lucky >= 1 - LEVEL else "does not hold" if lucky <= LEVEL else "unclear"
    likely = "under 0.01" if lucky < 0.01 else f"{lucky:.2f}"
    said = f"{dead:,} of {total:,} keys never fire; {PAPER_SAMPLE} random keys would all fire with probability {likely}"
    test = f"probability that {PAPER_SAMPLE} random keys, the paper's sample, all have a trigger"
    return [Verdict("Every key fires somewhere in the corpus", outcome, test, said)]


def composition(rows: Rows) -> list[Verdict]:
    rows = present(rows, "zero_agreement", "lo", "hi")
    claim = "In most predictions of every layer, no active cell says what the layer says"
    return [in_every_layer([(r["layer"], r["lo"], r["hi"]) for r in rows], 0.5, claim, "clearly more than half")]


def residual_match(rows: Rows) -> list[Verdict]:
    rows = present(rows, "residual_match", "n")
    lower = rows[: max(1, len(rows) // 3)]
    claim = "The lowest layers already hold a good part of the predictions"
    verdicts = [
        trend(rows, "residual_match", "The residual holds the final prediction more often, layer by layer", rising=True)
    ]
    if not lower:
        return [*verdicts, Verdict(claim, "unclear", "95 % interval against a quarter", "no layer")]
    rate = float(np.mean([r["residual_match"] for r in lower]))
    n = min(r["n"] for r in lower)  # the same prefixes in every layer: more layers are no more samples
    return [*verdicts, above(rate, *wilson(rate, n), 0.25, claim, "lowest third of the layers", "a quarter")]


def final_probability(rows: Rows) -> list[Verdict]:
    return [trend(rows, "final_prob_median", "The final token's probability grows layer by layer", rising=True)]


def shares(rows: Rows) -> list[Verdict]:
    """Figure 11: who decides a layer's prediction."""
    rows = present(rows, "residual", "ffn", "agreement", "composition", "n")
    spans = [(r["layer"], *wilson(min(1.0, r["residual"] + r["agreement"]), r["n"])) for r in rows]
    kept = in_most_layers(spans, 0.5, "The residual's prediction usually stands", "clearly more than half")
    claim = "Where a layer changes the prediction, the result is mostly a compromise, not the layer's own token"
    changed = float(sum((r["ffn"] + r["composition"]) * r["n"] for r in rows))
    if changed == 0:
        return [kept, Verdict(claim, "unclear", "95 % interval against a half", "no prediction is ever changed")]
    rate = float(sum(r["composition"] * r["n"] for r in rows)) / changed
    n = changed / len(rows)  # again the same prefixes in every layer
    return [kept, above(rate, *wilson(rate, n), 0.5, claim, "compromises among changes", "a half")]


def cases(rows: Rows, distant: float = DISTANT) -> list[Verdict]:
    """`distant`: the cosine that random pairs of predictions hardly exceed."""
    rows = present(rows, "similarity")
    claim = "Compromises of the last layer mostly move to a distant token"
    if not rows:
        return [Verdict(claim, "unclear", "95 % interval against a half", "no case")]
    count = sum(r["similarity"] <= distant for r in rows)
    rate = count / len(rows)
    what = f"{count} of {len(rows)} cases with a cosine up to {distant:.3g}"
    return [above(rate, *wilson(rate, len(rows)), 0.5, claim, what, "a half")]
