"""Shards run in this process, one after the other."""

from __future__ import annotations

from ...common.stopping import Stop
from ...errors import UsageError
from ..identity import Job
from ..shard import ShardJob, ShardProgress, run_shard


class Local:
    shards = 1
    in_this_process = True

    def check(self, job: Job) -> None:
        """Everything can be scanned in one process."""

    def run(self, jobs: list[ShardJob], stop: Stop, progress: ShardProgress) -> None:
        for job in jobs:
            run_shard(job, stop, progress)


def make(workers: int) -> Local:
    if workers != 1:
        raise UsageError(f"The engine 'local' has one worker, not {workers}. For several, use the engine 'processes'.")
    return Local()
