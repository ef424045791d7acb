"""Every verdict with every outcome, each on rows that are made for it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from synthetic import like_the_paper, section5_facts

from keyhole.analyses import claims, registry, stats
from keyhole.analyses.record import Measurement, Shape, Verdict
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


def judged(figure: str, rows: list[Row], *, layers: int = LAYERS, cells: int = 100, **facts: Any) -> list[Verdict]:
    """The verdicts on the claims of a figure."""
    measurement = Measurement(rows, facts, Shape(Cells.of_widths([cells] * layers), 50_000, signed=False))
    (found,) = [each for _, each in registry.report_order() if each.name == figure]
    return [claim.weigh(measurement) for claim in found.claims]


def outcome(found: list[Verdict], at: int = 0) -> str:
    return found[at].outcome


# The statistics


def test_wilson_interval() -> None:
    lo, hi = wilson(0.5, 100)
    assert (round(lo, 4), round(hi, 4)) == (0.4038, 0.5962)
    assert wilson(0.0, 10)[0] == 0.0
    assert wilson(1.0, 10)[1] == 1.0
    assert wilson(0.3, 0) == (0.0, 1.0)


def test_binomial_p() -> None:
    assert stats.binomial(10, 10, 0.5) == pytest.approx(2 / 1024)
    assert stats.binomial(5, 10, 0.5) == pytest.approx(1.0)
    assert stats.binomial(0, 3, 1 / 3) == pytest.approx(15 / 27)  # none, two or three: one is likelier


def test_spearman_counts_every_permutation_of_few_layers() -> None:
    assert stats.spearman([0, 1, 2, 3, 4], [1, 2, 3, 4, 9]) == (pytest.approx(1.0), pytest.approx(2 / 120))
    rho, p = stats.spearman([0, 1, 2], [3, 2, 1])
    assert rho == pytest.approx(-1)
    assert p == pytest.approx(2 / 6)


def test_spearman_draws_for_many_layers_and_is_the_same_every_time() -> None:
    first, again = (stats.spearman(range(80), np.sin(np.arange(80))) for _ in range(2))
    assert first == again
    assert abs(first[0]) < 0.2
    assert first[1] > 0.05
    assert stats.spearman(range(80), range(80))[1] == pytest.approx(1 / 10_001)


def test_spearman_of_what_does_not_vary() -> None:
    rho, p = stats.spearman([0, 1, 2, 3], [5, 5, 5, 5])
    assert math.isnan(rho)
    assert p == 1.0


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


def mutation(first: list[float], last: list[float], random: list[float]) -> list[Row]:
    kinds = {"first": first, "last": last, "random": random}
    return [row for kind, change in kinds.items() for row in rows(dropped=kind, mean_change=change, n=9)]


@pytest.mark.parametrize(
    ("rows", "most", "less"),
    [
        (mutation([-0.1] * 12, [x - 2 for x in RISING], [-0.2] * 12), HOLDS, HOLDS),
        (mutation([-0.9] * 12, [-x / 10 for x in RISING], [-0.2] * 12), NOT, NOT),
        (mutation([-0.5, -0.1, -0.1] * 4, [-0.3] * 12, [-0.1, -0.5, -0.1] * 4), UNCLEAR, UNCLEAR),
        ([], UNCLEAR, UNCLEAR),
    ],
)
def test_mutation(rows: list[Row], most: str, less: str) -> None:
    found = judged("mutation", rows)
    assert (outcome(found), outcome(found, 1)) == (most, less)
    assert "sign test" in found[0].test
    assert "Spearman" in found[1].test


@pytest.mark.parametrize(
    ("rate", "permuted", "rises", "above"),
    [
        ([x / 20 for x in RISING], 0.001, HOLDS, HOLDS),
        ([x / 20 for x in FALLING], 0.2, NOT, NOT),
        ([x / 1000 for x in noise()], 0.0005, UNCLEAR, UNCLEAR),
    ],
)
def test_agreement(rate: list[float], permuted: float, rises: str, above: str) -> None:
    table = rows(target="next", lens="raw", n=1500, rate=rate, permuted=permuted, unigram=0.0)
    other = rows(target="last", lens="raw", n=1500, rate=0.9, permuted=0.0, unigram=0.0)
    found = judged("agreement", [*table, *other])
    assert (outcome(found), outcome(found, 1)) == (rises, above)
    assert "shuffled values" in found[1].evidence


def test_agreement_reads_the_papers_lens_where_there_are_two() -> None:
    raw = rows(target="next", lens="raw", n=1500, rate=RISING, permuted=0.0, unigram=0.0)
    norm = rows(target="next", lens="norm", n=1500, rate=FALLING, permuted=0.0, unigram=0.0)
    assert outcome(judged("agreement", [*norm, *raw])) == HOLDS
    assert outcome(judged("agreement", norm)) == NOT


def test_agreement_without_a_known_target() -> None:
    table = rows(target="next", lens="raw", n=0, rate=None, permuted=None, unigram=None)
    assert [v.outcome for v in judged("agreement", table)] == [UNCLEAR, UNCLEAR]


@pytest.mark.parametrize(("median", "expected"), [(FALLING, HOLDS), (RISING, NOT), (noise(), UNCLEAR)])
def test_rank(median: list[float], expected: str) -> None:
    assert outcome(judged("rank", rows(lens="raw", n=5, median=[1 + 100 * x for x in median]))) == expected


@pytest.mark.parametrize(
    ("rate", "n", "expected"),
    [(RISING, 500, HOLDS), (FALLING, 500, NOT), (noise(), 3, UNCLEAR), ([0.0] * 12, 500, UNCLEAR)],
)
def test_confidence(rate: list[float], n: int, expected: str) -> None:
    table = [
        {"bin": i, "max_prob_lo": i / 12, "max_prob_hi": (i + 1) / 12, "n": n, "rate": r} for i, r in enumerate(rate)
    ]
    assert outcome(judged("confidence", table)) == expected


@pytest.mark.parametrize(
    ("layers", "expected"), [([15] * 97 + [0] * 3, HOLDS), ([2] * 100, NOT), ([15] * 38 + [2] * 62, UNCLEAR)]
)
def test_confident(layers: list[int], expected: str) -> None:
    found = judged("confident", [{"layer": layer} for layer in layers], layers=16)
    assert outcome(found) == expected
    assert "layers 10–15" in found[0].evidence


@pytest.mark.parametrize(("dead", "expected"), [(0, HOLDS), (10, UNCLEAR), (100, NOT)])
def test_activity(dead: int, expected: str) -> None:
    assert outcome(judged("activity", rows(dead=dead), cells=1000)) == expected


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
    tables = like_the_paper(layers)
    found = [
        *judged("mutation", tables["mutation"]),
        *judged("agreement", tables["agreement"]),
        *judged("rank", tables["rank"]),
        *judged("confidence", tables["confidence"]),
        *judged("confident", tables["confident"], layers=layers),
        *(each for figure, name in SECTION5.items() for each in judged(figure, tables[name], **section5_facts()[name])),
    ]
    assert [v.claim for v in found if v.outcome != HOLDS] == []
    json.dumps([asdict(v) for v in found], allow_nan=False)


def test_one_layer_against_the_rest_does_not_decide_what_usually_happens() -> None:
    spans = [(layer, 0.6, 0.7) for layer in range(15)] + [(15, 0.1, 0.2)]
    assert claims.in_most_layers(spans, 0.5, "more").outcome == HOLDS
    assert claims.in_every_layer(spans, 0.5, "more").outcome == NOT
    assert claims.in_most_layers(spans[-3:], 0.5, "more").outcome == UNCLEAR


# Numbers and facts that a verdict rests on


def test_upper_layers_that_are_narrow_hold_fewer_of_the_surest_values_by_chance() -> None:
    claim = registry.get("confident").figures[0].claims[0]
    rows = [{"layer": layer} for layer in [15] * 8 + [0] * 92]
    narrow = Shape(Cells.of_widths([100] * 10 + [1] * 6), 50_000, signed=False)
    assert claim.weigh(Measurement(rows, {}, narrow)).outcome == HOLDS
    assert judged("confident", rows, layers=16)[0].outcome == NOT


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (30, 2.0423), (1000, 1.9623)]
)
def test_student_quantiles_of_the_tables(freedom: int, quantile: float) -> None:
    assert stats.student(freedom) == pytest.approx(quantile, abs=5e-5)
