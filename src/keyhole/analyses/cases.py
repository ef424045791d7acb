"""Compositions in the last layer: the prediction is neither the residual's nor the layer's own.

The paper read a hundred of these by hand: 66 change to a distant token, 34 to a related one. Here the reading is a number,
the cosine of top(r) and top(o) in the unembedding, to be held against that of random pairs of tokens (in the note).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..lens.head import Head
from ..store.run import Run
from .heldout import Prefixes
from .section5 import Section5

MOST = 100
PAIRS = 10_000


def rows(
    run: Run, head: Head, prefixes: Prefixes, found: Section5, *, seed: int = 0
) -> tuple[list[dict[str, Any]], str]:
    """The table, and what similarity to expect by chance."""
    r, y, o = found.top_r[-1], found.top_y[-1], found.top_o[-1]
    composed = np.flatnonzero((o != r) & (o != y))
    random = np.random.default_rng(seed)
    chosen = np.sort(random.permutation(composed)[:MOST])
    likeness = similarity(head, r[chosen], o[chosen])
    piece = run.vocabulary.piece
    table = [
        {
            "prefix": run.vocabulary.text(prefixes.ids[i]),
            "top_r": piece(r[i]),
            "top_y": piece(y[i]),
            "top_o": piece(o[i]),
            "similarity": float(alike),
        }
        for i, alike in zip(chosen, likeness, strict=True)
    ]
    # by chance: predictions of different prefixes, so that frequent tokens are as frequent
    one, other = (random.integers(0, len(o), PAIRS) for _ in range(2))
    apart = r[one] != o[other]
    chance = similarity(head, r[one][apart], o[other][apart])
    note = f"{len(composed):,} of {len(o):,} prefixes are composed in the last layer"
    if len(chance):
        far = float(np.quantile(chance, 0.95))
        related = int((likeness > far).sum())
        note += (
            f"; top(r) and top(o) of different prefixes have a cosine of {chance.mean():.3f} on average and {far:.3f} at the 95th "
            f"percentile, which {related} of these {len(table)} cases exceed"
        )
    return table, note


@torch.inference_mode()
def similarity(head: Head, some: Any, others: Any) -> Any:
    """The cosine of tokens in the unembedding, pair by pair."""
    one, other = (
        head.weight[torch.from_numpy(np.asarray(tokens)).to(head.weight.device)].float() for tokens in (some, others)
    )
    return torch.cosine_similarity(one, other, dim=1).cpu().numpy()
