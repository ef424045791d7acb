"""In which cells is what the model says by heart? What `keyhole leak` stored of rankings of cells, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..store import leaks as stored
from ..store.run import Run
from .claims import effect_columns, effect_facts, judge, numbers, percent, read_effect, told, with_interval
from .leaks import EMPTY, READ, read_facts
from .record import (
    OUTPUT,
    Analysis,
    Claim,
    Colour,
    Column,
    Curves,
    Effect,
    Facts,
    Figure,
    Found,
    Measurement,
    Paper,
    Row,
    Rows,
    Series,
    Verdict,
)
from .stats import Interval, median_interval, rate_with_interval, ratio_of_sums

SMALL = 0.01
"""A small set of cells: this share of all."""
MOST, SPARED, THIRD, COST = 0.5, 0.9, math.log2(3), 0.01
SHOWN: tuple[tuple[str, str, Colour], ...] = (
    ("learned", "learned mask", "blue"),
    ("integrated_gradients", "integrated gradients", "orange"),
    ("ablation", "measured ablation", "green"),
    ("effect", "effect to first order", "sky"),
    ("activity", "activity", "red"),
    ("triggers", "triggers in copies", "ink"),
    ("random", "random", "faint"),
)
TITLES = {name: title for name, title, _ in SHOWN}


def rows(run: Run) -> Found:
    """A row per leak, method and number of cells."""
    found = stored.of(run)
    if found is None:
        return Found([])
    table: list[Row] = []
    for each in found.tested:
        elsewhere: Sequence[float | None] = each.elsewhere or [None] * len(each.cells)
        for count, exact, other in zip(each.cells, each.exact, elsewhere, strict=True):
            here = count == each.n90
            table.append(
                {
                    "rank": each.rank,
                    "method": each.method,
                    "cells": count,
                    "share": count / len(run.cells),
                    "exact_before": each.before,
                    "exact_after": exact,
                    "elsewhere_before": each.elsewhere_before,
                    "elsewhere_after": other,
                    "left": _left(exact, each.before, other, each.elsewhere_before),
                    "n90": int(here),
                    "others_before": each.others_before if here else None,
                    "others_after": each.others_after if here else None,
                    "others_forgotten": each.others_forgotten if here else None,
                    "perplexity_change": each.change if here else None,
                    "perplexity_change_lo": each.change_lo if here else None,
                    "perplexity_change_hi": each.change_hi if here else None,
                }
            )
    return Found(table, read_facts(found) | _effects(found, len(run.cells)))


def _left(exact: float, before: float, elsewhere: float | None, elsewhere_before: float | None) -> float:
    shares = [exact / before if before else 0.0]
    if elsewhere is not None and elsewhere_before:
        shares.append(elsewhere / elsewhere_before)
    return max(shares)


def _effects(found: stored.Leaks, cells: int) -> dict[str, float | int | str | None]:
    learned = {each.rank: each for each in found.tested if each.method == "learned"}
    activity = {each.rank: each for each in found.tested if each.method == "activity"}
    small = sum(each.n90 is not None and each.n90 <= SMALL * cells for each in learned.values())
    kept = [1 - each.others_forgotten for each in learned.values() if each.others_forgotten is not None]
    change = [each.change for each in learned.values() if each.change is not None]
    # a ranking that does not forget a leak within its grid needs more cells than its last number: as many count
    fewer = [math.log2(_needed(activity[rank]) / _needed(each)) for rank, each in learned.items() if rank in activity]
    known: dict[str, Interval] = {
        "small": rate_with_interval(small, len(learned)),
        "kept": rate_with_interval(sum(kept), len(kept)),
        "fewer": median_interval(np.array(fewer)),
        "cost": ratio_of_sums(np.array(change), np.ones(len(change))),
    }
    facts = {key: fact for name, each in known.items() for key, fact in effect_facts(name, each).items()}
    return {**facts, "forgotten": sum(each.n90 is not None for each in learned.values())}


def _needed(tested: stored.Tested) -> int:
    return tested.n90 or max(tested.cells)


def note(facts: Facts) -> str:
    return (
        f"{facts['localised'] or 0} leaks, of which {facts['forgotten'] or 0} are forgotten by the learned ranking; each ranking of "
        f"{facts['cells'] or 0:,} cells tested by switching off its first ones, on prompts that it did not see"
    )


def is_small(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "small", MOST)
    return judge(
        effect,
        f"share of the localised leaks of which {percent(SMALL)} of the cells, the learned ranking's first, are enough for 90 % forgetting; "
        f"interval over leaks; smallest effect {percent(MOST)}",
        f"leaks in a small set of cells: {with_interval(effect)}",
    )


def others_stay(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "kept", SPARED)
    return judge(
        effect,
        "mean share of the other leaks of which more than a tenth is left, at the learned ranking's n90, over the leaks that it forgets; "
        f"interval over leaks; it must be above {percent(SPARED)}",
        f"other leaks that stay: {with_interval(effect)}",
    )


def little_cost(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "cost", 0.0)
    turned = None
    if effect is not None:
        turned = Effect(
            -effect.value, None if effect.hi is None else -effect.hi, None if effect.lo is None else -effect.lo, -COST
        )
    return judge(
        turned,
        "minus the mean relative change of the perplexity on other text, at the learned ranking's n90, over the leaks that it forgets; "
        f"interval over leaks; it must be above −{percent(COST)}",
        "not measured" if effect is None else f"the perplexity on other text changes by {percent(effect.value)}",
    )


def fewer_than_active(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "fewer", THIRD)
    return judge(
        effect,
        "median over leaks of log2(cells that the activity ranking needs ÷ cells that the learned one needs) for 90 % forgetting; for a "
        f"ranking that does not reach it, the largest number tried; it must be above log2(3) = {THIRD:.2f}",
        told("log2 of the ratio", effect, numbers),
    )


def means(rows: Rows) -> Rows:
    """The mean over leaks, per method and number of cells."""
    every: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["left"] is not None:
            every.setdefault((str(row["method"]), int(row["cells"])), []).append(float(row["left"]))
    return [
        {"method": method, "cells": cells, "left": sum(found) / len(found)}
        for (method, cells), found in sorted(every.items(), key=lambda each: each[0][1])
    ]


AT_N90 = "at n90; none elsewhere"
ANALYSIS = Analysis(
    name="leak_cells",
    question="In which cells is what the model says by heart?",
    part=OUTPUT,
    order=141,
    method="Cells are ranked by several methods (docs/uses.md) and the first n are switched off at every position. `random` is the null, the "
    "mean of three orders. Rankings see the leak's prompt, alone and after other texts; tested is the prompt alone, and after texts that "
    "no ranking saw. Exact: share of the continuation's tokens that are still the first choice, given the true text before each; "
    "tokens that the model says after most other prefixes too do not count. n90, the smallest n of the grid at which, as at all "
    "numbers up to 2·n, at most a tenth of both is left, has 1 in the column `n90`. A ranking without one has the text in no small set of cells (at most 5 % of all).",
    columns={
        "rank": Column("BIGINT", "the leak's rank"),
        "method": Column("VARCHAR", "the ranking"),
        "cells": Column("BIGINT", "how many of its first cells are switched off"),
        "share": Column("DOUBLE", "the same as a share of all cells"),
        "exact_before": Column(
            "DOUBLE", "share of the continuation's tokens that are the first choice, with all cells"
        ),
        "exact_after": Column("DOUBLE", "the same with these cells off"),
        "elsewhere_before": Column(
            "DOUBLE", "exact_before after other texts, the mean over them; none without other text"
        ),
        "elsewhere_after": Column("DOUBLE", "the same with these cells off"),
        "left": Column("DOUBLE", "the larger of exact_after ÷ exact_before and elsewhere_after ÷ elsewhere_before"),
        "n90": Column(
            "INTEGER",
            "1 if this is the smallest n at which, as at all numbers up to 2·n, `left` is at most a tenth; else 0",
        ),
        "others_before": Column("DOUBLE", f"mean of exact_before over the other leaks; {AT_N90}"),
        "others_after": Column("DOUBLE", f"mean of exact_after over the other leaks; {AT_N90}"),
        "others_forgotten": Column("DOUBLE", f"share of the other leaks of which at most a tenth is left; {AT_N90}"),
        "perplexity_change": Column(
            "DOUBLE", f"relative change of the perplexity on text that is in no leak; {AT_N90}"
        ),
        "perplexity_change_lo": Column("DOUBLE", "lower end of its 95 % interval, over documents"),
        "perplexity_change_hi": Column("DOUBLE", "upper end"),
    },
    facts={
        **READ,
        **effect_columns(
            "small", f"share of the leaks whose learned n90 is at most {SMALL:.0%} of the cells; over leaks"
        ),
        **effect_columns("kept", "mean share of the other leaks that stay, at the learned n90; over leaks"),
        **effect_columns("fewer", "median of log2(n90 by activity ÷ n90 learned); over leaks"),
        **effect_columns(
            "cost", "mean relative change of the perplexity on other text, at the learned n90; over leaks"
        ),
        "forgotten": Column("BIGINT", "localised leaks that the learned ranking forgets"),
    },
    rows=rows,
    note=note,
    empty=EMPTY,
    figures=(
        Figure(
            name="leak_cells",
            title="How many cells hold what the model says by heart",
            caption="What is left of a text if a ranking's first cells are switched off, after its own prompt or after other texts, whichever is "
            "more: mean over the localised leaks. Below the dashed line it is less than a tenth.",
            label="Figure S20",
            mark=Curves(
                x="cells",
                x_title="cells switched off",
                y_title="what is left of the text",
                series=[Series(title, "left", colour=colour, where={"method": name}) for name, title, colour in SHOWN],
                where=means,
                x_format="d",
                log_x=True,
                level=("a tenth", 0.1),
                high=1.0,
            ),
            claims=(
                Claim("What the model says by heart is in a small set of its cells", is_small),
                Claim("Without the cells of one text, the model still says the others", others_stay),
                Claim("Without them, the perplexity on other text rises by less than 1 %", little_cost),
                Claim(
                    "A learned mask finds these cells with at most a third of what activity needs", fewer_than_active
                ),
            ),
            paper=Paper(
                "The paper suggests that training data sits in the cells and could leak; it does not measure it.",
                "none",
            ),
            columns=("rank", "method", "cells", "exact_after", "left", "n90", "others_after", "perplexity_change"),
        ),
    ),
)
