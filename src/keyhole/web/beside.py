"""A second run beside the one that is explored: the same cell in both. It needs the same axis of cells, as another corpus, a
control or another training step of one model has."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import numpy as np

from ..analyses import compare
from ..analyses.beside import check, labels
from ..errors import UsageError
from ..store import layout
from ..store.run import Run
from . import schema
from .pack import short

if TYPE_CHECKING:
    from .contract import Explorer


def check_axis(run: Run, other: Run) -> None:
    """Refuse a run whose cells are not those of this one."""
    check(run, [other])
    if run.cells != other.cells:
        raise UsageError(
            f"{other.path} has {other.cells.summary} and {run.path} {run.cells.summary}, so no cell of one is a cell of the other. "
            f"Runs side by side need one model, or its control. To compare their reports: keyhole report {run.path} --beside "
            f"{other.path}"
        )


def about(run: Run, other: Run) -> schema.AboutBeside:
    model = [each.manifest["model"]["fingerprint"] for each in (run, other)]
    return schema.AboutBeside(
        name=labels([run, other])[1],
        model=other.model_name,
        sources=[os.path.basename(os.path.normpath(str(name))) for name in other.manifest["corpus"]["sources"]],
        same_model=model[0] == model[1],
    )


def cell(here: Explorer, there: Explorer, layer: int, index: int) -> schema.BesideCell:
    """The cell in the other run, and how far its triggers agree with those of this run."""
    place = here.axis.place(layer, index)
    return schema.BesideCell(
        cell=there.cell(layer, index),
        overlap=_overlap(here.run, there.run, place),
        turned=bool(here.run.orientation[place] != there.run.orientation[place]),
    )


def _overlap(here: Run, there: Run, place: int) -> schema.Overlap:
    """As `keyhole compare` defines it, of one cell."""
    top = min(here.top, there.top)
    if _tokenizer(here) != _tokenizer(there):
        return schema.Overlap(top, None, None, None)
    found = {
        name: _finite(each[0]) for name, each in compare.measure_cells([here, there], np.array([place]), top).items()
    }
    return schema.Overlap(top, **found)


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else short(value)


def _tokenizer(run: Run) -> object:
    """What tells tokenizers apart: the checksum of the file. Tokens of two tokenizers have other numbers."""
    return run.manifest["files"][layout.tokenizer_file(run.path).name]
