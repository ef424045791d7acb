"""Which cells to show first to someone who has not chosen one."""

from __future__ import annotations

import numpy as np

from ..store.run import Run


def worth_showing(run: Run, count: int = 3) -> list[str]:
    """Addresses of at most `count` cells, one per band of layers, from the lower to the upper ones.

    In each band it is the cell whose triggers show most without its value: many of them are followed by the same token although
    they end in different ones. Only cells whose coefficients are large relative to their standard deviation are considered.
    """
    chosen = []
    for band in np.array_split(np.arange(run.layers), count):
        best, address = -1.0, ""
        for layer in band:
            here = run.layer(layer)
            filled = here.units >= 0
            total = np.where(filled, here.coefficients, 0).sum(-1, dtype=np.float64)
            strength = np.nan_to_num(total / np.maximum(filled.sum(-1), 1) / np.maximum(here.stats.std, 1e-9))
            for cell in np.argsort(-strength)[:20]:
                triggers = here[cell].triggers
                if len(triggers) < 3:
                    continue
                follows = [t.next_token for t in triggers if t.next_token]
                shared = max((follows.count(token) for token in set(follows)), default=0)
                lasts = len({t.tokens[-1].strip().lower() for t in triggers})
                score = (shared + min(lasts, 5)) / len(triggers) + float(strength[cell]) / 250
                if score > best:
                    best, address = score, here[cell].address
        if address:
            chosen.append(address)
    return chosen
