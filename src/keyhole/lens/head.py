"""The model's last step: the way from the residual stream to the vocabulary.

A *residual* is read as the model itself reads it: final norm, head, bias, scale and cap. If there is a norm between a layer
and the residual (Gemma 2, OLMo 2), a value is what reaches the residual: that norm's gain is folded in.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import ModelError, UsageError
from . import project
from .lenses import LENSES, PER_LAYER, Norm, check_lens, measure
from .maps import Map, Maps, missing

if TYPE_CHECKING:
    from ..models.model import Model


class Head:
    """The way from the residual stream to the vocabulary: final norm, unembedding, bias, scale, cap."""

    def __init__(self, model: Model) -> None:
        output = model.lm.get_output_embeddings()
        if output is None:
            raise ModelError(
                f"{model.source} has no unembedding ({type(model.lm).__name__}), so its vectors cannot be read as tokens. "
                "Load a language model with its head."
            )
        self.model = model
        self.output: nn.Module = output
        self.weight: Tensor = output.weight
        """[vocabulary, model]"""
        self.final_norm: nn.Module = model.final_norm
        self.cap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.scale = float(getattr(model.config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(model.config, "logits_scaling", None) or 1.0)
        bias = getattr(output, "bias", None)
        self.bias = bias.float() if isinstance(bias, Tensor) else None
        self.maps: Maps | None = None
        """the maps that the lens `mapped` reads through, once they are fitted"""

    @property
    def vocabulary(self) -> int:
        return int(self.weight.shape[0])

    @cached_property
    def norm(self) -> Norm:
        """The final norm, measured."""
        return measure(self.final_norm, self.weight.shape[1], self.weight.device)

    @cached_property
    def exact_norm(self) -> nn.Module:
        """The final norm in float32."""
        return copy.deepcopy(self.final_norm).float()

    @property
    def rows_at_once(self) -> int:
        """How many residuals are read together: a block of logits on a GPU, a quarter of one on a CPU, whose cache is small."""
        block = project.BLOCK_BYTES if self.weight.device.type == "cuda" else project.BLOCK_BYTES // 4
        return max(1, block // (4 * self.vocabulary))

    @torch.inference_mode()
    def logits(self, residuals: Tensor, *, exact: bool = False) -> Tensor:
        """The model's own logits of residuals [n, model], as float32. `exact` computes them in float32 too, whatever type the
        weights have; otherwise they are computed in the weights' type, as the model does."""
        return self._logits(residuals, exact=exact).float()

    def _logits(self, residuals: Tensor, *, exact: bool = False) -> Tensor:
        """The same, in the type they are computed in."""
        if exact:
            vectors = self.exact_norm(residuals.float())
            logits = torch.empty(len(vectors), self.vocabulary, device=self.weight.device)
            project.multiply(vectors, self.weight, logits)
            logits = logits if self.bias is None else logits + self.bias
        else:
            logits = self.output(self.final_norm(residuals.to(self.weight.dtype)))
        plain = self.scale == 1.0 and self.cap is None
        return logits if plain else self.capped(logits.float() * self.scale)

    @torch.inference_mode()
    def without_norm(self, residuals: Tensor) -> Tensor:
        """Logits of residuals as if there were no final norm, in float32; bias, scale and cap stay."""
        logits = torch.empty(len(residuals), self.vocabulary, device=self.weight.device)
        project.multiply(residuals.float(), self.weight, logits)
        logits = logits if self.bias is None else logits + self.bias
        return self.capped(logits * self.scale)

    def capped(self, logits: Tensor) -> Tensor:
        """Logits through the model's cap, if it has one."""
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap

    @torch.inference_mode()
    def read_residuals(self, residuals: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The top token of each residual [n, model] as the model reads it, and the probability of one token per residual."""
        tops, probabilities = [], []
        step = self.rows_at_once
        for at in range(0, len(residuals), step):
            logits = self._logits(residuals[at : at + step])
            top, log_total = project.first_tokens(logits, summed=tokens is not None)
            tops.append(top)
            if tokens is not None:
                asked = logits.gather(1, tokens[at : at + step, None]).flatten()
                probabilities.append((asked - log_total).exp().float())
        return torch.cat(tops), torch.cat(probabilities) if tokens is not None else None

    @torch.inference_mode()
    def top(self, lens: str, vectors: Tensor, layer: int | Tensor | None = None) -> Tensor:
        """The top token of each vector [n, model] of a layer through a lens."""
        seen = project.blocks(self.see(lens, vectors, layer), self.weight)
        return torch.cat([project.first_tokens(logits, summed=False)[0] for _, logits in seen])

    def see(self, lens: str, vectors: Tensor, layer: int | Tensor | None = None) -> Tensor:
        """Vectors as a lens changes them before they meet the unembedding. Only `mapped` needs to know the layer that they are
        of: one for all, or one for each, [n]."""
        lens, vectors = check_lens(lens), vectors.float()
        if not isinstance(layer, Tensor):
            return LENSES[lens](vectors, self, layer)
        if lens not in PER_LAYER:
            return LENSES[lens](vectors, self, None)
        seen = torch.empty_like(vectors)
        for each in sorted(set(layer.tolist())):
            here = (layer == each).nonzero().flatten().to(vectors.device)
            seen[here] = LENSES[lens](vectors[here], self, int(each))
        return seen

    def map_of(self, layer: int | None) -> Map:
        """The map from a layer's residual to the last one."""
        if self.maps is None:
            raise missing()
        if layer is None:
            raise UsageError("The lens 'mapped' has a map per layer: say which layer the vectors are of.")
        return self.maps.at(layer, self.weight.device)

    def post_norm(self, layer: int) -> Norm | None:
        """The norm between a layer and the residual, measured; None if there is none."""
        norm = self.model.post_norm(layer)
        return None if norm is None else measure(norm, self.weight.shape[1], self.model.values(layer).device)

    @torch.inference_mode()
    def values(self, layer: int) -> Tensor:
        """A layer's value vectors as they reach the residual, [cells, model], float32."""
        values, post = self.model.values(layer).float(), self.post_norm(layer)
        return values if post is None else post.fold(values)

    @torch.inference_mode()
    def promoting(self, layer: int, token: int) -> Tensor:
        """[model] the direction, of length 1, in which a value of the layer raises a token's logit most while the mean of all tokens'
        logits stays as it is, float32.

        Logits are read through the lens `norm`. Softmax knows only differences, and along the mean row all tokens rise, some more than
        the one that is meant: without the second condition it would not even be the first token of its own direction (SmolLM2-135M:
        for 17 % of tokens; with it, for 0.3 %). The direction is for values as the weights store them: a norm between layer and
        residual is counted in.
        """
        weight, post = self.weight, self.post_norm(layer)

        def gradient(row: Tensor) -> Tensor:
            before = self.norm.fold_back(row)
            return before if post is None else post.fold_back(before.to(post.gain.device))

        own, common = gradient(weight[token].float()), gradient(weight.mean(0, dtype=torch.float32))
        along = own - (own @ common) / (common @ common).clamp_min(1e-30) * common
        if not float(along.norm()) > 1e-5 * float(own.norm()):
            raise UsageError(
                f"No value can promote {self.model.vocabulary.piece(token)!r} against the other tokens: its row in the unembedding is that "
                "which all tokens have in common."
            )
        found: Tensor = along / along.norm()
        return found
