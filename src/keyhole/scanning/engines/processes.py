"""One scan in several processes of one machine: a shard each, on CUDA a GPU each, merged at the end.

The shards are runs of their own inside the unfinished run, so `--resume` and `--force` mean what they always mean. A process
is given its job as a line of JSON on standard input and tells how it goes in lines of JSON on standard output. When its
input ends, because it is told to stop or because nobody is there any more, it saves and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch

from ...common.children import start_child
from ...common.files import disk_errors
from ...errors import Interrupted, KeyholeError, RunError, ShardError, UsageError
from ...store import layout as store
from ...store.run import Run
from ...store.unfinished import Partial
from ..merge import merge_into
from ..scan import Job, Progress, already_done, drop_if_nothing_done, finish_sealed, scan, stop_when_asked

START = "from keyhole.scanning.engines.processes import child; child()"


def scan_in_processes(
    job: Job,
    out: Path,
    count: int,
    *,
    resume: bool,
    force: bool,
    progress: Progress,
    options: dict[str, Any],
) -> Run:
    """What `scan` does, with the same bytes, by `count` processes."""
    model, names = job.model, job.names
    if not isinstance(model, str):
        raise UsageError("Several processes each load the model, so give its name instead of the loaded model.")
    if "-" in names:
        raise UsageError(
            "Standard input can be read by one process only. Write it to a file, or leave out --processes."
        )
    devices = _devices(options.get("device", "auto"), count)
    if job.edits is not None and not isinstance(job.edits, (str, os.PathLike)):
        raise UsageError("Several processes each read the edits, so give them as a file.")
    partial = Partial(out)
    with disk_errors(partial.path):
        if done := already_done(job, partial, resume=resume):
            return done
        partial.begin(resume=resume, force=force, inputs=job.inputs)
        try:
            if resume and partial.sealed:
                return finish_sealed(job, partial)
            _check_unfinished(partial, count)
            parts = [partial.shard(number, count) for number in range(1, count + 1)]
            jobs = [
                {
                    "model": model,
                    "sources": names,
                    "out": str(part),
                    "shard": [number, count],
                    "revision": job.revision,
                    "edits": None if job.edits is None else os.fspath(job.edits),
                    "options": {**options, "device": device},
                    "threads": torch.get_num_threads(),  # which decide rounding
                }
                for number, (part, device) in enumerate(zip(parts, devices, strict=True), 1)
            ]
            _run(jobs, progress)
            merge_into(partial, [Run(part) for part in parts], {"shards": [store.read_log(part) for part in parts]})
        except BaseException:
            drop_if_nothing_done(partial)
            raise
        finally:
            partial.close()
    return Run(partial.out)


def _devices(device: str, count: int) -> list[str]:
    """A GPU for each process; on a CPU they share it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return ["cpu"] * count
    if device != "cuda":
        raise UsageError(f"--processes {count} works on --device cuda (a GPU each) or cpu, not on '{device}'.")
    if count > (there := torch.cuda.device_count()):
        raise UsageError(f"--processes {count} needs {count} GPUs, and there are {there}.")
    return [f"cuda:{number}" for number in range(count)]


def _check_unfinished(partial: Partial, count: int) -> None:
    """What is there from before must be of as many processes."""
    others = {of for _, of in partial.shards()} - {count}
    if others or partial.plan.summary.exists():
        was = f"--processes {others.pop()}" if others else "one process"
        raise RunError(
            f"The unfinished scan at {partial.path} was begun with {was}, not --processes {count}. Resume it as it was begun, or "
            "start over with --force."
        )


def _run(jobs: list[dict[str, Any]], progress: Progress) -> None:
    """Run the jobs, one process each, until all are done. When one fails, or Ctrl-C comes, all save and stop."""
    events: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    processes: list[subprocess.Popen[str]] = []
    listeners: list[threading.Thread] = []
    failure: str | None = None
    stopped = False

    def stop() -> None:
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    try:
        with stop_when_asked() as asked:
            for number, job in enumerate(jobs):
                process = start_child(START)
                processes.append(process)
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # one that ended at once is heard of below
                    process.stdin.write(json.dumps(job) + "\n")
                    process.stdin.flush()
                listeners.append(threading.Thread(target=_listen, args=(number, process, events.put)))
                listeners[-1].start()
            watched = _Watched(progress, len(jobs))
            left = len(jobs)
            while left:
                if asked() and not stopped:
                    stopped = True
                    stop()
                try:
                    number, event = events.get(timeout=0.1)
                except queue.Empty:
                    continue
                if "ended" not in event:
                    watched.tell(number, event)
                    continue
                left -= 1
                if event["ended"] and not stopped and failure is None:
                    failure = f"Shard {number + 1}/{len(jobs)} failed: {event['ended']}"
                    stop()
    except KeyboardInterrupt:  # a second Ctrl-C does not wait
        for process in processes:
            process.kill()
        raise
    finally:
        stop()
        for process in processes:
            process.wait()
        for listener in listeners:
            listener.join()
        for process in processes:
            assert process.stdout is not None
            process.stdout.close()
    if failure is not None:
        raise ShardError(f"{failure} The other processes stopped; --resume goes on from what they saved.")
    if stopped:
        raise Interrupted("Stopped, and saved. Run the same command with --resume to go on.")


def _listen(number: int, process: subprocess.Popen[str], put: Callable[[tuple[int, dict[str, Any]]], None]) -> None:
    """Pass on what a process says, and then how it ended: "" where all is well."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        try:
            event = json.loads(line)
        except ValueError:  # a library that prints
            continue
        if isinstance(event, dict):
            said = event.get("error", said)
            put((number, event))
    status = process.wait()
    put(
        (number, {"ended": said or f"its process ended with status {status}; what it said is above." if status else ""})
    )


class _Watched:
    """The progress of all as the progress of one."""

    def __init__(self, progress: Progress, count: int) -> None:
        self.progress, self.count = progress, count
        self.begun: dict[int, tuple[int, int]] = {}
        self.early = 0

    def tell(self, number: int, event: dict[str, Any]) -> None:
        if "planned" in event and number == 0:
            self.progress.planned(event["planned"])
        elif "begin" in event:
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

    def _say(self, **event: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody there: the end of the input says so too
            print(json.dumps(event), file=self.file, flush=True)

    def planned(self, tokens: int) -> None:
        self._say(planned=tokens)

    def begin(self, tokens: int, done: int) -> None:
        self._say(begin=[tokens, done])

    def advance(self, tokens: int) -> None:
        self._say(advance=tokens)


def child() -> None:
    """One shard."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell had it ignored
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_at_the_end_of_input, daemon=True).start()
    told = _Told(sys.stdout)
    torch.set_num_threads(job["threads"])
    try:
        shard = (job["shard"][0], job["shard"][1])
        scan(
            job["model"],
            job["sources"],
            job["out"],
            revision=job["revision"],
            edits=job["edits"],
            shard=shard,
            resume=True,
            progress=told,
            **job["options"],
        )
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)
    except KeyholeError as error:
        told._say(error=str(error))
        sys.exit(2)


def _stop_at_the_end_of_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)
