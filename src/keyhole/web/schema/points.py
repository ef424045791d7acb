"""What the map of values and of keys shows: data/planes.json, points/…, pointbins/… and pointcells/…."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from .base import Count, Number, Record
from .maps import Packed


class Plane(Record):
    """All values, or all keys, on a plane. points/NUMBER.json has the coordinates; NUMBER is its place in the list."""

    name: Literal["values", "keys"]
    explained: Number
    """share of the variance that the two principal axes hold"""
    shuffled: Number
    """the same, if every coordinate is dealt out over the cells"""
    sample: Count
    """cells that the axes were computed from"""
    width: Number
    """how far the points reach, in units of the longer side: one of the two is 1"""
    height: Number
    tiles: list[list[Count]]
    """of a model with too many cells for one answer: the left, upper, right and lower end of each tile of pointcells/…"""


class Planes(Record):
    """The planes of all cells; none if they were not computed."""

    method: str
    """`pca` or `umap`"""
    gated: bool
    """whether a key is two rows: gate and up"""
    planes: list[Plane]


class Points(Record):
    """Where every cell lies on a plane, if one answer can hold them."""

    name: str
    data: Packed
    """per cell two numbers of two bytes, the lower one first: from the left and from the top; 65,535 is the longer side"""


class ManyPoints(Record):
    """Some cells on a plane, with a measure of each: the strongest cell of every bin, or the cells of a tile."""

    name: str
    """of the measure"""
    places: Packed
    """four bytes per cell: its place on the axis"""
    at: Packed
    """as the data of points/…"""
    data: Packed
    """one byte per cell, as in maps/…"""
    counts: Packed | UnsetType = UNSET
    """of bins: four bytes each, how many cells are in it"""
