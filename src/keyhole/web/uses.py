"""What the cells of a run were used for, cell by cell: what `keyhole prune` and `keyhole leak` stored, and the edits that the run's
model had while it was scanned."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from ..store import leaks, pruning
from ..store.made import LONGEST
from ..store.run import Run
from . import schema
from .pack import short

TEXT = 400
"""Characters of a leak's prefix and of its continuation that are sent with a cell."""


class Uses:
    """The uses of a run, read once."""

    def __init__(self, run: Run) -> None:
        self._goes = pruning.goes_at(run)
        found = pruning.of(run)
        self._method, self._scope = (found.method or "", found.scope or "") if found else ("", "")
        self._leaks = _leaks(run)
        self._edits = _edits(run)

    def of(self, place: int) -> schema.Uses | msgspec.UnsetType:
        """What is known of a cell; nothing if nothing is known of any."""
        if self._goes is None and not self._leaks and not self._edits:
            return msgspec.UNSET
        goes = (
            None if self._goes is None else schema.GoesAt(self._method, self._scope, short(float(self._goes[place]), 4))
        )
        return schema.Uses(goes, self._leaks.get(place, []), self._edits.get(place, []))


def _leaks(run: Run) -> dict[int, list[schema.InLeak]]:
    stored = leaks.of(run)
    found: dict[int, list[schema.InLeak]] = defaultdict(list)
    for rank, leak in enumerate(stored.leaks if stored else [], start=1):
        best = stored.best(rank) if stored else None
        if best is None or best.n90 is None:
            continue
        for number, place in enumerate(leaks.cells_of(run, rank), start=1):
            found[place].append(
                schema.InLeak(rank, best.method, number, best.n90, leak.prefix[-TEXT:], leak.continuation[:TEXT])
            )
    return found


def _edits(run: Run) -> dict[int, list[schema.CellEdit]]:
    """Edits that the model ran with, and those that were baked into its weights."""
    found: dict[int, list[schema.CellEdit]] = defaultdict(list)
    about = run.manifest["model"]
    baked = made.get("edited") if isinstance(made := about.get("made"), dict) else None
    for edit in [*about.get("edits", []), *(baked if isinstance(baked, list) else [])]:
        layer, cell = (edit.get(name) if isinstance(edit, dict) else None for name in ("layer", "cell"))
        if type(layer) is int and type(cell) is int and run.cells.has(layer, cell):
            towards = edit.get("towards")
            found[run.cells.place(layer, cell)].append(
                schema.CellEdit(
                    _number(edit.get("scale")),
                    towards[:LONGEST] if isinstance(towards, str) else None,
                    _number(edit.get("by")),
                    edit.get("value") is not None,
                )
            )
    return found


def _number(value: Any) -> float | None:
    try:
        return short(float(value)) if type(value) in (int, float) else None
    except OverflowError:  # a whole number that no float holds, in a manifest from elsewhere
        return None
