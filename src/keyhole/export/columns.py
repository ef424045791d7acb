"""Many answers of one kind, column by column: all numbers of a field together, all texts together. So packed, gzip finds what
they have in common, and the page still reads one answer without making the others (static/columns.js).

A column is a small JSON list, whose first item says what it is, and bytes in a buffer. Columns follow each other in the buffer in
the order in which the description names them, so the description needs no offsets:

    ["c", value]                      every value is this one
    ["n", bytes, decimals, delta]     numbers: whole ones after × 10^decimals, zigzag, as differences if delta; all lowest bytes first
    ["f"]                             numbers that are not short decimals: eight bytes each
    ["b", numbers]                    true or false
    ["s", bytes, lengths]             texts, UTF-8, one after the other; lengths in UTF-16 units
    ["6", bytes, stride, lengths]     base64 of arrays: their bytes, all first bytes of `stride` bytes each, then all second ones, …
    ["d", count, texts, numbers]      texts out of a list of `count` different ones
    ["?", numbers, column]            null where the number is 0, left out where it is 2
    ["o", {name: column}]             objects
    ["t", column, …]                  lists of one length, or rows of a table
    ["l", lengths, column]            lists
    ["m", lengths, keys, column]      objects whose names are data
    ["w", names, {name: column}, shaded]  triggers, whose tokens are a part of the texts (`Texts`): where they start, how many come
                                      before the last one of the prefix and after it; if shaded, one letter per token follows
    ["j", texts]                      anything else, as JSON
"""

from __future__ import annotations

import base64
import operator
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..web import schema
from ..web.pack import compact
from .texts import Texts

WHOLE = float(1 << 51)
"""Whole numbers below it stay exact when they are doubled for the zigzag."""
DECIMALS = 15
SHORT = 16
"""Lists of one length, if it is at most this, become one column per item."""
STRIDES = (1, 2, 4)
ARRAY = 256
"""Texts shorter than this are not taken for arrays."""
NAMES = 24
"""Objects with the same names, if there are at most this many, become one column per name."""

Node = list[Any]


class Columns:
    """The bytes of a pack's columns, one after the other."""

    def __init__(self, texts: Texts | None = None) -> None:
        self.bytes = bytearray()
        self.texts = texts

    def column(self, values: Sequence[Any]) -> Node:
        """Append the values, and describe where they are."""
        types = set(map(type, values))
        if types & {type(None), msgspec.UnsetType} and len(types) > 1:
            return self._some(values)
        if not types or types <= {type(None), msgspec.UnsetType}:
            return ["c", None]
        one = next(iter(types)) if len(types) == 1 else None
        if one in (bool, int, float, str) and values.count(values[0]) == len(values):
            return ["c", values[0]]
        if types <= {int, float}:
            return self._numbers(values)
        make: dict[type, Callable[[Any], Node]] = {bool: self._flags, str: self._strings, dict: self._mappings}
        if one in make:
            return make[one](values)
        if types <= {list, tuple}:
            return self._lists(values)
        if one is schema.PackedTrigger and self.texts is not None:
            return self._triggers(values)
        if one is not None and issubclass(one, schema.Row):
            return ["t", *(self.column(column) for column in _fields(one, values).values())]
        if one is not None and issubclass(one, schema.Record):
            return ["o", self._named(_fields(one, values))]
        return ["j", self._texts([compact(value).decode() for value in values])]

    # Numbers

    def _numbers(self, values: Sequence[float]) -> Node:
        array = np.array(values, np.float64)
        for decimals in range(DECIMALS + 1):
            scaled = np.rint(array * 10.0**decimals)
            if not np.abs(scaled).max(initial=0) < WHOLE:
                break
            if (scaled / 10.0**decimals == array).all():
                return self._whole(scaled.astype(np.int64), decimals)
        self.bytes += array.astype("<f8").tobytes()
        return ["f"]

    def _whole(self, numbers: npt.NDArray[np.int64], decimals: int = 0) -> Node:
        steps = np.diff(numbers, prepend=0)
        delta = bool(_bits(steps) < _bits(numbers)) and int(np.abs(steps).max()) < WHOLE
        chosen = steps if delta else numbers
        zigzag = (chosen << 1) ^ (chosen >> 63)
        width = max(1, -(-int(zigzag.max(initial=0)).bit_length() // 8))
        self.bytes += zigzag.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()
        return ["n", width, decimals, int(delta)]

    def _lengths(self, values: Sequence[int]) -> Node:
        return self.column(list(values))

    def _flags(self, values: Sequence[bool]) -> Node:
        return ["b", self._whole(np.array(values, np.int64))]

    def _some(self, values: Sequence[Any]) -> Node:
        codes = [0 if value is None else 2 if value is msgspec.UNSET else 1 for value in values]
        return ["?", self._lengths(codes), self.column([v for v, code in zip(values, codes, strict=True) if code == 1])]

    # Texts

    def _strings(self, values: Sequence[str]) -> Node:
        if (arrays := _arrays(values)) is not None:
            return self._arrays(arrays)
        known = {text: number for number, text in enumerate(sorted(set(values)))}
        if 2 * len(known) > len(values):
            return self._texts(values)
        return ["d", len(known), self._texts(list(known)), self._lengths([known[text] for text in values])]

    def _arrays(self, arrays: list[bytes]) -> Node:
        """What their numbers are is not known here: of the strides that fit, the one that compresses best is taken."""
        fit = [stride for stride in STRIDES if not any(len(array) % stride for array in arrays)]
        made = {stride: b"".join(_planes(array, stride) for array in arrays) for stride in fit}
        stride = min(fit, key=lambda each: len(zlib.compress(made[each], 1)))
        self.bytes += made[stride]
        return ["6", len(made[stride]), stride, self._lengths(list(map(len, arrays)))]

    def _texts(self, values: Sequence[str]) -> Node:
        whole = "".join(values).encode("utf-8", "replace")  # as in compact: half a character becomes a question mark
        self.bytes += whole
        lengths = [len(text) if text.isascii() else len(text.encode("utf-16-le", "replace")) // 2 for text in values]
        return ["s", len(whole), self._lengths(lengths)]

    # Lists and objects

    def _lists(self, values: Sequence[Sequence[Any]]) -> Node:
        lengths = set(map(len, values))
        if len(lengths) == 1 and 1 <= next(iter(lengths)) <= SHORT:
            return ["t", *(self.column(column) for column in zip(*values, strict=True))]
        return ["l", self._lengths(list(map(len, values))), self.column(list(chain.from_iterable(values)))]

    def _mappings(self, values: Sequence[dict[str, Any]]) -> Node:
        names = values[0].keys()
        if len(names) <= NAMES and all(value.keys() == names for value in values) and len(values) > 1:
            return ["o", self._named({name: [value[name] for value in values] for name in names})]
        keys, items = ([*chain.from_iterable(each(value) for value in values)] for each in (dict.keys, dict.values))
        return ["m", self._lengths(list(map(len, values))), self.column(keys), self.column(items)]

    def _named(self, columns: dict[str, list[Any]]) -> dict[str, Node]:
        there = {name: column for name, column in columns.items() if any(v is not msgspec.UNSET for v in column)}
        return {name: self.column(column) for name, column in there.items()}

    # Triggers

    def _triggers(self, values: Sequence[schema.PackedTrigger]) -> Node:
        """Unit, position and what is left out follow from where the tokens are in the texts."""
        assert self.texts is not None
        columns = _fields(schema.PackedTrigger, values)
        starts, sizes = self.texts.find(values)
        if starts is None:  # tokens that are not those of the corpus
            return ["t", *(self.column(column) for column in columns.values())]
        names = list(columns)
        for derived in ("unit", "before", "after", "tokens"):
            del columns[derived]
        columns["position"] = [row.position - row.before for row in values]
        columns["follow"] = [size - 1 - at for size, at in zip(sizes, columns["position"], strict=True)]
        columns["start"] = starts
        shaded = [len(shades) if isinstance(shades, str) else -1 for shades in columns["shades"]] == sizes
        letters = "".join(columns.pop("shades")) if shaded else ""
        node = ["w", names, self._named(columns), shaded]
        self.bytes += letters.encode("ascii")
        return node


def _fields(kind: type[msgspec.Struct], values: Sequence[Any]) -> dict[str, list[Any]]:
    """The values by field."""
    return {name: list(map(operator.attrgetter(name), values)) for name in kind.__struct_fields__}


def _bits(numbers: npt.NDArray[np.int64]) -> float:
    """About how many bits the numbers take."""
    return float(np.log2(1.0 + np.abs(numbers)).sum())


def _arrays(values: Sequence[str]) -> list[bytes] | None:
    """The bytes of texts that are all base64 of arrays; None if one is not."""
    if not all(len(text) >= ARRAY and len(text) % 4 == 0 and text.isascii() for text in values):
        return None
    try:
        found = [base64.b64decode(text, validate=True) for text in values]
    except ValueError:
        return None
    return (
        found
        if all(base64.b64encode(array).decode() == text for array, text in zip(found, values, strict=True))
        else None
    )


def _planes(array: bytes, stride: int) -> bytes:
    return np.frombuffer(array, np.uint8).reshape(-1, stride).T.tobytes()
