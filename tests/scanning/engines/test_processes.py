"""One scan by several processes: the same bytes as one, also after a stop; a failure is reported and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from families import tiny, tokenizer

import keyhole
from keyhole.errors import Interrupted, RunError, RunExists, ShardError, UsageError
from keyhole.models.model import Model
from keyhole.scanning import plan, planning, shard
from keyhole.scanning.engines import processes
from keyhole.scanning.scan import Silent
from keyhole.store import unfinished

OPTIONS = {"top": 4, "unit": "line", "batch_tokens": 60, "device": "cpu"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny("llama").lm.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def content(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.name != "log.json"}


class Seen(Silent):
    def __init__(self) -> None:
        self.total = self.done = 0

    def begin(self, tokens: int, done: int) -> None:
        self.total, self.done = tokens, done

    def advance(self, tokens: int) -> None:
        self.done += tokens


@pytest.mark.slow(seconds=12)
def test_processes_give_the_bytes_of_one_pass(model: str, text: Path, tmp_path: Path) -> None:
    one = keyhole.scan(model, [text], out=tmp_path / "one", **OPTIONS)
    seen = Seen()
    two = keyhole.scan(model, [text], out=tmp_path / "two", processes=2, progress=seen, **OPTIONS)
    assert content(two.path) == content(one.path)
    assert seen.done == seen.total > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "text.txt", "two"]
    assert len(json.loads((two.path / "log.json").read_text())["shards"]) == 2
    assert keyhole.scan(model, [text], out=tmp_path / "two", processes=2, resume=True, **OPTIONS).path == two.path
    with pytest.raises(RunExists, match="--force"):
        keyhole.scan(model, [text], out=tmp_path / "two", processes=2, **OPTIONS)


@pytest.mark.slow(seconds=6)
def test_what_is_wrong_with_the_whole_scan_is_said_once_and_nothing_stays(
    tmp_path: Path, model: str, text: Path
) -> None:
    with pytest.raises(UsageError, match="^--context 5000 is more than"):
        keyhole.scan(model, [text], out=tmp_path / "x", processes=2, context=5000, **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]


FAIL = """
from keyhole.errors import ModelError
from keyhole.scanning.engines import processes
real = processes.run_shard
def fail(job, stop, progress):
    if job.number == 2:
        raise ModelError("the card is on fire")
    real(job, stop, progress)
processes.run_shard = fail
processes.child()
"""


def test_what_a_process_says_is_shown_and_the_others_are_kept(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(processes, "START", FAIL)
        with pytest.raises(ShardError, match="Shard 2/2 failed: the card is on fire.*--resume"):
            keyhole.scan(model, [text], out=tmp_path / "x", processes=2, **OPTIONS)
    assert not (tmp_path / "x").exists()
    resumed = keyhole.scan(model, [text], out=tmp_path / "x", processes=2, resume=True, **OPTIONS)
    assert content(resumed.path) == content(keyhole.scan(model, [text], out=tmp_path / "one", **OPTIONS).path)


def test_a_process_that_dies_is_told(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "START", "raise SystemExit('no such library')")
    with pytest.raises(ShardError, match="failed: its process ended with status 1"):
        keyhole.scan(model, [text], out=tmp_path / "x", processes=2, **OPTIONS)
    assert "no such library" in capfd.readouterr().err


SLOW = """
import time
from keyhole.models.model import Model
forward = Model.forward
def slow(self, ids):
    time.sleep(0.3)
    forward(self, ids)
Model.forward = slow
from keyhole.scanning.engines.processes import child
child()
"""
PARENT = """
import sys
import keyhole
from keyhole.scanning.engines import processes
processes.START = {slow!r}
class Say:
    def planned(self, tokens): ...
    def begin(self, tokens, done): ...
    def advance(self, tokens): print("advanced", flush=True)
if __name__ == "__main__":
    try:
        keyhole.scan({model!r}, [{text!r}], out={out!r}, processes=2, progress=Say(), **{options!r})
    except keyhole.errors.Interrupted as stopped:
        print(stopped)
"""


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stop_saves_every_process_and_resumes(how: signal.Signals, tmp_path: Path, model: str, text: Path) -> None:
    """Ctrl-C; or the parent is killed, and its processes notice."""
    out = tmp_path / "two"
    code = PARENT.format(slow=SLOW, model=model, text=str(text), out=str(out), options=OPTIONS)
    parent = subprocess.Popen([sys.executable, "-c", "import torch; torch.set_num_threads(1)\n" + code], stdout=-1)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"advanced\n"
    parent.send_signal(how)
    said = parent.communicate()[0].decode()
    assert ("Stopped, and saved" in said) == (how == signal.SIGINT)
    partial = unfinished.Partial(out)

    def saved(number: int) -> bool:
        result = partial.shard(number, 2)
        return result.exists() or result.with_name(f"{number}-of-2.checkpoint.npz").exists()

    deadline = time.monotonic() + 120
    while not (saved(1) and saved(2)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert saved(1)
    assert saved(2)
    with pytest.raises(RunError, match="begun with --processes 2, not --processes 3"):
        keyhole.scan(model, [text], out=out, processes=3, resume=True, **OPTIONS)
    with pytest.raises(RunExists, match="--resume"):
        keyhole.scan(model, [text], out=out, processes=2, **OPTIONS)
    resumed = keyhole.scan(model, [text], out=out, processes=2, resume=True, **OPTIONS)
    one = keyhole.scan(model, [text], out=tmp_path / "one", **OPTIONS)
    assert content(resumed.path) == content(one.path)
    assert not partial.path.exists()


COUNTING = """
import os
from pathlib import Path
from keyhole.models.model import Model
from keyhole.scanning import plan, planning
def noted(name, real):
    def call(*args, **options):
        with Path({noted!r}).open("a") as file:
            file.write(f"{{os.getpid()}} {{name}}\\n")
        return real(*args, **options)
    return call
Model.tokenize = noted("tokenize", Model.tokenize)
plan.build = planning.build = noted("build", planning.build)
"""


@pytest.mark.slow(seconds=6)
def test_the_parent_plans_once_and_the_processes_never_tokenise(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call of the planner and of the tokenizer is noted, in whatever process it happens."""
    noted = tmp_path / "noted"
    watch = COUNTING.format(noted=str(noted))
    with monkeypatch.context() as patch:
        for owner, name in ((Model, "tokenize"), (plan, "build"), (planning, "build")):
            patch.setattr(owner, name, getattr(owner, name))  # put back afterwards
        exec(watch, {})
        patch.setattr(processes, "START", watch + processes.START)
        two = keyhole.scan(model, [text], out=tmp_path / "two", processes=3, **OPTIONS)
    calls = [line.split() for line in noted.read_text().splitlines()]
    assert {process for process, _ in calls} == {str(os.getpid())}
    assert [name for _, name in calls].count("build") == 1
    assert [name for _, name in calls].count("tokenize") >= 1
    assert content(two.path) == content(keyhole.scan(model, [text], out=tmp_path / "one", **OPTIONS).path)


def test_a_stop_from_another_thread_stops_all_processes(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, asked = tmp_path / "x", threading.Event()

    class Ask(Silent):
        def advance(self, tokens: int) -> None:
            asked.set()

    stopped: list[BaseException] = []

    def work() -> None:
        try:
            keyhole.scan(model, [text], out=out, processes=2, stop=asked, progress=Ask(), **OPTIONS)
        except Interrupted as error:
            stopped.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "START", SLOW)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "Stopped, and saved" in str(stopped[0])
    resumed = keyhole.scan(model, [text], out=out, processes=2, resume=True, **OPTIONS)
    assert content(resumed.path) == content(keyhole.scan(model, [text], out=tmp_path / "one", **OPTIONS).path)


def test_a_scan_of_one_process_is_not_resumed_by_two(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise Interrupted("now")

    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # noqa: PT012
        patch.setattr(shard, "scan_batches", stop)
        keyhole.scan(model, [text], out=tmp_path / "x", **OPTIONS)
    with pytest.raises(RunError, match="begun with one process"):
        keyhole.scan(model, [text], out=tmp_path / "x", processes=2, resume=True, **OPTIONS)


def test_what_several_processes_cannot_do(tmp_path: Path, model: str, text: Path) -> None:
    out = tmp_path / "x"
    for arguments, says in [
        ((tiny("llama"), [text]), "give its name"),
        ((model, ["-"]), "Standard input"),
    ]:
        with pytest.raises(UsageError, match=says):
            keyhole.scan(*arguments, out=out, processes=2)  # type: ignore[arg-type]
    for options, says in [
        ({"shard": "1/2"}, "--processes 999 does not work with --shard"),
        ({"processes": 0}, "at least 1"),
        ({"device": "cuda:1"}, "not on 'cuda:1'"),
        ({"device": "cuda"}, "needs 999 GPUs"),
    ]:
        with pytest.raises(UsageError, match=says):
            keyhole.scan(model, [text], out=out, **{"processes": 999, **options})  # type: ignore[arg-type]
    assert not out.exists()
