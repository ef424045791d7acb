"""Checkpoints that would run code, or could: none is run, nothing is unpickled, nobody is asked at the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import save, tiny, tokenizer

import keyhole
from keyhole.errors import ModelError, UnsafeCheckpoint, UsageError
from keyhole.models import checkpoints


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(save(tiny("llama"), tmp_path / "model"))


@pytest.fixture(autouse=True)
def _nothing_is_unpickled_or_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An attempt fails the test at once, even if what tried it swallows the error."""
    tried = []

    def refuse(name: str) -> Any:
        def trap(*args: object, **options: object) -> None:
            tried.append(name)
            raise AssertionError(name)

        return trap

    monkeypatch.setattr(torch, "load", refuse("torch.load"))
    monkeypatch.setattr("pickle.load", refuse("pickle.load"))
    monkeypatch.setattr("builtins.input", refuse("input"))
    yield
    assert tried == []


def configure(path: Path, **changes: Any) -> None:
    there = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(there | changes))


# Code


def plant(folder: Path) -> Path:
    """Code in the folder that leaves a mark when it runs."""
    mark = folder / "it-ran"
    code = f"open({str(mark)!r}, 'w').close()\nfrom transformers import *\nclass Own(LlamaForCausalLM): pass\n"
    (folder / "planted.py").write_text(code)
    return mark


MAPS = {
    "AutoConfig": "planted.Own",
    "AutoModelForCausalLM": "planted.Own",
    "AutoModel": "planted.Own",
    "AutoTokenizer": ["planted.Own", "planted.Own"],
}


@pytest.mark.parametrize("own_type", [False, True])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_is_not_run(
    own_type: bool, file: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a known architecture it is not needed; with one of its own the model is refused, with the flag's name."""
    mark = plant(folder)
    configure(folder / file, auto_map=MAPS, trust_remote_code=True, custom_generate="planted.py")
    if own_type:
        configure(folder / "config.json", model_type="of-its-own")
        if file == "tokenizer_config.json":
            configure(folder / "tokenizer_config.json", tokenizer_class="Own")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    if own_type:
        with pytest.raises(ModelError, match="--trust-remote-code" if file == "config.json" else "of-its-own"):
            keyhole.load(folder)
    else:
        assert keyhole.load(folder).fingerprint
    assert not mark.exists()


@pytest.mark.slow(seconds=8)
def test_the_flag_does_run_it_and_nobody_is_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    mark = plant(folder)
    configure(folder / "config.json", auto_map={"AutoModelForCausalLM": "planted.Own"})
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    before = list(sys.path)
    try:
        assert type(keyhole.load(folder, trust_remote_code=True).lm).__name__ == "Own"
    finally:
        sys.path[:] = before
    assert mark.exists()


def test_a_tokenizer_of_its_own_is_refused_with_the_flag(folder: Path) -> None:
    mark = plant(folder)
    (folder / "tokenizer.json").unlink()
    configure(folder / "tokenizer_config.json", auto_map=MAPS, tokenizer_class="OfItsOwn")
    with pytest.raises(ModelError, match="--trust-remote-code|tokenizer"):
        keyhole.load(folder)
    assert not mark.exists()


def test_templates_and_generation_settings_are_data(folder: Path) -> None:
    mark = plant(folder)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text((folder / "planted.py").read_text())
    (folder / "chat_template.jinja").write_text("{{ cycler.__init__.__globals__ }}")
    configure(folder / "generation_config.json", custom_generate="custom_generate", trust_remote_code=True)
    assert keyhole.load(folder).fingerprint == tiny("llama").fingerprint
    assert not mark.exists()


@pytest.mark.parametrize("value", [None, "yes", 1, "False"])
def test_the_flag_is_a_flag(value: object, folder: Path) -> None:
    with pytest.raises(UsageError, match="trust_remote_code must be True or False"):
        keyhole.load(folder, trust_remote_code=value)  # type: ignore[arg-type]


def test_every_call_says_no(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With None, transformers would ask at a terminal, under an alarm of its own."""
    import transformers

    seen = []
    for auto in ("AutoConfig", "AutoTokenizer", "AutoModelForCausalLM"):
        kind = getattr(transformers, auto)
        real = kind.from_pretrained

        def watched(*args: object, real: Any = real, **options: object) -> Any:
            seen.append(options.get("trust_remote_code"))
            return real(*args, **options)

        monkeypatch.setattr(kind, "from_pretrained", watched)
    keyhole.load(folder)
    assert len(seen) >= 3
    assert all(value is False for value in seen)


# Pickles


def pickled(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    torch.save({"x": torch.ones(1)}, path)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.ckpt", "weights.pkl", "adapter_model.bin"]
)
def test_a_folder_of_pickles(name: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    pickled(folder / name)
    with pytest.raises(UnsafeCheckpoint, match=rf"pickle.*\(found {name}\)"):
        keyhole.load(folder)


def test_other_safetensors_do_not_make_a_pickle_safe(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    pickled(folder / "pytorch_model.bin")
    with pytest.raises(UnsafeCheckpoint, match=r"pickle.*\(found pytorch_model.bin\)"):
        keyhole.load(folder)


def test_pickles_beside_safetensors_are_not_looked_at(folder: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "original/consolidated.00.pth"):
        pickled(folder / name)
    assert keyhole.load(folder).fingerprint == tiny("llama").fingerprint


def test_an_index_that_names_pickles(tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    tiny("llama").lm.save_pretrained(folder, max_shard_size="20KB")
    tokenizer().save_pretrained(folder)
    index = folder / "model.safetensors.index.json"
    there = json.loads(index.read_text())
    first = next(iter(there["weight_map"]))
    there["weight_map"][first] = "pytorch_model.bin"
    index.write_text(json.dumps(there))
    pickled(folder / "pytorch_model.bin")
    with pytest.raises(UnsafeCheckpoint, match="its index names pytorch_model.bin"):
        keyhole.load(folder)


@pytest.mark.parametrize("name", ["adapter_model.bin", "pytorch_model.bin", 3])
def test_a_configuration_that_names_a_pickle(name: object, folder: Path) -> None:
    pickled(folder / str(name))
    configure(folder / "config.json", transformers_weights=name)
    with pytest.raises(UnsafeCheckpoint, match="its config.json names"):
        keyhole.load(folder)


def test_a_configuration_that_names_its_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "own.safetensors")
    configure(folder / "config.json", transformers_weights="own.safetensors")
    loaded = keyhole.load(folder)
    torch.testing.assert_close(loaded.coefficients("The cat"), tiny("llama").coefficients("The cat"))
    configure(folder / "config.json", transformers_weights="../model/own.safetensors")
    with pytest.raises(ModelError, match="which is not in the same folder"):
        keyhole.load(folder)


def test_adapters_are_refused(folder: Path) -> None:
    """With peft installed, transformers would load them unasked, from a pickle too."""
    pickled(folder / "adapter_model.bin")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere", "peft_type": "LORA"}')
    with pytest.raises(ModelError, match="is an adapter, or holds one.*merge_and_unload"):
        keyhole.load(folder)


def test_a_hub_id_is_looked_at_the_same_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.utils

    def cached(repository: str, file: str, **options: object) -> str | None:
        assert repository == "owner/name"
        return str(folder / file) if (folder / file).exists() else None

    monkeypatch.setattr(transformers.utils, "cached_file", cached)
    checkpoints._inspect_hub("owner/name", None)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "pytorch_model.bin"}}))
    with pytest.raises(UnsafeCheckpoint, match="owner/name holds its weights as a pickle"):
        checkpoints._inspect_hub("owner/name", None)
    index.write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(ModelError, match="not in the same folder"):
        checkpoints._inspect_hub("owner/name", None)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="is an adapter"):
        checkpoints._inspect_hub("owner/name", None)
