"""How many cells can a model do without? What `keyhole prune` measured, as a table; nothing is computed here."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from ..store import percell
from ..store import pruning as stored
from ..store.run import Run
from ..store.values import Values
from .claims import effect_columns, effect_facts, judge, minus, percent, read_effect
from .record import (
    OUTPUT,
    Analysis,
    CellMeasure,
    Claim,
    Column,
    Curves,
    Facts,
    Figure,
    Found,
    Measurement,
    Row,
    Series,
    Verdict,
)
from .stats import Interval

EMPTY = "nothing was pruned on this run yet: `keyhole prune RUN --curve` measures what pruning would do"
QUARTER, HALF = 0.25, 0.5
RISE = 0.10
"""A rise of the perplexity that would matter: it is what a few times as much training data gives a small model."""
BETTER = 0.005
"""The smallest difference from FLAP that would matter, in nats per token: half a percent of the perplexity."""
NO_BIAS = "checkpoints of this architecture have no place for a bias: refit does without, FLAP is measured with one, as it was published"
SHOWN = (
    ("refit", "refit", "blue"),
    ("flap", "FLAP", "orange"),
    ("flap+refit", "FLAP's choice, refitted", "ink"),
    ("wanda", "Wanda", "green"),
    ("square", "mean square activity", "sky"),
    ("duplicates", "dead and duplicates first", "red"),
    ("maxabs", "maximum absolute weight", "quiet"),
    ("random", "random", "faint"),
)
"""The methods of the figure, in the order of its legend; the table has all."""
TITLES = {name: title for name, title, _ in SHOWN} | {"activity": "mean activity", "magnitude": "magnitude"}


def rows(run: Run) -> Found:
    """A row per method, scope and share."""
    found = stored.of(run)
    if found is None:
        return Found([])
    table: list[Row] = [
        msgspec.to_builtins(row) | {"folder": row.folder or "", "bias": int(row.bias)} for row in found.rows
    ]
    return Found(table, _effects(found) if found.rows else {})


def _effects(found: stored.Pruning) -> dict[str, float | int | str | None]:
    """What claims rest on: of the rows that can be compared with the last one."""
    last, same = found.rows[-1], stored.latest(found.rows)
    quarter = next((row for row in same if row.method == "refit" and row.share == QUARTER), None)
    half = next((row for row in same if row.method == "refit" and row.share == HALF), None)
    spared = Interval(math.nan)
    if quarter is not None and quarter.change_lo is not None and quarter.change_hi is not None:
        spared = Interval(-quarter.change, -quarter.change_hi, -quarter.change_lo)
    over = Interval(math.nan)
    if half is not None and half.over_flap is not None:
        over = Interval(half.over_flap, half.over_flap_lo, half.over_flap_hi)
    return {
        "text": last.text,
        "tokens": last.tokens,
        "documents": last.documents,
        "fitted": last.fitted,
        "seed": last.seed,
        "scope": last.scope,
        "bias": int(last.bias),
        **effect_facts("spared", spared),
        **effect_facts("over", over),
    }


def note(facts: Facts) -> str:
    bias = "" if facts["bias"] else f"; {NO_BIAS}"
    return (
        f"measured on {facts['tokens']:,} tokens in {facts['documents']:,} documents of {where_from(str(facts['text']))}; cells were chosen on {facts['fitted']:,} tokens of "
        f"the run's text; {facts['scope']}; intervals over documents{bias}"
    )


def where_from(text: str) -> str:
    """In words, where text is from that something was measured on."""
    return {
        "held out": "text that the scan held out",
        "corpus": "the text that was scanned",
        "set aside": "documents of the run that were set aside",
        "end": "the end of the run's one document",
    }.get(text, text)


def quarter_can_go(measured: Measurement) -> Verdict:
    test = f"minus the relative rise of the perplexity if refit takes 25 % of the cells: 95 % interval over documents against −{percent(RISE)}"
    effect = read_effect(measured.facts, "spared", -RISE)
    said = "not measured" if effect is None else f"the perplexity changes by {percent(-effect.value)}"
    return judge(effect, test, said)


def taking_over(measured: Measurement) -> Verdict:
    test = f"FLAP's mean −log p minus refit's at 50 %: 95 % interval over documents against {BETTER} nats per token"
    effect = read_effect(measured.facts, "over", BETTER)
    said = "not measured" if effect is None else f"difference {minus(effect.value, 3)} nats per token"
    return judge(effect, test, said)


def measure(run: Run, values: Values | None) -> npt.NDArray[np.floating] | None:
    return stored.goes_at(run)


ANALYSIS = Analysis(
    name="pruning",
    question="How many cells can the model do without?",
    part=OUTPUT,
    order=130,
    method="`keyhole prune` takes whole cells out: key, gate, value and their biases. Methods and their definitions are in "
    "docs/uses.md. The row `random` is the null: what any method must beat. Cells are chosen on text of the run, and the model is "
    "measured on other text, masked and whole on the same tokens.",
    columns={
        "method": Column("VARCHAR", "which cells go first"),
        "scope": Column(
            "VARCHAR",
            "`uniform`: every layer loses the same share; `global`: the cells of all layers are compared",
        ),
        "share": Column("DOUBLE", "share of the cells that go"),
        "gone": Column("BIGINT", "cells that go"),
        "parameters": Column("BIGINT", "weights of the model that is left"),
        "text": Column(
            "VARCHAR",
            "what it was measured on: given files; or of the run's own documents those that were not scanned (`held out`) or that "
            "were `set aside`, or the `end` of its one document",
        ),
        "tokens": Column("BIGINT", "tokens of that text"),
        "documents": Column("BIGINT", "documents of that text"),
        "fitted": Column("BIGINT", "tokens of the run's text that the cells were chosen on"),
        "seed": Column("BIGINT", "the seed of random choices"),
        "basis": Column(
            "VARCHAR", "a hash of both texts and of the type that the model ran in: rows with the same can be compared"
        ),
        "bias": Column(
            "BIGINT", "1 if a checkpoint of this architecture can hold a bias of its feed-forward layers, else 0"
        ),
        "perplexity_before": Column(
            "DOUBLE", "perplexity of the whole model: exp of the mean −log p per token, in nats"
        ),
        "perplexity": Column("DOUBLE", "perplexity without these cells"),
        "perplexity_lo": Column("DOUBLE", "lower end of its 95 % interval over documents"),
        "perplexity_hi": Column("DOUBLE", "upper end"),
        "change": Column("DOUBLE", "perplexity ÷ that of the whole model − 1"),
        "change_lo": Column("DOUBLE", "lower end of its 95 % interval: both models on the same documents"),
        "change_hi": Column("DOUBLE", "upper end"),
        "agreement": Column("DOUBLE", "share of the tokens at which both models say the same token first"),
        "agreement_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "agreement_hi": Column("DOUBLE", "upper end"),
        "over_flap": Column(
            "DOUBLE",
            "FLAP's mean −log p minus this method's, in nats per token: above 0, this method loses less; none if FLAP was not "
            "measured beside it",
        ),
        "over_flap_lo": Column("DOUBLE", "lower end of its 95 % interval over documents"),
        "over_flap_hi": Column("DOUBLE", "upper end"),
        "faster": Column(
            "DOUBLE", "tokens per second of the written model ÷ those of the whole one, measured in turns"
        ),
        "folder": Column("VARCHAR", "the folder that was written; empty if none was"),
    },
    facts={
        "text": Column("VARCHAR", "the text of the last row"),
        "tokens": Column("BIGINT", "its tokens"),
        "documents": Column("BIGINT", "its documents"),
        "fitted": Column("BIGINT", "tokens that the cells were chosen on"),
        "seed": Column("BIGINT", "the seed of random choices"),
        "scope": Column("VARCHAR", "`uniform` or `global`"),
        "bias": Column("BIGINT", "1 if the architecture has a place for biases of its layers, else 0"),
        **effect_columns("spared", "minus the relative change of the perplexity if refit takes 25 % of the cells"),
        **effect_columns("over", "FLAP's mean −log p minus refit's if 50 % of the cells go, in nats per token"),
    },
    rows=rows,
    note=note,
    empty=EMPTY,
    figures=(
        Figure(
            "pruning",
            "What is lost with cells",
            "Relative change of the perplexity if a share of the cells goes, by the method that chooses them. Bands are 95 % intervals "
            "over documents. Changes of more than 200 % are drawn at the upper end.",
            Curves(
                x="share",
                x_title="share of the cells that go",
                y_title="change of the perplexity",
                series=[
                    Series(title, "change", ("change_lo", "change_hi"), colour=colour, where={"method": name})  # type: ignore[arg-type]
                    for name, title, colour in SHOWN
                ],
                where=stored.latest,
                high=2.0,
            ),
            label="Figure S19",
            claims=(
                Claim("A quarter of the cells can go, and the perplexity rises by less than 10 %.", quarter_can_go),
                Claim(
                    "At half of the cells, taking those that others can take over, and refitting the others, loses less than FLAP does.",
                    taking_over,
                ),
            ),
            columns=("method", "share", "perplexity", "change", "change_lo", "change_hi", "agreement", "parameters"),
        ),
    ),
    measures=(
        CellMeasure(
            "goes_at",
            "goes at: share of the layer that pruning takes before it",
            "value",
            measure,
            format="percent",
            there=lambda run, values: percell.read(run, stored.GROUP) is not None and stored.goes_at(run) is not None,
        ),
    ),
)
