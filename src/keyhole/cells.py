"""The axis of cells: every memory cell of a model has one place on it.

Cells lie layer by layer; in a layer with experts, expert by expert. Layers may differ in width. Arrays of a run have this
axis first, `[cells, …]`, and a layer's part of an array is a view of it. This file and `web/static/cells.js` are the only ones
that turn an address into a place or back: nothing else multiplies a layer by a width.

An address names a cell: `L12.345`; with experts `L12.E7.345`; with two stacks `enc.L3.17` and `dec.L3.17`. A reader may leave
out the letter L, write a slash for a dot, and use any case: `12.345`, `12/345`, `l12/345`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UsageError

MOST = 1 << 40
"""Upper bound on the cells of a model. A manifest with more is refused."""

ADDRESS = re.compile(r"(?:(enc|dec)\.)?L?([0-9]{1,18})(?:\.E([0-9]{1,18}))?\.([0-9]{1,18})")
LAYER = re.compile(r"(?:(enc|dec)\.)?L?([0-9]{1,18})")
_TYPED = re.compile(
    r"(?:(enc|dec)[./])?L?([0-9]{1,18})(?:[./]E([0-9]{1,18}))?[./]([0-9]{1,18})", re.IGNORECASE | re.ASCII
)
_TYPED_LAYER = re.compile(r"(?:(enc|dec)[./])?L?([0-9]{1,18})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Layer:
    """One feed-forward layer."""

    width: int
    """cells of the layer, or of each of its experts"""
    experts: int = 0
    """0: the layer has no experts"""
    stack: str = ""
    """`enc` or `dec` in a model with two stacks of layers"""
    number: int = 0
    """the layer's number in its stack"""

    @property
    def name(self) -> str:
        return f"{self.stack}.L{self.number}" if self.stack else f"L{self.number}"

    @property
    def size(self) -> int:
        """Cells of the layer, all experts included."""
        return self.width * max(self.experts, 1)


class Cells:
    """The cells of a model on one axis. Layers are counted through all stacks: `span(3)` is the fourth layer of the model."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = tuple(layers)
        """what each layer is, in the order of the axis"""
        self.offsets: npt.NDArray[np.int64] = np.cumsum([0, *(layer.size for layer in self.layers)], dtype=np.int64)
        """[layers + 1] where each layer begins"""

    @staticmethod
    def of_widths(widths: Sequence[int]) -> Cells:
        """One stack of layers without experts."""
        return Cells(Layer(int(width), number=number) for number, width in enumerate(widths))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cells) and self.layers == other.layers

    def __hash__(self) -> int:
        return hash(self.layers)

    def __repr__(self) -> str:
        return f"<Cells: {self.summary}>"

    @property
    def summary(self) -> str:
        """`16 layers × 4,096 cells`, or the range of widths if the layers differ."""
        sizes = {layer.size for layer in self.layers}
        if len(sizes) == 1:
            return f"{len(self.layers)} layers × {sizes.pop():,} cells"
        return f"{len(self.layers)} layers × {min(sizes):,} to {max(sizes):,} cells"

    # Layers

    def size(self, layer: int) -> int:
        """How many cells a layer has."""
        return self.layers[layer].size

    @property
    def sizes(self) -> int | list[int]:
        """Cells per layer: one number if it is the same for all layers, else a list."""
        found = [layer.size for layer in self.layers]
        return found[0] if len(set(found)) == 1 else found

    def span(self, layer: int) -> slice:
        """The places of a layer's cells."""
        return slice(int(self.offsets[layer]), int(self.offsets[layer + 1]))

    def site(self, layer: int, expert: int = 0) -> slice:
        """The places of one expert's cells; without experts, those of the whole layer."""
        there = self.layers[layer]
        begin = int(self.offsets[layer]) + expert * there.width
        return slice(begin, begin + there.width)

    @cached_property
    def sites(self) -> tuple[slice, ...]:
        """The places of every site's cells, in the order of the axis: one site per layer, or per expert of a layer."""
        return tuple(
            self.site(layer, expert)
            for layer, there in enumerate(self.layers)
            for expert in range(max(there.experts, 1))
        )

    def site_name(self, site: int) -> str:
        """`Layer 12`, or `Layer 12, expert 7`; for messages."""
        layer, index = self.split(self.sites[site].start)
        there = self.layers[layer]
        name = f"Layer {there.name if there.stack else there.number}"
        return f"{name}, expert {index // there.width}" if there.experts else name

    def by_layer(self, array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """An array [cells, …] as one view per layer."""
        return [array[self.span(layer)] for layer in range(len(self.layers))]

    # Places

    def has(self, layer: int, index: int) -> bool:
        """Whether there is such a cell."""
        return 0 <= layer < len(self.layers) and 0 <= index < self.size(layer)

    def place(self, layer: int, index: int) -> int:
        """The place of a layer's cell; cells of experts are counted through the layer."""
        if not self.has(layer, index):
            raise UsageError(f"There is no cell {plain_address(layer, index)}: {self.extent(layer)}.")
        return int(self.offsets[layer]) + index

    def places(self, layer: int, indices: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """`place` of many cells of a layer. They are not checked."""
        found: npt.NDArray[np.int64] = self.offsets[layer] + indices
        return found

    def split(self, place: int) -> tuple[int, int]:
        """The layer of a place, and the cell's number in that layer."""
        if not 0 <= place < len(self):
            raise UsageError(f"There is no cell at place {place}: the model has {len(self):,} cells.")
        layer = int(np.searchsorted(self.offsets, place, side="right")) - 1
        return layer, place - int(self.offsets[layer])

    # Addresses

    def address(self, place: int) -> str:
        layer, index = self.split(place)
        there = self.layers[layer]
        if there.experts:
            return f"{there.name}.E{index // there.width}.{index % there.width}"
        return f"{there.name}.{index}"

    def find(self, address: str) -> int:
        """The place of an address, in any of the forms that a reader may type."""
        stack, layer, expert, index = parse_address(address)
        number = self.find_layer(f"{stack}.L{layer}" if stack else f"L{layer}", address)
        there = self.layers[number]
        if there.experts and expert is None:
            raise UsageError(
                f"'{address}' names no expert, and layer {there.name} has {there.experts}: write {there.name}.E0.{index}."
            )
        if (expert is not None and expert >= there.experts) or index >= there.width:
            raise UsageError(f"There is no cell {address}: {self.extent(number)}.")
        return int(self.offsets[number]) + (expert or 0) * there.width + index

    def find_layer(self, name: int | str, address: str | None = None) -> int:
        """The number of a layer, given by its number on the axis or by its name."""
        if not isinstance(name, str):
            try:
                number = operator.index(name)
            except TypeError:
                raise UsageError(f"A layer is named by a whole number or as in L12, not {name!r:.40}.") from None
            if 0 <= number < len(self.layers):
                return number
        elif (parts := _TYPED_LAYER.fullmatch(name.strip())) and (
            number := self._numbers.get(((parts[1] or "").lower(), int(parts[2])), -1)
        ) >= 0:
            return number
        said = f"cell {address}" if address else f"layer {name!s:.40}"
        raise UsageError(f"There is no {said}: {self.extent()}.")

    @cached_property
    def _numbers(self) -> dict[tuple[str, int], int]:
        return {(layer.stack, layer.number): number for number, layer in enumerate(self.layers)}

    def extent(self, layer: int | None = None) -> str:
        """Which addresses exist, for a message: in one layer, or in the model if `layer` is None or does not exist."""
        layer = layer if layer is not None and 0 <= layer < len(self.layers) else None
        names = (
            f"the model has layers {self.layers[0].name.removeprefix('L')} to {self.layers[-1].name.removeprefix('L')}"
        )
        widths = {each.width for each in self.layers}
        if layer is None and len(widths) > 1:
            return f"{names} of {min(widths)} to {max(widths)} cells"
        there = self.layers[layer or 0]
        if layer is not None and len(widths) > 1:
            names = f"layer {there.name} has"
            experts = f"experts 0 to {there.experts - 1} of " if there.experts else ""
            return f"{names} {experts}cells 0 to {there.width - 1}"
        experts = f", experts 0 to {there.experts - 1}," if there.experts else ""
        return f"{names}{experts} of cells 0 to {there.width - 1}"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Every cell as (layer, number in the layer), in the order of the axis."""
        for layer in range(len(self.layers)):
            for index in range(self.size(layer)):
                yield layer, index

    # The manifest

    def as_json(self) -> list[dict[str, Any]]:
        """One entry per layer: its name, where it begins, its width, its experts if it has any."""
        return [
            {"layer": layer.name, "offset": int(offset), "width": layer.width}
            | ({"experts": layer.experts} if layer.experts else {})
            for layer, offset in zip(self.layers, self.offsets, strict=False)
        ]

    @staticmethod
    def from_json(entries: Any) -> Cells:
        """The axis a manifest describes; ValueError if the entries describe none."""
        if not isinstance(entries, list) or not entries:
            raise ValueError("there are no layers")
        layers, cells_so_far = [], 0
        for entry in entries:
            name = (
                LAYER.fullmatch(entry["layer"])
                if isinstance(entry, dict) and isinstance(entry.get("layer"), str)
                else None
            )
            width, experts = (entry.get("width"), entry.get("experts", 0)) if name else (None, None)
            if name is None or type(width) is not int or type(experts) is not int or width < 1 or experts < 0:
                raise ValueError(f"{entry!r:.80} is not a layer")
            cells_so_far += width * max(experts, 1)
            if cells_so_far > MOST:
                raise ValueError(f"they have more than {MOST:,} cells")
            layers.append(Layer(width, experts, name[1] or "", int(name[2])))
        cells = Cells(layers)
        if len(cells._numbers) != len(layers):
            raise ValueError("a layer is listed twice")
        if cells.as_json() != entries:
            raise ValueError("the offsets of the layers do not follow from their widths")
        return cells


def plain_address(layer: int, index: int) -> str:
    """The address of a cell in a model of one stack without experts; also used if the model is not known."""
    return f"L{layer}.{index}"


def parse_address(address: str) -> tuple[str, int, int | None, int]:
    """`L12.345` → ("", 12, None, 345); `enc.L3.E7.17` → ("enc", 3, 7, 17)."""
    parts = _TYPED.fullmatch(address.strip()) if isinstance(address, str) else None
    if parts is None:
        raise UsageError(
            f"'{str(address)[:60]}' is not a cell address. A cell is written L12.345: layer 12, cell 345, both from 0."
        )
    return (parts[1] or "").lower(), int(parts[2]), None if parts[3] is None else int(parts[3]), int(parts[4])
