"""What a silenced cell changes, against forward passes written by hand."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import paper
import pytest
import torch
from families import TINY, tiny
from small import scanned

import keyhole
from keyhole.analyses import ablation, registry
from keyhole.analyses.measured import Measured
from keyhole.lens.head import Head
from keyhole.models.model import Model


def log_probability(model: Model, ids: list[int], layer: int | None = None, cell: int = 0) -> torch.Tensor:
    """Of every token after a text, from the model's own forward; a coefficient at its last token can be set to 0."""
    down = paper.named(model, paper.DOWN)

    def silence(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x = args[0].clone()
        x.view(-1, x.shape[-1])[-1, cell] = 0
        return (x, *args[1:])

    handle = None if layer is None else down[layer].register_forward_pre_hook(silence)
    with torch.no_grad():
        logits = model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False).logits[0, -1]
    if handle:
        handle.remove()
    return torch.log_softmax(logits.double(), 0)


@pytest.mark.parametrize("family", sorted(TINY))
def test_every_number_is_that_of_a_forward_with_the_coefficient_set_to_zero(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path)
    picked = ablation.pick(run, 2, seed=3)
    lost = ablation.silence(run, Head(model), picked)
    for i, (layer, cell, ids) in enumerate(zip(picked.layer, picked.cell, picked.prefixes, strict=True)):
        seen = paper.look(model, ids)
        v = [float(paper.value(model, int(layer), other).norm()) for other in range(model.cells.size(int(layer)))]
        strength = np.abs(seen.m[layer]) * v
        distance = np.abs(strength - strength[cell])
        distance[cell] = np.inf
        before, without = log_probability(model, ids), log_probability(model, ids, int(layer), int(cell))
        token, other = int(picked.following[i]), int(picked.other[i])
        assert token != other
        assert lost[0, i] == pytest.approx(float(before[token] - without[token]), abs=2e-5)
        assert lost[2, i] == pytest.approx(float(before[other] - without[other]), abs=2e-5)
        controls = [
            float((before - log_probability(model, ids, int(layer), int(each)))[token])
            for each in np.flatnonzero(distance <= distance.min() + 1e-5)
        ]
        assert min(abs(lost[1, i] - each) for each in controls) < 2e-5


def test_the_table_is_made_of_means_over_triggers_and_then_over_cells(tmp_path: Path) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["ablation"], cells=3, seed=5)
    picked = ablation.pick(run, 3, seed=5)
    lost = ablation.silence(run, Head(model), picked)
    table = run.table("ablation")
    excess = []
    for layer in range(run.layers):
        here = [row for row in table if row["layer"] == layer]
        cells = [row for row in here if row["cell"] is not None]
        (mean,) = [row for row in here if row["cell"] is None]
        assert len(cells) == mean["n"] == 3
        assert mean["triggers"] == sum(row["triggers"] for row in cells)
        for row in cells:
            own = lost[:, (picked.layer == layer) & (picked.cell == row["cell"])]
            assert row["triggers"] == own.shape[1] <= 4  # the run keeps four
            assert [row[name] for name in ("delta", "null_cell", "null_token")] == pytest.approx(own.mean(1).tolist())
            assert row["above"] == (row["delta"] > row["null_cell"] and row["delta"] > row["null_token"])
            assert (row["lo"], row["hi"]) == (None, None)
            excess.append(row["delta"] - row["null_cell"])
        for name in ("delta", "null_cell", "null_token", "above"):
            assert mean[name] == pytest.approx(np.mean([row[name] for row in cells]))
        assert mean["lo"] <= mean["delta"] <= mean["hi"]
    facts = Measured.read(run).facts["ablation"]
    assert facts["own_cell"] == pytest.approx(np.mean(excess))
    assert facts["depth"] == pytest.approx(np.mean(excess[6:]) - np.mean(excess[:3]))
    assert (facts["cells"], facts["triggers"], facts["seed"]) == (3, ablation.TRIGGERS, 5)

    shown = next(measure for measure in registry.get("ablation").measures if measure.name == "silenced")
    numbers = shown.measure(run, None)
    assert numbers is not None
    for row in table:
        if row["cell"] is not None:
            assert numbers[run.cells.place(row["layer"], row["cell"])] == row["delta"]
    assert int(np.isfinite(numbers).sum()) == 9


def test_a_run_without_the_table_has_no_such_measure(tmp_path: Path) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)
    assert ablation.measure(run, None) is None
    keyhole.analyze(run, model=model, only=["activity"])
    assert ablation.measure(run, None) is None


def test_the_sign_of_a_gated_cell_changes_nothing(tmp_path: Path) -> None:
    """(up, v) → (−up, −v) is the same model, so the same cell and triggers lose the same."""
    model = tiny("llama")
    run = scanned(model, tmp_path)
    picked = ablation.pick(run, 3, seed=0)
    before = ablation.silence(run, Head(model), picked)
    flipped = Model(copy.deepcopy(model.lm), model.tokenizer, source="flipped")
    signs = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], 24)).float()
    with torch.no_grad():
        for block in flipped.blocks:
            block.mlp.up_proj.weight.mul_(signs[:, None])
            block.mlp.down_proj.weight.mul_(signs[None])
    after = ablation.silence(run, Head(flipped), picked)
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_another_token_is_never_the_same_one() -> None:
    following = np.array([4, 4, 4, 9, 7, 4])
    for seed in range(20):
        other = ablation.others(following, np.random.default_rng(seed))
        assert (other != following).all()
        assert np.isin(other, following).all()
    assert ablation.others(np.array([3, 3]), np.random.default_rng(0)).tolist() == [-1, -1]


def effects(own: float, null: float, layers: int = 3) -> dict[str, object]:
    random = np.random.default_rng(0)
    noise = lambda: random.normal(0, 0.0002, (20, 1))  # noqa: E731
    return ablation.effects([np.concatenate([own + noise(), null + noise(), null + noise()], 1) for _ in range(layers)])


@pytest.mark.parametrize(
    ("own", "null", "outcome"), [(0.05, 0.01, "holds"), (0.01, 0.01, "does not hold"), (0.0, 0.05, "does not hold")]
)
def test_a_claim_holds_only_if_the_loss_exceeds_that_of_the_null(own: float, null: float, outcome: str) -> None:
    from keyhole.analyses.record import Measurement

    row = {"cell": 0, "above": 1.0}
    measurement = Measurement([row], effects(own, null), None)  # type: ignore[arg-type]
    assert ablation.matters(measurement).outcome == outcome
    assert ablation.specific(measurement).outcome == outcome
    assert ablation.upwards(measurement).outcome == "does not hold"


def test_one_layer_has_no_depth() -> None:
    assert effects(0.05, 0.01, layers=1)["depth"] is None
    assert not math.isnan(float(str(effects(0.05, 0.01, layers=1)["own_cell"])))
