"""What an analysis is: one record, written in one file, that everything else reads.

A record says which question is asked of a run, what the columns of its table mean, what it needs, how the rows are made, and
how they are shown: figures, claims, and what the explorer shows of every cell. Tables, report, explorer, documentation and
commands read the records (`registry.py` lists them), so a new analysis is one file and one line in that list.

Nothing here draws or imports a model. A figure is data (which column is drawn how) that `views/figures.py` turns into a chart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ..cells import Cells
from ..store.run import Run
from ..store.tables import Column as Column
from ..store.tables import Fact as Fact
from ..store.tables import Row as Row
from ..store.tables import Schema
from ..store.values import LENSES, Values
from .stats import Z

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.states import States
    from .heldout import Prefixes

Rows = Sequence[Row]
Facts = Mapping[str, Fact]
Begin = Callable[[int], Callable[[int], None]]
"""Progress: called with the total of a step; the function that it returns is then called with each amount done."""

PARTS = KEYS, VALUES, OUTPUT = "Keys", "Values", "From cells to predictions"
"""The parts of the report, in order. A part that is not named here comes after these."""

NEEDS = {
    "model": "the model",
    "head": "the model's final norm and unembedding",
    "values": "what every value says, read through the main lens",
    "lenses": "what every value says, read through each lens of `--lens`",
    "maps": "maps from the residual of every layer to the last one",
    "prefixes": "held-out prefixes",
    "states": "what every layer does at their end",
    "observed": "what its own observer took from the same pass",
    "cells": "the number of random cells per layer (`--cells`)",
    "map": "how cells are placed on a plane (`--map`)",
    "seed": "the seed of random choices (`--seed`)",
    "begin": "a way to report progress",
}
"""What an analysis can ask for: the names of the keyword arguments that its function is called with."""
HELD_OUT = {"prefixes", "states", "observed"}
"""The needs that are made from held-out text."""


# What an analysis finds


class Observer(Protocol):
    """Takes what it needs from the one pass over the held-out prefixes (`passing.py`)."""

    def take(self, rows: Sequence[int], seen: States) -> None:
        """`seen` holds what every layer does at the end of the prefixes number `rows`. It is not changed, and not kept whole:
        the next batch needs its memory. An attribute `wants` of the observer names the fields of `seen` that are filled only if one
        asks for them: `keys`, `ups`."""


class Found(NamedTuple):
    """What an analysis found: the rows of its table, and what it knows beyond them."""

    rows: list[Row]
    facts: dict[str, Fact] = {}  # noqa: RUF012 - a default that nobody changes


@dataclass(frozen=True)
class Shape:
    """What judging and drawing need to know of the run itself."""

    cells: Cells
    vocabulary: int
    signed: bool
    """whether coefficients can be negative"""
    gated: bool = False
    """whether the feed-forward layers have a gate: the sign of a cell's coefficient is then a convention"""

    @property
    def layers(self) -> int:
        return len(self.cells.layers)


@dataclass(frozen=True)
class Measurement:
    """What one analysis found on one run, read back."""

    rows: list[Row]
    facts: Facts
    shape: Shape


# Claims

Outcome = Literal["holds", "does not hold", "unclear", "not applicable"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Effect:
    """The number that a verdict rests on. It is written so that a larger number speaks for the claim."""

    value: float
    lo: float | None = None
    """the lower end of its 95 % interval over what was sampled; None if too little was sampled for an interval"""
    hi: float | None = None
    against: float = 0.0
    """the smallest effect that would matter: the claim holds above it"""

    @property
    def p(self) -> float | None:
        """The two-sided p of the hypothesis that the effect is `against`, from the interval: under 0.05 exactly if the
        interval excludes it. None without an interval."""
        if self.lo is None or self.hi is None:
            return None
        end = self.lo if self.value > self.against else self.hi
        distance, half = abs(self.value - self.against), abs(self.value - end)
        return 1.0 if distance == 0 else 0.0 if half == 0 else math.erfc(Z * distance / half / math.sqrt(2))


@dataclass(frozen=True)
class Verdict:
    """A claim, judged on one run."""

    outcome: Outcome
    test: str
    evidence: str
    effect: Effect | None = None
    claim: str = ""
    adjusted: float | None = None
    """the effect's p after Holm's correction for all claims of the report (`measured.py`)"""


@dataclass(frozen=True)
class Claim:
    """A statement about a model that numbers can confirm or refute."""

    statement: str
    judge: Callable[[Measurement], Verdict]

    def weigh(self, measurement: Measurement) -> Verdict:
        return replace(self.judge(measurement), claim=self.statement)


# Figures

Colour = Literal["ink", "quiet", "faint", "blue", "orange", "green", "sky", "red"]


@dataclass(frozen=True)
class Series:
    """A line over the layers: one column of the rows that `where` selects."""

    name: str
    y: str
    band: tuple[str, str] | Literal["wilson"] | None = None
    """the columns of its interval; `wilson`: the interval of a rate over `n`"""
    outer: tuple[str, str] | None = None
    """the columns of a second, wider and fainter band"""
    colour: Colour = "blue"
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """A dashed line to compare with: a column of the rows that `where` selects, or a number that is the same in every layer."""

    name: str
    value: str | float | Callable[[Shape], float]
    colour: Colour = "quiet"
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lines:
    """A chart over the layers. Formats are those of d3."""

    y_title: str
    series: Sequence[Series] | Callable[[Rows], Sequence[Series]]
    """given as a function if they depend on what the table holds"""
    baselines: Sequence[Baseline] | Callable[[Rows], Sequence[Baseline]] = ()
    format: str = "%"
    tooltip: str = ".1%"
    low: float | None = None
    """where the y axis begins"""
    high: float | Callable[[Shape], float] | None = None
    log: bool = False


@dataclass(frozen=True)
class Curves:
    """Lines over a number of the rows other than the layer, with the rows in the order of that number."""

    x: str
    x_title: str
    y_title: str
    series: Sequence[Series] | Callable[[Rows], Sequence[Series]]
    where: Callable[[Rows], Rows] = lambda rows: rows
    """the rows that are drawn"""
    format: str = "%"
    tooltip: str = ".1%"
    x_format: str = "~%"
    log_x: bool = False
    level: tuple[str, float] | None = None
    """a dashed line to compare with: its name, and its height"""
    high: float | None = None
    """where the y axis ends, if far values would hide the others"""


@dataclass(frozen=True)
class Bins:
    """A rate per bin of another number: each bin as wide as it is, with Wilson's interval."""

    x_title: str
    x_name: str
    """the same in one word"""
    y_title: str
    noun: str
    """what a bin holds, in the plural"""
    lo: str
    hi: str
    """columns: where each bin begins and ends"""
    y: str
    name: str
    overall: str
    """the name of the baseline, which is the rate over all bins"""
    where: Mapping[str, Any] = field(default_factory=dict)
    """the rows that are bins; all if nothing is asked"""


@dataclass(frozen=True)
class Part:
    """One share of a stacked bar."""

    name: str
    y: str
    colour: Colour


@dataclass(frozen=True)
class Stack:
    """Shares that sum to 1, stacked, per layer. A whisker shows the interval of the sum of the first `whisker` parts."""

    y_title: str
    parts: tuple[Part, ...]
    whisker: int
    size: str = "n"
    """the column of how many were drawn"""
    ends: tuple[str, str] | None = None
    """the columns of the whisker's interval; without them it is Wilson's"""


@dataclass(frozen=True)
class Shown:
    """A column of a listing, and how its values are shown. A trigger is shown as text, its last token marked. Of a long text the
    end is shown, of a long label the beginning."""

    title: str
    kind: Literal["address", "token", "number", "percent", "trigger", "text", "label"]
    digits: int | None = None
    """digits after the point; None: as many as matter"""


@dataclass(frozen=True)
class Listing:
    """A table in the report, made of the rows and the run."""

    columns: tuple[Shown, ...]
    rows: Callable[[Run, Rows], list[list[Any]]]
    noun: str
    """what a row is, in the plural"""


@dataclass(frozen=True)
class Examples:
    """Cells from the lowest to the highest layers with their strongest triggers. Needs no table."""

    cells: int
    triggers: int


Mark = Lines | Curves | Bins | Stack | Listing | Examples


@dataclass(frozen=True)
class Paper:
    """What the paper found, in our words, and the number it published."""

    finding: str
    published: str


@dataclass(frozen=True)
class Figure:
    """A figure or a table of the report, with the claims that it supports."""

    name: str
    title: str
    caption: str
    mark: Mark
    label: str = ""
    """`Figure 3`, `Table 2`: the paper's number. What the paper does not have is numbered S."""
    claims: tuple[Claim, ...] = ()
    paper: Paper | None = None
    columns: tuple[str, ...] = ()
    """the columns of the table that are listed below the chart; all of them if none is named"""
    aside: Callable[[Measurement], str] | None = None
    """makes a further sentence of the caption from what was found"""

    @property
    def is_chart(self) -> bool:
        return isinstance(self.mark, Lines | Curves | Bins | Stack)

    @property
    def anchor(self) -> str:
        return (self.label or self.name).lower().replace(" ", "-")


# Cells


@dataclass(frozen=True)
class CellMeasure:
    """A number for every cell, which the explorer's map shows and is coloured by."""

    name: str
    title: str
    side: Literal["key", "value"]
    """what it says something about"""
    measure: Callable[[Run, Values | None], npt.NDArray[np.floating[Any]] | None]
    """[cells] from the run and what its values say through the main lens (None if they were not read). NaN for a cell
    without a number; None if the run lacks what the measure is made from"""
    format: Literal["percent", "number"] = "number"
    log: bool = False
    """shown on a logarithmic scale"""
    kinds: tuple[str, ...] = ()
    """names of the levels, if the numbers are 0, 1, … and stand for these"""
    there: Callable[[Run, Values | None], bool] | None = None
    """whether the run has what the measure is made from; to be given if `measure` takes long"""


# The record


@dataclass(frozen=True)
class Analysis:
    """One question asked of a run. `rows` fills a table; `fill` stores something else in the run."""

    name: str
    """of the table, and in `analyze --only`"""
    question: str
    part: str
    """of the report"""
    order: int = 100
    """its place in that part; the paper's have the number of their first figure"""
    method: str = ""
    """how it is measured, if the columns do not say everything"""
    columns: Mapping[str, Column] = field(default_factory=dict)
    facts: Mapping[str, Column] = field(default_factory=dict)
    """what is known of the table as a whole, by key"""
    needs: tuple[str, ...] = ()
    rows: Callable[..., Found] | None = None
    """called with the run and, by name, with what it needs"""
    fill: Callable[..., None] | None = None
    """called in the same way"""
    observe: Callable[[Run, Head, Values, Prefixes], Observer] | None = None
    """makes the observer that is given to `rows` as `observed`, after the pass"""
    is_filled: Callable[[Run], bool] | None = None
    """whether what `fill` stores is there"""
    note: Callable[[Facts], str] | None = None
    """makes the sentence that is shown with the table from its facts"""
    empty: str = ""
    """why a table without rows and facts has none"""
    figures: tuple[Figure, ...] = ()
    measures: tuple[CellMeasure, ...] = ()

    @property
    def schema(self) -> Schema:
        return Schema(self.name, self.columns, self.facts)

    @property
    def needs_held_out(self) -> bool:
        return not HELD_OUT.isdisjoint(self.needs)

    def describe(self, facts: Facts) -> str:
        """The note of its table; nothing if no facts were stored."""
        return self.note(facts) if self.note and facts else ""


# What several records share


def present(rows: Rows, *columns: str) -> list[Row]:
    """Rows that have a number in every column asked for."""
    return [row for row in rows if all(row[c] is not None and not np.isnan(row[c]) for c in columns)]


def main_lens(rows: Rows) -> str | None:
    """The lens that verdicts and figures read: of those in the table, the first in the order of `LENSES`."""
    lenses = {str(row["lens"]) for row in rows}
    return next((lens for lens in LENSES if lens in lenses), None)


def lens_note(facts: Facts) -> str:
    return f"through the lens '{facts['lens']}'"
