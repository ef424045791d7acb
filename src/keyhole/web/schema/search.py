"""What a search reads: data/tokens/….json, words/….json, units/….json and patterns/….json."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from .base import ById, Count, Number, PatternKind, Record, Row


class Speaker(Row):
    """A cell whose value promotes or demotes a token."""

    place: Count
    logit: Number
    rank: Annotated[int, Meta(ge=1)]


class Ranked(Row):
    """A pattern by its rank among those of the run, with the place of its cell. The best have the smallest ranks."""

    rank: Count
    place: Count


class Fires(Row):
    """A side of a key whose triggers have a relation to a token."""

    place: Count
    hits: int
    """triggers that have it; negative for triggers of the other side"""
    of: Count
    """triggers of that side"""


class TokenKeys(Record):
    """The keys whose triggers have one relation to one token."""

    cells: Count
    """how many there are"""
    hits: Count
    """triggers that have it, of all cells and sides"""
    rows: list[Fires]
    """the best, in order: at most `most` of `Searching`"""


class Tokens(Record):
    """Per token of a page: whose values promote and demote it, whose triggers end in it, contain it or are followed by it, and
    whose patterns name it."""

    triggers: Count
    """of all cells and both sides"""
    promoted: dict[ById, list[Speaker]]
    """strongest first; at most `speakers` of `Searching`"""
    demoted: dict[ById, list[Speaker]]
    ends: dict[ById, TokenKeys]
    contains: dict[ById, TokenKeys]
    next: dict[ById, TokenKeys]
    cut: dict[ById, tuple[Count, Count]] | UnsetType = UNSET
    """how many cells promote a token and how many demote it, where more do than are listed"""
    rules: dict[ById, list[Ranked]] | UnsetType = UNSET
    """patterns whose rule names the token, the best first; at most `most` of `AboutPatterns`"""


class Words(Record):
    """Units with triggers, and patterns, by word."""

    words: dict[str, list[Count]]
    patterns: dict[str, list[Ranked]] | UnsetType = UNSET
    """patterns whose description contains the word, the best first; at most `most` of `AboutPatterns`"""


class RankedPattern(Row):
    """A pattern in a list of patterns."""

    place: Count
    side: Literal[1, -1]
    number: Count
    """its number in the key's list, from 0"""
    kind: PatternKind
    description: str
    auprc: Number
    covered: Count
    """triggers that carry it"""
    read: Count
    """triggers that were looked at"""


class RankedPatterns(Record):
    """A page of the run's patterns, ranked by AUPRC × the share of triggers that carry them."""

    patterns: list[RankedPattern]


class Held(Row):
    """The triggers that end at one place of a unit."""

    end: Count
    """characters of the unit's text up to and including their last token"""
    gaps: list[Count]
    """the place of the first cell, then from each cell to the next"""


class Unit(Record):
    text: str
    starts: list[Count]
    """characters at which its windows start: a prefix begins at the last of them before its end"""
    cells: list[Held]
    negative: list[Held]
    few: dict[ById, tuple[Count, Count]]
    """triggers of each side, of the cells that have fewer than `top` of either"""


class Units(Record):
    """A page of units: their text, and whose triggers they hold."""

    triggers: Count
    """of all cells and both sides"""
    units: dict[ById, Unit]
