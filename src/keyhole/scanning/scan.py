"""From a command to a finished run: the directory, one plan, its shards run by an engine, their results merged and written."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from ..common import notebook
from ..common.checks import whole
from ..common.files import disk_errors
from ..common.stopping import Stop, stop_on_interrupt
from ..errors import Interrupted, UsageError
from ..inputs import corpus
from ..models.checkpoints import name_of
from ..models.model import Model
from ..store.control import Control
from ..store.run import Run
from ..store.unfinished import Partial
from .config import ScanConfig, parse_shard
from .engines import Engine, engine_for
from .identity import Edits, Job, already_done, finish_sealed
from .merge import merge_states
from .orientation import State, orient
from .plan import Plan
from .planning import PlanProgress, check_shards, plan_for
from .results import describe_model, machine, manifest_for, save_results
from .runner import check_memory, compiled_if_asked, list_bytes, warming_up
from .shard import ShardJob, ShardProgress, check_room, read_result


class Progress(PlanProgress, ShardProgress, Protocol):
    """Receives the progress of a scan."""


class _Stoppable:
    """Passes on how far the plan is, and ends it if the scan is to stop: a plan is whole or not there."""

    def __init__(self, progress: PlanProgress, stop: Stop | None) -> None:
        self.progress, self.stop = progress, stop

    def planned(self, tokens: int) -> None:
        if self.stop is not None and self.stop.is_set():
            raise Interrupted("Stopped while the corpus was planned, so nothing is kept. Run the same command again.")
        self.progress.planned(tokens)


class Silent:
    """Ignores all progress."""

    def planned(self, tokens: int) -> None: ...
    def begin(self, tokens: int, done: int) -> None: ...
    def advance(self, tokens: int) -> None: ...


def scan(
    model: Model | str | os.PathLike[str],
    sources: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    revision: str | None = None,
    edits: Edits | None = None,
    control: str | None = None,
    control_seed: int = 0,
    shard: str | tuple[int, int] | None = None,
    processes: int = 1,
    engine: str | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    stop: Stop | None = None,
    **options: Any,
) -> Run:
    """Find every key's trigger examples in one pass over a corpus, into the run directory `out`.

    With `processes`, a model given by name is scanned by that many processes, on CUDA with a GPU each, to the same bytes.
    `engine` names who runs the shards, a file of `scanning/engines`; `processes` is then its number of workers.
    `stop` is anything with `is_set`, such as a `threading.Event`: when it is set, from any thread, the scan saves what is done
    and raises `Interrupted`. In the main thread, Ctrl-C does the same.
    `options` are the fields of `ScanConfig`: top, per, unit, language, context, max_tokens, batch_tokens, bos, text_field,
    hold_out, hold_out_by, compile, and for a model given by name device, dtype and trust_remote_code; `revision`, `edits`,
    `control` and `control_seed` are those of `load`.
    """
    unknown = set(options) - set(ScanConfig.__dataclass_fields__)
    if unknown:
        raise TypeError(f"scan() got unknown options: {', '.join(sorted(unknown))}")
    config = ScanConfig(**options, shard=parse_shard(shard) if isinstance(shard, str) else shard)
    if not isinstance(sources, (str, os.PathLike, Iterable)):
        raise UsageError(f"The corpus is {sources!r:.60}; it must be a name or a list of names.")
    named = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    names = [corpus.name_of(source) for source in named]
    if not isinstance(model, Model):
        model = name_of(model)
    job = Job(model, names, config, revision, edits, None if control is None else Control(control, control_seed))
    chosen = engine_for(engine, whole("processes", processes, 1, 1024))
    chosen.check(job)
    partial = Partial(Path(out))
    with disk_errors(partial.path):
        if done := already_done(job, partial, resume=resume):
            return done
        partial.begin(resume=resume, force=force, inputs=job.inputs)
        try:
            if resume and partial.sealed:
                return finish_sealed(job, partial)
            corpus.expand(names)  # a wrong name is refused before the model is loaded
            return _scan(job, chosen, partial, progress or notebook.bar() or Silent(), stop)
        except BaseException:
            if not partial.plan.summary.exists() and not partial.sealed:
                partial.drop()  # a failure before the plan was whole leaves nothing worth resuming
            raise
        finally:
            partial.close()


def _scan(job: Job, engine: Engine, partial: Partial, progress: Progress, stop: Stop | None) -> Run:
    began = time.time()
    check_shards(partial, engine.shards)
    model = job.load()
    config = job.config.resolve(model)
    with contextlib.ExitStack() as stack:
        if engine.in_this_process:  # before planning, so that a model that cannot be compiled leaves no files
            stack.enter_context(compiled_if_asked(model, config))
        loaded = time.time()
        check_memory(model, config)
        with warming_up(model, config) if engine.in_this_process else contextlib.nullcontext():
            plan, stamps = plan_for(job, model, config, partial, engine.shards, _Stoppable(progress, stop))
        planned = time.time()
        # for each shard a checkpoint and its successor, then the finished arrays
        check_room(partial.path, (2 * engine.shards + 2) * list_bytes(model, config))
        about, tokenizer = describe_model(model), model.encoder.to_str(pretty=True)
        log = machine(model, {"load": round(loaded - began, 3), "plan": round(planned - loaded, 3)})
        if engine.in_this_process:
            jobs = _shards(replace(job, model=model, edits=None, control=None), engine, partial)
        else:  # workers load the model by name, at the revision that was planned with
            jobs = _shards(replace(job, revision=about["revision"]), engine, partial)
            del model
            _free_memory()
        # also while results are written: Ctrl-C there would only make the next try write them again
        with stop_on_interrupt(stop) as asked:
            engine.run(jobs, asked, progress)
            scanned = time.time()
            state, logs = _merged(jobs, plan, config)
            if about["gated"]:
                orient(state, whole=config.shard is None)
            save_results(state, plan.unit_offsets, partial)
            partial.save_tokenizer(tokenizer)
            log["seconds"] |= {"scan": round(scanned - planned, 3), "write": round(time.time() - scanned, 3)}
            found = manifest_for(about, job.names, config, plan.summary, int(state["n"]))
            partial.finish(found, log | {"stamps": stamps} | ({"shards": logs} if len(jobs) > 1 else {}))
    return Run(partial.out)


def _shards(job: Job, engine: Engine, partial: Partial) -> list[ShardJob]:
    """The shards of the plan that this scan runs: all of the engine's, or the one that --shard names."""
    shard = job.config.shard
    return [
        ShardJob(
            plan=partial.path,
            model=job.model,
            config=job.config,
            number=number,
            count=count,
            result=partial.shard(number, count),
            revision=job.revision,
            edits=job.edits,
            control=job.control,
        )
        for number, count in ([shard] if shard else [(each, engine.shards) for each in range(1, engine.shards + 1)])
    ]


def _merged(jobs: list[ShardJob], plan: Plan, config: ScanConfig) -> tuple[State, list[dict[str, Any]]]:
    """What all shards found together, and their logs."""
    logs: list[dict[str, Any]] = []

    def states() -> Iterable[State]:
        for job in jobs:
            state, log = read_result(job)
            logs.append(log)
            yield state

    split = plan.summary.split_units and config.per == "sentence"
    return merge_states(states(), plan.unit_offsets if split else None), logs


def _free_memory() -> None:
    """Give back what the model took in this process: other processes load their own."""
    gc.collect()
    torch.cuda.empty_cache()  # nothing is done if CUDA was not used
