"""Examples below the top, for `keyhole show`."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..errors import RunError
from ..store import below, shading
from ..store.run import Cell, Trigger
from . import data as plain
from . import terminal
from .text import number


def examples(cell: Cell) -> RenderableType:
    """A few prefixes of each band of the cell's coefficient, and a few random ones."""
    found = _found(cell)
    here = found.of(cell.place)
    parts: list[RenderableType] = []
    for (low, high), edge, group in zip(below.BANDS, [*here.edges, math.nan], here.bands, strict=True):
        title = f"{low * 100:g} to {high * 100:g} %" + ("" if math.isnan(edge) else f", m from {number(edge, '.3g')}")
        listed = (
            terminal.triggers(title, _triggers(cell, found, group)) if group else Text(f"{title}: too few prefixes")
        )
        parts += [listed, Text()]
    return Group(
        Text(),
        Text(
            f"below the top: bands of the coefficient, of {len(found.places):,} distinct random prefixes", style="bold"
        ),
        *parts,
        terminal.triggers("random", _triggers(cell, found, here.random)),
    )


def data(cell: Cell) -> dict[str, Any]:
    """The same for `--json`."""
    found = _found(cell)
    here = found.of(cell.place)
    groups = [*zip(below.BANDS, here.bands, strict=True), (None, here.random)]
    return {
        "below": [
            {"band": band, "triggers": [plain.trigger(cell, each) for each in _triggers(cell, found, group)]}
            for band, group in groups
        ]
    }


def _found(cell: Cell) -> below.Below:
    found = shading.of(cell.run)
    if found is None:
        path = cell.run.path
        raise RunError(f"{path} has no examples below the top yet. Collect them: keyhole analyze {path} --only shading")
    return found.below


def _triggers(cell: Cell, found: below.Below, group: list[below.Example]) -> list[Trigger]:
    return [cell.run.trigger(each.coefficient, *map(int, found.places[each.prefix])) for each in group]
