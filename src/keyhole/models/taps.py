"""Taps: the one way in which hooks get into a model.

A scan, the states of an analysis, the proof of a family, a prompt and edits all look at (or change) what a model computes
while it runs. Each of them names what it wants in a `Taps` record. `tapped` registers the hooks, holds the model's lock while
they are there, and removes them afterwards, also after an error. While the blocks are compiled, hooks are not seen; the
coefficients then come from `Model.tap`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from .sites import Projection, Site, module_at, of_layer, path_of

if TYPE_CHECKING:
    from .model import Model

Sink = Callable[[int, Tensor, Tensor | None], None]
"""Receives (site, x, tokens) while a batch runs. tokens None: x is [rows, columns, width], every token of the batch. Else x is
[n, width], and tokens [n] (int64, ascending) says which token of the flattened batch, row × columns + column, each row is."""

Watch = Callable[[int, Tensor], None]
"""Receives (layer, activations), whose last axis is the model's. They are not a copy, and some blocks add to them in place:
copy what you keep."""

Replace = Callable[[Tensor, Tensor | None], Tensor]
"""From (coefficients as the module gets them, their tokens if the site is routed) to those that take their place."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Taps:
    """What to take from a model while it runs, and what to change. Everything is optional."""

    coefficients: Sink | None = None
    """the coefficients of each site, edited if there are edits"""
    projected: Sink | None = None
    """the output of each site's down-projection"""
    keys: Sink | None = None
    """x·k + b, what each site's activation is given; if there is a gate, the gate's. A site whose keys are not known gives none"""
    ups: Sink | None = None
    """if there is a gate: what act(gate) is multiplied by"""
    block_in: Watch | None = None
    """the residual that a block is given"""
    attention: Watch | None = None
    """what the attention adds to the residual"""
    feed_forward: Watch | None = None
    """what the feed-forward layer adds to the residual, its bias and its post-norm included"""
    block_out: Watch | None = None
    """the residual that a block gives on"""
    replace: Mapping[int, Replace] = field(default_factory=dict)
    """by site: what to put in place of its coefficients. It acts before every other tap of the site."""
    inputs: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
    """the arguments of the module that the blocks are in: token ids, cache, …"""


@dataclass(frozen=True)
class Hook:
    """A function that torch calls before or after a module."""

    module: nn.Module
    call: Callable[..., Any]
    after: bool = False
    keywords: bool = False
    """whether it is given the keyword arguments too"""
    first: bool = False
    """whether it comes before the hooks that are there already"""

    def register(self) -> Any:
        kind = self.module.register_forward_hook if self.after else self.module.register_forward_pre_hook
        return kind(self.call, with_kwargs=self.keywords, prepend=self.first)


# Registering


@contextlib.contextmanager
def tapped(model: Model, taps: Taps, shape: Shape | None = None) -> Iterator[None]:
    """Run the model with taps, inside the `with`. `shape` is that of the batch, [rows, columns]: some architectures give their
    feed-forward layers all tokens in one row. The model belongs to this thread meanwhile."""
    with model.lock:
        if model.tap is not None and taps == Taps(coefficients=taps.coefficients):
            give = _dense(taps.coefficients, shape) if taps.coefficients is not None else None
            with contextlib.nullcontext() if give is None else model.tap(give):
                yield
            return
        with hooked(hooks(model, taps, shape)):
            yield


@contextlib.contextmanager
def hooked(wanted: Iterable[Hook]) -> Iterator[None]:
    """The hooks inside the `with`, and none of them afterwards. It holds no lock: compiled blocks keep their hooks while other
    threads run the model."""
    with contextlib.ExitStack() as there:
        for hook in wanted:
            there.callback(hook.register().remove)
        yield


def hooks(model: Model, taps: Taps, shape: Shape | None = None) -> list[Hook]:
    """The hooks that taps need. Use `tapped`, unless they are to stay (permanent edits)."""
    if model.tap is not None:
        raise UsageError(
            f"The blocks of {model.source} are compiled, so only coefficients can be taken from them. Leave the compiled scan "
            "first."
        )
    found: list[Hook] = []
    if taps.inputs is not None:
        found.append(Hook(_parent(model), _arguments(taps.inputs), keywords=True))
    for number, site in enumerate(model.sites):
        if number in taps.replace:
            found.append(Hook(site.module, _replacing(site, taps.replace[number]), first=True))
        if taps.coefficients is not None:
            found.append(Hook(site.module, _coefficients(number, site, taps.coefficients, shape)))
        if taps.projected is not None:
            found.append(Hook(site.module, _projected(number, site, taps.projected, shape), after=True))
        for sink, projection in ((taps.keys, site.key), (taps.ups, site.up)):
            if sink is not None and projection is not None:
                found.append(Hook(projection.module, _before(number, projection, sink, shape), after=True))
    family = model.family
    for layer, block in enumerate(model.blocks):
        if taps.block_in is not None:
            found.append(Hook(block, _input(layer, taps.block_in), keywords=True))
        if taps.attention is not None:
            adds = module_at(block, family.attention_norm or family.attention)
            found.append(Hook(adds, _output(layer, taps.attention), after=True))
        if taps.feed_forward is not None:
            adds = model.post_norm(layer) or of_layer(model.sites, layer)[0].module
            found.append(Hook(adds, _output(layer, taps.feed_forward), after=True))
        if taps.block_out is not None:
            found.append(Hook(block, _output(layer, taps.block_out), after=True))
    return found


def _parent(model: Model) -> nn.Module:
    """The module that holds the list of blocks. It is called with the token ids."""
    parent: nn.Module = model.lm.get_submodule(path_of(model.lm, model.family.layers).rpartition(".")[0])
    return parent


# What the hooks do


def _dense(sink: Sink, shape: Shape | None) -> Callable[[int, Tensor], None]:
    """Hands on what a site without routing computes for a whole batch."""
    if shape is None:
        return lambda site, x: sink(site, x, None)
    return lambda site, x: sink(site, x.reshape(*shape, x.shape[-1]), None)


def _coefficients(number: int, site: Site, sink: Sink, shape: Shape | None) -> Callable[..., None]:
    give = _dense(sink, shape)
    if site.routing is None:  # runs once per layer and batch of a scan, so it does nothing but the call
        return lambda module, args: give(number, args[0])

    def routed(module: nn.Module, args: tuple[Any, ...]) -> None:
        sink(number, *_ascending(args[0], site, args))

    return routed


def _projected(number: int, site: Site, sink: Sink, shape: Shape | None) -> Callable[..., None]:
    give = _dense(sink, shape)
    if site.routing is None:
        return lambda module, args, output: give(number, output)

    def routed(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        sink(number, *_ascending(output, site, args))

    return routed


def _before(number: int, projection: Projection, sink: Sink, shape: Shape | None) -> Callable[..., None]:
    give = _dense(sink, shape)
    return lambda module, args, output: give(number, output[..., projection.part])


def _ascending(x: Tensor, site: Site, args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Rows of a routed site, sorted by token: an expert may be given them in any order."""
    tokens = site.tokens(args)
    assert tokens is not None
    tokens, order = tokens.long().sort()
    return x.index_select(0, order), tokens


def _replacing(site: Site, instead: Replace) -> Callable[..., tuple[Any, ...]]:
    return lambda module, args: (instead(args[0], site.tokens(args)), *args[1:])


def _arguments(watch: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> Callable[..., None]:
    return lambda module, args, kwargs: watch(args, kwargs)


def _input(layer: int, watch: Watch) -> Callable[..., None]:
    return lambda module, args, kwargs: watch(layer, args[0] if args else kwargs["hidden_states"])


def _output(layer: int, watch: Watch) -> Callable[..., None]:
    return lambda module, args, output: watch(layer, output[0] if isinstance(output, tuple) else output)


# Using what comes


def every_token(x: Tensor, tokens: Tensor | None, count: int) -> Tensor:
    """What a sink received as [count, width], one row per token of the batch: 0 for a token that was not routed here."""
    if tokens is None:
        return x.reshape(count, x.shape[-1])
    return x.new_zeros(count, x.shape[-1]).index_copy_(0, tokens, x)


def join_experts(model: Model, by_site: Mapping[int, Tensor]) -> list[Tensor]:
    """Rows [n, width] per site as rows [n, cells] per layer: the experts of a layer side by side. A site that no token
    was routed to may be missing, and counts as 0."""
    some = next(iter(by_site.values()))
    layers: list[list[Tensor]] = [[] for _ in range(model.layers)]
    for number, site in enumerate(model.sites):
        rows = by_site.get(number)
        layers[site.layer].append(some.new_zeros(len(some), site.width) if rows is None else rows)
    return [parts[0] if len(parts) == 1 else torch.cat(parts, 1) for parts in layers]
