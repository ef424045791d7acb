"""From a command to a finished run: directories, the plan, checkpoints, resuming."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..common.checks import whole
from ..common.files import disk_errors, read_json, write_json
from ..errors import DiskFull, Interrupted, RunDamaged, RunError, UsageError
from ..inputs import corpus, reader
from ..kernels.order import unpack
from ..models.checkpoints import name_of
from ..models.load import load
from ..models.model import Model
from ..store import layout as store
from ..store import manifest, unfinished
from ..store.run import Run
from ..store.unfinished import AGAIN, Partial
from .config import ScanConfig, parse_shard
from .contract import Index
from .plan import Plan, Summary, build, content_hash, unit_of
from .shard import batches_of, check_memory, finite, index_for, scan_batches, warm_up

if TYPE_CHECKING:
    from ..models.intervene import Edit

Edits = str | os.PathLike[str] | dict[str, Any] | Sequence["Edit"]

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.01
"""Checkpoints come at least this far apart, and cost at most this share of the time."""
CELLS_AT_ONCE = 4096
"""Cells whose triggers are written together."""


class Progress(Protocol):
    """What a scan tells whoever watches."""

    def planned(self, tokens: int) -> None: ...
    def begin(self, tokens: int, done: int) -> None: ...
    def advance(self, tokens: int) -> None: ...


class Silent:
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
    shard: str | tuple[int, int] | None = None,
    processes: int = 1,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Find every key's trigger examples in one pass over a corpus, into the run directory `out`.

    With `processes`, a model given by name is scanned by that many processes, on CUDA with a GPU each, to the same bytes.
    `options` are the fields of `ScanConfig`: top, per, unit, context, max_tokens, batch_tokens, bos, text_field, hold_out,
    compile, and for a model given by name device, dtype and trust_remote_code; `revision` and `edits` are those of `load`.
    """
    unknown = set(options) - set(ScanConfig.__dataclass_fields__)
    if unknown:
        raise TypeError(f"scan() got unknown options: {', '.join(sorted(unknown))}")
    config = ScanConfig(**options, shard=parse_shard(shard) if isinstance(shard, str) else shard)
    options = {name: getattr(config, name) for name in options}
    if not isinstance(sources, (str, os.PathLike, Iterable)):
        raise UsageError(f"The corpus is {sources!r:.60}; it must be a name or a list of names.")
    named = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    names = [corpus.name_of(source) for source in named]
    if not isinstance(model, Model):
        model = name_of(model)
    processes = whole("processes", processes, 1, 1024)
    if processes > 1 and shard is not None:
        raise UsageError(f"{processes} processes cannot be: with --shard only 1 (each would be a shard of its own).")
    job = Job(model, names, config, revision, edits)
    if processes > 1:
        from .engines.processes import scan_in_processes

        corpus.expand(names)
        return scan_in_processes(
            job, Path(out), processes, resume=resume, force=force, progress=progress or Silent(), options=options
        )
    partial = Partial(Path(out))
    with disk_errors(partial.path):
        if done := already_done(job, partial, resume=resume):
            return done
        partial.begin(resume=resume, force=force, inputs=job.inputs)
        try:
            if resume and partial.sealed:
                return finish_sealed(job, partial)
            corpus.expand(names)  # a wrong name is refused before the model is loaded
            return _scan(job, partial, progress or Silent())
        except BaseException:
            drop_if_nothing_done(partial)
            raise
        finally:
            partial.close()


@dataclass(frozen=True)
class Job:
    """What is scanned: the model, loaded or by name, the corpus, and how."""

    model: Model | str
    names: list[str]
    config: ScanConfig
    revision: str | None = None
    edits: Edits | None = None

    def load(self) -> Model:
        config = self.config
        if isinstance(self.model, Model):
            return load(self.model, edits=self.edits)
        return load(
            self.model,
            dtype=config.dtype,
            device=config.device,
            revision=self.revision,
            trust_remote_code=config.trust_remote_code,
            edits=self.edits,
        )

    @property
    def inputs(self) -> list[str]:
        """What the scan reads, by name: a run must never replace any of it."""
        edits = [os.fspath(self.edits)] if isinstance(self.edits, (str, os.PathLike)) else []
        return [*self.names, self.model if isinstance(self.model, str) else self.model.source, *edits]

    def identity(self, model: Model, config: ScanConfig) -> dict[str, Any]:
        """What two scans must share to give the same run; `config` is resolved."""
        return {
            "model": {"source": model.source, "fingerprint": model.fingerprint},
            "corpus": self.names,
            "config": asdict(config) | {"shard": list(config.shard) if config.shard else None},
        }


PARTS: dict[str, type] = {"model": dict, "config": dict, "corpus": list}
"""What the identity of a scan consists of."""


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """In what two identities differ, as text; empty if in nothing."""
    before = {part: before.get(part) if isinstance(before.get(part), kind) else kind() for part, kind in PARTS.items()}
    found = [
        f"{key}: was {before[part].get(key)!r}, now {value!r}"
        for part in ("model", "config")
        for key, value in now[part].items()
        if before[part].get(key) != value
    ]
    if before["corpus"] != now["corpus"]:
        found.append(f"corpus: was {before['corpus']}, now {now['corpus']}")
    return "; ".join(found)


def already_done(job: Job, partial: Partial, *, resume: bool) -> Run | None:
    """The finished run that a resumed scan finds, which must be of the very same scan; None if there is none."""
    left = partial.path.exists()
    if not resume or not partial.out.exists() or (left and not partial.sealed):
        return None
    try:
        run = Run(partial.out)
        _check_same(job, run.manifest, partial.out)
    except RunError:
        if left:  # it may be what takes the run's place
            return None
        raise
    if left:  # the run that was replaced, left by a kill in the last step
        store.check_ours(partial.path)
        with store.lock(partial.path):
            partial.drop()
    return run


def finish_sealed(job: Job, partial: Partial) -> Run:
    """The last step of a scan that was killed before it: its files are compared with the manifest once more."""
    sealed = manifest.read_manifest(partial.path)
    manifest.check_files(partial.path, sealed, contents=True)
    _check_same(job, sealed, partial.path)
    partial.put_in_place()
    return Run(partial.out)


def _check_same(job: Job, sealed: dict[str, Any], path: Path) -> None:
    """Refuse to pass off a finished run as the result of another scan: model, options and text are compared."""
    corpus.expand(job.names)
    model = job.load()
    about = sealed["corpus"]
    before = {"model": sealed["model"], "config": sealed["config"], "corpus": about["sources"]}
    if found := differences(before, job.identity(model, job.config.resolve(model))):
        raise RunError(f"{path} is a finished scan of another kind ({found}). Choose another --out, or use --force.")
    if store.read_log(path).get("stamps") != _stamps(job.names) or "-" in job.names:
        units = corpus.units(job.names, job.config.unit, text_field=job.config.text_field)
        same = content_hash(units, about["units"]) == about["hash"]
        if not same or (not about["truncated"] and next(units, None) is not None):
            raise RunError(
                f"{path} is a finished scan of {', '.join(job.names)}, whose text changed since. Choose another --out, or use "
                "--force."
            )


def drop_if_nothing_done(partial: Partial) -> None:
    """A failure before the plan stood leaves nothing worth resuming, so leave nothing behind."""
    if not partial.plan.summary.exists() and not partial.sealed and not partial.shards():
        partial.drop()


def _scan(job: Job, partial: Partial, progress: Progress) -> Run:
    began = time.time()
    model = job.load()
    config = job.config.resolve(model)
    with _compiled(model, config):  # before anything is planned: what cannot be compiled leaves nothing behind
        return _scan_loaded(job, model, config, partial, progress, began)


def _scan_loaded(job: Job, model: Model, config: ScanConfig, partial: Partial, progress: Progress, began: float) -> Run:
    loaded = time.time()
    check_memory(model, config)
    names, stamps = job.names, _stamps(job.names)
    identity = job.identity(model, config)
    with _warming_up(model, config):
        summary = _plan(model, names, config, partial, identity, stamps, progress)
    plan = Plan(partial.plan, summary)
    index = index_for(model, config, plan.unit_offsets if summary.split_units and config.per == "sentence" else None)
    planned = time.time()
    _check_room(partial.path, index)
    # also while results are written: a stop there would lose what no checkpoint holds
    with stop_when_asked() as stopped:
        with finite(model, config):
            _run_batches(model, plan, index, config, partial, progress, stopped)
        scanned = time.time()
        save_results(index, plan.unit_offsets, partial)
        partial.save_tokenizer(model.encoder.to_str(pretty=True))
        about = _manifest(model, names, config, summary, index.n)
        seconds = {
            "load": round(loaded - began, 3),
            "plan": round(planned - loaded, 3),
            "scan": round(scanned - planned, 3),
            "write": round(time.time() - scanned, 3),
        }
        partial.finish(about, _log(model, seconds) | {"stamps": stamps})
    return Run(partial.out)


@contextlib.contextmanager
def _warming_up(model: Model, config: ScanConfig) -> Iterator[None]:
    """On a GPU, get ready to scan while the corpus is planned; what is not ready then will be in time."""
    if model.device.type != "cuda":
        yield
        return
    enough = threading.Event()
    thread = threading.Thread(target=warm_up, args=(model, config, enough.is_set), name="keyhole-warm-up")
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _compiled(model: Model, config: ScanConfig) -> contextlib.AbstractContextManager[None]:
    if not config.compile:
        return contextlib.nullcontext()
    from ..models.compiled import compiled

    return compiled(model)


def _log(model: Model, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": str(model.device),
        "seconds": seconds,
    }


def _plan(
    model: Model,
    names: list[str],
    config: ScanConfig,
    partial: Partial,
    identity: dict[str, Any],
    stamps: list[list[Any]],
    progress: Progress,
) -> Summary:
    """The plan, made now or found from an earlier try, which must have been of the same scan."""
    if partial.plan.summary.exists():
        before = read_json(partial.identity, AGAIN)
        if found := differences(before, identity):
            raise RunError(
                f"The unfinished scan at {partial.path} is another one ({found}). Repeat its command to resume it, or start over "
                "with --force."
            )
        try:
            summary = Summary(**partial.plan.read())
        except TypeError as error:
            raise RunDamaged(f"{partial.plan.summary} is not a plan's: {error}. {AGAIN}") from None
        if stamps != before.get("stamps"):
            found = content_hash(corpus.units(names, config.unit, text_field=config.text_field), summary.units)
            if found != summary.hash:
                raise RunError(
                    f"The corpus changed since the scan at {partial.path} began. Restore it, or start over with --force."
                )
        return summary
    assert config.context is not None
    assert config.batch_tokens is not None
    read = reader.units if reader.worthwhile(names) else corpus.units
    with contextlib.closing(read(names, config.unit, text_field=config.text_field)) as units:
        return build(
            partial.plan,
            units,
            model.tokenize,
            vocabulary=model.encoder.get_vocab_size(with_added_tokens=True),
            context=config.context,
            starts=int(config.bos),
            batch_tokens=config.batch_tokens,
            max_tokens=config.max_tokens,
            hold_out=config.hold_out,
            run_ahead="-" not in names,
            progress=progress.planned,
            check_ids=model.check_ids,
            before_done=lambda: write_json(partial.identity, {**identity, "stamps": stamps}),
        )


def _stamps(names: list[str]) -> list[list[Any]]:
    """Size and time of every file: while they stay, nobody need read the corpus again."""
    files = [name for name in corpus.expand(names) if os.path.exists(name)]
    return [[name, os.stat(name).st_size, os.stat(name).st_mtime_ns] for name in files]


def _check_room(path: Path, index: Index) -> None:
    """Refuse before the first forward what could not be written after the last."""
    need = int(index.nbytes * 4)  # a checkpoint, its successor, and the finished arrays
    free = shutil.disk_usage(path).free
    if free < need:
        raise DiskFull(
            f"{path} has {free / 1e6:,.0f} MB free and this scan writes up to {need / 1e6:,.0f} MB. Make room, choose another "
            "--out, or a smaller --top; then run the same command with --resume."
        )


def _run_batches(
    model: Model,
    plan: Plan,
    index: Index,
    config: ScanConfig,
    partial: Partial,
    progress: Progress,
    stopped: Callable[[], bool],
) -> None:
    numbers = batches_of(plan, config.shard)
    done = 0
    if partial.checkpoint.exists():
        saved = unfinished.read_checkpoint(partial.checkpoint)
        done = int(saved.pop("done"))
        index.load(saved)
    progress.begin(sum(map(plan.size, numbers)), sum(map(plan.size, numbers[:done])))
    wait, last = CHECKPOINT_SECONDS, time.monotonic()
    for number in scan_batches(model, plan, index, config, numbers[done:]):
        done += 1
        progress.advance(plan.size(number))
        if time.monotonic() - last > wait or stopped():
            began = time.monotonic()
            _checkpoint(partial, index, done)
            last = time.monotonic()
            wait = max(CHECKPOINT_SECONDS, (last - began) / CHECKPOINT_SHARE)
        if stopped() and done < len(numbers):
            raise Interrupted(
                f"Stopped after {done} of {len(numbers)} batches, and saved. Run the same command with --resume to go on."
            )


@contextlib.contextmanager
def stop_when_asked() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for what is in flight, so that what is done can be saved. A second one does not wait."""
    asked = False

    def ask(signum: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _checkpoint(partial: Partial, index: Index, done: int) -> None:
    unfinished.write_checkpoint(partial.checkpoint, {**index.state(), "done": np.array(done)})


def save_results(index: Index, unit_offsets: npt.NDArray[np.int64], partial: Partial) -> None:
    """The index as the arrays of a run, some cells at a time."""
    state = index.state()
    for name in store.STATISTICS:
        partial.save(name, state[name])
    for negative, keys in zip((False, True), state["keys"], strict=False):
        names, row = store.side_names(negative), keys.shape[1:]
        with (
            partial.writer(names[0], np.float32, row) as coefficients,
            partial.writer(names[1], np.int32, row) as units,
            partial.writer(names[2], np.int32, row) as positions,
        ):
            for at in range(0, len(keys), CELLS_AT_ONCE):
                values, tokens = unpack(keys[at : at + CELLS_AT_ONCE])
                unit = np.where(tokens < 0, -1, unit_of(unit_offsets, tokens))
                coefficients.append(-values if negative else values)
                units.append(unit)
                positions.append(np.where(tokens < 0, -1, tokens - unit_offsets[np.maximum(unit, 0)]))


def _manifest(model: Model, names: list[str], config: ScanConfig, summary: Summary, scanned: int) -> dict[str, Any]:
    counted = {key: value for key, value in vars(summary).items() if key != "batches"}
    return {
        "schema": store.SCHEMA,
        "keyhole": __version__,
        "model": {
            "source": model.source,
            "revision": model.revision,
            "family": model.config.model_type,
            "fingerprint": model.fingerprint,
            "cells": model.cells.as_json(),
            "signed": model.signed,
            **({"edits": [edit.to_json() for edit in model.edits]} if model.edits else {}),
        },
        "corpus": {"sources": names, **counted, "scanned_prefixes": scanned},
        "config": {
            **asdict(config),
            "n_special": int(config.bos),
            "shard": list(config.shard) if config.shard else None,
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("numpy", "sentencex", "tokenizers", "torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
