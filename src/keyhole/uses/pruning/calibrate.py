"""What pruning methods need to know of a layer, from one pass over text:

    count     tokens
    sums      Σ m             [cells]
    sizes     Σ |m|           [cells]
    pairs     Σ (m−s)(m−s)ᵀ   [cells, cells]   s: a first guess of the mean, without which a large mean would drown a small variance
    pull      Σ g gᵀ          [model, model]   g: gradient of −log p of the next token by what the layer adds

The next token of `pull` is drawn from the model's own distribution, so that Σ g gᵀ is the Fisher information: how much the
prediction feels a change of the layer's output in each direction. The text itself would mix that with the model's errors.

Pairs of all layers at once may not fit in memory. Layers are then taken in groups, with one pass each; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import ModelError
from ...lens.head import Head
from ...models.model import Model
from ...models.patches import without_readbacks
from ...models.taps import Taps, tapped
from ..losses import batches
from ..texts import Window

PAIRS_BYTES = 4 << 30
"""Bound on the pairs of the layers that one pass looks at, in float32."""
GRADIENT_TOKENS = {"cpu": 1024, "cuda": 8192}
"""Tokens of a batch whose gradients are kept."""

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
        """Refuse numbers that are none."""
        every = [self.sums, self.squares, *(each for each in (self.pairs, self.pull) if each is not None)]
        if not all(bool(each.isfinite().all()) for each in every):
            raise ModelError(
                f"Coefficients or gradients of layer {layer} are infinite or no number in {str(kind).removeprefix('torch.')}, so nothing can be "
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
    """One pass over the windows. Padding does not count, and the start token does not."""
    found = {layer: _empty(model, layer, pairs=pairs, pull=pull) for layer in layers}
    most = GRADIENT_TOKENS.get(model.device.type, GRADIENT_TOKENS["cpu"]) if pull else None
    advance = begin(sum(len(window.ids) for window in windows))
    random = torch.Generator().manual_seed(seed)
    for rows in batches(model, windows, most):
        batch = model.batch([windows[row].ids for row in rows])
        own = torch.zeros(batch.ids.shape, dtype=torch.bool)
        for row, which in enumerate(rows):
            own[row, batch.n_special : batch.n_special + len(windows[which].ids)] = True
        _pass(model, batch.ids, own.to(model.device), found, random, pull=pull)
        advance(sum(len(windows[row].ids) for row in rows))
    for layer, moments in found.items():
        moments.check(layer, model.dtype)
    return found


def _empty(model: Model, layer: int, *, pairs: bool, pull: bool) -> Moments:
    site = model.sites[layer]
    cells, size, device = site.width, site.values.shape[1], site.device
    sums, sizes, squares = (torch.zeros(cells, dtype=torch.float64, device="cpu") for _ in range(3))
    return Moments(
        0,
        sums,
        sizes,
        squares,
        pairs=torch.zeros(cells, cells, device=device) if pairs else None,
        pull=torch.zeros(size, size, device=device) if pull else None,
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
        last = kept["o"].reshape(*ids.shape, -1)
        loss = _own_loss(Head(model), last[own], random)
        gradients = torch.autograd.grad(loss, [outputs[site] for site in sorted(outputs)])
    for site, gradient in zip(sorted(outputs), gradients, strict=True):
        g = gradient.reshape(-1, gradient.shape[-1])[own.reshape(-1).to(gradient.device)].float()
        matrix = found[site].pull
        assert matrix is not None
        matrix += g.T @ g


def _own_loss(head: Head, residuals: Tensor, random: torch.Generator) -> Tensor:
    """Σ −log p of tokens that are drawn from the model itself, at residuals [n, model]."""
    logits = head.output(head.final_norm(residuals)).float()
    logits = head.capped(logits * head.scale)
    log_p = logits.log_softmax(1)
    with torch.no_grad():  # drawn by the inverse of the distribution: the same on every device
        at = torch.rand(len(log_p), 1, generator=random).to(log_p.device)
        drawn = (log_p.exp().double().cumsum(1) < at).sum(1, keepdim=True).clamp_max(log_p.shape[1] - 1)
    return -log_p.gather(1, drawn).sum()


def add(moments: Moments, m: Tensor) -> None:
    """Coefficients [tokens, cells] of some more tokens."""
    moments.count += len(m)
    moments.sums += m.sum(0, dtype=torch.float64).cpu()
    moments.sizes += m.abs().sum(0, dtype=torch.float64).cpu()
    moments.squares += m.square().sum(0, dtype=torch.float64).cpu()
    if moments.pairs is not None and len(m):
        if moments.guess is None:
            moments.guess = m.mean(0)
        m = m - moments.guess
        moments.pairs += m.T @ m
