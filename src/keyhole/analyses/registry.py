"""The analyses there are. A new one is its file and one line in `BUILT_IN`; from outside, `add` lists one for this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..store.run import Run
from ..store.tables import OWN, TYPES, Schemas
from ..store.values import Values
from .record import NEEDS, PARTS, Analysis, CellMeasure, Figure

BUILT_IN = (
    "triggers",
    "activity",
    "mutation",
    "agreement",
    "rank",
    "confidence",
    "confident",
    "budget",
    "composition",
    "refinement",
    "cases",
    "part",
    "veto",
    "training",
    "space",
    "ablation",
    "shading",
    "gates",
    "alignment",
    "plane",
    "softmax",
    "kinds",
    "patterns",
    "pattern_summary",
    "pruning",
    "pruned_kinds",
    "leaks",
    "leak_cells",
    "leak_repeats",
)
"""Files of this folder, each with a record ANALYSIS, in the order in which they are run."""

NAME = re.compile("[a-z][a-z0-9_]*")
"""What an analysis, and whatever its record names, may be called."""

_listed: dict[str, Analysis] = {}


def add(analysis: Analysis) -> None:
    """List an analysis: from now on tables, report, explorer, documentation and commands know it."""
    if problem := _problem(analysis):
        raise UsageError(f"The analysis '{analysis.name}' cannot be listed: {problem}.")
    _listed[analysis.name] = analysis


def remove(name: str) -> None:
    """Take an analysis off the list."""
    if name not in _listed:
        raise UsageError(f"There is no analysis '{name}'. The analyses are: {', '.join(_listed)}.")
    del _listed[name]


def _problem(analysis: Analysis) -> str | None:
    if not NAME.fullmatch(analysis.name) or analysis.name in OWN:
        return "a name is lower-case letters, digits and underscores, and not one that the database uses itself"
    if analysis.name in _listed:
        return "an analysis of this name is listed already"
    if (analysis.rows is None) != (not analysis.columns):
        return "`rows` and `columns` go together: give both or neither"
    if unknown := [need for need in analysis.needs if need not in NEEDS]:
        return f"it needs '{unknown[0]}', and an analysis can ask for: {', '.join(NEEDS)}"
    if (analysis.observe is None) != ("observed" not in analysis.needs):
        return "`observe` and the need 'observed' go together: give both or neither"
    for name, column in (*analysis.columns.items(), *analysis.facts.items()):
        if column.type not in TYPES:
            return f"'{name}' has the type {column.type}, and the types are: {', '.join(TYPES)}"
    figures = [figure.name for figure in analysis.figures]
    measures = [measure.name for measure in analysis.measures]
    for name in (*analysis.columns, *analysis.facts, *figures, *measures):  # of files, of SQL, of fields in JSON
        if not NAME.fullmatch(name):
            return f"the name {name!r:.60} is not of lower-case letters, digits and underscores"
    listed = [figure.name for _, figure in report_order()]
    if taken := _doubles([*listed, *figures]):
        return f"a figure '{taken[0]}' is listed already"
    listed = [measure.name for each in analyses() for measure in each.measures]
    if taken := _doubles([*listed, *measures]):
        return f"a measure '{taken[0]}' is listed already"
    return None


def _doubles(names: list[str]) -> list[str]:
    return [name for place, name in enumerate(names) if name in names[:place]]


# What the records say together


def analyses() -> tuple[Analysis, ...]:
    """Every analysis, in the order in which they are run."""
    return tuple(_listed.values())


def get(name: str) -> Analysis:
    return _listed[name]


def schemas() -> Schemas:
    """The tables that `analyze` can fill, by name."""
    return {each.name: each.schema for each in analyses() if each.rows}


def steps() -> list[str]:
    """What `analyze --only` takes: the tables, and what stores something else."""
    return [each.name for each in analyses() if each.rows or each.fill]


def parts() -> list[str]:
    """The parts of the report, in order."""
    return list(dict.fromkeys([*PARTS, *(each.part for each in analyses())]))


def report_order() -> list[tuple[Analysis, Figure]]:
    """Every figure and table of the report with its analysis, in the order they are shown."""
    ranked = sorted(analyses(), key=lambda each: (parts().index(each.part), each.order))
    return [(analysis, figure) for analysis in ranked for figure in analysis.figures]


def charts() -> dict[str, Figure]:
    """The figures that are drawn, by name."""
    return {figure.name: figure for _, figure in report_order() if figure.is_chart}


def cell_measures(run: Run, values: Values | None) -> Iterator[tuple[CellMeasure, npt.NDArray[np.floating[Any]]]]:
    """Every measure of a cell that this run has the numbers for. `values`: through the main lens, if they were read."""
    for measure in offered_measures(run, values):
        yield measure, numbers_of(measure, run, values)


def offered_measures(run: Run, values: Values | None) -> list[CellMeasure]:
    """The measures that this run has the numbers for; numbers that take long to make are not made for it."""
    return [
        measure
        for analysis in analyses()
        for measure in analysis.measures
        if (measure.there(run, values) if measure.there else measure.measure(run, values) is not None)
    ]


def numbers_of(measure: CellMeasure, run: Run, values: Values | None) -> npt.NDArray[np.floating[Any]]:
    """[cells] the numbers of a measure that the run has."""
    numbers = measure.measure(run, values)
    assert numbers is not None, measure.name
    if numbers.shape != (len(run.cells),):
        raise ValueError(
            f"The measure '{measure.name}' has the shape {numbers.shape}, and there are {len(run.cells)} cells."
        )
    return numbers


for _name in BUILT_IN:
    add(import_module(f".{_name}", __package__).ANALYSIS)
