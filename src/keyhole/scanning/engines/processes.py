"""Shards run by processes of this machine, one each; on CUDA each has a GPU of its own.

The parent makes the plan; the processes only open it. A process gets its shard as a line of JSON on standard input, and reports
in lines of JSON on standard output. When its input ends, because the parent closes it or is gone, it saves and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any

import torch

from ...common.children import start_child
from ...common.stopping import Stop
from ...errors import Interrupted, KeyholeError, ShardError, UsageError
from ..identity import Job
from ..shard import ShardJob, ShardProgress, run_shard

START = "from keyhole.scanning.engines.processes import child; child()"
POLL_SECONDS = 0.1
"""Time between two checks whether the scan is to stop."""


class Processes:
    in_this_process = False

    def __init__(self, count: int) -> None:
        self.shards = count

    def check(self, job: Job) -> None:
        if job.config.shard is not None:
            raise UsageError(
                f"--processes {self.shards} does not work with --shard: each process would run a shard of its own."
            )
        if not isinstance(job.model, str):
            raise UsageError("Several processes each load the model, so give its name instead of the loaded model.")
        if "-" in job.names:
            raise UsageError(
                "Standard input can be read by one process only. Write it to a file, or leave out --processes."
            )
        if job.edits is not None and not isinstance(job.edits, (str, os.PathLike)):
            raise UsageError("Several processes each read the edits, so give them as a file.")
        _devices(job.config.device, self.shards)

    def run(self, jobs: list[ShardJob], stop: Stop, progress: ShardProgress) -> None:
        """If one process fails, or the scan is to stop, all processes save and stop."""
        devices = _devices(jobs[0].config.device, len(jobs))
        children = [_Child(replace(job, device=device)) for job, device in zip(jobs, devices, strict=True)]
        try:
            failure = _watch(children, stop, progress)
        except KeyboardInterrupt:  # a second Ctrl-C does not wait
            for child in children:
                child.kill()
            raise
        finally:
            for child in children:
                child.stop()
            for child in children:
                child.close()
        if failure is not None:
            raise ShardError(f"{failure} The other processes stopped; --resume goes on from what they saved.")
        if stop.is_set() and not all(job.result.exists() for job in jobs):
            raise Interrupted("Stopped, and saved. Run the same command with --resume to go on.")


def make(workers: int) -> Processes:
    return Processes(workers)


def _devices(device: str, count: int) -> list[str]:
    """The device of each process: a GPU of its own; on a CPU they share it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return ["cpu"] * count
    if device != "cuda":
        raise UsageError(f"--processes {count} works on --device cuda (a GPU each) or cpu, not on '{device}'.")
    if count > (there := torch.cuda.device_count()):
        raise UsageError(f"--processes {count} needs {count} GPUs, and there are {there}.")
    return [f"cuda:{number}" for number in range(count)]


# In the parent

Events = queue.SimpleQueue[tuple["_Child", dict[str, Any]]]


class _Child:
    """A process that runs one shard."""

    def __init__(self, job: ShardJob) -> None:
        self.job = job
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None

    def start(self, put: Callable[[tuple[_Child, dict[str, Any]]], None]) -> None:
        """Start it. Its events are `put`; the last one is `{"ended": reason}`, with an empty reason after success."""
        self._process = process = start_child(START)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a process that ended at once is reported by its listener
            threads = torch.get_num_threads()  # the number of threads decides how sums are rounded
            process.stdin.write(json.dumps({"threads": threads, "shard": self.job.as_json()}) + "\n")
            process.stdin.flush()
        self._listener = threading.Thread(target=self._listen, args=(process, put))
        self._listener.start()

    def _listen(self, process: subprocess.Popen[str], put: Callable[[tuple[_Child, dict[str, Any]]], None]) -> None:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # a library printed something
                continue
            if isinstance(event, dict):
                said = event.get("error", said)
                put((self, event))
        status = process.wait()
        why = said or f"its process ended with status {status}; what it said is above." if status else ""
        put((self, {"ended": why}))

    def stop(self) -> None:
        """Tell it to save and stop."""
        if self._process and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def close(self) -> None:
        """Wait for its end."""
        if self._process and self._listener:
            self._process.wait()
            self._listener.join()
            assert self._process.stdout is not None
            self._process.stdout.close()


def _watch(children: list[_Child], stop: Stop, progress: ShardProgress) -> str | None:
    """Start all processes and wait for their ends. Returns why the first one failed, if one did."""
    events: Events = queue.SimpleQueue()
    for child in children:
        child.start(events.put)
    watched = _Watched(progress, len(children))
    left, failure, stopped = len(children), None, False
    while left:
        if stop.is_set() and not stopped:
            stopped = True
            for child in children:
                child.stop()
        try:
            child, event = events.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if "ended" not in event:
            watched.tell(child.job.number, event)
            continue
        left -= 1
        if event["ended"] and not stopped and failure is None:
            failure = f"Shard {child.job.name} failed: {event['ended']}"
            for other in children:
                other.stop()
    return failure


class _Watched:
    """Reports the progress of all shards as that of one."""

    def __init__(self, progress: ShardProgress, count: int) -> None:
        self.progress, self.count = progress, count
        self.begun: dict[int, tuple[int, int]] = {}
        self.early = 0
        """tokens done before all shards had begun"""

    def tell(self, number: int, event: dict[str, Any]) -> None:
        if "begin" in event:
            self.begun[number] = event["begin"]
            if len(self.begun) == self.count:
                tokens, done = (sum(each) for each in zip(*self.begun.values(), strict=True))
                self.progress.begin(tokens, done + self.early)
        elif "advance" in event:
            if len(self.begun) == self.count:
                self.progress.advance(event["advance"])
            else:
                self.early += event["advance"]


# In a process


class _Told:
    """Progress in lines of JSON."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self.begun = False

    def say(self, **event: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone; the end of the input says so too
            print(json.dumps(event), file=self.file, flush=True)

    def begin(self, tokens: int, done: int) -> None:
        self.begun = True
        self.say(begin=[tokens, done])

    def advance(self, tokens: int) -> None:
        self.say(advance=tokens)


def child() -> None:
    """Run one shard. This is all that a process does."""
    told = json.loads(sys.stdin.readline() or "null")
    if told is None:  # stopped before it began
        sys.exit(130)
    stop, progress = threading.Event(), _Told(sys.stdout)
    threading.Thread(target=_stop_at_the_end_of_input, args=(stop, progress), daemon=True).start()
    torch.set_num_threads(told["threads"])
    try:
        run_shard(ShardJob.from_json(told["shard"]), stop, progress)
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)
    except KeyholeError as error:
        progress.say(error=str(error))
        sys.exit(2)


def _stop_at_the_end_of_input(stop: threading.Event, progress: _Told) -> None:
    while os.read(0, 1):
        pass
    stop.set()
    if not progress.begun:  # the model is still being loaded: there is nothing to save and no reason to wait
        os._exit(130)
