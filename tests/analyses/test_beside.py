"""Runs beside each other: their names, the interval of a difference, and which claims differ."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import save, tiny
from planted import NAMES, STATEMENTS, listed, plant
from small import corpus

import keyhole
from keyhole.analyses import beside
from keyhole.analyses.measured import Measured
from keyhole.analyses.record import Effect
from keyhole.errors import UsageError

OPTIONS: dict[str, Any] = {"top": 4, "unit": "line", "device": "cpu"}


@pytest.fixture(autouse=True)
def planted() -> Iterator[None]:
    with listed():
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model over two corpora, and its control."""
    folder = tmp_path_factory.mktemp("beside")
    model = save(tiny("gpt2"), folder / "tiny")
    texts = [corpus(folder / "one.txt"), corpus(folder / "two.txt", 30)]
    made = {
        "one": keyhole.scan(model, [texts[0]], out=folder / "run-one", **OPTIONS),
        "two": keyhole.scan(model, [texts[1]], out=folder / "run-two", **OPTIONS),
        "control": keyhole.scan(model, [texts[0]], out=folder / "run-control", control="random", **OPTIONS),
    }
    return {name: run.path for name, run in made.items()}


@pytest.fixture
def fresh(runs: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Copies for one test to fill."""
    return {name: shutil.copytree(path, tmp_path / path.name) for name, path in runs.items()}


# The difference


def test_the_interval_of_a_difference_is_that_of_normal_samples() -> None:
    """For symmetric intervals MOVER is the usual ±1.96·√(s²+t²)."""
    here, there = Effect(3.0, 3.0 - 1.96 * 0.3, 3.0 + 1.96 * 0.3), Effect(1.0, 1.0 - 1.96 * 0.4, 1.0 + 1.96 * 0.4)
    found = beside.difference(here, there)
    assert found.value == 2.0
    assert found.lo == pytest.approx(2 - 1.96 * 0.5)
    assert found.hi == pytest.approx(2 + 1.96 * 0.5)


def test_each_end_of_a_difference_takes_the_side_that_pushes_it_there() -> None:
    """Of lopsided intervals, the lower end uses this effect's lower and the other's upper distance."""
    found = beside.difference(Effect(5, 4, 9), Effect(2, 1.5, 4))
    assert found.lo is not None
    assert found.hi is not None
    assert found.lo == pytest.approx(3 - math.sqrt(1**2 + 2**2))
    assert found.hi == pytest.approx(3 + math.sqrt(4**2 + 0.5**2))
    turned = beside.difference(Effect(2, 1.5, 4), Effect(5, 4, 9))
    assert turned == (-found.value, -found.hi, -found.lo)


def test_a_difference_covers_the_truth_about_95_times_in_100() -> None:
    """Two independent samples of rates with Wilson's intervals, 2,000 times."""
    from keyhole.analyses.stats import wilson

    rng, covered, tries = np.random.default_rng(0), 0, 2000
    for _ in range(tries):
        effects = []
        for rate, n in ((0.08, 150), (0.03, 200)):
            hits = int(rng.binomial(n, rate))
            effects.append(Effect(hits / n, *wilson(hits, n)))
        found = beside.difference(*effects)
        assert found.lo is not None
        assert found.hi is not None
        covered += found.lo <= 0.05 <= found.hi
    assert 0.93 < covered / tries < 0.98


def test_without_an_interval_there_is_none_of_the_difference() -> None:
    assert beside.difference(Effect(2, 1, 3), Effect(1)) == (1, None, None)


# Claims


def test_each_claim_says_whether_it_differs_and_why_not(fresh: dict[str, Path]) -> None:
    plant(fresh["one"], 3, 0.7, large=(0.5, 0.45, 0.55), small=(0.2, 0.1, 0.3), bare=(0.4, 0.3, 0.5))
    plant(fresh["control"], 3, 0.2, large=(0.0, -0.05, 0.05), small=(0.15, 0.05, 0.25), bare=(0.1,))
    here = Measured.read(keyhole.open(fresh["one"]))
    (other,) = beside.others(here, [keyhole.open(fresh["control"])])
    found = {each.claim: each for claims in other.claims.values() for each in claims}
    large, small, bare, absent = (found[claim] for claim in STATEMENTS)
    assert large.result == "differs"
    assert large.difference == pytest.approx((0.5, 0.5 - math.hypot(0.05, 0.05), 0.5 + math.hypot(0.05, 0.05)))
    assert large.adjusted is not None
    assert large.adjusted < 1e-6
    assert large.other is not None
    assert large.other.outcome == "does not hold"
    assert small.result == "no clear difference"
    assert small.adjusted is not None
    assert small.adjusted > 0.4
    assert (bare.result, bare.why) == (
        "cannot be compared",
        "the effect has no interval on tiny with random weights, seed 0",
    )
    assert (absent.result, absent.why) == ("cannot be compared", "there is no effect here")


def test_differences_are_corrected_for_the_claims_compared(fresh: dict[str, Path]) -> None:
    """Each difference has p = 0.03: alone it would differ, among two it does not."""
    half = 1.959963984540054 / 2.1700903775845606  # so that 1 is as far from 0 as p = 0.03
    both = dict.fromkeys(NAMES[:2], (1.0, 1 - half, 1 + half))
    plant(fresh["one"], 3, 0.5, **both)
    plant(fresh["two"], 3, 0.5, **dict.fromkeys(NAMES[:2], (0.0, 0.0, 0.0)))
    (other,) = beside.others(Measured.read(keyhole.open(fresh["one"])), [keyhole.open(fresh["two"])])
    for each in other.claims["planted_lines"]:
        assert each.adjusted == pytest.approx(0.06)
        assert each.result == "no clear difference"
    plant(fresh["one"], 3, 0.5, large=both["large"])
    (other,) = beside.others(Measured.read(keyhole.open(fresh["one"])), [keyhole.open(fresh["two"])])
    assert [each.result for each in other.claims["planted_lines"]] == ["differs", "cannot be compared"]


def test_what_does_not_apply_or_is_not_measured_cannot_be_compared(fresh: dict[str, Path]) -> None:
    plant(fresh["one"], 3, 0.5, large=(1.0, 0.9, 1.1))
    plant(fresh["two"], 3, 0.5, applies=False)
    here = Measured.read(keyhole.open(fresh["one"]))
    two, control = beside.others(here, [keyhole.open(fresh["two"]), keyhole.open(fresh["control"])])
    assert two.claims["planted_lines"][0].why == f"the claim does not apply on {two.name}"
    assert control.claims["planted_lines"][0].other is None
    assert control.claims["planted_lines"][0].why == f"the table 'planted' of {control.name} is not filled"
    assert "planted" in control.missing
    assert "planted" not in two.missing


# Names


def test_runs_are_named_by_what_tells_them_apart(runs: dict[str, Path], tmp_path: Path) -> None:
    one, two, control = (keyhole.open(runs[name]) for name in ("one", "two", "control"))
    assert beside.labels([one, control]) == ["tiny", "tiny with random weights, seed 0"]
    assert beside.labels([one, two]) == ["tiny on one.txt", "tiny on two.txt"]
    copy = keyhole.open(shutil.copytree(runs["one"], tmp_path / "copy"))
    assert beside.labels([one, copy]) == ["tiny on one.txt in run-one", "tiny on one.txt in copy"]
    (tmp_path / "elsewhere").mkdir()
    namesake = keyhole.open(shutil.copytree(runs["one"], tmp_path / "elsewhere" / "run-one"))
    assert beside.labels([one, namesake]) == [f"tiny on one.txt in run-one ({number})" for number in (1, 2)]
    assert beside.labels([one, two, control])[2] == "tiny with random weights, seed 0"


def test_a_run_is_not_shown_beside_itself_nor_too_many(runs: dict[str, Path], tmp_path: Path) -> None:
    one, two = keyhole.open(runs["one"]), keyhole.open(runs["two"])
    (tmp_path / "link").symlink_to(runs["one"])
    for wrong in ([one], [two, two], [keyhole.open(tmp_path / "link")]):
        with pytest.raises(UsageError, match="is named twice"):
            beside.check(one, wrong)
    with pytest.raises(UsageError, match="at most 4"):
        beside.check(one, [two] * 5)
