"""A saved model against the live one: every family, tied and untied, in the type it came in; and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from families import TINY, tiny, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import keyhole
from keyhole.errors import ModelError, RunExists, UsageError
from keyhole.models import save as saving
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.models.save import save

TEXT = "The cat sat"
EDITS = [Edit(0, 2, 0.0), Edit(1, 5, -0.5, towards="P", by=2.0), Edit(2, 7, value=None, scale=3.0)]


def logits(lm: torch.nn.Module, model: Model) -> torch.Tensor:
    with torch.no_grad():
        return lm(input_ids=model.batch(model.tokenize([TEXT])).ids, use_cache=False).logits.float()


@pytest.mark.parametrize("family", sorted(TINY))
def test_plain_transformers_loads_what_the_live_model_computes(family: str, tmp_path: Path) -> None:
    model, out = tiny(family), tmp_path / "out"
    before = logits(model.lm, model)
    with applied(model, EDITS):
        expected = logits(model.lm, model)
        saved = save(model, out, {"made": "edit"})
    assert torch.equal(logits(model.lm, model), before)
    assert (expected - before).abs().max() > 1e-3
    again = AutoModelForCausalLM.from_pretrained(out)
    assert again.dtype == torch.float32
    torch.testing.assert_close(logits(again, model), expected, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(out)(TEXT)["input_ids"] == model.tokenizer(TEXT)["input_ids"]
    assert saved.difference < 1e-5
    assert saved.bytes == sum(path.stat().st_size for path in out.iterdir())
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1
    told = json.loads((out / "keyhole.json").read_text())
    assert (told["keyhole"], told["made"], told["source"]) == (1, "edit", model.source)
    assert told["fingerprint"] == model.weights_fingerprint
    assert told["files"] == sorted(path.name for path in out.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # nothing is left beside it


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_stay_tied_and_others_apart(tied: bool, tmp_path: Path) -> None:
    model = tiny("llama", tie_word_embeddings=tied)
    save(model, tmp_path / "out", {"made": "edit"})
    again = keyhole.load(tmp_path / "out").lm
    assert again.config.tie_word_embeddings is tied
    assert (again.get_input_embeddings().weight is again.get_output_embeddings().weight) is tied
    from safetensors import safe_open

    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as opened:
        assert ("lm_head.weight" in opened.keys()) is not tied  # noqa: SIM118 - it is no dict


def half(folder: Path, dtype: torch.dtype = torch.float16) -> Path:
    model = tiny("llama")
    lm = AutoModelForCausalLM.from_config(model.config, dtype=dtype)
    lm.load_state_dict(model.lm.state_dict())
    lm.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_weights_go_back_to_the_type_of_their_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    source = half(tmp_path / "half")
    model = keyhole.load(source, device="cpu", dtype="float32")
    assert (model.dtype, model.stored) == (torch.float32, torch.float16)
    with applied(model, [Edit(1, 5, 0.3)]):
        saved = save(model, tmp_path / "out", {"made": "edit"})
    assert saved.dtype == "float16"
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out"))
    changed = "model.layers.1.mlp.down_proj.weight"
    assert all(torch.equal(before[name], after[name]) for name in before if name != changed)
    expected = before[changed].clone()
    expected[:, 5] = (expected[:, 5].float() * 0.3).half()
    assert torch.equal(after[changed], expected)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float16"
    assert keyhole.load(tmp_path / "out", dtype="float32").stored == torch.float16
    # a type that the configuration does not say is that of the weights
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({name: each for name, each in config.items() if name != "dtype"}))
    assert keyhole.load(source, dtype="float32").stored == torch.float16
    assert save(model, tmp_path / "wide", {"made": "edit"}, dtype="float32").dtype == "float32"
    assert keyhole.load(tmp_path / "wide").stored == torch.float32


@pytest.mark.parametrize("case", ["said narrower", "mixed"])
def test_weights_wider_than_the_configuration_says_stay_as_they_are(case: str, tmp_path: Path) -> None:
    """All weights in float32 under a configuration that says float16; or norms in float32 among bfloat16."""
    from safetensors.torch import load_file, save_file

    source = half(tmp_path / "source", torch.float32)
    said = torch.float16 if case == "said narrower" else torch.bfloat16
    weights = load_file(source / "model.safetensors")
    torch.manual_seed(0)
    for name in weights:
        if "norm" in name:
            weights[name] = 1 + torch.rand_like(weights[name]) / 1000
        elif case == "mixed":
            weights[name] = weights[name].to(said)
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "dtype": str(said).removeprefix("torch.")}))
    model = keyhole.load(source, device="cpu", dtype="float32")
    assert (model.stored, model.widest) == (said, torch.float32)
    with applied(model, [Edit(1, 5, 0.3), Edit(0, 2, towards="P", by=0.7)]):
        save(model, tmp_path / "out", {"made": "edit"})
    after = load_file(tmp_path / "out" / "model.safetensors")
    changed = "model.layers.1.mlp.down_proj.weight"
    moved = "model.layers.0.mlp.down_proj.weight"
    left = [name for name in weights if name not in (changed, moved)]
    assert all(torch.equal(weights[name], after[name].to(weights[name].dtype)) for name in left)
    assert after["model.norm.weight"].dtype == torch.float32
    assert after[moved].dtype == after[changed].dtype
    assert after[changed].dtype == (torch.float32 if case == "said narrower" else said)
    # the live model has lost what its type cannot hold
    narrow = keyhole.load(source, dtype="bfloat16")
    with pytest.raises(UsageError, match=r"runs in bfloat16, and has weights in float32.*If .* is meant: --dtype"):
        save(narrow, tmp_path / "no", {"made": "edit"})
    assert not (tmp_path / "no").exists()


def test_scales_are_rounded_once(tmp_path: Path) -> None:
    """Of a model that runs in half precision, saved in float32: m·s·v has the float32 product."""
    source = half(tmp_path / "half", torch.bfloat16)
    model = keyhole.load(source, dtype="bfloat16")
    before = model.values(1)[5].float().clone()
    with applied(model, [Edit(1, cell, 0.7) for cell in range(24)]):
        saved = save(model, tmp_path / "out", {"made": "edit"}, dtype="float32")
    assert saved.difference < saving.HALF_MODEL
    assert torch.equal(keyhole.load(tmp_path / "out", dtype="float32").values(1)[5], before * 0.7)


def test_a_tokenizer_with_several_chat_templates_is_saved(tmp_path: Path) -> None:
    import copy

    model = tiny("llama")
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.chat_template = {"default": "{{ messages }}", "tools": "{{ tools }}"}
    try:
        saved = save(model, tmp_path / "out", {"made": "edit"})
    finally:
        tiny.cache_clear()
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again.chat_template == {"default": "{{ messages }}", "tools": "{{ tools }}"}
    assert saved.bytes > sum(path.stat().st_size for path in (tmp_path / "out").iterdir() if path.is_file())


def test_code_that_was_not_loaded_is_not_named(tmp_path: Path) -> None:
    source = half(tmp_path / "half", torch.float32)
    (source / "own.py").write_text(CODE)
    config = json.loads((source / "config.json").read_text())
    codes = {"AutoModelForCausalLM": "own.Own", "AutoConfig": "someone/else--code.Config"}
    (source / "config.json").write_text(json.dumps({**config, "auto_map": codes}))
    save(keyhole.load(source), tmp_path / "out", {"made": "edit"})
    assert "own.Own" not in (tmp_path / "out" / "config.json").read_text()
    assert keyhole.load(tmp_path / "out").layers == 3


def test_folders_of_other_people_stay(tmp_path: Path) -> None:
    import os
    import time

    mine, ours = tmp_path / "out.partial-results", tmp_path / "out.partial-1234-0a1b"
    for folder in (mine, ours):
        folder.mkdir()
        os.utime(folder, (0, time.time() - 3 * 24 * 3600))
    save(tiny("llama"), tmp_path / "out", {"made": "edit"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial-results"]


def test_what_is_told_is_strict_json(tmp_path: Path) -> None:
    save(tiny("llama"), tmp_path / "out", {"made": "edit", "random": float("nan")})
    assert '"random": null' in (tmp_path / "out" / "keyhole.json").read_text()


def test_numbers_that_the_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = keyhole.load(half(tmp_path / "half"), dtype="float32")
    with applied(model, [Edit(1, 5, 1e6)]):
        with pytest.raises(UsageError, match=r"down_proj.weight has numbers that float16 cannot hold.*--dtype float32"):
            save(model, tmp_path / "out", {"made": "edit"})
        assert save(model, tmp_path / "wide", {"made": "edit"}, dtype="float32").difference < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "wide"]


def test_edits_at_positions_cannot_be_saved(tmp_path: Path) -> None:
    model = tiny("llama")
    with (
        applied(model, [Edit(1, 5, 0.0, (2,))]),
        pytest.raises(UsageError, match="L1.5 is edited at chosen positions.*keep the file of edits"),
    ):
        save(model, tmp_path / "out", {"made": "edit"})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_the_model_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    kept = saving._weights

    def wrong(model: Model, dtype: torch.dtype, *, every: bool) -> dict[str, torch.Tensor]:
        found = kept(model, dtype, every=every)
        return {**found, "model.norm.weight": found["model.norm.weight"] * 1.5}

    monkeypatch.setattr(saving, "_weights", wrong)
    with pytest.raises(ModelError, match=r"logits differ from those of the live one by"):
        save(model, tmp_path / "out", {"made": "edit"})
    monkeypatch.setattr(saving, "_weights", kept)
    monkeypatch.setattr(model.tokenizer, "save_pretrained", lambda folder: None)
    with pytest.raises(ModelError, match="What was written is no model that loads, so it was removed"):
        save(model, tmp_path / "out", {"made": "edit"})
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = tiny("llama"), tmp_path / "out"
    out.mkdir()
    save(model, out, {"made": "edit"})  # an empty folder is no obstacle
    with pytest.raises(RunExists, match="a model at .* already.*--force"):
        save(model, out, {"made": "edit"})
    with applied(model, [Edit(0, 0, 0.0)]):
        save(model, out, {"made": "edit", "mine": 1}, force=True)
    assert json.loads((out / "keyhole.json").read_text())["mine"] == 1
    assert not keyhole.load(out).values(0)[0].any()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(RunExists, match="it has notes.txt too"):
        save(model, out, {"made": "edit"}, force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with pytest.raises(RunExists, match="Keyhole did not make it"):
        save(model, tmp_path / "other", {"made": "edit"}, force=True)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(RunExists, match="is a link or a file"):
        save(model, tmp_path / "link", {"made": "edit"}, force=True)
    monkeypatch.chdir(out)
    with pytest.raises(UsageError, match="the folder you are in"):
        save(model, out, {"made": "edit"}, force=True)
    loaded = keyhole.load(out)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunExists, match="holds the model itself"):
        save(loaded, out, {"made": "edit"}, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "other", "out"]


def test_generation_settings_that_transformers_would_refuse_are_kept(tmp_path: Path) -> None:
    model = tiny("llama", max_position_embeddings=61)
    model.lm.generation_config.temperature = 0.7  # without sampling: many published models have that
    model.lm.generation_config.eos_token_id = 1
    save(model, tmp_path / "out", {"made": "edit"})
    found = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (found["temperature"], found["eos_token_id"]) == (0.7, 1)
    assert model.lm.generation_config.temperature == 0.7


def test_a_model_whose_values_were_changed_for_good_is_saved_with_the_fingerprint_of_its_source(tmp_path: Path) -> None:
    source = half(tmp_path / "half")
    plain = keyhole.load(source)
    edited = keyhole.load(source, edits=[Edit(1, 5, 2.0, towards="P", by=1.0)])
    save(edited, tmp_path / "out", {"made": "edit"})
    assert json.loads((tmp_path / "out" / "keyhole.json").read_text())["fingerprint"] == plain.weights_fingerprint
    torch.testing.assert_close(
        logits(keyhole.load(tmp_path / "out").lm, plain), logits(edited.lm, plain), rtol=1e-2, atol=1e-2
    )


CODE = """
from transformers import LlamaForCausalLM

class Own(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        return found
"""


@pytest.mark.slow(seconds=8)
def test_a_model_with_code_of_its_own_takes_it_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", list(sys.path))
    source = half(tmp_path / "half", torch.float32)
    (source / "own.py").write_text(CODE)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "own.Own"}}))
    model = keyhole.load(source, trust_remote_code=True)
    assert type(model.lm).__name__ == "Own"
    out = tmp_path / "out"
    with applied(model, [Edit(1, 5, 0.0)]):
        save(model, out, {"made": "edit"}, trust_remote_code=True)
    assert (out / "own.py").read_text() == CODE
    again = keyhole.load(out, trust_remote_code=True)
    assert type(again.lm).__name__ == "Own"
    assert not again.values(1)[5].any()
    assert "own.py" in json.loads((out / "keyhole.json").read_text())["files"]
