"""Sign cases and cosines of gated cells against loops over cells and prefixes, and under negating (up, value)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from scipy.stats import spearmanr
from small import scanned
from torch.nn import functional

import keyhole
from keyhole.analyses import alignment, gates, heldout
from keyhole.analyses.measured import Measured
from keyhole.models.model import Model
from keyhole.store import percell
from keyhole.views.kinds import gate
from keyhole.web.contract import Explorer

CASES = [(True, True), (True, False), (False, True), (False, False)]


def at_ends(model: Model, prefixes: heldout.Prefixes, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Gate and up before the activation, [prefixes, cells], one forward pass each and products written by hand."""
    mlp, found = model.blocks[layer].mlp, []
    for ids in prefixes.ids:
        seen: list[torch.Tensor] = []
        handle = mlp.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0][0, -1]))
        with torch.no_grad():
            model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False)
        handle.remove()
        found.append(seen[0])
    x = torch.stack(found)
    if hasattr(mlp, "gate_up_proj"):
        half = len(mlp.gate_up_proj.weight) // 2
        gate, up = mlp.gate_up_proj.weight[:half], mlp.gate_up_proj.weight[half:]
    else:
        gate, up = mlp.gate_proj.weight, mlp.up_proj.weight
    return (x @ gate.T).numpy(), (x @ up.T).numpy()


def oriented(run: keyhole.Run, signs: np.ndarray) -> keyhole.Run:
    """The run, its cells read with these signs."""
    vars(run)["orientation"] = signs.astype(np.int8)
    return run


def signs(cells: int) -> np.ndarray:
    return np.where(np.random.default_rng(1).random(cells) < 0.5, -1, 1)


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_sign_cases_equal_a_loop(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = oriented(scanned(model, tmp_path), signs(len(model.cells)))
    keyhole.analyze(run, model=model, only=["gates"])
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    rows = run.table("gates")
    assert [row["layer"] for row in rows] == list(range(model.layers))
    stored = percell.read(run, "gates")
    assert stored is not None
    for row in rows:
        layer = row["layer"]
        span = run.cells.span(layer)
        gate, up = at_ends(model, prefixes, layer)
        norms = model.values(layer).norm(dim=1).numpy()
        m = functional.silu(torch.from_numpy(gate)).numpy() * up
        up = up * run.orientation[span]
        shares: dict[tuple[bool, bool], list[float]] = {case: [] for case in CASES}
        coin, by_cell = [], {case: np.zeros(m.shape[1]) for case in CASES}
        for i in range(len(m)):
            written = np.abs(m[i]) * norms
            for case in CASES:
                here = np.where(((gate[i] > 0) == case[0]) & ((up[i] > 0) == case[1]), written, 0)
                shares[case].append(here.sum() / written.sum())
                by_cell[case] += here
            a, b = (
                np.abs(functional.silu(s * torch.from_numpy(np.abs(gate[i]))).numpy() * up[i]) @ norms for s in (1, -1)
            )
            coin.append(a / (a + b))
        for name, case in zip(gates.CASES, CASES, strict=True):
            assert row[name] == pytest.approx(np.mean(shares[case]), rel=1e-4), name
            total = sum(by_cell.values())
            np.testing.assert_allclose(stored.arrays[name][span], by_cell[case] / total, rtol=1e-3, atol=1e-6)
        both = np.array(shares[CASES[0]]) + np.array(shares[CASES[1]])
        assert row["written_open"] == pytest.approx(both.mean(), rel=1e-4)
        assert row["lo"] < row["written_open"] < row["hi"]
        assert row["written_open_coin"] == pytest.approx(np.mean(coin), rel=1e-4)
        assert row["open"] == pytest.approx((gate > 0).mean())
        np.testing.assert_allclose(stored.arrays["open"][span], (gate > 0).mean(0), atol=1e-6)
        assert sum(row[name] for name in gates.CASES) == pytest.approx(1)
        assert sum(row[f"{name}_independent"] for name in gates.CASES) == pytest.approx(1)
        margin = (row["open_plus"] + row["open_minus"]) * (row["open_minus"] + row["closed_minus"])
        assert row["open_minus_independent"] == pytest.approx(margin)


def test_cosines_equal_products_by_hand(tmp_path: Path) -> None:
    model = tiny("llama")
    run = oriented(scanned(model, tmp_path), signs(len(model.cells)))
    keyhole.analyze(run, model=model, only=["gates", "alignment"])
    opened, stored = percell.numbers(run, "gates", "open"), percell.read(run, "alignment")
    assert opened is not None
    assert stored is not None
    cell = run.cell(1, 3)
    told = json.loads(Explorer(run).body("cells/1/3.json"))["gate"]
    assert told["open"] == pytest.approx(float(opened[cell.place]), rel=1e-2)
    assert told["up_value"] == pytest.approx(float(stored.arrays["up_value"][cell.place]), rel=1e-2)
    assert f"open on {opened[cell.place]:.0%} of prefixes" in str(gate(cell))
    assert f"Gate: {gate(cell)}" in cell._repr_html_()
    for row in run.table("alignment"):
        span, mlp = run.cells.span(row["layer"]), model.blocks[row["layer"]].mlp
        o = run.orientation[span]
        g, u, v = (
            mlp.gate_proj.weight.numpy(),
            mlp.up_proj.weight.numpy() * o[:, None],
            mlp.down_proj.weight.T.numpy() * o[:, None],
        )
        a, b = {"gate_up": (g, u), "gate_value": (g, v), "up_value": (u, v)}[row["pair"]]
        expected = [float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for x, y in zip(a, b, strict=True)]
        np.testing.assert_allclose(stored.arrays[row["pair"]][span], expected, atol=1e-5)
        assert row["cosine"] == pytest.approx(np.mean(expected), abs=1e-5)
        assert row["size"] == pytest.approx(np.mean(np.abs(expected)), abs=1e-5)
        assert row["rho"] == pytest.approx(spearmanr(expected, opened[span]).statistic, abs=1e-4)
        assert row["rho_lo"] < row["rho"] < row["rho_hi"]


def test_negating_up_and_value_changes_nothing(tmp_path: Path) -> None:
    """(up, v) → (−up, −v) is the same model; the cell's orientation is then the other one."""
    model = tiny("llama")
    run = oriented(scanned(model, tmp_path), signs(len(model.cells)))
    only = ["gates", "alignment"]
    keyhole.analyze(run, model=model, only=only)
    before = {name: run.table(name) for name in only}
    cells = {name: {k: v.copy() for k, v in _arrays(run, name).items()} for name in only}
    flipped = Model(copy.deepcopy(model.lm), model.tokenizer, source="flipped")
    chosen = np.random.default_rng(4).random(len(model.cells)) < 0.5
    for layer, block in enumerate(flipped.blocks):
        sign = torch.from_numpy(np.where(chosen[run.cells.span(layer)], -1.0, 1.0)).float()
        block.mlp.up_proj.weight.data *= sign[:, None]
        block.mlp.down_proj.weight.data *= sign
    run.manifest["model"]["fingerprint"] = flipped.fingerprint
    oriented(run, run.orientation * np.where(chosen, -1, 1))
    keyhole.analyze(run, model=flipped, only=only)
    for name in only:
        assert run.table(name) == before[name]
        for key, array in _arrays(run, name).items():
            np.testing.assert_array_equal(array, cells[name][key])


def _arrays(run: keyhole.Run, group: str) -> dict[str, Any]:
    found = percell.read(run, group)
    assert found is not None
    return found.arrays


def test_a_model_without_a_gate_has_no_rows(tmp_path: Path) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["gates", "alignment"])
    assert run.table("gates") == run.table("alignment") == []
    assert percell.read(run, "gates") is None
    assert not Measured.read(run).verdicts


def test_aligned_weights_are_found_and_dealt_ones_are_not(tmp_path: Path) -> None:
    """A model whose ups are its gates: the claim holds; with weights as they are drawn it does not."""
    for plant, outcome in ((True, "holds"), (False, "does not hold")):
        model = Model(
            copy.deepcopy(tiny("llama", layers=3, cells=96, intermediate_size=96).lm),
            tiny("llama").tokenizer,
            source="p",
        )
        for block in model.blocks:
            if plant:
                block.mlp.up_proj.weight.data = block.mlp.gate_proj.weight.data.clone()
        folder = tmp_path / str(plant)
        folder.mkdir()
        run = scanned(model, folder)
        keyhole.analyze(run, model=model, only=["alignment"])
        claim = alignment.aligned("gate_up")
        verdict = claim.weigh(Measured.read(run).of(alignment.ANALYSIS))
        assert verdict.outcome in ((outcome,) if plant else (outcome, "unclear"))
        if plant:
            assert verdict.effect is not None
            assert verdict.effect.value > 0.5
