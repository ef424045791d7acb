"""The table of all cells for the explorer: its columns, their values in blocks, and a file of the rows that a reader chose."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..analyses import relations
from ..analyses.columns import SAID, CellColumns, Column
from ..errors import UsageError
from ..store.relations import text
from ..store.run import Run
from ..store.tables import save_parquet
from . import schema
from .pack import packed

BLOCK, TEXTS = 1 << 18, 1 << 12
"""Cells per block, of packed values and of texts: at most about a megabyte."""
ELSEWHERE = {"address", "place", "layer", "cell", "stack", "expert", "kinds", "label"}
"""Columns that the page makes from the axis, from data/kinds.json and from data/labels/….json. Those of people are too."""
PACKED = {
    **dict.fromkeys(("number", "share", "count"), "<f4"),
    **dict.fromkeys(("flag", "level"), "u1"),
    **dict.fromkeys(("token", "tokens"), "<i4"),
}


class Table:
    """The table of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._columns = CellColumns(run)
        self._listed = list(self._columns.columns.values())

    @property
    def bounds(self) -> tuple[int, int]:
        return len(self._listed), -(-len(self.run.cells) // TEXTS)

    def columns(self) -> schema.CellTable:
        return schema.CellTable([self._described(column) for column in self._listed], SAID)

    def _described(self, column: Column) -> schema.CellColumn:
        return schema.CellColumn(
            name=column.name,
            form=column.form,
            title=column.title,
            means=column.means,
            side=column.side,
            missing=self._columns.missing(column.name),
            type=column.type,
            names=list(column.names),
            blocks=self._blocks(column),
            size=_size(column),
        )

    def _blocks(self, column: Column) -> int:
        if column.name in ELSEWHERE or column.changes or not self._columns.has(column.name):
            return 0
        return -(-len(self.run.cells) // _size(column))

    def paths(self) -> Iterator[str]:
        for number, column in enumerate(self._listed):
            yield from (f"columns/{number}/{block}.json" for block in range(self._blocks(column)))

    def block(self, number: int, block: int) -> schema.ColumnBlock | None:
        """Some values of a column; None if the column has no such block."""
        column = self._listed[number]
        if block >= self._blocks(column):
            return None
        begin = block * _size(column)
        values = self._columns.raw(column.name, slice(begin, min(len(self.run.cells), begin + _size(column))))
        if column.form == "text":
            return schema.ColumnBlock(begin, 0, texts=values.tolist())
        if column.form == "level":
            values = np.where(values < 0, 255, values)
        elif column.form in ("number", "share", "count"):
            values = np.where(np.isfinite(values), values, np.nan)
        values = values.astype(PACKED[column.form])
        return schema.ColumnBlock(begin, values[:1].nbytes, packed(values))

    # A file

    def parquet(self, asked: schema.AskCells) -> bytes:
        """The rows that a reader chose, as a Parquet file."""
        with tempfile.TemporaryDirectory(prefix="keyhole-") as folder:
            file = Path(folder) / "cells.parquet"
            save_parquet(self.run.path, self.selected(asked), file, relations.of(self.run))
            return file.read_bytes()

    def selected(self, asked: schema.AskCells) -> str:
        """The SQL for the rows that a reader chose. Names are those of columns, and texts are quoted."""
        if not asked.columns or len(set(asked.columns)) < len(asked.columns):
            raise UsageError("Name the columns, each once.")
        chosen = [self._columns[name] for name in asked.columns]
        sql = f"SELECT {', '.join(_name(column) for column in chosen)} FROM cells"
        conditions = [condition(self._columns[name], wanted) for name, wanted in asked.filters.items()]
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        if asked.sort is None:
            return f"{sql} ORDER BY place"
        order = _key(self._columns[asked.sort])
        return f"{sql} ORDER BY {order} {'DESC' if asked.descending else 'ASC'} NULLS LAST, place"


def _size(column: Column) -> int:
    return TEXTS if column.form == "text" else BLOCK


def _name(column: Column) -> str:
    return f'"{column.name}"'


def _key(column: Column) -> str:
    """What a column is sorted by: of tokens the first, of labels how many there are; texts without regard to case."""
    name = _name(column)
    if column.form == "labels":
        return f"len({name})"
    if column.form in ("token", "text", "tokens"):
        return f"lower(trim({name}{'[1]' if column.form == 'tokens' else ''}))"
    return name


def condition(column: Column, wanted: str) -> str:
    """A filter of the page as a condition in SQL."""
    name = _name(column)
    if column.form in ("number", "share", "count"):
        low, high = limits(column.name, wanted)
        parts = [f"{name} >= {low!r}"] * (low > -math.inf) + [f"{name} <= {high!r}"] * (high < math.inf)
        return f"({' AND '.join(parts) or f'{name} IS NOT NULL'})"
    if column.form == "flag":
        if wanted not in ("0", "1"):
            raise UsageError(f"The filter of '{column.name}' is {wanted!r:.60}; it is 1 or 0.")
        return name if wanted == "1" else f"NOT {name}"
    if column.form in ("level", "labels"):
        if wanted not in column.names:
            raise UsageError(f"There is no {column.name} '{wanted:.60}'. There are: {', '.join(column.names)}.")
        return f"{name} = {text(wanted)}" if column.form == "level" else f"list_contains({name}, {text(wanted)})"
    return f"len([t FOR t IN {name} IF {_says('t', wanted)}]) > 0" if column.form == "tokens" else _says(name, wanted)


def _says(name: str, wanted: str) -> str:
    exact = len(wanted) > 2 and wanted[0] == wanted[-1] == '"'
    return f"{name} = {text(wanted[1:-1])}" if exact else f"contains(lower({name}), lower({text(wanted)}))"


def limits(name: str, wanted: str) -> tuple[float, float]:
    """`0.5..2`, `3..`, `..2` or `7` as the least and the largest number."""
    low, dots, high = wanted.partition("..")
    try:
        least, most = float(low or "-inf"), float((high if dots else low) or "inf")
    except ValueError:
        least = most = math.nan
    if math.isnan(least) or math.isnan(most) or least == math.inf or most == -math.inf:
        raise UsageError(f"The filter of '{name}' is {wanted!r:.60}; it is a range of numbers, as in 0.5..2 or 3.. .")
    return least, most
