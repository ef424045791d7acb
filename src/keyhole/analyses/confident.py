"""The values with the largest max(p), and the share of their triggers that their token follows (Table 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from ..store.values import Values
from . import targets

COUNT = 100


def rows(run: Run, values: Values) -> list[dict[str, Any]]:
    confidence = np.asarray(values.max_prob).ravel()
    follows = targets.next_tokens(run)
    found = []
    for place in np.argsort(-confidence, kind="stable")[:COUNT]:
        layer, cell = divmod(int(place), run.cells)
        token = int(values.top_tokens[layer, cell, 0])
        known = follows[layer, cell][follows[layer, cell] >= 0]
        found.append(
            {
                "layer": layer,
                "cell": cell,
                "token": run.vocabulary.piece(token),
                "max_prob": float(confidence[place]),
                "share": float((known == token).mean()) if len(known) else None,
            }
        )
    return found
