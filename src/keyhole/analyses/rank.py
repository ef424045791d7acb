"""The rank of the top-1 trigger's next token among what the value promotes (Figure 5); 1 is the top."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from ..store.values import Values


def rows(run: Run, values: Values) -> list[dict[str, Any]]:
    found = []
    for layer in range(run.layers):
        ranks = np.asarray(values.ranks[run.cells.span(layer)])
        ranks = ranks[ranks > 0]
        five = np.percentile(ranks, [5, 25, 50, 75, 95]) if len(ranks) else [None] * 5
        names = ("p5", "p25", "median", "p75", "p95")
        found.append(
            {"layer": layer, "lens": values.lens, "n": len(ranks), **dict(zip(names, map(_plain, five), strict=True))}
        )
    return found


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)
