"""What pruning methods need to know of a layer, from one pass over text:

    count     tokens
    sums      Σ m             [cells]
    sizes     Σ |m|           [cells]
    squares   Σ m²            [cells]
    largest   the largest |m| [cells]
    pairs     Σ (m−s)(m−s)ᵀ   [cells, cells]   s: a first guess of the mean, without which a large mean would drown a small variance
    pull      Σ g gᵀ          [model, model]   g: gradient of −log p of the next token by what the layer adds

The next token of `pull` is drawn from the model's own distribution, so that Σ g gᵀ is the Fisher information: how much the
prediction feels a change of the layer's output in each direction. The text itself would mix that with the model's errors.

The start token counts: pruned layers act there too, and some cells act nowhere else, on which the rest of the model relies.

Pairs of all layers at once may not fit in memory. Layers are then taken in groups, with one pass each; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import ModelError
from ...lens.head import Head
from ...models.memory import is_out_of_memory
from ...models.model import Model
from ...models.patches import without_readbacks
from ...models.taps import Taps, tapped
from ..losses import batches
from ..texts import Window

PAIRS_BYTES = 4 << 30
"""Bound on the pairs of the layers that one pass looks at, in float32."""
GRADIENT_TOKENS = {"cpu": 1024, "cuda": 8192}
"""Tokens per batch of the pass that keeps what gradients need; fewer if they do not fit in memory."""

Begin = Callable[[int], Callable[[int], None]]


@dataclass
class Moments:
    """Sums over the tokens of a text, of one layer; float64, but for `pairs` and `pull`."""

    count: int
    sums: Tensor
    sizes: Tensor
    squares: Tensor
    pairs: Tensor | None = None
    pull: Tensor | None = None
    guess: Tensor | None = None
    """[cells] s, float32 on the layer's device: the mean over the first batch; None before it, and taken for 0"""
    largest: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        return self.sums / self.count

    @property
    def variance(self) -> Tensor:
        """Of each cell's coefficient, with n − 1."""
        return (self.squares - self.sums.square() / self.count).clamp_min(0) / max(1, self.count - 1)

    def second(self, *, centred: bool) -> Tensor:
        """[cells, cells] the covariance of the coefficients (with n), or their second moment; float64."""
        assert self.pairs is not None
        found = self.pairs.double() / self.count
        mean = self.mean.to(found.device)
        off = mean if self.guess is None else mean - self.guess.double().to(found.device)
        found -= torch.outer(off, off)
        if not centred:
            found += torch.outer(mean, mean)
        return found

    def check(self, layer: int, kind: torch.dtype) -> None:
        """Refuse numbers that are NaN or infinite."""
        every = [self.sums, self.squares, *(each for each in (self.pairs, self.pull) if each is not None)]
        if not all(bool(each.isfinite().all()) for each in every):
            raise ModelError(
                f"Coefficients or gradients of layer {layer} are NaN or infinite in {str(kind).removeprefix('torch.')}, so nothing can be "
                "fitted to them. Give the model in a wider type: model=keyhole.load(MODEL, dtype='float32')."
            )


def groups(model: Model, pairs: bool) -> Iterator[list[int]]:
    """Layers that one pass can look at."""
    group: list[int] = []
    size = 0
    for layer, width in enumerate(site.width for site in model.sites):
        own = 4 * width * width if pairs else 0
        if group and size + own > PAIRS_BYTES:
            yield group
            group, size = [], 0
        group.append(layer)
        size += own
    yield group


def calibrate(
    model: Model,
    windows: Sequence[Window],
    layers: Sequence[int],
    *,
    pairs: bool = False,
    pull: bool = False,
    seed: int = 0,
    begin: Begin = lambda total: lambda done: None,
) -> dict[int, Moments]:
    """One pass over the windows. Padding does not count."""
    found = {layer: _empty(model, layer, pairs=pairs, pull=pull) for layer in layers}
    most = _fitting(model, windows, layers) if pull else None
    advance = begin(sum(len(window.ids) for window in windows))
    random = torch.Generator().manual_seed(seed)
    for rows in batches(model, windows, most):
        ids, own = _together(model, windows, rows)
        _pass(model, ids, own, found, random, pull=pull)
        advance(sum(len(windows[row].ids) for row in rows))
    for layer, moments in found.items():
        moments.check(layer, model.dtype)
    return found


def _together(model: Model, windows: Sequence[Window], rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A batch of windows, and which of its places are no padding."""
    batch = model.batch([windows[row].ids for row in rows])
    own = torch.zeros(batch.ids.shape, dtype=torch.bool)
    for row, which in enumerate(rows):
        own[row, : batch.n_special + len(windows[which].ids)] = True
    return batch.ids, own.to(model.device)


def _fitting(model: Model, windows: Sequence[Window], layers: Sequence[int]) -> int:
    """How many tokens a batch can have, so that its gradients fit in memory: the largest batch is tried, and halved as often as it
    takes."""
    most = GRADIENT_TOKENS.get(model.device.type, GRADIENT_TOKENS["cpu"])
    while True:
        rows = batches(model, windows, most)[0]  # the longest windows are in the first
        try:
            tried = {layer: _empty(model, layer, pairs=False, pull=True) for layer in layers}
            _pass(model, *_together(model, windows, rows), tried, torch.Generator(), pull=True)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise ModelError(
                    f"The gradients of {len(windows[rows[0]].ids)} tokens of {model.source} do not fit in the memory of {model.device}. Use "
                    "--device cpu, or a method without gradients: --by flap+refit."
                ) from None
        else:
            return most
        most //= 2


def _empty(model: Model, layer: int, *, pairs: bool, pull: bool) -> Moments:
    site = model.sites[layer]
    cells, size, device = site.width, site.values.shape[1], site.device
    sums, sizes, squares, largest = (torch.zeros(cells, dtype=torch.float64, device="cpu") for _ in range(4))
    return Moments(
        0,
        sums,
        sizes,
        squares,
        pairs=torch.zeros(cells, cells, device=device) if pairs else None,
        pull=torch.zeros(size, size, device=device) if pull else None,
        largest=largest,
    )


def _pass(
    model: Model, ids: Tensor, own: Tensor, found: dict[int, Moments], random: torch.Generator, *, pull: bool
) -> None:
    outputs: dict[int, Tensor] = {}

    @torch.no_grad()
    def take(site: int, x: Tensor, tokens: Tensor | None) -> None:
        if site in found:
            add(found[site], x.detach().reshape(-1, x.shape[-1])[own.reshape(-1).to(x.device)].float())

    def hold(site: int, y: Tensor, tokens: Tensor | None) -> None:
        if site in found:
            outputs[site] = y if y.requires_grad else y.requires_grad_()

    if not pull:
        with tapped(model, Taps(coefficients=take)):
            model.forward(ids)
        return
    with tapped(model, Taps(coefficients=take, projected=hold)), without_readbacks(), torch.enable_grad():
        kept: dict[str, Tensor] = {}

        def keep(layer: int, x: Tensor) -> None:
            if layer == model.layers - 1:
                kept["o"] = x

        with tapped(model, Taps(block_out=keep)):
            model.lm.base_model(input_ids=ids.to(model.device), use_cache=False)
        last = kept["o"].reshape(*ids.shape, -1)[own]
        pulled = _pulled(Head(model), last.detach(), random)
        gradients = torch.autograd.grad(last, [outputs[site] for site in sorted(outputs)], pulled)
    for site, gradient in zip(sorted(outputs), gradients, strict=True):
        g = gradient.reshape(-1, gradient.shape[-1])[own.reshape(-1).to(gradient.device)].float()
        matrix = found[site].pull
        assert matrix is not None
        matrix += g.T @ g


def _pulled(head: Head, residuals: Tensor, random: torch.Generator) -> Tensor:
    """[n, model] the gradient, by residuals [n, model], of Σ −log p of tokens that are drawn from the model itself. It is made in
    blocks: the logits of all tokens at once may not fit in memory."""
    found = torch.empty_like(residuals)
    step = max(1, head.rows_at_once // 4)
    for at in range(0, len(residuals), step):
        part = residuals[at : at + step].clone().requires_grad_()
        logits = head.output(head.final_norm(part)).float()
        log_p = head.capped(logits * head.scale).log_softmax(1)
        with torch.no_grad():  # drawn by the inverse of the distribution: the same on every device
            place = torch.rand(len(log_p), 1, generator=random).to(log_p.device)
            drawn = (log_p.exp().double().cumsum(1) < place).sum(1, keepdim=True).clamp_max(log_p.shape[1] - 1)
        (found[at : at + step],) = torch.autograd.grad(-log_p.gather(1, drawn).sum(), part)
    return found


def add(moments: Moments, m: Tensor) -> None:
    """Coefficients [tokens, cells] of some more tokens."""
    moments.count += len(m)
    moments.sums += m.sum(0, dtype=torch.float64).cpu()
    moments.sizes += m.abs().sum(0, dtype=torch.float64).cpu()
    moments.squares += m.square().sum(0, dtype=torch.float64).cpu()
    if moments.largest is not None and len(m):
        moments.largest = torch.maximum(moments.largest, m.abs().amax(0).double().cpu())
    if moments.pairs is not None and len(m):
        if moments.guess is None:
            moments.guess = m.mean(0)
        m = m - moments.guess
        moments.pairs += m.T @ m
