"""One pass over held-out prefixes for all of the paper's section 5. Composition, refinement and cases are computed from it.

The top token of a value does not depend on the input, so comparing a layer with its cells needs only the stored tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..common.batching import batch_by_length
from ..lens.head import Head
from ..models.states import States, states
from ..store.values import Values
from .heldout import Prefixes
from .record import Begin


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


def measure(
    head: Head,
    values: Values,
    prefixes: Prefixes,
    *,
    bos: bool,
    batch_tokens: int,
    begin: Begin = lambda total: lambda done: None,
) -> Section5:
    model, n = head.model, len(prefixes.ids)
    layers = model.layers
    promoted, demoted = (
        torch.from_numpy(np.array(array[..., 0], np.int64)).to(model.device)
        for array in (values.top_tokens, values.bottom_tokens)
    )
    found = Section5(
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
    advance = begin(n)

    def put(rows: list[int], read: dict[str, torch.Tensor]) -> None:
        for name, array in read.items():
            getattr(found, name)[:, rows] = array.cpu().numpy()
        advance(len(rows))

    waiting: list[tuple[list[int], dict[str, torch.Tensor]]] = []
    for numbers in batch_by_length([len(ids) for ids in prefixes.ids], batch_tokens):
        rows = numbers.tolist()
        batch = model.batch([prefixes.ids[row] for row in rows], bos=bos)
        ends = torch.tensor([batch.n_special + len(prefixes.ids[row]) - 1 for row in rows])
        seen = states(model, batch.ids, ends)
        waiting.append((rows, _read(head, values.lens, seen, promoted, demoted)))
        if len(waiting) > 1:  # results are fetched one batch late, so that a GPU is not idle meanwhile
            put(*waiting.pop(0))
    for rows, read in waiting:
        put(rows, read)
    return found


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
    said = head.top(lens, seen.y.reshape(-1, width)).view(layers, n)
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
