"""Sentences by the rules of their language, in every place that splits text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from families import save, tiny
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.errors import UsageError
from keyhole.inputs import corpus, reader
from keyhole.inputs.sentences import LANGUAGES, sentence_splitter

SPANISH = "La Sra. Ruiz vive en la Av. Libertador. El Sr. García no vino."
EXPECTED = ["La Sra. Ruiz vive en la Av. Libertador.", "El Sr. García no vino."]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(f"{SPANISH}\n", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("es", SPANISH, EXPECTED),
        ("de", "Er kam am 3. Oktober nach Berlin. Es regnete.", ["Er kam am 3. Oktober nach Berlin.", "Es regnete."]),
        ("ru", "Это г. Москва. Конец.", ["Это г. Москва.", "Конец."]),
        ("el", "Τι κάνεις; Καλά.", ["Τι κάνεις;", "Καλά."]),
        ("zh", "这是一句话。这是第二句。", ["这是一句话。", "这是第二句。"]),
        ("hi", "यह वाक्य है। यह दूसरा है।", ["यह वाक्य है।", "यह दूसरा है।"]),
    ],
)
def test_a_language_has_its_own_rules(language: str, text: str, sentences: list[str]) -> None:
    found = list(sentence_splitter(language)(text))
    assert [sentence for _, sentence in found] == sentences
    assert all(text[start : start + len(sentence)] == sentence for start, sentence in found)
    if language in ("es", "de", "ru", "el"):  # English cuts elsewhere, so the language makes a difference
        assert [sentence for _, sentence in sentence_splitter("en")(text)] != sentences


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_language_loses_or_moves_text(language: str) -> None:
    line = (
        "  One. Dr. Two? «Trois. Quatre!» 3. Okt. これは。 यह है। Вот г. Москва и т. д. ։ Τι; 🙂 .. a\u3000. e\u0301.  "
    )
    at = 0
    for start, text in sentence_splitter(language)(line):
        assert line[start : start + len(text)] == text
        assert not line[at:start].strip()
        at = start + len(text)
    assert not line[at:].strip()


@pytest.mark.parametrize("language", ["xx", "EN", "english", "", 5, None])
def test_an_unknown_language_says_which_there_are(language: object, text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"language is .*de \(German\).*--unit line"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", language=language)
    with pytest.raises(UsageError, match="language is"):
        list(corpus.units([text], "sentence", language=language))  # type: ignore[arg-type]
    assert not list(tmp_path.glob("run*"))


def test_the_process_that_reads_knows_the_language(text: Path) -> None:
    for language in ("en", "es"):
        here = list(corpus.units([text], "sentence", language=language))
        assert list(reader.units([str(text)], "sentence", language=language)) == here
    assert [unit.text for unit in here] == EXPECTED


def test_scan_verify_and_a_repeated_scan_use_the_language(text: Path, tmp_path: Path) -> None:
    model = save(tiny("llama"), tmp_path / "model")
    asked = ["scan", model, str(text), "--language", "es", "--out", str(tmp_path / "a"), "--top", "3"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    run = keyhole.open(tmp_path / "a")
    assert run.manifest["corpus"]["units"] == 2
    assert run.manifest["config"]["language"] == "es"
    found = keyhole.verify(run, cells=20, model=tiny("llama"))
    assert found.ok
    assert found.from_text  # the units were read again, split the same way, and have the same tokens
    done = CliRunner().invoke(app, ["scan", "--from", str(tmp_path / "a"), "--out", str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert manifest == run.manifest
    english = keyhole.scan(tiny("llama"), [text], out=tmp_path / "c", top=3)
    assert english.manifest["config"]["language"] == "en"
    assert english.manifest["corpus"]["units"] == 4
