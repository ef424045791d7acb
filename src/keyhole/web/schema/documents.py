"""Where the text comes from: data/documents/….json says which document a unit is in, data/passages/….json has the tokens."""

from __future__ import annotations

from .base import ById, Count, Record, Row


class AboutDocument(Row):
    first: Count
    """its first unit"""
    units: Count
    beginning: str
    """its first words"""


class Documents(Record):
    """Where consecutive units of the corpus are, and the documents that they are in."""

    first: Count
    """the number of the first unit"""
    starts: list[Count]
    """where each unit begins among the tokens of the corpus, and where the last one ends"""
    documents: list[Count]
    """the number of each unit's document"""
    about: dict[ById, AboutDocument]


class Passage(Record):
    """Consecutive tokens of the corpus."""

    first: Count
    """the number of the first token"""
    tokens: str | list[str]
    """joined, or a list if one of them contains the separator"""
