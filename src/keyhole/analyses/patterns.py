"""What every key waits for: its patterns, as `keyhole patterns` stored them. Here they become a table; nothing is computed.

How a rule is read and run is in `keyhole.patterns`; what is stored of it, in `store/patterns.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..store import patterns as stored
from ..store.annotations import KINDS
from ..store.patterns import Key, Pattern, Patterns
from ..store.run import Run
from ..store.values import Values
from ..store.vocabulary import Vocabulary
from .record import KEYS, Analysis, CellMeasure, Column, Fact, Facts, Figure, Found, Listing, Row, Rows, Shown

EMPTY = "no patterns are stored in this run: find them with `keyhole patterns RUN`"
BEST = 3
"""Keys per layer that the report lists."""


# What the patterns were found in, and scored on

FACTS = {
    "cells": Column("VARCHAR", "keys per layer that were looked at: a number, or `all`"),
    "seed": Column("BIGINT", "the seed of the random choices"),
    "tokens": Column("BIGINT", "tokens of the text that patterns were found in"),
    "found_in": Column("VARCHAR", "the names of that text"),
    "source": Column(
        "VARCHAR",
        "where the text comes from that they were scored on: `valid` (given text), `held out` (by the scan) or `corpus`; "
        "empty if they were not scored",
    ),
    "files": Column("VARCHAR", "the names of the given files, if `source` is `valid`"),
    "held_out_tokens": Column("BIGINT", "tokens of the text that they were scored on"),
    "held_out_documents": Column("BIGINT", "documents of that text"),
    "ablated": Column(
        "BIGINT",
        "keys per layer of which it was measured what they lose without each of the last tokens of their triggers",
    ),
}
"""What both tables of patterns say about the text behind them."""


def about(found: Patterns) -> dict[str, Fact]:
    """A value per key of `FACTS`."""
    settings = found.settings
    held = settings.get("held_out")
    held = held if isinstance(held, Mapping) else {}
    return {
        "cells": _text(settings.get("cells")),
        "seed": _count(settings.get("seed")),
        "tokens": _count(settings.get("tokens")),
        "found_in": _text(settings.get("found_in")),
        "source": _text(held.get("source")),
        "files": _text(held.get("files")),
        "held_out_tokens": _count(held.get("tokens")),
        "held_out_documents": _count(held.get("documents")),
        "ablated": int(settings.get("ablated") or 0),
    }


def _text(value: Any) -> str:
    """A setting as text: a list of names is joined."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def number(value: Any) -> float | None:
    """A number that can be stored; None if it is not one."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def note(facts: Facts) -> str:
    """The facts as a sentence."""
    cells = str(facts["cells"])
    said = "all keys" if cells == "all" else f"{cells} keys per layer" if cells else "some keys"
    if facts["tokens"] is not None:
        said += f"; patterns found in {facts['tokens']:,} tokens of {facts['found_in'] or 'the corpus'}"
    where = {
        "valid": f"the held-out text {facts['files']}",
        "held out": "what the scan held out of the corpus",
        "corpus": "the scanned corpus itself: no held-out text was given",
    }.get(str(facts["source"]))
    if where is None or facts["held_out_tokens"] is None:
        return f"{said}; not scored"
    documents = "" if facts["held_out_documents"] is None else f" in {facts['held_out_documents']:,} documents"
    return f"{said}; scored on {facts['held_out_tokens']:,} tokens{documents} of {where}"


# The table


def rows(run: Run) -> Found:
    """One row per pattern: layer by layer, cell by cell, the label first."""
    found = stored.of(run)
    if found is None:
        return Found([])
    table = [
        _row(run, place, key, rank, pattern)
        for place, key in found
        for rank, pattern in enumerate(key.patterns, start=1)
    ]
    return Found(table, about(found))


def _row(run: Run, place: int, key: Key, rank: int, pattern: Pattern) -> Row:
    alone = {name: number(getattr(pattern, name)) for name in ("auprc", "f1", "pearson")}
    output = {name: number(getattr(pattern, name)) for name in ("promoted", "promoted_null", "removed")}
    return {
        "layer": run.cells.split(place)[0],
        "cell": run.cells.address(place),
        "side": key.side,
        "rank": rank,
        "kind": pattern.kind,
        "description": pattern.description,
        "rule": json.dumps(readable(pattern.rule, run.vocabulary), ensure_ascii=False),
        "triggers": key.read,
        "covered": len(pattern.triggers) / key.read if key.read else None,
        "lift": number(pattern.lift),
        "q_value": number(pattern.q_value),
        **alone,
        "key_auprc": auprc(key, "rules"),
        "last_token_auprc": auprc(key, "last_token"),
        "bigram_auprc": auprc(key, "bigram"),
        **output,
    }


def auprc(key: Key, method: str) -> float | None:
    """How well a method predicts where a key fires; None if it was not scored."""
    score = key.scores.get(method)
    return None if score is None else number(score.auprc)


def readable(rule: Mapping[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """A rule in whose conditions the texts of tokens, as `tokens`, stand beside their `ids`."""
    return {name: [_told(each, vocabulary) for each in part] if name == "all" else part for name, part in rule.items()}


def _told(condition: Any, vocabulary: Vocabulary) -> Any:
    ids = condition.get("ids") if isinstance(condition, dict) else None
    return {**condition, "tokens": [vocabulary.piece(each) for each in ids]} if isinstance(ids, list) else condition


# The report, and the map


def best(run: Run, rows: Rows) -> list[list[Any]]:
    """The labels of the keys whose rules predict best, a few per layer, from the lowest layer to the highest."""
    labels = [row for row in rows if row["rank"] == 1 and row["side"] == 1 and row["key_auprc"] is not None]
    found: list[Row] = []
    for layer in sorted({row["layer"] for row in labels}):
        here = [row for row in labels if row["layer"] == layer]
        found += sorted(here, key=lambda row: -row["key_auprc"])[:BEST]
    shown = ("cell", "description", "kind", "covered", "key_auprc", "last_token_auprc", "bigram_auprc")
    return [[row[column] for column in shown] for row in found]


def scored(run: Run, _: Values | None) -> npt.NDArray[np.float64] | None:
    """[cells] how well the rules of a key predict where it fires."""
    return _of_keys(run, lambda key: auprc(key, "rules"))


def kinds(run: Run, _: Values | None) -> npt.NDArray[np.float64] | None:
    """[cells] the number in `KINDS` of the kind of a key's patterns."""
    return _of_keys(run, lambda key: KINDS.index(key.kind))


def _of_keys(run: Run, measure: Any) -> npt.NDArray[np.float64] | None:
    """[cells] a number of each key's first side; NaN if it was not looked at. None without patterns."""
    found = stored.of(run)
    if found is None:
        return None
    numbers = np.full(len(run.cells), np.nan)
    for place, key in found:
        if key.side == 1 and (value := measure(key)) is not None:
            numbers[place] = value
    return numbers


ON_HELD_OUT = "on held-out text; NULL if it was not scored"
ANALYSIS = Analysis(
    name="patterns",
    question="What does every key wait for?",
    part=KEYS,
    order=1,
    method="A pattern is a rule: conditions on a position and what stands before it, all of which must hold. A key has a short list of "
    "them; the first is its label. They are found by `keyhole patterns` in the key's triggers against the rest of the text, and "
    "scored on text that they were not found in. A position counts as firing if the coefficient there is above the cell's 99.9th "
    "percentile in that text. AUPRC is the area under precision and recall of the rule's score; a rule that knows nothing has "
    "about 0.001. Rows with side −1 are of the other side of the cell.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "cell": Column("VARCHAR", "the cell's address"),
        "side": Column("INTEGER", "1: its triggers, in the cell's orientation; −1: the other side"),
        "rank": Column("INTEGER", "the pattern's place in the key's list; 1 is the cell's label"),
        "kind": Column(
            "VARCHAR", "`shallow`: decided by the last tokens and their form; `semantic`: by topic or meaning"
        ),
        "description": Column("VARCHAR", "the rule as a person would say it"),
        "rule": Column("VARCHAR", "the rule as JSON; the texts of tokens stand beside their ids"),
        "triggers": Column("BIGINT", "triggers of the key that were looked at: the strongest, 25 at most"),
        "covered": Column("DOUBLE", "share of these triggers that carry the pattern"),
        "lift": Column(
            "DOUBLE", "share of the pattern's matches that the key fires at, over the share of all positions"
        ),
        "q_value": Column(
            "DOUBLE",
            "false-discovery rate: expected share of patterns with at least as many bits that are found in dealt-out triggers",
        ),
        "auprc": Column("DOUBLE", f"AUPRC of this pattern alone, {ON_HELD_OUT}"),
        "f1": Column("DOUBLE", f"F1 of this pattern alone at its threshold, {ON_HELD_OUT}"),
        "pearson": Column("DOUBLE", f"correlation of this pattern's score with the coefficient, {ON_HELD_OUT}"),
        "key_auprc": Column("DOUBLE", f"AUPRC of all rules of the key together, {ON_HELD_OUT}"),
        "last_token_auprc": Column(
            "DOUBLE", f"AUPRC of the mean coefficient given the last token, for the same key, {ON_HELD_OUT}"
        ),
        "bigram_auprc": Column(
            "DOUBLE", f"AUPRC of the mean coefficient given the last two tokens (with back-off to one), {ON_HELD_OUT}"
        ),
        "promoted": Column(
            "DOUBLE",
            "share of its matches in held-out text whose next token is among those that the cell's value promotes most",
        ),
        "promoted_null": Column("DOUBLE", "the same share for the tokens that another cell of the layer promotes"),
        "removed": Column(
            "DOUBLE",
            "mean change of that next token's log-probability, at matches where it is promoted, if the cell is switched off",
        ),
    },
    facts=FACTS,
    rows=rows,
    note=note,
    empty=EMPTY,
    figures=(
        Figure(
            name="best_patterns",
            label="Table 1b",
            title="The best patterns",
            caption=f"Per layer, the labels of the {BEST} keys whose rules predict best where they fire, on text that the rules were "
            "not found in. Covered: share of the key's triggers that carry the pattern. AUPRC: of all rules of the key, beside a "
            "lookup of the last token and one of the last two. These are chosen by their score; the mean is in Figure 2b.",
            mark=Listing(
                columns=(
                    Shown("cell", "address"),
                    Shown("label", "label"),
                    Shown("kind", "label"),
                    Shown("covered", "percent"),
                    Shown("AUPRC", "number", digits=2),
                    Shown("last-token lookup", "number", digits=2),
                    Shown("bigram lookup", "number", digits=2),
                ),
                rows=best,
                noun="keys",
            ),
        ),
    ),
    measures=(
        CellMeasure("pattern_auprc", "how well the key's rules predict where it fires (AUPRC)", "key", scored),
        CellMeasure("pattern_kind", "kind of the key's patterns", "key", kinds, kinds=KINDS),
    ),
)
