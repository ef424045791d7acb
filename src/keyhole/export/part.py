"""A part of a run, for an export: some layers, some cells, a collection. Lists in its answers name only cells that are in it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..cells import Cells
from ..errors import UsageError
from ..store import collections
from ..store.run import Run
from ..web import addresses, schema
from ..web.contract import Explorer, parts
from ..web.pack import packed

NAMED = 6
"""Cells up to which an export names each of them."""
Layers = str | Sequence[int | str]


def layers_of(axis: Cells, asked: Layers) -> list[int]:
    """`3,10-12` → [3, 10, 11, 12]."""
    found: set[int] = set()
    for each in asked.split(",") if isinstance(asked, str) else asked:
        first, dash, last = each.strip().partition("-") if isinstance(each, str) else (each, "", "")
        begin = axis.find_layer(first)
        end = axis.find_layer(last) if dash else begin
        if end < begin:
            raise UsageError(f"'{each}' is not a range of layers: write the smaller number first.")
        found.update(range(begin, end + 1))
    return sorted(found)


class Part:
    """Which cells of a run are exported."""

    def __init__(self, run: Run, layers: Layers = (), cells: Sequence[str] = (), collection: str | None = None) -> None:
        axis, self.run = run.cells, run
        self.has: npt.NDArray[np.bool_] = np.zeros(len(axis), bool)
        """[cells] whether each is in it"""
        said = []
        if numbers := layers_of(axis, layers) if layers else []:
            for layer in numbers:
                self.has[axis.span(layer)] = True
            said.append(_said_layers(axis, numbers))
        if cells:
            single = sorted({axis.find(address) for address in cells})
            self.has[single] = True
            names = ", ".join(map(axis.address, single[:NAMED]))
            said.append(names if len(single) <= NAMED else f"{names} and {len(single) - NAMED} more")
        if collection is not None:
            places = collections.places(run, collection)
            if not places:
                raise UsageError(
                    f"The collection '{collection}' of {run.path} has no cells, so there is nothing to export."
                )
            self.has[places] = True
            said.append(f"the collection “{collection}”")
        self.said = "; ".join(said)

    @property
    def about(self) -> schema.Part:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.has, [False]]).astype(np.int8)))
        spans = edges.reshape(-1, 2).tolist()
        return schema.Part(self.said, int(self.has.sum()), [(begin, end) for begin, end in spans])

    def paths(self, explorer: Explorer) -> Iterator[str]:
        """Those of the addresses whose cell or layer is in it."""
        for path in explorer.paths():
            name, *numbers = parts(path)
            counts = addresses.DATA[name].numbers
            if counts == ("layer", "cell"):
                if self.has[self.run.cells.place(*numbers)]:
                    yield path
            elif counts != ("layer",) or self.has[self.run.cells.span(numbers[0])].any():
                yield path

    def narrowed(self, answer: schema.Record) -> schema.Record:
        """An answer without the cells that are left out, where it lists cells by what they have in common."""
        if isinstance(answer, schema.About):
            there = [address for address in answer.worth if self.has[self.run.cells.find(address)]]
            first = [self.run.cells.address(int(place)) for place in np.flatnonzero(self.has)[: len(answer.worth)]]
            return msgspec.structs.replace(answer, worth=there or first)
        if isinstance(answer, schema.Annotations):
            own = [each for each in answer.annotations if self.has[self.run.cells.place(each.layer, each.cell)]]
            return schema.Annotations(own, self._of_addresses(answer.notes))
        if isinstance(answer, schema.Collections):
            return msgspec.structs.replace(answer, cells=self._of_addresses(answer.cells))
        if isinstance(answer, schema.Units):
            units = {number: self._unit(unit) for number, unit in answer.units.items()}
            held = {number: unit for number, unit in units.items() if unit.cells or unit.negative}
            return schema.Units(answer.triggers, held)
        if isinstance(answer, schema.Words):
            kept = {word: [u for u in units if u in self._units] for word, units in answer.words.items()}
            answer = msgspec.structs.replace(answer, words={word: units for word, units in kept.items() if units})
        if isinstance(answer, schema.ColumnBlock):
            return self._blanked(answer)
        if isinstance(answer, schema.RankedPatterns):
            return answer  # found by rank: a pattern of a cell that is left out keeps its place in the list
        listed: schema.Record = self._listed(answer)
        return listed

    def _unit(self, unit: schema.Unit) -> schema.Unit:
        """A unit without the triggers of other cells."""
        sides = []
        for side in (unit.cells, unit.negative):
            places = [np.cumsum(held.gaps) for held in side]
            kept = [(held.end, each[self.has[each]]) for held, each in zip(side, places, strict=True)]
            sides.append([schema.Held(end, np.diff(each, prepend=0).tolist()) for end, each in kept if len(each)])
        few = {place: counts for place, counts in unit.few.items() if self.has[int(place)]}
        return schema.Unit(unit.text, unit.starts, sides[0], sides[1], few)

    def _listed(self, value: Any) -> Any:
        """Without the rows of other cells, however deep."""
        if isinstance(value, list):
            if value and hasattr(value[0], "place"):
                return [row for row in value if self.has[row.place]]
            return value
        if isinstance(value, dict):
            listed = {name: self._listed(each) for name, each in value.items()}
            return {name: each for name, each in listed.items() if each != [] or value[name] == []}
        if isinstance(value, schema.Record):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **{name: self._listed(each) for name, each in fields.items()})
        return value

    def _blanked(self, block: schema.ColumnBlock) -> schema.ColumnBlock:
        """A block of the table's values with nothing where cells are left out, which takes next to no room when it is packed."""
        if isinstance(block.texts, list):
            has = self.has[block.first : block.first + len(block.texts)]
            return msgspec.structs.replace(
                block, texts=[text if there else None for text, there in zip(block.texts, has.tolist(), strict=True)]
            )
        values = np.frombuffer(base64.b64decode(str(block.data)), np.uint8).reshape(-1, block.bytes).copy()
        values[~self.has[block.first : block.first + len(values)]] = 0
        return msgspec.structs.replace(block, data=packed(values))

    def _of_addresses(self, named: dict[str, Any]) -> dict[str, Any]:
        return {address: each for address, each in named.items() if self.has[self.run.cells.find(address)]}

    @cached_property
    def _units(self) -> frozenset[int]:
        """The units that hold triggers of its cells."""
        return frozenset(np.unique(np.concatenate([side.units[self.has] for side in self.run.sides.values()])).tolist())


def _said_layers(axis: Cells, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    names = [layer.name.replace("L", "", 1) for layer in axis.layers]
    ranges = [names[a] if a == b else f"{names[a]} to {names[b]}" for a, b in runs]
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(ranges)}"
