"""A run → the JSON value behind every data/… address. The server answers with these, the export writes them down.

Text of the corpus and tokens go out as plain strings, never as markup; what is not a number goes out as null.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..analyses import registry
from ..analyses.measured import Measured
from ..store import shading, values
from ..store.annotations import KINDS, kinds, notes
from ..store.annotations import read as read_annotations
from ..store.run import Run
from ..views import figures
from ..views import text as show
from ..views.worth import worth_showing
from .search import Once, Search
from .worth import speaking

SEPARATOR = "|"
SHADES = "".join(chr(code) for code in range(35, 127) if chr(code) != "\\")[:91]
"""A letter a shade, none of which JSON writes with two: the middle one is 0, the ends are ∓127."""
_LETTERS = np.array([ord(SHADES[45 + round(shade * 45 / 127)]) for shade in range(-127, 128)], np.uint8)
WORTH = 12
KEPT_BYTES = 64 << 20
"""Answers kept for the next who asks, in bytes at most."""


class NotThere(LookupError):
    """No data at this address."""


def compact(value: Any) -> bytes:
    """Strict JSON without a byte too many."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def short(value: Any, digits: int = 5) -> float | None:
    """A number with as many digits as anyone reads; None where it is none."""
    number = float(value)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def shorts(array: npt.NDArray[Any], digits: int = 4) -> list[float | None]:
    return [short(value, digits) for value in array.tolist()]


def packed(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def joined(tokens: list[str]) -> str | list[str]:
    """Tokens as one string, a bar between them; as a list where a token has a bar itself."""
    return tokens if any(SEPARATOR in token for token in tokens) else SEPARATOR.join(tokens)


def shades(row: npt.NDArray[np.int8]) -> str:
    """A letter a token, of `SHADES`."""
    return _LETTERS[np.maximum(row, -127).astype(np.int16) + 127].tobytes().decode("ascii")


class Explorer:
    """One run, with everything that its answers share opened once."""

    def __init__(self, run: Run, *, live: bool = False) -> None:
        self.run, self.live = run, live
        self.search = Search(run)
        self.values = [values.Values(run, lens) for lens in values.available(run)]
        self._once = Once()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._making: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._shading = shading.of(run)

    # Addresses

    def paths(self) -> Iterator[str]:
        """Every address below data/, as the export writes them."""
        run = self.run
        yield from ("run.json", "map.json", "figures.json", "vocabulary.json", "annotations.json")
        yield from (f"layers/{layer}.json" for layer in range(run.layers))
        yield from (f"tokens/{page}.json" for page in range(self.search.token_pages))
        yield from (f"words/{bucket}.json" for bucket in range(self.search.buckets))
        yield from (f"units/{page}.json" for page in self.search.pages_with_triggers())
        yield from (f"cells/{layer}/{cell}.json" for layer, cell in run.cells)

    def answer(self, path: str) -> Any:
        """The value at an address below data/."""
        name, *numbers = _parts(path)
        plain: dict[str, Callable[[], Any]] = {
            "run": self.about,
            "map": self.map,
            "figures": self.figures,
            "vocabulary": self.vocabulary,
            "annotations": self.annotations,
        }
        if not numbers and name in plain:
            return plain[name]()
        bounds = {
            "layers": (self.run.layers,),
            "tokens": (self.search.token_pages,),
            "words": (self.search.buckets,),
            "units": (self.search.unit_pages,),
        }.get(name)
        if name == "cells" and len(numbers) == 2 and self.run.cells.has(*numbers):
            return self.cell(*numbers)
        if not bounds or len(bounds) != len(numbers) or any(n >= b for n, b in zip(numbers, bounds, strict=True)):
            raise NotThere(path)
        if name == "layers":
            return self.layer(*numbers)
        if name == "tokens":
            return self.search.tokens(self.values[0] if self.values else None, *numbers)
        return self.search.words(*numbers) if name == "words" else self.search.units(*numbers)

    def body(self, path: str) -> bytes:
        """The answer as bytes. What is large, asked for often and never changes is kept."""
        if not path.startswith(("layers/", "vocabulary", "figures", "run", "tokens/", "words/", "units/")):
            return compact(self.answer(path))
        with self._lock:
            making = self._making.setdefault(path, threading.Lock())
        with making:  # who asks meanwhile waits, instead of making it too
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

    def about(self) -> dict[str, Any]:
        run = self.run
        model, corpus, config = (run.manifest[name] for name in ("model", "corpus", "config"))
        counts = ("documents", "units", "tokens", "distinct_prefixes", "scanned_prefixes")
        lenses = [each.lens for each in self.values]
        return {
            "keyhole": __version__,
            "live": self.live,
            "checksum": run.manifest["checksum"],
            "model": {"name": show.name(run), "family": model["family"]}
            | {"layers": run.layers, "cells": run.cells.sizes, "signed": run.signed},
            "corpus": {"sources": [os.path.basename(os.path.normpath(str(s))) for s in corpus["sources"]]}
            | {name: corpus[name] for name in counts},
            "config": {name: config[name] for name in ("top", "per", "unit", "context")},
            "lenses": lenses,
            "lens": lenses[0] if lenses else None,
            "shading": self._shading is not None,
            "worth": self._once.get("worth", self._worth),
            "words": self.search.buckets,
            "dead": int(np.count_nonzero(run.stats.active == 0)),
        }

    def _worth(self) -> list[str]:
        """Cells to begin with."""
        spoken = speaking(self.run, self.values[0].top_tokens, self.next_ids, WORTH) if self.values else []
        return spoken or worth_showing(self.run, min(WORTH, self.run.layers))

    def map(self) -> dict[str, Any]:
        """Every cell as a byte a measure: 255 unknown, 0 to 254 between the measure's ends."""
        run = self.run
        measures = [
            _measure(measure.name, measure.title, numbers, log=measure.log)
            for measure, numbers in registry.cell_measures(run, self.values[0] if self.values else None)
        ]
        marked = kinds(run)
        if marked:
            data = np.full(len(run.cells), 255, np.uint8)
            for at, kind in marked.items():
                data[run.cells.place(*at)] = KINDS.index(kind)
            measures.append(
                {"name": "pattern", "title": "what annotators found", "lo": 0, "hi": 254, "scale": "linear"}
                | {"kinds": list(KINDS), "data": packed(data)}
            )
        return {"layers": run.layers, "cells": run.cells.sizes, "measures": measures}

    def figures(self) -> dict[str, Any]:
        """The report's figures that have numbers, with what the paper found and what was found here."""
        return {
            "figures": [
                {
                    "name": drawn.figure.name,
                    "label": drawn.figure.label,
                    "title": drawn.figure.title,
                    "caption": drawn.figure.caption,
                    "note": drawn.note,
                    "spec": figures.spec(drawn.chart, page=True),
                    "finding": drawn.figure.paper.finding if drawn.figure.paper else "",
                    "published": drawn.figure.paper.published if drawn.figure.paper else "",
                    "verdicts": [
                        {"claim": v.claim, "verdict": v.outcome, "why": v.evidence, "test": v.test}
                        for v in drawn.verdicts
                    ],
                }
                for drawn in figures.draw_all(Measured.read(self.run), figures.PAGE)
            ]
        }

    def vocabulary(self) -> dict[str, Any]:
        vocabulary = self.run.vocabulary
        return {"pieces": [vocabulary.piece(token) for token in range(len(vocabulary))]}

    def annotations(self) -> dict[str, Any]:
        return {"annotations": [each.to_json() for each in read_annotations(self.run)], "notes": notes(self.run)}

    # A layer

    def layer(self, layer: int) -> dict[str, Any]:
        run, stats, span = self.run, self.run.layer(layer).stats, self.run.cells.span(layer)
        tails, lasts, follows = self._top_triggers(layer)
        columns: dict[str, list[Any]] = {
            "active": shorts(stats.active_fraction),
            "max": shorts(stats.max),
            "min": shorts(stats.min),
            "trigger": tails,
            "last": lasts,
            "next": follows,
            "dead": (stats.active == 0).astype(int).tolist(),
        }
        if self.values:
            said, piece = self.values[0], run.vocabulary.piece
            columns |= {
                "promotes": [[piece(token) for token in row] for row in said.top_tokens[span, :3].tolist()],
                "agreement": shorts(self.agreement(layer)),
                "max_prob": shorts(said.max_prob[span]),
                "norm": shorts(said.norms[span]),
            }
        return {"layer": layer, "columns": columns}

    def _top_triggers(self, layer: int) -> tuple[list[str | None], list[str | None], list[str | None]]:
        """Of each cell the strongest trigger: the end of its text, its last token, the next one."""
        run, piece = self.run, self.run.vocabulary.piece
        units, positions = run.layer(layer).units[:, 0], run.layer(layer).positions[:, 0]
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

    def agreement(self, layer: int, *, lens: int = 0) -> npt.NDArray[np.float64]:
        """[cells] the share of the triggers with a next token that is the value's top token; NaN where none has one."""
        return values.shares(*self.values[lens].hits(self.run.cells.span(layer)))

    def next_ids(self, layer: int) -> npt.NDArray[np.int64]:
        """[cells, top] the token behind each trigger; −1 where there is none."""
        here = self.run.layer(layer)
        return self.run.next_tokens(here.units, here.positions)

    # A cell

    def cell(self, layer: int, index: int) -> dict[str, Any]:
        cell = self.run.cell(layer, index)
        stats, address = cell.stats, self.run.cells.address
        return {
            "address": cell.address,
            "layer": layer,
            "cell": index,
            "dead": bool(stats.active == 0),
            "stats": {"n": stats.n, "active": stats.active}
            | {name: short(stats[name]) for name in ("mean", "std", "max", "min")},
            "histogram": self._histogram(layer, index),
            "triggers": self._triggers(layer, index, negative=False),
            "negative": self._triggers(layer, index, negative=True),
            "values": [self._value(said, cell.place) for said in self.values],
            "similar_keys": [[address(place), n] for place, n in self.search.similar_keys(cell.place)],
            "similar_values": self._similar_values(cell.place),
        }

    def _triggers(self, layer: int, index: int, *, negative: bool) -> list[list[Any]]:
        """A row a trigger, for an export is mostly these: [coefficient, unit, position, tokens of the unit left out before
        what is shown, and after it, how often the prefix occurs, the tokens shown, their shades where there are any]."""
        run, piece = self.run, self.run.vocabulary.piece
        place = run.cells.place(layer, index)
        coefficients, units, positions = (array[place] for array in run.side(negative))
        filled = int(np.count_nonzero(units >= 0))
        units, positions, offsets = units[:filled], positions[:filled], run.unit_offsets
        run.check_places(units, positions)
        starts, ends, counts = offsets[units], offsets[units + 1], run.counts(units, positions)
        columns = (column.tolist() for column in (coefficients[:filled], units, positions, starts, ends, counts))
        found = []
        for slot, (coefficient, unit, position, start, stop, count) in enumerate(zip(*columns, strict=True)):
            begin, end = shading.shown(stop - start, position, run.room)
            tokens = joined([piece(token) for token in run.tokens[start + begin : start + end].tolist()])
            trigger = [short(coefficient, 4), unit, position, begin, stop - start - end, count, tokens]
            if self._shading is not None:
                trigger.append(shades(self._shading.row(layer, index, slot, negative)))
            found.append(trigger)
        return found

    def _value(self, said: values.Values, at: int) -> dict[str, Any]:
        piece = self.run.vocabulary.piece

        def tokens(which: npt.NDArray[Any], logits: npt.NDArray[Any]) -> list[list[Any]]:
            return [[piece(t), short(x, 4)] for t, x in zip(which[at].tolist(), logits[at].tolist(), strict=True)]

        return {
            "lens": said.lens,
            "norm": short(said.norms[at]),
            "max_prob": short(said.max_prob[at]),
            "entropy": short(said.entropy[at]),
            "promoted": tokens(said.top_tokens, said.top_logits),
            "demoted": tokens(said.bottom_tokens, said.bottom_logits),
            "agreement": self._agrees(said, at),
            "negative_agreement": self._agrees(said, at, negative=True),
            "rank": int(said.ranks[at]) or None,
        }

    def _agrees(self, said: values.Values, at: int, *, negative: bool = False) -> dict[str, Any] | None:
        """How often the value's first token on one side is what followed the triggers of that side."""
        hits, known = map(int, said.hits(at, negative=negative))
        token = int((said.bottom_tokens if negative else said.top_tokens)[at, 0])
        return {"token": self.run.vocabulary.piece(token), "hits": hits, "of": known} if known else None

    def _similar_values(self, at: int) -> list[list[Any]]:
        arrays = self._once.get("similar values", partial(values.similar_arrays, self.run))
        near = [] if arrays is None else values.similar_at(self.run, arrays, at)
        return [[other.address, short(other.cosine, 3)] for other in near][:10]

    def _histogram(self, layer: int, index: int) -> dict[str, Any] | None:
        """Counts between two edges, in bins of one width."""
        found = None if self._shading is None else self._shading.histogram(layer, index)
        if found is None:
            return None
        edges, counts, n = found
        return {"edges": [short(edges[0]), short(edges[-1])], "counts": counts.tolist(), "n": n}


_ADDRESS = re.compile(r"([a-z]+)(?:/(0|[1-9]\d{0,8}))?(?:/(0|[1-9]\d{0,8}))?\.json", re.ASCII)


def _parts(path: str) -> tuple[Any, ...]:
    """`cells/12/345.json` → ("cells", 12, 345). Each number has one spelling, so each answer has one address."""
    if not (match := _ADDRESS.fullmatch(path)):
        raise NotThere(path)
    name, *numbers = match.groups()
    return (name, *(int(number) for number in numbers if number is not None))


def _measure(name: str, title: str, numbers: npt.NDArray[Any], *, log: bool = False) -> dict[str, Any]:
    array = np.asarray(numbers, np.float64)
    known = np.isfinite(array) & (array > 0 if log else True)
    lo, hi = (float(array[known].min()), float(array[known].max())) if known.any() else (0.0, 1.0)
    lo = lo if log else min(lo, 0.0)
    placed = np.log(np.where(known, array, 1)) if log else array
    low, high = (math.log(lo), math.log(hi)) if log and known.any() else (lo, hi)
    data = np.full(array.shape, 255, np.uint8)
    data[known] = np.rint(254 * (placed[known] - low) / ((high - low) or 1)).astype(np.uint8)
    scale = "log" if log else "linear"
    return {"name": name, "title": title, "lo": short(lo), "hi": short(hi), "scale": scale, "data": packed(data)}
