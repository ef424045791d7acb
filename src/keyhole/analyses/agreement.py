"""Does a value say what its key saw? argmax(softmax(v·E)) is compared with a token of the key's top-1 trigger (Figure 4).

The top-1 trigger is the prefix with the largest coefficient, which is above zero, so the value is read with a plus sign. The
paper compares with the *next* token; its public code with the prefix's *last* token. Both are measured, by name.

Two nulls say what agreement means: values dealt out among all keys of the layer, and among those keys alone whose trigger ends in
the same token. A value that says "York" agrees with any trigger that ends in "New"; the second null does not credit that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values, shares
from . import targets
from .claims import effect_columns, effect_facts, judge, layer_ranges, points, read_effect, told
from .deals import Floats, Ints, deal, excess
from .record import (
    VALUES,
    Analysis,
    Baseline,
    CellMeasure,
    Claim,
    Colour,
    Column,
    Effect,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Row,
    Rows,
    Series,
    Verdict,
    lens_note,
    main_lens,
)
from .stats import difference, rate, thirds, wilson

SMALLEST = 0.001
"""The smallest difference of agreement rates that would matter: one cell in a thousand. It is a thirtieth of what the paper found
in its upper layers, and 250 times its chance."""
FLAT = 10 / 16
"""The paper's agreement is about 0 in the lower 10 of its 16 layers."""
TARGETS: tuple[tuple[str, Colour], ...] = (("next", "blue"), ("last", "orange"))
PARTS = {"word start": targets.WORD_START, "inside a word": targets.INSIDE_WORD}


def first_upper(layers: int) -> int:
    """The first layer above 10/16 of the depth."""
    return math.floor(layers * FLAT)


@dataclass(frozen=True)
class Pairs:
    """What the value of each cell says, and what its key's top-1 trigger holds. Only cells whose wanted token is known."""

    place: Ints
    """of the cell, on the axis of cells"""
    layer: Ints
    said: Ints
    wanted: Ints
    last: Ints
    """the token that ends the trigger"""

    @property
    def hits(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.said == self.wanted)

    @property
    def dealt(self) -> Floats:
        """See `deals.deal`, within layers."""
        return deal(self.said, self.wanted, self.layer)

    @property
    def dealt_same_last(self) -> Floats:
        """The same, within cells of a layer whose triggers end in the same token."""
        return deal(self.said, self.wanted, self.ending)

    @property
    def ending(self) -> Ints:
        """A number per layer and last token."""
        return self.layer * (int(self.last.max(initial=0)) + 1) + self.last

    @property
    def alone(self) -> float | None:
        """The share of cells that are the only one of their layer with their last token."""
        counts = np.unique(self.ending, return_counts=True)[1]
        return float((counts == 1).sum() / len(self.layer)) if len(self.layer) else None

    def part(self, which: npt.NDArray[np.bool_]) -> Pairs:
        return Pairs(self.place[which], self.layer[which], self.said[which], self.wanted[which], self.last[which])


def pairs(run: Run, values: Values, target: str = "next") -> Pairs:
    last = targets.last_tokens(run, 1)[:, 0]
    wanted = targets.next_tokens(run, 1)[:, 0] if target == "next" else last
    said = np.asarray(values.top_tokens[:, 0], np.int64)
    every = Pairs(np.arange(len(run.cells)), targets.layers_of(run), said, wanted, last)
    return every.part(wanted >= 0)


def rows(run: Run, lenses: list[Values]) -> Found:
    found = [row for values in lenses for row in of_lens(run, values)]
    return Found(found, {"lens": lenses[0].lens} | effects(pairs(run, lenses[0]), run.layers))


def of_lens(run: Run, values: Values) -> list[Row]:
    frequency = targets.unigram(run, int(values.settings["vocabulary"]))
    following = pairs(run, values)
    parts = targets.word_parts(run.vocabulary, following.last, following.wanted)
    every = {"next": following, "last": pairs(run, values, "last")}
    every |= {name: following.part(parts == part) for name, part in PARTS.items()}
    return [
        {"layer": layer, "target": target, "lens": values.lens} | _row(some.part(some.layer == layer), frequency)
        for target, some in every.items()
        for layer in range(run.layers)
    ]


def _row(some: Pairs, frequency: Floats) -> Row:
    n, hits = len(some.layer), int(some.hits.sum())
    lo, hi = wilson(hits, n)
    return {
        "n": n,
        "rate": rate(hits, n),
        "lo": lo,
        "hi": hi,
        "permuted": float(some.dealt.mean()) if n else None,
        "same_last": float(some.dealt_same_last.mean()) if n else None,
        "unigram": float(frequency[some.wanted].mean()) if n else None,
    }


def effects(every: Pairs, layers: int) -> dict[str, Any]:
    """What the claims rest on. Cells of several layers are pooled; each is dealt within its layer."""
    upper = every.part(every.layer >= thirds(layers)[1].start)
    above = every.layer >= first_upper(layers)
    higher, lower = (excess(some.hits, some.dealt) for some in (every.part(above), every.part(~above)))
    return (
        effect_facts("above_chance", excess(upper.hits, upper.dealt))
        | effect_facts("beyond_bigram", excess(upper.hits, upper.dealt_same_last))
        | {"alone": upper.alone}
        | effect_facts("lower_part", lower)
        | effect_facts("rise", difference(higher, lower))
    )


# How it is judged and shown


def above_chance(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "above_chance", SMALLEST)
    test = (
        "agreement over the highest third of the layers, minus that of values dealt out among the layer's keys; interval over "
        f"cells; smallest effect {points(SMALLEST)}"
    )
    return judge(effect, test, told("above dealt-out values, highest third", effect))


def beyond_bigram(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "beyond_bigram", SMALLEST)
    test = (
        "agreement over the highest third of the layers, minus that of values dealt out among the keys whose trigger ends in the "
        f"same token; interval over cells; smallest effect {points(SMALLEST)}"
    )
    return judge(effect, test, told("above values dealt out under the same last token, highest third", effect))


def flat_below(measured: Measurement) -> Verdict:
    found, first = read_effect(measured.facts, "lower_part", SMALLEST), first_upper(measured.shape.layers)
    effect = found and Effect(
        SMALLEST - found.value,
        None if found.hi is None else SMALLEST - found.hi,
        None if found.lo is None else SMALLEST - found.lo,
    )
    test = (
        f"{points(SMALLEST)} (what would count as more than about 0) minus the agreement above dealt-out values, over the layers "
        "below 10/16 of the depth; interval over cells"
    )
    return judge(effect, test, told(f"above dealt-out values, {_layers(range(first))}", found))


def rises(measured: Measurement) -> Verdict:
    effect, layers = read_effect(measured.facts, "rise", SMALLEST), measured.shape.layers
    first = first_upper(layers)
    test = (
        "agreement above dealt-out values: layers from 10/16 of the depth on minus those below; interval over cells; smallest "
        f"effect {points(SMALLEST)}"
    )
    return judge(effect, test, told(f"{_layers(range(first, layers))} minus the layers below", effect))


def _layers(some: range) -> str:
    return f"layers {layer_ranges(some)}" if len(some) != 1 else f"layer {some[0]}"


def series(rows: Rows) -> list[Series]:
    """Both targets through the main lens; the next token through another lens, if there is one."""
    lens = main_lens(rows)
    other = next((row["lens"] for row in rows if row["lens"] != lens), None)
    lines = [
        Series(f"{target} token", "rate", ("lo", "hi"), colour=colour, where={"target": target, "lens": lens})
        for target, colour in TARGETS
    ]
    if other is not None:
        where = {"target": "next", "lens": other}
        lines.append(Series(f"next token, {other} lens", "rate", ("lo", "hi"), colour="green", where=where))
    return lines


def baselines(rows: Rows) -> list[Baseline]:
    where = {"target": "next", "lens": main_lens(rows)}
    return [
        Baseline("next, dealt-out values", "permuted", "quiet", where),
        Baseline("next, dealt out under the same last token", "same_last", "red", where),
        Baseline("next, a token drawn by frequency", "unigram", "faint", where),
    ]


def word_series(rows: Rows) -> list[Series]:
    lens = main_lens(rows)
    return [
        Series("it starts a word", "rate", ("lo", "hi"), where={"target": "word start", "lens": lens}),
        Series("it is inside a word", "rate", ("lo", "hi"), None, "orange", {"target": "inside a word", "lens": lens}),
    ]


def word_baselines(rows: Rows) -> list[Baseline]:
    lens = main_lens(rows)
    return [
        Baseline("starts a word, dealt-out values", "permuted", "sky", {"target": "word start", "lens": lens}),
        Baseline("inside a word, dealt-out values", "permuted", "quiet", {"target": "inside a word", "lens": lens}),
    ]


def lens_aside(measured: Measurement) -> str:
    return f"Values are read through the lens “{main_lens(measured.rows)}”." if measured.rows else ""


def note(facts: Facts) -> str:
    return f"the claims read {lens_note(facts)}"


_POOLED = "over cells of the main lens, each dealt within its layer"


def _per_cell(run: Run, values: Values | None) -> npt.NDArray[np.float64] | None:
    """Per cell, the share of its triggers that the value's top token follows. Layer by layer: a large model has many triggers."""
    if values is None:
        return None
    spans = (run.cells.span(layer) for layer in range(len(run.cells.layers)))
    return np.concatenate([shares(*values.hits(span)) for span in spans])


ANALYSIS = Analysis(
    name="agreement",
    question="Does a value say what its key saw?",
    part=VALUES,
    order=4,
    method="A value says its top token. It is compared with a token of the top-1 trigger. A *deal* permutes the values among the "
    "keys of a layer; what is given is the exact mean over all deals. A deal *under the same last token* permutes them only among "
    "keys whose top-1 triggers end in the same token: then a value that just goes well after that token agrees as often as before. "
    "A cell that is alone with its last token keeps its own value, so its hit counts on both sides and is not credited. The interval "
    "of a difference takes cells as the sample: Wilson's of the rate and a normal one of the deal's mean (which comes from the same "
    f"cells), joined by Newcombe's method with their correlation. The smallest difference that matters is {SMALLEST:.1%} (one cell in a "
    "thousand): a thirtieth of the paper's largest rate, and 250 times its chance.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "target": Column(
            "VARCHAR",
            "`next`: the token that follows the key's top-1 trigger; `last`: the token that ends it; `word start`, `inside a word`: as "
            "`next`, only cells whose next token starts a word (a letter or digit after white space, or after a token that does not "
            "end in one), or goes on with one; punctuation is in neither",
        ),
        "lens": Column("VARCHAR", "the lens the value is read through"),
        "n": Column("BIGINT", "cells that have such a token"),
        "rate": Column("DOUBLE", "share of these cells whose value's top token it is"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "hi": Column("DOUBLE", "upper end"),
        "permuted": Column(
            "DOUBLE", "the rate to expect if the values of these cells were dealt out among them (exact)"
        ),
        "same_last": Column(
            "DOUBLE", "the same if they were dealt out among cells whose triggers end in the same token"
        ),
        "unigram": Column("DOUBLE", "the rate if a value's token were drawn by its frequency in the text"),
    },
    facts={
        "lens": Column("VARCHAR", "the lens that the claims are judged by"),
        **effect_columns(
            "above_chance", f"`rate` − `permuted` of the next token over the highest third of the layers, {_POOLED}"
        ),
        **effect_columns("beyond_bigram", f"`rate` − `same_last` there, {_POOLED}"),
        "alone": Column(
            "DOUBLE", "share of these cells that are alone with their last token, and not credited in `beyond_bigram`"
        ),
        **effect_columns("lower_part", f"`rate` − `permuted` over the layers below 10/16 of the depth, {_POOLED}"),
        **effect_columns("rise", "the same over the layers from 10/16 of the depth on, minus `lower_part`"),
    },
    needs=("lenses",),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="agreement",
            label="Figure 4",
            title="Whether a value says what its key saw",
            caption="Share of cells whose value's top token is the token that follows the key's strongest trigger (next), or "
            "the one that ends it (last). Band: 95 % interval over cells.",
            mark=Lines("agreement", series, baselines, format="~%", tooltip=".3~%", low=0),
            claims=(
                Claim("Agreement in upper layers is above chance", above_chance),
                Claim("Agreement in upper layers is more than the trigger's last token explains", beyond_bigram),
                Claim("Values do not agree with their keys in the lower 10/16 of the layers", flat_below),
                Claim("Values agree with their keys more in the layers above", rises),
            ),
            paper=Paper(
                "In the lower layers a value's top token has nothing to do with what follows its key's trigger. In the upper "
                "layers it agrees far more often than chance.",
                "about 0 in layers 1–10, up to 3.5 % above; chance 0.0004 %",
            ),
            aside=lens_aside,
        ),
        Figure(
            name="agreement_words",
            label="Figure 4b",
            title="Agreement, by whether the next token starts a word",
            caption="As Figure 4, for cells whose next token starts a word and for cells whose next token goes on with one. A "
            "word's next piece often follows from the piece before; the next word seldom does. Band: 95 % interval over cells.",
            mark=Lines("agreement", word_series, word_baselines, format="~%", tooltip=".3~%", low=0),
            aside=lens_aside,
        ),
    ),
    measures=(
        CellMeasure(
            "agreement",
            "how often the value's top token follows the key's triggers",
            "value",
            _per_cell,
            format="percent",
            there=lambda _, values: values is not None,
        ),
    ),
)
