"""What a model says by heart, and in which cells: `keyhole leak`.

    find       what of the text it says by heart, given at most `prefix` tokens (`find.py`)
    weigh      how often that stands in the text, and how surprising it is (`control.py`)
    expose     the lines of a list, against other lines of the same form (`exposure.py`)
    localise   the first leaks: rankings of all cells (`rankings.py`), each tested by switching off its first cells (`deleting.py`)

The results are stored in the run (`store/leaks.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...analyses.claims import effect_facts
from ...analyses.stats import Interval
from ...common import notebook
from ...common.checks import whole
from ...errors import CorpusError, RunError, UsageError
from ...models.model import SPLIT, Model
from ...models.rerun import model_of
from ...store import leaks as stored
from ...store.run import Run
from .. import texts
from ..asked import check_run
from ..losses import losses
from ..texts import Window
from . import deleting, rankings
from .control import Weighed, cluster, weigh
from .exposure import Exposed, expose, read_lines, secrets
from .find import LONGEST, Found, Protocol, find
from .masks import Masked
from .rates import Rate
from .repeats import SHORT, Corpus, of_files, of_run
from .said import Said

TOKENS = 1_000_000
OTHERS = 32
"""Other leaks, at most, that are asked for again after cells were switched off."""
OTHER_TOKENS = 2048
"""Tokens of other text, at most, that the change of the perplexity is measured on."""
OTHER_WINDOW = 128

Names = Sequence[str | os.PathLike[str]]
Progress = Callable[[str, int], Callable[[int], None]]


def leak(
    run: Run | str | os.PathLike[str],
    *,
    text: Names | None = None,
    secret_list: str | os.PathLike[str] | None = None,
    prefix: int = 16,
    least_prefix: int = 4,
    length: int = 8,
    tokens: int = TOKENS,
    localise: int = 10,
    candidates: int = 1000,
    valid: Names | None = None,
    seed: int = 0,
    model: Model | str | os.PathLike[str] | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress = notebook.stages,
) -> Run:
    """Find leaks in a text (the run's own, if none is given), localise the first `localise`, and store what was found in the run."""
    protocol = _protocol(prefix, least_prefix, length)
    whole("tokens", tokens, 1), whole("localise", localise, 0), whole("seed", seed, 0)
    whole("candidates", candidates, 1, 1_000_000)
    if device == SPLIT or (isinstance(model, Model) and model.split):
        raise UsageError("Leaks need the model on one device: --device cuda or cpu, not split.")
    lines = [] if secret_list is None else read_lines(secret_list)
    run = run if isinstance(run, Run) else Run(Path(run))
    if run.manifest["config"].get("shard"):
        raise RunError(
            f"{run.path} is one shard of a scan. Merge the shards first (keyhole merge), then look for leaks."
        )
    advance = progress("loading the model", 1)
    model = model_of(run, model, device=device, trust_remote_code=trust_remote_code)
    check_run(run, model)
    advance(1)
    corpus = of_files(model, text) if text else of_run(run, model)
    if corpus.tokens < protocol.least + protocol.length:
        raise CorpusError(
            f"The text {corpus.files or 'of the run'} has {corpus.tokens} tokens, and a leak needs {protocol.least} of a prefix and "
            f"{protocol.length} of a continuation. Give more text, or smaller --least-prefix and --length."
        )
    found = find(model, corpus, protocol, tokens, seed, lambda total: progress("reading the text", total))
    listed = weigh(model, corpus, cluster(found.places, protocol.length), seed)
    exposed = _exposed(model, lines, candidates, seed, progress)
    tested = _localised(run, model, listed, localise, valid, seed, progress)
    facts = _facts(corpus, found, protocol, tokens, seed, localise, bool(lines), len(listed), model)
    every = [_of_text(model, each) for each in listed] + [_of_list(model, corpus, each) for each in exposed]
    rates = [_rate(each) for each in found.rates]
    stored.save(run, stored.Leaks(every, tested, rates, facts), {"text": corpus.source})
    return run


def _protocol(prefix: int, least: int, length: int) -> Protocol:
    whole("length", length, SHORT, LONGEST), whole("least-prefix", least, 1), whole("prefix", prefix, 1, 1 << 12)
    if least > prefix:
        raise UsageError(f"--least-prefix is {least} and --prefix {prefix}: the least must not be more.")
    return Protocol(prefix, least, length)


def _exposed(model: Model, lines: Sequence[str], count: int, seed: int, progress: Progress) -> list[Exposed]:
    if not lines:
        return []
    advance, found = progress("exposure of the secrets", len(lines)), []
    for number, each in enumerate(secrets(lines)):
        found.append(expose(model, each, count, seed + number))
        advance(1)
    return sorted(found, key=lambda each: (-each.exposure, -each.log_prob))


# Cells


def _localised(
    run: Run, model: Model, listed: Sequence[Weighed], count: int, valid: Names | None, seed: int, progress: Progress
) -> list[stored.Tested]:
    chosen = listed[:count]
    if not chosen:
        return []
    masked = Masked(model)
    windows = _other_text(run, model, [each.said for each in listed], valid, seed)
    before = losses(model, windows) if windows else None
    advance, found = progress("the cells of leaks", len(chosen)), []
    for rank, each in enumerate(chosen, 1):
        others = [other.said for other in listed if other is not each][:OTHERS]
        for method, orders in rankings.rankings(masked, each.said, run, seed=seed).items():
            one = deleting.test(masked, each.said, method, orders)
            left = deleting.others(masked, one, others)
            cells = one.order[: one.n90] if one.n90 is not None else []
            change = deleting.perplexity_change(model, windows, before, cells) if before is not None and cells else None
            found.append(_tested(rank, one, left, change))
        advance(1)
    return found


def _tested(
    rank: int, one: deleting.Tested, left: tuple[float, float, float] | None, change: Interval | None
) -> stored.Tested:
    kept = one.order[: stored.KEPT if one.n90 is None else one.n90]
    others = dict(zip(("others_before", "others_after", "others_forgotten"), left or (None,) * 3, strict=True))
    perplexity = dict(zip(("change", "change_lo", "change_hi"), change or (None,) * 3, strict=True))
    return stored.Tested(
        rank=rank,
        method=one.method,
        cells=one.cells,
        exact=one.exact,
        before=one.before,
        order=kept,
        n90=one.n90,
        **others,
        **perplexity,
    )


def _other_text(run: Run, model: Model, leaks: Sequence[Said], valid: Names | None, seed: int) -> list[Window]:
    """Windows of text that is in no leak, in random order; none if the run has too little text."""
    try:
        _, text = texts.fitted_and_measured(run, model, valid, seed=seed)
    except CorpusError:
        if valid:
            raise
        return []
    known = {
        each.continuation[at : at + SHORT * 2] for each in leaks for at in range(len(each.continuation) - SHORT * 2 + 1)
    }
    windows = text.windows(OTHER_WINDOW)
    taken, left = [], OTHER_TOKENS
    for number in np.random.default_rng(seed).permutation(len(windows)).tolist():
        window = windows[number]
        if left <= 0:
            break
        if len(window.ids) > 1 and not any(
            tuple(window.ids[at : at + SHORT * 2]) in known for at in range(len(window.ids))
        ):
            taken.append(Window(window.ids[:left], window.document))
            left -= len(taken[-1].ids)
    return taken


# What is stored


def _text(model: Model, ids: Sequence[int]) -> str:
    return model.vocabulary.text(list(ids))


def _of_text(model: Model, leak: Weighed) -> stored.Leak:
    return stored.Leak(
        source="text",
        prefix=_text(model, leak.said.prefix),
        continuation=_text(model, leak.said.continuation),
        tokens=len(leak.said.continuation),
        extracted=len(leak.said.continuation),
        repeats=leak.repeats,
        log_prob=leak.log_prob,
        control_log_prob=leak.control_log_prob,
        near_log_prob=leak.near_log_prob,
        near=leak.near,
        copies=leak.copies,
    )


def _of_list(model: Model, corpus: Corpus, found: Exposed) -> stored.Leak:
    ids = [*found.said.prefix, *found.said.continuation]
    return stored.Leak(
        source="secrets",
        prefix=_text(model, found.said.prefix),
        continuation=_text(model, found.said.continuation),
        tokens=len(found.said.continuation),
        extracted=found.extracted,
        repeats=len(corpus.places(ids)) if len(ids) >= SHORT else 0,
        log_prob=found.log_prob,
        exposure=found.exposure,
        highest=found.highest,
    )


def _rate(found: Rate) -> stored.Rate:
    return stored.Rate(found.times, found.tokens, found.leaked, found.documents, *found.rate)


def _facts(
    corpus: Corpus,
    found: Found,
    protocol: Protocol,
    tokens: int,
    seed: int,
    localise: int,
    listed: bool,
    leaks: int,
    model: Model,
) -> dict[str, Any]:
    return {
        "source": corpus.source,
        "files": corpus.files,
        "tokens": corpus.tokens,
        "documents": len(corpus.separators) - 1,
        "read": found.read,
        "at_most": tokens,
        "repeated": found.repeated,
        **effect_facts("more", found.more),
        "prefix": protocol.prefix,
        "least_prefix": protocol.least,
        "length": protocol.length,
        "leaks": leaks,
        "localised": min(localise, leaks),
        "secrets": int(listed),
        "cells": len(model.cells),
        "seed": seed,
    }
