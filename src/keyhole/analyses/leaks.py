"""What does the model say by heart? What `keyhole leak` stored, as a table; nothing is computed here but shares and their intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..store import leaks as stored
from ..store.run import Run
from .record import (
    OUTPUT,
    Analysis,
    Column,
    Fact,
    Facts,
    Figure,
    Found,
    Listing,
    Row,
    Rows,
    Shown,
)

EMPTY = "nobody looked for leaks in this run yet: `keyhole leak RUN`"
LISTED = 20
"""Leaks that the report lists."""

READ = {
    "source": Column("VARCHAR", "where the text is from: `text` (given files) or `corpus` (what the run scanned)"),
    "files": Column("VARCHAR", "the names of the given files"),
    "tokens": Column("BIGINT", "tokens of the text"),
    "cut": Column("BIGINT", "1 if the text is longer and only its beginning was looked at, else 0"),
    "documents": Column("BIGINT", "documents of the text"),
    "read": Column(
        "BIGINT", "tokens of it that were read: text that stands more than once first, then windows at random"
    ),
    "repeated": Column("BIGINT", "tokens of the text that stand in it more than once"),
    "prefix": Column("BIGINT", "tokens of a prompt, at most"),
    "least_prefix": Column("BIGINT", "tokens of a prompt, at least"),
    "length": Column("BIGINT", "tokens of a leak, at least"),
    "leaks": Column("BIGINT", "leaks that were found in the text, copies counted once; the likeliest 4,096 are listed"),
    "localised": Column("BIGINT", "leaks whose cells were looked for"),
    "skipped": Column("BIGINT", "lines of the list of secrets of which nothing can be said: they are one token"),
    "cells": Column("BIGINT", "cells of the model"),
    "seed": Column("BIGINT", "the seed of random choices"),
}


def read_facts(found: stored.Leaks) -> dict[str, Fact]:
    """What the run stored, of the type that it must have; what is of another type is not known."""
    known: dict[str, Fact] = {}
    for name, column in READ.items():
        value = found.facts.get(name)
        if column.type == "VARCHAR":
            known[name] = value if isinstance(value, str) else ""
        elif column.type == "BIGINT":
            known[name] = value if type(value) is int and abs(value) < 1 << 60 else None
        else:
            known[name] = float(value) if isinstance(value, float) and math.isfinite(value) else None
    return known


def rows(run: Run) -> Found:
    """A row per leak."""
    found = stored.of(run)
    if found is None:
        return Found([])
    table = [_row(run, found, rank, leak) for rank, leak in enumerate(found.leaks, 1)]
    return Found(table, read_facts(found))


def _row(run: Run, found: stored.Leaks, rank: int, leak: stored.Leak) -> Row:
    best = found.best(rank)
    layers = [] if best is None else [run.cells.split(place)[0] for place in best.order[: best.n90]]
    low, middle, high = np.percentile(layers, [10, 50, 90]).tolist() if layers else (None, None, None)
    return {
        "rank": rank,
        "source": leak.source,
        "prefix": leak.prefix,
        "continuation": leak.continuation,
        "tokens": leak.tokens,
        "repeats": leak.repeats,
        "extracted": leak.extracted,
        "log_prob": leak.log_prob,
        "control_log_prob": leak.control_log_prob,
        "near_log_prob": leak.near_log_prob,
        "surprise": surprise(leak),
        "near": leak.near,
        "copies": leak.copies,
        "exposure": leak.exposure,
        "highest_exposure": leak.highest,
        "method": "" if best is None else best.method,
        "cells": None if best is None else best.n90,
        "layer_low": low,
        "layer_middle": middle,
        "layer_high": high,
    }


def surprise(leak: stored.Leak) -> float | None:
    known = [each for each in (leak.control_log_prob, leak.near_log_prob) if each is not None]
    return leak.log_prob - max(known) if known else None


def note(facts: Facts) -> str:
    where = f"the text {facts['files']}" if facts["source"] == "text" else "the run's corpus"
    if facts["read"] is None or facts["tokens"] is None:
        return f"looked for in {where}"
    of = f"the first {facts['tokens']:,}" if facts["cut"] else f"the {facts['tokens']:,}"
    return (
        f"{facts['read']:,} tokens read of {of} of {where}, what stands more than once first; a leak is at "
        f"least {facts['length']} tokens that greedy decoding gives exactly after at most {facts['prefix']}"
        + (f"; secrets of one token were left out ({facts['skipped']})" if facts["skipped"] else "")
    )


def first(run: Run, rows: Rows) -> list[list[Any]]:
    shown = ("prefix", "continuation", "repeats", "extracted", "log_prob", "control_log_prob", "near", "cells")
    return [[row[column] for column in shown] for row in rows[:LISTED]]


ANALYSIS = Analysis(
    name="leaks",
    question="What does the model say by heart?",
    part=OUTPUT,
    order=140,
    method="`keyhole leak` finds continuations of at least `length` tokens that greedy decoding gives exactly, after a prompt of at "
    "most `prefix` tokens. They are ranked by surprise: what only this prefix makes likely. The null is the same continuation after "
    "other prefixes, and after the prefixes of near-duplicates. Lines of a list of secrets follow, by exposure; their null is other "
    "lines of the same form. Log-probabilities are in nats.",
    columns={
        "rank": Column("BIGINT", "the leak's place, by surprise; lines of the list of secrets follow, by exposure"),
        "source": Column("VARCHAR", "`text`: found in the text; `secrets`: a line of the list"),
        "prefix": Column("VARCHAR", "the prompt, without the start token"),
        "continuation": Column(
            "VARCHAR", "what follows it in the text; of a line of the list, its rest from the secret on"
        ),
        "tokens": Column("BIGINT", "tokens of the continuation"),
        "repeats": Column("BIGINT", "places of the text where exactly the continuation stands; of a secret, the line"),
        "extracted": Column(
            "BIGINT", "tokens of the continuation that greedy decoding gives exactly, from its beginning"
        ),
        "log_prob": Column("DOUBLE", "log-probability of the continuation after the prefix"),
        "control_log_prob": Column(
            "DOUBLE", "median of the same after other prefixes of the text, equally long; none if there are none"
        ),
        "near_log_prob": Column(
            "DOUBLE", "the largest after a different prefix of a near-duplicate; none if there is none"
        ),
        "surprise": Column("DOUBLE", "log_prob minus the larger of control_log_prob and near_log_prob"),
        "near": Column(
            "BIGINT", "near-duplicates: places of the text where at least half of the tokens are the same, but not all"
        ),
        "copies": Column("BIGINT", "leaks that are mostly the same text, this one included"),
        "exposure": Column(
            "DOUBLE",
            "of a secret, in bits: log2(candidates + 1) − log2(its rank among them); none if no other line has its form",
        ),
        "highest_exposure": Column("DOUBLE", "log2(candidates + 1): an exposure of this is at least this"),
        "method": Column(
            "VARCHAR",
            "the ranking that needs the fewest cells, of those that cost at most 1 % of perplexity and under 10 % of the other leaks; empty "
            "if there is none",
        ),
        "cells": Column(
            "BIGINT",
            "the cells it needs for 90 % forgetting (n90); none if there is no such ranking, or the leak was not localised",
        ),
        "layer_low": Column("DOUBLE", "a tenth of these cells is in layers below this one"),
        "layer_middle": Column("DOUBLE", "the median layer of these cells"),
        "layer_high": Column("DOUBLE", "a tenth is above this one"),
    },
    facts=READ,
    rows=rows,
    note=note,
    empty=EMPTY,
    figures=(
        Figure(
            name="leaks",
            title="What the model says by heart",
            caption=f"The first {LISTED} leaks. Control: log-probability of the same continuation after other prefixes. Near: places of the "
            "text with at least half of the same tokens. Cells: how many must be switched off until a tenth is left.",
            label="Table S3",
            mark=Listing(
                columns=(
                    Shown("prefix", "text"),
                    Shown("continuation", "label"),
                    Shown("repeats", "number", digits=0),
                    Shown("extracted", "number", digits=0),
                    Shown("log p", "number", digits=1),
                    Shown("control", "number", digits=1),
                    Shown("near", "number", digits=0),
                    Shown("cells", "number", digits=0),
                ),
                rows=first,
                noun="leaks",
            ),
        ),
    ),
)
