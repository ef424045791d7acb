"""What the keys of a layer wait for, counted: how many triggers carry a pattern, of which kind, and how well rules predict where
keys fire (Figure 2). It reads what `keyhole patterns` stored; no model is needed.

Triggers are those of the first side of the keys that were looked at, 25 per key at most. Every share of triggers is Σ triggers of a
kind / Σ triggers, and its interval is over keys: the triggers of one key are alike. Scores are means over keys, each key once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..store import patterns as stored
from ..store.annotations import KINDS, trigger_kinds
from ..store.patterns import METHODS, Key
from ..store.run import Run
from . import patterns
from .claims import effect_columns, effect_facts, judge, numbers, percent, points, read_effect, told, with_interval
from .patterns import number
from .record import (
    KEYS,
    Analysis,
    Baseline,
    Claim,
    Column,
    Effect,
    Fact,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Part,
    Row,
    Series,
    Stack,
    Verdict,
    present,
)
from .stats import Interval, bootstrap_sums, sample_mean, thirds, weakest

MOST, ONE, RISE, BEYOND = 0.5, 1.0, 0.05, 0.05
"""The smallest effects that would matter: the share of triggers that is covered, patterns per key, the difference between thirds of
the layers, and the AUPRC beyond that of rules found in dealt-out triggers."""
PARTS = ("lower", "middle", "upper")
LOOKUPS = {"last_token": "the last token", "bigram": "the last two tokens"}
"""What rules are compared with in every third of the layers, as `over_NAME_PART`."""
MEASURES = {
    "auprc": ("AUPRC", METHODS),
    "auprc_99": ("AUPRC for the 99th percentile", ("rules", "list", "last_token", "bigram", "permuted")),
    "f1": ("F1 at the method's own threshold", ("rules", "list", "permuted")),
    "pearson": ("correlation with the coefficient", ("rules", "list", "last_token", "bigram", "permuted")),
}
"""The scores that have columns, each with its name and the methods that it is shown of."""
SCORED_BY = {
    "rules": "the key's rules",
    "list": "the key's patterns alone, without evidence: the share of firing positions of the first one that matches",
    "last_token": "the mean coefficient given the last token",
    "bigram": "the mean coefficient given the last two tokens, with back-off to the last",
    "neighbour": "the nearest neighbours in the embedding of the last tokens",
    "other": "another key's rules",
    "permuted": "rules found for triggers that were dealt out over the layer's keys",
    "random": "rules found for the same key of the model with random weights",
}

Floats = npt.NDArray[np.float64]


@dataclass
class Counted:
    """What is counted of the keys, one entry per key; the arrays go together."""

    layers: npt.NDArray[np.int64]
    kinds: Floats
    """[keys, KINDS] triggers of each kind"""
    patterns: Floats
    """patterns of the key"""
    keys: list[Key]

    def scores(self, measure: str, method: str) -> Floats:
        """[keys] a score by one method; NaN if it was not measured, or not for the key's rules."""
        return np.array([_score(key, measure, method) for key in self.keys], np.float64)


def _score(key: Key, measure: str, method: str) -> float:
    own, found = (number(getattr(key.scores.get(each), measure, None)) for each in ("rules", method))
    return math.nan if own is None or found is None else found


def count(run: Run, found: stored.Patterns) -> Counted:
    """The first sides of the keys that were looked at and have a trigger."""
    looked = [(run.cells.split(place)[0], key) for place, key in found if key.side == 1 and key.read > 0]
    kinds = np.zeros((len(looked), len(KINDS)))
    for at, (_, key) in enumerate(looked):
        for kind in trigger_kinds(key.patterns, key.read):
            kinds[at, KINDS.index(kind)] += 1
    keys = [key for _, key in looked]
    layers = np.array([layer for layer, _ in looked], np.int64)
    return Counted(layers, kinds, np.array([len(key.patterns) for key in keys], np.float64), keys)


def rows(run: Run) -> Found:
    found = stored.of(run)
    if found is None:
        return Found([])
    counted = count(run, found)
    scores = {
        (measure, method): counted.scores(measure, method)
        for measure, (_, methods) in MEASURES.items()
        for method in methods
    }
    table = []
    for layer in range(run.layers):
        here = counted.layers == layer
        if here.any():
            table.append(_row(layer, counted, scores, here))
    return Found(table, patterns.about(found) | _effects(run, counted) | _from_scoring(found))


def _row(
    layer: int, counted: Counted, scores: dict[tuple[str, str], Floats], here: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    kinds = counted.kinds[here]
    shares = dict(zip(KINDS, kinds.sum(0) / kinds.sum(), strict=True))
    (covered,) = bootstrap_sums(
        np.array([kinds[:, 1:].sum(1), kinds.sum(1)]), lambda sums: sums[..., :1] / sums[..., 1:]
    )
    rules = scores["auprc", "rules"][here]
    mean = sample_mean(rules[np.isfinite(rules)])
    row: Row = {
        "layer": layer,
        "keys": int(here.sum()),
        "triggers": int(kinds.sum()),
        "patterns_per_key": float(counted.patterns[here].mean()),
        "covered": covered.value,
        "covered_lo": covered.lo,
        "covered_hi": covered.hi,
        **{kind: float(shares[kind]) for kind in ("shallow", "semantic", "both", "none")},
        "scored": int(np.isfinite(rules).sum()),
    }
    for (measure, method), each in scores.items():
        known = each[here][np.isfinite(each[here])]
        row[column_of(measure, method)] = float(known.mean()) if len(known) else None
        if (measure, method) == ("auprc", "rules"):
            row |= {"auprc_lo": mean.lo, "auprc_hi": mean.hi}
    return row


def column_of(measure: str, method: str) -> str:
    return measure if method == "rules" else f"{method}_{measure}"


# Effects, for claims


def _effects(run: Run, counted: Counted) -> dict[str, Fact]:
    total = counted.kinds.sum(1)
    low, high = (np.isin(counted.layers, range(run.layers)[part]) for part in thirds(run.layers))
    semantic, shallow = (counted.kinds[:, KINDS.index(kind)] for kind in ("semantic", "shallow"))
    columns = [total - counted.kinds[:, 0], total, counted.patterns, np.ones(len(total))]
    columns += [each * part for part in (low, high) for each in (semantic, shallow, total)]

    def numbers_of(sums: Floats) -> Floats:
        covered, triggers, made, keys, *ends = np.moveaxis(sums, -1, 0)
        (low_semantic, low_shallow, low_total), (high_semantic, high_shallow, high_total) = ends[:3], ends[3:]
        return np.stack(
            [
                covered / triggers,
                made / keys,
                high_semantic / high_total - low_semantic / low_total,
                low_shallow / low_total - high_shallow / high_total,
            ],
            -1,
        )

    names = ("covered_pooled", "patterns_pooled", "semantic_rise", "shallow_fall")
    found = bootstrap_sums(np.array(columns), numbers_of) if len(total) else [Interval(math.nan)] * len(names)
    return {
        key: fact for name, each in zip(names, found, strict=True) for key, fact in effect_facts(name, each).items()
    }


def _from_scoring(found: stored.Patterns) -> dict[str, Fact]:
    """The effects that the scoring stored, because their intervals are over documents and keys together."""
    stated = found.settings.get("facts")
    known = stated if isinstance(stated, dict) else {}
    return {name: number(known.get(name)) for name in FROM_SCORING}


# Claims


def covers_most(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "covered_pooled", MOST)
    return judge(
        effect,
        f"share of triggers that carry a pattern, over all layers, interval over keys; smallest effect {percent(MOST)}",
        f"triggers that carry a pattern: {with_interval(effect)}",
    )


def several_patterns(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "patterns_pooled", ONE)
    return judge(
        effect,
        f"mean number of patterns of a key, over all layers, interval over keys; it must be above {ONE:g}",
        told("patterns per key", effect, numbers),
    )


def semantic_above(measured: Measurement) -> Verdict:
    return _depth(measured, "semantic_rise", "semantic", "highest", "lowest")


def shallow_below(measured: Measurement) -> Verdict:
    return _depth(measured, "shallow_fall", "shallow", "lowest", "highest")


def _depth(measured: Measurement, fact: str, kind: str, more: str, less: str) -> Verdict:
    effect = read_effect(measured.facts, fact, RISE)
    return judge(
        effect,
        f"share of triggers that carry {kind} patterns and no others in the {more} third of the layers, minus that in the "
        f"{less}, interval over keys; smallest effect {points(RISE)}",
        told(f"more triggers that are only {kind} in the {more} third than in the {less}", effect),
    )


def over_last_token(measured: Measurement) -> Verdict:
    return _over(measured, "last_token")


def over_bigram(measured: Measurement) -> Verdict:
    return _over(measured, "bigram")


def _over(measured: Measurement, lookup: str) -> Verdict:
    test = (
        f"mean over keys of AUPRC of the rules minus AUPRC of the mean coefficient given {LOOKUPS[lookup]}, on the same held-out "
        "text, in the third of the layers where it is smallest; interval over documents and keys; it must be above 0"
    )
    parts = PARTS if measured.shape.layers > 2 else ("lower", "upper")
    found = {part: read_effect(measured.facts, f"over_{lookup}_{part}", 0.0) for part in parts}
    known = {part: effect for part, effect in found.items() if effect is not None}
    if len(known) < len(parts):
        return judge(None, test, "")
    smallest = weakest([Interval(each.value, each.lo, each.hi) for each in known.values()])
    if any(each.lo is None or each.hi is None for each in known.values()):
        smallest = Interval(smallest.value)
    said = ", ".join(told(f"{part} third", effect, numbers) for part, effect in known.items())
    return judge(Effect(smallest.value, smallest.lo, smallest.hi, 0.0), test, f"AUPRC beyond the lookup: {said}")


def over_permuted(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "over_permuted", BEYOND)
    means = []
    for name, column in (
        ("rules", "auprc"),
        ("dealt-out triggers", "permuted_auprc"),
        ("random weights", "random_auprc"),
    ):
        known = present(measured.rows, column, "scored")
        keys = sum(row["scored"] for row in known)
        means += [f"{name} {numbers(sum(row[column] * row['scored'] for row in known) / keys)}"] if keys else []
    return judge(
        effect,
        "mean over keys of AUPRC of the rules minus AUPRC of rules found for triggers that were dealt out over the layer's keys, "
        f"on the same held-out text; interval over documents and keys; smallest effect {BEYOND:g}",
        told("difference", effect, numbers) + (f"; means: {', '.join(means)}" if means else ""),
    )


# The record


def _score_columns() -> dict[str, Column]:
    columns = {}
    for measure, (title, methods) in MEASURES.items():
        for method in methods:
            said = f"{title} by {SCORED_BY[method]}: mean over keys"
            columns[column_of(measure, method)] = Column("DOUBLE", said)
            if (measure, method) == ("auprc", "rules"):
                columns["auprc_lo"] = Column("DOUBLE", "lower end of its 95 % interval, over keys")
                columns["auprc_hi"] = Column("DOUBLE", "upper end")
    return columns


SCORING = {
    key: column
    for lookup, title in LOOKUPS.items()
    for part in PARTS
    for key, column in effect_columns(
        f"over_{lookup}_{part}",
        f"mean AUPRC of the rules minus that of the mean coefficient given {title}, {part} third of the layers; interval over "
        "documents and keys",
    ).items()
} | effect_columns(
    "over_permuted",
    "mean AUPRC of the rules minus that of rules found for dealt-out triggers; interval over documents and keys",
)
FROM_SCORING = tuple(SCORING)
ANALYSIS = Analysis(
    name="pattern_summary",
    question="How many triggers carry a pattern, of which kind, and how well do rules predict where a key fires?",
    part=KEYS,
    order=2,
    method="Of the first side of the keys that were looked at and have a trigger. A trigger is `shallow` if it carries shallow patterns "
    "only, `semantic` if semantic ones only, `both` or `none`; the four shares sum to 1. Scores are on held-out text: a position counts "
    "as firing if the coefficient there is above the cell's 99.9th percentile in that text, so an AUPRC of about 0.001 is what "
    "knowing nothing gives. A key that fires too rarely there has no AUPRC. All methods learn on the same text, and their means are "
    "over the keys whose rules have the score too.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "keys": Column("BIGINT", "keys that were looked at and have a trigger"),
        "triggers": Column("BIGINT", "their triggers that were looked at, 25 per key at most"),
        "patterns_per_key": Column("DOUBLE", "mean number of patterns of a key; a key without patterns counts as 0"),
        "covered": Column("DOUBLE", "share of the triggers that carry a pattern: 1 − none"),
        "covered_lo": Column("DOUBLE", "lower end of its 95 % interval, over keys"),
        "covered_hi": Column("DOUBLE", "upper end"),
        "shallow": Column("DOUBLE", "share of the triggers that carry shallow patterns and no semantic one"),
        "semantic": Column("DOUBLE", "share of the triggers that carry semantic patterns and no shallow one"),
        "both": Column("DOUBLE", "share of the triggers that carry a shallow and a semantic pattern"),
        "none": Column("DOUBLE", "share of the triggers that carry no pattern"),
        "scored": Column("BIGINT", "keys whose rules have an AUPRC on held-out text"),
        **_score_columns(),
    },
    facts={
        **patterns.FACTS,
        **effect_columns("covered_pooled", "share of all triggers that carry a pattern; interval over keys"),
        **effect_columns("patterns_pooled", "mean number of patterns of a key; interval over keys"),
        **effect_columns("semantic_rise", "share `semantic` in the highest third of the layers minus the lowest"),
        **effect_columns("shallow_fall", "share `shallow` in the lowest third of the layers minus the highest"),
        **SCORING,
    },
    rows=rows,
    note=patterns.note,
    empty=patterns.EMPTY,
    figures=(
        Figure(
            name="patterns_by_layer",
            label="Figure 2",
            title="What the triggers of a key share",
            caption="Share of the triggers by the kinds of patterns they carry. Whisker: 95 % interval of the share that carries any, over "
            "keys. Here a pattern is a rule that was found by counting; in the paper it is what a reader wrote down.",
            mark=Stack(
                "share of triggers",
                (
                    Part("shallow", "shallow", "blue"),
                    Part("shallow and semantic", "both", "sky"),
                    Part("semantic", "semantic", "orange"),
                    Part("no pattern", "none", "faint"),
                ),
                whisker=3,
                size="keys",
                ends=("covered_lo", "covered_hi"),
            ),
            claims=(
                Claim("Most triggers carry a pattern of their key", covers_most),
                Claim("A key has more than one pattern", several_patterns),
                Claim("Triggers with shallow patterns only are in the lower layers", shallow_below),
                Claim("Triggers with semantic patterns only are in the upper layers", semantic_above),
            ),
            paper=Paper(
                "Experts who read the top 25 triggers of 160 keys found shallow patterns, mostly n-grams, in the lower layers (1 to 9) "
                "and semantic ones, topics, in the upper layers.",
                "65 to 80 % of the triggers covered; 3.6 patterns per key; shallow below, semantic above",
            ),
            columns=(
                *("layer", "keys", "triggers", "patterns_per_key", "covered", "covered_lo", "covered_hi"),
                *("shallow", "both", "semantic", "none"),
            ),
        ),
        Figure(
            name="patterns_scored",
            label="Figure 2b",
            title="How well rules predict where a key fires",
            caption="AUPRC on text that the rules were not found in: mean over keys. Band: 95 % interval over keys. Dashed: what else "
            "predicts the same, learned on the same text. Knowing nothing gives about 0.001.",
            mark=Lines(
                "AUPRC",
                [Series("rules", "auprc", band=("auprc_lo", "auprc_hi"))],
                [
                    Baseline("patterns without evidence", "list_auprc", "blue"),
                    Baseline("last-token lookup", "last_token_auprc", "orange"),
                    Baseline("bigram lookup", "bigram_auprc", "red"),
                    Baseline("nearest neighbours", "neighbour_auprc", "green"),
                    Baseline("another key's rules", "other_auprc", "sky"),
                    Baseline("rules of dealt-out triggers", "permuted_auprc", "quiet"),
                    Baseline("rules of the model with random weights", "random_auprc", "faint"),
                ],
                format=".1f",
                tooltip=".3f",
                low=0,
            ),
            claims=(
                Claim("Rules predict where a key fires better than the last token, in every third", over_last_token),
                Claim("Rules predict where a key fires better than the last two tokens, in every third", over_bigram),
                Claim("Rules predict more than rules that are found in dealt-out triggers", over_permuted),
            ),
            columns=("layer", "scored", "auprc", "auprc_lo", "auprc_hi", *(f"{each}_auprc" for each in METHODS[1:])),
        ),
    ),
)
