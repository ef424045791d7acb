"""Every verdict with every outcome, each on rows that are made for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from synthetic import facts_like_the_paper, like_the_paper, section5_facts

from keyhole.analyses import claims, registry, stats
from keyhole.analyses.record import Figure, Measurement, Shape, Verdict
from keyhole.analyses.stats import rate_interval as wilson
from keyhole.cells import Cells

LAYERS = 12
SECTION5 = {"active": "budget", "settled": "budget", "zero_agreement": "composition", "residual_match": "refinement"}
SECTION5 |= {
    "final_probability": "refinement",
    "shares": "refinement",
    "cases": "cases",
    "part": "part",
    "veto": "veto",
}
SECTION5 |= {"training": "training"}
"""Figures that are measured on held-out prefixes, and their tables."""
HOLDS, NOT, UNCLEAR = "holds", "does not hold", "unclear"
Row = dict[str, Any]


def noise(seed: int = 0) -> list[float]:
    """Numbers without a trend over twelve layers."""
    return [0.3, 0.7, 0.5, 0.2, 0.9, 0.4, 0.6, 0.8, 0.1, 0.5, 0.7, 0.3]


RISING = [i / LAYERS for i in range(LAYERS)]
FALLING = RISING[::-1]


def rows(**columns: Any) -> list[Row]:
    return [
        {"layer": i} | {name: value[i] if isinstance(value, list) else value for name, value in columns.items()}
        for i in range(LAYERS)
    ]


def figure(name: str) -> Figure:
    (found,) = [each for _, each in registry.report_order() if each.name == name]
    return found


def judged(name: str, rows: list[Row], *, layers: int = LAYERS, cells: int = 100, **facts: Any) -> list[Verdict]:
    """The verdicts on the claims of a figure."""
    measurement = Measurement(rows, facts, Shape(Cells.of_widths([cells] * layers), 50_000, signed=False))
    return [claim.weigh(measurement) for claim in figure(name).claims]


def no_cells(facts: dict[str, Any]) -> dict[str, Any]:
    """Without the fact that has the name of an option of `judged`."""
    return {name: value for name, value in facts.items() if name != "cells"}


def outcome(found: list[Verdict], at: int = 0) -> str:
    return found[at].outcome


# The statistics


def test_wilson_interval() -> None:
    lo, hi = wilson(0.5, 100)
    assert (round(lo, 4), round(hi, 4)) == (0.4038, 0.5962)
    assert wilson(0.0, 10)[0] == 0.0
    assert wilson(1.0, 10)[1] == 1.0
    assert wilson(0.3, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0 %"), (0.0004, "0.04 %"), (0.035, "3.5 %"), (0.68, "68 %"), (1.0, "100 %"), (-0.5, "−50 %")],
)
def test_percent(value: float, said: str) -> None:
    assert claims.percent(value) == said


def test_layers_are_named_in_few_words() -> None:
    assert claims.layer_ranges([3, 4, 5, 9]) == "3–5, 9"
    assert claims.layer_ranges([0, 2, 4, 6]) == "0, 2, 4, …"


# The findings


def effect(name: str, value: float, half: float) -> dict[str, float]:
    return {name: value, f"{name}_lo": value - half, f"{name}_hi": value + half}


def over(first: float, random: float, middle: float, half: float) -> dict[str, float]:
    return effect("over_first", first, half) | effect("over_random", random, half) | effect("over_middle", middle, half)


@pytest.mark.parametrize(
    ("facts", "most", "less"),
    [
        (over(0.4, 0.3, 0.3, 0.05) | effect("less_above", 0.2, 0.05), HOLDS, HOLDS),
        (over(0.4, 0.3, -0.1, 0.05) | effect("less_above", -0.1, 0.05), NOT, NOT),
        (over(0.4, 0.3, 0.06, 0.02) | effect("less_above", 0.06, 0.02), UNCLEAR, UNCLEAR),
        (over(0.04, 0.04, 0.04, 0.005) | effect("less_above", 0.04, 0.005), NOT, NOT),  # real, but too small to matter
        ({}, UNCLEAR, UNCLEAR),
    ],
)
def test_mutation(facts: dict[str, float], most: str, less: str) -> None:
    found = judged("mutation", rows(dropped="last", mean_change=-0.5, n=9), **facts)
    assert (outcome(found), outcome(found, 1)) == (most, less)
    if facts:
        assert "middle" in found[0].evidence


AGREEMENT = ("above_chance", "beyond_bigram", "lower_part", "rise")


@pytest.mark.parametrize(
    ("values", "half", "expected"),
    [
        ((0.02, 0.01, 0.0, 0.02), 0.0005, (HOLDS, HOLDS, HOLDS, HOLDS)),
        ((0.0, 0.0, 0.02, -0.01), 0.0005, (NOT, NOT, NOT, NOT)),
        ((0.02, 0.0, 0.0, 0.02), 0.0005, (HOLDS, NOT, HOLDS, HOLDS)),  # nothing but bigrams
        ((0.001, 0.001, 0.001, 0.001), 0.0005, (UNCLEAR,) * 4),
        ((0.02, 0.01, 0.0, 0.02), 0.03, (UNCLEAR,) * 4),
    ],
)
def test_agreement(values: tuple[float, ...], half: float, expected: tuple[str, ...]) -> None:
    facts: dict[str, float] = {}
    for name, value in zip(AGREEMENT, values, strict=True):
        facts |= effect(name, value, half)
    found = judged("agreement", rows(target="next", lens="norm", n=1500, rate=0.0), **facts)
    assert tuple(each.outcome for each in found) == expected
    assert "0.1 points" in found[0].test
    assert "layers 0–6" in found[2].evidence
    assert "layers 7–11" in found[3].evidence


def test_agreement_without_a_known_target() -> None:
    table = rows(target="next", lens="raw", n=0, rate=None, permuted=None, unigram=None)
    assert [v.outcome for v in judged("agreement", table)] == [UNCLEAR] * 4


@pytest.mark.parametrize(("value", "expected"), [(0.2, HOLDS), (-0.1, NOT), (0.06, UNCLEAR), (0.02, NOT)])
def test_rank(value: float, expected: str) -> None:
    facts = effect("auc_upper", value, 0.02) | effect("auc_rise", value, 0.02)
    assert [v.outcome for v in judged("auc", rows(lens="norm", n=5, auc=0.5), **facts)] == [expected] * 2


@pytest.mark.parametrize(("value", "expected"), [(0.01, HOLDS), (-0.01, NOT), (0.002, UNCLEAR), (0.0, UNCLEAR)])
def test_confidence(value: float, expected: str) -> None:
    facts = effect("surer_minus_less", value, 0.0015)
    assert outcome(judged("confidence", rows(part="bin", n=5, rate=0.1), **facts)) == expected


@pytest.mark.parametrize(
    ("layers", "expected"), [([15] * 97 + [0] * 3, HOLDS), ([2] * 100, NOT), ([15] * 50 + [2] * 50, UNCLEAR)]
)
def test_confident(layers: list[int], expected: str) -> None:
    found = judged("confident", [{"layer": layer} for layer in layers], layers=16)
    assert outcome(found) == expected
    assert "layers 10–15" in found[0].evidence


@pytest.mark.parametrize(("excess", "expected"), [(0.4, HOLDS), (0.0, NOT), (0.15, UNCLEAR)])
def test_the_surest_values_against_a_deal(excess: float, expected: str) -> None:
    facts = effect("agree", 0.46, 0.09) | effect("agree_excess", excess, 0.09)
    found = judged("confident", [{"layer": 1}] * 100, **facts)
    assert outcome(found, 1) == expected
    assert "46 % (37 to 55 %)" in found[1].evidence


@pytest.mark.parametrize(("dead", "expected"), [(0, HOLDS), (10, HOLDS), (23, UNCLEAR), (100, NOT), (None, UNCLEAR)])
def test_activity(dead: int | None, expected: str) -> None:
    assert outcome(judged("activity", rows(dead=dead), cells=1000)) == expected


def test_whether_a_gated_key_fires_is_no_question() -> None:
    gated = Shape(Cells.of_widths([100] * LAYERS), 50_000, signed=True, gated=True)
    (found,) = [claim.weigh(Measurement(rows(dead=1), {}, gated)) for claim in figure("activity").claims]
    assert found.outcome == "not applicable"
    assert "convention" in found.evidence
    assert "12 of 1,200 cells are dead" in found.evidence


def test_no_rows_and_no_numbers_are_unclear_not_an_error() -> None:
    for figure in SECTION5:
        for table in ([], rows(n=0, cells="active", output="y", **dict.fromkeys(("zero_agreement", "lo", "hi"), None))):
            if figure in ("active", "residual_match"):
                table = []
            found = [verdict.outcome for verdict in judged(figure, table)]
            assert set(found) <= {UNCLEAR, "not applicable"}, figure
    assert outcome(judged("confidence", [])) == UNCLEAR


@pytest.mark.parametrize("layers", [6, 16, 80])
def test_rows_like_the_papers_confirm_the_paper(layers: int) -> None:
    tables, facts = like_the_paper(layers), facts_like_the_paper()
    found = [
        *judged("activity", tables["activity"], layers=layers, cells=1536),
        *judged("mutation", tables["mutation"], **no_cells(facts["mutation"])),
        *judged("agreement", tables["agreement"], **facts["agreement"]),
        *judged("auc", tables["rank"], **facts["rank"]),
        *judged("confidence", tables["confidence"], **facts["confidence"]),
        *judged("confident", tables["confident"], layers=layers, **facts["confident"]),
        *(each for figure, name in SECTION5.items() for each in judged(figure, tables[name], **section5_facts()[name])),
    ]
    assert [v.claim for v in found if v.outcome != HOLDS] == []
    json.dumps([asdict(v) for v in found], allow_nan=False)


# Numbers and facts that a verdict rests on


def test_upper_layers_that_are_narrow_hold_fewer_of_the_surest_values_by_chance() -> None:
    claim = registry.get("confident").figures[0].claims[0]
    rows = [{"layer": layer} for layer in [15] * 25 + [0] * 75]
    narrow = Shape(Cells.of_widths([100] * 10 + [1] * 6), 50_000, signed=False)
    assert claim.weigh(Measurement(rows, {}, narrow)).outcome == HOLDS
    assert judged("confident", rows, layers=16)[0].outcome == NOT


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (30, 2.0423), (1000, 1.9623)]
)
def test_student_quantiles_of_the_tables(freedom: int, quantile: float) -> None:
    assert stats.student(freedom) == pytest.approx(quantile, abs=5e-5)
