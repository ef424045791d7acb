"""The run beside this one: data/comparison.json for the overview, data/overlaps/….json for a layer, data/beside/….json for a cell."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from .base import Count, Number, Record
from .cell import PackedCell
from .overview import Effect, Verdict
from .run import AboutConfig, AboutCorpus, AboutModel


class Overlap(Record):
    """How far a cell's triggers agree in two runs; null if one of them has too few, or if the runs' tokens differ."""

    top: Count
    """strongest triggers of each run that are compared"""
    triggers: Number
    """the share of prefixes that are triggers in both, of the run with fewer"""
    last: Number
    """Σ min(p, q) over the tokens that end the triggers"""
    next: Number
    """the same over the tokens that follow them"""


class BesideCell(Record):
    """The same cell in the run beside this one."""

    cell: PackedCell
    overlap: Overlap
    turned: bool
    """whether the two runs read it with opposite signs"""


class Mean(Record):
    """A mean over cells with its 95 % interval (`analyses.compare.Mean`)."""

    value: Number
    lo: Number
    hi: Number
    dealt: Number
    """the same with another cell of the layer in the other run"""


class LayerOverlap(Record):
    """How far the cells of a layer agree in two runs."""

    top: Count
    """strongest triggers of each run that are compared"""
    n: Count
    """cells with enough triggers in both runs"""
    turned: Count
    """cells of these that the two runs read with opposite signs"""
    triggers: Mean
    last: Mean
    next: Mean


class OtherColumns(Record):
    """One list per measure, one entry per cell of the layer: the cell in the other run, and how far its triggers agree."""

    max: list[Number]
    """the largest coefficient there"""
    trigger: list[str | None]
    """the end of its strongest trigger there"""
    last: list[str | None]
    promotes: list[list[str]] | UnsetType = UNSET
    """if the values were read there, and are others than those of this run"""
    triggers: list[Number] | UnsetType = UNSET
    """the share of triggers that both have; like the next two, left out if the runs' tokens differ"""
    last_overlap: list[Number] | UnsetType = UNSET
    next_overlap: list[Number] | UnsetType = UNSET


class LayerBeside(Record):
    """A layer in the run beside this one."""

    columns: OtherColumns
    overlap: LayerOverlap | None
    """null: the runs' tokens differ"""


class ComparedClaim(Record):
    """A claim on this run, and on the other (`analyses.beside.Compared`)."""

    figure: str
    """the label of its figure, or its title"""
    here: Verdict
    there: Verdict | None
    """null: the other run has no table for it"""
    result: Literal["differs", "no clear difference", "cannot be compared"]
    why: str
    """why it cannot be compared; else empty"""
    difference: Effect | None
    """the effect here minus the effect there; `against` is 0"""
    adjusted: Number
    """the p of no difference, corrected for the number of claims that are compared"""


class ComparedFigure(Record):
    """A figure with the other run's lines in it, or with its own chart."""

    name: str
    spec: dict[str, Any]
    other: dict[str, Any] | UnsetType = UNSET
    """the other run's chart, if its numbers cannot be drawn into this run's"""


class OtherRun(Record):
    """What was scanned there."""

    model: AboutModel
    shape: str
    """layers and cells, in words"""
    cells: Count
    corpus: AboutCorpus
    config: AboutConfig
    dead: Count


class Comparison(Record):
    """Two runs on the overview."""

    name: str
    run: OtherRun
    claims: list[ComparedClaim]
    figures: list[ComparedFigure]
    missing: list[str]
    """tables that are not filled there"""
