"""`.gguf` files that are cut or garbled, and conversions that cannot be kept: refused, and nothing half-made is ever found again."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny, tokenizer

import keyhole
from keyhole.errors import ModelError, RunError
from keyhole.models import gguf as conversion
from keyhole.models.model import Model

gguf = pytest.importorskip("gguf", reason="the gguf extra is not installed")

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(model: Model, path: Path) -> Path:
    """A tiny llama as a .gguf file."""
    config, file = model.config, gguf.GGUFWriter(path, "llama")
    file.add_block_count(config.num_hidden_layers)
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(config.vocab_size)
    vocabulary = json.loads(tokenizer().backend_tokenizer.to_str())["model"]["vocab"]
    tokens = [*sorted(vocabulary, key=vocabulary.get), "ab"]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    file.add_tokenizer_model("gpt2")
    file.add_token_list(tokens)
    file.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    file.add_token_merges(["a b"])
    file.add_bos_token_id(0)
    for key, weight in model.lm.state_dict().items():
        owner = key.removesuffix(".weight")
        layer = ""
        if owner not in NAMES:
            _, _, number, owner = owner.split(".", 3)
            layer = f"blk.{number}."
        array = weight.numpy()
        if NAMES[owner] in ("attn_q", "attn_k"):  # stored with the halves of a head interleaved
            heads = config.num_attention_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        file.add_tensor(f"{layer}{NAMES[owner]}.weight", np.ascontiguousarray(array))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tiny("llama"), tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.fixture
def file(tmp_path: Path, whole: bytes) -> Path:
    path = tmp_path / "beside" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(whole)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def test_a_whole_file_is_converted_once(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "tokenizer_config.json").write_text("{broken")  # what is beside it is not read
    (file.parent / "config.json").write_text("{broken")
    model = keyhole.load(file)
    assert model.source == str(file)
    torch.testing.assert_close(model.coefficients("The cat"), tiny("llama").coefficients("The cat"))
    (made,) = cache.iterdir()
    monkeypatch.setattr(conversion, "_read", None)
    assert keyhole.load(str(file)).fingerprint == model.fingerprint
    (made / "model.safetensors").write_bytes(b"damaged since")
    with pytest.raises(ModelError, match=f"was converted to {made}: remove that folder to convert it again"):
        keyhole.load(file)


def test_a_file_that_was_cut_is_refused(file: Path, cache: Path, whole: bytes) -> None:
    rng = random.Random(0)
    cuts = [4, 8, 16, 24, 30, len(whole) - 1, len(whole) - 100, *(rng.randrange(len(whole)) for _ in range(25))]
    for cut in cuts:
        file.write_bytes(whole[:cut])
        with pytest.raises(ModelError, match="tiny.gguf cannot be read as a GGUF model") as caught:
            keyhole.load(file)
        assert len(str(caught.value).splitlines()) == 1
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.slow(seconds=2)
def test_a_garbled_file_raises_nothing_else(file: Path, cache: Path, whole: bytes) -> None:
    rng = random.Random(0)
    for _ in range(30):
        at = rng.randrange(9000)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ rng.choice((1, 0x10, 0x80, 0xFF))]) + whole[at + 1 :])
        try:
            keyhole.load(file)
        except ModelError as error:
            said = str(error)
        else:
            continue  # a format without checksums: a letter of a token, say
        assert len(said.splitlines()) == 1
    assert not [path for path in cache.iterdir() if "partial" in path.name]


def test_a_tensor_that_lost_its_name_is_not_made_up(file: Path, cache: Path, whole: bytes) -> None:
    assert whole.count(b"blk.1.ffn_down.weight") == 1
    file.write_bytes(whole.replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_dOwn.weight"))
    with pytest.raises(ModelError, match="lacks weights: model.layers.1.mlp.down_proj.weight"):
        keyhole.load(file)
    assert not cache.exists()


def test_without_a_home(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("KEYHOLE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(RunError, match="no home folder to keep a cache in. Set KEYHOLE_CACHE"):
        keyhole.load(file)


def test_a_cache_that_cannot_be_written(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="could not be written to .*file/cache.*KEYHOLE_CACHE"):
        keyhole.load(file)


@pytest.mark.parametrize("stops", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_conversion_that_stops_leaves_nothing(
    stops: BaseException, file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = conversion.sync_folder

    def stop(path: Path) -> None:  # weights and configuration are written, the name is not
        assert list(path.glob("*.safetensors"))
        raise stops

    monkeypatch.setattr(conversion, "sync_folder", stop)
    with pytest.raises(ModelError if isinstance(stops, OSError) else KeyboardInterrupt):
        keyhole.load(file)
    assert list(cache.iterdir()) == []
    monkeypatch.setattr(conversion, "sync_folder", real)
    assert keyhole.load(file).layers == tiny("llama").layers


def test_what_killed_conversions_left_is_removed(file: Path, cache: Path) -> None:
    keyhole.load(file)
    (made,) = cache.iterdir()
    old, new = (cache / f"{made.name}.partial-{number}" for number in (1, 2))
    made.rename(old)
    (new / "sub").mkdir(parents=True)  # perhaps still at work
    os.utime(old, (0, 0))
    keyhole.load(file)
    assert sorted(cache.iterdir()) == sorted([made, new])
