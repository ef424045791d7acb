"""The tokens around triggers, each once: the texts of triggers overlap, and are most of an export.

A trigger says where its first token is and how many follow. If the corpus is small, all of it is one file that every pack uses;
else each pack has the parts that its own triggers show.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..store.run import Run
from ..web import schema
from ..web.pack import SEPARATOR, joined

SHARED = 1 << 17
"""Tokens up to which a corpus is one file: about 200 KB."""


class Part(schema.Row):
    """Consecutive tokens of a unit."""

    unit: int
    first: int
    """the position of its first token in the unit"""
    size: int
    length: int
    """tokens of the whole unit"""


class Content(schema.Record):
    """Parts of units, and the tokens of all of them, one after the other."""

    parts: list[Part]
    pieces: list[str]


class Texts:
    """Parts of a run's units, in the order of the corpus."""

    def __init__(self, run: Run, parts: list[Part]) -> None:
        offsets, piece = run.unit_offsets, run.vocabulary.piece
        self.content = Content(
            parts,
            [
                piece(token)
                for part in parts
                for token in run.tokens[
                    int(offsets[part.unit]) + part.first : int(offsets[part.unit]) + part.first + part.size
                ].tolist()
            ],
        )
        self._begins = np.cumsum([0, *(part.size for part in parts)])[:-1].tolist()
        self._order = [(part.unit, part.first) for part in parts]

    @staticmethod
    def whole(run: Run) -> Texts | None:
        """All of a corpus that is small; None if it is not."""
        lengths = np.diff(run.unit_offsets).tolist()
        if sum(lengths) > SHARED:
            return None
        return Texts(run, [Part(unit, 0, length, length) for unit, length in enumerate(lengths) if length])

    @staticmethod
    def of(run: Run, answers: Sequence[Any]) -> Texts:
        """The parts that the triggers of these answers show."""
        shown: dict[int, list[tuple[int, int]]] = {}
        for row in triggers(answers):
            shown.setdefault(row.unit, []).append((row.before, row.before + _size(row)))
        parts = []
        for unit in sorted(shown):
            length = int(run.unit_offsets[unit + 1] - run.unit_offsets[unit])
            begin = end = -1
            for first, last in sorted(shown[unit]):
                if first > end and end >= 0:
                    parts.append(Part(unit, begin, end - begin, length))
                begin, end = (first, last) if first > end else (begin, max(end, last))
            parts.append(Part(unit, begin, end - begin, length))
        return Texts(run, parts)

    def find(self, rows: Sequence[schema.PackedTrigger]) -> tuple[list[int] | None, list[int]]:
        """Where the tokens of each trigger begin, and how many they are. None if one shows other tokens than the corpus has, or
        says something else than follows from where they are."""
        parts, pieces = self.content.parts, self.content.pieces
        starts, sizes = [], []
        for row in rows:
            size = _size(row)
            number = bisect_right(self._order, (row.unit, row.before)) - 1
            part = parts[number]
            start = self._begins[number] + row.before - part.first
            if (
                number < 0
                or part.unit != row.unit
                or row.before + size > part.first + part.size
                or row.before + size + row.after != part.length
                or joined(pieces[start : start + size]) != row.tokens
            ):
                return None, []
            starts.append(start)
            sizes.append(size)
        return starts, sizes


def triggers(value: Any) -> Iterator[schema.PackedTrigger]:
    """Every trigger in an answer, however deep."""
    if isinstance(value, schema.PackedTrigger):
        yield value
    elif isinstance(value, list | tuple):
        if value and not isinstance(value[0], str | int | float):
            for each in value:
                yield from triggers(each)
    elif isinstance(value, dict):
        yield from triggers(list(value.values()))
    elif isinstance(value, schema.Record):
        for name in value.__struct_fields__:
            yield from triggers(getattr(value, name))


def _size(row: schema.PackedTrigger) -> int:
    return row.tokens.count(SEPARATOR) + 1 if isinstance(row.tokens, str) else len(row.tokens)
