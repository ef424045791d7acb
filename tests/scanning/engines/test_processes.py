"""One scan by several processes: the same bytes as one, also after a stop; a failure is told and leaves nothing running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from families import tiny, tokenizer

import keyhole
from keyhole.errors import Interrupted, RunError, RunExists, ShardError, UsageError
from keyhole.scanning import scan as engine
from keyhole.scanning.engines import processes
from keyhole.store import layout as store
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


class Seen(engine.Silent):
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
def test_what_a_process_says_is_shown_and_nothing_stays(tmp_path: Path, model: str, text: Path) -> None:
    with pytest.raises(ShardError, match=r"Shard \d/2 failed: .*context 5000 is more than"):
        keyhole.scan(model, [text], out=tmp_path / "x", processes=2, context=5000, **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]


def test_a_process_that_dies_is_told(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "START", "raise SystemExit('no such library')")
    with pytest.raises(ShardError, match="failed: its process ended with status 1"):
        keyhole.scan(model, [text], out=tmp_path / "x", processes=2, **OPTIONS)
    assert "no such library" in capfd.readouterr().err


SLOW = """
import time
from keyhole.models import model as models
forward = models.Model.forward
def slow(self, ids):
    time.sleep(0.3)
    forward(self, ids)
models.Model.forward = slow
from keyhole.scanning.engines.processes import child
child()
"""
PARENT = """
import sys
import keyhole
from keyhole.scanning.engines import processes
from keyhole.views import progress
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
        part = partial.shard(number, 2)
        return part.exists() or unfinished.Partial(part).checkpoint.exists()

    def ended(number: int) -> bool:
        """Nobody holds its directory any more."""
        part = unfinished.Partial(partial.shard(number, 2))
        if part.path.exists():
            try:
                store.lock(part.path).close()
            except RunExists:
                return False
        return True

    deadline = time.monotonic() + 120
    while not (saved(1) and saved(2) and ended(1) and ended(2)) and time.monotonic() < deadline:
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


def test_a_scan_of_one_process_is_not_resumed_by_two(
    tmp_path: Path, model: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise Interrupted("now")

    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # noqa: PT012
        patch.setattr(engine, "_run_batches", stop)
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
        ({"shard": "1/2"}, "with --shard only 1"),
        ({"processes": 0}, "at least 1"),
        ({"device": "cuda:1"}, "not on 'cuda:1'"),
        ({"device": "cuda"}, "needs 999 GPUs"),
    ]:
        with pytest.raises(UsageError, match=says):
            keyhole.scan(model, [text], out=out, **{"processes": 999, **options})  # type: ignore[arg-type]
    assert not out.exists()
