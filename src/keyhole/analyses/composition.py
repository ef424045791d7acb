"""Does any one cell say what its layer says? (Figures 7 and 8)

Zero agreement: no active cell's top token is the layer's, ∀i top(v_i) ≠ top(y). A negative coefficient writes −v, whose top
token is the value's bottom one. Inactive cells (coefficient 0) do not count; y is the layer's output alone, not r + y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..store.run import Run
from .section5 import Section5
from .stats import rate, wilson
from .stopwords import is_stop_word

SHORT = 5
"""A prefix of fewer tokens is short."""


def rows(run: Run, found: Section5) -> list[dict[str, Any]]:
    n = len(found.lengths)
    stop = np.array([is_stop_word(run.vocabulary.piece(int(token))) for token in found.following])
    table = []
    for layer in range(run.layers):
        agrees = found.agrees[layer]
        zero = int((~agrees).sum())
        lo, hi = wilson(zero, n)
        table.append(
            {
                "layer": layer,
                "n": n,
                "active_fraction": float(found.active[layer].mean()),
                "zero_agreement": rate(zero, n),
                "lo": lo,
                "hi": hi,
                "agreeing_stopword_share": rate(float(stop[agrees].sum()), n - zero),
                "agreeing_short_share": rate(float((found.lengths[agrees] < SHORT).sum()), n - zero),
            }
        )
    return table
