"""Sets of cells by name, for edits of a prompt that act on all of them. What a name means is in `searching/sets.py`."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..searching import sets
from ..store import patterns
from ..store.run import Run
from . import schema


def offered(run: Run) -> schema.OfferedSets:
    """The sets of a run that need no text."""
    found = [schema.OfferedSet(each.name, each.title, each.cells) for each in sets.offered(run)]
    return schema.OfferedSets(found, patterns.of(run) is not None)


def cells(run: Run, asked: dict[str, Any]) -> schema.CellSet:
    """The cells of a set: all of them, or none if they are more than a prompt has edits."""
    name = asked.get("name")
    if [*asked] != ["name"] or not isinstance(name, str) or not 0 < len(name) <= 500:
        raise UsageError('Name a set of cells, as in {"name": "kind:dead"}; a name has at most 500 characters.')
    places = sets.cells_of(run, name)
    listed = places if len(places) <= schema.LIMITS.edits else []
    return schema.CellSet(name, len(places), [run.cells.split(place) for place in listed])
