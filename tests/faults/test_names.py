"""Names that people type: whatever they are, each person has one file, inside the folder, and nobody gets another's."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import explored
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyhole
from keyhole.common import names
from keyhole.errors import UsageError
from keyhole.store import annotations, layout

REFUSED = [
    "", " ", ".", "..", "../evil", "a/b", "a\\b", "/etc/passwd", "-x", " Ada", "a\n", "a\x00b", "a\x7f", "\u202eadA", "Ada\u202e", "Ada\u2066",
    "Ada\u200b", "\ufeffAda", "\u200eAda", "\u061cAda", "Ada\u2028", "\ud800", "x" * 61, "é" * 200, "rules", "RULES", "Rules",
]  # fmt: skip
TAKEN = [
    "ann", "Ann", "ada-lovelace", "Ada Lovelace", "ada lovelace", "Ada_Lovelace", "Zoë", "Zoe", "O’Brien", "J. R. R. Tolkien", "王小明",
    "王小红", "שרה", "محمد", "Ångström", "😀", "👩‍🔬 Ada", "con", "a.jsonl", "ada.jsonl", "x" * 60, "x" * 41, "ﬁ", "fi", "ß", "ss", "𝔘", "Ada <b>",
]  # fmt: skip


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("names")
    (folder / "a.txt").write_text("".join(f"The cat number {i} sat.\n" for i in range(9)))
    return keyhole.scan(explored.model(), [folder / "a.txt"], out=folder / "run", top=6, unit="line", context=64)


def annotate(run: keyhole.Run, name: str, cell: int = 0) -> None:
    annotations.save(run, {"annotator": name, "layer": 0, "cell": cell, "patterns": []})


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_refused_writes_nothing(scanned: keyhole.Run, name: str) -> None:
    with pytest.raises(UsageError):
        annotate(scanned, name)
    assert not (scanned.path / "annotations").exists()


def test_every_person_has_a_file_of_their_own(scanned: keyhole.Run, tmp_path: Path) -> None:
    run = keyhole.open(shutil.copytree(scanned.path, tmp_path / "run"))
    for name in TAKEN:
        annotate(run, name)
    persons = {unicodedata.normalize("NFC", name).lower() for name in TAKEN}
    assert len(persons) == len(TAKEN) - 2, "Ann is ann, and Ada Lovelace is ada lovelace"
    files = sorted(file.name for file in (run.path / "annotations").iterdir())
    assert len(files) == len(persons)
    assert {"ann.jsonl", "ada-lovelace.jsonl", "ada_lovelace.jsonl", "con.jsonl"} <= set(files), (
        "plain names stay as they were"
    )
    assert layout.foreign(run.path) is None
    assert all(file.isascii() and len(file) < 80 for file in files)
    read = [each.annotator for each in annotations.read_annotations(keyhole.open(run.path))]
    assert {unicodedata.normalize("NFC", name).lower() for name in read} == persons
    assert "ada lovelace" in read, "as it was spelled last"
    assert "Ada Lovelace" not in read


def test_one_spelling_of_a_person_and_files_of_earlier_versions(scanned: keyhole.Run, tmp_path: Path) -> None:
    run = keyhole.open(shutil.copytree(scanned.path, tmp_path / "run"))
    (run.path / "annotations").mkdir()
    old = '{"annotator":"ann","layer":0,"cell":1,"patterns":[],"skipped":false,"at":"some day"}\n'
    (run.path / "annotations" / "ann.jsonl").write_text(old)
    annotate(run, "Ann", cell=2)
    annotate(run, "Zoe\u0308", cell=1)
    annotate(run, "ZOË", cell=2)
    assert len(list((run.path / "annotations").iterdir())) == 2
    assert annotations.summary(run)["annotators"] == ["Ann", "ZOË"]
    assert [(each.annotator, each.cell) for each in annotations.read_annotations(run)] == [
        ("Ann", 1), ("Ann", 2), ("ZOË", 1), ("ZOË", 2),
    ]  # fmt: skip


@given(st.text(max_size=70))
def test_any_text_is_refused_or_read_back_and_names_a_plain_file(text: str) -> None:
    try:
        name = names.tidy(text, names.NAME, "it is refused")
    except UsageError:
        return
    assert names.tidy(name, names.NAME, "") == name
    file = names.file_name(name)
    assert layout._FILES.fullmatch(f"annotations/{file}.jsonl")
    assert names.file_name(name.upper() if name.upper().lower() == name.lower() else name) == file


@given(st.text(max_size=50), st.text(max_size=50))
def test_two_names_share_a_file_only_if_they_are_one(one: str, other: str) -> None:
    if names.same(one) != names.same(other):
        assert names.file_name(one) != names.file_name(other)
