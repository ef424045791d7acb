"""A cell: data/cells/….json."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from .base import Address, Count, Number, PatternKind, Record, Row, Said
from .below import Below
from .uses import Uses


class Firing(Record):
    """The share of sampled prefixes with a coefficient above a tenth of the cell's largest, and its 95 % interval."""

    share: Number
    lo: Number
    hi: Number
    n: Count
    """sampled prefixes, repeats included"""
    of: Count
    """the prefixes of the scanned text, repeats included; if all were sampled, the interval is the share itself"""


class CellStats(Record):
    n: Count
    active: Count | None
    """prefixes with a coefficient above zero, which the paper counts; null if the layers have a gate"""
    firing: Firing | None
    """null if the run has no shading, or if no coefficient is above zero"""
    peak: Number
    """largest |coefficient| per root mean square"""
    rms: Number
    """root mean square of the coefficients"""
    mean: Number
    std: Number
    max: Number
    min: Number


class PackedHistogram(Record):
    """Counts in bins of equal width between two edges."""

    edges: tuple[Number, Number]
    counts: list[Count]
    n: Count


class PackedTrigger(Row):
    """A trigger: an export consists mostly of these."""

    c: Number
    unit: Count
    position: Count
    before: Count
    """tokens of the unit that are left out before those shown"""
    after: Count
    count: Count
    """how often the prefix occurs in the corpus"""
    tokens: str | list[str]
    """the tokens shown: joined, or a list if one of them contains the separator"""
    shades: str | None
    """one letter per token; null if the run has no shading"""


class Agreement(Record):
    token: str
    hits: Count
    of: Count


class Value(Record):
    """A cell's value, read through one lens."""

    lens: str
    norm: Number
    max_prob: Number
    entropy: Number
    promoted: list[Said]
    demoted: list[Said]
    agreement: Agreement | None
    negative_agreement: Agreement | None
    rank: Count | None


class CellKind(Row):
    """How a cell stands to one kind: a name of `Kinds`."""

    name: str
    has: bool
    number: Number
    threshold: Number


class Gate(Record):
    """The gate of a cell: how often it is open, what the cell writes in the sign cases of gate and up, and the cosines of its
    weights. Up and value are taken in the cell's orientation."""

    open: Number
    open_plus: Number
    open_minus: Number
    closed_plus: Number
    closed_minus: Number
    gate_up: Number
    gate_value: Number
    up_value: Number


class FoundPattern(Record):
    """A pattern that was found in a key's triggers (`store.patterns.Pattern`)."""

    kind: PatternKind
    description: str
    triggers: list[Count]
    """numbers of the triggers that carry it, from 0"""
    matches: Count
    hits: Count
    """matches at which the key fires"""
    lift: Number
    q_value: Number
    auprc: Number
    f1: Number
    pearson: Number
    promoted: Number
    promoted_null: Number
    removed: Number


class MethodScore(Record):
    """How well a method predicts where a key fires, on held-out text (`store.patterns.Score`)."""

    auprc: Number
    lo: Number
    """the lower end of the 95 % interval of `auprc`"""
    hi: Number
    auprc_99: Number
    f1: Number
    pearson: Number


class KeyPatterns(Record):
    """The patterns of one side of a key, its label first."""

    side: Literal[1, -1]
    kind: Literal["none", "shallow", "semantic", "both"]
    read: Count
    """triggers that were looked at: the strongest"""
    patterns: list[FoundPattern]
    needs: list[Number]
    """how far the coefficient falls if one token is dropped: the last, the one before it, …"""
    scores: dict[str, MethodScore]
    """by method: `rules`, and the baselines"""


class PackedCell(Record):
    """A cell."""

    address: Address
    layer: Count
    cell: Count
    sign: Literal[1, -1]
    """the sign it is read with: times the model's own coefficients and value, it gives those shown; −1 only with a gate"""
    dead: bool
    stats: CellStats
    histogram: PackedHistogram | None
    triggers: list[PackedTrigger]
    negative: list[PackedTrigger]
    values: list[Value]
    similar_keys: list[tuple[Address, Count]]
    similar_values: list[tuple[Address, Number]] | None
    """null if they were not searched for"""
    kinds: list[CellKind] | UnsetType = UNSET
    """every kind in the order of their bits, if they were computed"""
    gate: Gate | UnsetType = UNSET
    """if the layer has a gate, and its analyses were run"""
    below: Below | UnsetType = UNSET
    """if the run has shading"""
    patterns: list[KeyPatterns] | UnsetType = UNSET
    """the sides that were looked at, if patterns were looked for in this run"""
    uses: Uses | UnsetType = UNSET
    """if cells of this run were pruned, edited, or found in texts that the model says by heart"""
