"""Where a trigger comes from, against the corpus itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import tiny

import keyhole
from keyhole.web import provenance
from keyhole.web.contract import Explorer, NotThere
from keyhole.web.pack import SEPARATOR

TEXTS = [
    ["One cat | sat.", "Two dogs ran off."],
    ["A single line stands alone."],
    ["Third begins.", "Then goes on.", "And ends."],
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    folder = tmp_path_factory.mktemp("provenance")
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines) for lines in TEXTS) + "\n", encoding="utf-8")
    return keyhole.scan(tiny("gpt2"), [folder / "text.txt"], out=folder / "run", top=3, unit="line", context=64)


def test_documents_and_passages_are_the_corpus(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "UNITS", 4)
    monkeypatch.setattr(provenance, "TOKENS", 7)
    explorer = Explorer(run)
    assert explorer.about().passages
    paths = set(explorer.paths())
    tokens: list[str] = []
    for number in range(provenance.passages(run)):
        assert f"passages/{number}.json" in paths
        answer = explorer.answer(f"passages/{number}.json")
        assert answer.first == len(tokens)  # type: ignore[attr-defined]
        part = answer.tokens  # type: ignore[attr-defined]
        tokens += part.split(SEPARATOR) if isinstance(part, str) else part
    with pytest.raises(NotThere):
        explorer.answer(f"passages/{provenance.passages(run)}.json")
    lines = [(document, line) for document, lines in enumerate(TEXTS) for line in lines]
    seen = 0
    for page in range(provenance.pages(run)):
        found = provenance.documents(run, page)
        for i, document in enumerate(found.documents):
            truth, line = lines[seen]
            assert document == truth
            assert "".join(tokens[found.starts[i] : found.starts[i + 1]]) == line
            about = found.about[str(document)]
            assert lines[about.first] == (truth, TEXTS[truth][0])
            assert about.units == len(TEXTS[truth])
            assert TEXTS[truth][0].startswith(about.beginning)
            seen += 1
    assert seen == len(lines)


def test_an_export_of_a_large_corpus_has_no_passages(run: keyhole.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "EXPORTED", 3)
    exported, served = Explorer(run), Explorer(run, live=True)
    assert (exported.about().passages, served.about().passages) == (False, True)
    assert not any(path.startswith("passages/") for path in exported.paths())
    assert any(path.startswith("documents/") for path in exported.paths())


def test_beginnings_are_short(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 300 + "\n", encoding="utf-8")
    run = keyhole.scan(tiny("gpt2"), [tmp_path / "long.txt"], out=tmp_path / "run", top=3, unit="line", context=64)
    about = provenance.documents(run, 0).about["0"]
    assert len(about.beginning) == provenance.BEGINNING
    assert about.beginning.endswith("…")
