"""What every key waits for: its patterns, as rules that run, with their scores on text they were not found in.

`keyhole patterns` finds and scores them; here they are read, without a model. There is one file per layer, one line per key and
side: `patterns_12.jsonl` holds those of layer 12. A key of which nothing was found has a line without patterns; a key that was
not looked at has no line. How a rule is run is in `keyhole.patterns.rules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ..common.files import read_small, replace_bytes
from ..errors import RunDamaged
from . import layout
from .run import Run

Kind = Literal["shallow", "semantic"]
KeyKind = Literal["none", "shallow", "semantic", "both"]
METHODS = ("rules", "list", "last_token", "bigram", "neighbour", "other", "permuted", "random")
"""What predicts where a key fires: its rules, and the baselines. `list`: its patterns alone, without evidence; `other`: another key's rules; `permuted`: rules found for
triggers that were dealt out over the layer's keys; `random`: rules found for the same key of the model with random weights."""
LARGEST_FILE = 1 << 30
_Record = TypeVar("_Record")


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of a key's decision list."""

    kind: Kind
    """shallow: decided by the last tokens and their form; semantic: by topic or meaning"""
    description: str
    """the rule as a person would say it"""
    rule: dict[str, Any]
    """its conditions, all of which must hold, and the amount it adds to the score (`keyhole.patterns.rules`)"""
    triggers: tuple[int, ...]
    """numbers of the key's strongest triggers that carry it, from 0"""
    matches: int
    """positions of the text it was found in that it matches"""
    hits: int
    """how many of these the key fires at"""
    lift: float
    """hits per match, divided by the share of positions that the key fires at"""
    bits: float
    """description length saved: bits saved on the firing positions, less the rule's own bits"""
    q_value: float
    """false-discovery rate: the expected share of patterns with at least as many bits that are found in dealt-out triggers"""
    auprc: float | None = None
    """of this pattern alone on held-out text; None if it was not scored"""
    f1: float | None = None
    pearson: float | None = None
    promoted: float | None = None
    """share of its matches in held-out text whose next token is among those that the cell's value promotes most"""
    promoted_null: float | None = None
    """the same share for the tokens that another cell of the layer promotes"""
    removed: float | None = None
    """mean change of the log-probability of that next token, at matches where it is promoted, when the cell is switched off"""


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How well one method predicts where one key fires, on held-out text. None: it could not be measured."""

    auprc: float | None = None
    """area under precision and recall; a position counts as firing above the cell's 99.9th percentile there"""
    auprc_99: float | None = None
    """the same for the 99th percentile"""
    f1: float | None = None
    pearson: float | None = None
    lo: float | None = None
    """95 % interval of `auprc` over documents"""
    hi: float | None = None


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The patterns of one side of a key, the label first."""

    cell: int
    """its number in the layer"""
    side: Literal[1, -1]
    """1: its triggers, in the cell's orientation; −1: the other side"""
    kind: KeyKind
    threshold: float
    """a position whose score is at least this is predicted to fire"""
    patterns: tuple[Pattern, ...]
    read: int
    """triggers that were looked at: the strongest, 25 at most"""
    needs: tuple[float, ...] = ()
    """mean relative fall of the coefficient over its triggers if one token is dropped: the last, the one before it, …; empty if
    that was not measured"""
    scores: dict[str, Score] = {}
    """by method of `METHODS`"""
    evidence: dict[str, Any] = {}
    """what gives a position its score (`keyhole.patterns.rules`). It is large, has a file of its own, and is only there if it was
    asked for: `read_keys(…, evidence=True)`, `Patterns.armed`"""

    @property
    def covered(self) -> tuple[int, ...]:
        """Numbers of the triggers that carry at least one of its patterns."""
        return tuple(sorted({trigger for pattern in self.patterns for trigger in pattern.triggers}))

    @property
    def label(self) -> str | None:
        return self.patterns[0].description if self.patterns else None


class Patterns:
    """The patterns of a run. Layers are read when they are first asked for."""

    def __init__(self, run: Run, settings: dict[str, Any]) -> None:
        self.run, self.settings = run, settings
        self._layers: dict[int, dict[tuple[int, int], Key]] = {}

    def layer(self, layer: int) -> dict[tuple[int, int], Key]:
        """The keys of a layer that were looked at, by (number in the layer, side)."""
        if layer not in self._layers:
            self._layers[layer] = {(key.cell, key.side): key for key in read_keys(self.run, layer)}
        return self._layers[layer]

    def armed(self, layer: int) -> list[Key]:
        """The keys of a layer that have patterns, with their evidence: their rules can be run."""
        return [key for key in read_keys(self.run, layer, evidence=True) if key.patterns]

    def key(self, place: int, side: int = 1) -> Key | None:
        """The key at a place of the axis; None if it was not looked at."""
        layer, cell = self.run.cells.split(place)
        return self.layer(layer).get((cell, side))

    def label(self, place: int) -> str | None:
        """The first pattern of a cell as text: of its triggers or, if these have none, of the other side. Reads its layer only."""
        keys = (self.key(place, side) for side in (1, -1))
        return next((key.label for key in keys if key is not None and key.label is not None), None)

    @cached_property
    def labels(self) -> dict[int, str]:
        """The label of every cell that has one, by place."""
        found: dict[int, str] = {}
        for place, key in self:
            if key.label is not None and (key.side == 1 or place not in found):
                found[place] = key.label
        return found

    def __iter__(self) -> Iterator[tuple[int, Key]]:
        """Every key that was looked at with its place, layer by layer: first by cell, then its triggers before the other side."""
        for layer in range(self.run.layers):
            there = self.layer(layer)
            for cell, side in sorted(there, key=lambda at: (at[0], -at[1])):
                yield self.run.cells.place(layer, cell), there[cell, side]


def of(run: Run) -> Patterns | None:
    """The patterns of a run; None if `keyhole patterns` was not run, or did not come to its end."""
    kept = vars(run)  # as cached_property does
    if "_patterns" in kept:
        known: Patterns = kept["_patterns"]
        return known
    settings = layout.read_patterns(run.path)
    if settings is None:
        return None
    found: Patterns = kept.setdefault("_patterns", Patterns(run, settings))
    return found


def save(run: Run, settings: dict[str, Any]) -> None:
    """List the layers' files as complete. From now on `of` finds them."""
    layout.save_patterns(run.path, settings, run.layers)
    vars(run).pop("_patterns", None)


def drop(run: Run) -> None:
    """Take the patterns off the list, before their files change."""
    layout.drop_group(run.path, layout.PATTERNS)
    vars(run).pop("_patterns", None)


class _Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a layer's second file, which has as many lines as the first."""

    cell: int
    side: int
    evidence: dict[str, Any]


def write_keys(run: Run, layer: int, keys: Sequence[Key]) -> None:
    """Write the keys of a layer, with their evidence, in place of what there was."""
    ordered = sorted(keys, key=lambda key: (key.cell, -key.side))
    lines: list[msgspec.Struct] = [msgspec.structs.replace(key, evidence={}) for key in ordered]
    evidence: list[msgspec.Struct] = [_Evidence(key.cell, key.side, key.evidence) for key in ordered]
    with layout.writing_analyses(run.path):
        for file, records in zip(layout.pattern_files(run.path, layer), (lines, evidence), strict=True):
            replace_bytes(file, b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read_keys(run: Run, layer: int, *, evidence: bool = False) -> list[Key]:
    """The keys of a layer's file; none if there is no such file."""
    file, second = layout.pattern_files(run.path, layer)
    if not file.is_file() or file.is_symlink():
        return []
    found = _read(run, file, Key)
    size = run.cells.size(layer)
    if any(not 0 <= key.cell < size for key in found):
        raise RunDamaged(f"{file} names a cell that is not there. Make it again: keyhole patterns {run.path}")
    if evidence:
        more = _read(run, second, _Evidence)
        if [(each.cell, each.side) for each in more] != [(each.cell, each.side) for each in found]:
            raise RunDamaged(
                f"{second} is not of the same keys as {file}. Make them again: keyhole patterns {run.path}"
            )
        found = [msgspec.structs.replace(key, evidence=each.evidence) for key, each in zip(found, more, strict=True)]
    return found


def _read(run: Run, file: Path, record: type[_Record]) -> list[_Record]:
    try:
        return [msgspec.json.decode(line, type=record) for line in read_small(file, LARGEST_FILE).splitlines()]
    except (OSError, ValueError) as error:
        raise RunDamaged(f"{file} cannot be read: {error}. Make it again: keyhole patterns {run.path}") from None
