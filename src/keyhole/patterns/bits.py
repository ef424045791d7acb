"""Description length: what it costs to say where a key fires, and what a rule costs.

With a rule, the positions it matches are described with their own share of firing positions instead of the text's. The bits
that this saves, less the bits of the rule, are what a rule is worth.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

TOKEN_SETS = 64
"""Upper bound on the tokens of a set."""
NOTHING = 1e-300
"""In place of a share of 0, whose logarithm there is not."""
Ints = npt.NDArray[np.int64]


def saved(hits: Any, matches: Any, share: float) -> Any:
    """Bits saved on `matches` positions of which `hits` fire, if they were described with `share` before. Never below 0 for a
    rule that fires more rarely than that: such a rule saves nothing."""
    hits, matches = np.asarray(hits, np.float64), np.asarray(matches, np.float64)
    misses = np.maximum(matches - hits, 0)
    own = (hits + 0.5) / (hits + misses + 1)
    found = hits * np.log2(own / share) + misses * np.log2((1 - own) / max(1 - share, NOTHING))
    return np.where(own > share, found, 0.0)


def saved_once(hits: float, matches: float, share: float) -> float:
    """The same for two numbers: arrays of one are slow, and this is asked for very often."""
    misses = max(matches - hits, 0.0)
    own = (hits + 0.5) / (hits + misses + 1)
    if own <= share:
        return 0.0
    return hits * math.log2(own / share) + misses * math.log2((1 - own) / max(1 - share, NOTHING))


def set_bits(size: Any, token_bits: float) -> Any:
    """The cost of a set of tokens: which ones, in no order, and how many."""
    size = np.asarray(size, np.float64)
    found = size * token_bits - gammaln(size + 1) / np.log(2) + 2 * np.log2(size + 1)
    return float(found) if found.ndim == 0 else found


def best_set(
    hits: npt.NDArray[Any], matches: npt.NDArray[Any], share: float, token_bits: float, most: int = TOKEN_SETS
) -> tuple[Ints, float]:
    """The tokens whose union saves most bits, as indices, and these bits with the cost of the set paid.

    `hits`, `matches`: per token. Tokens that pay for themselves are taken in the order of their share of hits.
    """
    each = saved(hits, matches, share)
    good = np.flatnonzero(each > token_bits)
    if not len(good):
        return good, 0.0
    order = good[np.argsort(-hits[good] / (matches[good] + 1.0), kind="stable")][:most]
    bits = saved(np.cumsum(hits[order]), np.cumsum(matches[order]), share)
    bits = bits - set_bits(np.arange(1, len(order) + 1), token_bits)
    best = int(np.argmax(bits))
    return order[: best + 1], float(bits[best])
