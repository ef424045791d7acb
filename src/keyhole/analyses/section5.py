"""What the paper's section 5 needs of the pass over held-out prefixes. Composition, refinement and cases are computed from it.

The top token of a value does not depend on the input, so comparing a layer with its cells needs only the stored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..lens.head import Head
from ..models.states import States
from ..store.values import Values
from .heldout import Prefixes


@dataclass
class Section5:
    """What was found, [layers, n] unless it says otherwise. Tokens of r, y and o are read through the model's own head."""

    lens: str
    top_r: npt.NDArray[np.int64]
    top_y: npt.NDArray[np.int64]
    top_o: npt.NDArray[np.int64]
    final_prob: npt.NDArray[np.float64]
    """the probability of the last layer's top(o) under r"""
    active: npt.NDArray[np.float64]
    """the share of coefficients above zero"""
    agrees: npt.NDArray[np.bool_]
    """whether some active cell's token is the layer's: top(±v) = top(y), both read through `lens`"""
    lengths: npt.NDArray[np.int64]
    """[n] tokens of each prefix"""
    following: npt.NDArray[np.int64]
    """[n] the token that follows each prefix in the text"""


class Watching:
    """Fills a `Section5` from the pass."""

    def __init__(self, head: Head, values: Values, prefixes: Prefixes) -> None:
        layers, n = head.model.layers, len(prefixes.ids)
        self._head = head
        self._promoted, self._demoted = (
            torch.from_numpy(np.array(array[..., 0], np.int64)).to(head.model.device)
            for array in (values.top_tokens, values.bottom_tokens)
        )
        self._waiting: list[tuple[list[int], dict[str, torch.Tensor]]] = []
        self._found = Section5(
            lens=values.lens,
            top_r=np.zeros((layers, n), np.int64),
            top_y=np.zeros((layers, n), np.int64),
            top_o=np.zeros((layers, n), np.int64),
            final_prob=np.zeros((layers, n)),
            active=np.zeros((layers, n)),
            agrees=np.zeros((layers, n), bool),
            lengths=np.array([len(ids) for ids in prefixes.ids]),
            following=np.array(prefixes.following),
        )

    def take(self, rows: Sequence[int], seen: States) -> None:
        read = _read(self._head, self._found.lens, seen, self._promoted, self._demoted)
        self._waiting.append((list(rows), read))
        if len(self._waiting) > 1:  # results are fetched one batch late, so that a GPU is not idle meanwhile
            self._put(*self._waiting.pop(0))

    @property
    def found(self) -> Section5:
        while self._waiting:
            self._put(*self._waiting.pop(0))
        return self._found

    def _put(self, rows: list[int], read: dict[str, torch.Tensor]) -> None:
        for name, array in read.items():
            getattr(self._found, name)[:, rows] = array.cpu().numpy()


@torch.inference_mode()
def _read(head: Head, lens: str, seen: States, promoted: Any, demoted: Any) -> dict[str, torch.Tensor]:
    layers, n, width = seen.r.shape

    def own(x: torch.Tensor, tokens: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        top, probability = head.read_residuals(x.reshape(-1, width), tokens)
        return top.view(layers, n), None if probability is None else probability.view(layers, n)

    top_o, _ = own(seen.o)
    top_y, _ = own(seen.y)
    top_r, final_prob = own(seen.r, top_o[-1].repeat(layers))
    assert final_prob is not None
    said = torch.stack([head.top(lens, y, layer) for layer, y in enumerate(seen.y)])
    active, agrees = [], []
    for layer, m in enumerate(seen.coefficients):
        fires = m > 0
        active.append(fires.float().mean(1))
        span = head.model.cells.span(layer)
        match = fires & (promoted[span] == said[layer, :, None])
        match |= (m < 0) & (demoted[span] == said[layer, :, None])
        agrees.append(match.any(1))
    return {
        "top_r": top_r,
        "top_y": top_y,
        "top_o": top_o,
        "final_prob": final_prob,
        "active": torch.stack(active),
        "agrees": torch.stack(agrees),
    }
