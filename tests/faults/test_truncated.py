"""Corpora that were cut or damaged, at any byte, in every format and compression: noticed, or beyond what the format can know.

What a cut file may still give is said per format, from its bytes; what a flipped byte may give is an error, or for a
compressed file with a checksum the same text. Nothing else is ever raised than one line that names the file.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyhole.errors import CorpusError
from keyhole.inputs.corpus import units

TEXTS = ["Plain words.", "Ünïcode — “quoted”, 日本 🙂.", 'Said "so", twice.', "x " * 30 + "end."]


def csv_bytes() -> bytes:
    rows = ['{},"{}"\r\n'.format(i, text.replace('"', '""')) for i, text in enumerate(TEXTS)]
    return ("id,text\r\n" + "".join(rows)).encode()


@functools.cache
def parquet_bytes(checksums: bool = True) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"id": list(range(len(TEXTS))), "text": TEXTS})
    pyarrow.parquet.write_table(table, file, write_page_checksum=checksums)
    return file.getvalue()


JSONL = "".join(json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) + "\n" for i, text in enumerate(TEXTS))
PLAIN = "\n".join(TEXTS).encode()
FORMATS: dict[str, Callable[[], bytes]] = {
    ".txt": lambda: PLAIN,
    ".md": lambda: PLAIN,
    ".jsonl": lambda: JSONL.encode(),
    ".ndjson": lambda: JSONL.encode(),
    ".csv": csv_bytes,
    ".parquet": parquet_bytes,
}


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACKS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zst,
}


def read(path: Path, data: bytes) -> list[str] | None:
    """The lines of a file with these bytes, or None if it is refused as it should be."""
    path.write_bytes(data)
    try:
        return [unit.text for unit in units([path], "line")]
    except CorpusError as error:
        said = str(error)
    assert path.name in said
    assert said.isprintable()
    return None


def places(data: bytes) -> range:
    """Every byte of a small file, every few of a larger one (all residues are met over the formats)."""
    return range(0, len(data), 1 + len(data) // 700)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("ending", FORMATS)
def test_a_cut_compressed_file_is_always_noticed(ending: str, pack: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}{pack}"
    data = PACKS[pack](FORMATS[ending]())
    assert read(path, data) == TEXTS
    for cut in {*places(data), *range(len(data) - 30, len(data))}:
        assert read(path, data[:cut]) is None, cut


def test_cut_plain_text_is_what_is_there_unless_a_character_is_cut(tmp_path: Path) -> None:
    for cut in range(len(PLAIN)):
        try:
            there = PLAIN[:cut].decode()
        except UnicodeDecodeError:
            there = None
        expected = there if there is None else [line for line in there.split("\n") if line]
        assert read(tmp_path / "a.txt", PLAIN[:cut]) == expected


def test_a_cut_record_of_json_is_noticed(tmp_path: Path) -> None:
    data = JSONL.encode()
    whole = JSONL.encode().split(b"\n")
    for cut in range(len(data)):
        lines = data[:cut].split(b"\n")
        cut_one = lines[-1] not in (b"", whole[len(lines) - 1])
        expected = TEXTS[: len([line for line in lines if line])]
        assert read(tmp_path / "a.jsonl", data[:cut]) == (None if cut_one else expected)


def test_a_cut_row_of_csv_is_noticed_unless_it_looks_whole(tmp_path: Path) -> None:
    data = csv_bytes()
    ends = [at + 1 for at in range(len(data)) if data[at : at + 1] == b'"']
    for cut in range(len(data)):
        got = read(tmp_path / "a.csv", data[:cut])
        if got is None:
            continue
        assert got[:-1] == TEXTS[: len(got)][:-1]
        assert not got or TEXTS[len(got) - 1].startswith(got[-1])
        after = data[:cut].rstrip(b"\r\n")
        # after the header, an empty text, a closing quote or the first of a doubled one
        assert after == b"id,text" or after.endswith(b",") or len(after) in ends
    assert read(tmp_path / "a.csv", b"id,text\r\n") == []


@pytest.mark.parametrize("ending", FORMATS)
def test_a_cut_file_raises_nothing_else(ending: str, tmp_path: Path) -> None:
    data = FORMATS[ending]()
    assert read(tmp_path / f"a{ending}", data) == TEXTS
    for cut in places(data):
        got = read(tmp_path / f"a{ending}", data[:cut])
        assert ending != ".parquet" or got is None


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv"])
def test_a_flipped_byte_of_a_compressed_file_is_noticed_or_changes_nothing(
    ending: str, pack: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a{ending}{pack}"
    data = PACKS[pack](FORMATS[ending]())
    for at in places(data):
        for flip in (0xFF, 1 << at % 8):
            got = read(path, data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
            assert got in (None, TEXTS), at


@pytest.mark.parametrize("ending", FORMATS)
def test_a_flipped_byte_raises_nothing_else(ending: str, tmp_path: Path) -> None:
    data = FORMATS[ending]()
    for at in places(data):
        for flip in (0xFF, 0x80, 1 << at % 8):
            read(tmp_path / f"a{ending}", data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_a_flipped_byte_of_unchecked_parquet_pages_raises_nothing_else(tmp_path: Path) -> None:
    data = parquet_bytes(checksums=False)
    for at in range(0, len(data), 2):
        read(tmp_path / "a.parquet", data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])


@pytest.mark.parametrize("pack", PACKS)
def test_several_frames_are_one_file_and_anything_else_after_them_is_damage(pack: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{pack}"
    first, second = PACKS[pack](b"one\n"), PACKS[pack](b"two\n")
    assert read(path, first + second) == ["one", "two"]
    assert read(path, first + PACKS[pack](b"") + second) == ["one", "two"]
    for cut in range(1, len(second)):
        assert read(path, first + second[:cut]) is None
    for at in range(4):  # where a frame's first bytes are wrong, the rest is not the end
        assert read(path, first + second[:at] + bytes([second[at] ^ 0xFF]) + second[at + 1 :]) is None
    assert read(path, first + b"garbage") is None
    assert read(path, b"") is None
    assert read(path, first + b"\0" * 8) == ["one"]  # padding


def test_frames_of_zstandard_that_hold_no_text_are_passed_over(tmp_path: Path) -> None:
    skipped = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"other"
    assert read(tmp_path / "a.txt.zst", zst(b"one\n") + skipped + zst(b"two\n")) == ["one", "two"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ending=st.sampled_from([*FORMATS]),
    pack=st.sampled_from(["", *PACKS]),
    data=st.one_of(st.binary(max_size=60), st.text('{}[]",:\\u0123\n\r\0\ufeffé a', max_size=40).map(str.encode)),
)
def test_any_bytes_are_read_or_refused(ending: str, pack: str, data: bytes, tmp_path: Path) -> None:
    read(tmp_path / f"a{ending}{pack}", data)
    if pack:
        read(tmp_path / f"a{ending}{pack}", PACKS[pack](data))
