"""Maps from a layer's residual to the last one: an affine map per layer, by ridge regression in closed form.

A layer may write in another basis than the one the unembedding reads. The map o_L ≈ o_ℓ·M + b says how much of the last
residual o_L a linear change of basis can recover from o_ℓ. M is shrunk towards the identity, which is what the residual stream
itself does with o_ℓ, so the map of the last layer is exactly the identity:

    M = I + B,    B = argmin ‖(Y − X) − X·B‖² + α·‖B‖²

X and Y are the centred residuals of the layer and of the last layer. α minimises the generalised cross-validation error.
Residuals pass through the whole map; a summand of a residual, such as a value, passes through its linear part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import UsageError
from ..store import layout
from ..store.run import Run
from ..store.values import unfit

STRENGTHS = 10.0 ** np.arange(-8, 2.25, 0.25)
"""The strengths α that are tried, as multiples of the largest eigenvalue of XᵀX."""


@dataclass(frozen=True)
class Map:
    """An affine map of row vectors: x·linear + offset."""

    linear: Tensor
    """[model, model]"""
    offset: Tensor
    """[model]"""

    def residuals(self, x: Tensor) -> Tensor:
        return x @ self.linear + self.offset

    def summands(self, x: Tensor) -> Tensor:
        """Parts of a residual: the offset belongs to the residual as a whole."""
        return x @ self.linear


# Fitting


class Pairs:
    """Sums over residuals x of a layer and what they are paired with, from which maps are fitted. The pairs are not kept. Several
    targets can be given for the same x: the work on x is then done once. The maps of each target are shrunk towards
    `towards`·I: 1, or 0 if nothing is to be known of the target beforehand (a null)."""

    def __init__(self, width: int, device: torch.device, towards: Sequence[float] = (1.0,)) -> None:
        self.n = 0
        self._x = torch.zeros(width, dtype=torch.float64, device=device)
        self._xx = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._targets = [_Target(prior, torch.zeros_like(self._x), torch.zeros_like(self._xx)) for prior in towards]

    def add(self, x: Tensor, *ys: Tensor) -> None:
        """Residuals [n, model], and for each target as many."""
        x = x.double()
        self.n += len(x)
        self._x += x.sum(0)
        self._xx += x.T @ x
        for target, y in zip(self._targets, ys, strict=True):
            step = y.double() - target.prior * x  # what the ridge shrinks
            target.sum += step.sum(0)
            target.cross += x.T @ step
            target.square += float(step.square().sum())

    def fit(self) -> list[tuple[Map, float]]:
        """Per target the map, and the strength α of its ridge."""
        mean = self._x / self.n
        eigenvalues, basis = torch.linalg.eigh(self._xx - self.n * torch.outer(mean, mean))
        eigenvalues = eigenvalues.clamp_min(0)  # rounding can make the smallest negative
        found = []
        for target in self._targets:
            step = target.sum / self.n
            seen = basis.T @ (target.cross - self.n * torch.outer(mean, step))
            total = max(0.0, target.square - self.n * float(step.square().sum()))
            alpha = self._strength(eigenvalues.cpu().numpy(), seen.square().sum(1).cpu().numpy(), total)
            linear = basis @ (seen / (eigenvalues + alpha)[:, None])
            linear.diagonal().add_(target.prior)
            found.append((Map(linear.float(), (target.prior * mean + step - mean @ linear).float()), alpha))
        return found

    def _strength(self, eigenvalues: npt.NDArray[np.float64], seen: npt.NDArray[np.float64], total: float) -> float:
        """The α of least generalised cross-validation error, n·RSS/(n − tr H)², from the eigenvalues of XᵀX."""
        alphas = STRENGTHS * max(float(eigenvalues.max()), np.finfo(np.float64).tiny)
        shrunk = eigenvalues + alphas[:, None]
        left = total - (seen * (2 / shrunk - eigenvalues / shrunk**2)).sum(1)
        freedom = self.n - 1 - (eigenvalues / shrunk).sum(1)  # the mean takes one
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(freedom > 0, np.maximum(left, 0) * self.n / freedom**2, np.inf)
        return float(alphas[int(np.argmin(error))])


@dataclass
class _Target:
    prior: float
    sum: Tensor
    """of the steps y − prior·x"""
    cross: Tensor
    """Σ x·stepᵀ"""
    square: float = 0.0
    """Σ‖step‖²"""


# The maps of a model


@dataclass(frozen=True)
class Maps:
    """A map per layer."""

    linear: npt.NDArray[np.float32]
    """[layers, model, model]"""
    offset: npt.NDArray[np.float32]
    """[layers, model]"""
    settings: Mapping[str, Any]
    """what they were fitted on: the same settings give the same maps"""

    @classmethod
    def identity(cls, layers: int, width: int) -> Maps:
        linear = np.broadcast_to(np.eye(width, dtype=np.float32), (layers, width, width)).copy()
        return cls(linear, np.zeros((layers, width), np.float32), {})

    def at(self, layer: int, device: torch.device) -> Map:
        """A layer's map. It is copied whenever it is asked for: those of all layers may be large."""
        return Map(*(torch.from_numpy(np.array(each[layer])).to(device) for each in (self.linear, self.offset)))

    def save(self, run: Run) -> None:
        layout.drop_maps(run.path)
        for name, array in zip(layout.MAPS, (self.linear, self.offset), strict=True):
            layout.save_array(run.path, name, array)
        layout.save_maps(run.path, dict(self.settings))

    @classmethod
    def read(cls, run: Run, settings: Mapping[str, Any]) -> Maps | None:
        """The maps of a run, if they were fitted with these settings."""
        if layout.read_maps(run.path) != settings:
            return None
        linear, offset = (layout.load_array(run.path, name) for name in layout.MAPS)
        shapes = (run.layers, *offset.shape[1:] * 2), (run.layers, *offset.shape[1:])
        for name, array, shape in zip(layout.MAPS, (linear, offset), shapes, strict=True):
            if array.dtype != np.float32 or array.shape != shape or offset.ndim != 2:
                raise unfit(run, name, f"it holds {array.dtype} of shape {array.shape}")
        return cls(linear, offset, settings)


def missing() -> UsageError:
    return UsageError(
        "The lens 'mapped' needs a map per layer, and none was fitted. `keyhole analyze RUN --lens mapped` fits them."
    )
