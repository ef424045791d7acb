"""The plan of a scan that is about to run: made now, or found from an earlier try."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

from ..errors import RunError
from ..inputs import corpus, reader
from ..models.model import Model
from ..store.unfinished import Partial, PlanFiles
from .config import ScanConfig
from .identity import Job, differences, identity, stamps_of
from .plan import Plan, build, content_hash, open_plan


class PlanProgress(Protocol):
    """Receives the number of tokens planned so far."""

    def planned(self, tokens: int) -> None: ...


def check_shards(partial: Partial, shards: int) -> None:
    """Refuse to resume a scan in several shards if it was begun in another number of shards."""
    if shards == 1 or not partial.plan.summary.exists():
        return
    before = partial.plan.read_identity().get("shards")
    if before != shards:
        was = "one process" if before == 1 else f"--processes {before}"
        raise RunError(
            f"The unfinished scan at {partial.path} was begun with {was}, not --processes {shards}. Resume it as it was begun, or "
            "start over with --force."
        )


def plan_for(
    job: Job, model: Model, config: ScanConfig, partial: Partial, shards: int, progress: PlanProgress
) -> tuple[Plan, list[list[Any]]]:
    """The plan, and the stamps of the corpus's files before it was read. `config` is resolved."""
    stamps = stamps_of(job.names)
    now = identity(model, config, job.names)
    if partial.plan.summary.exists():
        return _found(job, now, partial, stamps), stamps
    build_plan(job, model, config, partial.plan, {**now, "stamps": stamps, "shards": shards}, progress)
    return open_plan(partial.plan, contents=False), stamps


def build_plan(
    job: Job, model: Model, config: ScanConfig, files: PlanFiles, about: dict[str, Any], progress: PlanProgress
) -> None:
    """Read, split and tokenise the corpus into a plan. This is the only place where a scan does so."""
    assert config.context is not None
    assert config.batch_tokens is not None
    read = reader.units if reader.worthwhile(job.names) else corpus.units
    units = read(job.names, config.unit, text_field=config.text_field, language=config.language)
    with contextlib.closing(units):
        build(
            files,
            units,
            model.tokenize,
            vocabulary=model.encoder.get_vocab_size(with_added_tokens=True),
            context=config.context,
            n_special=int(config.bos),
            kind=model.kind,
            batch_tokens=config.batch_tokens,
            max_tokens=config.max_tokens,
            hold_out=config.hold_out,
            hold_out_by=config.hold_out_by,
            threads="-" not in job.names,
            progress=progress.planned,
            check_ids=model.check_ids,
            identity=about,
        )


def _found(job: Job, now: dict[str, Any], partial: Partial, stamps: list[list[Any]]) -> Plan:
    """The plan of an earlier try, which must have been of the same scan over the same text."""
    before = partial.plan.read_identity()
    if found := differences(before, now):
        raise RunError(
            f"The unfinished scan at {partial.path} is another one ({found}). Repeat its command to resume it, or start over "
            "with --force."
        )
    plan = open_plan(partial.plan, contents=True)
    if stamps != before.get("stamps") and content_hash(job.units(), plan.summary.units) != plan.summary.hash:
        raise RunError(
            f"The corpus changed since the scan at {partial.path} began. Restore it, or start over with --force."
        )
    return plan
