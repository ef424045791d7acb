"""Every measure of every cell, as columns over the axis of cells. Each column is defined here once: its name, what it means, and how it
is made.

`keyhole sql` reads the columns as the relation `cells`, the explorer's table of all cells shows them, and `keyhole.columns` gives
them to Python. A column is made for a slice of the axis, from the run's arrays, so that a model with millions of cells never has
them all in memory as objects.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..store import annotations as people
from ..store import collections, kinds, patterns, shading, values
from ..store.run import Run
from . import registry
from .record import CellMeasure

Array = npt.NDArray[Any]
Form = Literal["number", "share", "count", "flag", "level", "labels", "token", "tokens", "text"]
"""What a column holds, and how `CellColumns.raw` gives it: `number`, `share` (from 0 to 1) and `count`: numbers, NaN if there is none;
`flag`: booleans; `level`: the number of one of `names`, −1 if there is none; `labels`: bit i stands for `names[i]`; `token`: a token's
number, −1 if there is none; `tokens`: [cells, SAID] of those; `text`: strings or None."""
TYPES: dict[Form, str] = {
    **dict.fromkeys(("number", "share"), "DOUBLE"),
    "count": "BIGINT",
    "flag": "BOOLEAN",
    **dict.fromkeys(("level", "token", "text"), "VARCHAR"),
    **dict.fromkeys(("labels", "tokens"), "VARCHAR[]"),
}
"""The forms as types of DuckDB."""
SAID = 5
"""Tokens of each end of a value that the columns hold."""
TAIL = 16
"""Tokens of the strongest trigger that the columns hold: the last ones."""
AT_ONCE, TEXTS_AT_ONCE, PARTS = 2048, 256, 16
"""Cells whose numbers, or texts, are made at once if cells are asked for one by one; and how many such parts are kept."""


@dataclass(frozen=True)
class Column:
    """One measure of every cell."""

    name: str
    form: Form
    title: str
    """a heading of one or two words"""
    means: str
    side: Literal["cell", "key", "value", "people"]
    """what it says something about"""
    make: Callable[[CellColumns, slice], Array | None]
    """its values for a slice of the axis; None if the run lacks what they are made from"""
    lacks: str = ""
    """why a run may lack it, and what to do"""
    names: tuple[str, ...] = ()
    """of the levels, or of the labels"""
    changes: bool = False
    """whether people change it while a run is looked at"""
    there: Callable[[Run, values.Values | None], bool] | None = None
    """whether the run has what the values are made from, if `make` takes long to say so"""

    @property
    def type(self) -> str:
        return TYPES[self.form]


class CellColumns:
    """The columns of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        lenses = values.available(run)
        self.values = values.Values(run, lenses[0]) if lenses else None
        """through the main lens; None if the values were not read"""
        self.columns = {column.name: column for column in every()}
        self._whole: dict[str, Array | None] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self.columns:
            raise UsageError(f"There is no column '{name}'. The columns are: {', '.join(self.columns)}.")
        return self.columns[name]

    def has(self, name: str) -> bool:
        """Whether the run has what the column is made from."""
        column = self[name]
        if column.there is not None:
            return column.there(self.run, self.values)
        return column.make(self, slice(0, 0)) is not None

    def missing(self, name: str) -> str | None:
        """Why no cell of this run has a value in the column; None if the column was computed."""
        return None if self.has(name) else self[name].lacks

    def raw(self, name: str, which: slice) -> Array:
        """The values of a slice of the axis, in the column's `Form`."""
        column = self[name]
        found = column.make(self, which)
        return self._nothing(column, which) if found is None else found

    def array(self, name: str, which: slice) -> Array:
        """The same for reading: tokens, levels and labels as texts and lists of texts."""
        column, raw = self[name], self.raw(name, which)
        if column.form in ("number", "share", "count", "flag", "text"):
            return raw
        return _objects(self._spelled(column, raw))

    def _spelled(self, column: Column, raw: Array) -> list[Any]:
        """Values in the column's `Form` as Python says them: None if there is none."""
        piece, names = self.run.vocabulary.piece, column.names
        found: list[Any] = raw.tolist()
        match column.form:
            case "token":
                return [None if token < 0 else piece(token) for token in found]
            case "tokens":
                return [[piece(token) for token in row if token >= 0] or None for row in found]
            case "level":
                return [None if level < 0 else names[level] for level in found]
            case "labels":
                spelled = {bits: _labels(bits, names) for bits in set(found)}
                return [spelled[bits] for bits in found]
            case "count":
                return [None if number != number else int(number) for number in found]
            case "number" | "share":
                return [number if math.isfinite(number) else None for number in found]
        return found

    def one(self, name: str) -> Callable[[int], Any]:
        """A function that gives the value of the cell at a place: None if there is none. It makes them some at a time, because
        callers go along the axis."""
        column = self[name]
        if not self.has(name):
            return lambda place: None
        size, step = len(self.run.cells), TEXTS_AT_ONCE if column.form == "text" else AT_ONCE
        made: OrderedDict[int, list[Any]] = OrderedDict()

        def value(place: int) -> Any:
            part, at = divmod(place, step)
            found = made.get(part)
            if found is None:
                found = self._spelled(column, self.raw(name, slice(part * step, min(size, (part + 1) * step))))
                made[part] = found
                if len(made) > PARTS:
                    made.popitem(last=False)
            return found[at]

        return value

    def whole(self, name: str, make: Callable[[], Array | None]) -> Array | None:
        """An array over the whole axis, made once."""
        if name not in self._whole:
            self._whole[name] = make()
        return self._whole[name]

    def _nothing(self, column: Column, which: slice) -> Array:
        size = len(range(*which.indices(len(self.run.cells))))
        match column.form:
            case "text":
                return np.full(size, None, object)
            case "tokens":
                return np.full((size, SAID), -1)
            case "token" | "level":
                return np.full(size, -1)
            case "labels" | "flag":
                return np.zeros(size, np.uint32 if column.form == "labels" else bool)
        return np.full(size, np.nan)


def columns(run: Run, names: Sequence[str] | None = None, *, layer: int | str | None = None) -> dict[str, Array]:
    """Measures of every cell as arrays, by name: those asked for, or all that the run has; of one layer, or of all."""
    table = CellColumns(run)
    asked = [name for name in table.columns if table.has(name)] if names is None else names
    which = slice(0, len(run.cells)) if layer is None else run.layer(layer).span
    return {name: table.array(name, which) for name in asked}


# How they are made


def _places(table: CellColumns, which: slice) -> Array:
    return np.arange(*which.indices(len(table.run.cells)))


def _layers(table: CellColumns, which: slice) -> Array:
    return np.searchsorted(table.run.cells.offsets, _places(table, which), side="right") - 1


def _cells(table: CellColumns, which: slice) -> Array:
    found: Array = _places(table, which) - table.run.cells.offsets[_layers(table, which)]
    return found


def _address(table: CellColumns, which: slice) -> Array:
    return _objects([table.run.cells.address(place) for place in _places(table, which).tolist()])


def _expert(table: CellColumns, which: slice) -> Array | None:
    layers = table.run.cells.layers
    if not any(layer.experts for layer in layers):
        return None
    widths = np.array([layer.width if layer.experts else 0 for layer in layers])[_layers(table, which)]
    return np.where(widths > 0, _cells(table, which) // np.maximum(widths, 1), np.nan)


STACKS = ("enc", "dec")


def _stack(table: CellColumns, which: slice) -> Array | None:
    stacks = [STACKS.index(layer.stack) if layer.stack else -1 for layer in table.run.cells.layers]
    return None if max(stacks) < 0 else np.array(stacks)[_layers(table, which)]


def _stat(name: str, table: CellColumns, which: slice) -> Array:
    found: Array = np.asarray(table.run.stats.part(which)[name])
    return found


def _firing(table: CellColumns, which: slice) -> Array | None:
    return shading.firing(table.run, which)


def _active(table: CellColumns, which: slice) -> Array | None:
    return None if table.run.gated else np.asarray(table.run.stats.part(which).active_fraction)


def _orientation(table: CellColumns, which: slice) -> Array:
    return np.asarray(table.run.orientation[which])


def _top(table: CellColumns, which: slice) -> tuple[Array, Array]:
    return table.run.units[which, 0], table.run.positions[which, 0]


def _last(table: CellColumns, which: slice) -> Array:
    return table.run.last_tokens(*_top(table, which))


def _next(table: CellColumns, which: slice) -> Array:
    return table.run.next_tokens(*_top(table, which))


def _trigger(table: CellColumns, which: slice) -> Array:
    run = table.run
    units, positions = _top(table, which)
    filled = np.flatnonzero(units >= 0)
    units, positions = units[filled].astype(np.int64), positions[filled].astype(np.int64)
    run.check_places(units, positions)
    ends = run.unit_offsets[units] + positions + 1
    begins = ends - np.minimum(positions - run.window_start(positions) + 1, TAIL)
    pieces = [run.tokens[begin:end].tolist() for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    found = np.full(len(range(*which.indices(len(run.cells)))), None, object)
    found[filled] = run.vocabulary.texts(pieces)
    return found


def _said(end: str, table: CellColumns, which: slice) -> Array | None:
    if table.values is None:
        return None
    tokens = table.values.top_tokens if end == "top" else table.values.bottom_tokens
    return np.asarray(tokens[which, :SAID])


def _value(name: str, table: CellColumns, which: slice) -> Array | None:
    return None if table.values is None else np.asarray(getattr(table.values, name)[which])


def _rank(table: CellColumns, which: slice) -> Array | None:
    found = _value("ranks", table, which)
    return None if found is None else np.where(found > 0, found, np.nan)


def _agreement(table: CellColumns, which: slice) -> Array | None:
    return None if table.values is None else values.shares(*table.values.hits(which))


def _kinds(table: CellColumns, which: slice) -> Array | None:
    found = kinds.of(table.run)
    return None if found is None else np.asarray(found.labels[which])


def _label(table: CellColumns, which: slice) -> Array | None:
    found = patterns.of(table.run)
    return None if found is None else _objects([found.label(place) for place in _places(table, which).tolist()])


def _annotated(table: CellColumns, which: slice) -> Array:
    marked = {table.run.cells.place(*at): people.KINDS.index(kind) for at, kind in people.kinds(table.run).items()}
    return _put(np.full(len(_places(table, which)), -1), marked, which)


def _starred(table: CellColumns, which: slice) -> Array:
    starred = {place: True for place, marks in collections.read(table.run).items() if marks.starred}
    return _put(np.zeros(len(_places(table, which)), bool), starred, which)


def _tags(table: CellColumns, which: slice) -> Array:
    tags = {place: ", ".join(marks.tags) for place, marks in collections.read(table.run).items() if marks.tags}
    return _put(np.full(len(_places(table, which)), None, object), tags, which)


def _note(table: CellColumns, which: slice) -> Array:
    notes = {place: marks.note for place, marks in collections.read(table.run).items() if marks.note.strip()}
    return _put(np.full(len(_places(table, which)), None, object), notes, which)


def _put(array: Array, marked: dict[int, Any], which: slice) -> Array:
    """Values by place, put where they belong in a slice of the axis."""
    begin = which.start or 0
    for place, value in marked.items():
        if begin <= place < begin + len(array):
            array[place - begin] = value
    return array


def _labels(bits: int, names: Sequence[str]) -> list[str]:
    return [name for bit, name in enumerate(names) if bits >> bit & 1]


def _objects(found: list[Any]) -> Array:
    array = np.empty(len(found), object)
    array[:] = found
    return array


def _measured(measure: CellMeasure, table: CellColumns, which: slice) -> Array | None:
    found = table.whole(measure.name, lambda: measure.measure(table.run, table.values))
    if found is None:
        return None
    part = np.asarray(found[which])
    return np.where(np.isfinite(part), part, -1).astype(np.int64) if measure.kinds else part


# The columns

_READ = "The values were not read yet: keyhole analyze RUN."
COLUMNS = (
    Column("address", "text", "Cell", "the cell's address, as in L12.345", "cell", _address),
    Column("place", "count", "Place", "its row in the run's arrays, from 0", "cell", _places),
    Column("layer", "count", "Layer", "the layer, from 0; counted through both stacks", "cell", _layers),
    Column("cell", "count", "Number", "its number in the layer, from 0; counted through all experts", "cell", _cells),
    Column(
        "stack", "level", "Stack", "the stack of layers", "cell", _stack, "The model has one stack of layers.", STACKS
    ),
    Column("expert", "count", "Expert", "the expert it belongs to", "cell", _expert, "The layers have no experts."),
    Column(
        "orientation",
        "count",
        "Sign",
        "the sign it is read with: −1 only with a gate, if its strongest coefficient is negative",
        "cell",
        _orientation,
    ),
    Column(
        "kinds",
        "labels",
        "Kinds",
        "the kinds of cell it is; a cell has none, one or several, each by a number against a null",
        "cell",
        _kinds,
        "The kinds were not computed yet: keyhole analyze RUN --only kinds.",
        kinds.NAMES,
    ),
    Column(
        "label",
        "text",
        "Pattern",
        "the first pattern of its key: what its triggers have in common, or those of the other side",
        "key",
        _label,
        "Patterns were not looked for yet: keyhole patterns RUN.",
    ),
    Column("dead", "flag", "Dead", "whether the key never fires in the scanned text", "key", partial(_stat, "dead")),
    Column(
        "firing",
        "share",
        "Fires on",
        "share of sampled prefixes with a coefficient above a tenth of the cell's largest",
        "key",
        _firing,
        "How often keys fire was not counted yet: keyhole analyze RUN --only shading.",
    ),
    Column(
        "active",
        "share",
        "Above zero",
        "share of the distinct prefixes with a coefficient above zero, which the paper counts",
        "key",
        _active,
        "With a gate, the sign of a coefficient is a convention, so the share above zero means nothing.",
    ),
    Column(
        "peak",
        "number",
        "Peak",
        "the largest |coefficient| per root mean square: how far it stands out",
        "key",
        partial(_stat, "peak"),
    ),
    Column("max", "number", "Largest m", "the largest coefficient", "key", partial(_stat, "max")),
    Column("min", "number", "Smallest m", "the smallest coefficient", "key", partial(_stat, "min")),
    Column(
        "mean", "number", "Mean m", "mean of the coefficients over the distinct prefixes", "key", partial(_stat, "mean")
    ),
    Column("std", "number", "Std of m", "standard deviation of the coefficients", "key", partial(_stat, "std")),
    Column("rms", "number", "RMS of m", "root mean square of the coefficients", "key", partial(_stat, "rms")),
    Column(
        "trigger",
        "text",
        "Top trigger",
        f"the end of the prefix that fires the key most: its last {TAIL} tokens, as text",
        "key",
        _trigger,
    ),
    Column("last_token", "token", "Last token", "the last token of the top trigger", "key", _last),
    Column("next_token", "token", "Then", "the token that follows the top trigger in the text", "key", _next),
    Column(
        "promoted",
        "tokens",
        "Value promotes",
        f"the {SAID} tokens that the value promotes most, the first first",
        "value",
        partial(_said, "top"),
        _READ,
    ),
    Column(
        "demoted",
        "tokens",
        "Value demotes",
        f"the {SAID} tokens that the value demotes most, the last first",
        "value",
        partial(_said, "bottom"),
        _READ,
    ),
    Column(
        "agreement",
        "share",
        "Agreement",
        "share of its triggers that are followed by the value's top token, of those that something follows",
        "value",
        _agreement,
        _READ,
    ),
    Column(
        "rank",
        "count",
        "Rank",
        "rank of the top trigger's next token among the value's tokens, from 1",
        "value",
        _rank,
        _READ,
    ),
    Column(
        "max_prob",
        "share",
        "Max p",
        "the largest probability of the value's distribution, at the strength it has at the top trigger",
        "value",
        partial(_value, "max_prob"),
        _READ,
    ),
    Column(
        "entropy",
        "number",
        "Entropy",
        "entropy of that distribution, in nats",
        "value",
        partial(_value, "entropy"),
        _READ,
    ),
    Column("norm", "number", "Norm", "the length of the value, ‖v‖", "value", partial(_value, "norms"), _READ),
    Column(
        "annotated",
        "level",
        "Annotated",
        "the kind of the patterns that people found in its triggers; nothing if no one annotated it",
        "people",
        _annotated,
        names=people.KINDS,
        changes=True,
    ),
    Column("starred", "flag", "Starred", "whether it has a star", "people", _starred, changes=True),
    Column("tags", "text", "Tags", "its tags, with commas between them", "people", _tags, changes=True),
    Column("note", "text", "Note", "the note on it", "people", _note, changes=True),
)
"""The columns, in order. After them come the measures of the analyses that are none of these."""
SAME = {"activity": "active", "kind": "kinds"}
"""Measures of the analyses that are columns under another name."""
MADE_BY = {"patterns": "keyhole patterns RUN"}
"""What makes the measures of an analysis, if it is not `analyze`."""


def every() -> Iterator[Column]:
    """Every column that a cell can have."""
    yield from COLUMNS
    known = {column.name for column in COLUMNS} | set(SAME)
    for analysis in registry.analyses():
        for measure in analysis.measures:
            if measure.name not in known:
                form: Form = "level" if measure.kinds else "share" if measure.format == "percent" else "number"
                yield Column(
                    measure.name,
                    form,
                    measure.name.replace("_", " ").capitalize(),
                    measure.title,
                    measure.side,
                    partial(_measured, measure),
                    f"The analysis was not run yet: {MADE_BY.get(analysis.name, f'keyhole analyze RUN --only {analysis.name}')}.",
                    measure.kinds,
                    there=measure.there,
                )
