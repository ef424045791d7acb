"""From a command to a finished run: directories, the plan, checkpoints, resuming, merging shards."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import __version__, corpus, reader, store
from .errors import DiskFull, Interrupted, RunError, ShardError, UsageError
from .kernels import AnyIndex, Index, add_integers
from .models import Model, load
from .plan import Plan, Summary, build, content_hash, unit_of
from .run import Run
from .shard import ScanConfig, batches_of, finite, index_for, parse_shard, scan_batches, warm_up
from .topk import UNFILLED, Keys, one_per_group, pack, unpack

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.01
"""Checkpoints come at least this far apart, and cost at most this share of the time."""


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
    model: Model | str,
    sources: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shard: str | tuple[int, int] | None = None,
    processes: int = 1,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Find every key's trigger examples in one pass over a corpus, into the run directory `out`.

    With `processes`, a model given by name is scanned by so many processes, on CUDA with a GPU each, to the same bytes.
    `options` are the fields of `ScanConfig`: top, per, unit, context, max_tokens, batch_tokens, bos, text_field, hold_out,
    compile, and for a model given by name device, dtype and trust_remote_code.
    """
    unknown = set(options) - set(ScanConfig.__dataclass_fields__)
    if unknown:
        raise TypeError(f"scan() got unknown options: {', '.join(sorted(unknown))}")
    config = ScanConfig(**options, shard=parse_shard(shard) if isinstance(shard, str) else shard)
    named = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    names = [str(source) for source in named]
    if processes < 1 or (processes > 1 and shard is not None):
        raise UsageError(
            f"{processes} processes cannot be: give at least 1, and with --shard only 1 (each would be a shard of its own)."
        )
    if processes > 1:
        from .processes import scan_in_processes

        corpus.expand(names)
        return scan_in_processes(
            model,
            names,
            Path(out),
            processes,
            resume=resume,
            force=force,
            progress=progress or Silent(),
            options=options,
        )
    partial = store.Partial(Path(out))
    with store.disk_errors(partial.path):
        if resume and partial.out.exists() and not partial.path.exists():
            return finished(partial.out, names)
        partial.begin(resume=resume, force=force)
        try:
            if (partial.path / "manifest.json").exists():  # killed between the last two steps
                partial.put_in_place()
                return Run(partial.out)
            corpus.expand(names)  # a wrong name is told before the model is loaded
            return _scan(model, names, config, partial, progress or Silent())
        except BaseException:
            _drop_if_nothing_done(partial)
            raise
        finally:
            partial.close()


def finished(out: Path, names: list[str]) -> Run:
    """The run that is there already, which must be of the same corpus."""
    run = Run(out)
    if run.manifest["corpus"]["sources"] != names:
        raise RunError(
            f"{out} is a finished scan of {run.manifest['corpus']['sources']}, not of {names}. Choose another --out."
        )
    return run


def _drop_if_nothing_done(partial: store.Partial) -> None:
    """A failure before the plan stood leaves nothing worth resuming, so leave nothing behind."""
    if not partial.plan.summary.exists() and not (partial.path / "manifest.json").exists():
        shutil.rmtree(partial.path, ignore_errors=True)


def _scan(source: Model | str, names: list[str], config: ScanConfig, partial: store.Partial, progress: Progress) -> Run:
    began = time.time()
    model = load(source, dtype=config.dtype, device=config.device, trust_remote_code=config.trust_remote_code)
    config = config.resolve(model)
    with _compiled(model, config):  # before anything is planned: what cannot be compiled leaves nothing behind
        return _scan_loaded(model, names, config, partial, progress, began)


def _scan_loaded(
    model: Model, names: list[str], config: ScanConfig, partial: store.Partial, progress: Progress, began: float
) -> Run:
    loaded = time.time()
    identity = {
        "model": {"source": model.source, "fingerprint": model.fingerprint},
        "corpus": names,
        "config": asdict(config) | {"shard": list(config.shard) if config.shard else None},
    }
    with _warming_up(model, config):
        summary = _plan(model, names, config, partial, identity, progress)
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
        model.encoder.save(str(store.tokenizer_file(partial.path)))
        manifest = _manifest(model, names, config, summary, index.n)
        seconds = {
            "load": round(loaded - began, 3),
            "plan": round(planned - loaded, 3),
            "scan": round(scanned - planned, 3),
            "write": round(time.time() - scanned, 3),
        }
        partial.finish(manifest, _log(model, seconds))
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
    from .compiled import compiled

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
    partial: store.Partial,
    identity: dict[str, Any],
    progress: Progress,
) -> Summary:
    """The plan, made now or found from an earlier try, which must have been of the same scan."""
    if partial.plan.summary.exists():
        before = store.read_json(partial.identity)
        differences = [
            f"{key}: was {before.get(part, {}).get(key)!r}, now {value!r}"
            for part in ("model", "config")
            for key, value in identity[part].items()
            if before.get(part, {}).get(key) != value
        ]
        if before.get("corpus") != identity["corpus"]:
            differences.append(f"corpus: was {before.get('corpus')}, now {identity['corpus']}")
        if differences:
            raise RunError(
                f"The unfinished scan at {partial.path} is another one ({'; '.join(differences)}). Repeat its command to resume it, "
                "or start over with --force."
            )
        summary = Summary(**store.read_json(partial.plan.summary))
        if _stamps(names) != before.get("stamps"):
            found = content_hash(corpus.units(names, config.unit, text_field=config.text_field), summary.units)
            if found != summary.hash:
                raise RunError(
                    f"The corpus changed since the scan at {partial.path} began. Restore it, or start over with --force."
                )
        return summary
    stamps = _stamps(names)
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
            before_done=lambda: store.write_json(partial.identity, {**identity, "stamps": stamps}),
        )


def _stamps(names: list[str]) -> list[list[Any]]:
    """Size and time of every file: while they stay, nobody need read the corpus again."""
    files = [name for name in corpus.expand(names) if os.path.exists(name)]
    return [[name, os.stat(name).st_size, os.stat(name).st_mtime_ns] for name in files]


def _check_room(path: Path, index: AnyIndex) -> None:
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
    index: AnyIndex,
    config: ScanConfig,
    partial: store.Partial,
    progress: Progress,
    stopped: Callable[[], bool],
) -> None:
    numbers = batches_of(plan, config.shard)
    done = 0
    if partial.checkpoint.exists():
        saved = store.read_checkpoint(partial.checkpoint)
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


def _checkpoint(partial: store.Partial, index: AnyIndex, done: int) -> None:
    store.write_checkpoint(partial.checkpoint, {**index.state(), "done": np.array(done)})


def save_results(index: AnyIndex, unit_offsets: npt.NDArray[np.int64], partial: store.Partial) -> None:
    """The index as the arrays of a run, a layer at a time."""
    state = index.state()
    for name in store.STATISTICS:
        partial.save(name, state[name])
    for side, keys in zip(store.SIDES, state["keys"], strict=False):
        row = keys.shape[1:]
        with (
            partial.writer(f"coefficients{side}", np.float32, row) as coefficients,
            partial.writer(f"units{side}", np.int32, row) as units,
            partial.writer(f"positions{side}", np.int32, row) as positions,
        ):
            for layer in keys:
                values, tokens = unpack(layer)
                unit = np.where(tokens < 0, -1, unit_of(unit_offsets, tokens))
                coefficients.append((values if not side else -values)[None])
                units.append(unit[None])
                positions.append(np.where(tokens < 0, -1, tokens - unit_offsets[np.maximum(unit, 0)])[None])


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
            "layers": model.layers,
            "cells": model.cells,
            "signed": model.signed,
            **({"edits": [edit.to_json() for edit in model.edits]} if model.edits else {}),
        },
        "corpus": {"sources": names, **counted, "scanned_prefixes": scanned},
        "config": {
            **asdict(config),
            "starts": int(config.bos),
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


# Shards back into one run


def merge(out: str | os.PathLike[str], parts: Iterable[str | os.PathLike[str]], *, force: bool = False) -> Run:
    """The run that one pass would have made, from the runs of its shards."""
    runs = [Run(part) for part in parts]
    _check_shards(runs)  # before anything is written
    partial = store.Partial(Path(out))
    with store.disk_errors(partial.path):
        partial.begin(resume=False, force=force)
        try:
            merge_into(partial, runs, {"merged": [str(run.path) for run in runs]})
        finally:
            shutil.rmtree(partial.path, ignore_errors=True)
            partial.close()
    return Run(out)


def merge_into(partial: store.Partial, runs: list[Run], log: dict[str, Any]) -> None:
    """Build the merged run in `partial`, and put it in place."""
    _check_shards(runs)
    first = runs[0]
    for name in (*store.CORPUS, "tokenizer"):
        file = next(path for path in first.path.glob(f"{name}.*"))
        shutil.copyfile(file, partial.path / file.name)
    index = _merged(runs)
    save_results(index, first._corpus["unit_offsets"], partial)
    manifest = {key: value for key, value in first.manifest.items() if key not in ("files", "checksum")}
    manifest["config"] = {**manifest["config"], "shard": None}
    manifest["corpus"] = {**manifest["corpus"], "scanned_prefixes": index.n}
    partial.finish(manifest, log)


def _check_shards(runs: list[Run]) -> None:
    if not runs:
        raise ShardError("No shards were given to merge.")
    of: dict[int, Run] = {}
    for run in runs:
        shard = run.manifest["config"]["shard"]
        if shard is None:
            raise ShardError(f"{run.path} is a whole run, not a shard of one (scan with --shard i/n).")
        number, count = shard
        if number in of:
            raise ShardError(f"The shard {number}/{count} is there twice: {of[number].path} and {run.path}.")
        of[number] = run
    first = runs[0]
    for run in runs[1:]:
        for what, key in (("model", "fingerprint"), ("corpus", "hash"), ("corpus", "tokens")):
            if run.manifest[what][key] != first.manifest[what][key]:
                raise ShardError(f"{run.path} and {first.path} are shards of different scans: another {what}.")
        for key, value in first.manifest["config"].items():
            other = run.manifest["config"].get(key)
            if (other != value) if key != "shard" else (other[1] != value[1]):
                raise ShardError(
                    f"{run.path} and {first.path} are shards of different scans: {key} is {other} in one and {value} in the other."
                )
    count = first.manifest["config"]["shard"][1]
    missing = [f"{number}/{count}" for number in range(1, count + 1) if number not in of]
    if missing:
        raise ShardError(f"Missing shards: {', '.join(missing)}. Scan them (--shard), then merge all {count}.")


def _merged(runs: list[Run]) -> Index:
    first = runs[0]
    offsets = first._corpus["unit_offsets"]
    index = Index(first.layers, first.cells, first.top, signed=first.signed)
    split = first.manifest["corpus"]["split_units"] and first.manifest["config"]["per"] == "sentence"
    for layer in range(first.layers):
        rows = np.concatenate([_keys(run, layer, offsets) for run in runs], axis=-1)
        if split:
            rows = one_per_group(rows, unit_of(offsets, rows & 0xFFFFFFFF))
        index.keys[:, layer] = np.sort(rows, axis=-1)[..., : first.top]
    for run in runs:
        index.n += int(run.manifest["corpus"]["scanned_prefixes"])
        index.active += run._array("active")
        add_integers(index.sums, run._array("sums"))
        extremes = run._array("extremes")
        np.maximum(index.extremes[..., 0], extremes[..., 0], out=index.extremes[..., 0])
        np.minimum(index.extremes[..., 1], extremes[..., 1], out=index.extremes[..., 1])
    return index


def _keys(run: Run, layer: int, offsets: npt.NDArray[np.int64]) -> Keys:
    """The stored triggers of a layer as keys again, [sides, cells, top]."""
    sides: list[Keys] = []
    for side in store.SIDES[: 2 if run.signed else 1]:
        coefficients, units, positions = (run._array(name + side)[layer] for name in store.TRIGGERS)
        empty = units < 0
        magnitude = np.where(empty, np.float32(1), np.abs(coefficients))
        tokens = offsets[np.maximum(units, 0)] + positions
        sides.append(np.where(empty, UNFILLED, pack(magnitude, tokens)))
    return np.stack(sides)
