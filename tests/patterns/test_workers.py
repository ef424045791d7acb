"""What a process of the search has at hand: nulls are as strong as the key, and are other keys' positions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from families import tiny
from small import scanned

from keyhole.patterns.firing import Pairs
from keyhole.patterns.workers import REAL, Desk, Job

KEYS, LENGTH = 60, 40_000


class Given(Desk):
    """With coefficients that are given, in place of those of a run."""

    def __init__(self, pairs: Pairs) -> None:
        self._given = pairs

    def pairs(self, what: str, layer: int, side: int) -> Pairs:
        return self._given

    def text(self, what: str) -> range:  # type: ignore[override]
        return range(LENGTH)


def some_pairs(seed: int) -> Pairs:
    """Of keys that are strong in a part of the text of their own."""
    random = np.random.default_rng(seed)
    positions = [np.sort(random.choice(600, 400, replace=False)) + 600 * key for key in range(KEYS)]
    values = random.exponential(1, 400 * KEYS).astype(np.float32)
    return Pairs(
        np.arange(0, 400 * KEYS + 1, 400),
        np.concatenate(positions).astype(np.int32),
        values,
        np.zeros(KEYS, np.float32),
    )


def test_dealt_out_positions_are_as_many_of_each_level_and_of_all_keys() -> None:
    desk = Given(some_pairs(0))
    for number in (0, 7, KEYS - 1):
        job = Job(REAL, 0, 1, number, number, False, 5)
        own, dealt = desk.fires(job), desk.fires(job._replace(dealt=True))
        assert np.bincount(dealt.levels).tolist() == np.bincount(own.levels).tolist()
        assert (np.diff(dealt.positions) > 0).all()
        owners = dealt.positions // 600
        assert len(np.unique(owners)) > KEYS / 2
        assert np.isin(dealt.positions, own.positions).mean() < 0.1
        again, other = (desk.fires(job._replace(dealt=True, seed=seed)) for seed in (5, 6))
        np.testing.assert_array_equal(again.positions, dealt.positions)
        assert not np.array_equal(other.positions, dealt.positions)


SEARCHES = """
import os, sys, time
from keyhole.patterns.workers import workers
from keyhole.store.run import Run

if __name__ == "__main__":
    with workers(Run(sys.argv[1]), 2) as pool:
        print(*{pool._pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
        time.sleep(600)
"""


@pytest.mark.slow(seconds=5)
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Even if it is killed: nothing is left that waits for work."""
    run = scanned(tiny("opt"), tmp_path)
    script = tmp_path / "search.py"
    script.write_text(SEARCHES)
    with subprocess.Popen([sys.executable, str(script), str(run.path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        found = [int(each) for each in parent.stdout.readline().split()]
        assert found
        assert all(map(alive, found))
        parent.kill()
    end = time.monotonic() + 60
    while any(map(alive, found)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(map(alive, found))


def alive(process: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")  # tells those that ended and were not waited for, if the system has it
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
