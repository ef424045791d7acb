"""What is changed in torch and transformers while a forward pass runs, and put back after it.

Three things, each for speed, none of which changes a result beyond the rounding of an attention kernel:

- transformers reads inputs back from the device, to look for packed sequences and to warn of padding. There are none, so it
  is kept from doing so (`without_readbacks`).
- On a GPU, short causal windows go to our own attention kernel (`own_attention`).
- On a GPU, other short windows go to torch's kernel with the smallest tiles (`attention_for`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..kernels.available import has_triton

SHORT_WINDOW = 96
"""Columns up to which the kernel with the smallest tiles is preferred."""
ATTENTION = "keyhole"
"""The name under which transformers knows our attention."""
TORCH_ATTENTION = "sdpa"
"""transformers' name for torch's attention, which ours takes the place of."""


@contextlib.contextmanager
def attention_for(columns: int, device: torch.device) -> Iterator[None]:
    """On a GPU, prefer torch's attention kernel with the smallest tiles if windows are short."""
    if device.type != "cuda" or columns > SHORT_WINDOW:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        yield


# Replacing attributes


class _Replaced:
    """Attributes that are replaced while at least one thread needs it. The last one to leave puts the old values back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users: dict[tuple[int, str], int] = {}
        self.before: dict[tuple[int, str], Any] = {}

    @contextlib.contextmanager
    def with_value(self, owner: Any, name: str, value: Any) -> Iterator[None]:
        key = (id(owner), name)  # the owner lives while the generator does, so its id is not used again
        with self.lock:
            if not self.users.get(key):
                self.before[key] = getattr(owner, name)
                setattr(owner, name, value)
            self.users[key] = self.users.get(key, 0) + 1
        try:
            yield
        finally:
            with self.lock:
                self.users[key] -= 1
                if not self.users[key]:
                    setattr(owner, name, self.before.pop(key))
                    del self.users[key]


_replaced = _Replaced()


@contextlib.contextmanager
def without_readbacks() -> Iterator[None]:
    """Keep transformers from reading inputs back to see whether several texts are packed into a row (none are), and whether
    there is padding to warn of (causal attention never sees it). On a GPU, each read would wait for all work in flight."""
    from transformers import PreTrainedModel, masking_utils

    readers: list[tuple[Any, str, Any]] = [
        (masking_utils, "find_packed_sequence_indices", lambda position_ids: None),
        (PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *args, **kwargs: None),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, instead in readers:
            if hasattr(owner, name):
                stack.enter_context(_replaced.with_value(owner, name, instead))
        yield


# Our attention


@contextlib.contextmanager
def own_attention(lm: Any) -> Iterator[None]:
    """Run the model with our attention kernel in place of torch's, if every GPU here can run it.

    transformers lets a model choose its attention by name (`AttentionInterface`), so ours is registered under a name that the
    model's configuration has while it runs. A model that does not choose torch's attention by name is left alone: Bloom,
    GPT-J and GPT-Neo have attention of their own, Gemma 2 caps its scores, and Falcon always passes a mask, so our kernel
    would not apply.
    """
    named = getattr(lm.config, "_attn_implementation", None) in (TORCH_ATTENTION, ATTENTION)
    if not kernel_runs() or not named or not lm._can_set_attn_implementation():
        yield
        return
    register()
    with _replaced.with_value(lm.config, "_attn_implementation", ATTENTION):
        yield


@functools.cache
def kernel_runs() -> bool:
    """Whether every GPU here runs our kernels."""
    cards = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return bool(cards) and all(has_triton(card) for card in cards)


@functools.cache
def register() -> None:
    """Tell transformers of our attention. Its masks are those of torch's attention."""
    from transformers import AttentionInterface, AttentionMaskInterface

    from ..kernels.attention import instead_of

    AttentionInterface.register(ATTENTION, instead_of(AttentionInterface()[TORCH_ATTENTION]))
    AttentionMaskInterface.register(ATTENTION, AttentionMaskInterface()[TORCH_ATTENTION])
