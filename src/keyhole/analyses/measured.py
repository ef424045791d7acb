"""What was measured on a run: its tables, the notes on them, and the verdicts they come to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..store import layout as store
from ..store import tables
from ..store.run import Run
from . import verdicts
from .verdicts import Row, Verdict


@dataclass(frozen=True)
class Measured:
    run: Run
    tables: dict[str, list[Row] | None]
    """every table; None where it is not filled"""
    notes: dict[str, str]
    verdicts: dict[str, list[Verdict]]
    """by figure, where its table has rows"""

    @classmethod
    def read(cls, run: Run) -> Measured:
        found: dict[str, list[Row] | None] = dict.fromkeys(tables.SCHEMAS)
        notes: dict[str, str] = {}
        if store.has_tables(run.path):
            with tables.connect(run.path) as db:
                filled = tables.names(db)
            for name in found:
                if name in filled:
                    found[name] = run.table(name)
                    if note := tables.note(run.path, name):
                        notes[name] = note
        return cls(run, found, notes, _weigh(run, found, notes))


def _weigh(run: Run, found: dict[str, list[Row] | None], notes: dict[str, str]) -> dict[str, list[Verdict]]:
    judges: dict[str, tuple[str, Callable[[Any], list[Verdict]]]] = {
        "mutation": ("mutation", verdicts.mutation),
        "activity": ("activity", partial(verdicts.activity, cells=len(run.cells))),
        "agreement": ("agreement", verdicts.agreement),
        "rank": ("rank", verdicts.rank),
        "confidence": ("confidence", verdicts.confidence),
        "confident": ("confident", partial(verdicts.confident, layers=run.layers)),
        "active": ("composition", verdicts.active),
        "zero_agreement": ("composition", verdicts.composition),
        "residual_match": ("refinement", verdicts.residual_match),
        "final_probability": ("refinement", verdicts.final_probability),
        "shares": ("refinement", verdicts.shares),
        "cases": ("cases", partial(verdicts.cases, distant=chance(notes.get("cases", "")))),
    }
    return {name: judge(rows) for name, (table, judge) in judges.items() if (rows := found[table])}


def chance(note: str) -> float:
    """The cosine that pairs of unrelated predictions hardly exceed: the note on `cases` says it."""
    match = re.search(r"(\d\.\d+) at the 95th percentile", note)
    return float(match[1]) if match else verdicts.DISTANT
