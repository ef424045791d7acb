"""Which of its last tokens a key needs: how much of its coefficient is lost if one of them is dropped from its triggers.

A rule can name a token that only accompanies the one the key reacts to. Dropping tokens tells the two apart, because it changes
the input and nothing else. The passes are those of the analysis `mutation`: a window without one token answers for the triggers
of all cells that end in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..analyses.mutation import Picked, changes
from ..analyses.record import Begin
from ..store.patterns import Key
from ..store.run import Run

if TYPE_CHECKING:
    from ..models.model import Model

Ints = npt.NDArray[np.int64]

TRIGGERS = 5
"""Triggers per key, at most, the strongest."""
BACK = 6
"""Tokens that are dropped of each, one at a time: the last, the one before it, …"""


def needs(
    run: Run,
    model: Model,
    keys: Mapping[int, Sequence[Key]],
    *,
    triggers: int = TRIGGERS,
    begin: Begin = lambda total: lambda done: None,
) -> dict[int, list[tuple[float, ...]]]:
    """Per layer and key, the mean over its triggers of (m − m′)/m if the last token is dropped, the one before it, …: at most
    `BACK` numbers, and only those that some trigger is long enough for. m′ is read at the last token that is left. A trigger of
    one token has nothing to drop from."""
    picked, owner = _pick(run, keys, triggers)
    at: dict[str | int, Ints] = {
        back: np.where(picked.length > back, picked.length - 1 - back, -1) for back in range(BACK)
    }
    found = changes(run, model, picked, at, begin) if len(owner) else {}
    total = sum(map(len, keys.values()))
    sums, counts = np.zeros((total, BACK)), np.zeros((total, BACK), np.int64)
    for back in range(BACK) if found else ():
        known = ~np.isnan(found[back])
        sums[:, back] = np.bincount(owner[known], weights=-found[back][known], minlength=total)
        counts[:, back] = np.bincount(owner[known], minlength=total)
    means = [tuple((each[n > 0] / n[n > 0]).tolist()) for each, n in zip(sums, counts, strict=True)]
    ends = np.cumsum([len(each) for each in keys.values()])
    return {layer: means[end - len(each) : end] for (layer, each), end in zip(keys.items(), ends.tolist(), strict=True)}


def _pick(run: Run, keys: Mapping[int, Sequence[Key]], triggers: int) -> tuple[Picked, Ints]:
    """The strongest triggers of the keys that have something to drop, and the number of each one's key."""
    flat = [(layer, key) for layer, each in keys.items() for key in each]
    places = np.array([run.cells.place(layer, key.cell) for layer, key in flat], np.int64)
    layers = np.array([layer for layer, _ in flat], np.int64)
    inside = np.array([key.cell for _, key in flat], np.int64)
    other = np.array([key.side < 0 for _, key in flat], bool)
    parts: list[tuple[npt.NDArray[np.float64], ...]] = []
    for negative in (False, True):
        owners = np.flatnonzero(other == negative)
        coefficients, units, positions = (
            np.asarray(array[places[owners], :triggers], np.float64) for array in run.side(negative)
        )
        which, slot = np.nonzero((units >= 0) & (np.nan_to_num(coefficients) != 0))
        columns = (owners[which], slot, *(array[which, slot] for array in (units, positions, coefficients)))
        parts.append(tuple(np.asarray(column, np.float64) for column in columns))
    owner, slots, units, positions, coefficients = (np.concatenate(column) for column in zip(*parts, strict=True))
    ends = positions.astype(np.int64)
    starts = run.window_start(ends)
    kept = ends > starts
    owner, slots = owner.astype(np.int64)[kept], slots.astype(np.int64)[kept]
    picked = Picked(
        layer=layers[owner],
        cell=inside[owner],
        place=places[owner],
        slot=slots,
        unit=units.astype(np.int64)[kept],
        start=starts[kept],
        length=(ends - starts + 1)[kept],
        coefficient=coefficients[kept],
        skipped=int((~kept).sum()),
    )
    return picked, owner
