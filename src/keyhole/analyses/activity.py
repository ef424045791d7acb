"""How many coefficients are above zero (Figure 7, over the whole corpus), and how many keys never fire."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from .stats import wilson


def rows(run: Run) -> list[dict[str, Any]]:
    """n distinct prefixes; the interval takes each prefix as one draw, whose share of active cells it is."""
    stats = run.stats
    n = int(stats.n[0])
    found = []
    for layer in range(run.layers):
        active = stats.active[run.cells.span(layer)]
        fraction = float(active.sum() / (n * len(active)))
        lo, hi = wilson(fraction * n, n)
        dead = int(np.count_nonzero(active == 0))
        found.append({"layer": layer, "n": n, "active_fraction": fraction, "lo": lo, "hi": hi, "dead": dead})
    return found
