"""A random tiny model of every family, built from its configuration. Sizes are asserted where they are made."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from keyhole.models.model import Model
from keyhole.models.proof import prove

D, CELLS, LAYERS, VOCABULARY, CONTEXT = 16, 24, 3, 300, 64

COMMON = {
    "hidden_size": D,
    "intermediate_size": CELLS,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
GPT = {"n_embd": D, "n_inner": CELLS, "n_layer": LAYERS, "n_head": 2, "n_positions": CONTEXT}

TINY: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": CELLS // 4 * 2, "n_layer": LAYERS, "n_head": 2},
    "falcon": {
        "hidden_size": D,
        "ffn_hidden_size": CELLS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "parallel_attn": False,
    },
    "gemma": {**COMMON, "head_dim": 8},
    "gemma2": {**COMMON, "head_dim": 8},
    "gemma3_text": {**COMMON, "head_dim": 8},
    "gpt2": GPT,
    "gpt_neo": {
        "hidden_size": D,
        "intermediate_size": CELLS,
        "num_layers": LAYERS,
        "num_heads": 2,
        "max_position_embeddings": CONTEXT,
        "attention_types": [[["global", "local", "global"], 1]],
    },
    "gpt_neox": COMMON,
    "gptj": {**GPT, "rotary_dim": 4},
    "llama": COMMON,
    "mistral": COMMON,
    "olmo": COMMON,
    "olmo2": COMMON,
    "opt": {
        "hidden_size": D,
        "word_embed_proj_dim": D,
        "ffn_dim": CELLS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "max_position_embeddings": CONTEXT,
    },
    "phi": COMMON,
    "phi3": {**COMMON, "pad_token_id": 0},
    "qwen2": COMMON,
    "qwen3": {**COMMON, "head_dim": 8},
    "smollm3": {**COMMON, "pad_token_id": 0},
    "starcoder2": COMMON,
}
"""What each family's configuration calls the same small size."""


def tokenizer(bos: str | None = "<s>") -> PreTrainedTokenizerFast:
    """Bytes as tokens: 256 byte symbols and a few specials, so that every text has an encoding."""
    specials = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(specials + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, eos_token="</s>", pad_token="<pad>")


@cache
def tiny(model_type: str, bos: str | None = "<s>", layers: int = LAYERS, cells: int = CELLS, **changes: Any) -> Model:
    """A proved random model of the family, small: asserted. Changes that alter its shape say so in `layers`, `cells`."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, vocab_size=VOCABULARY, **{**TINY[model_type], **changes})
    lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in lm.parameters():  # the usual initialisation is so small that most differences would hide
        torch.nn.init.normal_(parameter, std=0.3)
    size = sum(parameter.numel() for parameter in lm.parameters())
    assert size < 40_000 * layers * cells / LAYERS / CELLS, (
        f"the tiny {model_type} has {size} parameters: a configuration name is wrong"
    )
    model = Model(lm, tokenizer(bos), source=f"tiny-{model_type}")
    assert model.layers == layers
    assert model.cells.sizes == (4 * config.hidden_size if model_type == "bloom" else cells)
    prove(model)
    return model


def save(model: Model, folder: Path) -> str:
    """The model and its tokenizer as a folder that can be loaded."""
    model.lm.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
