"""Does a value say what its key saw? argmax(softmax(v·E)) against a token of the key's top-1 trigger (Figure 4).

The top-1 trigger is the prefix with the largest coefficient, which is above zero: the value is read with a plus. The paper
compares with the *next* token; its public code with the prefix's *last* one. Both are here, by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values
from . import targets
from .stats import rate, wilson


def rows(run: Run, values: Values) -> list[dict[str, Any]]:
    top = np.asarray(values.top_tokens[..., 0])
    vocabulary = int(values.settings["vocabulary"])
    frequency = targets.unigram(run, vocabulary)
    found = []
    for name, wanted in (("next", targets.next_tokens(run, 1)), ("last", targets.last_tokens(run, 1))):
        for layer in range(run.layers):
            span = run.cells.span(layer)
            found.append(_row(layer, name, values.lens, top[span], wanted[span, 0], frequency))
    return found


def _row(
    layer: int,
    target: str,
    lens: str,
    top: npt.NDArray[Any],
    wanted: npt.NDArray[np.int64],
    frequency: npt.NDArray[np.float64],
) -> dict[str, Any]:
    counted = wanted >= 0
    top, wanted, n = top[counted], wanted[counted], int(counted.sum())
    hits = int((top == wanted).sum())
    lo, hi = wilson(hits, n)
    return {
        "layer": layer,
        "target": target,
        "lens": lens,
        "n": n,
        "rate": rate(hits, n),
        "lo": lo,
        "hi": hi,
        "permuted": permuted(top, wanted, len(frequency)),
        "unigram": float(frequency[wanted].mean()) if n else None,
    }


def permuted(top: npt.NDArray[Any], wanted: npt.NDArray[Any], vocabulary: int) -> float | None:
    """The agreement to expect of values dealt out anew within the layer: the mean over all permutations, exactly."""
    if not len(top):
        return None
    says, wants = (np.bincount(tokens, minlength=vocabulary).astype(np.float64) for tokens in (top, wanted))
    return float(says @ wants / len(top) ** 2)
