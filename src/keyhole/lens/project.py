"""Vectors read against an unembedding: their largest and smallest logits, softmax, entropy and ranks, computed in blocks.

A block of logits is the most that is ever held. On a GPU the kernels of `kernels/lens.py` do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UsageError
from ..kernels.available import has_triton
from ..kernels.sizes import CHUNK
from ..store.values import KEPT

BLOCK_BYTES = 256 << 20
"""Size of a block of logits; on a GPU it is twice that."""
CACHE_BYTES = 16 << 20
"""Size of the pieces in which a CPU goes over a block, so that each stays in its cache."""


@dataclass(frozen=True)
class Projection:
    """What vectors say, one row per vector."""

    top_tokens: Tensor
    """[n, k] by logit, largest first; among equal ones the lower token first"""
    top_logits: Tensor
    bottom_tokens: Tensor
    """[n, k] by logit, smallest first"""
    bottom_logits: Tensor
    max_prob: Tensor
    """[n] the largest probability of softmax"""
    entropy: Tensor
    """[n] in nats"""
    ranks: Tensor
    """[n] the rank of the token that was asked for, 1 is the top; 0 if none was asked"""


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

    `targets` [n] asks for the rank of one token per row (−1: none). `masked` tokens are left out of everything.
    """
    if not len(vectors):
        raise UsageError("There are no vectors to project.")
    masked = torch.empty(0, dtype=torch.int64) if masked is None else masked
    masked, targets = masked.to(weight.device), None if targets is None else targets.to(weight.device)
    if has_triton(weight.device):
        return _survey(vectors, weight, kept, targets, masked, advance)
    parts = []
    for at, logits in blocks(vectors, weight):
        parts += _summarise(logits, kept, None if targets is None else targets[at : at + len(logits)], masked)
        advance(len(logits))
    names = Projection.__dataclass_fields__
    return Projection(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def first_tokens(logits: Tensor, *, summed: bool) -> tuple[Tensor, Tensor]:
    """The top token of each row, and the log of softmax's denominator if `summed`."""
    if has_triton(logits.device):
        from ..kernels import lens

        return lens.first_tokens(logits, summed=summed)
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
    for at, logits in blocks(vectors, weight):
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
    for at, logits in blocks(vectors, weight):
        asked = tokens[at : at + len(logits)] if tokens.dim() == 2 else tokens.expand(len(logits), -1)
        theirs = logits.gather(1, asked.to(logits.device))
        found.append(torch.stack([(logits > column[:, None]).sum(1) + 1 for column in theirs.T], 1))
    return torch.cat(found)


@torch.inference_mode()
def _summarise(logits: Tensor, kept: int, targets: Tensor | None, masked: Tensor) -> list[Projection]:
    """What a block of logits says. A CPU goes over it in pieces that stay in its cache."""
    rows, vocabulary = logits.shape
    step = rows if logits.device.type != "cpu" else max(1, min(rows, CACHE_BYTES // (4 * vocabulary)))
    scratch = torch.empty(step, vocabulary, device=logits.device)
    found = []
    for at in range(0, rows, step):
        z = logits[at : at + step]
        found.append(
            _summarise_piece(z, scratch[: len(z)], kept, None if targets is None else targets[at : at + step], masked)
        )
    return found


def _summarise_piece(z: Tensor, scratch: Tensor, kept: int, targets: Tensor | None, masked: Tensor) -> Projection:
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
        entropy=top_logits[:, 0] - max_prob.log() - mean,  # the log of softmax's denominator, minus the mean logit
        ranks=rank,
    )


def blocks(vectors: Tensor, weight: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Blocks of logits, each with the number of its first row. A block uses the memory of the one before it."""
    vocabulary = weight.shape[0]
    gpu = weight.device.type != "cpu"
    most = max(1, min(len(vectors), (2 if gpu else 1) * BLOCK_BYTES // (4 * vocabulary)))
    even = 128 if gpu else 32  # matrix products are faster at multiples of this
    if most >= 2 * even:
        most = most // even * even
    padded = -(-vocabulary // 16) * 16 if gpu else vocabulary  # rows then begin at aligned addresses
    logits = torch.empty(most, padded, device=weight.device)[:, :vocabulary]
    for at in range(0, len(vectors), most):
        rows = min(most, len(vectors) - at)
        multiply(vectors[at : at + rows].to(weight.device).float(), weight, logits[:rows])
        yield at, logits[:rows]


@torch.inference_mode()
def multiply(vectors: Tensor, weight: Tensor, out: Tensor) -> None:
    """vectors·weightᵀ in float32, whatever type the weights have: half-precision logits have too many ties."""
    if weight.dtype == torch.float32:
        torch.mm(vectors, weight.T, out=out)
        return
    step = max(1, (BLOCK_BYTES // 2) // (4 * weight.shape[1]))
    for at in range(0, weight.shape[0], step):
        torch.mm(vectors, weight[at : at + step].float().T, out=out[:, at : at + step])


def largest(rows: Tensor, kept: int, *, smallest: bool = False) -> tuple[Tensor, Tensor]:
    """The `kept` largest (or smallest) entries of each row and their places, in a total order: equal entries by place.

    If the chunks of a row are ordered by (maximum, place), the first `kept` chunks hold the row's `kept` largest entries. So
    one pass over the row finds the maxima, and only those chunks are searched.
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
    """The first `kept` of each row in the order (value descending, place ascending). `topk` orders ties arbitrarily, so rows
    with ties are sorted instead."""
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


# Tokens that should not be shown


def seem_untrained(weight: Tensor, known: int, occurring: Tensor) -> Tensor:
    """Tokens that never occur in the corpus and whose unembedding, a row of `weight`, looks as it did before training.

    Such a token has no entry in the tokenizer (which has `known` tokens), or its unembedding is close to that of tokens
    without an entry, or it is far shorter than is usual.
    """
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
    """For each vector, the `kept` other vectors with the largest cosine to it: cosines and places, [n, kept]."""
    units: Tensor = torch.nn.functional.normalize(vectors.float(), dim=1)
    cosines, places = [], []
    for at, block in blocks(units, units):
        own = torch.arange(len(block), device=units.device)
        block[own, own + at] = -torch.inf
        values, found = largest(block, kept)
        cosines.append(values)
        places.append(found)
        advance(len(block))
    return torch.cat(cosines), torch.cat(places)
