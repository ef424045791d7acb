"""The values with the largest max(p), and the share of their triggers that their token follows (Table 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values, count_hits
from .agreement import first_upper
from .claims import effect_columns, effect_facts, interval, judge, percent, points, read_effect
from .confidence import STRENGTH
from .deals import excess
from .record import (
    VALUES,
    Analysis,
    Claim,
    Column,
    Effect,
    Facts,
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
from .stats import rate_interval, rate_with_interval, wilson

COUNT = 100
TRIGGERS = 50
"""Triggers per cell, at most: the paper's."""
SMALLEST = 0.1
"""The smallest difference of shares of these values that would matter: 10 in 100, the width to which 100 values let a share be known."""


def rows(run: Run, values: Values) -> Found:
    confidence = np.asarray(values.max_prob)
    places = np.argsort(-confidence, kind="stable")[:COUNT]  # NaN is last: a cell without a trigger
    places = places[~np.isnan(confidence[places])]
    tokens = np.asarray(values.top_tokens[places, 0], np.int64)
    follows = run.next_tokens(run.units[places, :TRIGGERS], run.positions[places, :TRIGGERS])
    hits, known = count_hits(tokens[:, None], follows)
    agrees, dealt = any_trigger(tokens, follows)
    found = []
    for i, place in enumerate(places.tolist()):
        layer, cell = run.cells.split(place)
        lo, hi = wilson(float(hits[i]), float(known[i]))
        found.append(
            {
                "layer": layer,
                "cell": cell,
                "token": run.vocabulary.piece(int(tokens[i])),
                "max_prob": float(confidence[place]),
                "share": float(hits[i] / known[i]) if known[i] else None,
                "lo": lo,
                "hi": hi,
                "permuted": float(agrees[i].mean()),
            }
        )
    own = np.diagonal(agrees) if len(places) else np.empty(0, bool)
    facts = (
        effect_facts("agree", rate_with_interval(int(own.sum()), len(own)))
        | effect_facts("agree_excess", excess(own, dealt))
        | {"triggers": min(TRIGGERS, run.top), "lens": values.lens, "divisor": float(values.settings["divisor"])}
    )
    return Found(found, facts)


def any_trigger(
    tokens: npt.NDArray[np.int64], follows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """[keys, values] whether the value's token follows at least one of the key's triggers; and per cell the number whose mean is the
    share to expect of dealt-out values, as in `deals.deal`."""
    agrees = (follows[:, :, None] == tokens[None, None, :]).any(1)
    return agrees, agrees.mean(1) + agrees.mean(0) - agrees.mean() if len(tokens) else np.empty(0)


# How it is judged and shown


def in_upper_layers(measured: Measurement) -> Verdict:
    """The paper's 97 of 100 are in the upper six of sixteen layers: here, in the same share of the layers."""
    rows, cells, layers = measured.rows, measured.shape.cells, measured.shape.layers
    first = first_upper(layers)
    count, n = sum(row["layer"] >= first for row in rows), len(rows)
    chance = sum(cells.size(layer) for layer in range(first, layers)) / len(cells)
    test = (
        "share of these values in the layers from 10/16 of the depth on, minus the share of all values that is there; Wilson's "
        f"interval, as if they were drawn; smallest effect {points(SMALLEST)}"
    )
    if not n:
        return judge(None, test, "")
    lo, hi = rate_interval(count / n, n)
    said = f"{count} of {n} ({interval(lo, hi)}) in layers {first}–{layers - 1}, which hold {percent(chance)} of all values"
    return judge(Effect(count / n - chance, lo - chance, hi - chance, SMALLEST), test, said)


def agree_with_a_trigger(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "agree_excess", SMALLEST)
    test = (
        "share of these values whose token follows at least one of their key's triggers, minus that of values dealt out among these "
        f"keys; interval over the values; smallest effect {points(SMALLEST)}"
    )
    return judge(effect, test, how_many_agree(measured))


def how_many_agree(measured: Measurement) -> str:
    found = read_effect(measured.facts, "agree", 0.0)
    if found is None or found.lo is None or found.hi is None:
        return ""
    null = read_effect(measured.facts, "agree_excess", 0.0)
    dealt = f"; {percent(found.value - null.value)} if dealt out among these keys" if null else ""
    return f"{percent(found.value)} ({interval(found.lo, found.hi)}) of them name the token that follows at least one of the triggers{dealt}"


def listed(run: Run, rows: Rows) -> list[list[Any]]:
    """Each value with the strongest trigger that its token follows, or else the strongest."""
    found = []
    for row in rows:
        triggers = run.triggers(row["layer"], row["cell"])
        agreeing = [trigger for trigger in triggers if trigger.next_token == row["token"]]
        address = run.cell(row["layer"], row["cell"]).address
        example = next(iter(agreeing or triggers), None)
        found.append([address, row["token"], row["max_prob"], row["share"], row["lo"], row["hi"], example])
    return found


def aside(measured: Measurement) -> str:
    said = how_many_agree(measured)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def note(facts: Facts) -> str:
    return f"{lens_note(facts)}; up to {facts['triggers']} triggers per cell"


ANALYSIS = Analysis(
    name="confident",
    question="Which values are surest of one token, and does it follow their keys' triggers?",
    part=VALUES,
    order=6,
    method=f"The {COUNT} values with the largest max(p), and up to {TRIGGERS} triggers of their keys. {STRENGTH} The smallest difference of "
    f"shares that matters is {SMALLEST:.0%} of these values: a share of {COUNT} is not known much better.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "cell": Column("INTEGER", "the cell's number in its layer"),
        "token": Column("VARCHAR", "the value's top token"),
        "max_prob": Column("DOUBLE", "its probability, max(p)"),
        "share": Column("DOUBLE", "of the cell's triggers with a known next token, the share that the token follows"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval, over triggers"),
        "hi": Column("DOUBLE", "upper end"),
        "permuted": Column(
            "DOUBLE", "share of all tokens of this table that follow at least one of the cell's triggers"
        ),
    },
    facts={
        "lens": Column("VARCHAR", "the lens values are read through"),
        "divisor": Column(
            "DOUBLE", "what the final norm divides by: the median over the ends of random top-1 triggers"
        ),
        "triggers": Column("BIGINT", "triggers per cell, at most"),
        **effect_columns("agree", "share of these values whose token follows at least one of their key's triggers"),
        **effect_columns(
            "agree_excess", "that share minus the one to expect if the values were dealt out among these keys (exact)"
        ),
    },
    needs=("values",),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="confident",
            label="Table 2",
            title="The surest values",
            caption="Values with the largest max(p), their top token, and the share of the key's triggers that it follows, with its "
            "95 % interval.",
            mark=Listing(
                columns=(
                    Shown("cell", "address"),
                    Shown("top token", "token"),
                    Shown("max(p)", "number"),
                    Shown("follows", "percent"),
                    Shown("from", "percent"),
                    Shown("to", "percent"),
                    Shown("a trigger", "trigger"),
                ),
                rows=listed,
                noun="values",
            ),
            claims=(
                Claim("The surest values are in upper layers", in_upper_layers),
                Claim("The surest values name a token that follows their keys' triggers", agree_with_a_trigger),
            ),
            paper=Paper(
                "The values that are surest of one token are in the upper layers, and about half of them name the token that "
                "follows one of their triggers.",
                "97 of 100 in layers 11–16; 46 of 100 agree with one of the top 50 triggers",
            ),
            aside=aside,
        ),
    ),
)
