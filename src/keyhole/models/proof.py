"""The proof of a family's row: the model's own numbers on one short input must follow from what the row says.

Four identities are checked in every layer, in the model's own precision:

    act(x·k + b), or act(gate)·up         = coefficients
    coefficients @ V + b                  = the output of the down-projection
    residual + attention + feed-forward   = the next residual (what is added is taken after a post-norm, if there is one)
    lens of the last residual             = the model's own logits

A model that fails is refused, with the relative difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ProofFailed
from ..lens.head import Head
from .families import FILE
from .taps import Taps, tapped

if TYPE_CHECKING:
    from .model import Model
    from .sites import Site

LENGTH = 12
"""Tokens of the input."""
STRIDE = 7919
"""Its token ids are the first multiples of this prime, modulo the size of the embedding: they are spread over it."""
ALLOWED_FLOAT32, ALLOWED_HALF = 1e-4, 3e-2
"""The largest relative difference between two sums of the same terms in that precision."""


def prove(model: Model) -> None:
    """Check the family's row on one short input; a model whose numbers do not follow from it is refused."""
    refuse_not_numbers(model)
    seen: dict[tuple[str, int], Tensor] = {}

    def keep(name: str, number: int, value: Tensor, device: torch.device) -> None:
        # a copy, because some blocks add in place; to the layer's device, because the parts of a split model are on several
        seen[name, number] = value.detach().float().clone().to(device).flatten(0, -2)

    def sink(name: str, site: int, value: Tensor) -> None:
        keep(name, site, value, model.sites[site].device)

    def watch(name: str, layer: int, value: Tensor) -> None:
        keep(name, layer, value, model.values(layer).device)

    taps = Taps(
        coefficients=lambda site, x, tokens: sink("coefficients", site, x),
        projected=lambda site, x, tokens: sink("projected", site, x),
        keys=lambda site, x, tokens: sink("keys", site, x),
        ups=lambda site, x, tokens: sink("ups", site, x),
        block_in=lambda layer, x: watch("residual", layer, x),
        attention=lambda layer, x: watch("attention", layer, x),
        feed_forward=lambda layer, x: watch("ff", layer, x),
        block_out=lambda layer, x: watch("next", layer, x),
    )
    ids = (torch.arange(LENGTH) * STRIDE % model.lm.get_input_embeddings().weight.shape[0])[None]
    with tapped(model, taps, tuple(ids.shape)):
        model.forward(ids)

    allowed = ALLOWED_FLOAT32 if model.dtype == torch.float32 else ALLOWED_HALF
    for number, site in enumerate(model.sites):
        if site.routing is not None and ("coefficients", number) not in seen:  # no token was routed to this expert
            continue
        if ("coefficients", number) not in seen:
            raise ProofFailed(
                f"{model.source} is not what the family '{model.config.model_type}' says: the coefficients of layer {site.layer} "
                f"never came, because its down-projection was not called. It needs a row of its own in FAMILIES ({FILE})."
            )
        prove_keys(model, number, site, seen, allowed)
        rebuilt = seen["coefficients", number] @ site.values.float()
        rebuilt = rebuilt if site.bias is None else rebuilt + site.bias.float()
        what = "coefficients @ V + b against the down-projection's output"
        check(what, model, site.layer, rebuilt, seen["projected", number], allowed)
    for layer in range(model.layers):
        total = seen["residual", layer] + seen["attention", layer] + seen["ff", layer]
        after = seen["next", layer]
        check("residual + attention + feed-forward against the next residual", model, layer, total, after, allowed)
        if layer + 1 < model.layers:
            following = seen["residual", layer + 1]
            check("a layer's output against the next layer's input", model, layer, after, following, allowed)
    prove_head(model, seen["next", model.layers - 1], ids, allowed)


def prove_keys(model: Model, number: int, site: Site, seen: dict[tuple[str, int], Tensor], allowed: float) -> None:
    """What the activation makes of the keys' output must be the coefficients."""
    if site.key is None or site.function is None:
        return
    names = ["keys", "ups"] if site.up is not None else ["keys"]
    coefficients = seen["coefficients", number]
    for name in names:
        got = seen.get((name, number))
        if got is None or got.shape != coefficients.shape:
            what = "was not called" if got is None else f"gives {got.shape[-1]} numbers per token"
            raise ProofFailed(
                f"{model.source} is not what the family '{model.config.model_type}' says: in layer {site.layer}, the projection of "
                f"its {name} {what}, and there are {site.width} cells. It needs a row of its own in FAMILIES ({FILE})."
            )
    with torch.inference_mode():
        rebuilt = site.function(seen["keys", number])
    if site.up is not None:
        rebuilt = rebuilt * seen["ups", number]
    what = "act(gate)·up against the coefficients" if site.up is not None else "act(x·k + b) against the coefficients"
    check(what, model, site.layer, rebuilt, coefficients, allowed)


def prove_head(model: Model, last_residual: Tensor, ids: Tensor, allowed: float) -> None:
    """The lens of the last residual must be the model's own logits; a model without a head has none to compare."""
    if model.lm.get_output_embeddings() is None:
        return
    with torch.inference_mode():
        own = model.lm(input_ids=ids.to(model.device), use_cache=False).logits.flatten(0, -2).float()
    head = Head(model)
    got = head.logits(last_residual.to(head.weight.device))
    check("the lens of the last residual against the model's own logits", model, model.layers - 1, got, own, allowed)


def refuse_not_numbers(model: Model) -> None:
    """Refuse NaN and infinity in any weight: the short input of the proof uses few rows of the embedding."""
    for name, weight in model.lm.named_parameters():
        if weight.is_floating_point() and weight.numel() and not torch.isfinite(torch.stack(weight.aminmax())).all():
            raise ProofFailed(
                f"{model.source}: the weight {name} has entries that are NaN or infinite, so what it computes is no number. The "
                "checkpoint is damaged, or does not fit the dtype: fetch it again, or load it as float32."
            )


def check(what: str, model: Model, layer: int, got: Tensor, expected: Tensor, allowed: float) -> None:
    """Refuse the model if two tensors that must be equal differ by more than rounding."""
    expected = expected.to(got.device)
    difference = float((got - expected).norm() / expected.norm().clamp_min(1e-30))
    if not difference <= allowed:
        raise ProofFailed(
            f"{model.source} is not what the family '{model.config.model_type}' says: in layer {layer}, {what}, the "
            f"relative difference is {difference:.2e}, and at most {allowed:.0e} is allowed. The coefficients would be wrong, so "
            f"the model is refused. If it is a variant of the architecture, it needs a row of its own in FAMILIES ({FILE})."
        )
