"""Where the values and the keys of all cells lie on a plane, as `analyze` stored it. Read without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import layout, percell
from .run import Run
from .values import unfit

GROUP = "plane"
SIDES = ("values", "keys")


class Side(NamedTuple):
    """The plane of all values, or of all keys."""

    at: npt.NDArray[np.float32]
    """[cells, 2]"""
    explained: tuple[float, float]
    """share of the variance that each axis of the principal components holds"""
    shuffled: tuple[float, float]
    """the same, if every coordinate is dealt out over the cells"""
    sample: int
    """cells that the axes were computed from"""


class Planes(NamedTuple):
    method: str
    """`pca` or `umap`"""
    seed: int
    sides: dict[str, Side]


def save(run: Run, method: str, seed: int, sides: Mapping[str, Side]) -> None:
    settings = {
        "method": method,
        "seed": seed,
        "shares": {name: [*side.explained, *side.shuffled, side.sample] for name, side in sides.items()},
    }
    percell.save(run, GROUP, settings, {name: side.at for name, side in sides.items()})


def of(run: Run) -> Planes | None:
    """None if they were not computed."""
    found = percell.read(run, GROUP)
    if found is None:
        return None
    sides = {}
    for name in SIDES:
        if name not in found.arrays:
            continue
        at, shares = found.arrays[name], found.settings["shares"][name]
        if at.shape != (len(run.cells), 2) or at.dtype != np.float32:
            raise unfit(run, layout.cells_array(GROUP, name), f"it holds {at.dtype} of shape {at.shape}")
        sides[name] = Side(at, (shares[0], shares[1]), (shares[2], shares[3]), int(shares[4]))
    return Planes(str(found.settings["method"]), int(found.settings["seed"]), sides)
