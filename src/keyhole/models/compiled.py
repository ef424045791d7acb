"""The blocks of a model compiled by `torch.compile`, for as long as a scan runs.

All blocks of a model do the same to different weights, so one of them is compiled and the others share it; every length and
number of rows goes through the same code. The coefficients leave a compiled block through an operator of our own, which the
compiler can neither look into nor leave out.
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

from ..common.memory import is_out_of_memory
from ..errors import ModelError, UsageError
from .model import Model, Sink


class _Here(threading.local):
    """What this thread does with the coefficients that come."""

    sink: Sink | None = None
    layer = 0


_here = _Here()


_operators = torch.library.Library("keyhole", "FRAGMENT")  # type: ignore[no-untyped-call]
# It is said to change `taken`, so that it is not optimised away; and to take coefficients however they lie, since the
# compiler would rather write cheap ones (a ReLU's) twice than promise how they do.
_operators.define("take(Tensor coefficients, Tensor(a!) taken) -> ()", tags=(torch.Tag.flexible_layout,))  # type: ignore[no-untyped-call]


@torch.library.impl(_operators, "take", "CompositeExplicitAutograd")
def _take(coefficients: Tensor, taken: Tensor) -> None:
    """Hand one layer's coefficients on."""
    if _here.sink is not None:
        _here.sink(_here.layer, coefficients)
    _here.layer += 1


@torch.library.register_fake("keyhole::take")  # type: ignore[untyped-decorator]
def _(coefficients: Tensor, taken: Tensor) -> None:
    return None


@contextlib.contextmanager
def taking(sink: Sink) -> Iterator[None]:
    """Give a compiled model's coefficients to `sink`, layer after layer, during one forward pass."""
    _here.sink, _here.layer = sink, 0
    try:
        yield
    finally:
        _here.sink = None


@functools.cache
def _hook(device: torch.device) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """Always the same for a device: what was compiled with it is then found again by the next scan."""
    taken = torch.zeros(1, dtype=torch.int8, device=device)

    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        torch.ops.keyhole.take(inputs[0], taken)

    return hook


@contextlib.contextmanager
def compiled(model: Model) -> Iterator[None]:
    """The model with its blocks compiled; afterwards as it was."""
    if model.split:
        raise UsageError("--compile works on one device: leave it out with --device split.")
    inside = (module for block in model.blocks for module in block.modules())
    if any(module._forward_pre_hooks or module._forward_hooks for module in inside):
        # blocks share what is compiled for one of them, and what hooks do to each would be lost
        raise UsageError(f"--compile leaves out hooks, and {model.source} has some (edits are hooks): scan without it.")
    handles = [down.register_forward_pre_hook(_hook(model.device)) for down in model.downs]
    try:
        for block in model.blocks:
            block.compile(dynamic=True)
        model.taking = taking
        _compile_now(model)
        yield
    finally:
        model.taking = None
        for block in model.blocks:
            block._compiled_call_impl = None
        for handle in handles:
            handle.remove()


def _compile_now(model: Model) -> None:
    """Compile, on a batch of always the same shape: what the compiler decides by shape must not depend on the text."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32")  # who asks for float32 gets it
            model.forward(torch.zeros(2, 12, dtype=torch.int64))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = str(error).strip().splitlines() or [""]
        raise ModelError(
            f"{model.source} could not be compiled ({type(error).__name__}: {said[0]}). Scan without --compile: the result "
            "is the same up to rounding."
        ) from error
