"""Around a forward pass: what torch and transformers would do by themselves, and what it costs, put aside meanwhile."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch.nn import functional

from ..kernels.available import has_triton

SHORT_WINDOW = 96


@contextlib.contextmanager
def attention_for(columns: int, device: torch.device) -> Iterator[None]:
    """On a GPU, windows that are short, but not for `attention.short`, go through torch's kernel with the smallest tiles."""
    if device.type != "cuda" or columns > SHORT_WINDOW:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        yield


@functools.cache
def _own_attention() -> bool:
    """Whether every GPU here runs our kernels."""
    cards = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return bool(cards) and all(has_triton(card) for card in cards)


class _Looks:
    """What transformers would look at, put away while any thread runs a model; the last one puts it back."""

    lock = threading.Lock()
    running = 0
    before: ClassVar[list[tuple[Any, str, Any]]] = []


@contextlib.contextmanager
def without_looking() -> Iterator[None]:
    """Keep transformers from reading inputs back: whether several texts are packed into a row (none are), whether there
    is padding it should warn of (causal attention never sees it). On a GPU each look would wait for all work in flight.
    There, attention over short windows is our own, too.
    """
    from transformers import PreTrainedModel, masking_utils

    looks: list[tuple[Any, str, Any]] = [
        (masking_utils, "find_packed_sequence_indices", lambda position_ids: None),
        (PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *args, **kwargs: None),
    ]
    if _own_attention():
        from ..kernels.attention import attention

        looks.append((functional, "scaled_dot_product_attention", attention))
    with _Looks.lock:
        _Looks.running += 1
        if _Looks.running == 1:
            there = [(owner, name, instead) for owner, name, instead in looks if hasattr(owner, name)]
            _Looks.before = [(owner, name, getattr(owner, name)) for owner, name, _ in there]
            for owner, name, instead in there:
                setattr(owner, name, instead)
    try:
        yield
    finally:
        with _Looks.lock:
            _Looks.running -= 1
            if not _Looks.running:
                for owner, name, value in _Looks.before:
                    setattr(owner, name, value)
