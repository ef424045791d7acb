"""A finished run, opened: cells, their triggers, the statistics. Reads files only; no model is needed."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.output import printable
from ..errors import RunDamaged, RunError, UsageError
from . import layout as store
from . import manifest
from .vocabulary import Vocabulary

SAFE_SUM = 2.0**62
"""A sum of coefficients or of their squares below this fits its 64 bits, with half of them to spare for rounding."""
_ADDRESS = re.compile(r"L([0-9]{1,18})\.([0-9]{1,18})")


def parse_address(address: str) -> tuple[int, int]:
    """`L12.345` → (12, 345)."""
    if not isinstance(address, str) or not (match := _ADDRESS.fullmatch(address.strip())):
        raise UsageError(
            f"'{str(address)[:60]}' is no cell address. A cell is written L12.345: layer 12, cell 345, both from 0."
        )
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Stats:
    """Statistics of coefficients over the distinct prefixes of the corpus; arrays [layers, cells], or one cell's numbers."""

    n: Any
    """distinct prefixes"""
    active: Any
    """of those, how many have a coefficient above zero"""
    mean: Any
    std: Any
    max: Any
    min: Any

    @property
    def active_fraction(self) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):  # a shard without a prefix has none
            return np.divide(self.active, self.n)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def moments(
    sums: npt.NDArray[np.int64], extremes: npt.NDArray[np.float32], n: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of `n` coefficients from their sums [..., (Σm, Σm²), (whole, fraction)] and extremes
    [..., (largest, smallest)].

    NaN if n is 0, or if a sum may have overflowed 64 bits; the exact extremes bound both sums.
    They bound both results too, however the sums were rounded: with the range r = largest − smallest, the standard
    deviation lies between r/√(2n) and r/2.
    """
    total, squares = (sums[..., i, 0] + sums[..., i, 1] * 2.0**-52 for i in (0, 1))
    high, low = (extremes[..., i].astype(np.float64) for i in (0, 1))
    largest = np.maximum(np.abs(high), np.abs(low))
    if not n:
        return np.full_like(high, np.nan), np.full_like(high, np.nan)
    mean = np.where(n * largest < SAFE_SUM, np.clip(total / n, low, high), np.nan)
    variance = np.where(n * largest**2 < SAFE_SUM, np.maximum(squares / n - mean**2, 0), np.nan)
    return mean, np.clip(np.sqrt(variance), (high - low) / np.sqrt(2 * n), (high - low) / 2)


@dataclass(frozen=True)
class Trigger:
    """A prefix that makes a key fire."""

    coefficient: float
    unit: int
    """units of the corpus counted from 0, repeated ones included"""
    position: int
    """index of the prefix's last token among its unit's own tokens"""
    tokens: list[str]
    """the prefix, token by token, readable"""
    prefix: str
    """the prefix as text"""
    next_token: str | None
    """what follows in the corpus; None behind a unit's last token"""
    count: int
    """how often this very prefix occurs in the corpus"""
    ids: list[int]
    """the prefix's token ids"""
    next_id: int | None


@dataclass(frozen=True)
class Cell:
    """A memory cell: layer and index from 0."""

    run: Run
    layer: int
    index: int

    @property
    def address(self) -> str:
        return f"L{self.layer}.{self.index}"

    @property
    def triggers(self) -> list[Trigger]:
        """The prefixes with the largest coefficients, strongest first."""
        return self.run.triggers(self.layer, self.index)

    @property
    def triggers_negative(self) -> list[Trigger]:
        """The prefixes with the most negative coefficients; none where the activation forbids them."""
        return self.run.triggers(self.layer, self.index, negative=True)

    @property
    def stats(self) -> Stats:
        stats = self.run.stats
        at = (self.layer, self.index)
        return Stats(
            n=int(stats.n[at]),
            active=int(stats.active[at]),
            mean=float(stats.mean[at]),
            std=float(stats.std[at]),
            max=float(stats.max[at]),
            min=float(stats.min[at]),
        )

    @property
    def dead(self) -> bool:
        """Whether the key never fired: no coefficient above zero in the whole corpus."""
        return bool(self.stats.active == 0)

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
    """A layer: its cells by their index, from 0."""

    run: Run
    index: int

    def __len__(self) -> int:
        return self.run.cells

    def __getitem__(self, cell: int) -> Cell:
        return self.run.cell(self.index, cell)

    def __iter__(self) -> Iterator[Cell]:
        return (self[cell] for cell in range(len(self)))

    def chart(self) -> Any:
        """How often and how strongly its keys fire, as an Altair chart."""
        from ..views.notebook import layer_chart

        return layer_chart(self)

    def __repr__(self) -> str:
        return printable(f"<keyhole.Layer {self.index} of {self.run.path}: {self.run.cells} cells>")

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
        self.layers, self.cells, self.signed = int(model["layers"]), int(model["cells"]), bool(model["signed"])
        self.top, self.context = int(self.manifest["config"]["top"]), int(self.manifest["config"]["context"])

    def _array(self, name: str) -> npt.NDArray[Any]:
        """An array of the scan, mapped when it is first asked for. A run that replaced this one meanwhile is not mixed with it."""
        if name not in self._arrays:
            array = store.load_array(self.path, name)
            if manifest.read(self.path)["checksum"] != self.manifest["checksum"]:
                raise RunError(f"Another run is at {self.path} now. Open it again.")
            self._arrays[name] = array
        return self._arrays[name]

    # What was found, as arrays [layers, cells, top]

    @cached_property
    def coefficients(self) -> npt.NDArray[np.float32]:
        """Largest coefficients of every cell, strongest first; NaN where unfilled."""
        return self._array("coefficients")

    @cached_property
    def units(self) -> npt.NDArray[np.int32]:
        """The units they stand in; −1 where unfilled."""
        return self._array("units")

    @cached_property
    def positions(self) -> npt.NDArray[np.int32]:
        """The positions of their prefixes' last tokens; −1 where unfilled."""
        return self._array("positions")

    @cached_property
    def coefficients_negative(self) -> npt.NDArray[np.float32]:
        """The other side: most negative coefficients first. All unfilled where the activation forbids them."""
        return self._array("coefficients_negative") if self.signed else self._empty(np.nan, np.float32)

    @cached_property
    def units_negative(self) -> npt.NDArray[np.int32]:
        return self._array("units_negative") if self.signed else self._empty(-1, np.int32)

    @cached_property
    def positions_negative(self) -> npt.NDArray[np.int32]:
        return self._array("positions_negative") if self.signed else self._empty(-1, np.int32)

    def _empty(self, value: float, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.broadcast_to(np.array(value, dtype), (self.layers, self.cells, self.top))

    @cached_property
    def stats(self) -> Stats:
        """Per cell: n, active (m > 0), mean, std, max, min."""
        n = int(self.manifest["corpus"]["scanned_prefixes"])
        sums, extremes = self._array("sums"), np.asarray(self._array("extremes"))
        mean, std = moments(sums, extremes, n)
        return Stats(
            n=np.full((self.layers, self.cells), n),
            active=np.asarray(self._array("active")),
            mean=mean,
            std=std,
            max=extremes[:, :, 0],
            min=extremes[:, :, 1],
        )

    @property
    def dead(self) -> list[str]:
        """Addresses of the cells whose keys never fired."""
        return [f"L{layer}.{cell}" for layer, cell in np.argwhere(self.stats.active == 0)]

    # Cells

    def cell(self, layer: int, index: int) -> Cell:
        try:
            layer, index = operator.index(layer), operator.index(index)
        except TypeError:
            raise UsageError(
                f"A cell is named by two whole numbers, layer and cell, not {layer!r:.40}, {index!r:.40}."
            ) from None
        if not (0 <= layer < self.layers and 0 <= index < self.cells):
            raise UsageError(
                f"There is no cell L{layer}.{index}: the model has layers 0 to {self.layers - 1} "
                f"of cells 0 to {self.cells - 1}."
            )
        return Cell(self, layer, index)

    def __getitem__(self, address: str) -> Cell:
        return self.cell(*parse_address(address))

    def layer(self, index: int) -> Layer:
        try:
            index = operator.index(index)
        except TypeError:
            raise UsageError(f"A layer is named by a whole number, not {index!r:.40}.") from None
        if not 0 <= index < self.layers:
            raise UsageError(f"There is no layer {index}: the model has layers 0 to {self.layers - 1}.")
        return Layer(self, index)

    def triggers(self, layer: int, index: int, *, negative: bool = False) -> list[Trigger]:
        side = "_negative" if negative else ""
        coefficients, units, positions = (getattr(self, name + side)[layer, index] for name in store.TRIGGERS)
        filled = int(np.count_nonzero(units >= 0))
        self.check_places(units[:filled], positions[:filled])
        return [self._trigger(float(coefficients[i]), int(units[i]), int(positions[i])) for i in range(filled)]

    def _trigger(self, coefficient: float, unit: int, position: int) -> Trigger:
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
        name = store.tokenizer_file(self.path).name
        if why := store.problem(self.path, name, [self.manifest["files"][name]], True):
            raise RunDamaged(f"{self.path} was damaged or replaced since it was opened: {why}. Open it again.")
        return Vocabulary(store.tokenizer_file(self.path))

    @cached_property
    def _corpus(self) -> dict[str, npt.NDArray[Any]]:
        return {name: self._array(name) for name in store.CORPUS}

    def unit_tokens(self, unit: int) -> npt.NDArray[Any]:
        """The token ids of a unit of the corpus."""
        begin, end = self._corpus["unit_offsets"][unit : unit + 2]
        return self._corpus["tokens"][begin:end]

    @property
    def tokens(self) -> npt.NDArray[Any]:
        """The corpus, unit after unit."""
        return self._corpus["tokens"]

    @property
    def unit_offsets(self) -> npt.NDArray[np.int64]:
        """[units + 1] where each unit begins in the corpus' tokens."""
        return self._corpus["unit_offsets"]

    def unit_source(self, unit: int) -> tuple[int, int]:
        """The document a unit stands in, and where in its text it starts."""
        return int(self._corpus["unit_documents"][unit]), int(self._corpus["unit_starts"][unit])

    @property
    def room(self) -> int:
        """How many of a unit's own tokens one window holds."""
        return self.context - int(self.manifest["config"]["starts"])

    def window_start(self, position: int) -> int:
        """Where the window of a position starts: 0, unless the unit is longer than the context."""
        return position // self.room * self.room

    def check_places(self, units: npt.NDArray[Any], positions: npt.NDArray[Any]) -> None:
        """Refuse places of triggers that are not in the corpus; a large run is not checked as a whole when it is opened."""
        count, offsets = len(self.unit_offsets) - 1, self.unit_offsets
        if units.size and not (units.min() >= 0 and units.max() < count):
            raise RunDamaged(
                f"{self.path} is damaged: a trigger is in a unit that is not there. Check it: keyhole verify"
            )
        ends = offsets[units.astype(np.int64) + 1] - offsets[units]
        if ((positions < 0) | (positions >= ends)).any():
            raise RunDamaged(f"{self.path} is damaged: a trigger is outside its unit. Check it: keyhole verify")

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
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def __repr__(self) -> str:
        source = self.manifest["model"]["source"]
        return printable(f"<keyhole.Run {self.path}: {source}, {self.layers} layers × {self.cells} cells>")
