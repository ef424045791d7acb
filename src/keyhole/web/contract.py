"""The answers at the addresses below data/, built from a run. The server sends them, the export writes them as files."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .. import __version__
from ..analyses.measured import Measured
from ..analyses.record import OUTCOMES
from ..common import names
from ..errors import UsageError
from ..store import annotations as people
from ..store import collections, kinds, patterns, percell, shading, values
from ..store.run import Cell, Layer, Run
from ..views import figures
from ..views.worth import worth_showing
from . import addresses, below, beside, claims, provenance, schema
from .found import Found
from .maps import Maps
from .pack import SEPARATOR, SHADES, compact, joined, packed, shades, short, shorts
from .points import Planes
from .search import PAGE, SIMILAR, Once, Search
from .table import Table
from .uses import Uses
from .worth import speaking

NEAREST = 50
"""Cells in the list of those nearest to one."""
WORTH = 12
"""Cells that the overview offers to begin with."""
KEPT = (
    "sample",
    "layers/",
    "columns/",
    "table",
    "labels/",
    "vocabulary",
    "figures",
    "kinds",
    "run",
    "tokens/",
    "words/",
    "units/",
    "patterns/",
    "comparison",
    "overlaps/",
)
"""Beginnings of the addresses whose answers are kept: they are large, or are made from much."""
KEPT_BYTES = 64 << 20
"""Upper bound on the size of the answers that are kept for later requests."""


class NotThere(LookupError):
    """No data at this address."""


class Explorer:
    """One run, with everything that its answers share opened once."""

    def __init__(
        self,
        run: Run,
        *,
        live: bool = False,
        other: Run | None = None,
        only: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """`only`: [cells] which the lists by token name, in an export of a part."""
        self.run, self.live, self.axis = run, live, run.cells
        self.search = Search(run, together=1) if live else Search(run, only=only)
        self.table = Table(run)
        self.values = [values.Values(run, lens) for lens in values.available(run)]
        self.maps = Maps(run, self.values[0] if self.values else None)
        self.planes = Planes(run, self.maps)
        self._once = Once()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._making: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._shading = shading.of(run)
        self._kinds = kinds.of(run)
        self._found = None if (known := patterns.of(run)) is None else Found(known, self.search.buckets)
        self.second = None if other is None else Explorer(other)
        """of the run that is shown beside this one"""
        self.other = self.second if other is not None and other.cells == run.cells else None
        """the same, if its layers and cells can be shown beside those of this run"""

    # Addresses

    def paths(self) -> Iterator[str]:
        """Every address below data/, in the order in which the export writes them."""
        axis = self.axis
        yield from (
            "run.json",
            "map.json",
            "figures.json",
            "vocabulary.json",
            "annotations.json",
            "collections.json",
            "kinds.json",
            "table.json",
        )
        yield "planes.json"
        yield from self._points()
        if self.second:
            yield "comparison.json"
        yield from (f"maps/{measure}.json" for measure in range(self.maps.count))
        for name in ("mapcells", "mapranks"):
            yield from (f"{name}/{n}/{block}.json" for n in range(self.maps.count) for block in range(self.maps.blocks))
        if self._shading:
            yield "sample.json"
        yield from (f"layers/{layer}.json" for layer in range(len(axis.layers)))
        yield from self.table.paths()
        if self._found:
            yield from (f"labels/{layer}.json" for layer in range(len(axis.layers)))
            yield from (f"patterns/{page}.json" for page in range(self._found.pages))
        yield from (f"tokens/{page}.json" for page in range(self.search.token_pages))
        yield from (f"words/{bucket}.json" for bucket in range(self.search.buckets))
        yield from (f"units/{page}.json" for page in self.search.pages_with_triggers())
        yield from (f"documents/{page}.json" for page in range(provenance.pages(self.run)))
        if provenance.is_whole(self.run, self.live):
            yield from (f"passages/{number}.json" for number in range(provenance.passages(self.run)))
        yield from (f"cells/{layer}/{cell}.json" for layer, cell in axis)
        if self.other:
            yield from (f"overlaps/{layer}.json" for layer in range(len(axis.layers)))
            yield from (f"beside/{layer}/{cell}.json" for layer, cell in axis)

    def _points(self) -> Iterator[str]:
        sides, tiles = range(len(self.planes.sides)), range(self.planes.tiles)
        if not tiles:
            yield from (f"points/{plane}.json" for plane in sides)
            return
        of = [(plane, measure) for plane in sides for measure in range(self.maps.count)]
        yield from (f"pointbins/{plane}/{measure}.json" for plane, measure in of)
        yield from (f"pointcells/{plane}/{measure}/{tile}.json" for plane, measure in of for tile in tiles)

    def has(self, name: str) -> bool:
        """Whether there are answers of this name: some are there only if the run has what they need."""
        if name in ("mapcells", "mapranks"):
            return self.maps.blocks > 0
        if name == "points":
            return bool(self.planes.sides) and not self.planes.tiles
        if name.startswith("point"):
            return self.planes.tiles > 0
        needs = {"comparison": self.second, "labels": self._found, "patterns": self._found, "sample": self._shading}
        return (needs | dict.fromkeys(("beside", "overlaps"), self.other)).get(name, self) is not None

    def bounds(self, name: str) -> tuple[int, ...]:
        """The numbers of an address are below these bounds. For cells it is the width of the widest layer."""
        if name == "patterns" and self._found:
            return (self._found.pages,)  # to know it, all patterns are read
        if name.startswith(
            ("maps", "mapcells", "mapranks", "point")
        ):  # only they need the count, which reads annotations
            counts = {"plane": len(self.planes.sides), "tile": self.planes.tiles, "block": self.maps.blocks}
            known = addresses.DATA[name].numbers if name in addresses.DATA else ()
            return tuple(self.maps.count if number == "measure" else counts[number] for number in known)
        return {
            **dict.fromkeys(("layers", "labels", "overlaps"), (len(self.axis.layers),)),
            **dict.fromkeys(
                ("cells", "beside"), (len(self.axis.layers), max(map(self.axis.size, range(len(self.axis.layers)))))
            ),
            "tokens": (self.search.token_pages,),
            "words": (self.search.buckets,),
            "units": (self.search.unit_pages,),
            "columns": self.table.bounds,
            "documents": (provenance.pages(self.run),),
            "passages": (provenance.passages(self.run),),
        }.get(name, ())

    def answer(self, path: str) -> schema.Record:
        """The value at an address below data/."""
        name, *numbers = parts(path)
        bounds = self.bounds(name)
        if (
            name not in addresses.DATA
            or not self.has(name)
            or len(numbers) != len(bounds)
            or any(number >= bound for number, bound in zip(numbers, bounds, strict=True))
            or (name in ("cells", "beside") and not self.axis.has(*numbers))
        ):
            raise NotThere(path)
        makers: dict[str, Callable[..., schema.Record]] = {
            "run": self.about,
            "map": self.maps.listed,
            "maps": self.maps.measure,
            "planes": self.planes.listed,
            "points": self.planes.points,
            "pointbins": self.planes.bins,
            "pointcells": self.planes.cells,
            "mapcells": self.maps.cells,
            "mapranks": self.maps.ranks,
            "figures": self.figures,
            "vocabulary": self.vocabulary,
            "annotations": self.annotations,
            "collections": self.collections,
            "kinds": self.kinds,
            "table": self.table.columns,
            "columns": self._block,
            "layers": self.layer,
            "cells": self.cell,
            "tokens": self.tokens,
            "words": self.words,
            "units": self.search.units,
            "documents": partial(provenance.documents, self.run),
            "passages": partial(provenance.passage, self.run),
        }
        if self._shading:
            makers["sample"] = partial(below.sample, self.run, self._shading.below)
        if self.second:
            makers["comparison"] = partial(beside.comparison, self.run, self.second.run)
        if self.other:
            makers |= {name: partial(make, self, self.other) for name, make in beside.NUMBERED.items()}
        if self._found:
            makers |= {"labels": self._found.labels, "patterns": self._found.page}
        return makers[name](*numbers)

    def body(self, path: str) -> bytes:
        """The answer as bytes. Answers that are large, asked for often and never change are kept."""
        if not path.startswith(KEPT):
            return compact(self.answer(path))
        with self._lock:
            making = self._making.setdefault(path, threading.Lock())
        with making:  # other threads that ask for it wait, instead of making it too
            with self._lock:
                if path in self._kept:
                    self._kept.move_to_end(path)
                    return self._kept[path]
            try:
                made = compact(self.answer(path))
                self._keep(path, made)
            finally:
                with self._lock:
                    self._making.pop(path, None)
        return made

    def _keep(self, path: str, made: bytes) -> None:
        with self._lock:
            if path not in self._kept and len(made) <= KEPT_BYTES:
                self._kept[path] = made
                self._kept_bytes += len(made)
                while self._kept_bytes > KEPT_BYTES:
                    self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    # The run

    def about(self) -> schema.About:
        run = self.run
        lenses = [each.lens for each in self.values]
        return schema.About(
            keyhole=__version__,
            live=self.live,
            checksum=run.manifest["checksum"],
            model=beside.model_of(run),
            layers=msgspec.convert(self.axis.as_json(), list[schema.Layer]),
            corpus=beside.corpus_of(run),
            config=beside.config_of(run),
            lenses=lenses,
            lens=lenses[0] if lenses else None,
            shading=self._shading is not None,
            passages=provenance.is_whole(run, self.live),
            worth=self._once.get("worth", self._worth),
            search=self.search.about(),
            dead=int(np.count_nonzero(run.stats.dead)),
            packing=schema.Packing(PAGE, SEPARATOR, SHADES, provenance.UNITS, provenance.TOKENS),
            annotating=schema.Annotating(
                name=names.NAME.pattern,
                triggers=people.READ,
                least=people.LEAST,
                patterns=people.PATTERNS,
                description=people.DESCRIPTION,
                note=collections.NOTE,
                tag=names.TAG.pattern,
                tags=collections.TAGS,
                marked=collections.MARKED,
                kinds=list(people.PATTERN_KINDS),
            ),
            beside=None if self.second is None else beside.about(run, self.second.run),
            patterns=None if self._found is None else self._found.about(),
        )

    def _worth(self) -> list[str]:
        """Cells to begin with."""
        spoken = speaking(self.run, self.values[0].top_tokens, self.next_ids, WORTH) if self.values else []
        return spoken or worth_showing(self.run, min(WORTH, self.run.layers))

    def figures(self) -> schema.Figures:
        """The report's figures that have numbers, with what the paper found and what was found here."""
        measured = Measured.read(self.run)
        found = [
            schema.Figure(
                name=drawn.figure.name,
                label=drawn.figure.label,
                title=drawn.figure.title,
                caption=drawn.figure.caption,
                note=drawn.note,
                spec=figures.spec(drawn.chart, page=True),
                paper=schema.Paper(paper.finding, paper.published) if (paper := drawn.figure.paper) else None,
                verdicts=[claims.verdict(each) for each in drawn.verdicts],
            )
            for drawn in figures.draw_all(measured, figures.PAGE)
        ]
        return schema.Figures(list(OUTCOMES), claims.every(measured), found)

    def vocabulary(self) -> schema.Vocabulary:
        vocabulary = self.run.vocabulary
        return schema.Vocabulary([vocabulary.piece(token) for token in range(len(vocabulary))])

    def annotations(self) -> schema.Annotations:
        found = [each.to_json() for each in people.read_annotations(self.run)]
        return schema.Annotations(msgspec.convert(found, list[schema.Annotation]), collections.read_notes(self.run))

    def collections(self) -> schema.Collections:
        return msgspec.convert(collections.export(self.run), schema.Collections)

    def kinds(self) -> schema.Kinds:
        """The labels of every cell, for filters."""
        if self._kinds is None:
            return schema.Kinds([], "")
        described = [schema.KindOfCell(k.name, k.title, k.meaning, k.number, k.below) for k in kinds.KINDS]
        return schema.Kinds(described, packed(self._kinds.labels.astype("<u2")))

    def _block(self, column: int, block: int) -> schema.ColumnBlock:
        if (found := self.table.block(column, block)) is None:
            raise NotThere(f"columns/{column}/{block}.json")
        return found

    # Indexes

    def tokens(self, page: int) -> schema.Tokens:
        found = self.search.tokens(self.values[0] if self.values else None, page)
        if self._found:
            found.rules = self._found.by_token(page)
        return found

    def words(self, bucket: int) -> schema.Words:
        found = self.search.words(bucket)
        if self._found:
            found.patterns = self._found.by_word(bucket)
        return found

    def nearest(self, asked: dict[str, Any]) -> schema.Nearest:
        """The cells nearest to a cell."""
        if [*asked] != ["cell"] or not isinstance(asked["cell"], str):
            raise UsageError('Name a cell, as in {"cell": "L12.345"}, or a text, as in {"text": "The fact that"}.')
        place, name = self.axis.find(asked["cell"]), self.axis.address
        keys = [schema.Near(name(other), shared) for other, shared in self.search.similar_keys(place, NEAREST)]
        near = self.search.alike.values(place, NEAREST) or []
        return schema.Nearest([], keys, [schema.Near(name(other), short(cosine, 3)) for other, cosine in near])

    # A layer

    def layer(self, layer: int) -> schema.LayerCells:
        here = self.run.layer(layer)
        stats = here.stats
        tails, lasts, follows = self._top_triggers(here)
        columns = schema.Columns(
            max=shorts(stats.max),
            min=shorts(stats.min),
            trigger=tails,
            last=lasts,
            next=follows,
            dead=stats.dead.astype(int).tolist(),
            peak=shorts(stats.peak),
        )
        if self._shading:
            columns.firing = shorts(self._shading.firing(here.span))
        if not self.run.gated:
            columns.active = shorts(stats.active_fraction)
        if self.values:
            said, piece = self.values[0], self.run.vocabulary.piece
            columns.promotes = [[piece(token) for token in row] for row in said.top_tokens[here.span, :3].tolist()]
            columns.agreement = shorts(self._agreement(here.span))
            columns.max_prob = shorts(said.max_prob[here.span])
            columns.norm = shorts(said.norms[here.span])
        return schema.LayerCells(layer, columns)

    def _agreement(self, which: slice) -> npt.NDArray[np.float64]:
        """How many of the triggers that have a next token are followed by the value's top token; NaN if none has one."""
        return values.shares(*self.values[0].hits(which))

    def _top_triggers(self, layer: Layer) -> tuple[list[str | None], list[str | None], list[str | None]]:
        """The strongest trigger of each cell: the end of its text, its last token, the token that follows."""
        run, piece = self.run, self.run.vocabulary.piece
        units, positions = layer.units[:, 0], layer.positions[:, 0]
        run.check_places(units[units >= 0], positions[units >= 0])
        tails: list[list[int]] = []
        lasts: list[str | None] = []
        follows: list[str | None] = []
        for unit, position in zip(units.tolist(), positions.tolist(), strict=True):
            if unit < 0:
                tails.append([])
                lasts.append(None)
                follows.append(None)
                continue
            ids = run.unit_tokens(unit)
            tails.append([int(i) for i in ids[max(run.window_start(position), position - 39) : position + 1]])
            lasts.append(piece(tails[-1][-1]))
            follows.append(piece(ids[position + 1]) if position + 1 < len(ids) else None)
        texts = run.vocabulary.texts(tails)
        return [text[-40:] if ids else None for text, ids in zip(texts, tails, strict=True)], lasts, follows

    def next_ids(self, layer: int) -> npt.NDArray[np.int64]:
        """[cells of the layer, top] the token that follows each trigger; −1 if there is none."""
        here = self.run.layer(layer)
        return self.run.next_tokens(here.units, here.positions)

    # A cell

    def cell(self, layer: int, index: int) -> schema.PackedCell:
        cell = self.run.cell(layer, index)
        stats = cell.stats
        return schema.PackedCell(
            address=cell.address,
            layer=layer,
            cell=index,
            sign=1 if cell.orientation > 0 else -1,
            dead=bool(stats.dead),
            stats=schema.CellStats(
                n=stats.n,
                active=None if self.run.gated else stats.active,
                firing=below.firing(cell),
                **{name: short(stats[name]) for name in ("peak", "rms", "mean", "std", "max", "min")},
            ),
            histogram=self._histogram(layer, index),
            triggers=self._triggers(cell, negative=False),
            negative=self._triggers(cell, negative=True),
            values=[self._value(said, cell.place) for said in self.values],
            similar_keys=[(self.axis.address(place), n) for place, n in self.search.similar_keys(cell.place)],
            similar_values=self._similar_values(cell.place),
            kinds=self._kinds_of(cell.place),
            gate=self._gate(cell),
            below=msgspec.UNSET if self._shading is None else below.examples(self._shading.below, cell.place),
            patterns=msgspec.UNSET if self._found is None else self._found.sides(cell.place),
            uses=self._once.get("uses", lambda: Uses(self.run)).of(cell.place),
        )

    def _gate(self, cell: Cell) -> schema.Gate | msgspec.UnsetType:
        found = percell.gate(cell)
        return msgspec.UNSET if found is None else schema.Gate(**{name: short(x, 3) for name, x in found.items()})

    def _kinds_of(self, at: int) -> list[schema.CellKind] | msgspec.UnsetType:
        if self._kinds is None:
            return msgspec.UNSET
        return [
            schema.CellKind(shown.kind.name, shown.has, short(shown.number, 3), short(shown.threshold, 3))
            for shown in self._kinds.of(at)
        ]

    def _triggers(self, cell: Cell, *, negative: bool) -> list[schema.PackedTrigger]:
        run, piece = self.run, self.run.vocabulary.piece
        coefficients, units, positions = (array[cell.place] for array in run.side(negative))
        filled = int(np.count_nonzero(units >= 0))
        units, positions, offsets = units[:filled], positions[:filled], run.unit_offsets
        run.check_places(units, positions)
        starts, ends, counts = offsets[units], offsets[units + 1], run.counts(units, positions)
        columns = (column.tolist() for column in (coefficients[:filled], units, positions, starts, ends, counts))
        found = []
        for slot, (coefficient, unit, position, start, stop, count) in enumerate(zip(*columns, strict=True)):
            begin, end = shading.shown(stop - start, position, run.room)
            tokens = joined([piece(token) for token in run.tokens[start + begin : start + end].tolist()])
            shade = None if self._shading is None else shades(self._shading.row(cell.layer, cell.index, slot, negative))
            found.append(
                schema.PackedTrigger(
                    short(coefficient, 4), unit, position, begin, stop - start - end, count, tokens, shade
                )
            )
        return found

    def _value(self, said: values.Values, at: int) -> schema.Value:
        piece = self.run.vocabulary.piece

        def tokens(which: npt.NDArray[Any], logits: npt.NDArray[Any]) -> list[schema.Said]:
            return [(piece(t), short(x, 4)) for t, x in zip(which[at].tolist(), logits[at].tolist(), strict=True)]

        return schema.Value(
            lens=said.lens,
            norm=short(said.norms[at]),
            max_prob=short(said.max_prob[at]),
            entropy=short(said.entropy[at]),
            promoted=tokens(said.top_tokens, said.top_logits),
            demoted=tokens(said.bottom_tokens, said.bottom_logits),
            agreement=self._agrees(said, at),
            negative_agreement=self._agrees(said, at, negative=True),
            rank=int(said.ranks[at]) or None,
        )

    def _agrees(self, said: values.Values, at: int, *, negative: bool = False) -> schema.Agreement | None:
        """How many triggers of one side are followed by the value's first token of that side."""
        hits, known = map(int, said.hits(at, negative=negative))
        token = int((said.bottom_tokens if negative else said.top_tokens)[at, 0])
        return schema.Agreement(self.run.vocabulary.piece(token), hits, known) if known else None

    def _similar_values(self, at: int) -> list[tuple[str, float | None]] | None:
        near = self.search.alike.values(at, SIMILAR)
        return None if near is None else [(self.axis.address(place), short(cosine, 3)) for place, cosine in near]

    def _histogram(self, layer: int, index: int) -> schema.PackedHistogram | None:
        found = None if self._shading is None else self._shading.histogram(layer, index)
        if found is None:
            return None
        edges, counts, n = found
        return schema.PackedHistogram((short(edges[0]), short(edges[-1])), counts.tolist(), n)


_ADDRESS = re.compile(r"([a-z]+)(?:/(0|[1-9]\d{0,8}))?(?:/(0|[1-9]\d{0,8}))?(?:/(0|[1-9]\d{0,8}))?\.json", re.ASCII)


def parts(path: str) -> tuple[Any, ...]:
    """`cells/12/345.json` → ("cells", 12, 345). A number has one spelling, so an answer has one address."""
    if not (match := _ADDRESS.fullmatch(path)):
        raise NotThere(path)
    name, *numbers = match.groups()
    return (name, *(int(number) for number in numbers if number is not None))
