"""What a model says by heart, and in which cells: `keyhole leak`.

    find       what of the text it says by heart, given at most `prefix` tokens (`find.py`)
    weigh      how often that stands in the text, and how surprising it is (`control.py`)
    expose     the lines of a list, against other lines of the same form (`exposure.py`)
    localise   the first leaks: rankings of all cells (`rankings.py`), each tested by switching off its first cells (`deleting.py`), on
               prompts that the ranking did not see (`target.py`)

The results are stored in the run (`store/leaks.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

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
from .exposure import Exposed, Secret, expose, read_lines, secrets, too_short
from .find import Protocol, find
from .masks import Masked
from .prompted import Prompted
from .rates import Rate
from .repeats import SHORT, Corpus, of_files, of_run
from .target import LONGEST, targets

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
    if protocol.prefix + protocol.length > (room := texts.room_of(model)):
        raise UsageError(
            f"--prefix {protocol.prefix} and --length {protocol.length} are {protocol.prefix + protocol.length} tokens, and a text of this "
            f"model has at most {room}. Give smaller ones."
        )
    listed, skipped = _secrets(model, lines)
    windows = _other_text(run, model, valid, seed)
    corpus = of_files(model, text) if text else of_run(run, model)
    if (longest := int(np.diff(corpus.separators).max()) - 1) < protocol.least + protocol.length:
        raise CorpusError(
            f"The text {corpus.files or 'of the run'} has {corpus.tokens} tokens, at most {longest} in a document, and a leak needs "
            f"{protocol.least} of a prefix and {protocol.length} of a continuation. Give more text, or smaller --least-prefix and --length."
        )
    found = find(model, corpus, protocol, tokens, seed, lambda total: progress("reading the text", total))
    leaks = cluster(found.places)
    weighed = weigh(model, corpus, leaks, seed)
    exposed = _exposed(model, listed, candidates, seed, progress)
    tested = _localised(run, model, corpus, weighed, localise, windows, seed, progress)
    every = [_of_text(model, each) for each in weighed] + [_of_list(model, corpus, each) for each in exposed]
    facts = {
        "source": corpus.source,
        "files": corpus.files,
        "tokens": corpus.tokens,
        "cut": int(corpus.cut),
        "documents": len(corpus.separators) - 1,
        "read": found.read,
        "at_most": tokens,
        "repeated": found.repeated,
        **effect_facts("more", found.more),
        "prefix": protocol.prefix,
        "least_prefix": protocol.least,
        "length": protocol.length,
        "leaks": len(leaks),
        "localised": min(localise, len(weighed)),
        "secrets": len(exposed),
        "skipped": skipped,
        "cells": len(model.cells),
        "seed": seed,
    }
    rates = [_rate(each) for each in found.rates]
    stored.save(run, stored.Leaks(every, tested, rates, facts), {"text": corpus.source})
    return run


def _protocol(prefix: int, least: int, length: int) -> Protocol:
    whole("length", length, SHORT, LONGEST), whole("least-prefix", least, 1), whole("prefix", prefix, 1, 1 << 12)
    if least > prefix:
        raise UsageError(f"--least-prefix is {least} and --prefix {prefix}: the least must not be more.")
    return Protocol(prefix, least, length)


def _secrets(model: Model, lines: Sequence[str]) -> tuple[list[Secret], int]:
    """The secrets of a list, and how many lines are left out because nothing can be said of them."""
    room = texts.room_of(model)
    for line in lines:
        if (size := len(model.tokenize([line])[0])) > room:
            raise UsageError(
                f"The secret {line[:40]!r}… has {size} tokens, and a text of this model has at most {room}."
            )
    kept = [line for line in lines if not too_short(model, line)]
    return secrets(kept), len(lines) - len(kept)


def _exposed(model: Model, listed: Sequence[Secret], count: int, seed: int, progress: Progress) -> list[Exposed]:
    if not listed:
        return []
    advance, found = progress("exposure of the secrets", len(listed)), []
    every = frozenset(each.line for each in listed)
    for number, each in enumerate(listed):
        found.append(expose(model, each, count, seed + number, every))
        advance(1)
    return sorted(found, key=lambda each: (-each.exposure, -each.log_prob))


# Cells


def _localised(
    run: Run,
    model: Model,
    corpus: Corpus,
    leaks: Sequence[Weighed],
    count: int,
    windows: Sequence[Window],
    seed: int,
    progress: Progress,
) -> list[stored.Tested]:
    if not leaks[:count]:
        return []
    masked = Masked(model)
    others = [Prompted(each.text.prefix, each.text.continuation[:LONGEST]) for each in leaks[: max(OTHERS + 1, count)]]
    windows = _without(windows, [each.text for each in leaks])
    before = losses(model, windows) if windows else None
    advance, found = progress("the cells of leaks", len(leaks[:count])), []
    for rank, target in enumerate(targets(model, corpus, [each.text for each in leaks[:count]], seed), 1):
        rest = [other for number, other in enumerate(others, 1) if number != rank][:OTHERS]
        for method, orders in rankings.rankings(masked, target, run, seed=seed).items():
            one = deleting.test(masked, target, method, orders)
            left = deleting.others(masked, one, rest)
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
        elsewhere=one.elsewhere,
        elsewhere_before=one.elsewhere_before,
        **others,
        **perplexity,
    )


def _other_text(run: Run, model: Model, valid: Names | None, seed: int) -> list[Window]:
    """Windows of other text, in random order; none if the run has too little text."""
    try:
        _, text = texts.fitted_and_measured(run, model, valid, fitted=texts.FEWEST, seed=seed)
    except CorpusError:
        if valid:
            raise
        return []
    windows = text.windows(min(OTHER_WINDOW, texts.room_of(model)))
    return [windows[number] for number in np.random.default_rng(seed).permutation(len(windows)).tolist()]


def _without(windows: Sequence[Window], leaks: Sequence[Prompted]) -> list[Window]:
    """The first windows that no leak is in, up to `OTHER_TOKENS` tokens of them."""
    size = 2 * SHORT
    known = {
        each.continuation[at : at + size] for each in leaks for at in range(max(1, len(each.continuation) - size + 1))
    }
    sizes = {len(each) for each in known}
    taken: list[Window] = []
    left = OTHER_TOKENS
    for window in windows:
        if left <= 0:
            break
        ids = window.ids
        grams = (tuple(ids[at : at + each]) for each in sizes for at in range(len(ids)))
        if len(ids) > 1 and not any(gram in known for gram in grams):
            taken.append(Window(ids[:left], window.document))
            left -= len(taken[-1].ids)
    return taken


# What is stored


def _text(model: Model, ids: Sequence[int]) -> str:
    return model.vocabulary.text(list(ids))


def _of_text(model: Model, leak: Weighed) -> stored.Leak:
    return stored.Leak(
        source="text",
        prefix=_text(model, leak.text.prefix),
        continuation=_text(model, leak.text.continuation),
        tokens=len(leak.text.continuation),
        extracted=len(leak.text.continuation),
        repeats=leak.repeats,
        log_prob=leak.log_prob,
        control_log_prob=leak.control_log_prob,
        near_log_prob=leak.near_log_prob,
        near=leak.near,
        copies=leak.copies,
    )


def _of_list(model: Model, corpus: Corpus, found: Exposed) -> stored.Leak:
    # a line inside of a sentence begins with another token: that of the word with a space before it
    spelled = {tuple(ids) for ids in model.tokenize([found.secret.line, f" {found.secret.line}"])}
    ends = {int(place) + len(ids) for ids in spelled if len(ids) >= SHORT for place in corpus.places(ids)}
    return stored.Leak(
        source="secrets",
        prefix=_text(model, found.text.prefix),
        continuation=_text(model, found.text.continuation),
        tokens=len(found.text.continuation),
        extracted=found.extracted,
        repeats=len(ends),
        log_prob=found.log_prob,
        exposure=found.exposure if found.candidates else None,
        highest=found.highest,
    )


def _rate(found: Rate) -> stored.Rate:
    return stored.Rate(found.times, found.tokens, found.leaked, found.documents, *found.rate)
