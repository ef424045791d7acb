"""A layer: data/layers/….json, and the labels of its cells, data/labels/….json."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from .base import ById, Count, Number, Record


class Columns(Record):
    """One list per measure, one entry per cell. The last four are there if the values were read."""

    max: list[Number]
    min: list[Number]
    trigger: list[str | None]
    last: list[str | None]
    next: list[str | None]
    dead: list[Literal[0, 1]]
    peak: list[Number]
    """largest |coefficient| per root mean square"""
    firing: list[Number] | UnsetType = UNSET
    """share of sampled prefixes with a coefficient above a tenth of the cell's largest; only if the run has shading"""
    active: list[Number] | UnsetType = UNSET
    """share of prefixes with a coefficient above zero, which the paper counts; only if the layers have no gate"""
    promotes: list[list[str]] | UnsetType = UNSET
    agreement: list[Number] | UnsetType = UNSET
    max_prob: list[Number] | UnsetType = UNSET
    norm: list[Number] | UnsetType = UNSET


class LayerCells(Record):
    """The cells of a layer, one column per measure."""

    layer: Count
    columns: Columns


class Labels(Record):
    """The labels of a layer's cells: what a cell's first pattern says, by the cell's number. A cell without a pattern has none."""

    labels: dict[ById, str]
