"""A model opened at its feed-forward layers: what it is, its tokens, and its memory coefficients.

`keyhole.load` makes one. Where the coefficients are read is in `sites`, how in `taps`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..errors import ModelError, ProofFailed, UsageError
from ..inputs.kinds import CAUSAL_TEXT, Kind
from ..store.control import Control
from ..store.vocabulary import Vocabulary
from .families import family_of
from .patches import attention_for, own_attention, without_readbacks
from .sites import Projection, axis_of, blocks_of, find_sites, module_at, of_layer
from .taps import Sink, Taps, every_token, join_experts, tapped

if TYPE_CHECKING:
    from .intervene import Edit

SPLIT = "split"
"""The name of the device of a model that is spread over several GPUs."""

NOT_COMPUTED = {"_name_or_path", "architectures", "dtype", "transformers_version", "use_cache"}
"""Settings of a configuration that change nothing a forward pass computes from given weights."""

NON_NEGATIVE = {"relu", "relu2", "relu6", "sigmoid"}
"""Activations whose output is never negative."""


@dataclass(frozen=True)
class Batch:
    """Token windows to run together: right-padded, so that causal attention needs no mask."""

    ids: Tensor
    """[rows, columns] token ids, the start token included"""
    n_special: int
    """how many special tokens are before a window's own tokens (0 or 1)"""


class Model:
    """A language model opened at its feed-forward layers. Made by `keyhole.load`."""

    def __init__(
        self,
        lm: Any,
        tokenizer: Any,
        *,
        source: str,
        revision: str | None = None,
        split: bool = False,
        control: Control | None = None,
        stored: torch.dtype | None = None,
        widest: torch.dtype | None = None,
    ) -> None:
        self.lm = lm.eval().requires_grad_(False)
        self.split = split
        """whether its blocks are spread over several devices"""
        self.tokenizer = tokenizer
        self.source = source
        self.revision = revision
        self.control = control
        """which control its weights are; None if they are the checkpoint's"""
        self.stored = stored
        """the type of the weights in its checkpoint; None if it came from none, or that does not say"""
        self.widest = widest
        """the type that can hold each of them: a few may be wider than `stored`; None if it is not known"""
        self.wide: frozenset[str] = frozenset()
        """the names of weights that `stored` cannot hold, as they were loaded"""
        self.made: dict[str, Any] | None = None
        """what it was made from, if Keyhole made it (`store/made.py`)"""
        self.edits: tuple[Edit, ...] = ()
        """the edits it runs with: permanent ones (`intervene.apply`), and those of a `with` (`intervene.applied`)"""
        self.tap: Callable[[Callable[[int, Tensor], None]], AbstractContextManager[None]] | None = None
        """replaces the hooks of `taps` while the blocks are compiled (`compiled.compiled`): is given a function of (site, x)"""
        self.lock = threading.RLock()
        """held while it runs: hooks belong to the whole model, so two threads must not share a forward pass"""
        self.kind: Kind = CAUSAL_TEXT
        """what it reads, and what a candidate is"""
        self._promoting: dict[tuple[int, int], Tensor] = {}
        self.config = lm.config
        self.family = family_of(self.config.model_type)
        try:
            self.blocks = blocks_of(lm, self.family)
            self.sites = find_sites(self.blocks, self.family)
            """the places where coefficients are read, in the order of the axis of cells"""
        except AttributeError as missing:
            raise ProofFailed(
                f"{source} says it is a '{self.config.model_type}' but has no module at the family's path: {missing}."
            ) from None
        self.cells = axis_of(self.sites)
        """the axis of its cells; layers may differ in width"""
        self.layers = len(self.blocks)

    # What the model is

    @property
    def device(self) -> torch.device:
        """The device of its inputs; a split model has layers on others too."""
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
        """Whether a coefficient can be negative. It cannot if the activation's output never is and no edit has a negative scale."""
        name = self.family.activation and getattr(self.config, self.family.activation, None)
        return name not in NON_NEGATIVE or any(edit.scale < 0 for edit in self.edits)

    @property
    def gated(self) -> bool:
        """Whether a coefficient is act(gate)·up. The sign of a cell is then a convention: negating up and value changes nothing."""
        return self.family.gated

    @property
    def max_context(self) -> int | None:
        """How many tokens the model was built to see, if its configuration says so."""
        for name in ("max_position_embeddings", "n_positions", "seq_length"):
            value = getattr(self.config, name, None)
            if isinstance(value, int) and value > 0:
                return value
        return None

    @property
    def bos_id(self) -> int | None:
        """The start token, even if the tokenizer does not add one."""
        token = self.tokenizer.bos_token_id
        return None if token is None else int(token)

    def values(self, layer: int) -> Tensor:
        """The value vectors of a layer, [cells, model]; those of experts follow each other."""
        parts = [site.values for site in of_layer(self.sites, layer)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def keys(self, layer: int) -> Tensor:
        """The keys of a layer, [cells, model]; if there is a gate, the gate's rows."""
        return self._rows(layer, "key")

    def ups(self, layer: int) -> Tensor:
        """The rows of the projection that act(gate) is multiplied by, [cells, model]; only a model with a gate has them."""
        return self._rows(layer, "up")

    def _rows(self, layer: int, name: str) -> Tensor:
        found: list[Projection | None] = [getattr(site, name) for site in of_layer(self.sites, layer)]
        parts = [projection.rows for projection in found if projection is not None]
        if len(parts) < len(found):
            raise ModelError(
                f"{self.source}: the {name} projection of layer {layer} is not known ({self.config.model_type})."
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def promoting(self, layer: int, token: int) -> Tensor:
        """`Head.promoting`, kept: an edit that moves a value asks for it again with every token that is generated."""
        if (layer, token) not in self._promoting:
            from ..lens.head import Head

            self._promoting[layer, token] = Head(self).promoting(layer, token)
        return self._promoting[layer, token]

    def bias(self, layer: int) -> Tensor | None:
        """What the layer adds whatever the input is: the down-projection's bias. Experts have one each (`Site.bias`)."""
        sites = of_layer(self.sites, layer)
        return sites[0].bias if len(sites) == 1 else None

    @property
    def final_norm(self) -> nn.Module:
        """The norm before the unembedding."""
        return module_at(self.lm, self.family.final_norm)

    def post_norm(self, layer: int) -> nn.Module | None:
        """The norm between a layer's output and the residual, if there is one."""
        return None if self.family.ff_norm is None else module_at(self.blocks[layer], self.family.ff_norm)

    @property
    def fingerprint(self) -> str:
        """What the model computes, as a hash: that of its weights, or another one if it is edited."""
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
                # integer sums that wrap are exact, so they are the same in any order
                mixed = (bits ^ (bits >> 31)) * 0x5851F42D4C957F2D + torch.arange(len(bits), device=bits.device)
                mixed = (mixed ^ (mixed >> 29)) * 0x27BB2EE687B0B0FD
                digest.update(f"{int(bits.sum())} {int(mixed.sum())}\n".encode())
        return digest.hexdigest()

    # Text to tokens

    @cached_property
    def encoder(self) -> Any:
        """The tokenizer's own fast core. It reads text as text: a `<s>` in a corpus is three characters, no special token."""
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
        """Its tokens in readable form."""
        return Vocabulary(self.encoder)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        encoded = self.encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def check_ids(self, largest: int) -> None:
        """Refuse a token id without a row in the embedding: on a GPU it would make the device unusable for this process."""
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
        with self.lock, without_readbacks(), own_attention(self.lm), attention_for(ids.shape[1], self.device):
            self.lm.base_model(input_ids=ids.to(self.device, non_blocking=True), use_cache=False)

    def run(self, ids: Tensor, sink: Sink) -> None:
        """`forward`, and give each site's coefficients to `sink` as they are computed: [rows, columns, width], or rows with
        their tokens if the site is an expert."""
        with tapped(self, Taps(coefficients=sink), tuple(ids.shape)):
            self.forward(ids)

    def run_every_token(self, ids: Tensor, sink: Callable[[int, Tensor], None]) -> None:
        """`run`, but every site gives (site, x) once, with a row for every token of the batch: [rows · columns, width]. The
        coefficient of a token that was not routed to a site is 0."""
        missing = set(range(len(self.sites)))

        def give(site: int, x: Tensor, tokens: Tensor | None) -> None:
            missing.discard(site)
            sink(site, every_token(x, tokens, ids.numel()))

        self.run(ids, give)
        for number in sorted(missing):  # experts that no token was routed to
            site = self.sites[number]
            sink(number, torch.zeros(ids.numel(), site.width, dtype=self.dtype, device=site.device))

    def batch(self, windows: Sequence[Sequence[int] | npt.NDArray[Any]], *, bos: bool = True) -> Batch:
        """Windows of token ids, right-padded into one batch."""
        n_special = self.kind.n_special(wanted=bos, has_start_token=self.bos_id is not None)
        lengths = np.fromiter(map(len, windows), np.int64, len(windows))
        ids = np.zeros((len(windows), n_special + int(lengths.max())), np.int64)
        if n_special and self.bos_id is not None:
            ids[:, :n_special] = self.bos_id
        ids[:, n_special:][np.arange(ids.shape[1] - n_special) < lengths[:, None]] = np.concatenate(windows)
        if ids.size:
            self.check_ids(int(ids.max()))
        return Batch(torch.from_numpy(ids), n_special)

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
        kept: dict[int, Tensor] = {}

        def keep(site: int, x: Tensor) -> None:
            kept[site] = x[batch.n_special :].float().cpu()

        self.run_every_token(batch.ids, keep)
        return torch.cat(join_experts(self, kept), 1)

    def __repr__(self) -> str:
        control = f", {self.control.title}" if self.control else ""
        return f"<keyhole.Model {self.source}{control}: {self.config.model_type}, {self.cells.summary}>"
