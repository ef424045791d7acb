"""Annotations by people, after the paper's protocol: which of a key's triggers share a pattern, and what the pattern is.

A pattern recurs in at least three triggers. It is shallow (a recurring n-gram) or semantic (a topic). Each annotator has one
file in the run, and every save is appended to it. If a cell was saved several times, the newest save counts. Who it was is in
every record; upper and lower case are one name.

If `keyhole patterns` found rules for cells that people annotated, the rules are compared with people as one more annotator.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from ..common import names
from ..errors import UsageError
from . import collections, layout, lines
from . import patterns as found_by_rules
from .run import Run

PATTERN_KINDS: tuple[Literal["shallow", "semantic"], ...] = ("shallow", "semantic")
KINDS = ("none", *PATTERN_KINDS, "both")
"""What a trigger's patterns are; the index is the sum of 1 (a shallow one) and 2 (a semantic one)."""
READ = 25
"""Triggers of a key that are read, at most: the strongest, as many as in the paper. A run may hold more."""
LEAST = 3
"""The least number of triggers in which a pattern recurs."""
PATTERNS, DESCRIPTION = 50, 2000
"""Upper bounds: patterns per cell, characters per description."""
RULES = "rules"
"""What the patterns of `keyhole patterns` are called among the annotators. No person can take that name."""
_saving = threading.Lock()


class Marked(Protocol):
    """A pattern, whoever found it."""

    @property
    def triggers(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> str: ...


def trigger_kinds(patterns: Sequence[Marked], triggers: int) -> list[str]:
    """The kind of each trigger's patterns, one of `KINDS`, of the first `triggers` of a cell."""
    found = [0] * triggers
    for pattern in patterns:
        for trigger in pattern.triggers:
            if 0 <= trigger < triggers:
                found[trigger] |= 1 if pattern.kind == "shallow" else 2
    return [KINDS[each] for each in found]


@dataclass(frozen=True)
class Pattern:
    triggers: tuple[int, ...]
    """numbers of the cell's triggers, from 0"""
    description: str
    kind: str
    """shallow or semantic"""


@dataclass(frozen=True)
class Annotation:
    """What one annotator says about one cell."""

    annotator: str
    layer: int
    cell: int
    patterns: tuple[Pattern, ...]
    skipped: bool = False

    def labels(self, triggers: int) -> list[str]:
        """The kind of each trigger's patterns, one of `KINDS`."""
        return trigger_kinds(self.patterns, triggers)

    def to_json(self) -> dict[str, Any]:
        return {
            "annotator": self.annotator,
            "layer": self.layer,
            "cell": self.cell,
            "patterns": [
                {"triggers": list(p.triggers), "description": p.description, "kind": p.kind} for p in self.patterns
            ],
            "skipped": self.skipped,
        }


# From JSON, with every value checked


def parse(run: Run, value: Any) -> Annotation:
    """An annotation from JSON, checked against the run."""
    known = lines.known_fields(value, "an annotation", ("annotator", "layer", "cell", "patterns"), ("skipped", "at"))
    name = names.tidy(
        known["annotator"],
        names.NAME,
        "an annotator's name has up to 60 characters of any script, the first a letter, a digit or an emoji, and no slash.",
    )
    if names.same(name) == RULES:
        raise UsageError(f"The name '{RULES}' stands for the patterns that `keyhole patterns` finds. Take another.")
    layer, cell = lines.cell_named(known)
    triggers = _triggers(run, layer, cell)
    skipped = known.get("skipped", False)
    if not isinstance(skipped, bool):
        raise UsageError(f"'skipped' is {skipped!r:.60}; it is true or false.")
    patterns = known["patterns"]
    if not isinstance(patterns, list) or len(patterns) > PATTERNS:
        raise UsageError(f"'patterns' must be a list of at most {PATTERNS}.")
    if skipped and patterns:
        raise UsageError("A skipped cell has no patterns: leave them out, or do not skip it.")
    return Annotation(name, layer, cell, tuple(_pattern(p, triggers) for p in patterns), skipped)


def _pattern(value: Any, triggers: int) -> Pattern:
    known = lines.known_fields(value, "a pattern", ("triggers", "description", "kind"))
    marked = known["triggers"]
    if not isinstance(marked, list) or any(type(i) is not int or not 0 <= i < triggers for i in marked):
        raise UsageError(f"A pattern's triggers are numbers from 0 to {triggers - 1}, not {marked!r:.60}.")
    if len(set(marked)) < LEAST:
        raise UsageError(f"A pattern recurs in at least {LEAST} triggers; {len(set(marked))} are marked.")
    text = known["description"]
    if not isinstance(text, str) or not text.strip() or len(text) > DESCRIPTION:
        raise UsageError(f"Describe the pattern, in at most {DESCRIPTION:,} characters.")
    if known["kind"] not in PATTERN_KINDS:
        raise UsageError(f"A pattern is 'shallow' or 'semantic', not {known['kind']!r:.60}.")
    return Pattern(tuple(sorted(set(marked))), text, known["kind"])


def _triggers(run: Run, layer: int, cell: int) -> int:
    """The number of triggers of a cell that are read."""
    return int(np.count_nonzero(run.units[run.cells.place(layer, cell), :READ] >= 0))


# Files


def save(run: Run, value: Any) -> Annotation:
    """Check an annotation and append it to its annotator's file. It is on disk when this returns."""
    annotation = parse(run, value)
    with _saving:
        file = (layout.annotations_folder(run.path).name, f"{names.file_name(annotation.annotator)}.jsonl")
        lines.add(run.path, file, annotation.to_json(), run.manifest["checksum"])
    return annotation


def read_annotations(run: Run) -> list[Annotation]:
    """The newest annotation of each cell by each annotator, ordered by annotator, then by cell. If someone spelled the name in upper
    and in lower case, the spelling saved last is used for all."""
    return _read_annotations(run)[0]


def _read_annotations(run: Run) -> tuple[list[Annotation], int]:
    """The annotations, and the number of damaged lines: a crash may have cut a line short."""
    newest: dict[tuple[str, int, int], Annotation] = {}
    spelled: dict[str, str] = {}
    damaged = 0
    folder = layout.annotations_folder(run.path)
    for file in sorted(folder.glob("*.jsonl")) if not folder.is_symlink() else ():
        for record in lines.read_lines(file):
            try:
                annotation = parse(run, record)
            except UsageError:
                damaged += 1
                continue
            who = names.same(annotation.annotator)
            spelled[who] = annotation.annotator
            newest[who, annotation.layer, annotation.cell] = annotation
    return [replace(newest[key], annotator=spelled[key[0]]) for key in sorted(newest)], damaged


# Summaries


def kinds(run: Run) -> dict[tuple[int, int], str]:
    """The kind of the patterns of each annotated cell, over all annotators."""
    found: dict[tuple[int, int], int] = {}
    for annotation in read_annotations(run):
        if not annotation.skipped:
            at = annotation.layer, annotation.cell
            seen = sum({1 if p.kind == "shallow" else 2 for p in annotation.patterns})
            found[at] = found.get(at, 0) | seen
    return {at: KINDS[kind] for at, kind in found.items()}


def coverage(run: Run) -> list[dict[str, Any]]:
    """Figure 2 of the paper: per layer, the shares of triggers that a shallow pattern covers, a semantic one, both, none.

    A cell that two people annotated counts twice.
    """
    rows = []
    made = [annotation for annotation in read_annotations(run) if not annotation.skipped]
    for layer, group in itertools.groupby(sorted(made, key=lambda a: a.layer), key=lambda a: a.layer):
        readings = list(group)
        labels = Counter(label for a in readings for label in a.labels(_triggers(run, a.layer, a.cell)))
        total = sum(labels.values())
        share = {kind: labels[kind] / total if total else None for kind in ("shallow", "semantic", "both", "none")}
        rows.append(
            {"layer": layer, "keys": len({a.cell for a in readings}), "readings": len(readings), "triggers": total}
            | share
            | {"patterns_per_key": sum(len(a.patterns) for a in readings) / len(readings)}
        )
    return rows


def agreement(run: Run) -> list[dict[str, Any]]:
    """Per pair of annotators, over the cells both annotated: how often they agree that a trigger is covered by a pattern,
    and Cohen's kappa of its kind (none, shallow, semantic, both).

    The patterns that `keyhole patterns` found are one more annotator, `rules`, and the last: of the cells that some person
    annotated, those whose keys were looked at. The triggers are those that people read, of the first side.
    """
    by: dict[str, dict[tuple[int, int], list[str]]] = {}
    for annotation in read_annotations(run):
        by.setdefault(annotation.annotator, {})
        if not annotation.skipped:
            at = annotation.layer, annotation.cell
            by[annotation.annotator][at] = annotation.labels(_triggers(run, *at))
    names = sorted(by)
    if rules := _rules(run, {at for cells in by.values() for at in cells}):
        by[RULES] = rules
        names.append(RULES)
    rows = []
    for one, other in itertools.combinations(names, 2):
        cells = sorted(by[one].keys() & by[other].keys())
        pairs = [pair for at in cells for pair in zip(by[one][at], by[other][at], strict=True)]
        same = sum((a == "none") == (b == "none") for a, b in pairs)
        covered = same / len(pairs) if pairs else None
        rows.append(
            {"annotator": one, "other": other, "keys": len(cells), "triggers": len(pairs)}
            | {"same_covered": covered, "kappa": kappa(pairs)}
        )
    return rows


def _rules(run: Run, annotated: set[tuple[int, int]]) -> dict[tuple[int, int], list[str]]:
    """The kinds of the triggers by the rules that were found, of the annotated cells whose keys were looked at."""
    known = found_by_rules.of(run)
    keys = {} if known is None else {at: known.layer(at[0]).get((at[1], 1)) for at in annotated}
    return {at: trigger_kinds(key.patterns, _triggers(run, *at)) for at, key in keys.items() if key is not None}


def kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Cohen's kappa: agreement beyond what the two would reach by chance. None if they would always agree by chance."""
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    firsts, seconds = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(firsts[kind] * seconds[kind] for kind in firsts) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def summary(run: Run) -> dict[str, Any]:
    """Coverage, agreement, counts, and the notes by address."""
    made, damaged = _read_annotations(run)
    marked, damaged_marks = collections.read_counting(run)
    return {
        "annotators": sorted({a.annotator for a in made}),
        "cells": len({(a.layer, a.cell) for a in made if not a.skipped}),
        "skipped": sum(a.skipped for a in made),
        "notes": collections.notes_of(run, marked),
        "damaged_lines": damaged + damaged_marks,
        "coverage": coverage(run),
        "agreement": agreement(run),
    }
