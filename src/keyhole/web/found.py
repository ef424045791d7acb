"""The patterns of a run as the explorer shows them: the label of every cell, the patterns of one cell, and a ranked list of all of
them, in which a search finds patterns by the words of their description and by the tokens that their rule names."""

from __future__ import annotations

from array import array
from typing import Any

from ..searching.labels import Ranked, ranked, tokens
from ..store.patterns import METHODS, Key, Pattern, Patterns
from . import schema
from .pack import short
from .search import PAGE, Once, bucket, words

MOST = 1000
"""Upper bound on the patterns that are listed per word, and per token."""
Lists = dict[Any, "array[int]"]
"""Ranks of patterns, ascending, by word or by token."""


class Found:
    """The patterns of one run. `buckets`: the number of answers over which words are distributed."""

    def __init__(self, patterns: Patterns, buckets: int) -> None:
        self.patterns, self.run, self.buckets = patterns, patterns.run, buckets
        self._once = Once()

    def about(self) -> schema.AboutPatterns:
        settings = self.patterns.settings
        text = settings.get("held_out")
        held_out = (
            schema.HeldOut(text.get("source", ""), text.get("tokens", 0), text.get("documents", 0)) if text else None
        )
        return schema.AboutPatterns(settings.get("cells", "all"), MOST, held_out)

    # Cells

    def labels(self, layer: int) -> schema.Labels:
        """As `Patterns.labels`, of one layer."""
        keys = sorted(self.patterns.layer(layer).items())  # the other side first: a cell's own triggers replace it
        return schema.Labels({str(cell): key.label for (cell, _), key in keys if key.label is not None})

    def sides(self, place: int) -> list[schema.KeyPatterns]:
        """The sides of a key that were looked at, its triggers first."""
        keys = (self.patterns.key(place, side) for side in (1, -1))
        return [_key(key) for key in keys if key is not None]

    # All patterns, the best first

    @property
    def pages(self) -> int:
        return max(1, -(-len(self._ranked[0]) // PAGE))

    def page(self, page: int) -> schema.RankedPatterns:
        columns = (column[page * PAGE : (page + 1) * PAGE].tolist() for column in self._ranked)
        found = []
        for place, side, number in zip(*columns, strict=True):
            key = self.patterns.key(place, side)
            assert key is not None
            pattern = key.patterns[number]
            covered = len(pattern.triggers)
            found.append(
                schema.RankedPattern(
                    place,
                    side,
                    number,
                    pattern.kind,
                    pattern.description,
                    _short(pattern.auprc),
                    covered,
                    key.read,
                )
            )
        return schema.RankedPatterns(found)

    def by_word(self, number: int) -> dict[str, list[schema.Ranked]]:
        """The patterns whose description contains a word, for the words of a bucket."""
        found = self._indexes[0][number]
        return {word: self._listed(found[word]) for word in sorted(found)}

    def by_token(self, page: int) -> dict[str, list[schema.Ranked]]:
        """The patterns whose rule names a token, for the tokens of a page."""
        found = self._indexes[1]
        there = (token for token in range(page * PAGE, (page + 1) * PAGE) if token in found)
        return {str(token): self._listed(found[token]) for token in there}

    def _listed(self, ranks: array[int]) -> list[schema.Ranked]:
        places = self._ranked[0]
        return [schema.Ranked(rank, int(places[rank])) for rank in ranks[:MOST]]

    @property
    def _ranked(self) -> Ranked:
        return self._once.get("ranked", lambda: ranked(self.patterns))

    @property
    def _indexes(self) -> tuple[list[Lists], Lists]:
        """By word, for each bucket; by token."""
        return self._once.get("indexes", self._index)

    def _index(self) -> tuple[list[Lists], Lists]:
        by_word: Lists = {}
        by_token: Lists = {}
        for rank, (place, side, number) in enumerate(zip(*(column.tolist() for column in self._ranked), strict=True)):
            key = self.patterns.key(place, side)
            assert key is not None
            pattern = key.patterns[number]
            for word in set(words(pattern.description)):
                by_word.setdefault(word, array("i")).append(rank)
            for token in set(tokens(pattern.rule)):
                by_token.setdefault(token, array("i")).append(rank)
        dealt: list[Lists] = [{} for _ in range(self.buckets)]
        for word, ranks in by_word.items():
            dealt[bucket(word, self.buckets)][word] = ranks
        return dealt, by_token


def _short(number: float | None) -> float | None:
    return None if number is None else short(number, 3)


def _key(key: Key) -> schema.KeyPatterns:
    return schema.KeyPatterns(
        side=key.side,
        kind=key.kind,
        read=key.read,
        patterns=[_pattern(pattern) for pattern in key.patterns],
        needs=[_short(each) for each in key.needs],
        scores={
            method: schema.MethodScore(
                **{name: _short(getattr(key.scores[method], name)) for name in schema.MethodScore.__struct_fields__}
            )
            for method in METHODS
            if method in key.scores
        },
    )


_NUMBERS = ("lift", "q_value", "auprc", "f1", "pearson", "promoted", "promoted_null", "removed")


def _pattern(pattern: Pattern) -> schema.FoundPattern:
    return schema.FoundPattern(
        kind=pattern.kind,
        description=pattern.description,
        triggers=list(pattern.triggers),
        matches=pattern.matches,
        hits=pattern.hits,
        **{name: _short(getattr(pattern, name)) for name in _NUMBERS},
    )
