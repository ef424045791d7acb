"""What `softmax` takes from a model: a softmax over a layer's keys beside its coefficients, the layer's output rebuilt from either,
and the loss if one layer runs with other coefficients."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..common.batching import batch_by_length
from ..models.taps import Hook, Taps, hooked, tapped
from ..store.run import Run
from . import softmax as settings
from .record import Begin
from .softmax import BUILT, WAYS

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.model import Model
    from ..models.states import States
    from ..store.values import Values
    from .heldout import Prefixes

Floats = npt.NDArray[np.float64]


def effective(weights: Tensor) -> Tensor:
    """(Σa)²/Σa² per row of weights that are not negative: 1 if one counts, their number if all are equal."""
    total, squares = weights.sum(1), weights.square().sum(1)
    found: Tensor = total.square() / squares.clamp_min(torch.finfo(weights.dtype).tiny)
    return found


def of_norm(weights: Tensor, norm: Tensor) -> Tensor:
    """Rows scaled to a norm."""
    factors: Tensor = norm / weights.norm(dim=-1).clamp_min(torch.finfo(weights.dtype).tiny)
    return weights * factors[..., None]


def instead(way: str, m: Tensor, keys: Tensor | None, signs: Tensor, order: Tensor) -> Tensor:
    """Coefficients [n, cells] in place of a layer's own `m`, of the same norm per row; `removed`: zeros."""
    norm = m.norm(dim=-1)
    if way == "removed":
        return torch.zeros_like(m)
    if way == "shuffled":
        return (m * signs)[:, order] * signs
    if way == "magnitude":
        return m.abs() * signs
    assert keys is not None
    return of_norm(torch.softmax(keys, -1) if way == "softmax" else torch.relu(keys), norm) * signs


class Rebuilding:
    """Entropy and numbers of memories at every prefix; at some of them, the layer's output rebuilt in other ways."""

    def __init__(self, run: Run, head: Head, values: Values, prefixes: Prefixes) -> None:
        model = head.model
        self.run, self.head, self.lens = run, head, values.lens
        self.applies = all(site.key is not None and site.routing is None for site in model.sites)
        self.wants = ("keys",) if self.applies else ()
        layers, n = model.layers, len(prefixes.ids)
        self.entropy = np.zeros((layers, n))
        """of the softmax, in nats"""
        self.counts = {name: np.zeros((layers, n)) for name in ("softmax", "magnitude", "relu")}
        """effective numbers of memories"""
        chosen = np.random.default_rng(0).permutation(n)[: settings.REPLACED]
        self.chosen = np.sort(chosen)
        """the prefixes at which layers are rebuilt"""
        self._slot = {int(row): at for at, row in enumerate(self.chosen)}
        self.same = {name: np.full((layers, len(chosen)), math.nan) for name in BUILT}
        """whether the rebuilt output has the layer's top token"""
        self.change = {name: np.full((layers, len(chosen)), math.nan) for name in BUILT}
        """‖y' − y‖/‖y‖"""
        self.cosine = {name: np.full((layers, len(chosen)), math.nan) for name in BUILT}
        self.signs = torch.from_numpy(run.orientation.astype(np.float32)).to(model.device)
        random = torch.Generator().manual_seed(0)
        self.orders = [torch.randperm(model.cells.size(layer), generator=random) for layer in range(layers)]

    @torch.inference_mode()
    def take(self, rows: Sequence[int], seen: States) -> None:
        if not self.applies:
            return
        some = [at for at, row in enumerate(rows) if row in self._slot]
        slots = [self._slot[rows[at]] for at in some]
        for layer, (m, keys) in enumerate(zip(seen.coefficients, seen.keys, strict=True)):
            keys = keys.float()
            logs = torch.log_softmax(keys, 1)
            p = logs.exp()
            self.entropy[layer, rows] = -(p * logs).sum(1).cpu().numpy()
            for name, weights in (("softmax", p), ("magnitude", m.float().abs()), ("relu", torch.relu(keys))):
                self.counts[name][layer, rows] = effective(weights).cpu().numpy()
            if some:
                self._rebuild(layer, m[some].float(), keys[some], seen.y[layer, some], slots)

    def _rebuild(self, layer: int, m: Tensor, keys: Tensor, y: Tensor, slots: list[int]) -> None:
        model = self.head.model
        values, bias, post = model.values(layer).float(), model.bias(layer), model.post_norm(layer)
        signs, order = self.signs[model.cells.span(layer)], self.orders[layer].to(m.device)
        outputs = []
        for name in BUILT:
            built = instead(name, m, keys, signs, order) @ values
            built = built if bias is None else built + bias.float()
            outputs.append(built if post is None else post(built.to(model.dtype)).float())
            self.change[name][layer, slots] = ((outputs[-1] - y).norm(dim=1) / y.norm(dim=1)).cpu().numpy()
            self.cosine[name][layer, slots] = torch.cosine_similarity(outputs[-1], y, dim=1).cpu().numpy()
        tops = self.head.top(self.lens, torch.cat([y, *outputs]), layer).view(len(BUILT) + 1, -1)
        for name, top in zip(BUILT, tops[1:], strict=True):
            self.same[name][layer, slots] = (top == tops[0]).double().cpu().numpy()


# The loss with one layer changed


@contextlib.contextmanager
def resumed(model: Model, outputs: list[Any], layer: int) -> Iterator[None]:
    """The blocks below a layer give what they gave before: only the rest of the model is computed."""
    with contextlib.ExitStack() as stack:
        for number in range(layer):
            model.blocks[number].forward = _giving(outputs[number], own=number == layer - 1)
            stack.callback(delattr, model.blocks[number], "forward")
        yield


def some_layers(layers: int) -> list[int]:
    """The layers that are replaced, the first and the last among them: all, or `settings.LAYERS` spread evenly."""
    return sorted({round(at) for at in np.linspace(0, layers - 1, min(layers, settings.LAYERS))})


def _giving(output: Any, *, own: bool) -> Callable[..., Any]:
    """A block that gives this; a copy if another block goes on from it, because some add in place to what they are given."""
    return lambda *args, **kwargs: _copied(output) if own else output


@torch.inference_mode()
def losses(
    watching: Rebuilding, prefixes: Prefixes, *, bos: bool, begin: Begin = lambda total: lambda done: None
) -> dict[str, Floats]:
    """−log p(next token) at the chosen prefixes: `own` [n], and per way [layers, n] with that layer's coefficients replaced at every
    token of the prefix; NaN for layers that are left out (`some_layers`)."""
    model, chosen = watching.head.model, watching.chosen
    found = {"own": np.zeros(len(chosen))}
    found |= {way: np.full((model.layers, len(chosen)), math.nan) for way in WAYS}
    advance = begin(len(chosen))
    for numbers in batch_by_length([len(prefixes.ids[row]) for row in chosen], settings.TOGETHER):
        rows = chosen[numbers]
        batch = model.batch([prefixes.ids[row] for row in rows], bos=bos)
        ends = torch.tensor([batch.n_special + len(prefixes.ids[row]) - 1 for row in rows], device=model.device)
        following = torch.tensor([prefixes.following[row] for row in rows], device=model.device)
        with _recorded(model) as outputs:
            found["own"][numbers] = _loss(watching.head, batch.ids, ends, following, Taps())
        for layer in some_layers(model.layers):
            signs, order = watching.signs[model.cells.span(layer)], watching.orders[layer].to(model.device)
            for way in WAYS:
                taps = _replacing(model, layer, way, signs, order)
                with resumed(model, outputs, layer):
                    found[way][layer, numbers] = _loss(watching.head, batch.ids, ends, following, taps)
        advance(len(rows))
    return found


def _loss(head: Head, ids: Tensor, ends: Tensor, following: Tensor, taps: Taps) -> Floats:
    """−log p of the token that follows each row's end."""
    model, last = head.model, list[Tensor]()

    def keep(layer: int, x: Tensor) -> None:
        if layer == model.layers - 1:
            last.append(x.reshape(*ids.shape, -1)[torch.arange(len(ids), device=x.device), ends])

    with tapped(model, replace(taps, block_out=keep), tuple(ids.shape)):
        model.forward(ids)
    _, p = head.read_residuals(last[0], following)
    assert p is not None
    found: Floats = -p.double().log().cpu().numpy()
    return found


@contextlib.contextmanager
def _recorded(model: Model) -> Iterator[list[Any]]:
    """What every block gives, in order, of the forward pass inside the `with`."""
    outputs: list[Any] = []
    with hooked(
        [Hook(block, lambda _, args, output: outputs.append(_copied(output)), after=True) for block in model.blocks]
    ):
        yield outputs


def _copied(output: Any) -> Any:
    """A block's output, apart from what later blocks may add to in place."""
    if isinstance(output, tuple):
        return tuple(_copied(each) for each in output)
    return output.clone() if isinstance(output, Tensor) else output


def _replacing(model: Model, layer: int, way: str, signs: Tensor, order: Tensor) -> Taps:
    (site,) = (number for number, each in enumerate(model.sites) if each.layer == layer)
    keys: dict[int, Tensor] = {}

    def put(x: Tensor, tokens: Tensor | None) -> Tensor:
        m = x.reshape(-1, x.shape[-1]).float()
        given = keys[site].reshape(m.shape).float() if way == "softmax" else None
        return instead(way, m, given, signs, order).to(x.dtype).reshape(x.shape)

    return Taps(keys=lambda number, x, tokens: keys.update({number: x}), replace={site: put})


def feed_forward_share(model: Model) -> float:
    """The share of the model's parameters that are in feed-forward layers."""
    modules = [part.module for site in model.sites for part in (site, site.key, site.up) if part is not None]
    inside = {id(weight): weight.numel() for module in modules for weight in module.parameters()}
    every = sum(int(weight.numel()) for weight in model.lm.parameters())
    return sum(inside.values()) / every
