"""Models: the family table, `load`, and the one thing a model is asked for, its memory coefficients.

In every architecture the *input of the feed-forward down-projection* is the vector of memory coefficients, and that
projection's weight holds the value vectors. So an architecture is a row of `FAMILIES`: data, not a class. To add one,
write a row and a line in `tests/helpers/families.py`; `prove` checks the row against the model's own numbers at every load.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..cells import Cells
from ..errors import KeyholeError, ModelError, ProofFailed, UnknownFamily, UsageError
from ..store.vocabulary import Vocabulary
from .patches import attention_for, without_looking

if TYPE_CHECKING:
    from .intervene import Edit

Sink = Callable[[int, Tensor], None]
"""Receives (layer, coefficients [batch, tokens, cells]) while a batch runs."""


@dataclass(frozen=True)
class Family:
    """Where an architecture keeps its memories. Paths are attribute paths; those below `layers` start at one layer."""

    layers: str
    """the list of blocks"""
    down: str
    """the feed-forward down-projection: its input is the coefficients, its weight the values"""
    attention: str
    """the attention's output projection, needed to prove the residual identity"""
    final_norm: str
    """the norm before the unembedding"""
    transposed: bool = False
    """the weight is stored [cells, model], as GPT-2's Conv1D does, instead of Linear's [model, cells]"""
    activation: str | None = None
    """the configuration's name for the activation where the coefficient is the activation's output (no gate)"""
    ff_norm: str | None = None
    """a norm between the feed-forward output and the residual"""
    attention_norm: str | None = None
    """a norm between the attention output and the residual"""


_LLAMA = Family("model.layers", "mlp.down_proj", "self_attn.o_proj", "model.norm")
_NORMED = replace(_LLAMA, ff_norm="post_feedforward_layernorm", attention_norm="post_attention_layernorm")

FAMILIES: dict[str, Family] = {
    "bloom": Family("transformer.h", "mlp.dense_4h_to_h", "self_attention.dense", "transformer.ln_f"),
    "falcon": Family(
        "transformer.h", "mlp.dense_4h_to_h", "self_attention.dense", "transformer.ln_f", activation="activation"
    ),
    "gemma": _LLAMA,
    "gemma2": _NORMED,
    "gemma3_text": _NORMED,
    "gpt2": Family(
        "transformer.h", "mlp.c_proj", "attn.c_proj", "transformer.ln_f", True, activation="activation_function"
    ),
    "gpt_neo": Family(
        "transformer.h", "mlp.c_proj", "attn.attention.out_proj", "transformer.ln_f", activation="activation_function"
    ),
    "gpt_neox": Family(
        "gpt_neox.layers", "mlp.dense_4h_to_h", "attention.dense", "gpt_neox.final_layer_norm", activation="hidden_act"
    ),
    "gptj": Family(
        "transformer.h", "mlp.fc_out", "attn.out_proj", "transformer.ln_f", activation="activation_function"
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "olmo": _LLAMA,
    "olmo2": _NORMED,
    "opt": Family(
        "model.decoder.layers",
        "fc2",
        "self_attn.out_proj",
        "model.decoder.final_layer_norm",
        activation="activation_function",
    ),
    "phi": Family("model.layers", "mlp.fc2", "self_attn.dense", "model.final_layernorm", activation="hidden_act"),
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": _LLAMA,
    "starcoder2": Family("model.layers", "mlp.c_proj", "self_attn.o_proj", "model.norm", activation="hidden_act"),
}
"""One row an architecture, by the `model_type` of its configuration."""

SPLIT = "split"
"""The device of a model that is larger than one card."""

NOT_COMPUTED = {"_name_or_path", "architectures", "dtype", "transformers_version", "use_cache"}
"""Settings that change nothing a forward computes from given weights."""

NON_NEGATIVE = {"relu", "relu2", "relu6", "sigmoid"}


def family_of(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise UnknownFamily(
            f"Keyhole does not know the architecture '{model_type}'. It knows: {', '.join(sorted(FAMILIES))}. "
            "To add one, write a row in FAMILIES (keyhole/models.py): the paths of its blocks, its feed-forward "
            "down-projection, its attention output projection and its final norm; docs/families.md shows how."
        )
    return FAMILIES[model_type]


@dataclass(frozen=True)
class Batch:
    """Token windows to run together: right-padded, so that causal attention needs no mask."""

    ids: Tensor
    """[rows, columns] token ids, the start token included"""
    starts: int
    """how many special tokens stand before a window's own tokens (0 or 1)"""


class Model:
    """A language model opened at its feed-forward layers. Made by `keyhole.load`."""

    def __init__(
        self, lm: Any, tokenizer: Any, *, source: str, revision: str | None = None, split: bool = False
    ) -> None:
        self.lm = lm.eval().requires_grad_(False)
        self.split = split
        """whether its blocks are spread over several devices"""
        self.tokenizer = tokenizer
        self.source = source
        self.revision = revision
        self.edits: tuple[Edit, ...] = ()
        """what it was edited to for good (`intervene.apply`)"""
        self.taking: Callable[[Sink], AbstractContextManager[None]] | None = None
        """how coefficients are had while its blocks are compiled (`compiled.compiled`), where hooks are not seen"""
        self.lock = threading.RLock()
        """held while it runs: hooks are the whole model's, so two threads must not share a forward"""
        self.config = lm.config
        self.family = family_of(self.config.model_type)
        try:
            self.blocks = list(self._get(lm, self.family.layers).children())
            self.downs = [self._get(block, self.family.down) for block in self.blocks]
        except AttributeError as missing:
            raise ProofFailed(
                f"{source} says it is a '{self.config.model_type}' but has no module at the family's path: {missing}."
            ) from None
        self.cells = Cells.of_widths([self._width(down) for down in self.downs])
        """the axis its cells lie on; layers may differ in width"""
        self.layers = len(self.blocks)

    @staticmethod
    def _get(root: nn.Module, path: str) -> nn.Module:
        return root.get_submodule(path)

    def _width(self, down: nn.Module) -> int:
        weight = down.weight
        assert isinstance(weight, Tensor)
        return weight.shape[0 if self.family.transposed else 1]

    # What the model is

    @property
    def device(self) -> torch.device:
        """Where its inputs go; a split model has its layers elsewhere too."""
        device: torch.device = self.lm.get_input_embeddings().weight.device
        return device

    @property
    def placement(self) -> str:
        """The kind of device it is on, or `split`."""
        return SPLIT if self.split else self.device.type

    @property
    def dtype(self) -> torch.dtype:
        return self.values(0).dtype

    @property
    def signed(self) -> bool:
        """Whether a coefficient can be negative: always, unless the activation forbids it and no edit has a negative scale."""
        name = self.family.activation and getattr(self.config, self.family.activation, None)
        return name not in NON_NEGATIVE or any(edit.scale < 0 for edit in self.edits)

    @property
    def max_context(self) -> int | None:
        """How many tokens the model was built to see, where its configuration says so."""
        for name in ("max_position_embeddings", "n_positions", "seq_length"):
            value = getattr(self.config, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return None

    @property
    def bos_id(self) -> int | None:
        """The start token, also where the tokenizer does not add it by itself."""
        token = self.tokenizer.bos_token_id
        return None if token is None else int(token)

    def values(self, layer: int) -> Tensor:
        """The value vectors of a layer, [cells, model]."""
        weight = self.downs[layer].weight
        assert isinstance(weight, Tensor)
        return weight if self.family.transposed else weight.T

    def bias(self, layer: int) -> Tensor | None:
        """What the layer adds whatever the input: the down-projection's bias."""
        bias = getattr(self.downs[layer], "bias", None)
        return bias if isinstance(bias, Tensor) else None

    @property
    def fingerprint(self) -> str:
        """What the model computes, as a hash: that of its weights, or another one where it is edited for good."""
        if not self.edits:
            return self.weights_fingerprint
        from .intervene import fingerprint

        return fingerprint(self.weights_fingerprint, self.edits)

    @cached_property
    def weights_fingerprint(self) -> str:
        """A hash of every weight and of the configuration, the same on any device."""
        settings = {key: value for key, value in self.config.to_diff_dict().items() if key not in NOT_COMPUTED}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.lm.state_dict(keep_vars=True).items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            for part in tensor.detach().contiguous().view(-1).view(torch.uint8).split(1 << 24):
                bits = torch.cat([part, part.new_zeros(-len(part) % 8)]).view(torch.int64)
                # wrapping integer sums: exact, hence the same in any order of summation
                mixed = (bits ^ (bits >> 31)) * 0x5851F42D4C957F2D + torch.arange(len(bits), device=bits.device)
                mixed = (mixed ^ (mixed >> 29)) * 0x27BB2EE687B0B0FD
                digest.update(f"{int(bits.sum())} {int(mixed.sum())}\n".encode())
        return digest.hexdigest()

    # Text to tokens

    @cached_property
    def encoder(self) -> Any:
        """The tokenizer's own fast core, set to read text as text: a `<s>` in a corpus is three characters."""
        from tokenizers import Tokenizer

        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                f"The tokenizer of {self.source} ({type(self.tokenizer).__name__}) has no fast form. Convert it once with "
                "transformers.AutoTokenizer.from_pretrained(…, use_fast=True).save_pretrained(FOLDER), then load FOLDER."
            )
        encoder = Tokenizer.from_str(backend.to_str())
        encoder.no_padding()
        encoder.no_truncation()
        encoder.encode_special_tokens = True
        return encoder

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Its tokens as people read them."""
        return Vocabulary(self.encoder)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        encoded = self.encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def check_ids(self, largest: int) -> None:
        """Refuse a token id without a row in the embedding: on a GPU it would end the process's use of the card."""
        rows = int(self.lm.get_input_embeddings().weight.shape[0])
        if not 0 <= largest < rows:
            text = repr(self.vocabulary.piece(largest)) if 0 <= largest < len(self.vocabulary) else "none of its tokens"
            raise ModelError(
                f"The tokenizer of {self.source} gives the token id {largest} ({text}), and the model's embedding has {rows} rows, "
                f"for ids 0 to {rows - 1}. The tokenizer is not that of the model: load a folder that has both."
            )

    # Coefficients

    @torch.inference_mode()
    def forward(self, ids: Tensor) -> None:
        """Run the blocks on right-padded windows [rows, columns]. The vocabulary head is not run."""
        with self.lock, without_looking(), attention_for(ids.shape[1], self.device):
            self.lm.base_model(input_ids=ids.to(self.device, non_blocking=True), use_cache=False)

    def run(self, ids: Tensor, sink: Sink) -> None:
        """`forward`, handing each layer's coefficients [rows, columns, cells] to `sink` as they come."""

        def give(layer: int, x: Tensor) -> None:
            sink(layer, x.reshape(*ids.shape, self.cells.size(layer)))

        def hook(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            return lambda module, inputs: give(layer, inputs[0])

        with self.lock:
            if self.taking is not None:
                with self.taking(give):
                    self.forward(ids)
                return
            handles = [down.register_forward_pre_hook(hook(layer)) for layer, down in enumerate(self.downs)]
            try:
                self.forward(ids)
            finally:
                for handle in handles:
                    handle.remove()

    def batch(self, windows: Sequence[Sequence[int] | npt.NDArray[Any]], *, bos: bool = True) -> Batch:
        """Windows of token ids, right-padded into one batch."""
        starts = int(bos and self.bos_id is not None)
        lengths = np.fromiter(map(len, windows), np.int64, len(windows))
        ids = np.zeros((len(windows), starts + int(lengths.max())), np.int64)
        if starts and self.bos_id is not None:
            ids[:, 0] = self.bos_id
        ids[:, starts:][np.arange(ids.shape[1] - starts) < lengths[:, None]] = np.concatenate(windows)
        if ids.size:
            self.check_ids(int(ids.max()))
        return Batch(torch.from_numpy(ids), starts)

    def coefficients(self, text: str, *, bos: bool = True) -> Tensor:
        """The memory coefficients of a short text: [tokens, cells], float32, special tokens left out.

        `model.cells` says which of the cells are a layer's: `[:, model.cells.span(3)]`.
        """
        (ids,) = self.tokenize([text])
        if not ids:
            raise UsageError(f"The text {text!r} has no tokens.")
        return self.coefficients_of(ids, bos=bos)

    def coefficients_of(self, ids: Sequence[int], *, bos: bool = True) -> Tensor:
        """Like `coefficients`, of token ids."""
        batch = self.batch([ids], bos=bos)
        kept: list[Tensor] = []
        self.run(batch.ids, lambda layer, x: kept.append(x[0, batch.starts :].float().cpu()))
        return torch.cat(kept, dim=1)

    def __repr__(self) -> str:
        return f"<keyhole.Model {self.source}: {self.config.model_type}, {self.cells.summary}>"


def prove(model: Model) -> None:
    """Check the family's row on one short input: the model is refused unless its own numbers come out.

    coefficients @ V + b must equal the down-projection's output, residual + attention + feed-forward (through their
    post-norms, where there are any) the next residual, and the lens of the last residual the model's own logits.
    """
    family, seen = model.family, {}
    refuse_not_numbers(model)

    def keep(name: str, layer: int, side: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None) -> None:
            value = (args[0] if args else kwargs["hidden_states"]) if side == "in" else output
            value = value[0] if isinstance(value, tuple) else value
            # a copy, for some blocks go on to add in place; a split model's block is handed its input from elsewhere
            seen[name, layer] = value.detach().float().clone().to(model.values(layer).device)

        return hook

    handles = []
    for layer, block in enumerate(model.blocks):
        down = model.downs[layer]
        attention = block.get_submodule(family.attention_norm or family.attention)
        ff = block.get_submodule(family.ff_norm) if family.ff_norm else down
        handles += [
            down.register_forward_pre_hook(keep("coefficients", layer, "in"), with_kwargs=True),
            block.register_forward_pre_hook(keep("residual", layer, "in"), with_kwargs=True),
            down.register_forward_hook(keep("down", layer, "out"), with_kwargs=True),
            attention.register_forward_hook(keep("attention", layer, "out"), with_kwargs=True),
            ff.register_forward_hook(keep("ff", layer, "out"), with_kwargs=True),
            block.register_forward_hook(keep("next", layer, "out"), with_kwargs=True),
        ]
    try:
        vocabulary = model.lm.get_input_embeddings().weight.shape[0]
        ids = torch.arange(12) * 7919 % vocabulary
        model.forward(ids[None])
    finally:
        for handle in handles:
            handle.remove()

    # how far two sums of the same terms may drift apart in the model's own precision
    allowed = 1e-4 if model.dtype == torch.float32 else 3e-2
    for layer in range(model.layers):
        got = {
            name: seen[name, layer].flatten(0, -2) for name in ("coefficients", "down", "attention", "ff", "residual")
        }
        rebuilt = got["coefficients"] @ model.values(layer).float()
        bias = model.bias(layer)
        rebuilt = rebuilt + bias.float() if bias is not None else rebuilt
        check("coefficients @ V + b against the down-projection's output", model, layer, rebuilt, got["down"], allowed)
        after = seen["next", layer].flatten(0, -2)
        total = got["residual"] + got["attention"] + got["ff"]
        check("residual + attention + feed-forward against the next residual", model, layer, total, after, allowed)
        if layer + 1 < model.layers:
            following = seen["residual", layer + 1].flatten(0, -2)
            check("a layer's output against the next layer's input", model, layer, after, following, allowed)
    from ..lens.project import prove_head  # the lens reads models, and a model is proved through the lens

    prove_head(model, seen["next", model.layers - 1].flatten(0, -2), ids[None], allowed)


def refuse_not_numbers(model: Model) -> None:
    """Refuse NaN and infinity in any weight: the short input of the proof reads few rows of the embedding."""
    for name, weight in model.lm.named_parameters():
        if weight.is_floating_point() and weight.numel() and not torch.isfinite(torch.stack(weight.aminmax())).all():
            raise ProofFailed(
                f"{model.source}: the weight {name} has entries that are NaN or infinite, so what it computes is no number. The "
                "checkpoint is damaged, or does not fit the dtype: fetch it again, or load it as float32."
            )


def check(what: str, model: Model, layer: int, got: Tensor, expected: Tensor, allowed: float) -> None:
    expected = expected.to(got.device)
    difference = float((got - expected).norm() / expected.norm().clamp_min(1e-30))
    if not difference <= allowed:
        raise ProofFailed(
            f"{model.source} is not what the family '{model.config.model_type}' says: in layer {layer}, {what}, the "
            f"relative difference is {difference:.2e} where {allowed:.0e} is allowed. The coefficients would be wrong, so "
            "the model is refused. If it is a variant of the architecture, it needs a row of its own in FAMILIES "
            "(keyhole/models.py)."
        )


def load(
    source: str | os.PathLike[str] | Model,
    *,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    edits: str | os.PathLike[str] | dict[str, Any] | Sequence[Edit] | None = None,
) -> Model:
    """Open a model: a hub id, a local folder, or a `.gguf` file.

    `dtype` "auto" is float32 on a CPU and the checkpoint's own elsewhere; `device` "auto" is the GPU where there is one,
    "split" spreads the blocks over all GPUs.
    The family's description is proved on the loaded weights before the model is handed out.
    `edits` scale coefficients of it for good: a file the explorer saved, what is in one, or a list (`keyhole.intervene`).
    """
    if isinstance(source, Model):
        if edits is not None:
            raise UsageError(
                "This model is loaded already, and others may hold it. Load it by name with edits, or edit it for a while: "
                "with keyhole.intervene.applied(model, edits): …"
            )
        return source
    from .checkpoints import name_of, read

    source = name_of(source)
    split = device == SPLIT
    target = choose_device("auto" if split else device)
    lm, tokenizer, revision = read(
        source,
        dtype=choose_dtype(dtype, target),
        revision=revision,
        trust_remote_code=trust_remote_code,
        known=family_of,
        split=split,
    )
    try:
        model = Model(lm if split else lm.to(target), tokenizer, source=source, revision=revision, split=split)
        prove(model)
    except KeyholeError:
        raise
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{source} does not fit in the memory of {target}: {str(error).splitlines()[0]} Use a smaller --dtype, --device cpu, "
            "or --device split to spread it over several GPUs."
        ) from None
    except Exception as error:  # a configuration can be wrong in any way, and the forward fails as it likes
        raise ProofFailed(
            f"{source} was loaded, but running it fails ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). "
            "Its configuration is not that of its weights, or the architecture is a variant without a row in FAMILIES "
            "(keyhole/models.py)."
        ) from error
    if edits is not None:
        from . import intervene

        intervene.apply(model, intervene.read(edits, model))
    return model


def choose_device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise UsageError(f"The device '{device}' cannot be used here: {str(error).splitlines()[0]}") from None
    return target


def choose_dtype(dtype: str, device: torch.device) -> str | torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if not isinstance(dtype, str) or dtype not in names:
        raise UsageError(f"The dtype '{dtype}' is not one of auto, {', '.join(names)}.")
    return names[dtype]
