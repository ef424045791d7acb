"""The softmax that a layer is not: numbers of memories, rebuilt outputs and losses against plain forward passes."""

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
from keyhole.analyses import heldout, softmax, softmax_states
from keyhole.analyses.measured import Measured
from keyhole.models.model import Model


def forwards(
    model: Model, ids: list[int], layer: int, way: str, watching: softmax_states.Rebuilding
) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's own forward pass with one layer's down-projection given other coefficients: logits and its last input, keys."""
    site = model.sites[layer]
    assert site.key is not None
    seen: list[torch.Tensor] = []
    o = watching.signs[model.cells.span(layer)]

    def keep(module: object, args: object, output: torch.Tensor) -> None:
        seen.append(output[..., site.key.part])  # type: ignore[union-attr]

    def change(module: object, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        m = args[0]
        norm = m.norm(dim=-1, keepdim=True)
        if way == "softmax":
            p = torch.softmax(seen[0].reshape(m.shape), -1)
            return (p / p.norm(dim=-1, keepdim=True) * norm * o,)
        return ((m * o)[..., watching.orders[layer]] * o if way == "shuffled" else m * 0,)

    handles = [site.key.module.register_forward_hook(keep), site.module.register_forward_pre_hook(change)]
    with torch.no_grad():
        logits = model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits, seen[0]


@pytest.mark.parametrize("family", ["gpt2", "llama", "phi3", "gemma2", "opt", "falcon"])
def test_losses_equal_a_forward_pass_each(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "REPLACED", 5)
    monkeypatch.setattr(softmax, "TOGETHER", 60)
    model = tiny(family)
    run = scanned(model, tmp_path)
    vars(run)["orientation"] = np.where(np.random.default_rng(1).random(len(run.cells)) < 0.5, -1, 1).astype(np.int8)
    keyhole.analyze(run, model=model, only=["agreement"])
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    from keyhole.lens.head import Head
    from keyhole.store.values import Values

    watching = softmax.observe(run, Head(model), Values(run, "norm"), prefixes)
    found = softmax_states.losses(watching, prefixes, bos=True)
    assert all("forward" not in vars(block) for block in model.blocks)
    for at, row in enumerate(watching.chosen):
        ids, following = prefixes.ids[row], prefixes.following[row]
        with torch.no_grad():
            own = model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False).logits[0, -1]
        assert found["own"][at] == pytest.approx(-float(torch.log_softmax(own, -1)[following]), rel=1e-3, abs=1e-4)
        for layer in range(model.layers):
            for way in softmax.WAYS:
                logits, _ = forwards(model, ids, layer, way, watching)
                expected = -float(torch.log_softmax(logits, -1)[following])
                assert found[way][layer, at] == pytest.approx(expected, rel=1e-3, abs=1e-4), (layer, way)


def test_the_table_equals_its_definitions(tmp_path: Path) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["softmax"])
    prefixes = heldout.prefixes(run, model, None, samples=4000, seed=0)
    rows, n = run.table("softmax"), len(prefixes.ids)
    watching_rows = np.sort(np.random.default_rng(0).permutation(n)[: softmax.REPLACED])
    assert rows[0]["rebuilt"] == len(watching_rows) <= n == rows[0]["n"]
    e = paper.unembedding(model)
    seen = [paper.look(model, ids) for ids in prefixes.ids]
    for row in rows:
        layer = row["layer"]
        site = model.sites[layer]
        assert site.key is not None
        entropy, counts, same, change = [], {"softmax": [], "magnitude": [], "relu": []}, [], []
        for at, ids in enumerate(prefixes.ids):
            got: list[torch.Tensor] = []
            handle = site.key.module.register_forward_hook(lambda _, args, out, got=got: got.append(out[0, -1]))
            with torch.no_grad():
                model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False)
            handle.remove()
            z, m = got[0].double().numpy(), seen[at].m[layer].astype(np.float64)
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            entropy.append(-(p * np.log(p)).sum())
            for name, a in (("softmax", p), ("magnitude", np.abs(m)), ("relu", np.maximum(z, 0))):
                counts[name].append(a.sum() ** 2 / (a**2).sum())
            if at in watching_rows:
                c = torch.from_numpy(p / np.linalg.norm(p) * np.linalg.norm(m)).float()
                built, y = c @ model.values(layer) + site.bias, seen[at].y[layer]
                said = [int((e @ paper.folded(model, each)).argmax()) for each in (built, y)]
                same.append(said[0] == said[1])
                change.append(float((built - y).norm() / y.norm()))
        assert row["entropy"] == pytest.approx(np.mean(entropy), rel=1e-4)
        assert row["relative_entropy"] == pytest.approx(np.mean(entropy) / math.log(24), rel=1e-4)
        for name, expected in counts.items():
            assert row[f"memories_{name}"] == pytest.approx(np.mean(expected), rel=1e-3)
        assert row["same_softmax"] == pytest.approx(np.mean(same))
        assert row["change_softmax"] == pytest.approx(np.mean(change), rel=1e-3)
        assert row["loss_removed_lo"] <= row["loss_removed"] <= row["loss_removed_hi"]


def test_for_relu_without_a_gate_the_relu_of_keys_is_the_layer(tmp_path: Path) -> None:
    model = tiny("opt")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["softmax"])
    for row in run.table("softmax"):
        assert row["same_relu"] == row["same_magnitude"] == 1
        assert row["change_relu"] == pytest.approx(0, abs=1e-4)
        assert row["memories_relu"] == pytest.approx(row["memories_magnitude"], rel=1e-4)


def test_negating_up_and_value_changes_nothing(tmp_path: Path) -> None:
    model = tiny("llama")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["softmax"])
    before = run.table("softmax")
    other = Model(copy.deepcopy(model.lm), model.tokenizer, source="flipped")
    sign = np.where(np.random.default_rng(4).random(len(run.cells)) < 0.5, -1, 1)
    for layer, block in enumerate(other.blocks):
        here = torch.from_numpy(sign[run.cells.span(layer)]).float()
        block.mlp.up_proj.weight.data *= here[:, None]
        block.mlp.down_proj.weight.data *= here
    run.manifest["model"]["fingerprint"] = other.fingerprint
    vars(run)["orientation"] = (run.orientation * sign).astype(np.int8)
    keyhole.analyze(run, model=other, only=["softmax"])
    for row, expected in zip(run.table("softmax"), before, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_share_of_the_parameters() -> None:
    for family in sorted(TINY):
        model = tiny(family)
        names = ("mlp.", ".fc1", ".fc2")
        inside = sum(p.numel() for name, p in model.lm.named_parameters() if any(part in name for part in names))
        assert softmax_states.feed_forward_share(model) == pytest.approx(
            inside / sum(p.numel() for p in model.lm.parameters())
        )


def test_a_deep_model_is_replaced_in_some_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert softmax_states.some_layers(30) == [0, 3, 6, 10, 13, 16, 19, 23, 26, 29]
    assert softmax_states.some_layers(4) == [0, 1, 2, 3]
    monkeypatch.setattr(softmax, "LAYERS", 2)
    model = tiny("llama")
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["softmax"])
    rows = run.table("softmax")
    assert [row["loss_softmax"] is None for row in rows] == [False, True, False]
    facts = Measured.read(run).facts["softmax"]
    assert facts["raised"] == pytest.approx((rows[0]["loss_softmax"] + rows[2]["loss_softmax"]) / 2)
