"""Agreement against the value's largest probability (Figure 6), in bins of equally many cells."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from ..store.values import Values
from . import targets

BINS = 20


def rows(run: Run, values: Values) -> list[dict[str, Any]]:
    wanted = targets.next_tokens(run, 1)[:, 0]
    known = wanted >= 0
    wanted = wanted[known]
    top = np.asarray(values.top_tokens[:, 0])[known]
    confidence = np.asarray(values.max_prob)[known]
    order = np.argsort(confidence, kind="stable")
    found = []
    for number, part in enumerate(np.array_split(order, min(BINS, max(1, len(order))))):
        if len(part):
            found.append(
                {
                    "bin": number,
                    "max_prob_lo": float(confidence[part].min()),
                    "max_prob_hi": float(confidence[part].max()),
                    "n": len(part),
                    "rate": float((top[part] == wanted[part]).mean()),
                }
            )
    return found
