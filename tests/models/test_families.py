"""Families: each proved on its own numbers, each refused when its row is wrong; loading by every kind of name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from families import CELLS, CONTEXT, LAYERS, TINY, D, save, tiny, tokenizer
from reference import every_prefix, triggers
from torch.nn import functional

import keyhole
from keyhole.errors import ModelError, ProofFailed, UnknownFamily, UnsafeCheckpoint, UsageError
from keyhole.models.families import FAMILIES, family_of
from keyhole.models.intervene import Edit
from keyhole.models.model import Model
from keyhole.models.proof import prove
from keyhole.models.sites import find_sites
from keyhole.models.states import states

GATED = set(TINY) - {"bloom", "falcon", "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "starcoder2"}


def test_every_family_has_a_tiny_model() -> None:
    assert set(TINY) == set(FAMILIES)


@pytest.mark.parametrize("family", sorted(TINY))
def test_the_row_of_every_family_is_proved(family: str) -> None:
    model = tiny(family)
    prove(model)
    assert model.layers == LAYERS
    assert model.values(0).shape == (model.cells.size(0), model.config.hidden_size)
    assert model.signed == (family != "opt")


@pytest.mark.parametrize(
    "change",
    [
        {"transposed": True},
        {"attention": "mlp.up_proj"},
        {"ff_norm": "input_layernorm"},
        {"down": "self_attn.o_proj"},
        {"key": "mlp.up_proj", "up": "mlp.gate_proj"},
        {"function": "input_layernorm"},
        {"up": None},
    ],
)
def test_a_wrong_row_is_refused_with_the_numbers(change: dict[str, object]) -> None:
    model = tiny("llama", intermediate_size=D, cells=D)  # square, so that shapes alone give nothing away
    wrong = Model(model.lm, model.tokenizer, source="wrong")
    wrong.family = replace(wrong.family, **change)  # type: ignore[arg-type]
    wrong.sites = find_sites(wrong.blocks, wrong.family)
    with pytest.raises((ProofFailed, RuntimeError), match="relative difference is|size"):
        prove(wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel_attn": True},
        {"new_decoder_architecture": True, "parallel_attn": True, "num_kv_heads": 2},
        {"alibi": True},
    ],
)
def test_falcon_in_its_variants(changes: dict[str, object]) -> None:
    tiny("falcon", **changes)


@pytest.mark.parametrize("parallel", [True, False])
def test_gpt_neox_with_and_without_parallel_residuals(parallel: bool) -> None:
    tiny("gpt_neox", use_parallel_residual=parallel)


def test_an_unknown_architecture_lists_the_known_and_the_way_to_add_one() -> None:
    with pytest.raises(UnknownFamily, match=r"'mamba'.*bloom, falcon.*starcoder2.*FAMILIES"):
        family_of("mamba")


def test_a_new_family_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "stablelm", replace(FAMILIES["llama"], attention="self_attn.o_proj"))
    monkeypatch.setitem(TINY, "stablelm", TINY["llama"])
    assert tiny("stablelm").coefficients("The cat").shape == (7, LAYERS * CELLS)


def test_coefficients_are_the_gated_activation_for_llama() -> None:
    model = tiny("llama")
    seen = []
    handle = model.blocks[1].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    got = model.coefficients("abc")[:, model.cells.span(1)]
    handle.remove()
    mlp = model.blocks[1].mlp
    x = seen[0][0, 1:]
    expected = functional.silu(x @ mlp.gate_proj.weight.T) * (x @ mlp.up_proj.weight.T)
    torch.testing.assert_close(got, expected)


def test_coefficients_are_relu_of_the_keys_for_opt() -> None:
    model = tiny("opt")
    block, seen = model.blocks[2], []
    handle = block.fc1.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    got = model.coefficients("abc")[:, model.cells.span(2)]
    handle.remove()
    expected = torch.relu(seen[0].reshape(-1, D)[1:] @ block.fc1.weight.T + block.fc1.bias)
    torch.testing.assert_close(got, expected)
    assert (got >= 0).all()


@pytest.mark.parametrize("family", sorted(TINY))
def test_keys_give_the_coefficients(family: str) -> None:
    """x·K + b, computed from the exposed keys and the input of the layer, is what the taps and the states give."""
    model = tiny(family)
    ids = model.batch([model.tokenize(["The cat sat"])[0]]).ids
    site, last = model.sites[1], ids.shape[1] - 1
    assert site.key is not None
    seen: list[torch.Tensor] = []
    handle = site.key.module.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].reshape(-1, args[0].shape[-1]))
    )
    found = states(model, ids, torch.tensor([last]), {"keys", "ups"})
    handle.remove()
    bias = getattr(site.key.module, "bias", None)
    expected = seen[0][last] @ model.keys(1).T + (0 if bias is None else bias)
    torch.testing.assert_close(found.keys[1][0], expected, rtol=1e-4, atol=1e-5)
    if family in GATED:
        torch.testing.assert_close(found.ups[1][0], seen[0][last] @ model.ups(1).T, rtol=1e-4, atol=1e-5)
    else:
        assert found.ups == []
        with pytest.raises(ModelError, match="up projection of layer 1 is not known"):
            model.ups(1)
    assert states(model, ids, torch.tensor([last])).keys == []
    assert family_of(family).gated == (family in GATED)


def test_a_key_of_another_width_is_refused() -> None:
    model = tiny("llama")
    wrong = Model(model.lm, model.tokenizer, source="wrong")
    wrong.family = replace(wrong.family, key="self_attn.o_proj")
    wrong.sites = find_sites(wrong.blocks, wrong.family)
    with pytest.raises(
        ProofFailed, match=f"projection of its keys gives {D} numbers per token, and there are {CELLS} cells"
    ):
        prove(wrong)
    wrong.family = replace(wrong.family, key="input_layernorm.none")
    with pytest.raises(AttributeError, match="has no input_layernorm.none"):
        find_sites(wrong.blocks, wrong.family)


def test_padding_changes_nothing() -> None:
    for family in sorted(TINY):
        model = tiny(family)
        alone, kept = model.coefficients("The cat"), {}
        batch = model.batch([*model.tokenize(["The cat", "A much longer text than that"])])
        model.run(batch.ids, lambda site, x, tokens, kept=kept: kept.update({site: x[0, 1:8].clone()}))
        torch.testing.assert_close(
            torch.cat([kept[layer] for layer in range(LAYERS)], dim=1), alone, rtol=1e-3, atol=1e-5
        )


def test_the_fingerprint_tells_models_apart() -> None:
    model = tiny("gpt2")
    weight = model.blocks[0].mlp.c_fc.weight
    before = Model(model.lm, model.tokenizer, source="a").fingerprint
    assert Model(model.lm, model.tokenizer, source="b").fingerprint == before
    kept = weight[0, 0].item()
    weight.data[0, 0] += 1e-4
    changed = Model(model.lm, model.tokenizer, source="a").fingerprint
    weight.data[0, 0] = kept
    rows = weight.data[:2].clone()
    weight.data[:2] = rows.flip(0)
    swapped = Model(model.lm, model.tokenizer, source="a").fingerprint
    weight.data[:2] = rows
    assert len({before, changed, swapped}) == 3
    assert tiny("llama").fingerprint != tiny("llama", hidden_act="gelu").fingerprint


def test_a_cell_turned_round_has_its_triggers_on_the_negative_side(text: Path, tmp_path: Path) -> None:
    """A ReLU's coefficients are never negative, but those of a cell scaled by −1 are. In the last layer nothing else changes."""
    plain = tiny("opt")
    lines = [line for line in text.read_text("utf-8").split("\n") if line.strip()]
    prefixes = every_prefix(plain, lines, room=CONTEXT - 1)
    last = plain.cells.span(LAYERS - 1)
    cell = int(sum(prefix.coefficients[last] > 0 for prefix in prefixes).argmax())
    for prefix in prefixes:
        prefix.coefficients[last][cell] *= -1
    folder = save(plain, tmp_path / "model")
    model = keyhole.load(folder, edits=[Edit(LAYERS - 1, cell, -1.0)])
    assert model.signed
    assert not plain.signed
    run = keyhole.scan(model, [text], tmp_path / "run", top=4, unit="line", batch_tokens=1, context=CONTEXT)
    for sign, side in ((1, ""), (-1, "_negative")):
        coefficients, units, positions = triggers(prefixes, 4, "sentence", sign)
        assert sign > 0 or not np.isnan(coefficients[last][cell]).all()
        np.testing.assert_array_equal(getattr(run, "coefficients" + side), coefficients)
        np.testing.assert_array_equal(getattr(run, "units" + side), units)
        np.testing.assert_array_equal(getattr(run, "positions" + side), positions)
    assert not keyhole.load(folder, edits=[Edit(LAYERS - 1, cell, 0.5)]).signed


# Loading


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tiny("llama")
    model.lm.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_local_folder(folder: Path) -> None:
    model = keyhole.load(str(folder), dtype="float32")
    assert model.fingerprint == tiny("llama").fingerprint
    torch.testing.assert_close(model.coefficients("The cat"), tiny("llama").coefficients("The cat"))
    assert keyhole.load(model) is model


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_smaller_types_prove_too(dtype: str, folder: Path) -> None:
    model = keyhole.load(str(folder), dtype=dtype)
    assert str(model.dtype) == f"torch.{dtype}"
    got = model.coefficients("The cat sat")
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, tiny("llama").coefficients("The cat sat"), rtol=0.1, atol=0.1)


def test_pickled_weights_are_refused_with_advice(folder: Path) -> None:
    weights = folder / "model.safetensors"
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(UnsafeCheckpoint, match=r"pickle.*save_pretrained.*pytorch_model.bin"):
        keyhole.load(str(folder))


def test_names_that_lead_nowhere(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="(?s)no-such-owner/no-such-model cannot be loaded.*hub id needs the network"):
        keyhole.load("no-such-owner/no-such-model")
    with pytest.raises(ModelError, match="no config.json"):
        keyhole.load(str(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="is a file"):
        keyhole.load(str(tmp_path / "file"))
    with pytest.raises(ModelError, match="There is no file"):
        keyhole.load("nowhere.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"no such thing")
    with pytest.raises(ModelError, match="not a GGUF file: it starts with b'no s'"):
        keyhole.load(str(tmp_path / "bad.gguf"))
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        keyhole.load(str(folder))


def test_an_unknown_architecture_is_refused_before_its_weights_are_read(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"model_type": "llama"', '"model_type": "mamba"'))
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(UnknownFamily, match="'mamba'"):
        keyhole.load(str(folder))


def test_devices_and_types_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="device 'gpu0' cannot be used here"):
        keyhole.load("x", device="gpu0")
    with pytest.raises(UsageError, match="'int8' is not one of auto, float32"):
        keyhole.load("x", dtype="int8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, so asking for it is no mistake")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="device 'cuda' cannot be used here"):
        keyhole.load("x", device="cuda")


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lacks weights: model.layers.1.mlp.down_proj.weight"):
        keyhole.load(str(folder))
