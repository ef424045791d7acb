"""The tables of patterns against counts written from the definitions, and claims that can come out false."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import patterned
import pytest
from families import tiny
from pages import Page
from patterned import key, pattern, scores
from small import scanned
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import pattern_summary, registry
from keyhole.analyses import patterns as table
from keyhole.analyses.measured import Measured
from keyhole.cli import app
from keyhole.store import patterns as stored
from keyhole.store.patterns import METHODS, Key, Score
from keyhole.views.report import write as report

TABLES = ["patterns", "pattern_summary"]


@pytest.fixture
def run(tmp_path: Path) -> keyhole.Run:
    return scanned(tiny("opt"), tmp_path)


def filled(run: keyhole.Run, keys: dict[int, list[Key]], **settings: Any) -> dict[str, list[dict[str, Any]]]:
    patterned.store(run, keys, **settings)
    keyhole.analyze(run, only=TABLES)  # its model is not on disk: none is loaded
    return {name: run.table(name) for name in TABLES}


def test_without_patterns_the_tables_are_empty_and_say_what_to_do(run: keyhole.Run) -> None:
    keyhole.analyze(run, only=TABLES)
    for name in TABLES:
        assert run.table(name) == []
        printed = CliRunner().invoke(app, ["table", str(run.path), name])
        assert "keyhole patterns RUN" in printed.output
    measures = {measure.name for measure, _ in registry.cell_measures(run, None)}
    assert not measures & {"pattern_auprc", "pattern_kind"}
    shown = Page(report.write(run).read_text("utf-8")).text
    assert "The table pattern_summary is empty: no patterns are stored in this run" in shown


def test_every_pattern_has_its_row(run: keyhole.Run) -> None:
    keys = patterned.drawn(run)
    rows = filled(run, keys)["patterns"]
    wanted = []
    for layer, here in keys.items():
        for each in sorted(here, key=lambda each: (each.cell, -each.side)):
            known = {name: score.auprc for name, score in each.scores.items()}
            for rank, one in enumerate(each.patterns, 1):
                told = (layer, f"L{layer}.{each.cell}", each.side, rank, one.kind, one.description)
                beside = (known.get("rules"), known.get("last_token"), known.get("bigram"))
                wanted.append((*told, len(one.triggers) / 4, one.auprc, *beside))
    names = ("layer", "cell", "side", "rank", "kind", "description", "covered", "auprc")
    names += ("key_auprc", "last_token_auprc", "bigram_auprc")
    assert [tuple(row[name] for name in names) for row in rows] == wanted
    assert {side for row in rows if (side := row["side"])} == {1, -1}
    assert {(row["triggers"], row["lift"], row["q_value"], row["promoted"]) for row in rows} == {(4, 310.0, 0.01, None)}


def test_a_rule_shows_its_tokens_beside_their_ids(run: keyhole.Run) -> None:
    at, tee = (run.vocabulary.find(letter) for letter in "at")
    conditions = [{"if": "token", "back": 0, "ids": [at, tee]}, {"if": "position", "from": 1, "to": None}]
    rule = {"all": [*conditions, {"if": "absent", "ids": [10**6]}], "bias": 0.5, "more": []}
    rows = filled(run, {1: [key(2, pattern(0, 1, 2, rule=rule))]})["patterns"]
    assert json.loads(rows[0]["rule"]) == {
        "all": [
            {"if": "token", "back": 0, "ids": [at, tee], "tokens": ["a", "t"]},
            {"if": "position", "from": 1, "to": None},
            {"if": "absent", "ids": [10**6], "tokens": ["[1000000]"]},
        ],
        "bias": 0.5,
        "more": [],
    }
    assert stored.of(run).key(run["L1.2"].place).patterns[0].rule == rule  # type: ignore[union-attr]


def test_the_summary_counts_triggers_and_means_keys(run: keyhole.Run) -> None:
    """Every column from its definition, trigger by trigger."""
    keys = patterned.drawn(run, per_layer=10)
    keys[0].append(key(next(c for c in range(24) if c not in {k.cell for k in keys[0]}), read=0))  # a dead key
    rows = filled(run, keys)["pattern_summary"]
    assert [row["layer"] for row in rows] == [0, 1, 2]
    for row in rows:
        here = [each for each in keys[row["layer"]] if each.side == 1 and each.read]
        counts = dict.fromkeys(("none", "shallow", "semantic", "both"), 0)
        for each in here:
            for trigger in range(4):
                kinds = {one.kind for one in each.patterns if trigger in one.triggers}
                counts["none" if not kinds else "both" if len(kinds) == 2 else next(iter(kinds))] += 1
        assert (row["keys"], row["triggers"]) == (10, 40)
        assert {kind: row[kind] * 40 for kind in counts} == pytest.approx(counts)
        assert row["covered"] == pytest.approx(1 - row["none"])
        assert row["patterns_per_key"] == pytest.approx(sum(len(each.patterns) for each in here) / 10)
        known = [each for each in here if "rules" in each.scores]
        assert row["scored"] == len(known)
        for method in METHODS:
            column = "auprc" if method == "rules" else f"{method}_auprc"
            found = [each.scores[method].auprc for each in known if method in each.scores]
            assert row[column] == pytest.approx(np.mean(found))  # type: ignore[arg-type]
        for measure in ("auprc_99", "f1", "pearson"):
            both = [each.scores for each in here if {"rules", "list"} <= each.scores.keys()]
            found = [getattr(each["list"], measure) for each in both]
            assert row[f"list_{measure}"] == pytest.approx(np.mean(found))
        assert row["covered_lo"] <= row["covered"] <= row["covered_hi"]
        assert row["auprc_lo"] < row["auprc"] < row["auprc_hi"]


def test_a_key_that_fires_too_rarely_still_has_the_scores_that_it_has(run: keyhole.Run) -> None:
    rare = {"rules": Score(auprc_99=0.6, pearson=0.5), "bigram": Score(auprc_99=0.2, auprc=0.9), "last_token": Score()}
    keys = [key(0, scores=rare), key(1, scores=scores(rules=0.8)), key(2, scores={"bigram": Score(auprc_99=0.7)})]
    row = filled(run, {0: keys})["pattern_summary"][0]
    assert (row["scored"], row["auprc"], row["bigram_auprc"], row["last_token_auprc_99"]) == (1, 0.8, None, None)
    assert (row["auprc_99"], row["bigram_auprc_99"], row["pearson"]) == pytest.approx(
        ((0.6 + 0.4) / 2, 0.2, (0.5 + 0.2) / 2)
    )


def test_intervals_are_over_keys_not_over_their_triggers(run: keyhole.Run) -> None:
    """Half of the keys carry a pattern at all four triggers, the others at none. The standard error is that of the keys: of the
    triggers, as if they were drawn one by one, it would be half of that."""
    keys = [key(cell, *([pattern(0, 1, 2, 3)] if cell % 2 else [])) for cell in range(24)]
    row = filled(run, {0: keys})["pattern_summary"][0]
    half = 1.96 * math.sqrt(0.25 / 24)
    assert row["covered"] == 0.5
    assert row["covered_hi"] - row["covered"] == pytest.approx(half, rel=0.1)
    alike = [key(cell, pattern(0, 1)) for cell in range(24)]
    row = filled(run, {0: alike})["pattern_summary"][0]
    assert (row["covered_lo"], row["covered"], row["covered_hi"]) == (0.5, 0.5, 0.5)


def verdicts(run: keyhole.Run, keys: dict[int, list[Key]], **settings: Any) -> dict[str, tuple[str, float | None]]:
    filled(run, keys, **settings)
    found = Measured.read(run).verdicts
    every = [each for name in ("patterns_by_layer", "patterns_scored") for each in found[name]]
    return {each.claim: (each.outcome, None if each.effect is None else each.effect.value) for each in every}


COVERED, SEVERAL = "Most triggers carry a pattern of their key", "A key has more than one pattern"
SHALLOW = "Triggers with shallow patterns only are in the lower layers"
SEMANTIC = "Triggers with semantic patterns only are in the upper layers"
LAST = "Rules predict where a key fires better than the last token, in every third"
BIGRAM = "Rules predict where a key fires better than the last two tokens, in every third"
DEALT = "Rules predict more than rules that are found in dealt-out triggers"


def effects(lookup: str, **parts: float) -> dict[str, float]:
    """As the scoring stores them; `all` is over all layers."""
    found = {}
    for part, value in parts.items():
        name = f"over_{lookup}" if part == "all" else f"over_{lookup}_{part}"
        found |= {name: value, f"{name}_lo": value - 0.02, f"{name}_hi": value + 0.02}
    return found


def test_claims_hold_if_the_keys_are_as_the_paper_says(run: keyhole.Run) -> None:
    good = scores(rules=0.7, permuted=0.002)
    low = [key(cell, pattern(0, 1, 2), pattern(1, 2, 3), scores=good) for cell in range(24)]
    high = [key(cell, *(pattern(0, 1, 2, kind="semantic") for _ in range(3)), scores=good) for cell in range(24)]
    facts = effects("last_token", lower=0.1, middle=0.05, upper=0.07) | effects(
        "bigram", lower=0.1, middle=0.1, upper=0.09
    )
    facts |= effects("permuted", all=0.698)
    found = verdicts(run, {0: low, 1: low, 2: high}, facts=facts)
    assert {outcome for outcome, _ in found.values()} == {"holds"}
    values = {claim: value for claim, (_, value) in found.items()}
    assert values == {
        COVERED: pytest.approx((4 + 4 + 3) / 12),
        SEVERAL: pytest.approx(7 / 3),
        SHALLOW: pytest.approx(1.0),
        SEMANTIC: pytest.approx(0.75),
        LAST: 0.05,
        BIGRAM: 0.09,
        DEALT: 0.698,
    }
    assert {
        name: value for name, value in Measured.read(run).facts["pattern_summary"].items() if name in facts
    } == facts


def test_claims_fail_if_the_keys_are_the_other_way_round(run: keyhole.Run) -> None:
    bad = scores(rules=0.002, permuted=0.002)
    low = [key(cell, *([pattern(0, kind="semantic")] if cell % 2 else []), scores=bad) for cell in range(24)]
    high = [key(cell, pattern(0), scores=bad) for cell in range(24)]
    facts = effects("last_token", lower=0.1, middle=-0.2, upper=0.1) | effects("bigram", lower=-0.1, middle=-0.1)
    facts |= effects("bigram", upper=-0.1) | effects("permuted", all=0.01)
    found = verdicts(run, {0: low, 1: low, 2: high}, facts=facts)
    assert {outcome for outcome, _ in found.values()} == {"does not hold"}


def test_claims_without_numbers_are_unclear(run: keyhole.Run) -> None:
    keys = [key(cell, pattern(0, 1, 2)) for cell in range(24)]
    found = verdicts(run, {0: keys, 1: keys, 2: keys}, facts=effects("last_token", lower=0.1, upper=0.1))
    assert found[LAST] == found[BIGRAM] == found[DEALT] == ("unclear", None)
    facts: dict[str, Any] = effects("last_token", lower=0.1, middle=0.1, upper=0.1) | {"over_last_token_middle_lo": "?"}
    assert verdicts(run, {0: keys, 1: keys, 2: keys}, facts=facts)[LAST] == ("unclear", 0.1)


def test_the_table_says_what_it_was_measured_on(run: keyhole.Run) -> None:
    filled(run, patterned.drawn(run))
    note = Measured.read(run).notes["pattern_summary"]
    assert note == (
        "8 keys per layer; patterns found in 1,234 tokens of text.txt; scored on 567 tokens in 21 documents of the held-out text valid.txt"
    )
    patterned.store(run, {}, cells="all", held_out=None, tokens="many")
    assert table.note(table.about(stored.of(run))) == "all keys; not scored"  # type: ignore[arg-type]
    assert pattern_summary.rows(run).rows == []


def test_the_map_knows_kind_and_score_of_the_first_side(run: keyhole.Run) -> None:
    both = key(5, pattern(0), pattern(1, kind="semantic"), scores=scores(rules=0.25))
    other = key(5, pattern(0), side=-1, scores=scores(rules=0.9))
    patterned.store(run, {1: [key(3), both, other], 2: [key(0, pattern(0), side=-1)]})
    measures = {measure.name: (measure, numbers) for measure, numbers in registry.cell_measures(run, None)}
    measure, kinds = measures["pattern_kind"]
    known = {run.cells.address(int(at)): measure.kinds[int(kinds[at])] for at in np.flatnonzero(np.isfinite(kinds))}
    assert known == {"L1.3": "none", "L1.5": "both"}
    _, numbers = measures["pattern_auprc"]
    assert {run.cells.address(int(at)): numbers[at] for at in np.flatnonzero(np.isfinite(numbers))} == {"L1.5": 0.25}


def test_the_report_lists_the_best_keys_of_every_layer(run: keyhole.Run) -> None:
    keys = {
        layer: [
            key(
                cell,
                pattern(0, 1, 2, description=f"label {layer}.{cell}"),
                scores=scores(rules=cell / 30, last_token=0.1),
            )
            for cell in range(6)
        ]
        for layer in (0, 2)
    }
    rows = filled(run, keys)["patterns"]
    assert [row[0] for row in table.best(run, rows)] == ["L0.5", "L0.4", "L0.3", "L2.5", "L2.4", "L2.3"]
    shown = Page(report.write(run).read_text("utf-8")).text
    assert "label 0.5" in shown
    assert "label 0.2" not in shown
    for label in ("Table 1b.", "Figure 2.", "Figure 2b."):
        assert label in shown
    assert set(report.figures(run)) >= {"patterns_by_layer", "patterns_scored"}


def test_a_whisker_is_the_stored_interval_over_keys(run: keyhole.Run) -> None:
    keys = [key(cell, *([pattern(0, 1, 2, 3)] if cell % 3 else [])) for cell in range(24)]
    row = filled(run, {0: keys})["pattern_summary"][0]
    spec = report.figures(run)["patterns_by_layer"].to_dict()
    (whisker,) = (layer["data"]["name"] for layer in spec["layer"] if layer["mark"]["type"] == "rule")
    assert spec["datasets"][whisker] == [{"layer": 0, "lo": row["covered_lo"], "hi": row["covered_hi"]}]
