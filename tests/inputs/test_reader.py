"""A corpus read by a process of its own: the same units, the same errors, nothing left behind."""

from __future__ import annotations

import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
from families import save, tiny

import keyhole
from keyhole.errors import CorpusError, MissingExtra, UsageError
from keyhole.inputs import corpus, reader

TEXT = "One sentence. Another, l’été.\r\nA third\n\n  A new document. " + "It goes on. " * 40 + "\n\n\nThe last one"


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT.encode())
    return str(file)


@pytest.mark.parametrize("unit", corpus.UNITS)
def test_the_same_units(text: str, tmp_path: Path, unit: str) -> None:
    several = tmp_path / "several_chunks.txt"
    several.write_text(f"{TEXT}\n\n" * (3 * corpus.CHUNK_CHARACTERS // len(TEXT)))
    records = tmp_path / "records.jsonl.xz"
    with lzma.open(records, "wt") as file:
        file.writelines(json.dumps({"said": said}) + "\n" for said in (TEXT, "", "Short 🙂."))
    for names, field in (([text, str(several)], None), ([str(records)], "said")):
        expected = list(corpus.units(names, unit, text_field=field))
        assert len(expected) > 1
        assert list(reader.units(names, unit, text_field=field)) == expected


def test_the_same_errors(text: str, tmp_path: Path) -> None:
    def told(read: object, name: str, **options: object) -> tuple[type, str]:
        with pytest.raises(keyhole.errors.KeyholeError) as caught:
            list(read([name], "line", **options))  # type: ignore[operator]
        return type(caught.value), str(caught.value)

    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"fine\n\xff\n")
    cut = tmp_path / "cut.txt.xz"
    cut.write_bytes(lzma.compress(TEXT.encode())[:-9])
    for name, options, kind in (
        (str(bad), {}, CorpusError),
        (str(cut), {}, CorpusError),
        (str(tmp_path / "none.txt"), {}, CorpusError),
        (text, {"text_field": "said"}, UsageError),
    ):
        here = told(corpus.units, name, **options)
        assert here[0] is kind
        assert told(reader.units, name, **options) == here


def test_what_a_library_prints_is_not_taken_for_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "START", LOUD)
    assert list(reader.units([text], "line")) == list(corpus.units([text], "line"))


LOUD = """
import os
from keyhole.inputs import corpus, reader
quiet = corpus.units
def units(*args, **options):
    print("loud", flush=True)
    os.write(1, b"louder")
    yield from quiet(*args, **options)
corpus.units = units
reader.child()
"""


def test_an_error_made_of_several_things_is_the_same_again() -> None:
    error = MissingExtra("zstandard", "zst", "Reading x.zst")
    again = reader._again("MissingExtra", str(error))
    assert (type(again), str(again)) == (MissingExtra, str(error))


@pytest.mark.parametrize(
    "start", ["raise SystemExit(3)", "import sys; sys.stdin.read(); print('hello'); raise SystemExit(3)"]
)
def test_a_process_that_ends_early_is_no_end_of_the_corpus(
    text: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "START", start)
    with pytest.raises(CorpusError, match=r"text.txt ended early, with status 3"):
        list(reader.units([text], "line"))


@pytest.mark.parametrize("closed", [(0,), (2,), (0, 1, 2)])
def test_without_standard_streams(text: str, closed: tuple[int, ...], tmp_path: Path) -> None:
    """Neither this process nor the one that reads needs them; the corpus '-' does."""
    code = (
        "import sys; from keyhole import errors; from keyhole.inputs import corpus, reader\n"
        "same = list(reader.units([sys.argv[1]], 'line')) == list(corpus.units([sys.argv[1]], 'line'))\n"
        "said = ''\n"
        "try: list(reader.units(['-'], 'line'))\n"
        "except errors.CorpusError as error: said = str(error)\n"
        "open(sys.argv[2], 'w').write(f'{same} {said}')"
    )
    shut = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    command = [sys.executable, "-c", code, text, str(tmp_path / "told")]
    done = subprocess.run(["sh", "-c", f'exec "$@" {shut}', "sh", *command], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    said = (tmp_path / "told").read_text()
    assert said.startswith("True ")
    assert ("Standard input is closed" in said) == (0 in closed)


def test_standard_input_is_read_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b"from a pipe\n")

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert [unit.text for unit in reader.units(["-"], "line")] == ["from a pipe"]


def test_a_file_that_is_gone_is_not_worthwhile(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> int:
        raise FileNotFoundError(2, "No such file or directory", name)

    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os.path, "getsize", gone)
    assert not reader.worthwhile([text])


def test_left_early_it_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "long.txt"
    file.write_text("A line.\n" * 1_000_000)  # more than pipes hold
    made: list[subprocess.Popen[str]] = []
    start = reader.start_child
    monkeypatch.setattr(reader, "start_child", lambda code: (made.append(start(code)), made[-1])[1])
    units = reader.units([str(file)], "line")
    assert next(units).text == "A line."
    assert made[0].poll() is None
    units.close()
    assert made[0].returncode is not None


def test_when_it_is_worthwhile(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert not reader.worthwhile([text])
    monkeypatch.setattr(reader, "WORTHWHILE", 100)
    assert reader.worthwhile([text])
    assert not reader.worthwhile([text, "-"])
    assert not reader.worthwhile(["hf:some/thing"])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert not reader.worthwhile([text])


def test_a_scan_is_the_same(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tiny("gpt2"), tmp_path / "model")
    here = keyhole.scan(model, text, tmp_path / "here", top=3)
    monkeypatch.setattr(reader, "worthwhile", lambda names: True)
    monkeypatch.setattr(corpus, "units", None)  # nothing is read in this process
    beside = keyhole.scan(model, text, tmp_path / "beside", top=3)
    assert beside.manifest["files"] == here.manifest["files"]
    assert beside.manifest["corpus"] == here.manifest["corpus"]
