"""Model folders whose parts are damaged, missing, or do not belong together: each refused, with what to do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CELLS, LAYERS, VOCABULARY, D, save, tiny, tokenizer
from safetensors.torch import load_file, save_file

import keyhole
from keyhole.errors import ModelError, ProofFailed, UsageError
from keyhole.models.model import Model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(save(tiny("llama"), tmp_path / "model"))


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def reweigh(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refused(folder: Path, says: str) -> str:
    """What loading the folder says, in one line."""
    with pytest.raises(ModelError, match=says) as caught:
        keyhole.load(folder)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# Configuration


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "config.json is damaged: it is not JSON"),
        ('{"model_type": "llama"', "config.json is damaged: it is not JSON"),
        ("\xff", "config.json is damaged: it is not JSON"),
        ("[" * 100_000, "config.json is damaged: it is not JSON"),
        ("[1]", "config.json is damaged: a JSON object is needed, this is a list"),
        ("{}", "names no model_type"),
        ('{"model_type": 3}', "names no model_type"),
        ('{"model_type": "no-such"}', "cannot be loaded|does not know the architecture"),
    ],
)
def test_a_configuration_that_is_none(content: str, says: str, folder: Path) -> None:
    (folder / "config.json").write_text(content, encoding="latin1")
    refused(folder, says)


@pytest.mark.parametrize(
    ("name", "value", "weight", "has", "wants"),
    [
        ("hidden_size", 2 * D, "model.embed_tokens.weight", [VOCABULARY, D], [VOCABULARY, 2 * D]),
        ("intermediate_size", 10**12, "model.layers.0.mlp.gate_proj.weight", [CELLS, D], [10**12, D]),
        ("vocab_size", 200, "model.embed_tokens.weight", [VOCABULARY, D], [200, D]),
    ],
)
def test_weights_of_other_sizes_than_the_configuration(
    name: str, value: int, weight: str, has: list[int], wants: list[int], folder: Path
) -> None:
    configure(folder, **{name: value})
    assert f"the weight {weight} has the shape {has}, and {wants} by the configuration" in refused(folder, "fetch both")


@pytest.mark.parametrize("value", ["x", None, [], {}, -1, 0, 10**12, 2.5])
@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "hidden_act"]
)
def test_settings_of_the_wrong_kind(name: str, value: object, folder: Path, recwarn: object) -> None:
    configure(folder, **{name: value})
    refused(folder, str(folder))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_neox", "bloom"])
@pytest.mark.parametrize("prefixed", [True, False])
def test_fewer_layers_than_the_weights_have(family: str, prefixed: bool, tmp_path: Path) -> None:
    """Also if the checkpoint holds the blocks alone, and its names lack the prefix of the whole model."""
    model = tiny(family)
    folder = Path(save(model, tmp_path / "model"))
    if not prefixed:
        prefix = f"{model.lm.base_model_prefix}."
        weights = {key.removeprefix(prefix): weight for key, weight in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert keyhole.load(folder).layers == LAYERS
    config = json.loads((folder / "config.json").read_text())
    name = next(name for name in ("num_hidden_layers", "n_layer") if name in config)
    configure(folder, **{name: LAYERS - 1})
    refused(folder, f"has weights of {LAYERS} layers, and its configuration says {LAYERS - 1}")
    configure(folder, **{name: LAYERS + 1})
    refused(folder, "lacks weights")


def test_what_is_no_part_of_the_model_may_be_stored_beside_it(folder: Path) -> None:
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "vision_tower.encoder.layers.40.mlp.fc1.weight": torch.ones(2, 2),
        "model.vision_tower.layers.40.mlp.fc1.bias": torch.ones(2),
        "multi_modal_projector.weight": torch.ones(2, 2),
    }
    reweigh(folder, lambda weights: weights.update(extra))
    assert keyhole.load(folder).fingerprint == tiny("llama").fingerprint


def test_a_bias_that_the_configuration_leaves_out(folder: Path) -> None:
    reweigh(folder, lambda weights: weights.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(D)}))
    refused(folder, "does not use: model.layers.1.self_attn.q_proj.bias.*attention_bias")


# Weights


def test_weights_that_were_cut_or_garbled(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for cut in [0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(data) // 2, len(data) - 1]:
        (folder / "model.safetensors").write_bytes(data[:cut])
        refused(folder, "cannot be loaded")
    (folder / "model.safetensors").write_bytes(data + b"more")
    refused(folder, "cannot be loaded")
    rng = random.Random(0)
    for _ in range(40):
        at = rng.randrange(header)
        (folder / "model.safetensors").write_bytes(data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        try:
            keyhole.load(folder)
        except ModelError as error:
            said = str(error)
        else:
            continue  # a letter of what nobody reads
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "where", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(where: str, value: float, folder: Path) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights[where][5, 3] = value  # a row of the embedding that the proof's input does not have

    reweigh(folder, spoil)
    with pytest.raises(ProofFailed, match=f"the weight {where} has entries that are NaN or infinite"):
        keyhole.load(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    model = tiny("llama")
    model.lm.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    tokenizer().save_pretrained(tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    return tmp_path / "sharded"


def test_shards(sharded: Path) -> None:
    assert keyhole.load(sharded).fingerprint == tiny("llama").fingerprint
    index = sharded / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.rename(sharded / "elsewhere")
    refused(sharded, f"lacks {shard.name}, which its model.safetensors.index.json names")
    (sharded / "elsewhere").rename(shard)
    for content, says in (
        ("{", "index.json is damaged: it is not JSON"),
        ("[]", "a JSON object is needed"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"x": 3}}', "has no weight_map"),
        (json.dumps({"weight_map": whole["weight_map"]}), "cannot be loaded: KeyError: 'metadata'"),
    ):
        index.write_text(content)
        refused(sharded, says)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/outside.safetensors", "a/../../outside.safetensors"])
def test_an_index_that_leads_elsewhere(name: str, sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    there = json.loads(index.read_text())
    shard = sorted(sharded.glob("*.safetensors"))[0]
    (sharded.parent / "outside.safetensors").write_bytes(shard.read_bytes())
    there["weight_map"] = {key: name if file == shard.name else file for key, file in there["weight_map"].items()}
    index.write_text(json.dumps(there))
    refused(sharded, "index of weights names .*outside.safetensors', which is not in the same folder")


def test_folders_without_weights(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "has no weights: neither model.safetensors nor model.safetensors.index.json")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "is no model folder: it has no config.json")
    (tmp_path / "empty" / "config.json").mkdir()
    refused(tmp_path / "empty", "is no model folder: it has no config.json")


# Tokenizer


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "null"),
        ("tokenizer.json", '{"version": "1.0"}'),
        ("tokenizer.json", None),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"tokenizer_class": 3}'),
        ("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": 5}'),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_tokenizer_that_is_damaged_or_missing(family: str, file: str, content: str | None, tmp_path: Path) -> None:
    folder = Path(save(tiny(family), tmp_path / "model"))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    refused(folder, "tokenizer")


def test_a_tokenizer_with_more_tokens_than_the_embedding(folder: Path) -> None:
    more = tokenizer()
    more.add_tokens([f"<more{i}>" for i in range(100)])
    more.bos_token = "<more99>"
    more.save_pretrained(folder)
    model = keyhole.load(folder)
    last = len(more) - 1
    says = (
        rf"gives the token id {last} \('<more99>'\), and the model's embedding has {VOCABULARY} rows, for ids 0 to 299"
    )
    with pytest.raises(ModelError, match=says):
        model.batch([[1, 2]])  # its start token
    with pytest.raises(ModelError, match=says):
        model.check_ids(last)
    with pytest.raises(ModelError, match=says):
        model.batch([[1, 2], [last]], bos=False)
    with pytest.raises(ModelError, match=rf"gives the token id {last - 1} \('<more98>'\)"):
        model.coefficients("a <more98>", bos=False)
    model.check_ids(VOCABULARY - 1)
    assert model.batch([[1, VOCABULARY - 1]], bos=False).ids.tolist() == [[1, VOCABULARY - 1]]
    with pytest.raises(ModelError, match="gives the token id -1"):
        model.check_ids(-1)


# Names


def test_sources_of_every_kind(folder: Path) -> None:
    for source in (folder, str(folder), bytes(folder)):
        model = keyhole.load(source)  # type: ignore[arg-type]
        assert model.source == str(folder)
    for source in (123, None, [str(folder)], "", b""):
        with pytest.raises(UsageError, match="A model is named by a hub id, a folder or a .gguf file"):
            keyhole.load(source)  # type: ignore[arg-type]
    for source in ("two\nlines", "nul\0", "a/b/c/d", "x" * 5000, "\udcff"):
        with pytest.raises(ModelError, match="cannot be loaded") as caught:
            keyhole.load(source)
        assert str(caught.value).isprintable()


def test_options_of_the_wrong_kind(folder: Path) -> None:
    for options, says in (
        ({"device": []}, "cannot be used here"),
        ({"dtype": ["float32"]}, "is not one of auto"),
        ({"dtype": torch.float32}, "is not one of auto"),
    ):
        with pytest.raises(UsageError, match=says):
            keyhole.load(folder, **options)  # type: ignore[arg-type]


def test_a_model_that_fails_in_its_forward_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Model, ids: torch.Tensor) -> None:
        raise IndexError("index out of range in self\nand more")

    monkeypatch.setattr(Model, "forward", fails)
    with pytest.raises(ProofFailed, match=r"running it fails \(IndexError: index out of range in self\)"):
        keyhole.load(folder)


def test_a_model_that_does_not_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee more")

    monkeypatch.setattr(Model, "forward", fails)
    with pytest.raises(ModelError, match="does not fit in the memory of cpu: CUDA out of memory"):
        keyhole.load(folder)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fails)
    refused(folder, "does not fit in memory: CUDA out of memory")
