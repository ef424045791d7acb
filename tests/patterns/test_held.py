"""The texts that patterns are found in and scored on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import tiny
from small import corpus, scanned

import keyhole
from keyhole.analyses.targets import held_out_units
from keyhole.errors import CorpusError
from keyhole.models.model import Model
from keyhole.patterns import held
from keyhole.patterns.text import Text


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny("llama")


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """Windows are short, so that some lines are cut; and every line is there twice."""
    folder = tmp_path_factory.mktemp("run")
    text = corpus(folder / "text.txt")
    text.write_text(text.read_text() * 2, encoding="utf-8")
    return keyhole.scan(model, [text], out=folder / "run", unit="line", top=4, context=16, hold_out=0.35)


def windows_of(text: Text) -> list[tuple[int, ...]]:
    return [tuple(window.tolist()) for window in np.split(text.tokens, text.offsets[1:-1])]


def cut(model: Model, lines: list[str], room: int) -> list[tuple[int, ...]]:
    every = [ids for ids in model.tokenize(lines) if ids]
    return [tuple(ids[at : at + room]) for ids in every for at in range(0, len(ids), room)]


def test_what_the_scan_held_out_is_scored_on_and_never_mined(run: keyhole.Run, model: Model) -> None:
    lines = (Path(run.path).parent / "text.txt").read_text().splitlines()
    out = set(held_out_units(run).tolist())
    assert out
    text, facts = held.held_out_text(run, model, most_tokens=10**6)
    assert windows_of(text) == cut(model, [line for i, line in enumerate(lines) if i in out], run.room)
    assert facts == {"source": "held out", "files": "", "tokens": len(text), "documents": 1}
    mined = windows_of(held.mining_text(run, most_tokens=10**6))
    expected = cut(model, [line for i, line in enumerate(lines) if i not in out], run.room)
    assert len(mined) == len(set(mined)) == len(set(expected)) < len(expected)
    assert set(mined) == set(expected)
    places = [expected.index(window) for window in mined if expected.count(window) == 1]
    assert places == sorted(places)  # in the order of the corpus


def test_given_files_are_cut_as_the_run_was(run: keyhole.Run, model: Model, tmp_path: Path) -> None:
    lines = corpus(tmp_path / "other.txt", 60).read_text().splitlines()
    text, facts = held.held_out_text(run, model, [tmp_path / "other.txt"], most_tokens=10**6)
    assert windows_of(text) == cut(model, lines, run.room)
    assert (facts["source"], facts["files"], facts["tokens"]) == ("valid", "other.txt", len(text))


def test_without_held_out_text_it_is_the_corpus_and_the_facts_say_so(model: Model, tmp_path: Path) -> None:
    run = scanned(model, tmp_path, hold_out=0.0)
    text, facts = held.held_out_text(run, model, most_tokens=10**6)
    assert facts["source"] == "corpus"
    np.testing.assert_array_equal(text.tokens, run.tokens)


def test_whole_documents_are_drawn_if_enough_of_them_fit(run: keyhole.Run, model: Model, tmp_path: Path) -> None:
    file = tmp_path / "documents.txt"
    file.write_text(
        "\n\n".join(f"{i:03d} alpha\n{i:03d} beta beta\n{i:03d} gamma" for i in range(100)), encoding="utf-8"
    )
    whole, _ = held.held_out_text(run, model, [file], most_tokens=10**6)
    sizes = np.bincount(whole.documents[whole.windows])
    assert len(sizes) == 100
    text, facts = held.held_out_text(run, model, [file], most_tokens=30 * int(sizes.max()))
    found, counts = np.unique(text.documents[text.windows], return_counts=True)
    assert facts["documents"] == len(found) == 30
    np.testing.assert_array_equal(counts, sizes[found])
    again, _ = held.held_out_text(run, model, [file], most_tokens=30 * int(sizes.max()))
    other, _ = held.held_out_text(run, model, [file], most_tokens=30 * int(sizes.max()), seed=1)
    np.testing.assert_array_equal(again.tokens, text.tokens)
    assert set(other.documents.tolist()) != set(found.tolist())
    few, facts = held.held_out_text(run, model, [file], most_tokens=15 * int(sizes.max()))
    documents = facts["documents"]
    assert isinstance(documents, int)
    assert documents > 20  # windows of many documents
    assert 13 * sizes.max() < len(few) <= 15 * sizes.max()
    assert set(windows_of(few)) <= set(windows_of(whole))


def test_a_sample_to_mine_is_bounded_and_seeded(run: keyhole.Run) -> None:
    every = held.mining_text(run, most_tokens=10**6)
    some, again = (held.mining_text(run, most_tokens=150, seed=3) for _ in range(2))
    assert 120 < len(some) <= 150 < len(every)
    assert set(windows_of(some)) < set(windows_of(every))
    np.testing.assert_array_equal(some.tokens, again.tokens)
    assert windows_of(held.mining_text(run, most_tokens=150, seed=4)) != windows_of(some)


def test_rules_can_be_found_in_other_text_but_never_in_what_is_held_out(
    run: keyhole.Run, model: Model, tmp_path: Path
) -> None:
    lines = corpus(tmp_path / "more.txt", 80).read_text().splitlines()
    (tmp_path / "held.txt").write_text("\n".join(lines[10:30]) + "\n", encoding="utf-8")
    out, _ = held.held_out_text(run, model, [tmp_path / "held.txt"], most_tokens=10**6)
    every = cut(model, lines, run.room)
    all_of_it = windows_of(held.mining_text(run, model, [tmp_path / "more.txt"], most_tokens=10**6))
    assert len(all_of_it) == len(set(every))
    assert set(all_of_it) == set(every)
    rest = windows_of(held.mining_text(run, model, [tmp_path / "more.txt"], most_tokens=10**6, without=out))
    assert set(rest) == set(every) - set(windows_of(out))
    assert len(rest) < len(all_of_it)
    with pytest.raises(CorpusError, match=r"no window of .*held\.txt fits into 1,000 tokens and is not held out"):
        held.mining_text(run, model, [tmp_path / "held.txt"], most_tokens=1000, without=out)


def test_no_text_is_an_error(run: keyhole.Run, model: Model, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"empty\.txt has no tokens"):
        held.held_out_text(run, model, [tmp_path / "empty.txt"], most_tokens=100)
    with pytest.raises(CorpusError, match="fits into 0 tokens"):
        held.mining_text(run, most_tokens=0)


def test_only_the_beginning_of_a_very_long_file_is_read(
    run: keyhole.Run, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.inputs.corpus.CHUNK_CHARACTERS", 50)
    monkeypatch.setattr(held, "MOST_READ", 200)
    lines = corpus(tmp_path / "long.txt", 200).read_text().splitlines()
    text, _ = held.held_out_text(run, model, [tmp_path / "long.txt"], most_tokens=10**6)
    found, every = windows_of(text), cut(model, lines, run.room)
    assert found == every[: len(found)]
    assert 190 < len(text) < 300
