"""`run_shard` by itself: from any thread, stopped and resumed, twice, at once, and only for the plan it was made for."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny

import keyhole
from keyhole.errors import Interrupted, RunDamaged, RunError, ShardError, UsageError
from keyhole.scanning import shard
from keyhole.scanning.config import ScanConfig
from keyhole.scanning.identity import Job
from keyhole.scanning.planning import plan_for
from keyhole.scanning.scan import Silent
from keyhole.scanning.shard import ShardJob, read_result, run_shard
from keyhole.store import checkpoint
from keyhole.store.unfinished import Partial

OPTIONS: dict[str, Any] = {"top": 4, "unit": "line", "batch_tokens": 30}
NEVER = threading.Event()


class Seen(Silent):
    def __init__(self) -> None:
        self.total, self.done, self.batches = 0, 0, 0

    def begin(self, tokens: int, done: int) -> None:
        self.total, self.done = tokens, done

    def advance(self, tokens: int) -> None:
        self.done, self.batches = self.done + tokens, self.batches + 1


@pytest.fixture
def job(text: Path, tmp_path: Path) -> ShardJob:
    """The second of two shards of a plan that is finished."""
    model, config = tiny("llama"), ScanConfig(**OPTIONS)
    partial = Partial(tmp_path / "x")
    partial.begin(resume=False, force=False)
    plan_for(Job(model, [str(text)], config), model, config.resolve(model), partial, 2, Silent())
    partial.close()
    return ShardJob(partial.path, model, config, 2, 2, partial.shard(2, 2))


def found(job: ShardJob) -> dict[str, bytes]:
    """What a shard found, without its log."""
    return {name: array.tobytes() for name, array in read_result(job)[0].items()}


def test_a_shard_stopped_in_a_thread_saves_and_resumes_to_the_same_bytes(job: ShardJob, tmp_path: Path) -> None:
    whole = dataclasses.replace(job, result=tmp_path / "whole.npz")
    seen = Seen()
    run_shard(whole, NEVER, seen)
    assert seen.batches > 3
    assert seen.done == seen.total > 0
    stop, said = threading.Event(), []

    class StopAfterTwo(Seen):
        def advance(self, tokens: int) -> None:
            super().advance(tokens)
            if self.batches == 2:
                stop.set()

    def work() -> None:
        try:
            run_shard(job, stop, StopAfterTwo())
        except Interrupted as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [
        f"Stopped after 2 of {seen.batches} batches, and saved. Run the same command with --resume to go on."
    ]
    assert not job.result.exists()
    with pytest.raises(ShardError, match="Shard 2/2 has no result"):
        read_result(job)
    with pytest.raises(Interrupted, match="Stopped after 2 of"):  # still set: no batch is run
        run_shard(job, stop, Silent())
    rest = Seen()
    run_shard(job, NEVER, rest)
    assert rest.batches == seen.batches - 2
    assert rest.done == rest.total == seen.total
    assert found(job) == found(whole)
    assert not job.checkpoint.exists()


def test_a_second_time_does_nothing(job: ShardJob, monkeypatch: pytest.MonkeyPatch) -> None:
    run_shard(job, NEVER, Silent())
    before = job.result.read_bytes(), job.result.stat().st_mtime_ns, job.result.stat().st_ino
    monkeypatch.setattr(ShardJob, "load", lambda self: pytest.fail("the model was loaded"))
    monkeypatch.setattr(shard, "scan_batches", lambda *args: pytest.fail("a batch was run"))
    seen = Seen()
    run_shard(job, NEVER, seen)
    assert (job.result.read_bytes(), job.result.stat().st_mtime_ns, job.result.stat().st_ino) == before
    assert seen.done == seen.total > 0


def test_two_at_once_leave_one_whole_result(job: ShardJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both save a checkpoint after every batch, into the same file."""
    alone = dataclasses.replace(job, result=tmp_path / "alone.npz")
    run_shard(alone, NEVER, Silent())
    monkeypatch.setattr(shard, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(shard, "CHECKPOINT_SHARE", 1e9)
    together, failed = threading.Barrier(2), []

    def work() -> None:
        try:
            together.wait()
            run_shard(job, NEVER, Silent())
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert found(job) == found(alone)
    assert not list(job.result.parent.glob("*.new"))


def test_it_leaves_signals_alone(job: ShardJob, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.setattr(signal, "signal", lambda *args: pytest.fail("a handler was installed"))
    run_shard(job, NEVER, Silent())


def test_a_plan_is_run_with_its_own_model_and_options_only(job: ShardJob) -> None:
    with pytest.raises(RunError, match="made for another scan .*fingerprint"):
        run_shard(dataclasses.replace(job, model=tiny("llama", hidden_act="gelu")), NEVER, Silent())
    with pytest.raises(RunError, match="made for another scan .*top: was 4, now 5"):
        run_shard(dataclasses.replace(job, config=ScanConfig(**{**OPTIONS, "top": 5})), NEVER, Silent())
    assert not job.result.exists()


@pytest.mark.parametrize(("number", "count"), [(0, 2), (3, 2), (-1, 2), (1, 0)])
def test_a_shard_that_is_not_there_is_not_run(job: ShardJob, number: int, count: int) -> None:
    with pytest.raises(UsageError, match=f"no shard {number}/{count}"):
        run_shard(dataclasses.replace(job, number=number, count=count), NEVER, Silent())
    assert not job.result.exists()


def test_results_of_another_shard_or_plan_and_damaged_ones_are_refused(
    job: ShardJob, text: Path, tmp_path: Path
) -> None:
    run_shard(job, NEVER, Silent())
    first = dataclasses.replace(job, number=1, result=job.result.with_name("1-of-2.npz"))
    shutil.copy(job.result, first.result)
    with pytest.raises(ShardError, match="of another scan or shard .2/2, not 1/2"):
        run_shard(first, NEVER, Silent())
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"Another text, the {i}th." for i in range(30)))
    partial = Partial(tmp_path / "y")
    partial.begin(resume=False, force=False)
    assert isinstance(job.model, keyhole.Model)
    whole = Job(job.model, [str(other)], job.config)
    plan_for(whole, job.model, job.config.resolve(job.model), partial, 2, Silent())
    partial.close()
    foreign = dataclasses.replace(job, plan=partial.path, result=partial.shard(2, 2))
    shutil.copy(job.result, foreign.result)
    with pytest.raises(ShardError, match="of another scan"):
        run_shard(foreign, NEVER, Silent())
    job.result.write_bytes(job.result.read_bytes()[:-40])
    with pytest.raises(RunDamaged, match="checksum does not match.*Delete this file.*--resume"):
        run_shard(job, NEVER, Silent())
    job.result.unlink()
    run_shard(job, NEVER, Silent())


def test_a_damaged_plan_is_refused(job: ShardJob) -> None:
    file = job.plan / "plan" / "batch_windows.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunDamaged, match="batch_windows.npy is not what the plan wrote"):
        run_shard(job, NEVER, Silent())


def test_a_job_is_the_same_after_a_trip_through_json(job: ShardJob) -> None:
    import json

    named = dataclasses.replace(job, model="a/b", revision="main", device="cuda:1", edits="edits.json")
    assert ShardJob.from_json(json.loads(json.dumps(named.as_json()))) == named
    with pytest.raises(keyhole.KeyholeError, match="model by name"):
        job.as_json()


def test_a_scan_stops_off_the_main_thread_and_resumes(text: Path, tmp_path: Path) -> None:
    whole = keyhole.scan(tiny("llama"), [text], out=tmp_path / "whole", **OPTIONS)
    stop, said = threading.Event(), []

    class Stop(Silent):
        def advance(self, tokens: int) -> None:
            stop.set()

    def work() -> None:
        try:
            keyhole.scan(tiny("llama"), [text], out=tmp_path / "x", stop=stop, progress=Stop(), **OPTIONS)
        except Interrupted as error:
            said.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "Stopped after 1 of" in said[0]
    resumed = keyhole.scan(tiny("llama"), [text], out=tmp_path / "x", resume=True, **OPTIONS)
    assert resumed.manifest == whole.manifest


def test_arrays_survive_a_checkpoint(tmp_path: Path) -> None:
    arrays = {"n": np.array(7), "keys": np.arange(6).reshape(2, 3), "name": np.array("text")}
    checkpoint.write_checkpoint(tmp_path / "a.npz", arrays)
    back = checkpoint.read_checkpoint(tmp_path / "a.npz", "Again.")
    assert back.keys() == arrays.keys()
    assert all((back[name] == array).all() and back[name].dtype == array.dtype for name, array in arrays.items())


def test_a_stop_while_planning_leaves_nothing(text: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    stop.set()
    with pytest.raises(Interrupted, match="while the corpus was planned"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", unit="line", stop=stop)
    assert not list(tmp_path.glob("run*"))
