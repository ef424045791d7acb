"""The commands of an analysis, from a model on disk to every table."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import patterned
import pytest
import torch
import used
from families import save, tiny
from rich.cells import cell_len
from rich.console import Console
from small import corpus
from typer.testing import CliRunner

import keyhole
from keyhole.analyses import registry
from keyhole.cli import app
from keyhole.store.values import Values, token_id
from keyhole.views import terminal
from keyhole.views.text import readable


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model saved, scanned and analyzed by the commands."""
    folder = tmp_path_factory.mktemp("analyze")
    model = tiny("llama")
    save(model, folder / "model")
    text = corpus(folder / "text.txt")
    ask("scan", folder / "model", text, "--out", folder / "run", "--unit", "line", "--hold-out", 0.35, "--top", 5)
    run = keyhole.open(folder / "run")
    patterned.store(run, patterned.drawn(run))
    used.store(run)
    ask("analyze", folder / "run", "--lens", "norm,raw", "--cells", 4, "--samples", 50, "--seed", 1)
    return folder


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", registry.schemas())
def test_every_table_prints(name: str, place: Path) -> None:
    printed = ask("table", place / "run", name)
    assert max(map(cell_len, printed.splitlines())) <= 140
    rows = json.loads(ask("table", place / "run", name, "--json"))
    assert rows == keyhole.open(place / "run").table(name)
    assert list(rows[0]) == list(registry.schemas()[name].columns)
    words = set(printed.split())
    assert words >= set(registry.schemas()[name].columns)
    assert words >= {readable(value) for row in rows for value in row.values() if not isinstance(value, str)}
    read = list(csv.DictReader(io.StringIO(ask("table", place / "run", name, "--csv"))))
    assert len(read) == len(rows)
    assert list(read[0]) == list(registry.schemas()[name].columns)


def drawn(rows: list[dict[str, Any]], width: int) -> list[list[list[str]]]:
    """The tables that rows are broken into: the words of each line."""
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(terminal.rows(rows))
    assert all(cell_len(line) <= width for line in captured.get().splitlines())
    parts = [part.splitlines() for part in re.split(r"\n *\n", captured.get().strip("\n"))]
    return [[line.split() for line in part] for part in parts]


def test_a_wide_table_is_broken_between_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"layer": layer, "lens": lens, "n": 7} | {f"a_long_name_{at}": layer + at for at in range(6)}
        for layer in range(2)
        for lens in ("norm", "raw")
    ]
    assert [len(part) for part in drawn(rows, 200)] == [5]
    parts = drawn(rows, 60)
    assert len(parts) > 1
    assert all(part[0][:2] == ["layer", "lens"] for part in parts)
    assert all(
        line[:2] == [str(row["layer"]), row["lens"]] for part in parts for line, row in zip(part[1:], rows, strict=True)
    )
    assert [name for part in parts for name in part[0][2:]] == list(rows[0])[2:]
    for at, row in enumerate(rows):
        assert [word for part in parts for word in part[at + 1][2:]] == [str(value) for value in row.values()][2:]
    same = [dict.fromkeys(rows[0], 1), dict.fromkeys(rows[0], 1)]
    for part in drawn(same, 60):
        assert (part[0][0], part[1][0], part[2][0]) == ("#", "1", "2")


def test_an_empty_table_says_why(tmp_path: Path) -> None:
    model = tiny("gpt2")
    save(model, tmp_path / "model")
    ask("scan", tmp_path / "model", corpus(tmp_path / "text.txt"), "--out", tmp_path / "run", "--unit", "line")
    ask("analyze", tmp_path / "run", "--only", "gates,training", "--samples", 20)
    for name, why in (("gates", "without a gate"), ("training", "no held-out text was given")):
        assert json.loads(ask("table", tmp_path / "run", name, "--json")) == []
        printed = ask("table", tmp_path / "run", name)
        assert printed.startswith("no rows\nnot measured: ")
        assert why in printed


def test_sql_over_the_tables(place: Path) -> None:
    query = "select layer, max(rate) as best from agreement where target = 'next' group by layer order by layer"
    rows = json.loads(ask("sql", place / "run", query, "--json"))
    assert [row["layer"] for row in rows] == [0, 1, 2]
    with pytest.raises(keyhole.KeyholeError, match="query failed"):
        ask("sql", place / "run", "select nothing from nowhere")
    with pytest.raises(keyhole.KeyholeError, match="query failed"):
        ask("sql", place / "run", "drop table agreement")


def test_tokens_lists_who_promotes_and_who_demotes(place: Path) -> None:
    run = keyhole.open(place / "run")
    said = Values(run, "norm")
    token = token_id(run, "e")
    for speakers, tokens, sign in (
        (said.promoting(token), said.top_tokens, -1),
        (said.demoting(token), said.bottom_tokens, 1),
    ):
        expected = {at for place, at in enumerate(run.cells) if token in tokens[place].tolist()}
        assert {(s.layer, s.cell) for s in speakers} == expected
        logits = [sign * s.logit for s in speakers]
        assert logits == sorted(logits)
    printed = ask("tokens", place / "run", "e")
    assert said.promoting(token)[0].address in printed
    assert said.demoting(token)[0].address in printed
    with pytest.raises(keyhole.KeyholeError, match=r"not a token of this model.*2 tokens"):
        ask("tokens", place / "run", "ee")


def test_show_says_what_the_value_says(place: Path) -> None:
    printed = ask("show", place / "run", "L1.3")
    for word in ("promotes", "demotes", "agreement", "norm", "similar values (cosine)"):
        assert word in printed
    assert "promotes" in printed.split("triggers")[0]


def test_info_counts_what_was_held_out(place: Path) -> None:
    held = keyhole.open(place / "run").manifest["corpus"]["held_out_units"]
    assert f"{held} held out of the scan" in ask("info", place / "run")


def test_looking_needs_no_torch(place: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from keyhole.cli import app\n"
        "for a in (['show', RUN, 'L0.0'], ['tokens', RUN, 'e'], ['table', RUN, 'rank'], ['sql', RUN, 'select 1']):\n"
        "    assert CliRunner().invoke(app, a).exit_code == 0, a\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    ).replace("RUN", repr(str(place / "run")))
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(keyhole.__file__).parents[1])})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table", "RUN", "agreements"], "no table 'agreements'"),
        (["table", "RUN", "rank", "--csv", "--json"], "choose one"),
        (["analyze", "RUN", "--only", "agreements"], "no table 'agreements'"),
        (["analyze", "RUN", "--lens", "tuned"], "no lens 'tuned'"),
        (["tokens", "RUN", "e", "--lens", "tuned"], "no lens 'tuned'"),
        (["analyze", "RUN", "--only", "cases", "--valid", "nowhere.txt"], "no corpus nowhere.txt"),
    ],
)
def test_mistakes_are_told(arguments: list[str], says: str, place: Path) -> None:
    with pytest.raises(keyhole.KeyholeError, match=says):
        ask(*[str(place / "run") if a == "RUN" else a for a in arguments])


def test_a_model_that_changed_on_disk_is_refused(place: Path, tmp_path: Path) -> None:
    model = keyhole.load(str(place / "model"))
    model.lm.get_input_embeddings().weight.data[3] += 1e-3
    save(model, tmp_path / "changed")
    assert torch.is_tensor(model.values(0))
    with pytest.raises(keyhole.KeyholeError, match="not the model that was scanned"):
        ask("analyze", place / "run", "--model", tmp_path / "changed", "--only", "mutation")
