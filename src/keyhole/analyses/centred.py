"""Rows of the unembedding, minus their mean: what tells a token from the others. Adding a vector to every row changes no softmax."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..lens.head import Head

ROWS = 1 << 15
"""Rows that are summed at once."""


class CentredRows:
    """Called with tokens [n], gives their rows [n, width]."""

    @torch.inference_mode()
    def __init__(self, head: Head) -> None:
        self._weight = head.weight
        total = torch.zeros(head.weight.shape[1], dtype=torch.float64, device=head.weight.device)
        for at in range(0, head.vocabulary, ROWS):
            total += head.weight[at : at + ROWS].double().sum(0)
        self._mean = total / head.vocabulary

    @torch.inference_mode()
    def __call__(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        rows = self._weight[torch.from_numpy(tokens).to(self._weight.device)].double() - self._mean
        found: npt.NDArray[np.float64] = rows.cpu().numpy()
        return found
