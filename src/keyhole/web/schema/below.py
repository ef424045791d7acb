"""Examples below the top: the prefixes in data/sample.json, and which of them a cell shows."""

from __future__ import annotations

from .base import Count, Number, Record, Row


class SampledPrefix(Row):
    """A random prefix of the corpus, with the text around it."""

    unit: Count
    position: Count
    before: Count
    """tokens of the unit that are left out before those shown"""
    after: Count
    tokens: str | list[str]
    """the tokens shown: joined, or a list if one of them contains the separator"""


class Sample(Record):
    """Random prefixes of the corpus. Every cell's examples below the top are some of these."""

    bands: list[tuple[float, float]]
    """quantiles of the coefficient over these prefixes, the strongest band first"""
    prefixes: list[SampledPrefix]


class Example(Row):
    """A prefix of `Sample`, and the cell's coefficient with it."""

    prefix: Count
    c: Number


class Below(Record):
    """A cell's examples below the top."""

    edges: list[Number]
    """the smallest coefficient of each band but the last; null if the band is empty"""
    bands: list[list[Example]]
    random: list[Example]
    """whatever their coefficient is"""
