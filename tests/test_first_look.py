"""The explorer is there when the scan is done, and the analyses come while one looks. Real processes, and none is left over."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from families import save, tiny
from small import scanned

import keyhole
from keyhole import demo
from keyhole.commands import alongside, make
from keyhole.store import underway
from keyhole.web import serve


def until(holds: Callable[[], Any], seconds: float = 90) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)
    return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"  # ended, and nobody asked how


@pytest.mark.slow(seconds=13)
def test_a_scan_is_served_while_it_is_analyzed(tmp_path: Path) -> None:
    source = save(tiny("llama"), tmp_path / "model")
    (tmp_path / "text.txt").write_text("".join(f"The cat {i} sat on mat {i * i % 13}. A dog ran.\n" for i in range(14)))
    command = [
        sys.executable,
        "-m",
        "keyhole",
        "scan",
        source,
        "text.txt",
        "--out",
        "run",
        "--serve",
        "--no-open",
        "--top",
        "4",
    ]
    with subprocess.Popen(
        [*command, "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert "distinct prefixes" in server.stdout.readline()
            address = re.search(r"http://[^ ]+", server.stdout.readline())
            assert address

            def get(path: str) -> Any:
                return json.loads(urllib.request.urlopen(address[0] + path, timeout=60).read())

            assert get("data/run.json")["lenses"] == [], "the first look did not wait for the analyses"
            found = until(lambda: (now := get("api/coming"))["running"] and now)
            assert {"activity", "agreement", "shading"} <= set(found["steps"])
            assert found["missing"]
            pid = json.loads((tmp_path / "run" / "lock").read_text())["pid"]
            assert pid != server.pid
            until(lambda: get("data/run.json")["lenses"] == ["norm"])  # from now on its pages show values
            assert get("api/coming")["version"] != found["version"]
            assert len(get("data/cells/1/3.json")["values"]) == 1
        finally:
            server.send_signal(signal.SIGINT)  # to the server alone, which ends the analysis
            _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert "Traceback" not in err
    assert gone(pid)
    assert underway.read(tmp_path / "run") is None
    run = keyhole.open(tmp_path / "run")  # what was analyzed by then is kept
    assert run["L1.3"].promoted


def test_all_of_it_is_analyzed_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keyhole.analyses import analyze

    asked: list[Any] = []
    run = scanned(tiny("gpt2"), tmp_path)
    monkeypatch.setattr(analyze, "analyze", lambda path, **options: asked.append((path, options)))
    alongside.analyze_and_report(str(run.path), "cpu", True)
    ((path, options),) = asked
    assert path == str(run.path)
    assert options.pop("progress")
    assert options == {"device": "cpu", "trust_remote_code": True}, "else with the settings that keyhole analyze has"
    assert (run.path / "report" / "index.html").exists()


# The second process

WORK = """
import os, sys, time
from pathlib import Path
from keyhole.commands.alongside import working

def work(file):
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    with working(work, sys.argv[1]):
        while not Path(sys.argv[1]).exists() or not Path(sys.argv[1]).read_text():
            time.sleep(0.02)
        print("started", flush=True)
        if sys.argv[2] == "wait":
            time.sleep(600)
"""


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_the_second_process_ends_with_the_first(tmp_path: Path, end: str) -> None:
    (tmp_path / "main.py").write_text(WORK)
    command = [sys.executable, "main.py", "pid", "wait" if end == "kill" else "leave"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "started\n"
        pid = int((tmp_path / "pid").read_text())
        if end == "kill":
            assert not gone(pid)
            first.kill()
        first.wait(30)
    until(lambda: gone(pid), 20)


def test_a_second_process_that_fails_says_why(tmp_path: Path) -> None:
    code = (
        "from keyhole.commands.alongside import analyze_and_report, working\nimport time\n"
        "if __name__ == '__main__':\n"
        "    with working(analyze_and_report, 'nowhere'):\n        time.sleep(600)\n"
    )
    (tmp_path / "main.py").write_text(code)
    with subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        assert first.stderr.readline().startswith("keyhole: ")
        first.kill()


# The demo


@pytest.mark.parametrize(("terminal", "complete"), [(True, False), (True, True), (False, False)])
def test_the_demo_serves_when_its_scan_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: bool, complete: bool
) -> None:
    """In a terminal: at once, if something is left to analyze. Elsewhere it serves nothing."""
    happened: list[str] = []

    @contextmanager
    def working(work: Any, *args: Any) -> Any:
        assert (work, args) == (demo.finish, (str(tmp_path),))
        happened.append("begin to analyze")
        yield
        happened.append("end the analysis")

    monkeypatch.setattr(demo, "read", lambda out, every, force: happened.append("scan"))
    monkeypatch.setattr(demo, "finish", lambda out: happened.append("analyze"))
    monkeypatch.setattr(demo, "is_complete", lambda run: complete)
    monkeypatch.setattr(alongside, "at_terminal", lambda: terminal)
    monkeypatch.setattr(alongside, "working", working)
    monkeypatch.setattr(serve, "serve", lambda run: happened.append("serve"))
    make.demo(tmp_path)
    assert (
        happened
        == {
            (True, False): ["scan", "begin to analyze", "serve", "end the analysis"],
            (True, True): ["scan", "analyze", "serve"],
            (False, False): ["scan", "analyze"],
        }[terminal, complete]
    )


def test_one_shard_cannot_be_served(tmp_path: Path) -> None:
    from commands import call

    done = call("scan", "model", "text.txt", "--shard", "1/2", "--serve")
    assert done.code == 2
    assert "One shard of a scan cannot be analyzed or served" in done.err
