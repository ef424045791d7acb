"""A finished run, opened: its cells, their triggers, their statistics. This only reads files: no model is needed."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..cells import Cells
from ..common.output import printable
from ..errors import RunDamaged, RunError, UsageError
from . import layout, manifest
from .control import control_of
from .stats import Stats as Stats
from .stats import moments, with_unrouted
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .collections import Marks
    from .values import Said, Similar, Values

Ints = npt.NDArray[np.int64]
Position = TypeVar("Position", int, npt.NDArray[np.int64])


class Side(NamedTuple):
    """The triggers of all cells with positive coefficients, or of all with negative ones; arrays [cells, top]."""

    coefficients: npt.NDArray[np.float32]
    units: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]

    def part(self, which: slice | npt.NDArray[Any]) -> Side:
        """The triggers of some cells, as views of these if `which` is a slice."""
        return Side(self.coefficients[which], self.units[which], self.positions[which])


@dataclass(frozen=True)
class Trigger:
    """A prefix that makes a key fire."""

    coefficient: float
    unit: int
    """the number of its unit in the corpus, from 0; repeated units are counted"""
    position: int
    """the index of the prefix's last token in the unit"""
    tokens: list[str]
    """the prefix as readable tokens"""
    prefix: str
    """the prefix as text"""
    next_token: str | None
    """the token that follows in the corpus; None at the end of a unit"""
    count: int
    """how often this prefix occurs in the corpus"""
    ids: list[int]
    """the prefix's token ids"""
    next_id: int | None


@dataclass(frozen=True)
class Cell:
    """A memory cell: layer and index from 0."""

    run: Run
    layer: int
    index: int
    """its number in the layer; cells of experts are counted through the layer"""

    @property
    def place(self) -> int:
        """Where it is on the axis of cells, which is the first axis of the run's arrays."""
        return self.run.cells.place(self.layer, self.index)

    @property
    def address(self) -> str:
        return self.run.cells.address(self.place)

    @property
    def triggers(self) -> list[Trigger]:
        """The prefixes with the largest coefficients (in the cell's orientation), strongest first."""
        return self.run.triggers(self.layer, self.index)

    @property
    def triggers_negative(self) -> list[Trigger]:
        """The prefixes of the other side, with the most negative coefficients; empty if the activation forbids negative ones."""
        return self.run.triggers(self.layer, self.index, negative=True)

    @property
    def stats(self) -> Stats:
        stats, at = self.run.stats, self.place
        return Stats(**{field.name: getattr(stats, field.name)[at].item() for field in fields(stats)})

    @property
    def dead(self) -> bool:
        """Whether the key never fired in the whole corpus: no coefficient above zero or, with a gate, different from zero."""
        return bool(self.stats.dead)

    @property
    def orientation(self) -> int:
        """The sign it is read with: its triggers are where sign · coefficient is above zero, its value is read as sign · v. It is
        −1 only if the layer has a gate, see `Run.orientation`."""
        return int(self.run.orientation[self.place])

    @property
    def _marks(self) -> Marks:
        from .collections import Marks, read

        return read(self.run).get(self.place, Marks())

    @property
    def starred(self) -> bool:
        return self._marks.starred

    @property
    def tags(self) -> tuple[str, ...]:
        return self._marks.tags

    @property
    def note(self) -> str:
        """What people noted on it; empty if they noted nothing."""
        return self._marks.note

    def mark(self, *, star: bool | None = None, tags: Iterable[str] | None = None, note: str | None = None) -> None:
        """Save a star, tags (all that it shall have) or a note in the run; what is None stays as it is. Collections show it."""
        from .collections import save

        given = {"starred": star, "tags": tags if tags is None or isinstance(tags, str) else list(tags), "note": note}
        save(self.run, self.place, {name: value for name, value in given.items() if value is not None})

    # What its value says, through the main lens. An error says how to read the values if they are not read yet

    @property
    def promoted(self) -> list[Said]:
        """The tokens its value promotes most, largest logit first."""
        return self._values().promoted(self.layer, self.index)

    @property
    def demoted(self) -> list[Said]:
        """The tokens its value demotes most, smallest logit first."""
        return self._values().demoted(self.layer, self.index)

    def _values(self) -> Values:
        from . import values

        return values.Values(self.run, next(iter(values.available(self.run)), values.LENSES[0]))

    @property
    def similar(self) -> list[Similar]:
        """The cells with the most similar values, with their cosines, most similar first."""
        from . import values

        if (arrays := values.similar_arrays(self.run)) is None:
            path = self.run.path
            raise RunError(f"{path} does not hold its similar values yet. Find them: keyhole analyze {path}")
        return values.similar_at(self.run, arrays, self.place)

    def chart(self) -> Any:
        """The histogram of its coefficients, as an Altair chart."""
        from ..views.notebook import cell_chart

        return cell_chart(self)

    def __repr__(self) -> str:
        return printable(f"<keyhole.Cell {self.address} of {self.run.path}>")

    def _repr_html_(self) -> str:
        from ..views.notebook import cell

        return cell(self)


@dataclass(frozen=True)
class Layer:
    """A layer: `layer[5]` is its cell 5. Its arrays are views of the run's."""

    run: Run
    index: int

    @property
    def name(self) -> str:
        return self.run.cells.layers[self.index].name

    @property
    def span(self) -> slice:
        """The places of its cells: `array[layer.span]` is the layer's part of an array of the run."""
        return self.run.cells.span(self.index)

    @property
    def coefficients(self) -> npt.NDArray[np.float32]:
        """[cells, top]"""
        return self.run.coefficients[self.span]

    @property
    def units(self) -> npt.NDArray[np.int32]:
        return self.run.units[self.span]

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        return self.run.positions[self.span]

    @property
    def coefficients_negative(self) -> npt.NDArray[np.float32]:
        return self.run.coefficients_negative[self.span]

    @property
    def units_negative(self) -> npt.NDArray[np.int32]:
        return self.run.units_negative[self.span]

    @property
    def positions_negative(self) -> npt.NDArray[np.int32]:
        return self.run.positions_negative[self.span]

    @property
    def stats(self) -> Stats:
        return self.run.stats.part(self.span)

    def __len__(self) -> int:
        return self.run.cells.size(self.index)

    def __getitem__(self, cell: int) -> Cell:
        return self.run.cell(self.index, cell)

    def __iter__(self) -> Iterator[Cell]:
        return (self[cell] for cell in range(len(self)))

    def chart(self) -> Any:
        """How often and how strongly its keys fire, as an Altair chart."""
        from ..views.notebook import layer_chart

        return layer_chart(self)

    def __repr__(self) -> str:
        return printable(f"<keyhole.Layer {self.index} of {self.run.path}: {len(self)} cells>")

    def _repr_html_(self) -> str:
        from ..views.notebook import layer

        return layer(self)


class Run:
    """A finished scan. Made by `keyhole.scan`, opened again by `keyhole.open`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = manifest.open_run(self.path)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        model = self.manifest["model"]
        self.cells = Cells.from_json(model["cells"])
        """the axis of cells: the first axis of the arrays below"""
        self.layers, self.signed = len(self.cells.layers), bool(model["signed"])
        self.gated = bool(model["gated"])
        """whether the feed-forward layers have a gate: a cell is then read with the sign of its strongest coefficient"""
        self.top, self.context = int(self.manifest["config"]["top"]), int(self.manifest["config"]["context"])

    def array(self, name: str) -> npt.NDArray[Any]:
        """An array of the scan by its name, memory-mapped at the first call. If another run replaced this one on disk since it was
        opened, this is an error: arrays of two runs are never mixed."""
        if name not in self._arrays:
            array = layout.load_array(self.path, name)
            if manifest.read_manifest(self.path)["checksum"] != self.manifest["checksum"]:
                raise RunError(f"Another run is at {self.path} now. Open it again.")
            self._arrays[name] = array
        return self._arrays[name]

    @cached_property
    def orientation(self) -> npt.NDArray[np.int8]:
        """[cells] the sign a cell is read with: 1, or −1 if the layer has a gate and the cell's strongest coefficient is negative.
        The arrays below and everything made of them are in that sign; the model's own numbers must be multiplied by it. One
        shard of a scan keeps the model's own signs: the orientation is decided by the whole corpus."""
        return self.array(layout.ORIENTATION) if self.gated else np.ones(len(self.cells), np.int8)

    # What was found, as arrays [cells, top]

    @cached_property
    def coefficients(self) -> npt.NDArray[np.float32]:
        """The largest coefficients of every cell, largest first; NaN in unfilled slots."""
        return self.array("coefficients")

    @cached_property
    def units(self) -> npt.NDArray[np.int32]:
        """The units of these triggers; −1 in unfilled slots."""
        return self.array("units")

    @cached_property
    def positions(self) -> npt.NDArray[np.int32]:
        """The positions of these triggers' last tokens in their units; −1 in unfilled slots."""
        return self.array("positions")

    @cached_property
    def coefficients_negative(self) -> npt.NDArray[np.float32]:
        """The most negative coefficients of every cell, most negative first. All unfilled if the activation forbids them."""
        return self._negative(0, np.nan, np.float32)

    @cached_property
    def units_negative(self) -> npt.NDArray[np.int32]:
        return self._negative(1, -1, np.int32)

    @cached_property
    def positions_negative(self) -> npt.NDArray[np.int32]:
        return self._negative(2, -1, np.int32)

    def _negative(self, which: int, unfilled: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """One of the negative side's arrays, as `side_names` lists them; without files all of its slots are unfilled."""
        if self.signed:
            return self.array(layout.side_names(True)[which])
        return np.broadcast_to(np.array(unfilled, dtype), (len(self.cells), self.top))

    def side(self, negative: bool = False) -> Side:
        """The triggers of one side. The negative one is unfilled if the activation forbids negative coefficients."""
        return Side(*(getattr(self, name) for name in layout.side_names(negative)))

    @property
    def sides(self) -> dict[bool, Side]:
        """The sides that the run has files of; the key is whether it is the negative side."""
        return {negative: self.side(negative) for negative in layout.sides(self.signed)}

    @cached_property
    def stats(self) -> Stats:
        """The statistics of all cells; arrays [cells]."""
        n = int(self.manifest["corpus"]["scanned_prefixes"])
        sums, extremes = self.array("sums"), np.asarray(self.array("extremes"))
        if n:
            extremes = with_unrouted(extremes, self.cells)
        mean, std = moments(sums, extremes, n)
        high, low, active = extremes[:, 0], extremes[:, 1], np.asarray(self.array("active"))
        dead = active == 0
        if self.gated:
            dead, active = ~((high > 0) | (low < 0)), np.full(len(self.cells), np.nan)
        return Stats(np.full(len(self.cells), n), active, mean, std, max=high, min=low, dead=dead)

    @property
    def dead(self) -> list[str]:
        """Addresses of the cells whose keys never fired."""
        return [self.cells.address(int(place)) for place in np.flatnonzero(self.stats.dead)]

    # Cells

    def cell(self, layer: int, index: int) -> Cell:
        try:
            layer, index = operator.index(layer), operator.index(index)
        except TypeError:
            raise UsageError(
                f"A cell is named by two whole numbers, layer and cell, not {layer!r:.40}, {index!r:.40}."
            ) from None
        self.cells.place(layer, index)
        return Cell(self, layer, index)

    @overload
    def __getitem__(self, address: str) -> Cell: ...

    @overload
    def __getitem__(self, address: int) -> Layer: ...

    @overload
    def __getitem__(self, address: tuple[int, int]) -> Cell: ...

    def __getitem__(self, address: str | int | tuple[int, int]) -> Cell | Layer:
        """The cell at an address: `run["L12.345"]`, `run["12/345"]`, `run[12, 345]`. A number alone is a layer: `run[12][345]`."""
        if isinstance(address, str):
            return Cell(self, *self.cells.split(self.cells.find(address)))
        if isinstance(address, tuple) and len(address) == 2:
            return self.cell(*address)
        return self.layer(address)  # what is no layer is refused there, with its value

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(layer) for layer in range(self.layers))

    def __len__(self) -> int:
        return self.layers

    def layer(self, index: int | str) -> Layer:
        """A layer, by its number or by its name: `run.layer(12)`, `run.layer("L12")`."""
        return Layer(self, self.cells.find_layer(index))

    def triggers(self, layer: int, index: int, *, negative: bool = False) -> list[Trigger]:
        """The triggers of a cell, strongest first."""
        place = self.cells.place(layer, index)
        coefficients, units, positions = (array[place] for array in self.side(negative))
        filled = int(np.count_nonzero(units >= 0))
        self.check_places(units[:filled], positions[:filled])
        return [self.trigger(float(coefficients[i]), int(units[i]), int(positions[i])) for i in range(filled)]

    def trigger(self, coefficient: float, unit: int, position: int) -> Trigger:
        """A prefix of the corpus by its place, with what a trigger has."""
        ids = self.unit_tokens(unit)
        prefix = [int(i) for i in ids[self.window_start(position) : position + 1]]
        next_id = int(ids[position + 1]) if position + 1 < len(ids) else None
        return Trigger(
            coefficient=coefficient,
            unit=unit,
            position=position,
            tokens=[self.vocabulary.piece(i) for i in prefix],
            prefix=self.vocabulary.text(prefix),
            next_token=None if next_id is None else self.vocabulary.piece(next_id),
            count=int(self.counts(np.array([unit]), np.array([position]))[0]),
            ids=prefix,
            next_id=next_id,
        )

    # The text

    @cached_property
    def vocabulary(self) -> Vocabulary:
        name = layout.tokenizer_file(self.path).name
        if why := layout.problem(self.path, name, [self.manifest["files"][name]], True):
            raise RunDamaged(f"{self.path} was damaged or replaced since it was opened: {why}. Open it again.")
        return Vocabulary(layout.tokenizer_file(self.path))

    @cached_property
    def _corpus(self) -> dict[str, npt.NDArray[Any]]:
        return {name: self.array(name) for name in layout.CORPUS}

    def unit_tokens(self, unit: int) -> npt.NDArray[Any]:
        """The token ids of a unit of the corpus."""
        begin, end = self._corpus["unit_offsets"][unit : unit + 2]
        return self._corpus["tokens"][begin:end]

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """The token ids of the corpus, unit after unit."""
        return self._corpus["tokens"]

    @property
    def unit_offsets(self) -> npt.NDArray[np.int64]:
        """[units + 1] where each unit begins in `tokens`."""
        return self._corpus["unit_offsets"]

    @property
    def unit_documents(self) -> npt.NDArray[np.int32]:
        """[units] the number of each unit's document, ascending."""
        return self._corpus["unit_documents"]

    def unit_source(self, unit: int) -> tuple[int, int]:
        """The number of a unit's document, and the character at which the unit starts there."""
        return int(self._corpus["unit_documents"][unit]), int(self._corpus["unit_starts"][unit])

    @property
    def room(self) -> int:
        """How many tokens of a unit fit in one window: the context without special tokens."""
        return self.context - int(self.manifest["config"]["n_special"])

    def window_start(self, position: Position) -> Position:
        """Where the window that holds a position starts. A unit that is longer than a window is cut into several."""
        return position // self.room * self.room

    def check_places(self, units: npt.NDArray[Any], positions: npt.NDArray[Any]) -> None:
        """Refuse triggers that are not in the corpus. Needed before they are read: of a large run, `open` does not check all."""
        count, offsets = len(self.unit_offsets) - 1, self.unit_offsets
        if units.size and not (units.min() >= 0 and units.max() < count):
            raise RunDamaged(
                f"{self.path} is damaged: a trigger is in a unit that is not there. Check it: keyhole verify"
            )
        ends = offsets[units.astype(np.int64) + 1] - offsets[units]
        if ((positions < 0) | (positions >= ends)).any():
            raise RunDamaged(f"{self.path} is damaged: a trigger is outside its unit. Check it: keyhole verify")

    def next_tokens(self, units: npt.NDArray[Any], positions: npt.NDArray[Any]) -> Ints:
        """The token that follows each trigger in the corpus; −1 where there is no trigger (unit −1) or nothing follows it."""
        return self._tokens_at(units, positions, 1)

    def last_tokens(self, units: npt.NDArray[Any], positions: npt.NDArray[Any]) -> Ints:
        """The last token of each trigger; −1 where there is no trigger."""
        return self._tokens_at(units, positions, 0)

    def _tokens_at(self, units: npt.NDArray[Any], positions: npt.NDArray[Any], after: int) -> Ints:
        units, positions, offsets = np.asarray(units), np.asarray(positions), self.unit_offsets
        filled = units >= 0
        self.check_places(units[filled], positions[filled])
        begin = np.maximum(units, 0).astype(np.int64)
        place = offsets[begin] + positions + after
        known = filled & (place < offsets[begin + 1])
        found = np.full(units.shape, -1, np.int64)
        found[known] = self.tokens[place[known]]
        return found

    def counts(self, units: npt.NDArray[Any], positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """How often each of these prefixes occurs in the corpus."""
        tokens = self.unit_offsets[units] + positions
        repeated, counts = self._corpus["repeated_tokens"], self._corpus["repeated_counts"]
        found = np.ones(len(tokens), np.int64)
        if len(repeated):
            at = np.minimum(np.searchsorted(repeated, tokens), len(repeated) - 1)
            again = repeated[at] == tokens
            found[again] = counts[at[again]]
        return found

    def table(self, name: str) -> list[dict[str, Any]]:
        """A table an analysis filled, as rows."""
        from . import tables

        return tables.read_table(self.path, name)

    @property
    def model_name(self) -> str:
        """The model's name, and which control it is if it is one. Of an absolute path only the last part: the folder means
        nothing elsewhere."""
        source, control = str(self.manifest["model"]["source"]), control_of(self.manifest)
        name = os.path.basename(os.path.normpath(source)) if os.path.isabs(source) else source
        return f"{name} with {control.title}" if control else name

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def __repr__(self) -> str:
        return printable(f"<keyhole.Run {self.path}: {self.model_name}, {self.cells.summary}>")

    def _repr_html_(self) -> str:
        from ..views.notebook import run

        return run(self)
