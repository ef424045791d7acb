"""The table of architectures: where each one keeps its feed-forward memories. Data only, no model library is needed.

The *input of the feed-forward down-projection* is the vector of memory coefficients (with a gate: act(gate)·up), and the
weight of that projection holds the value vectors. The keys are the weight of the projection before the activation. This holds
for every transformer, so an architecture is one row of `FAMILIES`, not a class. To add one, write its row here and one line in `tests/helpers/families.py`. `proof.prove` compares
the row with the model's own numbers at every load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UnknownFamily

Paths = str | tuple[str, ...]
"""An attribute path, or several candidates if versions of transformers name a module differently: the first that exists
counts. One string is short for a tuple of one."""

FILE = "keyhole/models/families.py"
"""Where the table is, for messages."""

PATHS = ("layers", "down", "attention", "final_norm", "key", "function", "up", "ff_norm", "attention_norm")
"""The fields of a family that are paths."""


@dataclass(frozen=True)
class Family:
    """Where an architecture keeps its memories.

    `layers` and `final_norm` are paths from the language model, the others are paths from one block. Every path is kept as
    a tuple of candidates.
    """

    layers: Paths
    """the list of blocks"""
    down: Paths
    """the feed-forward down-projection: its input is the coefficients, its weight the values"""
    attention: Paths
    """the attention's output projection, which the proof of the residual identity needs"""
    final_norm: Paths
    """the norm before the unembedding"""
    key: Paths
    """the projection before the activation, whose weight holds the keys; if there is a gate, the gate's projection"""
    function: Paths
    """the activation function between `key` and `down`"""
    up: Paths | None = None
    """if there is a gate: the projection whose output act(gate) is multiplied by. If it is the same module as `key`, the first
    half of its output is the gate, and the second half is this"""
    transposed: bool = False
    """True if `key` and `down` are Conv1D, as in GPT-2: their weights are the transposed of a Linear's"""
    activation: str | None = None
    """if there is no gate: the configuration's name for the activation, whose output is the coefficient"""
    ff_norm: Paths | None = None
    """a norm between the feed-forward output and the residual, if there is one"""
    attention_norm: Paths | None = None
    """a norm between the attention output and the residual, if there is one"""
    width: str | None = "intermediate_size"
    """the configuration's name for the cells per layer; None if it cannot be chosen"""
    bias: str | None = None
    """the configuration's name for whether the feed-forward projections have biases, if it is a setting of theirs alone"""

    @property
    def gated(self) -> bool:
        """Whether a coefficient is act(gate)·up."""
        return self.up is not None

    def __post_init__(self) -> None:
        for name in PATHS:
            paths = getattr(self, name)
            if paths is not None:
                object.__setattr__(self, name, candidates(paths))


def candidates(paths: Paths) -> tuple[str, ...]:
    """The candidates of a path, in the order they are tried."""
    return (paths,) if isinstance(paths, str) else tuple(paths)


_LLAMA = Family(
    "model.layers",
    "mlp.down_proj",
    "self_attn.o_proj",
    "model.norm",
    key="mlp.gate_proj",
    function="mlp.act_fn",
    up="mlp.up_proj",
)
_NORMED = replace(_LLAMA, ff_norm="post_feedforward_layernorm", attention_norm="post_attention_layernorm")
_FUSED = replace(_LLAMA, key="mlp.gate_up_proj", function="mlp.activation_fn", up="mlp.gate_up_proj")
_BLOOM = Family(
    "transformer.h",
    "mlp.dense_4h_to_h",
    "self_attention.dense",
    "transformer.ln_f",
    key="mlp.dense_h_to_4h",
    function="mlp.gelu_impl",
    width=None,
)
_GPT2 = Family(
    "transformer.h",
    "mlp.c_proj",
    "attn.c_proj",
    "transformer.ln_f",
    key="mlp.c_fc",
    function="mlp.act",
    transposed=True,
    activation="activation_function",
    width="n_inner",
)

FAMILIES: dict[str, Family] = {
    "bloom": _BLOOM,
    "falcon": replace(_BLOOM, function="mlp.act", activation="activation", width="ffn_hidden_size"),
    "gemma": _LLAMA,
    "gemma2": _NORMED,
    "gemma3_text": _NORMED,
    "gpt2": _GPT2,
    "gpt_neo": replace(_GPT2, attention="attn.attention.out_proj", transposed=False, width="intermediate_size"),
    "gpt_neox": Family(
        "gpt_neox.layers",
        "mlp.dense_4h_to_h",
        "attention.dense",
        "gpt_neox.final_layer_norm",
        key="mlp.dense_h_to_4h",
        function="mlp.act",
        activation="hidden_act",
    ),
    "gptj": replace(_GPT2, down="mlp.fc_out", attention="attn.out_proj", key="mlp.fc_in", transposed=False),
    "llama": replace(_LLAMA, bias="mlp_bias"),
    "mistral": _LLAMA,
    "olmo": _LLAMA,
    "olmo2": _NORMED,
    "opt": Family(
        "model.decoder.layers",
        "fc2",
        "self_attn.out_proj",
        "model.decoder.final_layer_norm",
        key="fc1",
        function="activation_fn",
        activation="activation_function",
        width="ffn_dim",
    ),
    "phi": Family(
        "model.layers",
        "mlp.fc2",
        "self_attn.dense",
        "model.final_layernorm",
        key="mlp.fc1",
        function="mlp.activation_fn",
        activation="hidden_act",
    ),
    "phi3": _FUSED,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": replace(_LLAMA, bias="mlp_bias"),
    "starcoder2": Family(
        "model.layers",
        "mlp.c_proj",
        "self_attn.o_proj",
        "model.norm",
        key="mlp.c_fc",
        function="mlp.act",
        activation="hidden_act",
    ),
}
"""One row per architecture, by the `model_type` of its configuration."""


def family_of(model_type: str) -> Family:
    """The row of an architecture; an unknown one is refused with the way to add it."""
    if model_type not in FAMILIES:
        raise UnknownFamily(
            f"Keyhole does not know the architecture '{model_type}'. It knows: {', '.join(sorted(FAMILIES))}. "
            f"To add one, write a row in FAMILIES ({FILE}): the paths of its blocks, its feed-forward "
            "projections and activation, its attention output projection and its final norm; docs/families.md shows how."
        )
    return FAMILIES[model_type]
