"""Engines decide who calls `run_shard`, and where. An engine is one file of this folder; `engine_for` chooses one."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Protocol

from ...common.stopping import Stop
from ...errors import UsageError
from ..identity import Job
from ..shard import ShardJob, ShardProgress


class Engine(Protocol):
    """Runs the shards of a plan. It neither plans nor merges."""

    shards: int
    """shards that the plan is cut into"""
    in_this_process: bool
    """whether shards run here, with the model that made the plan; else each worker loads the model by name"""

    def check(self, job: Job) -> None:
        """Refuse a scan that this engine cannot run, before anything is written."""

    def run(self, jobs: list[ShardJob], stop: Stop, progress: ShardProgress) -> None:
        """Return when every shard has its result. If `stop` is set, save, and raise `Interrupted`."""


def names() -> list[str]:
    """The engines there are: one per file of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def engine_for(name: str | None, workers: int) -> Engine:
    """The engine of this name with this number of workers. Without a name: this process, or several processes if there are several
    workers."""
    name = name or ("local" if workers == 1 else "processes")
    if name not in names():
        raise UsageError(f"There is no engine '{name!s:.40}'. The engines are: {', '.join(names())}.")
    engine: Engine = import_module(f".{name}", __name__).make(workers)
    return engine
