"""Reads the packs of an export as export/columns.py describes them, to compare with what the server answers."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

LEFT_OUT = object()


class Reader:
    """The columns of one pack, read from its bytes one after the other."""

    def __init__(self, content: bytes, shared: Any = None) -> None:
        (head,) = struct.unpack_from("<I", content)
        self.about = json.loads(content[4 : 4 + head])
        self.rest, self.texts = content[4 + head :], shared
        count = self.about["count"]
        self.numbers = self.column(self.about["numbers"], count)
        if self.about["texts"]:
            (self.texts,) = self.column(self.about["texts"], 1)
        self.answers = self.column(self.about["answers"], count)
        assert not self.rest

    def take(self, size: int) -> bytes:
        taken, self.rest = self.rest[:size], self.rest[size:]
        assert len(taken) == size
        return taken

    def column(self, node: list[Any], count: int) -> list[Any]:
        return getattr(self, {"?": "some"}.get(node[0], "_" + node[0]))(count, *node[1:])  # type: ignore[no-any-return]

    def cut(self, node: list[Any], count: int) -> list[tuple[int, int]]:
        ends = [0, *accumulate(int(length) for length in self.column(node, count))]
        return list(pairwise(ends))

    def _c(self, count: int, value: Any) -> list[Any]:
        return [value] * count

    def _n(self, count: int, width: int, decimals: int, delta: int) -> list[float]:
        planes = [self.take(count) for _ in range(width)]
        whole = [sum(plane[i] << 8 * at for at, plane in enumerate(planes)) for i in range(count)]
        signed = [-(number + 1) // 2 if number % 2 else number // 2 for number in whole]
        return [number / 10**decimals for number in (accumulate(signed) if delta else signed)]

    def _f(self, count: int) -> list[float]:
        return list(struct.unpack(f"<{count}d", self.take(8 * count)))

    def _b(self, count: int, node: list[Any]) -> list[bool]:
        return [number == 1 for number in self.column(node, count)]

    def _s(self, count: int, size: int, lengths: list[Any]) -> list[str]:
        whole = self.take(size).decode().encode("utf-16-le")
        return [whole[2 * a : 2 * b].decode("utf-16-le") for a, b in self.cut(lengths, count)]

    def _6(self, count: int, size: int, stride: int, lengths: list[Any]) -> list[str]:
        taken, cuts = self.take(size), self.cut(lengths, count)
        arrays = [
            bytes(taken[a + j * ((b - a) // stride) + i] for i in range((b - a) // stride) for j in range(stride))
            for a, b in cuts
        ]
        return [base64.b64encode(array).decode() for array in arrays]

    def _d(self, count: int, different: int, texts: list[Any], which: list[Any]) -> list[str]:
        known = self.column(texts, different)
        return [known[int(number)] for number in self.column(which, count)]

    def some(self, count: int, which: list[Any], node: list[Any]) -> list[Any]:
        codes = self.column(which, count)
        there = iter(self.column(node, codes.count(1)))
        return [next(there) if code == 1 else None if code == 0 else LEFT_OUT for code in codes]

    def _o(self, count: int, named: dict[str, list[Any]]) -> list[dict[str, Any]]:
        columns = {name: self.column(node, count) for name, node in named.items()}
        return [{name: c[i] for name, c in columns.items() if c[i] is not LEFT_OUT} for i in range(count)]

    def _t(self, count: int, *nodes: list[Any]) -> list[list[Any]]:
        columns = [self.column(node, count) for node in nodes]
        return [[column[i] for column in columns] for i in range(count)]

    def _l(self, count: int, lengths: list[Any], node: list[Any]) -> list[list[Any]]:
        cuts = self.cut(lengths, count)
        items = self.column(node, cuts[-1][1] if cuts else 0)
        return [items[a:b] for a, b in cuts]

    def _m(self, count: int, lengths: list[Any], keys: list[Any], node: list[Any]) -> list[dict[str, Any]]:
        cuts = self.cut(lengths, count)
        total = cuts[-1][1] if cuts else 0
        names, items = self.column(keys, total), self.column(node, total)
        return [dict(zip(names[a:b], items[a:b], strict=True)) for a, b in cuts]

    def _j(self, count: int, texts: list[Any]) -> list[Any]:
        return [json.loads(text) for text in self.column(texts, count)]

    def _w(self, count: int, names: list[str], named: dict[str, list[Any]], shaded: bool) -> list[list[Any]]:
        flat = [
            (unit, first + i, length) for unit, first, size, length in self.texts["parts"] for i in range(int(size))
        ]
        rows = []
        for row in self._o(count, named):
            start, size = int(row["start"]), int(row["position"] + 1 + row["follow"])
            unit, before, length = flat[start]
            tokens = self.texts["pieces"][start : start + size]
            row |= {"unit": unit, "before": before, "after": length - before - size}
            row |= {"position": before + row["position"]}
            row["tokens"] = tokens if any("|" in token for token in tokens) else "|".join(tokens)
            if shaded:
                row["shades"] = self.take(size).decode()
            rows.append([row[name] for name in names])
        return rows


def answers(site: Path) -> dict[str, Any]:
    """Everything that an export answers, by address."""
    data = site / "data"
    about = json.loads((data / "run.json").read_bytes())["export"]
    shared = None
    if (file := data / "texts.pack").is_file():
        (shared,) = Reader(gzip.decompress(file.read_bytes())).answers
    found: dict[str, Any] = {file.name: json.loads(file.read_bytes()) for file in data.glob("*.json")}
    for name, firsts in about["packs"].items():
        for first in firsts:
            pack = Reader(gzip.decompress((data / f"{'-'.join(map(str, [name, *first]))}.pack").read_bytes()), shared)
            assert [int(number) for number in pack.numbers[0]] == first
            for numbers, answer in zip(pack.numbers, pack.answers, strict=True):
                found["/".join([name, *(str(int(number)) for number in numbers)]) + ".json"] = answer
    return found
