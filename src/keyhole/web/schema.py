"""The explorer's data contract: every request and every answer as a type, written once.

contract.py and live.py build these types, answers.py encodes them, export/site.py writes the same bytes as files, openapi.py
describes them, and typedefs.py turns them into web/types.d.ts, which the page's JavaScript is checked against. A field is
added, renamed or removed here and nowhere else.

The library is msgspec: one wheel of 0.2 MB without dependencies that builds, encodes, validates (`decode`) and describes (JSON
Schema 2020-12, the dialect of OpenAPI 3.1) the same types. Its encoder is faster than `json`, so a typed answer costs no
more than a dict did. Pydantic does the same with 10 MB and a slower start. TypedDict has neither validation nor a JSON
Schema: both would have to be written by hand.

A `Row` travels as a JSON array of its fields: an export consists mostly of those.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from .. import cells
from ..store import annotations as people

Count = Annotated[int, Meta(ge=0)]
Number = float | None
"""null: the number is not finite, or there is none"""
Address = Annotated[str, Meta(pattern=f"^{cells.ADDRESS.pattern}$")]
Said = tuple[str, Number]
"""a token, with its logit or probability"""
ById = Annotated[str, Meta(pattern="^[0-9]+$")]
"""a token or unit by its number, as a key of an object"""
PatternKind = Literal["shallow", "semantic"]


class Record(Struct, forbid_unknown_fields=True):
    """A JSON object of these fields and no others."""


class Row(Struct, array_like=True, forbid_unknown_fields=True):
    """A JSON array of these fields, in this order."""


# data/run.json


class Layer(Record):
    """A layer on the axis of cells (`Cells.as_json`)."""

    layer: Annotated[str, Meta(pattern=f"^{cells.LAYER.pattern}$")]
    offset: Count
    """the place of its first cell"""
    width: Annotated[int, Meta(ge=1)]
    """cells of the layer, or of each of its experts"""
    experts: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class AboutModel(Record):
    name: str
    family: str
    signed: bool
    """whether coefficients can be negative"""
    gated: bool
    """whether the layers have a gate: each cell is then read with the sign of its strongest coefficient"""


class AboutCorpus(Record):
    sources: list[str]
    documents: Count
    units: Count
    tokens: Count
    distinct_prefixes: Count
    scanned_prefixes: Count


class AboutConfig(Record):
    top: Count
    per: str
    unit: str
    context: Count


class AboutBeside(Record):
    """Another run of the same cells, shown beside this one."""

    name: str
    model: str
    sources: list[str]
    same_model: bool
    """whether its weights are those of this run; else it is a control, or another model with as many cells"""


class HeldOut(Record):
    """The text that patterns were scored on, and that they were not found in."""

    source: str
    tokens: Count
    documents: Count


class AboutPatterns(Record):
    """What `keyhole patterns` looked at."""

    cells: Count | Literal["all"]
    """keys per layer"""
    most: Count
    """upper bound on the patterns that are listed per word, and per token"""
    held_out: HeldOut | None
    """null: the patterns were not scored"""


class Packing(Record):
    """How the large answers are packed."""

    page: Count
    """tokens, and units, per answer"""
    separator: str
    """stands between tokens that are joined to one string"""
    shades: str
    """one letter per shade, from −1 to 1"""


class Annotating(Record):
    """What an annotation may be."""

    name: str
    """pattern of an annotator's name"""
    triggers: Count
    """of a key that are read, at most"""
    least: Count
    """triggers in which a pattern must recur"""
    patterns: Count
    description: Count
    note: Count
    kinds: list[PatternKind]


class About(Record):
    """What was scanned."""

    keyhole: str
    live: bool
    checksum: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    model: AboutModel
    layers: list[Layer]
    corpus: AboutCorpus
    config: AboutConfig
    lenses: list[str]
    lens: str | None
    """the lens of a layer's columns and of the search"""
    shading: bool
    worth: list[Address]
    """cells to begin with"""
    words: Count
    """answers over which the words are distributed"""
    dead: Count
    packing: Packing
    annotating: Annotating
    beside: AboutBeside | None
    patterns: AboutPatterns | None
    """null: `keyhole patterns` was not run"""


# data/map.json, figures.json, vocabulary.json


class Measure(Record):
    """A measure of every cell, quantized to one byte per cell."""

    name: str
    title: str
    side: Literal["key", "value", "people"]
    """what it measures"""
    lo: Number
    hi: Number
    format: Literal["percent", "number"]
    scale: Literal["linear", "log"]
    data: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
    kinds: list[str] | UnsetType = UNSET
    """names of the levels, if they are names and not numbers"""


class CellMap(Record):
    """Every cell, one byte per measure."""

    levels: Count
    """the byte that stands for `hi`; 0 stands for `lo`"""
    unknown: Count
    """the byte of a cell without a number"""
    shown: str
    """the measure to begin with"""
    measures: list[Measure]


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


# data/layers/….json


class Columns(Record):
    """One list per measure, one entry per cell. The last four are there if the values were read."""

    max: list[Number]
    min: list[Number]
    trigger: list[str | None]
    last: list[str | None]
    next: list[str | None]
    dead: list[Literal[0, 1]]
    active: list[Number] | UnsetType = UNSET
    """share of prefixes with a coefficient above zero; only if the layers have no gate"""
    peak: list[Number] | UnsetType = UNSET
    """largest |coefficient| per root mean square; only if the layers have a gate"""
    promotes: list[list[str]] | UnsetType = UNSET
    agreement: list[Number] | UnsetType = UNSET
    max_prob: list[Number] | UnsetType = UNSET
    norm: list[Number] | UnsetType = UNSET


class LayerCells(Record):
    """The cells of a layer, one column per measure."""

    layer: Count
    columns: Columns


# data/labels/….json


class Labels(Record):
    """The labels of a layer's cells: what a cell's first pattern says, by the cell's number. A cell without a pattern has none."""

    labels: dict[ById, str]


# data/cells/….json


class CellStats(Record):
    n: Count
    active: Count | None
    """prefixes with a coefficient above zero; null if the layers have a gate"""
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
    similar_values: list[tuple[Address, Number]]
    kinds: list[CellKind] | UnsetType = UNSET
    """every kind in the order of their bits, if they were computed"""
    gate: Gate | UnsetType = UNSET
    """if the layer has a gate, and its analyses were run"""
    patterns: list[KeyPatterns] | UnsetType = UNSET
    """the sides that were looked at, if patterns were looked for in this run"""


# data/beside/….json


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


# data/tokens/….json, words/….json, units/….json, patterns/….json


class Speaker(Row):
    """A cell whose value promotes or demotes a token."""

    place: Count
    logit: Number
    rank: Annotated[int, Meta(ge=1)]


class Ranked(Row):
    """A pattern by its rank among those of the run, with the place of its cell. The best have the smallest ranks."""

    rank: Count
    place: Count


class Tokens(Record):
    """Whose values promote and demote the tokens of a page, and whose patterns name them."""

    promoted: dict[ById, list[Speaker]]
    demoted: dict[ById, list[Speaker]]
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
    """A trigger in a unit."""

    place: Count
    end: Count
    """characters of the unit's text up to and including the trigger's last token"""


class Unit(Record):
    text: str
    cells: list[Held]
    negative: list[Held]


class Units(Record):
    """A page of units: their text, and whose triggers they hold."""

    units: dict[ById, Unit]


# Annotations and notes

LayerNumber = Annotated[int, Meta(ge=0, extra_json_schema={"x-below": "layers"})]
"""openapi.py replaces `x-below` by the bound of the run that is served"""
CellNumber = Annotated[int, Meta(ge=0, extra_json_schema={"x-below": "cells"})]
Saved = Annotated[bool, Meta(extra_json_schema={"const": True})]


class Pattern(Record):
    triggers: Annotated[list[Count], Meta(min_length=people.LEAST, extra_json_schema={"uniqueItems": True})]
    description: Annotated[str, Meta(min_length=1, max_length=people.DESCRIPTION)]
    kind: PatternKind


class Annotation(Record):
    """What one annotator says about one cell."""

    annotator: Annotated[str, Meta(pattern=f"^{people.NAME.pattern}$")]
    layer: LayerNumber
    cell: CellNumber
    patterns: Annotated[list[Pattern], Meta(max_length=people.PATTERNS)]
    skipped: bool = False


class Note(Record):
    layer: LayerNumber
    cell: CellNumber
    text: Annotated[str, Meta(max_length=people.NOTE)]


class Annotations(Record):
    """What people found, and their notes."""

    annotations: list[Annotation]
    notes: dict[Address, str]


class SavedAnnotation(Record):
    saved: Saved
    annotation: Annotation


class SavedNote(Record):
    saved: Saved
    note: Note


# The model


class Limits(Record):
    """What one request may hold."""

    prompt_tokens: Count
    edits: Count
    prompt_characters: Count
    positions: Count
    """of all edits together; one edit has at most `prompt_tokens`"""


LIMITS = Limits(prompt_tokens=512, edits=256, prompt_characters=20_000, positions=16_384)


class Status(Record):
    """Whether the model is loaded, and what a prompt may be."""

    model: str
    loaded: bool
    limits: Limits


Position = Annotated[int, Meta(ge=0, le=LIMITS.prompt_tokens - 1)]
Positions = Annotated[
    list[Position], Meta(min_length=1, max_length=LIMITS.prompt_tokens, extra_json_schema={"uniqueItems": True})
]


class Edit(Record):
    """A cell's coefficient, multiplied by `scale`."""

    layer: LayerNumber
    cell: CellNumber
    scale: float
    positions: Positions | None = None
    """null: everywhere"""


Edits = Annotated[list[Edit], Meta(max_length=LIMITS.edits)]


class AskPrompt(Record):
    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)]
    position: Count | None = None
    token: str | None = None
    edits: Edits = field(default_factory=list)


class AskEdits(Record):
    edits: Edits


class EditedModel(Record):
    fingerprint: str
    layers: Count
    cells: Count | list[Count]
    """per layer: one number, or a list if layers differ"""


class EditsFile(Record):
    """The file that `keyhole.load(edits=…)` takes."""

    keyhole: Literal[1]
    model: EditedModel
    edits: list[Edit]


class Contribution(Record):
    """What a cell adds at the position."""

    cell: Count
    m: Number
    strength: Number
    effect: Number


class PromptLayer(Record):
    layer: Count
    before: list[Said]
    after: list[Said]
    strongest: list[Contribution]
    effective: list[Contribution]


class Chosen(Record):
    """The token the effects are on."""

    piece: str
    logit: Number
    p: Number
    original_logit: Number
    original_p: Number


class Prompt(Record):
    """A text, read through the model."""

    tokens: list[str]
    position: Count
    token: str
    edited: bool
    prediction: list[Said]
    original: list[Said]
    chosen: Chosen
    layers: list[PromptLayer]


# Errors

Code = Literal[
    "bad_host",
    "bad_json",
    "bad_request",
    "busy",
    "failed",
    "no_model",
    "no_token",
    "not_allowed",
    "not_found",
    "not_json",
    "not_possible",
    "refused",
    "run_changed",
    "run_gone",
    "too_large",
    "too_long",
    "too_slow",
    "wrong_host",
    "wrong_origin",
    "wrong_value",
]


class Problem(Record):
    code: Code
    message: str
    detail: dict[str, Any]


class Error(Record):
    """Every error has this shape."""

    error: Problem
