"""False discoveries: how many patterns would be found if there were none.

Triggers dealt out over the keys of a layer have no pattern of their own, so what is found in them is false. The q-value of a
pattern is the number of false patterns per key that save at least as many bits, over the number that is found in real triggers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LARGEST_Q = 0.05
"""Patterns with a larger q-value are left out."""


def q_values(bits: Sequence[float], null: Sequence[float], keys: int, null_keys: int) -> list[float]:
    """Per pattern its q-value. `bits`, `null`: what each pattern of the real and of the dealt-out triggers saves; `keys`: how many
    keys were searched for each. One false pattern more than was found is counted, so that few nulls cannot promise too much."""
    real, false = np.asarray(bits, np.float64), np.sort(np.asarray(null, np.float64))
    if not len(real):
        return []
    order = np.argsort(-real, kind="stable")
    ranked = real[order]
    found = np.searchsorted(-ranked, -ranked, "right") / max(1, keys)
    expected = (len(false) - np.searchsorted(false, ranked, "left") + 1) / max(1, null_keys)
    rate = np.minimum(1.0, expected / found)
    q = np.empty(len(real))
    q[order] = np.minimum.accumulate(rate[::-1])[::-1]
    return [float(each) for each in q]
