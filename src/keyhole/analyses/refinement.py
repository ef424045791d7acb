"""How layers refine the prediction (Figures 9 to 11): r, y and o read through the model's own final norm and head.

residual_match  top(r) is already the model's prediction, top(o) of the last layer
final_prob_*    the probability r gives that token: quartiles
residual        top(o) = top(r) ≠ top(y)        ffn             top(o) = top(y) ≠ top(r)
agreement       all three alike                 composition     top(o) is neither's
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from .section5 import Section5


def rows(run: Run, found: Section5) -> list[dict[str, Any]]:
    table = []
    for layer in range(run.layers):
        r, y, o = found.top_r[layer], found.top_y[layer], found.top_o[layer]
        low, middle, high = np.percentile(found.final_prob[layer], [25, 50, 75])
        table.append(
            {
                "layer": layer,
                "n": len(found.lengths),
                "residual_match": float((r == found.top_o[-1]).mean()),
                "final_prob_p25": float(low),
                "final_prob_median": float(middle),
                "final_prob_p75": float(high),
                "residual": float(((o == r) & (o != y)).mean()),
                "ffn": float(((o == y) & (o != r)).mean()),
                "agreement": float(((o == r) & (o == y)).mean()),
                "composition": float(((o != r) & (o != y)).mean()),
            }
        )
    return table
