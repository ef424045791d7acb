"""An engine is one file: a scan by an engine that only this test knows has the bytes of any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import tiny

import keyhole
from keyhole.errors import UsageError
from keyhole.scanning import engines

BACKWARDS = '''
from threading import Thread

from keyhole.scanning.shard import run_shard


class Backwards:
    """Three shards per worker, the last one first, each in a thread of its own."""

    in_this_process = True

    def __init__(self, workers):
        self.shards = 3 * workers

    def check(self, job): ...

    def run(self, jobs, stop, progress):
        for job in reversed(jobs):
            thread = Thread(target=run_shard, args=(job, stop, progress))
            thread.start()
            thread.join()


make = Backwards
'''


def test_an_engine_from_one_file(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"top": 4, "unit": "line", "batch_tokens": 60}
    expected = keyhole.scan(tiny("llama"), [text], out=tmp_path / "expected", **options)  # type: ignore[arg-type]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "backwards.py").write_text(BACKWARDS)
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path / "more")])
    assert engines.names() == ["backwards", "local", "processes"]
    run = keyhole.scan(
        tiny("llama"),
        [text],
        out=tmp_path / "run",
        engine="backwards",
        processes=2,
        **options,  # type: ignore[arg-type]
    )
    assert run.manifest["files"] == expected.manifest["files"]


def test_what_cannot_be(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no engine 'slurm'. The engines are: local, processes"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", engine="slurm")
    with pytest.raises(UsageError, match="'local' has one worker, not 2"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", engine="local", processes=2)
    assert not list(tmp_path.glob("run*"))
