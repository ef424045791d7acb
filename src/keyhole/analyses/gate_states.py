"""What `gates` and `alignment` take from a gated model: signs of gate and up at held-out prefixes, and cosines of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ..store.run import Run
from .gates import CASES

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.model import Model
    from ..models.states import States
    from .heldout import Prefixes

Floats = npt.NDArray[np.float64]


def has_gates(model: Model) -> bool:
    """Whether every layer's gate can be read."""
    return all(site.key is not None and site.up is not None for site in model.sites)


class SignCases:
    """Sums |m|·‖v‖ per sign case, over cells for each prefix and over prefixes for each cell."""

    def __init__(self, run: Run, head: Head, prefixes: Prefixes) -> None:
        self.head, self.applies = head, has_gates(head.model)
        self.wants = ("keys", "ups") if self.applies else ()
        layers, n, cells = head.model.layers, len(prefixes.ids), len(run.cells)
        self.shares = np.zeros((layers, n, len(CASES)))
        """of what a layer's cells write at a prefix"""
        self.open = np.zeros((layers, n))
        """the share of a layer's gates that are open at a prefix"""
        self.coin = np.zeros((layers, n))
        """the share that would be written with the gate open if the gates' signs were coin tosses"""
        self.written = np.zeros((cells, len(CASES)))
        """Σ|m|·‖v‖ of each cell over the prefixes"""
        self.opened = np.zeros(cells)
        """prefixes where a cell's gate is open"""
        self.count = 0
        if self.applies:
            device = head.model.device
            self._norms = [head.values(layer).norm(dim=1) for layer in range(layers)]
            self._signs = torch.from_numpy(run.orientation.astype(np.float32)).to(device)

    @torch.inference_mode()
    def take(self, rows: Sequence[int], seen: States) -> None:
        if not self.applies:
            return
        model = self.head.model
        self.count += len(rows)
        for layer, (m, gate, up) in enumerate(zip(seen.coefficients, seen.keys, seen.ups, strict=True)):
            span, norms = model.cells.span(layer), self._norms[layer]
            written = m.float().abs() * norms
            is_open, plus = gate > 0, up * self._signs[span] > 0
            cases = torch.stack([written * (is_open == a) * (plus == b) for a in (True, False) for b in (True, False)])
            total = written.sum(1).clamp_min(torch.finfo(torch.float32).tiny)
            self.shares[layer, rows] = (cases.sum(2) / total).T.double().cpu().numpy()
            self.open[layer, rows] = is_open.float().mean(1).cpu().numpy()
            self.written[span] += cases.sum(1).T.double().cpu().numpy()
            self.opened[span] += is_open.sum(0).double().cpu().numpy()
            self.coin[layer, rows] = self._coin(layer, gate, up.float().abs() * norms)

    def _coin(self, layer: int, gate: torch.Tensor, factor: torch.Tensor) -> Any:
        """The share written with the gate open if +|gate| and −|gate| were equally likely, everything else as it is."""
        function = next(site.function for site in self.head.model.sites if site.layer == layer)
        assert function is not None
        up, down = (((function(sign * gate.float().abs()).abs()) * factor).sum(1) for sign in (1, -1))
        return (up / (up + down).clamp_min(torch.finfo(torch.float32).tiny)).cpu().numpy()


class OpenGates:
    """Counts the prefixes at which each cell's gate is open."""

    def __init__(self, run: Run, head: Head) -> None:
        self.applies = has_gates(head.model)
        self.wants = ("keys",) if self.applies else ()
        self.head = head
        self._opened = np.zeros(len(run.cells))
        self._count = 0

    @torch.inference_mode()
    def take(self, rows: Sequence[int], seen: States) -> None:
        if self.applies:
            self._count += len(rows)
            self._opened += torch.cat([(gate > 0).sum(0) for gate in seen.keys]).cpu().numpy()

    @property
    def open(self) -> Floats:
        """[cells] how often its gate is open."""
        found: Floats = self._opened / max(1, self._count)
        return found


@torch.inference_mode()
def cosines(run: Run, head: Head, layer: int, dealt: npt.NDArray[Any] | None = None) -> dict[str, npt.NDArray[Any]]:
    """The three cosines of a layer's cells. `dealt` gives each cell the partners of another: a permutation, applied to the second
    of each pair."""
    signs = torch.from_numpy(run.orientation[run.cells.span(layer)].astype(np.float32))
    model = head.model

    def unit(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(x.float(), dim=1)

    gate = unit(model.keys(layer))
    up, value = (unit(x) * signs[:, None].to(x.device) for x in (model.ups(layer), model.values(layer)))
    which = slice(None) if dealt is None else torch.from_numpy(dealt).to(gate.device)
    pairs = {"gate_up": (gate, up), "gate_value": (gate, value), "up_value": (up, value)}
    return {name: (a * b[which]).sum(1).cpu().numpy() for name, (a, b) in pairs.items()}
