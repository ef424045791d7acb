"""What was scanned: data/run.json."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from ... import cells
from .base import Address, Count, PatternKind, Record
from .export import Export


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
    made: str | UnsetType = UNSET
    """what it was made from, if it is a model that Keyhole pruned or edited, as a sentence"""


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
    """Another run, shown beside this one."""

    name: str
    model: str
    sources: list[str]
    same_model: bool
    same_text: bool
    """whether both runs scanned the same text"""
    """whether its weights are those of this run; else it is a control, or another model"""
    why: str | None
    """why layers and cells cannot be shown beside each other, if the two runs have other axes of cells; null: they can"""


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
    units: Count
    """units per answer of `documents`"""
    passage: Count
    """tokens per passage"""


class Annotating(Record):
    """What an annotation, a note and a tag may be."""

    name: str
    """pattern of an annotator's name"""
    triggers: Count
    """of a key that are read, at most"""
    least: Count
    """triggers in which a pattern must recur"""
    patterns: Count
    description: Count
    note: Count
    tag: str
    """pattern of a tag"""
    tags: Count
    """per cell, at most"""
    marked: Count
    """cells with a star, tags or a note, at most"""
    kinds: list[PatternKind]


class Searching(Record):
    """What a search must know."""

    words: Count
    """answers over which the words are distributed"""
    prior: Count
    """triggers of the run's average that are added to a cell's own before it is ranked"""
    most: Count
    """upper bound on the rows that are listed per token and relation"""
    speakers: Count
    """upper bound on the cells that are listed per token and end of a value"""
    texts: Count
    """upper bound on the texts in which a phrase is looked for"""


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
    passages: bool
    """whether the text around triggers is there: a server has it, an export only of a small corpus"""
    worth: list[Address]
    """cells to begin with"""
    search: Searching
    dead: Count
    packing: Packing
    annotating: Annotating
    beside: AboutBeside | None
    patterns: AboutPatterns | None
    """null: `keyhole patterns` was not run"""
    export: Export | UnsetType = UNSET
    """how the files of an export are read; a server answers at every address"""
