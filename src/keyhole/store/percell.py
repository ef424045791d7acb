"""Numbers that an analysis stores for every cell, as arrays of the run. They are read without a model.

A group belongs to one analysis. Its arrays are [cells, …] (or [layers, …]) in files `cells_GROUP_NAME.npy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import layout
from .run import Cell, Run
from .values import unfit


class PerCell(NamedTuple):
    """A group, read back."""

    settings: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]


def save(run: Run, group: str, settings: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Store a group in place of what there was. It counts after all its files are written."""
    layout.drop_group(run.path, layout.cells_group(group))
    for name, array in arrays.items():
        layout.save_array(run.path, layout.cells_array(group, name), array)
    layout.save_cells(run.path, group, {**settings, "arrays": list(arrays)})
    vars(run).pop(_key(group), None)


def read(run: Run, group: str) -> PerCell | None:
    """A group; None if its analysis has not been run."""
    kept = vars(run)  # as cached_property does
    if _key(group) in kept:
        known: PerCell = kept[_key(group)]
        return known
    settings = layout.read_cells(run.path, group)
    names = None if settings is None else settings.get("arrays")
    if settings is None or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    arrays = {name: layout.load_array(run.path, layout.cells_array(group, name)) for name in names}
    found: PerCell = kept.setdefault(_key(group), PerCell(settings, arrays))
    return found


def numbers(run: Run, group: str, name: str) -> npt.NDArray[np.float32] | None:
    """One number per cell; None if its analysis has not been run."""
    found = read(run, group)
    if found is None or name not in found.arrays:
        return None
    array = found.arrays[name]
    if array.shape != (len(run.cells),) or array.dtype.kind != "f":
        raise unfit(run, layout.cells_array(group, name), f"it holds {array.dtype} of shape {array.shape}")
    return array


GATE = {
    "gates": ("open", "open_plus", "open_minus", "closed_plus", "closed_minus"),
    "alignment": ("gate_up", "gate_value", "up_value"),
}
"""What is known of a cell's gate, by group."""


def gate(cell: Cell) -> dict[str, float] | None:
    """The numbers of a cell's gate; None if its layer has none, or if they were not computed."""
    found = {name: numbers(cell.run, group, name) for group, names in GATE.items() for name in names}
    known = {name: float(array[cell.place]) for name, array in found.items() if array is not None}
    return known if len(known) == len(found) else None


def _key(group: str) -> str:
    return f"_cells_{group}"
