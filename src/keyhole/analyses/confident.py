"""The values with the largest max(p), and the share of their triggers that their token follows (Table 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from ..store.values import Values

COUNT = 100


def rows(run: Run, values: Values) -> list[dict[str, Any]]:
    confidence = np.asarray(values.max_prob)
    found = []
    for place in np.argsort(-confidence, kind="stable")[:COUNT]:
        layer, cell = run.cells.split(int(place))
        token = int(values.top_tokens[place, 0])
        hits, known = values.hits(int(place))
        found.append(
            {
                "layer": layer,
                "cell": cell,
                "token": run.vocabulary.piece(token),
                "max_prob": float(confidence[place]),
                "share": float(hits / known) if known else None,
            }
        )
    return found
