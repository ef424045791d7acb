"""Every verdict comes out each way, on rows made to that end."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from synthetic import like_the_paper

from keyhole.analyses import verdicts
from keyhole.analyses.verdicts import Verdict, wilson

LAYERS = 12
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
    assert verdicts.binomial(10, 10, 0.5) == pytest.approx(2 / 1024)
    assert verdicts.binomial(5, 10, 0.5) == pytest.approx(1.0)
    assert verdicts.binomial(0, 3, 1 / 3) == pytest.approx(15 / 27)  # none, two or three: one is likelier


def test_spearman_counts_every_permutation_of_few_layers() -> None:
    assert verdicts.spearman([0, 1, 2, 3, 4], [1, 2, 3, 4, 9]) == (pytest.approx(1.0), pytest.approx(2 / 120))
    rho, p = verdicts.spearman([0, 1, 2], [3, 2, 1])
    assert rho == pytest.approx(-1)
    assert p == pytest.approx(2 / 6)


def test_spearman_draws_for_many_layers_and_is_the_same_every_time() -> None:
    first, again = (verdicts.spearman(range(80), np.sin(np.arange(80))) for _ in range(2))
    assert first == again
    assert abs(first[0]) < 0.2
    assert first[1] > 0.05
    assert verdicts.spearman(range(80), range(80))[1] == pytest.approx(1 / 10_001)


def test_spearman_of_what_does_not_vary() -> None:
    rho, p = verdicts.spearman([0, 1, 2, 3], [5, 5, 5, 5])
    assert math.isnan(rho)
    assert p == 1.0


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0 %"), (0.0004, "0.04 %"), (0.035, "3.5 %"), (0.68, "68 %"), (1.0, "100 %"), (-0.5, "−50 %")],
)
def test_percent(value: float, said: str) -> None:
    assert verdicts.percent(value) == said


def test_layers_are_named_in_few_words() -> None:
    assert verdicts.span([3, 4, 5, 9]) == "3–5, 9"
    assert verdicts.span([0, 2, 4, 6]) == "0, 2, 4, …"


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
    found = verdicts.mutation(rows)
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
    found = verdicts.agreement([*table, *other])
    assert (outcome(found), outcome(found, 1)) == (rises, above)
    assert "values dealt out anew" in found[1].evidence


def test_agreement_reads_the_papers_lens_where_there_are_two() -> None:
    raw = rows(target="next", lens="raw", n=1500, rate=RISING, permuted=0.0, unigram=0.0)
    norm = rows(target="next", lens="norm", n=1500, rate=FALLING, permuted=0.0, unigram=0.0)
    assert outcome(verdicts.agreement([*norm, *raw])) == HOLDS
    assert outcome(verdicts.agreement(norm)) == NOT


def test_agreement_without_a_known_target() -> None:
    table = rows(target="next", lens="raw", n=0, rate=None, permuted=None, unigram=None)
    assert [v.outcome for v in verdicts.agreement(table)] == [UNCLEAR, UNCLEAR]


@pytest.mark.parametrize(("median", "expected"), [(FALLING, HOLDS), (RISING, NOT), (noise(), UNCLEAR)])
def test_rank(median: list[float], expected: str) -> None:
    assert outcome(verdicts.rank(rows(lens="raw", n=5, median=[1 + 100 * x for x in median]))) == expected


@pytest.mark.parametrize(
    ("rate", "n", "expected"),
    [(RISING, 500, HOLDS), (FALLING, 500, NOT), (noise(), 3, UNCLEAR), ([0.0] * 12, 500, UNCLEAR)],
)
def test_confidence(rate: list[float], n: int, expected: str) -> None:
    table = [
        {"bin": i, "max_prob_lo": i / 12, "max_prob_hi": (i + 1) / 12, "n": n, "rate": r} for i, r in enumerate(rate)
    ]
    assert outcome(verdicts.confidence(table)) == expected


@pytest.mark.parametrize(
    ("layers", "expected"), [([15] * 97 + [0] * 3, HOLDS), ([2] * 100, NOT), ([15] * 38 + [2] * 62, UNCLEAR)]
)
def test_confident(layers: list[int], expected: str) -> None:
    found = verdicts.confident([{"layer": layer} for layer in layers], 16)
    assert outcome(found) == expected
    assert "layers 10–15" in found[0].evidence


@pytest.mark.parametrize(
    ("fraction", "within", "falls"),
    [
        ([0.45 - x / 3 for x in RISING], HOLDS, HOLDS),
        ([0.6 + x / 3 for x in RISING], NOT, NOT),
        ([0.2] * 8 + [0.7] * 4, UNCLEAR, UNCLEAR),
    ],
)
def test_active(fraction: list[float], within: str, falls: str) -> None:
    found = verdicts.active(rows(n=100, active_fraction=fraction))
    assert (outcome(found), outcome(found, 1)) == (within, falls)


@pytest.mark.parametrize(("dead", "expected"), [(0, HOLDS), (10, UNCLEAR), (100, NOT)])
def test_activity(dead: int, expected: str) -> None:
    table = rows(dead=dead)
    assert outcome(verdicts.activity(table, cells=1000 * len(table))) == expected


@pytest.mark.parametrize(
    ("zero", "expected"), [([0.7] * 12, HOLDS), ([0.7] * 11 + [0.3], NOT), ([0.7] * 11 + [0.5], UNCLEAR)]
)
def test_composition(zero: list[float], expected: str) -> None:
    spans = [wilson(z, 400) for z in zero]
    table = rows(n=400, zero_agreement=zero, lo=[lo for lo, _ in spans], hi=[hi for _, hi in spans])
    assert outcome(verdicts.composition(table)) == expected


@pytest.mark.parametrize(
    ("match", "grows", "early"),
    [
        ([0.3 + x / 2 for x in RISING], HOLDS, HOLDS),
        ([0.1 - x / 20 for x in RISING], NOT, NOT),
        ([0.25 + x / 1000 for x in noise()], UNCLEAR, UNCLEAR),
    ],
)
def test_residual_match(match: list[float], grows: str, early: str) -> None:
    found = verdicts.residual_match(rows(n=2000, residual_match=match))
    assert (outcome(found), outcome(found, 1)) == (grows, early)


@pytest.mark.parametrize(("median", "expected"), [(RISING, HOLDS), (FALLING, NOT), (noise(), UNCLEAR)])
def test_final_probability(median: list[float], expected: str) -> None:
    assert outcome(verdicts.final_probability(rows(n=9, final_prob_median=median))) == expected


@pytest.mark.parametrize(
    ("parts", "stands", "compromise"),
    [
        ((0.6, 0.05, 0.2, 0.15), HOLDS, HOLDS),
        ((0.1, 0.6, 0.1, 0.2), NOT, NOT),
        ((0.3, 0.25, 0.2, 0.25), UNCLEAR, UNCLEAR),
    ],
)
def test_shares(parts: tuple[float, ...], stands: str, compromise: str) -> None:
    residual, ffn, agreement, composition = parts
    found = verdicts.shares(rows(n=2000, residual=residual, ffn=ffn, agreement=agreement, composition=composition))
    assert (outcome(found), outcome(found, 1)) == (stands, compromise)


def test_shares_where_nothing_changes() -> None:
    assert outcome(verdicts.shares(rows(n=9, residual=1.0, ffn=0.0, agreement=0.0, composition=0.0)), 1) == UNCLEAR


@pytest.mark.parametrize(("near", "expected"), [(20, HOLDS), (80, NOT), (50, UNCLEAR)])
def test_cases(near: int, expected: str) -> None:
    table = [{"similarity": 0.4 if i < near else 0.1} for i in range(100)]
    assert outcome(verdicts.cases(table, distant=0.2)) == expected


def test_no_rows_and_no_numbers_are_unclear_not_an_error() -> None:
    nothing = rows(n=0, zero_agreement=None, lo=None, hi=None, residual_match=None, final_prob_median=math.nan)
    for table in ([], nothing):
        found = [*verdicts.composition(table), *verdicts.residual_match(table), *verdicts.final_probability(table)]
        assert {v.outcome for v in found} == {UNCLEAR}
    assert outcome(verdicts.cases([])) == UNCLEAR
    assert outcome(verdicts.confidence([])) == UNCLEAR


@pytest.mark.parametrize("layers", [6, 16, 80])
def test_rows_like_the_papers_confirm_the_paper(layers: int) -> None:
    tables = like_the_paper(layers)
    found = [
        *verdicts.mutation(tables["mutation"]),
        *verdicts.agreement(tables["agreement"]),
        *verdicts.rank(tables["rank"]),
        *verdicts.confidence(tables["confidence"]),
        *verdicts.confident(tables["confident"], layers),
        *verdicts.composition(tables["composition"]),
        *verdicts.residual_match(tables["refinement"]),
        *verdicts.final_probability(tables["refinement"]),
        *verdicts.shares(tables["refinement"]),
    ]
    assert [v.claim for v in found if v.outcome != HOLDS] == []
    json.dumps([asdict(v) for v in found], allow_nan=False)


def test_one_layer_against_the_rest_does_not_decide_what_usually_happens() -> None:
    spans = [(layer, 0.6, 0.7) for layer in range(15)] + [(15, 0.1, 0.2)]
    assert verdicts.in_most_layers(spans, 0.5, "c", "more").outcome == HOLDS
    assert verdicts.in_every_layer(spans, 0.5, "c", "more").outcome == NOT
    assert verdicts.in_most_layers(spans[-3:], 0.5, "c", "more").outcome == UNCLEAR
