"""Engines decide who calls `run_shard`, and where. An engine is one file of this folder; `engine_for` chooses one."""

from __future__ import annotations

from typing import Protocol

from ...common.stopping import Stop
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


def engine_for(processes: int) -> Engine:
    if processes == 1:
        from .local import Local

        return Local()
    from .processes import Processes

    return Processes(processes)
