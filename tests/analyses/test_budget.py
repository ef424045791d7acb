"""How many cells a layer uses, against the definitions in plain numpy, on planted coefficients, and under flipped signs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paper
import pytest
import torch
from families import tiny
from small import scanned

import keyhole
from keyhole.analyses import budget, heldout, registry
from keyhole.analyses.amounts import strengths
from keyhole.analyses.partial import grid
from keyhole.analyses.record import Measurement, Shape
from keyhole.analyses.stats import Interval
from keyhole.cells import Cells
from keyhole.models.model import Model
from keyhole.store import tables


def measured(a: np.ndarray) -> tuple[float, int, float]:
    """Effective number, N90 and dominance of one prefix, from the definitions."""
    order = np.sort(a)[::-1]
    n90 = next(k for k in range(1, len(a) + 1) if order[:k].sum() >= 0.9 * a.sum())
    return a.sum() ** 2 / (a**2).sum(), n90, a.max() / a.sum()


def kstar(model: Model, layer: int, seen: paper.Seen, a: np.ndarray, e: torch.Tensor, lens: str) -> int:
    """The first k of the grid from which on every partial sum of the grid has y's top token."""
    values = torch.stack([paper.value(model, layer, cell) for cell in range(len(a))])
    m, y = torch.from_numpy(seen.m[layer]), seen.y[layer]
    whole = m @ values
    scale = 1.0 if model.post_norm(layer) is None else float((y @ whole) / (whole @ whole))
    order = np.argsort(-a, kind="stable")

    def top(x: torch.Tensor) -> int:
        return int(((paper.folded(model, x) if lens == "norm" else x) @ e.T).argmax())

    def sum_of(k: int) -> torch.Tensor:
        first = order[:k]
        return y - scale * whole + scale * (m[first] @ values[first])

    says = {k: top(sum_of(k)) == top(y) for k in grid(len(a))}
    assert says[len(a)]
    return next(k for k in grid(len(a)) if all(says[j] for j in grid(len(a)) if j >= k))


@pytest.mark.parametrize(
    ("family", "changes", "lens"),
    [
        ("gpt2", {"activation_function": "relu"}, "norm"),
        ("gpt2", {}, "raw"),
        ("llama", {}, "norm"),
        ("gemma2", {}, "norm"),
    ],
)
def test_every_number_equals_its_definition(family: str, changes: dict[str, Any], lens: str, tmp_path: Path) -> None:
    model = tiny(family, **changes)
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["budget"], lens=lens, similar=False)
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    seen = [paper.look(model, ids) for ids in prefixes.ids]
    e = paper.unembedding(model)
    facts = tables.read_facts(run.path, registry.get("budget").schema)
    assert facts["settled"] == min(budget.SETTLED, len(seen)) == len(seen)
    pooled = []
    for row in run.table("budget"):
        layer = row["layer"]
        norms = np.array([float(paper.value(model, layer, cell).norm()) for cell in range(row["cells"])])
        every = [np.abs(one.m[layer]) * norms for one in seen]
        effective, n90, dominance = np.array([measured(a) for a in every]).T
        assert row["effective"] == pytest.approx(effective.mean() / row["cells"], rel=1e-4)
        assert row["n90"] == pytest.approx(n90.mean() / row["cells"])
        assert row["n90_median"] == pytest.approx(np.median(n90) / row["cells"])
        assert row["dominance"] == pytest.approx(dominance.mean(), rel=1e-4)
        settled = [kstar(model, layer, one, a, e, lens) for one, a in zip(seen, every, strict=True)]
        assert row["kstar"] == pytest.approx(np.mean(settled) / row["cells"])
        for name in ("effective", "n90", "dominance", "kstar"):
            assert row[f"{name}_lo"] <= row[name] <= row[f"{name}_hi"]
        pooled.append(n90 / row["cells"])
    assert facts["n90_pooled"] == pytest.approx(np.mean(pooled))


def test_planted_strengths() -> None:
    m = torch.tensor([[1.0, -1, 1, -1], [-10, 0, 0, 0], [0, 0, 0, 0], [9.0, 0.5, -0.5, 0]])
    one = strengths(m, torch.ones(4))
    assert one.effective.tolist() == pytest.approx([4, 1, 0, 100 / 81.5])
    assert one.carriers.tolist() == [4, 1, 0, 1]
    assert one.dominance.tolist() == pytest.approx([0.25, 1, 0, 0.9])
    assert strengths(m, torch.tensor([1.0, 3, 1, 1])).rank[0].tolist() == [1, 0, 2, 3]  # ties by number
    assert one.carry[3].tolist() == [True, False, False, False]


@pytest.mark.parametrize("signed", [True, False])
def test_random_coefficients_use_what_theory_says(signed: bool) -> None:
    """Of half-normal numbers the effective share is 2/π, and those above 0.459 carry 90 %; half of that if half are cut."""
    found = budget.at_random(torch.ones(4000), signed, 0)
    part = 1.0 if signed else 0.5
    assert found["effective"] == pytest.approx(part * 2 / np.pi, abs=0.01)
    assert found["n90"] == pytest.approx(part * 0.646, abs=0.01)


def flipped(model: Model, seed: int) -> None:
    """Turn the signs of (up, v) of random cells: the same model."""
    random = np.random.default_rng(seed)
    for block in model.blocks:
        chosen = torch.from_numpy(random.random(block.mlp.up_proj.weight.shape[0]) < 0.5)
        block.mlp.up_proj.weight.data[chosen] *= -1
        block.mlp.down_proj.weight.data[:, chosen] *= -1


def test_flipped_signs_change_nothing(tmp_path: Path) -> None:
    names = ["budget", "part", "veto", "training", "refinement", "cases"]
    found = []
    for number in range(2):
        tiny.cache_clear()
        model = tiny("llama")
        if number:
            flipped(model, 5)
        (tmp_path / str(number)).mkdir()
        run = scanned(model, tmp_path / str(number))
        run.gated = True
        keyhole.analyze(run, model=model, only=names, lens="norm", similar=False)
        found.append(run)
    tiny.cache_clear()
    for name in names:
        one, other = (run.table(name) for run in found)
        assert len(one) == len(other)
        for row, flip in zip(one, other, strict=True):
            for column, value in row.items():
                same = pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value
                assert flip[column] == same, (name, column)
    assert all(row["active_fraction"] is None for row in found[0].table("budget"))


# Claims


def judged(facts: dict[str, Any], *, gated: bool = False) -> list[str]:
    shape = Shape(Cells.of_widths([10] * 3), 100, signed=gated, gated=gated)
    rows = [{"active_fraction": None if gated else 0.2}]
    return [c.weigh(Measurement(rows, facts, shape)).outcome for f in budget.ANALYSIS.figures for c in f.claims]


def effect(name: str, value: float, half: float = 0.01) -> dict[str, float]:
    return {name: value, f"{name}_lo": value - half, f"{name}_hi": value + half}


def test_claims_can_hold_and_fail() -> None:
    names = ("active_inside", "active_drop", "n90_pooled", "n90_sparser", "kstar_pooled")
    high, low = ({k: v for name in names for k, v in effect(name, value).items()} for value in (0.3, -0.1))
    assert judged(high) == ["holds"] * 5
    assert judged(low) == ["does not hold"] * 5
    assert judged(high, gated=True) == ["not applicable"] * 2 + ["holds"] * 3
    assert judged({}) == ["unclear"] * 5


def test_the_share_of_active_cells_lies_inside_the_range_or_not() -> None:
    inside = budget._inside([Interval(0.3, 0.28, 0.32), Interval(0.2, 0.18, 0.22)])
    assert (inside.value, inside.lo) == (pytest.approx(0.1), pytest.approx(0.08))
    outside = budget._inside([Interval(0.3, 0.28, 0.32), Interval(0.05, 0.04, 0.06)])
    assert outside.value == pytest.approx(-0.05)
    assert outside.hi is not None
    assert -0.04 < outside.hi < -0.03  # wider than 0.06 − 0.1: there are two layers


def test_a_planted_drop_is_found_and_noise_is_not() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(0.3, 0.05, (16, 200))
    fall = budget._drop(noise - 0.2 * np.linspace(0, 1, 16)[:, None], None)
    assert fall.lo is not None
    assert fall.lo > budget.DROP
    flat = budget._drop(noise, None)
    assert flat.hi is not None
    assert flat.hi < budget.DROP
