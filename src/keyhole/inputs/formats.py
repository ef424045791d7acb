"""Files of text: how they are compressed, and the lines or records in them.

A file is read as a stream. A file that was cut or damaged is an error that names it, if the format can tell: a compressed file
must end where its last frame ends, a record must be whole. Plain text that was cut between two characters looks like
whole text, and is read as it is.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import importlib.util
import io
import json
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..errors import CorpusError, MissingExtra, UsageError

TEXT = (".txt", ".text", ".md", ".tokens")
RECORDS = (".jsonl", ".ndjson", ".csv", ".parquet")
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
DEFAULT_FIELD = "text"
BOM = b"\xef\xbb\xbf"
SLICE_BYTES = 1 << 12
"""Compressed bytes unpacked at once. Few, so that even data that grows ten thousand times when unpacked fits in memory."""


class Line(NamedTuple):
    text: str
    """without its line end"""
    ends: bool
    """whether the document ends after this line"""


def shown(name: object, most: int = 200) -> str:
    """A name for a message of one line. Characters that do not print are escaped, and a very long name is cut."""
    text = os.fsdecode(name) if isinstance(name, (bytes, os.PathLike)) else str(name)
    text = text if len(text) <= most else f"{text[:most]}…"
    return text if text.isprintable() else ascii(text)


def first_line(error: BaseException) -> str:
    """The message of a library's error, its first line only."""
    said = str(error).strip()
    return shown(said.splitlines()[0]) if said else type(error).__name__


def kind(path: Path) -> tuple[str, str]:
    """The ending that says what a file holds, and the ending that says how it is compressed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    return (suffixes[-1] if suffixes else ""), packed


def lines(path: Path, field: str | None) -> Iterator[Line]:
    """The lines of a file of any kind. `field` is the records' field that holds the text."""
    ending, packed = kind(path)
    name = shown(path)
    if field is not None and ending not in RECORDS:
        raise UsageError(
            f"--text-field {shown(field)} is for records (.jsonl, .csv, .parquet), and {name} is plain text."
        )
    asked = field or DEFAULT_FIELD
    try:
        with open_file(path, packed) as file:
            if ending in (".jsonl", ".ndjson"):
                yield from records(_jsonl(file, name, asked))
            elif ending == ".csv":
                yield from records(_csv(file, name, asked))
            elif ending == ".parquet":
                yield from records(_parquet(file, name, asked))
            else:
                yield from plain(file, name)
    except OSError as error:
        raise CorpusError(f"{name} cannot be read: {error.strerror or first_line(error)}") from None


# Compression


def open_file(path: Path, packed: str) -> IO[bytes]:
    """A file's bytes, unpacked."""
    if not packed:
        return path.open("rb")
    new: Callable[[], Any]
    errors: tuple[type[Exception], ...]
    if packed == ".gz":
        new, errors = (lambda: zlib.decompressobj(wbits=31)), (zlib.error,)
    elif packed == ".xz":
        new, errors = (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)), (lzma.LZMAError,)
    elif packed == ".bz2":
        new, errors = bz2.BZ2Decompressor, (OSError, ValueError)
    else:
        if importlib.util.find_spec("zstandard") is None:
            raise MissingExtra("zstandard", "zst", f"Reading {shown(path.name)}")
        import zstandard

        new, errors = (lambda: zstandard.ZstdDecompressor().decompressobj()), (zstandard.ZstdError,)
    return io.BufferedReader(_Unpacked(path, new, errors), 1 << 20)


class _Unpacked(io.RawIOBase):
    """A compressed file's content. The file consists of frames; if it ends inside a frame, or holds anything else, it is
    damaged. (The readers of the modules gzip, lzma and zstandard take some of that for the end of the file.)"""

    def __init__(self, path: Path, new: Callable[[], Any], errors: tuple[type[Exception], ...]) -> None:
        self._name, self._new = shown(path), new
        self._errors: tuple[type[Exception], ...] = (*errors, EOFError, MemoryError)
        self._file = path.open("rb")
        self._frame = new()  # an empty file is damaged: it must have a frame
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._packed or self._file.read(SLICE_BYTES)
            self._packed = b""
            if not data:
                if self._frame is None:
                    return 0
                raise CorpusError(
                    f"{self._name} is damaged: it ends inside its compressed data, so some of it is missing. Fetch it again."
                )
            if self._frame is None:
                data = data.lstrip(b"\0")  # padding is allowed between frames and after the last
                if not data:
                    continue
                self._frame = self._new()
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._errors as error:
                raise CorpusError(
                    f"{self._name} is damaged or not what its ending says: {first_line(error)}. Fetch it again."
                ) from None
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


# What is in a file


def decode(raw: bytes, name: str, at: int) -> str:
    """Text from bytes that start at offset `at` of `name`."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"offset {at + error.start:,}"
        if error.end == len(raw) and error.reason == "unexpected end of data":
            raise CorpusError(
                f"{name} is not UTF-8: it ends inside a character, at {where}. It seems cut; fetch it again."
            ) from None
        raise CorpusError(
            f"{name} is not UTF-8: byte 0x{raw[error.start]:02x} at {where}. "
            "Convert it first, for example: iconv -f latin1 -t utf-8 FILE > FILE.utf8"
        ) from None


def _decoded(file: IO[bytes], name: str) -> Iterator[str]:
    """Lines with their ends, decoded; a byte order mark at the start is left out."""
    at = 0
    for raw in file:
        start = len(BOM) if at == 0 and raw.startswith(BOM) else 0
        yield decode(raw[start:], name, at + start)
        at += len(raw)


def plain(file: IO[bytes], name: str) -> Iterator[Line]:
    """Lines of plain text; a blank line, or the end, ends the document."""
    for line in _decoded(file, name):
        text = line.rstrip("\r\n")
        yield Line(text, ends=not text.strip())
    yield Line("", ends=True)


def records(texts: Iterable[str]) -> Iterator[Line]:
    """The lines of texts, each of which is a document."""
    for text in texts:
        for line in text.replace("\r\n", "\n").split("\n"):
            yield Line(line, ends=False)
        yield Line("", ends=True)


def _jsonl(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    for number, text in enumerate(_decoded(file, name), 1):
        if not text.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{where}: not JSON ({error.msg}, column {error.colno}).") from None
        except RecursionError:
            raise CorpusError(f"{where}: the JSON is nested too deeply to be read.") from None
        except ValueError as error:  # an integer of thousands of digits
            raise CorpusError(f"{where}: JSON that cannot be read ({first_line(error)}).") from None
        if not isinstance(record, dict):
            raise CorpusError(f"{where}: a JSON object is needed, this is a {type(record).__name__}.")
        yield field_of(record, field, where)


def field_of(record: dict[str, Any], field: str, where: str) -> str:
    """The text of a record."""
    if field not in record:
        raise _no_field(record, field, where)
    value = record[field]
    if value is None:
        raise CorpusError(f"{where}: the field '{shown(field)}' is null, not text. Leave such records out.")
    if not isinstance(value, str):
        raise CorpusError(f"{where}: the field '{shown(field)}' is {type(value).__name__}, not text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{where}: the field '{shown(field)}' has half a character ({value[error.start]!r}, a lone surrogate) at {error.start:,}. "
            "Take it out, or mend what wrote the file."
        ) from None
    return value


def _no_field(names: Iterable[str], field: str, where: str) -> CorpusError:
    has = [shown(name, 60) for name in names]
    some = ", ".join(has[:20]) + (", …" if len(has) > 20 else "")
    return CorpusError(f"{where}: there is no field '{shown(field)}'. It has: {some or 'none'}. Use --text-field.")


def _csv(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    """Rows after a header, all as wide as the header: a narrower row was cut, a wider one has a comma that is not quoted."""
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(_decoded(file, name), strict=True)
    try:
        header = next((row for row in rows if row), None)
        if header is None:
            raise CorpusError(f"{name} is empty: a CSV file needs a first line with the names of its columns.")
        if header.count(field) != 1:
            if field in header:
                raise CorpusError(
                    f"{name}: {header.count(field)} columns are named '{shown(field)}'. Rename all but one."
                )
            raise _no_field(header, field, f"{name}, line {rows.line_num}")
        column = header.index(field)
        for row in rows:
            if row and len(row) != len(header):
                raise CorpusError(
                    f"{name}, line {rows.line_num}: the row has {len(row)} columns, the header {len(header)}. The file is cut, "
                    "or a text with a comma is not quoted."
                )
            if row:
                yield field_of({field: row[column]}, field, f"{name}, line {rows.line_num}")
    except csv.Error as error:
        raise CorpusError(
            f"{name}, line {rows.line_num}: not CSV ({first_line(error)}). The file is cut, or a quote is not closed."
        ) from None


def _parquet(file: IO[bytes], name: str, field: str) -> Iterator[str]:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("pyarrow", "parquet", f"Reading {name}")
    import pyarrow.parquet

    def batches(file: IO[bytes]) -> Iterator[list[Any]]:
        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True)
        schema = table.schema_arrow
        if field not in schema.names:
            raise _no_field(schema.names, field, name)
        if (place := schema.get_field_index(field)) < 0:
            raise CorpusError(f"{name}: several columns are named '{shown(field)}'. Rename all but one.")
        if not _is_text(kind := schema.field(place).type):
            raise CorpusError(f"{name}: the column '{shown(field)}' is {shown(kind)}, not text. Use --text-field.")
        rows = 0
        for batch in table.iter_batches(batch_size=1024, columns=[field]):
            rows += len(batch)
            yield batch.column(batch.schema.get_field_index(field)).to_pylist()
        if rows != table.metadata.num_rows:
            raise CorpusError(f"{name} is damaged: it has {rows:,} rows and says {table.metadata.num_rows:,}.")

    row = 0
    with _seekable(file) as whole:
        try:
            for values in batches(whole):
                for value in values:
                    yield field_of({field: value}, field, f"{name}, row {row}")
                    row += 1
        except CorpusError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged page fails in its decompressor, in arrow or in Python
            what = f"is damaged after row {row - 1}" if row else "is not a Parquet file, or damaged"
            raise CorpusError(f"{name} {what}: {first_line(error)}") from None


def _is_text(kind: Any) -> bool:
    """Whether a column's type is text, in any of Arrow's forms."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


@contextlib.contextmanager
def _seekable(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file itself, or a copy of it if it is a stream: a Parquet file is read from its end."""
    if file.seekable():
        yield file
        return
    with tempfile.TemporaryFile(prefix="keyhole-") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.seek(0)
        yield copy
