"""What reaches a terminal, a pipe and a page when everything that was read is hostile: text, and nothing that acts."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shutil
import sys
import threading
import tty
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import pytest
from families import tiny, tokenizer
from hostile import reseal
from synthetic import fill, section5_facts
from tokenizers import AddedToken

import keyhole
from keyhole import cli, demo
from keyhole.analyses import registry
from keyhole.common import files, output
from keyhole.store import annotations, collections, tables
from keyhole.store.values import Values
from keyhole.views import progress
from keyhole.views import terminal as show

TOKENS = ["[/INST]", "[bold]", "\x1b[31m", "\u202e", ":smile:", "\x9b2J", "\u200b"]
EVIL = "\x1b]0;owned\x07\x1b[31m[/x][bold]:smile:\u202e\u2066\x9b2J\x7f\r\u2028\u200bend"
BIDI = set(range(0x202A, 0x202F)) | set(range(0x2066, 0x206A)) | {0x200E, 0x200F, 0x061C}
HIDDEN = {0x200B, 0x200C, 0x200D, 0xFEFF, 0x2028, 0x2029, 0xAD}
SGR = re.compile(r"\x1b\[[0-9;]*m")


def assert_harmless(text: str, *, terminal: bool) -> None:
    """No control character but line ends; on a terminal also rich's colours."""
    rest = SGR.sub("", text) if terminal else text
    found = {c for c in rest if c != "\n" and (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or ord(c) in BIDI | HIDDEN)}
    assert not found, f"{sorted(map(ascii, found))} in {text!a}"
    assert "\x1b[31m" not in text  # red is what the text asks for, and no style of ours


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose tokens, names, notes, tables and annotations all try something."""
    folder = tmp_path_factory.mktemp("hostile") / "fol[" / "der]:smile:\x1b[31m"  # a path with [/der] in it
    folder.mkdir(parents=True)
    model = tiny("gpt2")
    evil = tokenizer()
    evil.add_tokens([AddedToken(token, normalized=False, special=False) for token in TOKENS])
    source = folder / "mo[del]\x1b[31m\u202e"
    model.lm.save_pretrained(source)
    evil.save_pretrained(source)
    text = folder / "te[bold]xt\x1b[31m.txt"
    lines = [f"{TOKENS[i % 7]} cat {TOKENS[(i + 1) % 7]} number {i} {TOKENS[(i + 2) % 7]}" for i in range(30)]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = folder / "run[v2]:smile:\x1b[31m\u202e"
    run = keyhole.scan(str(source), [text], out=path, top=4, unit="line", context=64, hold_out=0.3)
    keyhole.analyze(run, lens=["norm", "raw"], cells=2, samples=20)
    row = {"prefix": EVIL, "top_r": EVIL, "top_y": "[/INST]", "top_o": "<script>", "similarity": float("nan")}
    row |= {"percentile": 0.5, "related": 0}
    facts = section5_facts()["cases"] | {"files": f"note {EVIL}", "share": float("nan")}
    fill(path, "cases", [row, {**row, "similarity": float("inf")}], facts)
    cell = next(cell for layer in range(3) for cell in run.layer(layer) if len(cell.triggers) >= 3)
    pattern = {"triggers": [0, 1, 2], "description": EVIL, "kind": "shallow"}
    for name in ("ann", "bob"):
        annotations.save(
            run, {"annotator": name, "layer": cell.layer, "cell": cell.index, "patterns": [pattern], "skipped": False}
        )
    collections.save_note(run, {"layer": 0, "cell": 0, "text": EVIL})
    return folder


def the_run(place: Path) -> Path:
    return next(path for path in place.iterdir() if path.name.startswith("run"))


@pytest.fixture
def forged(place: Path, tmp_path: Path) -> Path:
    """A copy whose manifest and log say hostile things, under checksums that match."""
    path = tmp_path / "run[v2]"
    shutil.copytree(the_run(place), path)

    def change(manifest: dict[str, Any]) -> None:
        manifest["model"] |= {"source": f"/x/{EVIL}\n", "family": f"gpt2{EVIL}\n", "revision": f"[/x]\x1b[31m\n{EVIL}"}
        manifest["corpus"]["sources"] = [EVIL, f"a\nb{EVIL}"]
        manifest["versions"] = {EVIL: EVIL}

    reseal(path, change)
    files.write_json(path / "log.json", {"seconds": {"scan": EVIL}, EVIL: EVIL})
    return path


# Two ways to run a command: into a pipe and on a terminal


def piped(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str, str]:
    """What a command writes where nobody looks: exit code, standard output, standard error."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["keyhole", *map(str, arguments)])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        with pytest.raises(SystemExit) as done:
            cli.main()
    out, err = (stream.detach().getvalue().decode("utf-8") for stream in streams)  # type: ignore[attr-defined]
    return int(done.value.code or 0), out, err


def on_terminal(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str]:
    """What a command writes to a real terminal, both streams together."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    heard: list[bytes] = []

    def listen() -> None:
        try:
            while more := os.read(master, 65536):
                heard.append(more)
        except OSError:  # the other end is closed
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    streams = [os.fdopen(os.dup(slave), "w", encoding="utf-8", newline="\n") for _ in range(2)]
    os.close(slave)
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "120")
        for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "argv", ["keyhole", *map(str, arguments)])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        with pytest.raises(SystemExit) as done:
            cli.main()
        for stream in streams:
            stream.close()
    listener.join(60)
    os.close(master)
    return int(done.value.code or 0), b"".join(heard).decode("utf-8")


COMMANDS: dict[str, list[str]] = {
    "info": ["info", "RUN"],
    "show": ["show", "RUN", "L1.3"],
    "show-note": ["show", "RUN", "L0.0"],
    "show-limit": ["show", "RUN", "L2.0", "--limit", "1"],
    "tables": ["table", "RUN"],
    "cases": ["table", "RUN", "cases"],
    "confident": ["table", "RUN", "confident"],
    "sql": ["sql", "RUN", "select prefix as \"[/x]\x1b[31m:smile:\", ['[/y]\x1b'] as l, 'a\x1b'::blob as b from cases"],
    "tokens": ["tokens", "RUN", "[/INST]"],
    "tokens-escape": ["tokens", "RUN", "\x1b[31m"],
    "annotations": ["annotations", "RUN"],
    "collections": ["collections", "RUN"],
    "report": ["report", "RUN"],
}
MISTAKES: dict[str, list[str]] = {
    "no-cell": ["show", "RUN", "L1\x1b[31m\u202e"],
    "no-table": ["table", "RUN", "x\x1b[31m[/x]"],
    "no-token": ["tokens", "RUN", "zz\x1b[31m[/x]"],
    "no-run": ["info", "RUN/none\x1b[31m[/x]"],
    "bad-sql": ["sql", "RUN", "select \x1b[31m[/x]"],
    "no-command": ["nonsense\x1b[31m[/x]"],
    "no-option": ["info", "RUN", "--x\x1b[31m"],
    "too-many": ["info", "RUN", "more\x1b[31m\u202e"],
    "no-number": ["show", "RUN", "L0.0", "--limit", "x\x1b[31m"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMMANDS, *MISTAKES])
def test_every_command_over_a_hostile_run(
    name: str, place: Path, forged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = 0 if name in COMMANDS else 2
    for path in (the_run(place), forged):
        arguments = [a.replace("RUN", str(path)) for a in {**COMMANDS, **MISTAKES}[name]]
        code, out, err = piped(monkeypatch, *arguments)
        assert code == expected, out + err
        assert_harmless(out + err, terminal=False)
        assert "Traceback" not in err
        code, seen = on_terminal(monkeypatch, *arguments)
        assert code == expected, seen
        assert_harmless(seen, terminal=True)


def test_names_are_shown_whole(place: Path, forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "run[v2]" in piped(monkeypatch, "info", forged)[1]
    about = piped(monkeypatch, "info", the_run(place))[1]
    for said in ("run[v2]:smile:�[31m", "mo[del]�[31m", "te[bold]xt"):
        assert said in about
    shown = piped(monkeypatch, "tokens", the_run(place), "[/INST]")[1]
    assert "‘[/INST]’" in shown
    cells = "".join(
        piped(monkeypatch, "show", the_run(place), f"L{layer}.{cell}")[1] for layer, cell in ((0, 1), (2, 3))
    )
    assert "[/INST]" in cells
    assert "[bold]" in cells
    assert ":smile:" in cells
    lines = piped(monkeypatch, "info", forged)[1].splitlines()
    assert sum("gpt2" in line for line in lines) == 1, "a line end in a name begins no line of its own"


@pytest.mark.parametrize("field", ["dtype", "device", "per", "unit"])
def test_any_field_of_the_manifest(field: str, forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reseal(forged, lambda manifest: manifest["config"].update({field: f"{EVIL}\n[/x]"}))
    for arguments in (("info", forged), ("show", forged, "L0.1"), ("verify", forged)):
        code, seen = on_terminal(monkeypatch, *arguments)
        assert code in (0, 2)  # refused is as good as shown
        assert_harmless(seen, terminal=True)


@pytest.mark.slow(seconds=2)
def test_scan_analyze_verify_merge_and_export(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that draw progress bars: they may move the cursor, and write no other control sequence."""
    model, text = (next(p for p in place.iterdir() if p.name.startswith(start)) for start in ("mo", "te"))
    part = tmp_path / "part[x]:smile:\x1b[31m"
    whole = tmp_path / "whole[x]\u202e"
    path = the_run(place)
    commands = [
        ["scan", model, text, "--out", part, "--unit", "line", "--shard", "1/1", "--context", "64"],
        ["merge", whole, part],
        ["verify", path, "--cells", "5"],
        ["analyze", path, "--only", "activity,rank"],
        ["export", path, tmp_path / "site[x]\x1b[31m"],
        ["scan", model, text, "--out", path, "--unit", "line"],  # is there already
        ["scan", model, tmp_path / "none[x]\x1b[31m.txt"],
        ["merge", path, part],
    ]
    cursor = re.compile(r"\x1b\[(\?25[lh]|[0-9]*[AK]|[0-9]*G|2K|1A)|\r")
    for number, arguments in enumerate(commands):
        code, seen = on_terminal(monkeypatch, *arguments)
        assert code == (0 if number < 5 else 2), seen
        assert_harmless(cursor.sub("", seen), terminal=True)
    shutil.rmtree(part)
    code, out, err = piped(monkeypatch, *commands[0])
    assert code == 0
    assert_harmless(out + err, terminal=False)


def test_a_progress_bar_takes_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress.Stages() as begin:
        begin("[/x] :smile: \x1b[31m\u202e", 3)(3)
    assert "[/x] :smile: �[31m�" in err.getvalue()
    assert "\u202e" not in err.getvalue()


@pytest.mark.slow
def test_the_demo_over_a_hostile_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = the_run(place)
    monkeypatch.setattr(demo, "check_installed", lambda: None)
    monkeypatch.setattr("keyhole.analyses.measured.missing", lambda run: [])
    code, out, err = piped(monkeypatch, "demo", "--out", path)
    assert code == 0, err
    assert "run[v2]:smile:" in out
    assert_harmless(out + err, terminal=False)


def test_warnings_and_surprises_quote_nothing_that_acts(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(*given: object) -> None:
        sys.stderr.write(warnings.formatwarning(f"careful {EVIL}", UserWarning, "file", 1))
        raise LookupError(f"no {EVIL}")

    monkeypatch.setattr(show, "info", surprise)
    code, out, err = piped(monkeypatch, "info", the_run(place))
    assert code == 1
    assert "careful" in err
    assert "LookupError: no" in err
    assert_harmless(out + err, terminal=False)


def test_representations_are_harmless(place: Path) -> None:
    run = keyhole.open(the_run(place))
    for shown in (run, run["L0.0"], run.layer(0)):
        assert_harmless(repr(shown), terminal=False)
        assert "run[v2]" in repr(shown)


# Data


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_data_are_raw_in_a_pipe_and_visible_on_a_terminal(
    form: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = the_run(place)
    _, out, _ = piped(monkeypatch, "table", path, "cases", form)
    rows = json.loads(out) if form == "--json" else list(csv.DictReader(io.StringIO(out, newline="")))
    assert rows[0]["prefix"] == EVIL
    _, seen = on_terminal(monkeypatch, "table", path, "cases", form)
    assert_harmless(seen, terminal=False)
    if form == "--json":
        assert json.loads(seen) == rows
    else:
        assert next(csv.DictReader(io.StringIO(seen)))["prefix"] == output.printable(EVIL)


def strict(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.slow
def test_json_is_strict(place: Path, forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = the_run(place)
    rows = strict(piped(monkeypatch, "table", path, "cases", "--json")[1])
    assert [row["similarity"] for row in rows] == [None, None]
    query = (
        "select 'nan'::double as a, '-inf'::float as b, [1.5, 'nan'::double] as c, {'k': 'inf'::double} as d, "
        "date '2020-01-02' as e, 1.25::decimal(4, 2) as f, '\\xAA\\xBB'::blob as g, map {date '2020-01-02': 1} as h, "
        "interval 2 day as i, 170141183460469231731687303715884105727::hugeint as j"
    )
    (row,) = strict(piped(monkeypatch, "sql", path, query, "--json")[1])
    assert row == {
        "a": None, "b": None, "c": [1.5, None], "d": {"k": None}, "e": "2020-01-02", "f": "1.25", "g": "aabb",
        "h": {"2020-01-02": 1}, "i": "2 days, 0:00:00", "j": 2**127 - 1,
    }  # fmt: skip
    shown = piped(monkeypatch, "sql", path, query)[1]
    assert "nan" not in shown
    assert "–" in shown
    read = list(csv.DictReader(io.StringIO(piped(monkeypatch, "sql", path, query, "--csv")[1])))
    assert (read[0]["e"], read[0]["g"], json.loads(read[0]["c"])) == ("2020-01-02", "aabb", [1.5, None])
    monkeypatch.setattr(annotations, "summary", lambda run: {"annotators": [], "kappa": float("nan")})
    assert strict(piped(monkeypatch, "annotations", path, "--json")[1])["kappa"] is None
    reseal(forged, lambda manifest: manifest["corpus"].update(odd=float("nan")))
    assert strict(piped(monkeypatch, "report", forged, "--json")[1])["run"]["corpus"]["odd"] is None


def test_names_of_columns_are_quoted_if_need_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, out, _ = piped(monkeypatch, "sql", the_run(place), 'select 1 as "a,b", 2 as "c""d", \'x\' as e', "--csv")
    assert list(csv.DictReader(io.StringIO(out))) == [{"a,b": "1", 'c"d': "2", "e": "x"}]


@pytest.mark.parametrize("query", ["", "  ", ";", "\n-- nothing", "/* */ ;", "select 1 as a, 2 as a"])
def test_a_query_without_an_answer_is_told(query: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = piped(monkeypatch, "sql", the_run(place), query)
    assert (code, out) == (2, "")
    assert err.startswith("keyhole: The query ")
    assert len(err.splitlines()) == 1


def test_every_character_that_acts_is_made_visible() -> None:
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            (shown,) = output.printable(chr(code))
            assert unicodedata.category(shown) not in output.CONTROL, hex(code)
    assert output.printable("Grüße, 日本 😀 ") == "Grüße, 日本 😀 "
    assert output.harmless("a\nb\rc\n") == "a\nb␍c\n"


# Pages


@pytest.mark.slow(seconds=3)
def test_a_page_of_a_forged_run_runs_nothing(forged: Path) -> None:
    """Script tags, quotes and ends of elements in every text of manifest, tables and notes stay text."""
    from pages import Page, read

    from keyhole.views.report import write as report

    breaking = "\"'></script></style><script>alert(1)</script><img src=x onerror=alert(1)>&lt;<!--\u2028"

    def change(manifest: dict[str, Any]) -> None:
        manifest["model"] |= {"source": breaking, "family": breaking, "revision": breaking}
        manifest["corpus"]["sources"] = [breaking]
        manifest["keyhole"], manifest["versions"] = breaking, {breaking: breaking}

    reseal(forged, change)
    for name, schema in registry.schemas().items():
        columns = [column for column, kind in schema.types.items() if kind == "VARCHAR"]
        rows = [
            row | {c: breaking for c in columns if c not in ("lens", "target", "dropped")}
            for row in tables.read_table(forged, name)
        ]
        facts = {"VARCHAR": breaking, "DOUBLE": 0.5, "BIGINT": 1}
        fill(forged, name, rows, {key: facts[about.type] for key, about in schema.facts.items()})
    run = keyhole.Run(forged)
    page = Page(report.write(run).read_text("utf-8"))
    assert [attributes.get("type") for tag, attributes in page.tags if tag == "script"] == [
        "application/json",
        None,
        None,
    ]
    assert not {"img", "iframe", "svg", "object"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" in page.text
    assert "<" not in page.inside["script"][0]
    for layer in range(run.layers):
        assert "alert(1)" in read(run.layer(layer)._repr_html_())
        for cell in run.layer(layer):
            read(cell._repr_html_())
    assert Values(run, "norm").promoted(0, 0)
