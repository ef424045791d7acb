"""k*: of how many cells the sum already has the layer's top token, and keeps it whatever is added after them.

Cells are taken in an order, and s_k is the sum of the first k of m_i·v_i; what is in the layer's output and is of no cell (a
bias) is in every s_k. k* is the smallest k from which on top(s_k) = top(y). A sum may have the token, lose it and find it
again, so no search by halves is possible, and every k costs a projection onto the vocabulary. So k is read on a grid: `GRID`, in
steps of a third to a half, and the number of cells. From the largest k downwards, a prefix is left at the first sum that has
another token: few projections are needed if k* is large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..lens.head import Head
from ..models.states import States

GRID = [1, *sorted(factor << power for power in range(30) for factor in (2, 3))]
"""1, 2, 3, 4, 6, 8, 12, 16, 24, …"""

VALUES_BYTES = 1 << 28
"""Bound on the values, in float32, that are held at once."""


def grid(cells: int) -> list[int]:
    """The numbers of cells that a layer's partial sums are read at."""
    return [k for k in GRID if k < cells] + [cells]


@torch.inference_mode()
def settled(head: Head, lens: str, seen: States, rows: Tensor, rank: list[Tensor]) -> Tensor:
    """k* [layers, rows] of some rows of a batch, the cells taken in the order of `rank` [rows, cells] per layer."""
    found: list[Tensor] = []
    for group in _groups(seen):
        found += _settled(head, lens, seen, rows, rank, group)
    return torch.stack(found)


def _groups(seen: States) -> list[list[int]]:
    """Neighbouring layers whose values fit into `VALUES_BYTES`: their sums are projected together."""
    groups: list[list[int]] = []
    room = 0
    for layer, m in enumerate(seen.coefficients):
        size = 4 * m.shape[1] * seen.y.shape[-1]
        if not groups or size > room:
            groups.append([])
            room = VALUES_BYTES
        groups[-1].append(layer)
        room -= size
    return groups


def _settled(head: Head, lens: str, seen: States, rows: Tensor, rank: list[Tensor], layers: list[int]) -> list[Tensor]:
    parts = [_Parts(head, layer, seen, rows) for layer in layers]
    targets = torch.stack([head.top(lens, seen.y[layer, rows], layer) for layer in layers])
    widths = torch.tensor([seen.coefficients[layer].shape[1] for layer in layers], device=rows.device)
    found = widths[:, None].repeat(1, len(rows))
    alive = torch.ones_like(found, dtype=torch.bool)
    for k in reversed(grid(int(widths.max()))[:-1]):
        asked = alive & (widths > k)[:, None]
        if not asked.any():
            continue
        sums = [
            part.sum(asked[at], rank[layer] < k) for at, (layer, part) in enumerate(zip(layers, parts, strict=True))
        ]
        layer_of = torch.tensor(layers).repeat_interleave(asked.sum(1).cpu())
        same = head.top(lens, torch.cat(sums), layer_of) == targets[asked]
        found[asked] = torch.where(same, k, found[asked])
        alive[asked] = same
    return list(found)


class _Parts:
    """The partial sums of a layer at some prefixes."""

    def __init__(self, head: Head, layer: int, seen: States, rows: Tensor) -> None:
        y = seen.y[layer, rows]
        self._m = seen.coefficients[layer][rows].float()
        self._values = head.values(layer)
        whole = self._m @ self._values
        scale = torch.ones(len(whole), 1, device=y.device)
        if head.post_norm(layer) is not None:  # the values have its gain; it also divides by a number
            scale = (y * whole).sum(1, keepdim=True) / whole.square().sum(1, keepdim=True).clamp_min(1e-30)
        self._m *= scale
        self._rest = y - scale * whole

    def sum(self, rows: Tensor, inside: Tensor) -> Tensor:
        """[rows, model] of these rows, the cells `inside` [n, cells] alone."""
        return self._rest[rows] + (self._m[rows] * inside[rows]) @ self._values


def places_at_random(a: Tensor, random: torch.Generator) -> Tensor:
    """[n, cells] another order of the cells that add something (a > 0): the rank of each, from 0. The others come last."""
    keys = torch.rand(a.shape, generator=random).to(a.device)
    keys = torch.where(a > 0, keys, math.inf)
    order = keys.argsort(1)
    return torch.empty_like(order).scatter_(1, order, torch.arange(a.shape[1], device=a.device).expand_as(order))
