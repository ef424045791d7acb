"""The values with the largest max(p), and the share of their triggers that their token follows (Table 2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..store.run import Run
from ..store.values import Values
from .claims import decide, p_value, percent
from .record import (
    VALUES,
    Analysis,
    Claim,
    Column,
    Effect,
    Figure,
    Found,
    Listing,
    Measurement,
    Paper,
    Rows,
    Shown,
    Verdict,
    lens_note,
)
from .stats import binomial

COUNT = 100


def rows(run: Run, values: Values) -> Found:
    confidence = np.asarray(values.max_prob)
    found = []
    for place in np.argsort(-confidence, kind="stable")[:COUNT]:
        layer, cell = run.cells.split(int(place))
        token = int(values.top_tokens[place, 0])
        hits, known = values.hits(int(place))
        found.append(
            {
                "layer": layer,
                "cell": cell,
                "token": run.vocabulary.piece(token),
                "max_prob": float(confidence[place]),
                "share": float(hits / known) if known else None,
            }
        )
    return Found(found, {"lens": values.lens})


def in_upper_layers(measured: Measurement) -> Verdict:
    """The paper's 97 of 100 are in the upper six of sixteen layers: here, in the same share of the layers."""
    rows, cells, layers = measured.rows, measured.shape.cells, measured.shape.layers
    first = math.floor(layers * 10 / 16)
    count, n = sum(row["layer"] >= first for row in rows), len(rows)
    chance = sum(cells.size(layer) for layer in range(first, layers)) / len(cells)
    p = binomial(count, n, chance)
    said = f"{count} of {n} in layers {first}–{layers - 1}, which hold {percent(chance)} of all values; {p_value(p)}"
    effect = Effect(count / n, against=chance) if n else None
    return Verdict(decide(p, count > n * chance), "exact binomial test", said, effect)


def listed(run: Run, rows: Rows) -> list[list[Any]]:
    """Each value with the strongest trigger that its token follows, or else the strongest."""
    found = []
    for row in rows:
        triggers = run.triggers(row["layer"], row["cell"])
        agreeing = [trigger for trigger in triggers if trigger.next_token == row["token"]]
        address = run.cell(row["layer"], row["cell"]).address
        example = next(iter(agreeing or triggers), None)
        found.append([address, row["token"], row["max_prob"], row["share"], example])
    return found


def how_many_agree(measured: Measurement) -> str:
    rows = measured.rows
    agree = sum((row["share"] or 0) > 0 for row in rows)
    said = f"Of these {len(rows)} values, {agree} name the token that follows at least one of their triggers."
    return said if rows else ""


ANALYSIS = Analysis(
    name="confident",
    question="Which values are surest of one token, and does it follow their keys' triggers?",
    part=VALUES,
    order=6,
    method=f"The {COUNT} values with the largest max(p).",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "cell": Column("INTEGER", "the cell's number in its layer"),
        "token": Column("VARCHAR", "the value's top token"),
        "max_prob": Column("DOUBLE", "its probability, max(p)"),
        "share": Column("DOUBLE", "of the cell's triggers with a known next token, the share that the token follows"),
    },
    facts={"lens": Column("VARCHAR", "the lens values are read through")},
    needs=("values",),
    rows=rows,
    note=lens_note,
    figures=(
        Figure(
            name="confident",
            label="Table 2",
            title="The surest values",
            caption="Values with the largest max(p), their top token, and the share of the key's triggers that it follows.",
            mark=Listing(
                columns=(
                    Shown("cell", "address"),
                    Shown("top token", "token"),
                    Shown("max(p)", "number"),
                    Shown("follows", "percent"),
                    Shown("a trigger", "trigger"),
                ),
                rows=listed,
                noun="values",
            ),
            claims=(Claim("The surest values are in upper layers", in_upper_layers),),
            paper=Paper(
                "The values that are surest of one token are in the upper layers, and about half of them name the token that "
                "follows one of their triggers.",
                "97 of 100 in layers 11–16; 46 of 100 agree with one of the top 50 triggers",
            ),
            aside=how_many_agree,
        ),
    ),
)
