"""The lens: vectors read as statements about the vocabulary, streamed in blocks.

Two lenses read a value vector v, both as logits without the head's bias, cap or scale, since a value is one summand of many:

    raw     v·E                       the paper's
    norm    (g ⊙ (v − c·mean v))·E    the final norm's gain g folded in; a LayerNorm centres (c = 1), an RMSNorm does not

A *residual* is read as the model itself reads it (`logits`): final norm, head, bias, scale and cap. Where a norm stands
between a layer and the residual (Gemma 2, OLMo 2), a value is what reaches the residual: that norm's gain is folded in.

The gain is folded into the vectors, so the unembedding is never copied, and a block of logits is all that is ever held.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import ModelError, UsageError
from ..kernels.available import has_triton
from ..models.model import Model, check
from ..store.values import KEPT, LENSES

BLOCK_BYTES = 256 << 20
"""A block of logits; on a GPU twice as much."""
CACHE_BYTES = 16 << 20
"""How much of a block a CPU goes over at once."""
CHUNK = 64
"""The largest logits of a row lie in the chunks with the largest maxima: so many tokens a chunk."""


def check_lens(name: str) -> str:
    if name not in LENSES:
        raise UsageError(f"There is no lens '{name}'. The lenses are: {', '.join(LENSES)}.")
    return name


# The model's last step


@dataclass(frozen=True)
class Norm:
    """A norm as numbers: gain, bias, and whether it takes the mean off."""

    gain: Tensor
    bias: Tensor
    centres: bool

    def fold(self, vectors: Tensor) -> Tensor:
        """What of a summand passes the norm, up to the common scale: the linear part."""
        if self.centres:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain


def measure(norm: nn.Module, width: int, device: torch.device) -> Norm:
    """Gain, bias and centring of a norm, from what it does: no architecture's way of storing them (Gemma keeps the gain
    less one, OLMo keeps none) has to be known."""
    exact = copy.deepcopy(norm).float()
    signs = 1 - 2 * (torch.arange(width, device=device) % 2)
    x = torch.linspace(1, 2, width, device=device) * signs
    x = x - x.mean()  # no mean, no entry near zero
    x = x / x.square().mean().sqrt() * 1e3  # so large that the norm's epsilon does not count
    with torch.inference_mode():
        plus, minus, shifted = exact(x[None])[0], exact(-x[None])[0], exact(x[None] + 1e3)[0]
    bias = (plus + minus) / 2
    gain = (plus - minus) / 2 / (x / 1e3)
    centres = bool((shifted - plus).norm() <= 1e-3 * plus.norm())
    return Norm(gain.clone(), bias.clone(), centres)


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
        self.final_norm: nn.Module = model.lm.get_submodule(model.family.final_norm)
        self.cap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.scale = float(getattr(model.config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(model.config, "logits_scaling", None) or 1.0)
        self._norm: Norm | None = None

    @property
    def vocabulary(self) -> int:
        return int(self.weight.shape[0])

    @property
    def norm(self) -> Norm:
        """The final norm, measured."""
        if self._norm is None:
            self._norm = measure(self.final_norm, self.weight.shape[1], self.weight.device)
        return self._norm

    @property
    def at_once(self) -> int:
        """So many residuals are read at once: a block of logits on a GPU, on a CPU what is not far from its cache."""
        block = BLOCK_BYTES if self.weight.device.type == "cuda" else BLOCK_BYTES // 4
        return max(1, block // (4 * self.vocabulary))

    @torch.inference_mode()
    def logits(self, residuals: Tensor) -> Tensor:
        """The model's own logits of residuals [n, model], float32."""
        return self._logits(residuals).float()

    def _logits(self, residuals: Tensor) -> Tensor:
        """The same, in the precision they are made in."""
        logits: Tensor = self.output(self.final_norm(residuals.to(self.weight.dtype)))
        if self.scale != 1.0:
            logits = logits.float() * self.scale
        return logits if self.cap is None else torch.tanh(logits.float() / self.cap) * self.cap

    @torch.inference_mode()
    def read(self, residuals: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The top token of each residual [n, model] as the model reads it, and the probability it gives one token each."""
        tops, probabilities = [], []
        step = self.at_once
        for at in range(0, len(residuals), step):
            logits = self._logits(residuals[at : at + step])
            top, log_total = _first_tokens(logits, summed=tokens is not None)
            tops.append(top)
            if tokens is not None:
                asked = logits.gather(1, tokens[at : at + step, None]).flatten()
                probabilities.append((asked - log_total).exp().float())
        return torch.cat(tops), torch.cat(probabilities) if tokens is not None else None

    @torch.inference_mode()
    def top(self, lens: str, vectors: Tensor) -> Tensor:
        """The top token of each vector [n, model] through a lens."""
        blocks = _blocks(self.see(lens, vectors), self.weight)
        return torch.cat([_first_tokens(logits, summed=False)[0] for _, logits in blocks])

    def see(self, lens: str, vectors: Tensor) -> Tensor:
        """Vectors as a lens turns them before they meet the unembedding."""
        check_lens(lens)
        vectors = vectors.float()
        return vectors if lens == "raw" else self.norm.fold(vectors)

    @torch.inference_mode()
    def values(self, layer: int) -> Tensor:
        """A layer's value vectors as they reach the residual, [cells, model], float32."""
        values = self.model.values(layer).float()
        path = self.model.family.ff_norm
        if path is None:
            return values
        post = self.model.blocks[layer].get_submodule(path)
        return measure(post, values.shape[1], values.device).fold(values)


def prove_head(model: Model, last_residual: Tensor, ids: Tensor, allowed: float) -> None:
    """The lens of the last residual must be the model's own logits; a model without a head has none to compare."""
    if model.lm.get_output_embeddings() is None:
        return
    with torch.inference_mode():
        own = model.lm(input_ids=ids.to(model.device), use_cache=False).logits.flatten(0, -2).float()
    head = Head(model)
    got = head.logits(last_residual.to(head.weight.device))
    check("the lens of the last residual against the model's own logits", model, model.layers - 1, got, own, allowed)


# Streaming


@dataclass(frozen=True)
class Projection:
    """What vectors say, a row each."""

    top_tokens: Tensor
    """[n, k] by logit, largest first; of equal ones the lower token first"""
    top_logits: Tensor
    bottom_tokens: Tensor
    """[n, k] by logit, smallest first"""
    bottom_logits: Tensor
    max_prob: Tensor
    """[n] the largest probability of softmax"""
    entropy: Tensor
    """[n] in nats"""
    ranks: Tensor
    """[n] the rank of the token asked for, 1 is the top; 0 where none was asked"""


def project(
    vectors: Tensor,
    weight: Tensor,
    *,
    kept: int = KEPT,
    targets: Tensor | None = None,
    masked: Tensor | None = None,
    advance: Callable[[int], None] = lambda rows: None,
) -> Projection:
    """Read vectors [n, model] (already through a lens) against an unembedding [vocabulary, model].

    `targets` [n] asks for the rank of one token a row (−1: none). `masked` are tokens that count nowhere.
    """
    if not len(vectors):
        raise UsageError("There are no vectors to project.")
    masked = torch.empty(0, dtype=torch.int64) if masked is None else masked
    masked, targets = masked.to(weight.device), None if targets is None else targets.to(weight.device)
    if has_triton(weight.device):
        return _survey(vectors, weight, kept, targets, masked, advance)
    parts = []
    for at, logits in _blocks(vectors, weight):
        parts += _read(logits, kept, None if targets is None else targets[at : at + len(logits)], masked)
        advance(len(logits))
    names = Projection.__dataclass_fields__
    return Projection(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _first_tokens(logits: Tensor, *, summed: bool) -> tuple[Tensor, Tensor]:
    """The first token of each row, and, where asked, the log of softmax's denominator."""
    if has_triton(logits.device):
        from ..kernels.lens import first_tokens

        return first_tokens(logits, summed=summed)
    logits = logits.float()
    return logits.argmax(1), logits.logsumexp(1) if summed else logits.new_empty(0)


@torch.inference_mode()
def _survey(
    vectors: Tensor,
    weight: Tensor,
    kept: int,
    targets: Tensor | None,
    masked: Tensor,
    advance: Callable[[int], None],
) -> Projection:
    """`project` on a GPU."""
    from ..kernels.lens import Surveyor

    ranked = targets is not None
    found = Surveyor(len(vectors), len(weight), kept, masked, weight.device, ranked=ranked)
    for at, logits in _blocks(vectors, weight):
        found.take(at, logits, None if targets is None else targets[at : at + len(logits)])
        advance(len(logits))
    values, tokens = found.tops()
    max_prob, entropy = found.softmax()
    ranks = torch.zeros(len(vectors), dtype=torch.int64, device=weight.device)
    return Projection(
        top_tokens=tokens[0],
        top_logits=values[0],
        bottom_tokens=tokens[1],
        bottom_logits=values[1],
        max_prob=max_prob,
        entropy=entropy,
        ranks=ranks if targets is None else found.ranks(targets),
    )


@torch.inference_mode()
def ranks(vectors: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """The ranks [n, m] of tokens [n, m] (or [m], for all) under vectors [n, model]; 1 is the top."""
    found = []
    for at, logits in _blocks(vectors, weight):
        asked = tokens[at : at + len(logits)] if tokens.dim() == 2 else tokens.expand(len(logits), -1)
        theirs = logits.gather(1, asked.to(logits.device))
        found.append(torch.stack([(logits > column[:, None]).sum(1) + 1 for column in theirs.T], 1))
    return torch.cat(found)


@torch.inference_mode()
def _read(logits: Tensor, kept: int, targets: Tensor | None, masked: Tensor) -> list[Projection]:
    """What a block of logits says. On a CPU it is gone over in pieces that stay in the cache."""
    rows, vocabulary = logits.shape
    step = rows if logits.device.type != "cpu" else max(1, min(rows, CACHE_BYTES // (4 * vocabulary)))
    scratch = torch.empty(step, vocabulary, device=logits.device)
    found = []
    for at in range(0, rows, step):
        z = logits[at : at + step]
        found.append(
            _read_piece(z, scratch[: len(z)], kept, None if targets is None else targets[at : at + step], masked)
        )
    return found


def _read_piece(z: Tensor, scratch: Tensor, kept: int, targets: Tensor | None, masked: Tensor) -> Projection:
    z.index_fill_(1, masked, -torch.inf)
    top_logits, top_tokens = largest(z, kept)
    rank = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    if targets is not None:
        theirs = z.gather(1, targets.clamp_min(0)[:, None])
        above = torch.gt(z, theirs, out=scratch).sum(1)  # counts as floats: exact up to 2²⁴ tokens
        rank = torch.where(targets >= 0, above.long() + 1, 0)
    p = torch.softmax(z, 1, out=scratch)
    max_prob = p.gather(1, top_tokens[:, :1]).flatten()
    mean = p.mul_(z.index_fill_(1, masked, 0)).sum(1)
    bottom_logits, bottom_tokens = largest(z.index_fill_(1, masked, torch.inf), kept, smallest=True)
    return Projection(
        top_tokens=top_tokens,
        top_logits=top_logits,
        bottom_tokens=bottom_tokens,
        bottom_logits=bottom_logits,
        max_prob=max_prob,
        entropy=top_logits[:, 0] - max_prob.log() - mean,  # the log of softmax's denominator, less the mean logit
        ranks=rank,
    )


def _blocks(vectors: Tensor, weight: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Blocks of logits, with the place of their first row; each in the memory of the one before."""
    vocabulary = weight.shape[0]
    gpu = weight.device.type != "cpu"
    most = max(1, min(len(vectors), (2 if gpu else 1) * BLOCK_BYTES // (4 * vocabulary)))
    even = 128 if gpu else 32  # matrix products like even sizes
    if most >= 2 * even:
        most = most // even * even
    padded = -(-vocabulary // 16) * 16 if gpu else vocabulary  # rows that begin on an even address
    logits = torch.empty(most, padded, device=weight.device)[:, :vocabulary]
    for at in range(0, len(vectors), most):
        rows = min(most, len(vectors) - at)
        _multiply(vectors[at : at + rows].to(weight.device).float(), weight, logits[:rows])
        yield at, logits[:rows]


@torch.inference_mode()
def _multiply(vectors: Tensor, weight: Tensor, out: Tensor) -> None:
    """vectors·weightᵀ in float32, whatever the weights are kept in: a half-precision logit has too many ties."""
    if weight.dtype == torch.float32:
        torch.mm(vectors, weight.T, out=out)
        return
    step = max(1, (BLOCK_BYTES // 2) // (4 * weight.shape[1]))
    for at in range(0, weight.shape[0], step):
        torch.mm(vectors, weight[at : at + step].float().T, out=out[:, at : at + step])


def largest(rows: Tensor, kept: int, *, smallest: bool = False) -> tuple[Tensor, Tensor]:
    """The `kept` largest (or smallest) entries of each row and where they are, in a total order: equal ones by place.

    Of the chunks of a row, ordered by (maximum, place), the first `kept` hold the row's `kept` largest: only those are
    looked into. One pass over the row.
    """
    n, width = rows.shape
    kept = min(kept, width)
    whole = width // CHUNK
    sign = -1 if smallest else 1
    if width <= kept * CHUNK * 2:
        values, places = _first(rows * sign, kept)
        return values * sign, places
    chunks = rows[:, : whole * CHUNK].view(n, whole, CHUNK)
    chosen = _first(chunks.amin(2).neg_() if smallest else chunks.amax(2), kept)[1].sort(1).values
    inside = (chosen[:, :, None] * CHUNK + torch.arange(CHUNK, device=rows.device)).flatten(1)
    rest = torch.arange(whole * CHUNK, width, device=rows.device).expand(n, -1)
    places = torch.cat([inside, rest], 1)
    values, order = _first(rows.gather(1, places) * sign, kept)
    return values * sign, places.gather(1, order)


def _first(rows: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The first `kept` of each row in the order (value descending, place ascending). `topk` leaves ties open, so the rows
    that have some are sorted."""
    if kept == rows.shape[1]:
        values, places = torch.sort(rows, dim=1, descending=True, stable=True)
        return values, places
    values, places = torch.topk(rows, kept + 1, dim=1)
    tied = (values[:, 1:] == values[:, :-1]).any(1).nonzero().flatten()
    values, places = values[:, :kept].clone(), places[:, :kept].clone()
    if len(tied):
        again, where = torch.sort(rows[tied], dim=1, descending=True, stable=True)
        values[tied], places[tied] = again[:, :kept], where[:, :kept]
    return values, places


# Tokens nobody should be shown


def seem_untrained(head: Head, known: int, occurring: Tensor) -> Tensor:
    """Tokens that never occur in the corpus and whose unembedding looks as it did before training.

    They have no entry in the tokenizer (`known` tokens), or an unembedding close to that of those without one, or one far
    shorter than is usual.
    """
    weight = head.weight
    parts = torch.split(weight, 1 << 15)
    norms = torch.cat([part.float().norm(dim=1) for part in parts])
    median = norms.median()
    spread = (norms - median).abs().median()
    doubtful = norms < torch.minimum(median - 6 * spread, 0.8 * median)
    doubtful[known:] = True
    if known < len(weight):
        blank = weight[known:].float().mean(0)
        near = torch.cat([torch.cosine_similarity(part.float(), blank[None], dim=1) for part in parts])
        doubtful |= near > 0.95
    doubtful[occurring.to(weight.device)] = False
    return doubtful.nonzero().flatten()


def nearest(vectors: Tensor, kept: int, advance: Callable[[int], None] = lambda rows: None) -> tuple[Tensor, Tensor]:
    """For each vector, the `kept` others with the largest cosine to it: cosines and places, [n, kept]."""
    units: Tensor = torch.nn.functional.normalize(vectors.float(), dim=1)
    cosines, places = [], []
    for at, block in _blocks(units, units):
        own = torch.arange(len(block), device=units.device)
        block[own, own + at] = -torch.inf
        values, found = largest(block, kept)
        cosines.append(values)
        places.append(found)
        advance(len(block))
    return torch.cat(cosines), torch.cat(places)
