"""The command line on streams as bad as they get, and what it says of errors: never a traceback that is not a bug's."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from families import save, tiny
from synthetic import fill

import keyhole
from keyhole import cli
from keyhole.errors import Interrupted, KeyholeError, UsageError

SOURCE = str(Path(keyhole.__file__).parents[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    text = folder / "text.txt"
    text.write_text("".join(f"Grüße, 日本 number {i} – “x” 😀\n" for i in range(20)), encoding="utf-8")
    source = save(tiny("gpt2"), folder / "model")
    made = keyhole.scan(source, [text], out=folder / "run", top=4, unit="line", context=64)
    keyhole.analyze(made, only=["activity", "agreement", "confident"])
    row = {"prefix": "日本 é 😀", "top_r": "é", "top_y": "–", "top_o": "\u2028", "similarity": 0.5}
    row |= {"percentile": 0.5, "related": 0}
    fill(made.path, "cases", [row] * 3000)
    return made.path


def shell(command: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A shell line; KEYHOLE in it is the console script."""
    script = f"{shlex.quote(sys.executable)} -m keyhole.cli"
    line = command.replace("KEYHOLE", script).replace("ARGS", shlex.join(map(str, arguments)))
    return subprocess.run(["bash", "-c", line], capture_output=True, env={**os.environ, **environment})


LOOKING = [["info"], ["show", "L1.2"], ["table", "cases", "--json"], ["table", "confident", "--csv"], ["tokens", "é"]]


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_that_is_not_utf8(encoding: str, run: Path) -> None:
    for name, *rest in [*LOOKING[:4], ["show", "nowhere é 日本"]]:
        done = shell("KEYHOLE ARGS", name, run, *rest, PYTHONIOENCODING=encoding)
        assert b"Traceback" not in done.stderr
        assert done.returncode == (2 if "nowhere" in rest[0:1] or "é" in "".join(rest) else 0), done.stderr
        done.stdout.decode(encoding)
        if "--json" in rest:
            assert json.loads(done.stdout.decode(encoding)) == keyhole.open(run).table("cases")


CLOSED = {
    "stdout": "KEYHOLE ARGS >&-",
    "stderr": "KEYHOLE ARGS 2>&-",
    "all": "KEYHOLE ARGS <&- >&- 2>&-",
    "broken": "KEYHOLE ARGS | true; exit ${PIPESTATUS[0]}",
    "head": "KEYHOLE ARGS | head -c 10; exit ${PIPESTATUS[0]}",
    "stderr to the pipe": "KEYHOLE ARGS 2>&1 | true; exit ${PIPESTATUS[0]}",
    "full": "KEYHOLE ARGS > /dev/full",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CLOSED)
def test_streams_that_are_closed_or_broken(how: str, run: Path) -> None:
    for name, *rest in (["table", "cases", "--csv"], ["info"], ["show", "nowhere"]):
        done = shell(CLOSED[how], name, run, *rest)
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
        assert done.returncode in (0, 1, 2)
        if how == "full" and name != "show":
            assert done.returncode == 1
            assert done.stderr == b"keyhole: The output cannot be written: No space left on device.\n"


def test_no_file_gets_the_number_of_a_closed_stream(run: Path, tmp_path: Path) -> None:
    """What a library prints to number 1 or 2 would otherwise end up in a file of the run."""
    code = (
        "import os, sys\nfrom keyhole.common import output\noutput.prepare()\n"
        "number = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\nassert number > 2\n"
        "os.write(1, b'noise'), os.write(2, b'noise'), print('said'), print('said', file=sys.stderr)"
    )
    line = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} {tmp_path}/file <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], env={**os.environ, "PYTHONPATH": SOURCE}).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.slow(seconds=2)
def test_an_empty_environment(run: Path) -> None:
    for name, *rest in LOOKING[:4]:
        line = f"env -i PYTHONPATH={shlex.quote(SOURCE)} KEYHOLE ARGS"
        done = shell(line, name, run, *rest)
        assert done.returncode == 0, done.stderr
        assert done.stderr == b""


@pytest.mark.slow(seconds=2)
def test_a_terminal_of_any_width(run: Path) -> None:
    for columns in ("0", "1", "7", "x", "100000"):
        done = shell("KEYHOLE ARGS", "show", run, "L1.2", COLUMNS=columns, FORCE_COLOR="1", TERM="dumb")
        assert done.returncode == 0, done.stderr


# Errors


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["keyhole", *map(str, arguments)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (EOFError("Compressed file ended before its end"), 1, "EOFError: Compressed file ended before its end"),
        (EOFError(), 1, "EOFError"),
        (KeyboardInterrupt(), 130, ""),
        (Interrupted("Stopped; what is done is kept."), 130, "Stopped; what is done is kept."),
        (KeyholeError("No. Do this."), 2, "keyhole: No. Do this."),
        (LookupError("a bug"), 1, "LookupError: a bug"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
    ],
)
def test_errors_show_as_what_they_are(
    error: BaseException,
    code: int,
    said: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr("keyhole.views.terminal.info", fail)
    assert call(monkeypatch, "info", run) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Aborted" not in err
    assert (err.strip().splitlines() or [""])[-1] == said
    assert ("Traceback" in err) == (code == 1 and bool(said))


def test_exit_codes_help_and_usage_stay(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code, out, err in (
        (["--help"], 0, "Commands", ""),
        (["show", "--help"], 0, "--limit", ""),
        (["--version"], 0, keyhole.__version__, ""),
        ([], 2, "", "Commands"),
        (["nonsense"], 2, "", "No such command 'nonsense'"),
        (["info"], 2, "", "Missing argument"),
        (["show", run, "L0.0", "--limit", "0"], 2, "", "--limit"),
        (["tokens", run, "é", "--limit", "-3"], 2, "", "--limit"),
        (["demo", "--every", "0"], 2, "", "--every"),
        (["info", run], 0, "layers", ""),
    ):
        assert call(monkeypatch, *arguments) == code, arguments
        said = capsys.readouterr()
        assert out in said.out
        assert err in said.err + said.out
        assert "Traceback" not in said.err


# Numbers as options


@pytest.mark.parametrize("command", ["analyze", "verify"])
def test_a_seed_below_zero_is_refused_by_name(
    command: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, command, run, "--seed", "-1") == 2
    assert capsys.readouterr().err == "keyhole: seed is -1; it must be a whole number of at least 0.\n"


@pytest.mark.parametrize("name", ["seed", "cells", "samples"])
@pytest.mark.parametrize("value", [-1, 2.5, np.float64(3), "3", None, True, float("nan")], ids=repr)
def test_numbers_that_are_none_are_refused(name: str, value: object, run: Path) -> None:
    opened = keyhole.open(run)
    asked = [keyhole.analyze, keyhole.verify] if name != "samples" else [keyhole.analyze]
    for function in asked:
        with pytest.raises(UsageError, match=f"^{name} is .*it must be"):
            function(opened, **{name: value})  # type: ignore[operator]


@pytest.mark.slow
def test_numbers_of_numpy_and_huge_ones_work(run: Path) -> None:
    opened, model = keyhole.open(run), tiny("gpt2")
    wanted = ["mutation", "cases"]
    plain, same, huge = (
        [
            keyhole.analyze(opened, only=wanted, valid=str(run.parent / "text.txt"), model=model, **options).table(name)
            for name in wanted
        ]
        for options in (
            {"cells": 3, "samples": 15, "seed": 2},
            {"cells": np.int64(3), "samples": np.uint8(15), "seed": np.int32(2)},
            {"cells": 10**30, "samples": 10**30, "seed": 10**30},
        )
    )
    assert plain == same
    assert len(huge[0]) == len(plain[0])
    found = keyhole.verify(opened, cells=np.int64(2), seed=np.uint8(1), model=keyhole.load(str(run.parent / "model")))
    assert found.cells == 2
    assert keyhole.verify(opened, cells=10**30, seed=10**30).cells == len(opened.cells)
