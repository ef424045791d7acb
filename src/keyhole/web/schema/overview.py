"""What the overview shows beside the map: data/figures.json, kinds.json and vocabulary.json."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from .base import Number, Record


class Effect(Record):
    """The number that a verdict rests on: a larger one speaks for the claim."""

    value: Number
    lo: Number
    """the lower end of its 95 % interval; null: too little was sampled"""
    hi: Number
    against: Number
    """the smallest effect that would matter"""
    said: str
    """the number and its interval, for reading"""


class Verdict(Record):
    claim: str
    verdict: str
    why: str
    test: str
    effect: Effect | None
    """null: the claim does not apply, or could not be measured"""
    adjusted: Number
    """the p of the smallest effect, corrected for the number of claims"""


class Claim(Record):
    """A claim, and where its figure or table is."""

    figure: str
    """its label, or its title if it has none"""
    verdict: Verdict


class Paper(Record):
    """What the paper found, and the number it published."""

    finding: str
    published: str


class Figure(Record):
    """A figure of the report."""

    name: str
    label: str
    title: str
    caption: str
    note: str
    spec: dict[str, Any]
    """the chart, in Vega-Lite"""
    paper: Paper | None
    """null: the figure is not in the paper"""
    verdicts: list[Verdict]


class Figures(Record):
    """The figures of the analyses, with the claims they support."""

    outcomes: list[str]
    """the outcomes of a claim that are counted"""
    claims: list[Claim]
    """every claim that was measured, also of tables that are not drawn"""
    figures: list[Figure]


class KindOfCell(Record):
    """A label that cells can have."""

    name: str
    title: str
    meaning: str
    number: str
    """what the number is that decides"""
    below: bool
    """whether small numbers have the label"""


class Kinds(Record):
    """The kinds of every cell. None are named if they were not computed."""

    kinds: list[KindOfCell]
    data: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
    """two bytes per cell, the lower one first: bit i says whether it is of kind i"""


class Vocabulary(Record):
    """The tokens, by their numbers."""

    pieces: list[str]
