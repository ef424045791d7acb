"""What people collect: cells with a star, with tags, with a note.

`marks.jsonl` has one line per save (`lines.py`): the cells by address, each with what was saved of it. A field that is left out was not
changed; the newest counts. An import is one line, so after a crash it is there completely or not at all. Earlier versions kept notes
in `notes.jsonl`, one per line: they are read first, and what `marks.jsonl` says of the same cell counts.

The same shape, cells by address, is the file that `export` writes, what the explorer's data/collections.json answers, and what
`merge` takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ..common import names
from ..errors import UsageError
from . import layout, lines
from .run import Run

TAGS, TAG, NOTE, MARKED = 20, 40, 10_000, 10_000
"""Upper bounds: tags per cell, characters per tag, characters per note, marked cells per run."""
STARRED, ALL = "starred", "all"
"""Names of collections that are no tags: the cells with a star, and all that are marked."""
FIELDS = ("starred", "tags", "note")
_saving = threading.Lock()
_read: WeakKeyDictionary[Run, tuple[tuple[Any, ...], dict[int, Marks], int]] = WeakKeyDictionary()
"""What was read of each run that is open, and of which versions of its files."""


@dataclass(frozen=True)
class Marks:
    """What people say of one cell. Without star, tags and note it is not marked."""

    starred: bool = False
    tags: tuple[str, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return self.starred or bool(self.tags) or bool(self.note.strip())

    def to_json(self) -> dict[str, Any]:
        return {"starred": self.starred, "tags": list(self.tags), "note": self.note}


# From JSON, with every value checked


def parse_tag(text: Any) -> str:
    tag = names.tidy(text, names.TAG, f"a tag has 1 to {TAG} characters, no comma and nothing that cannot be seen.")
    if tag in (STARRED, ALL):
        raise UsageError(f"'{tag}' cannot be a tag: it is the name of the collection of all such cells. Take another.")
    return tag


def parse_tags(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple):
        raise UsageError(f"Tags are a list of texts, not {values!r:.60}.")
    tags = tuple(dict.fromkeys(map(parse_tag, values[: TAGS + 1])))
    if len(values) > TAGS:
        raise UsageError(f"{len(values)} tags are too many: a cell has at most {TAGS}.")
    return tags


def _parse(value: Any, before: Marks = Marks()) -> Marks:
    """What a cell is marked with after `value`, which leaves out what it does not change."""
    if not isinstance(value, dict):
        raise UsageError(f"What a cell is marked with is a JSON object, not {value!r:.60}.")
    if extra := [name for name in value if name not in FIELDS]:
        raise UsageError(f"A cell is marked with {', '.join(FIELDS)}; there is no {extra[0]!r:.60}.")
    changes: dict[str, Any] = {}
    if "starred" in value:
        if not isinstance(value["starred"], bool):
            raise UsageError(f"'starred' is {value['starred']!r:.60}; it is true or false.")
        changes["starred"] = value["starred"]
    if "tags" in value:
        changes["tags"] = parse_tags(value["tags"])
    if "note" in value:
        changes["note"] = _note(value["note"])
    return replace(before, **changes)


def _note(text: Any) -> str:
    if not isinstance(text, str) or len(text) > NOTE:
        raise UsageError(f"A note is a text of at most {NOTE:,} characters.")
    return text


def _cells(value: Any) -> dict[str, Any]:
    cells = value.get("cells") if isinstance(value, dict) else None
    if not isinstance(cells, dict):
        raise UsageError('A collection is a JSON object with "cells": what each cell is marked with, by its address.')
    return cells


# Files


def read(run: Run) -> dict[int, Marks]:
    """Every marked cell by its place, in the order of the axis."""
    return read_counting(run)[0]


def read_counting(run: Run) -> tuple[dict[int, Marks], int]:
    """The marked cells, and the number of damaged lines, which are left out. The files are read again only if they changed."""
    files = (layout.notes_file(run.path), layout.marks_file(run.path))
    stamp = tuple(map(lines.stamp, files))
    known = _read.get(run)
    if known is None or known[0] != stamp:
        known = _read[run] = (stamp, *_read_files(run, *files))
    return dict(known[1]), known[2]


def _read_files(run: Run, notes: Path, marks: Path) -> tuple[dict[int, Marks], int]:
    found: dict[int, Marks] = {}
    damaged = 0
    readers: tuple[tuple[Path, Callable[..., dict[int, Marks]]], ...] = ((notes, _old_note), (marks, _line))
    for file, reader in readers:
        for record in lines.read_lines(file):
            try:
                found |= reader(run, record, found)
            except UsageError:
                damaged += 1
    return {place: found[place] for place in sorted(found) if found[place]}, damaged


def _line(run: Run, record: Any, before: dict[int, Marks]) -> dict[int, Marks]:
    """The cells of a line of marks.jsonl after it."""
    changed: dict[int, Marks] = {}
    for address, value in _cells(record).items():
        place = run.cells.find(address)
        changed[place] = _parse(value, changed.get(place) or before.get(place, Marks()))
    return changed


def _old_note(run: Run, record: Any, before: dict[int, Marks]) -> dict[int, Marks]:
    """The cell of a line of notes.jsonl after it."""
    known = lines.known_fields(record, "a note", ("layer", "cell", "text"), ("at",))
    return {run.cells.place(*lines.cell_named(known)): Marks(note=str(known["text"]))}


def save(run: Run, place: int, value: dict[str, Any]) -> Marks:
    """Mark a cell: `value` has those of `starred`, `tags`, `note` that change. It is on disk when this returns."""
    with _saving:
        before = read(run)
        after = _parse(value, before.get(place, Marks()))
        _room(before, {place: after})
        if value:
            _write(run, {place: {name: after.to_json()[name] for name in FIELDS if name in value}})
    return after


def _room(before: dict[int, Marks], after: dict[int, Marks]) -> None:
    """Refuse to mark more cells than a run keeps. To remove marks is always possible."""
    count = sum(map(bool, (before | after).values()))
    if count > max(MARKED, len(before)):
        raise UsageError(
            f"{count:,} marked cells are too many: a run keeps {MARKED:,}. Remove stars, tags or notes first."
        )


def _write(run: Run, changed: dict[int, dict[str, Any]]) -> None:
    record = {"cells": {run.cells.address(place): value for place, value in changed.items()}}
    lines.add(run.path, (layout.marks_file(run.path).name,), record, run.manifest["checksum"])


# Collections


def tags(run: Run) -> dict[str, int]:
    """Every tag, and how many cells have it, in the order of the alphabet."""
    count: dict[str, int] = {}
    for marks in read(run).values():
        for tag in marks.tags:
            count[tag] = count.get(tag, 0) + 1
    return dict(sorted(count.items(), key=lambda each: (each[0].lower(), each[0])))


def places(run: Run, name: str) -> list[int]:
    """The places of a collection's cells, in the order of the axis: `starred`, `all` that are marked, or a tag's."""
    return _chosen(run, read(run), name)


def _chosen(run: Run, marked: dict[int, Marks], name: str) -> list[int]:
    if name == ALL:
        return list(marked)
    if name == STARRED:
        return [place for place, marks in marked.items() if marks.starred]
    tag = parse_tag(name)
    found = [place for place, marks in marked.items() if tag in marks.tags]
    if not found:
        there = ", ".join([STARRED, ALL, *tags(run)])
        raise UsageError(f"No cell of this run has the tag '{tag}'. The collections are: {there:.400}.")
    return found


def export(run: Run, name: str = ALL) -> dict[str, Any]:
    """A collection as JSON, for `merge` in this run or in another of the same model."""
    model, marked = run.manifest["model"], read(run)
    return {
        "keyhole": 1,
        "model": {"fingerprint": model["fingerprint"], "layers": run.layers, "cells": run.cells.sizes},
        "cells": {run.cells.address(place): marked[place].to_json() for place in _chosen(run, marked, name)},
    }


@dataclass(frozen=True)
class Merged:
    """What an import did."""

    cells: int
    """in the file"""
    changed: int
    """of these are marked otherwise than before"""


def merge(run: Run, value: Any) -> Merged:
    """Add a collection that `export` wrote. What is marked already stays: a cell has a star if either has given it one, the tags of
    both, and both notes, one below the other if they differ; to import a file twice changes nothing more. If anything in it does not
    fit this run, the error names it and nothing is imported."""
    theirs = _fitting(run, value)
    with _saving:
        ours = read(run)
        after = {place: _both(run, place, ours.get(place, Marks()), marks) for place, marks in theirs.items()}
        changed = {place: marks for place, marks in after.items() if marks != ours.get(place, Marks())}
        _room(ours, after)
        if changed:
            _write(run, {place: marks.to_json() for place, marks in changed.items()})
    return Merged(len(theirs), len(changed))


def _fitting(run: Run, value: Any) -> dict[int, Marks]:
    """The cells of a collection by place, if all of it fits this run."""
    cells = _cells(value)
    if extra := [name for name in value if name not in ("keyhole", "model", "cells")]:
        raise UsageError(f"A collection has no {extra[0]!r:.60}.")
    if type(version := value.get("keyhole", 1)) is not int or version != 1:
        raise UsageError(f"This collection has version {version!r:.40}; this Keyhole reads version 1.")
    if "model" in value:
        model = value["model"]
        made_with = model.get("fingerprint") if isinstance(model, dict) else None
        if made_with != run.manifest["model"]["fingerprint"]:
            raise UsageError(
                f"This collection is of another model (fingerprint '{made_with!s:.16}', this run's is"
                f" '{run.manifest['model']['fingerprint']:.16}'): its addresses name other cells. Nothing was imported. To take the"
                ' addresses all the same, remove "model" from the file.'
            )
    found: dict[int, Marks] = {}
    wrong: list[str] = []
    for address, marks in cells.items():
        try:
            place = run.cells.find(address)
            found[place] = _parse(marks, found.get(place, Marks()))
        except UsageError as error:
            wrong.append(str(error) if address in str(error) else f"{address:.40}: {error}")
    if wrong:
        more = f" And {len(wrong) - 5:,} more." if len(wrong) > 5 else ""
        raise UsageError(
            f"Nothing was imported, because {len(wrong):,} of {len(cells):,} cells do not fit. {' '.join(wrong[:5])}{more}"
        )
    return found


def _both(run: Run, place: int, ours: Marks, theirs: Marks) -> Marks:
    try:
        return Marks(
            starred=ours.starred or theirs.starred,
            tags=parse_tags([*ours.tags, *(tag for tag in theirs.tags if tag not in ours.tags)]),
            note=_note(_notes(ours.note, theirs.note)),
        )
    except UsageError as error:
        raise UsageError(
            f"{run.cells.address(place)} with what it has already: {error} Nothing was imported."
        ) from None


def _notes(ours: str, theirs: str) -> str:
    """Both notes, one below the other; ours alone if theirs is a part of it between blank lines, as an import leaves it."""
    if not theirs.strip() or f"\n\n{theirs.strip()}\n\n" in f"\n\n{ours.strip()}\n\n":
        return ours
    return f"{ours.rstrip()}\n\n{theirs}" if ours.strip() else theirs


# Notes


def save_note(run: Run, value: Any) -> dict[str, Any]:
    """Save a note on a cell. An empty one removes it."""
    known = lines.known_fields(value, "a note", ("layer", "cell", "text"), ("at",))
    layer, cell = lines.cell_named(known)
    save(run, run.cells.place(layer, cell), {"note": known["text"]})
    return {"layer": layer, "cell": cell, "text": known["text"]}


def read_notes(run: Run) -> dict[str, str]:
    """The note of each cell that has one, by the cell's address."""
    return notes_of(run, read(run))


def notes_of(run: Run, marked: dict[int, Marks]) -> dict[str, str]:
    return {run.cells.address(place): marks.note for place, marks in marked.items() if marks.note.strip()}
