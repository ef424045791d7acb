"""How much each cell adds to its layer's output at a prefix: a_i = |m_i|·‖v_i‖, with the value as it reaches the residual.

It means the same for every activation, and does not change if the signs of a gated cell's (up, v) do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CARRIED = 0.9
"""The share of Σa that the cells of the N90 set carry."""


class Strengths(NamedTuple):
    """Of one layer at n prefixes."""

    a: Tensor
    """[n, cells]"""
    rank: Tensor
    """[n, cells] the place of each cell by a, from 0; equal ones by their number"""
    carriers: Tensor
    """[n] N90: the fewest cells that carry `CARRIED` of Σa; 0 if every coefficient is 0"""

    @property
    def carry(self) -> Tensor:
        """[n, cells] which cells are in the N90 set"""
        return self.rank < self.carriers[:, None]

    @property
    def effective(self) -> Tensor:
        """[n] the effective number of memories, (Σa)²/Σa²; 0 if every coefficient is 0"""
        a = self.a.double()
        return a.sum(1).square() / a.square().sum(1).clamp_min(1e-300)

    @property
    def dominance(self) -> Tensor:
        """[n] max a/Σa; 0 if every coefficient is 0"""
        a = self.a.double()
        return a.amax(1) / a.sum(1).clamp_min(1e-300)


def strengths(coefficients: Tensor, norms: Tensor) -> Strengths:
    """From coefficients [n, cells] and the norms [cells] of the values."""
    a = coefficients.float().abs() * norms
    largest, order = a.sort(dim=1, descending=True, stable=True)
    sums = largest.double().cumsum(1)
    total = sums[:, -1:]
    carriers = ((sums < CARRIED * total).sum(1) + 1) * (total[:, 0] > 0)
    places = torch.arange(a.shape[1], device=a.device).expand_as(order)
    return Strengths(a, torch.empty_like(order).scatter_(1, order, places), carriers)
