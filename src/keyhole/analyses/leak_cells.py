"""In which cells is what the model says by heart? What `keyhole leak` stored of rankings of cells, as a table."""

from __future__ import annotations

import math

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
from .stats import Interval, bootstrap_mean, median_interval, rate_with_interval

SMALL = 0.01
"""A small set of cells: this share of all."""
MOST, SPARED, THIRD = 0.5, 0.9, math.log2(3)
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
        for count, exact in zip(each.cells, each.exact, strict=True):
            here = count == each.n90
            table.append(
                {
                    "rank": each.rank,
                    "method": each.method,
                    "cells": count,
                    "share": count / len(run.cells),
                    "exact_before": each.before,
                    "exact_after": exact,
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


def _effects(found: stored.Leaks, cells: int) -> dict[str, float | int | str | None]:
    learned = {each.rank: each for each in found.tested if each.method == "learned"}
    activity = {each.rank: each for each in found.tested if each.method == "activity"}
    small = sum(each.n90 is not None and each.n90 <= SMALL * cells for each in learned.values())
    kept = [1 - each.others_forgotten for each in learned.values() if each.others_forgotten is not None]
    fewer = []
    for rank, each in learned.items():
        if each.n90 is not None and rank in activity:
            # what activity does not reach within the grid needs more cells than its last number
            needed = activity[rank].n90 or max(activity[rank].cells)
            fewer.append(math.log2(needed / each.n90))
    known: dict[str, Interval] = {
        "small": rate_with_interval(small, len(learned)),
        "kept": bootstrap_mean(np.array(kept)),
        "fewer": median_interval(np.array(fewer)),
    }
    return {key: fact for name, each in known.items() for key, fact in effect_facts(name, each).items()}


def note(facts: Facts) -> str:
    return f"{facts['localised'] or 0} leaks, each ranking of {facts['cells'] or 0:,} cells tested by switching off its first ones"


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
        f"mean share of the other leaks of which more than a tenth is left, at the learned ranking's n90; interval over leaks; it must be "
        f"above {percent(SPARED)}",
        f"other leaks that stay: {with_interval(effect)}",
    )


def fewer_than_active(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "fewer", THIRD)
    return judge(
        effect,
        "median over leaks of log2(cells that the activity ranking needs ÷ cells that the learned one needs) for 90 % forgetting; where "
        f"activity does not reach it, the largest number tried; it must be above log2(3) = {THIRD:.2f}",
        told("log2 of the ratio", effect, numbers),
    )


def means(rows: Rows) -> Rows:
    """The mean over leaks, per method and number of cells."""
    every: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["exact_after"] is not None:
            every.setdefault((str(row["method"]), int(row["cells"])), []).append(float(row["exact_after"]))
    return [
        {"method": method, "cells": cells, "exact_after": sum(found) / len(found)}
        for (method, cells), found in sorted(every.items(), key=lambda each: each[0][1])
    ]


AT_N90 = "at n90; none elsewhere"
ANALYSIS = Analysis(
    name="leak_cells",
    question="In which cells is what the model says by heart?",
    part=OUTPUT,
    order=141,
    method="Cells are ranked by several methods (docs/uses.md) and the first n are switched off at every position. `random` is the null, the "
    "mean of three orders. Exact: share of the continuation's tokens that are still the first choice, given the true text before "
    "each. n90 is the smallest number of the grid at which at most a tenth of it is left; if none is marked, the text is in no small "
    "set of cells by that ranking (at most 5 % of all).",
    columns={
        "rank": Column("BIGINT", "the leak's rank"),
        "method": Column("VARCHAR", "the ranking"),
        "cells": Column("BIGINT", "how many of its first cells are switched off"),
        "share": Column("DOUBLE", "the same as a share of all cells"),
        "exact_before": Column(
            "DOUBLE", "share of the continuation's tokens that are the first choice, with all cells"
        ),
        "exact_after": Column("DOUBLE", "the same with these cells off"),
        "n90": Column("INTEGER", "1 if this is the smallest number at which at most a tenth is left, else 0"),
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
    },
    rows=rows,
    note=note,
    empty=EMPTY,
    figures=(
        Figure(
            name="leak_cells",
            title="How many cells hold what the model says by heart",
            caption="Share of the continuation that is still the first choice, if a ranking's first cells are switched off: mean over the "
            "localised leaks. Below the dashed line a tenth is left.",
            label="Figure S20",
            mark=Curves(
                x="cells",
                x_title="cells switched off",
                y_title="what is left of the text",
                series=[
                    Series(title, "exact_after", colour=colour, where={"method": name}) for name, title, colour in SHOWN
                ],
                where=means,
                x_format="d",
                log_x=True,
                level=("a tenth", 0.1),
                high=1.0,
            ),
            claims=(
                Claim("What the model says by heart is in a small set of its cells", is_small),
                Claim("Without the cells of one text, the model still says the others", others_stay),
                Claim(
                    "A learned mask finds these cells with at most a third of what activity needs", fewer_than_active
                ),
            ),
            paper=Paper(
                "The paper suggests that training data sits in the cells and could leak; it does not measure it.",
                "none",
            ),
            columns=("rank", "method", "cells", "exact_after", "n90", "others_after", "perplexity_change"),
        ),
    ),
)
