"""Patterns in the terminal and in a notebook: numbers as they are stored, and nothing new in a run without patterns."""

from __future__ import annotations

import shutil
from pathlib import Path

import explored
import patterned
import pytest
from pages import Page, read
from patterned import key, pattern, scores
from typer.testing import CliRunner

import keyhole
from keyhole.cli import app
from keyhole.store import values
from keyhole.store.patterns import Score
from keyhole.store.run import Cell
from keyhole.views import patterns as views
from keyhole.views.report import write as report

HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def explored_run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("patterns"))


@pytest.fixture
def run(explored_run: keyhole.Run, tmp_path: Path) -> keyhole.Run:
    """A copy of it for one test to change."""
    return keyhole.Run(shutil.copytree(explored_run.path, tmp_path / "run"))


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def cell_of(run: keyhole.Run, least: int = 6) -> Cell:
    """A cell with that many triggers on both sides."""
    return next(cell for cell in run.layer(1) if len(cell.triggers) >= least and len(cell.triggers_negative) >= least)


def test_a_run_without_patterns_says_nothing_of_them(run: keyhole.Run) -> None:
    cell = cell_of(run)
    before = ask("show", run.path, cell.address), cell._repr_html_(), run.layer(1)._repr_html_()
    assert "pattern" not in before[0]
    assert "attern" not in before[1].split("</style>")[1]
    assert "looked at" not in ask("info", run.path)
    patterned.store(run, {})
    shown = ask("show", run.path, cell.address)
    assert "patterns: this key was not looked at\n" in shown
    rest = [line for line in shown.splitlines() if "not looked at" not in line]
    assert [line for line in rest if line.strip()] == [line for line in before[0].splitlines() if line.strip()]
    assert "Patterns: this key was not looked at." in read(cell._repr_html_())
    assert run.layer(1)._repr_html_() == before[2]


def test_show_prints_the_patterns_and_which_triggers_carry_them(run: keyhole.Run) -> None:
    cell = cell_of(run)
    first = key(
        cell.index,
        pattern(0, 2, 5, description="‘fact’ + that-clause", auprc=0.812, promoted=0.25, promoted_null=0.05),
        pattern(1, 2, kind="semantic", description=HOSTILE),
        read=6,
        scores=scores(rules=0.85, last_token=0.74, bigram=0.76),
        needs=(0.83, 0.12),
    )
    other = key(cell.index, pattern(3, description="the other one"), side=-1, read=6)
    patterned.store(run, {1: [first, other]})
    shown = ask("show", run.path, cell.address)
    lines = shown.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("patterns   "))
    joined = " ".join(" ".join(lines[head : head + 8]).split())
    assert "AUPRC 0.85 (0.75 to 0.95), last-token lookup 0.74, bigram lookup 0.76, F1 0.28" in joined
    assert "the last token −83 %, the one before −12 %" in joined
    assert (
        "1 ‘fact’ + that-clause (shallow) · 3 of 6 · lift 310 · q 0.01 · AUPRC 0.81 · "
        "the value promotes the next token at 25 % of its matches (another cell: 5.0 %)"
    ) in joined
    assert "(semantic) · 2 of 6 · lift 310 · q 0.01" in joined
    assert "\x1b" not in shown
    assert "patterns of the negative side   not scored" in shown
    start = next(at for at, line in enumerate(lines) if line.strip() == "triggers")
    assert next(at for at, line in enumerate(lines) if line.startswith("value, lens")) < head < start
    numbers = [
        line.split(f"{trigger.coefficient:.3f}")[0].split()
        for trigger, line in zip(cell.triggers, lines[start + 1 :], strict=False)
    ]
    assert numbers == [["1"], ["2"], ["1", "2"], [], [], ["1"]]
    html = cell._repr_html_()
    assert "<script>" not in html
    said = read(html)
    for text in ("‘fact’ + that-clause", "3 of 6 · lift 310 · q 0.01 · AUPRC 0.81", "last-token lookup 0.74", "[1 2]"):
        assert text in said
    assert "Patterns of the negative side" in said


def test_a_key_of_which_nothing_was_found_says_so(run: keyhole.Run) -> None:
    cell = cell_of(run)
    patterned.store(run, {1: [key(cell.index, read=6)]})
    assert "patterns: none was found in its 6 triggers" in ask("show", run.path, cell.address)
    assert "Patterns: none was found in its 6 triggers." in read(cell._repr_html_())


def test_a_key_that_fires_too_rarely_shows_the_score_it_has(run: keyhole.Run) -> None:
    cell = cell_of(run)
    rare = {"rules": Score(auprc_99=0.62), "last_token": Score(auprc_99=0.3), "bigram": Score(auprc=0.9)}
    patterned.store(run, {1: [key(cell.index, pattern(0, 1, 2), read=6, scores=rare)]})
    said = "AUPRC (of the 99th percentile) 0.62, last-token lookup 0.30\n"
    assert f"patterns   all rules together: {said}" in ask("show", run.path, cell.address)
    assert views.summary(run) == f"1 key looked at (8 per layer), 100 % with a pattern, mean {said.strip()}"


def test_labels_stand_wherever_cells_are_listed(run: keyhole.Run) -> None:
    cell = cell_of(run)
    keys = {
        layer: [key(index, pattern(0, description=f"label-{layer}-{index}")) for index in range(0, 24, 2)]
        for layer in range(run.layers)
    }
    patterned.store(run, keys)
    shown = ask("show", run.path, cell.address)
    near = values.similar(run, cell.layer, cell.index)
    assert {each.cell % 2 for each in near} == {0, 1}
    for each in near:
        line = next(line for line in shown.splitlines() if line.strip().startswith(f"{each.address} {each.cosine:.2f}"))
        assert (f"label-{each.layer}-{each.cell}" in line) == (each.cell % 2 == 0)
    said = values.Values(run, "norm")
    token = int(said.top_tokens[cell.place, 0])
    listed = ask("tokens", run.path, run.vocabulary.piece(token), "--limit", 72)
    for speaker in said.promoting(token):
        assert (f"label-{speaker.layer}-{speaker.cell} " in f"{listed} ".replace("\n", " ")) == (speaker.cell % 2 == 0)
    assert "label-1-" in read(run.layer(1)._repr_html_())
    page = Page(report.write(run).read_text("utf-8"))
    assert "label: label-" in page.text


def test_info_counts_keys_and_means_scores(run: keyhole.Run) -> None:
    keys = [
        key(0, pattern(0), scores=scores(rules=0.8, last_token=0.5)),
        key(1, scores=scores(rules=0.0, last_token=0.1)),
        key(1, pattern(0), side=-1, scores=scores(rules=0.9)),
        key(2, pattern(0)),
        key(3),
    ]
    patterned.store(run, {0: keys})
    assert "4 keys looked at (8 per layer), 50 % with a pattern, mean AUPRC 0.40, last-token lookup 0.30" in ask(
        "info", run.path
    )
    patterned.store(run, {0: [key(2, pattern(0))]}, cells="all")
    assert views.summary(run) == "1 key looked at (all), 100 % with a pattern, not scored"
