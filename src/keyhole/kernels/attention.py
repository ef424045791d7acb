"""Causal attention over short windows, on a GPU.

A corpus cut into sentences means attention over about twenty tokens, many thousands of times. Kernels made for long contexts
spend most of that time on tiles that are nearly empty. This one puts a window and a head into one tile. Every call that it is
not made for goes to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

LONGEST = 64
"""Largest number of columns of a window."""
WIDEST = 128
"""Largest width of a head."""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["columns"])
def attend(
    q,
    k,
    v,
    out,
    columns,
    scale,
    q_row,
    q_head,
    q_column,
    k_row,
    k_head,
    k_column,
    v_row,
    v_head,
    v_column,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    WIDTH: tl.constexpr,
    LENGTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One window and head per program: softmax(q·kᵀ·scale)·v, where each column sees itself and the columns before it.

    Every SHARED heads of q have one head of k and v in common. `out` is [rows, columns, heads, width], contiguous. A head of
    WIDTH numbers is padded to WHOLE.
    """
    row = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    at = tl.arange(0, LENGTH)
    number = tl.arange(0, WHOLE)
    there = (at < columns)[:, None] & (number < WIDTH)[None, :]
    queries = tl.load(q + row * q_row + head * q_head + at[:, None] * q_column + number[None, :], mask=there, other=0.0)
    other = row * k_row + (head // SHARED) * k_head
    keys = tl.load(k + other + at[:, None] * k_column + number[None, :], mask=there, other=0.0)
    other = row * v_row + (head // SHARED) * v_head
    values = tl.load(v + other + at[:, None] * v_column + number[None, :], mask=there, other=0.0)
    scores = tl.dot(queries, tl.trans(keys)) * (scale * LOG2_E)
    scores = tl.where(at[:, None] >= at[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    mixed = tl.dot(weights.to(values.dtype), values) / tl.sum(weights, 1)[:, None]
    where = out + ((row * columns + at[:, None]) * HEADS + head) * WIDTH + number[None, :]
    tl.store(where, mixed.to(values.dtype), mask=there)


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend` is made for these shapes, types and strides."""
    return (
        q.dim() == 4
        and q.shape[0] == k.shape[0]
        and q.shape[2] == k.shape[2] <= LONGEST
        and q.shape[3] == k.shape[3] == v.shape[3] <= WIDEST
        and k.shape == v.shape
        and q.shape[1] % k.shape[1] == 0
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.stride(3) == k.stride(3) == v.stride(3) == 1
    )


def short(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """Causal attention of q [rows, heads, columns, width] over k and v, which may have fewer heads."""
    rows, heads, columns, width = q.shape
    out = torch.empty((rows, columns, heads, width), dtype=q.dtype, device=q.device)
    length = max(16, triton.next_power_of_2(columns))
    attend[(rows * heads,)](
        q,
        k,
        v,
        out,
        columns,
        float(width**-0.5 if scale is None else scale),
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        HEADS=heads,
        SHARED=heads // k.shape[1],
        WIDTH=width,
        LENGTH=length,
        WHOLE=max(16, triton.next_power_of_2(width)),
        num_warps=1 if length <= 32 else 4,
    )
    return out.transpose(1, 2)


@torch.library.custom_op("keyhole::attend", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """`short` as one operator, which `torch.compile` does not look into."""
    return short(q, k, v, scale)


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    rows, heads, columns, width = q.shape
    return q.new_empty((rows, columns, heads, width)).transpose(1, 2)


def try_short(query: Tensor, key: Tensor, value: Tensor, dropout: float, scale: float | None) -> Tensor | None:
    """Causal attention without a mask by `short`, if it is made for this call; else None."""
    if (
        dropout
        or not query.is_cuda
        or (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad))
        or not fits(query, key, value)
    ):
        return None
    if torch.compiler.is_compiling():
        compiled: Tensor = _attend(query, key, value, scale)
        return compiled
    return short(query, key, value, scale)


NOT_PLAIN = ("softcap", "position_bias", "cache")
"""Options of transformers' attention that `short` does not support."""


def instead_of(usual: Callable[..., Any]) -> Callable[..., Any]:
    """A function for transformers' `AttentionInterface` that does what `usual` (its function for torch's attention) does, but
    short causal windows on a GPU go to `short`."""

    def attend_or_usual(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **options: Any,
    ) -> Any:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        plain = attention_mask is None and all(options.get(name) is None for name in NOT_PLAIN)
        if query.shape[2] > 1 and causal and plain:
            found = try_short(query, key, value, dropout, scaling)
            if found is not None:
                return found.transpose(1, 2).contiguous(), None
        return usual(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            **options,
        )

    return attend_or_usual
