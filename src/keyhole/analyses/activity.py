"""How many coefficients are above zero (Figure 7, over the whole corpus), and how many keys never fire."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from .stats import wilson


def rows(run: Run) -> list[dict[str, Any]]:
    """n distinct prefixes; the interval takes each prefix as one draw, whose share of active cells it is."""
    stats = run.stats
    n = int(stats.n[0, 0])
    found = []
    for layer in range(run.layers):
        fraction = float(stats.active[layer].sum() / (n * run.cells))
        lo, hi = wilson(fraction * n, n)
        dead = int(np.count_nonzero(stats.active[layer] == 0))
        found.append({"layer": layer, "n": n, "active_fraction": fraction, "lo": lo, "hi": hi, "dead": dead})
    return found
