"""The orientation of the cells of a gated layer: the sign that each is read with.

With a gate, a coefficient is act(gate)·up, and (up, v) → (−up, −v) is the same model: whether a cell's coefficients are positive
is a convention. So such a cell is read with the sign of its strongest coefficient: these are "its triggers", and its value is
read as sign·v. The whole corpus decides this, so a shard of a scan keeps the model's own signs, and the merged run has the
orientation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels.sums import FRACTION_BITS
from ..store.layout import ORIENTATION

Signs = npt.NDArray[np.int8]
State = dict[str, npt.NDArray[Any]]
"""What an index found, as arrays (`Index.state`)."""

CELLS_AT_ONCE = 4096
"""Cells whose lists of triggers are exchanged together."""


def orientation_of(keys: npt.NDArray[np.int64]) -> Signs:
    """[cells] the orientation, from the lists of both sides [2, cells, top].

    A smaller key is a larger magnitude or, if these are equal, a prefix that comes first (`kernels/order.py`). So the side
    whose first key is smaller has the strongest coefficient. Exchanging the sides negates the result, except for a cell that
    has no coefficient other than 0: its orientation is 1.
    """
    return np.where(keys[1, :, 0] < keys[0, :, 0], -1, 1).astype(np.int8)


def orient(state: State, *, whole: bool) -> None:
    """Turn what an index found into the orientation of its cells, in place, and add the orientation to it. If this is not
    the whole corpus, every sign stays as it is."""
    keys = state["keys"]
    signs = orientation_of(keys) if whole else np.ones(keys.shape[1], np.int8)
    if whole:
        turn(state, signs)
    state[ORIENTATION] = signs


def turn(state: State, signs: Signs) -> None:
    """Negate the coefficients of the cells whose sign is −1, in place. Doing it twice changes nothing.

    Zeros in the extremes lose their sign: −0 and 0 are equal, and which of them is the smaller is not defined. `active` is
    left as it is: how many coefficients are below zero is not known, and of a gated layer neither number is used.
    """
    turned = np.flatnonzero(signs < 0)
    keys, sums, extremes = state["keys"], state["sums"], state["extremes"]
    for begin in range(0, len(turned), CELLS_AT_ONCE):
        some = turned[begin : begin + CELLS_AT_ONCE]
        keys[:, some] = keys[::-1, some]
    whole, fraction = -sums[turned, 0, 0], -sums[turned, 0, 1]
    sums[turned, 0, 0] = whole + (fraction >> FRACTION_BITS)
    sums[turned, 0, 1] = fraction & ((1 << FRACTION_BITS) - 1)
    extremes[turned] = -extremes[turned, ::-1]
    extremes += np.float32(0)
