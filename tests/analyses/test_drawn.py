"""Intervals and contrasts over what was drawn: planted answers, and how often noise would pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import tiny
from small import scanned

import keyhole
from keyhole.analyses import cases, composition, heldout, part, registry, stats, training, veto
from keyhole.analyses.record import Measurement, Shape
from keyhole.analyses.stats import Interval
from keyhole.cells import Cells
from keyhole.lens.head import Head
from keyhole.store import tables

SHAPE = Shape(Cells.of_widths([10] * 4), 100, signed=False)


def inside(found: Interval, truth: float) -> bool:
    assert found.lo is not None
    assert found.hi is not None
    return found.lo <= truth <= found.hi


# The bootstrap of sums


def test_bootstrap_of_sums_gives_means_ratios_and_none() -> None:
    values = np.array([[1.0, 2, 3, 4], [0, 0, 0, 0]])
    one, other = stats.bootstrap_means(values, where=np.array([[True, True, False, True], [False] * 4]))
    assert one.value == pytest.approx(7 / 3)
    assert np.isnan(other.value)
    assert (other.lo, other.hi) == (None, None)
    assert stats.bootstrap_means(values[:, :1])[0] == Interval(1.0)
    wide, narrow = (
        stats.bootstrap_means(np.repeat([[0.0, 1, 2, 3, 4, 5]], 50, axis=1), clusters)[0]
        for clusters in (np.repeat(np.arange(6), 50), np.arange(300))
    )
    assert wide.lo is not None
    assert narrow.lo is not None
    assert 2.5 - wide.lo > 5 * (2.5 - narrow.lo)  # six documents, not three hundred prefixes


def test_rates_without_a_miss_still_have_an_interval() -> None:
    (found,) = stats.bootstrap_rates(np.ones((1, 20), bool))
    assert (found.value, found.hi) == (1.0, 1.0)
    assert found.lo == pytest.approx(stats.wilson(20, 20)[0])


def test_the_weakest_layer() -> None:
    found = stats.weakest([Interval(0.9, 0.8, 1.0), Interval(0.6, 0.5, 0.7)])
    assert (found.value, found.lo) == (0.6, 0.5)
    assert found.hi is not None
    assert found.hi == pytest.approx(0.6 + 0.1 * 2.2414 / 1.96, abs=1e-4)  # Bonferroni's quantile for two
    assert np.isnan(stats.weakest([]).value)


def test_intervals_cover_and_noise_seldom_passes() -> None:
    """Pure noise, heavy in its tails and alike within a prefix: how often an interval misses the truth."""
    random = np.random.default_rng(1)
    missed = {"contrast": 0, "enrichment": 0, "training": 0, "veto": 0, "decisions": 0}
    trials = 120
    for _ in range(trials):
        common = random.normal(0, 1, 80)
        values = common + random.normal(0, 1, (12, 80))
        difference = values[-4:].mean(0) - values[:4].mean(0)
        missed["contrast"] += not inside(stats.bootstrap_mean(difference), 0)
        agrees = random.random((12, 80)) < 1 / (1 + np.exp(-2 * common))  # some prefixes agree in every layer
        kind = random.random(80) < 0.4
        missed["enrichment"] += not inside(composition.enrichment(agrees, kind, None)[2], 0)
        strength = np.exp(random.normal(0, 1, 200))  # a few prefixes excite most cells
        best = random.multinomial(500, strength / strength.sum()).astype(float)
        missed["training"] += not inside(training.share([best], 100, None)[0], 0.5)
        push = random.normal(0, 1, (2, 8, 160))
        _, found = veto.strongest(push[0], push[1], np.ones((8, 160), bool), range(8), None, 0)
        missed["veto"] += not inside(found, 0.5)
        changes = random.random((2, 9, 160)) < 0.3
        missed["decisions"] += not inside(part._rise(changes[0], changes[1], None), 0)
    assert max(missed.values()) <= 0.12 * trials, missed  # 5 % are expected; 12 % or more: p < 0.002


# Planted answers


def test_enrichment_of_planted_stop_words() -> None:
    kind = np.arange(200) % 2 == 0
    agrees = np.stack([kind & (np.arange(200) < 150), kind, kind | (np.arange(200) < 20)])
    share, base, more = composition.enrichment(agrees, kind, None)
    total = agrees.sum()
    assert share.value == pytest.approx((total - 10) / total)
    assert base.value == 0.5
    assert more.value == pytest.approx(share.value - 0.5)
    assert more.lo is not None
    assert more.lo > 0.4


def test_training_finds_text_that_cells_respond_to() -> None:
    scanned_, held = np.array([3.0, 2, 5, 1], np.float32), np.array([1.0, 2, 4, 9], np.float32)
    at = np.array([0, 0, 1, 1])
    points = training.won((scanned_, at), (held, at), slice(0, 4), 2, 3)
    assert points.tolist() == [1.5, 1.0, 0.5, 1.0, 0.0]
    assert training.share([points], 2, None)[0].value == pytest.approx(2.5 / 4)


def test_veto_of_planted_pushes() -> None:
    random = np.random.default_rng(0)
    down = np.abs(random.normal(1, 0.3, (4, 100)))
    up = np.full((4, 100), 3.0)
    up[2] = 0.2
    chosen, found = veto.strongest(down, up, np.ones((4, 100), bool), [0, 1, 2, 3], None, 0)
    assert chosen == 2
    assert found.lo is not None
    assert found.lo > 0.5
    chosen, found = veto.strongest(down, up, np.ones((4, 100), bool), [0, 1, 3], None, 0)
    assert chosen != 2
    assert found.hi is not None
    assert found.hi < 0.5
    assert veto.strongest(down, up, np.zeros((4, 100), bool), [0, 1], None, 0)[0] is None


def test_the_other_prefixes_of_a_token() -> None:
    y = np.array([[1.0, 0], [3, 0], [5, 2], [7, 7]])
    mean, there = veto.others(y, np.array([4, 4, 4, 9]))
    assert there.tolist() == [True, True, True, False]
    assert mean[:3].tolist() == [[4, 1], [3, 1], [2, 0]]


def test_prefixes_know_their_documents(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    valid = tmp_path / "valid.jsonl"
    valid.write_text("\n".join('{"text": "one line here\\nand another one"}' for _ in range(25)))
    found = heldout.prefixes(run, model, [valid], samples=4000, seed=0)
    assert len(found.documents) == len(found.ids) == 50
    assert [found.documents.count(d) for d in sorted(set(found.documents))] == [2] * 25
    assert found.clusters is not None
    assert found.facts["drawn"] == "documents"
    few = heldout.prefixes(run, model, None, samples=4000, seed=0)
    assert few.clusters is None
    assert few.facts["drawn"] == "prefixes"


def test_there_is_nothing_to_compare_without_held_out_text(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path, hold_out=0.0)
    keyhole.analyze(run, model=model, only=["training"], similar=False)
    assert run.table("training") == []
    facts = tables.read_facts(run.path, registry.get("training").schema)
    (claim,) = training.ANALYSIS.figures[0].claims
    assert claim.weigh(Measurement([], facts, SHAPE)).outcome == "not applicable"


# Cases


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> cases.Nearness:
    model = tiny("gpt2")
    return cases.Nearness(scanned(model, tmp_path_factory.mktemp("near")), Head(model))


def test_a_case_is_compared_with_tokens_as_frequent(near: cases.Nearness) -> None:
    model = tiny("gpt2")
    e = model.lm.get_output_embeddings().weight.detach().double().numpy()
    e = e - e.mean(0)
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    place = {int(token): at for at, token in enumerate(near.order)}
    pairs = [(70, 80), (5, 200), (258, 3), (100, 101)]
    found = near.compare(np.array([r for r, _ in pairs]), np.array([o for _, o in pairs]))
    for (r, o), alike, percentile, related in zip(pairs, *found, strict=True):
        partners = near.partners(r, o)
        assert len(set(partners.tolist()) - {r, o}) == cases.PARTNERS
        reach = max(abs(place[int(token)] - place[o]) for token in partners)
        nearer = {token for token, at in place.items() if abs(at - place[o]) < reach} - {r, o}
        assert nearer <= set(partners.tolist())
        assert alike == pytest.approx(float(e[r] @ e[o]), abs=1e-6)
        null = e[partners] @ e[r]
        assert percentile == pytest.approx((null < alike - 1e-9).mean(), abs=1e-6)
        assert related == ((null >= alike).sum() <= cases.AS_NEAR)


def test_chance_is_related_at_five_percent(near: cases.Nearness) -> None:
    """Random tokens of a random unembedding: a half in percentile, one in twenty related."""
    random = np.random.default_rng(0)
    r, o = random.integers(3, 259, (2, 2000))
    _, percentile, related = near.compare(r[r != o], o[r != o])
    assert percentile.mean() == pytest.approx(0.5, abs=0.03)
    assert related.mean() == pytest.approx(0.05, abs=0.02)


def test_spellings_of_one_word(near: cases.Nearness, tmp_path: Path) -> None:
    run = scanned(tiny("gpt2"), tmp_path)
    pairs = cases.variants(run, near.order)
    words = [tuple(run.vocabulary.piece(int(token)).lower() for token in pair) for pair in pairs]
    assert {("a", "a"), ("q", "q")} <= set(words)
    assert all(one == other and a != b for (one, other), (a, b) in zip(words, pairs.tolist(), strict=True))


@pytest.mark.parametrize(
    ("share", "seen", "expected"),
    [
        (0.34, 0.9, ["holds", "holds"]),
        (0.03, 0.9, ["does not hold", "holds"]),
        (0.8, 0.9, ["holds", "does not hold"]),
        (0.03, 0.05, ["does not hold", "not applicable"]),
        (0.34, None, ["holds", "unclear"]),
    ],
)
def test_claims_of_cases(share: float, seen: float | None, expected: list[str]) -> None:
    facts = {
        "share": share,
        "share_lo": share - 0.02,
        "share_hi": share + 0.02,
        "variants_related": seen,
        "variants": 200,
    }
    found = [claim.weigh(Measurement([], facts, SHAPE)) for claim in cases.ANALYSIS.figures[0].claims]
    assert [verdict.outcome for verdict in found] == expected
