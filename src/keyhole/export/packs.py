"""The numbered addresses of an export, many answers per file, so that a site has hundreds of files instead of one per cell.

A pack is a plain file that any host can serve: gzip (which the page undoes, because its name tells a host nothing) of the length
of a description, the description as JSON, and the bytes of its columns (columns.py). Answers lie in the order of their numbers,
so the page finds a pack by the numbers of its first answer.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from ..store.run import Run
from ..web import schema
from ..web.contract import parts
from ..web.pack import compact
from .columns import Columns
from .texts import Texts, triggers

BYTES = 150_000
"""Size of a pack: one is fetched to show a cell, and there should be few files."""
SHARE = 0.2
"""How small an answer becomes in a pack, before one of its kind has been packed."""
TEXTS = "texts.pack"
SUFFIX = ".pack"
OTHERS = "beside"
"""Answers whose triggers stand in the corpus of the other run."""


class Packs:
    """Packs answers as they come, in the order of their addresses."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._texts: Texts | None = None
        self._share: dict[str, float] = {}
        self._name, self._numbers, self._answers, self._size = "", list[list[int]](), list[schema.Record](), 0
        self._seen = hashlib.sha256()
        self.first: dict[str, list[list[int]]] = {}
        """by kind of answer, the numbers of the first answer of each pack"""

    @property
    def stamp(self) -> str:
        """Other packs have another one."""
        return self._seen.hexdigest()[:12]

    def files(self, answers: Iterable[tuple[str, schema.Record]]) -> Iterator[tuple[str, bytes]]:
        """The files for these answers, each with its address."""
        shared = Texts.whole(self._run)
        if shared is not None:
            yield TEXTS, self._packed(Columns(), [[0]], [shared.content])
        self._texts = shared
        for path, answer in answers:
            name, *numbers = parts(path)
            if self._answers and (name != self._name or self._size * self._share.get(self._name, SHARE) > BYTES):
                yield self._close()
            self._name = name
            self._numbers.append(numbers)
            self._answers.append(answer)
            self._size += len(compact(answer))
        if self._answers:
            yield self._close()

    def _close(self) -> tuple[str, bytes]:
        """The pack of what has come since the last one."""
        texts = self._texts
        if texts is None and self._name != OTHERS and next(triggers(self._answers), None) is not None:
            texts = Texts.of(self._run, self._answers)
        content = self._packed(Columns(texts), self._numbers, self._answers)
        self._share[self._name] = len(content) / self._size
        first = self._numbers[0]
        self.first.setdefault(self._name, []).append(first)
        file = "-".join([self._name, *map(str, first)]) + SUFFIX
        self._numbers, self._answers, self._size = [], [], 0
        return file, content

    def _packed(self, columns: Columns, numbers: list[list[int]], answers: list[Any]) -> bytes:
        own = columns.texts is not None and columns.texts is not self._texts
        described = {
            "count": len(answers),
            "numbers": columns.column(numbers),
            "texts": columns.column([columns.texts.content]) if own and columns.texts is not None else None,
            "answers": columns.column(answers),
        }
        head = compact(described)
        content = gzip.compress(len(head).to_bytes(4, "little") + head + columns.bytes, 9, mtime=0)
        self._seen.update(content)
        return content
