"""One shard of a scan: a slice of a finished plan, turned into a partial result.

`run_shard` can be called in any process or thread, on any machine that has the plan's files. It saves its progress in a
checkpoint, continues from one that it finds, and writes its result as a whole or not at all. If the result is there already,
it only checks it. So a shard may be run twice, or by two callers at once, and nothing is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..common.files import disk_errors
from ..common.stopping import Stop
from ..errors import DiskFull, Interrupted, RunDamaged, RunError, ShardError, UsageError
from ..models.model import Model
from ..store import checkpoint
from ..store.control import Control
from ..store.unfinished import AGAIN, PlanFiles
from .config import ScanConfig
from .contract import Index
from .identity import Edits, Job, differences, identity
from .orientation import State
from .plan import Plan, open_plan
from .results import machine
from .runner import check_memory, compiled_if_asked, finite, index_for, scan_batches

CHECKPOINT_SECONDS = 30.0
"""Least time between two checkpoints."""
CHECKPOINT_SHARE = 0.01
"""Largest share of the time that checkpoints may take: if one is slow to write, the next one comes later."""


class ShardProgress(Protocol):
    """Receives the progress of a shard."""

    def begin(self, tokens: int, done: int) -> None:
        """Once, before the first batch: the shard's tokens, and how many of them an earlier try did."""

    def advance(self, tokens: int) -> None:
        """After each batch: its tokens."""


@dataclass(frozen=True)
class ShardJob:
    """What a shard needs to know."""

    plan: Path
    """the directory of the unfinished run that holds the plan"""
    model: Model | str
    """a loaded model is used as it is; for a scan with --compile, the caller has compiled it already"""
    config: ScanConfig
    number: int
    """from 1"""
    count: int
    """shards that the plan is cut into"""
    result: Path
    """the file for the result"""
    revision: str | None = None
    edits: Edits | None = None
    control: Control | None = None
    device: str | None = None
    """the device of this shard's model; None: that of `config`"""

    @property
    def checkpoint(self) -> Path:
        return self.result.with_name(f"{self.result.stem}.checkpoint.npz")

    @property
    def name(self) -> str:
        return f"{self.number}/{self.count}"

    def load(self) -> Model:
        return Job(self.model, [], self.config, self.revision, self.edits, self.control).load(self.device)

    def as_json(self) -> dict[str, Any]:
        """The job for another process. The model must be given by name and the edits by file."""
        if isinstance(self.model, Model) or not (self.edits is None or isinstance(self.edits, (str, os.PathLike))):
            raise UsageError("A shard that another process runs needs its model by name and its edits as a file.")
        paths = {"plan": os.fspath(self.plan), "result": os.fspath(self.result)}
        edits = None if self.edits is None else os.fspath(self.edits)
        told = {name: getattr(self, name) for name in ("model", "number", "count", "revision", "device")}
        control = self.control.to_json() if self.control else None
        return {**told, **paths, "edits": edits, "control": control, "config": asdict(self.config)}

    @staticmethod
    def from_json(told: dict[str, Any]) -> ShardJob:
        paths = {name: Path(told[name]) for name in ("plan", "result")}
        control = Control(**told["control"]) if told["control"] else None
        return ShardJob(**{**told, **paths, "control": control, "config": ScanConfig.from_dict(told["config"])})


def run_shard(job: ShardJob, stop: Stop, progress: ShardProgress) -> None:
    """Run the batches of a shard and write its result, `job.result`. If `stop` is set, save a checkpoint and raise `Interrupted`.

    Idempotent: the result depends only on the plan, the model and the shard's number, so calling this again, after a stop, a
    kill or success, leads to the same file. An existing result is checked and kept; an existing checkpoint is continued. Only
    the result and the checkpoint are written. Two callers at once do the work twice and write the same bytes.
    """
    with disk_errors(job.result):
        plan = open_plan(PlanFiles(job.plan), contents=False)
        numbers = plan.shard(job.number, job.count)
        if job.result.exists():
            read_result(job)  # of this very shard, and whole
            tokens = sum(map(plan.size, numbers))
            progress.begin(tokens, tokens)
            return
        began = time.time()
        model = job.load()
        config = job.config.resolve(model)
        _check_planned_for(plan, model, config)
        check_memory(model, config)
        if isinstance(job.model, Model):
            _run(job, plan, model, config, numbers, stop, progress, began)
        else:
            with compiled_if_asked(model, config):
                _run(job, plan, model, config, numbers, stop, progress, began)


def _check_planned_for(plan: Plan, model: Model, config: ScanConfig) -> None:
    """Refuse to run a plan with another model or configuration than it was made for."""
    before = plan.files.read_identity()
    if found := differences(before, identity(model, config, before.get("corpus", []))):
        raise RunError(f"The plan at {plan.files.folders[0]} was made for another scan ({found}). Plan again.")


def _run(
    job: ShardJob,
    plan: Plan,
    model: Model,
    config: ScanConfig,
    numbers: range,
    stop: Stop,
    progress: ShardProgress,
    began: float,
) -> None:
    loaded = time.time()
    split = plan.summary.split_units and config.per == "sentence"
    index = index_for(model, config, plan.unit_offsets if split else None)
    check_room(job.result.parent, 2 * index.nbytes)  # a checkpoint, and its successor
    done = _resume(job, index)
    progress.begin(sum(map(plan.size, numbers)), sum(map(plan.size, numbers[:done])))
    with finite(model, config):
        wait, last = CHECKPOINT_SECONDS, time.monotonic()
        _stop_if_asked(stop, done, len(numbers))
        for number in scan_batches(model, plan, index, config, numbers[done:]):
            done += 1
            progress.advance(plan.size(number))
            if done == len(numbers):
                continue  # to the end of the loop, which flushes the index; then the result is written
            if time.monotonic() - last > wait or stop.is_set():
                saving = time.monotonic()
                _save(job, job.checkpoint, index, done=np.array(done))
                last = time.monotonic()
                wait = max(CHECKPOINT_SECONDS, (last - saving) / CHECKPOINT_SHARE)
            _stop_if_asked(stop, done, len(numbers))
        seconds = {"load": round(loaded - began, 3), "scan": round(time.time() - loaded, 3)}
        _save(job, job.result, index, log=np.array(json.dumps(machine(model, seconds))))
    job.checkpoint.unlink(missing_ok=True)


def _stop_if_asked(stop: Stop, done: int, of: int) -> None:
    if stop.is_set() and done < of:
        raise Interrupted(
            f"Stopped after {done} of {of} batches, and saved. Run the same command with --resume to go on."
        )


def check_room(folder: Path, need: int) -> None:
    """Refuse before the first forward what could not be written after the last."""
    free = shutil.disk_usage(folder).free
    if free < need:
        raise DiskFull(
            f"{folder} has {free / 1e6:,.0f} MB free and this scan writes up to {need / 1e6:,.0f} MB. Make room, choose another "
            "--out, or a smaller --top; then run the same command with --resume."
        )


# Checkpoints and results


def _save(job: ShardJob, path: Path, index: Index, **more: npt.NDArray[Any]) -> None:
    whose = {"plan": np.array(PlanFiles(job.plan).fingerprint()), "shard": np.array([job.number, job.count])}
    checkpoint.write_checkpoint(path, {**index.state(), **whose, **more})


def _read(job: ShardJob, path: Path, advice: str) -> State:
    """A saved state, which must be of this shard of this plan."""
    saved = checkpoint.read_checkpoint(path, advice)
    plan, shard = str(saved.pop("plan", "")), tuple(saved.pop("shard", np.zeros(0)).tolist())
    if plan != PlanFiles(job.plan).fingerprint() or shard != (job.number, job.count):
        told = "{}/{}".format(*shard) if len(shard) == 2 else "none"
        raise ShardError(f"{path} is of another scan or shard ({told}, not {job.name}). {advice}")
    return saved


def _resume(job: ShardJob, index: Index) -> int:
    """How many batches an earlier try did, with what it found loaded into the index."""
    if not job.checkpoint.exists():
        return 0
    try:
        saved = _read(job, job.checkpoint, AGAIN)
    except RunDamaged:
        if job.checkpoint.exists():
            raise
        return 0  # another caller of this shard finished meanwhile and deleted it; to run the shard again is harmless
    done = int(saved.pop("done"))
    index.load(saved)
    return done


def read_result(job: ShardJob) -> tuple[State, dict[str, Any]]:
    """The result of a shard that is done: what its index found, and its log."""
    if not job.result.exists():
        raise ShardError(f"Shard {job.name} has no result: there is no {job.result}. Run it again with --resume.")
    again = "Delete this file and run the same command with --resume, or start the scan over with --force."
    state = _read(job, job.result, again)
    return state, json.loads(str(state.pop("log")))
