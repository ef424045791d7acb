"""The blocks of a model compiled by `torch.compile`, for as long as a scan runs.

All blocks of a model compute the same function of different weights, so one is compiled and the others share it; every
length and number of rows goes through the same code. The coefficients leave a compiled block through an operator of our own,
which the compiler can neither look into nor remove.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, UsageError
from .memory import is_out_of_memory
from .model import Model
from .taps import Hook, hooked


class _ThisThread(threading.local):
    """What this thread does with the coefficients of compiled blocks."""

    give: Callable[[int, Tensor], None] | None = None
    site = 0


_this_thread = _ThisThread()


_operators = torch.library.Library("keyhole", "FRAGMENT")  # type: ignore[no-untyped-call]
# It is declared to change `taken`, so that the compiler does not remove it, and to accept any memory layout: if it demanded
# one, the compiler would write cheap coefficients (a ReLU's) twice.
_operators.define("take(Tensor coefficients, Tensor(a!) taken) -> ()", tags=(torch.Tag.flexible_layout,))  # type: ignore[no-untyped-call]


@torch.library.impl(_operators, "take", "CompositeExplicitAutograd")
def _take(coefficients: Tensor, taken: Tensor) -> None:
    """Hand one site's coefficients on."""
    if _this_thread.give is not None:
        _this_thread.give(_this_thread.site, coefficients)
    _this_thread.site += 1


@torch.library.register_fake("keyhole::take")  # type: ignore[untyped-decorator]
def _(coefficients: Tensor, taken: Tensor) -> None:
    return None


@contextlib.contextmanager
def tap(give: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Give (site, coefficients) of a compiled model to a function, site by site, during one forward pass."""
    _this_thread.give, _this_thread.site = give, 0
    try:
        yield
    finally:
        _this_thread.give = None


@functools.cache
def _hook(device: torch.device) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """The same function for every scan on a device, so that code compiled with it is found again by the next scan."""
    taken = torch.zeros(1, dtype=torch.int8, device=device)

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        torch.ops.keyhole.take(inputs[0], taken)

    return hook


@contextlib.contextmanager
def compiled(model: Model) -> Iterator[None]:
    """The model with its blocks compiled; afterwards as it was."""
    if model.split:
        raise UsageError("--compile works on one device: leave it out with --device split.")
    if any(site.routing is not None for site in model.sites):
        raise UsageError(f"--compile does not work with experts, and {model.source} has some: scan without it.")
    inside = (module for block in model.blocks for module in block.modules())
    if any(module._forward_pre_hooks or module._forward_hooks for module in inside):
        # the blocks share what is compiled for one of them, so what hooks do to each would be lost
        raise UsageError(f"--compile leaves out hooks, and {model.source} has some (edits are hooks): scan without it.")
    with hooked([Hook(site.module, _hook(model.device)) for site in model.sites]):
        try:
            for block in model.blocks:
                block.compile(dynamic=True)
            model.tap = tap
            _compile_now(model)
            yield
        finally:
            model.tap = None
            for block in model.blocks:
                block._compiled_call_impl = None


def _compile_now(model: Model) -> None:
    """Compile on a batch of always the same shape: what the compiler decides by shape must not depend on the text."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "TensorFloat32"
            )  # it advises a lower precision than the float32 that was asked for
            model.forward(torch.zeros(2, 12, dtype=torch.int64))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = str(error).strip().splitlines() or [""]
        raise ModelError(
            f"{model.source} could not be compiled ({type(error).__name__}: {said[0]}). Scan without --compile: the result "
            "is the same up to rounding."
        ) from error
