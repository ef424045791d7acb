"""What people add: annotations, and the cells they collect with stars, tags and notes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from ...common import names
from ...store import annotations as people
from ...store import collections
from .base import Address, CellNumber, Count, LayerNumber, PatternKind, Record
from .model import EditedModel

NoteText = Annotated[str, Meta(max_length=collections.NOTE)]
Tags = Annotated[
    list[Annotated[str, Meta(pattern=f"^{names.TAG.pattern}$")]],
    Meta(max_length=collections.TAGS),
]
Saved = Annotated[bool, Meta(extra_json_schema={"const": True})]


class Pattern(Record):
    triggers: Annotated[list[Count], Meta(min_length=people.LEAST, extra_json_schema={"uniqueItems": True})]
    description: Annotated[str, Meta(min_length=1, max_length=people.DESCRIPTION)]
    kind: PatternKind


class Annotation(Record):
    """What one annotator says about one cell."""

    annotator: Annotated[str, Meta(pattern=f"^{names.NAME.pattern}$")]
    layer: LayerNumber
    cell: CellNumber
    patterns: Annotated[list[Pattern], Meta(max_length=people.PATTERNS)]
    skipped: bool = False


class Note(Record):
    layer: LayerNumber
    cell: CellNumber
    text: NoteText


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


class Marks(Record):
    """What people say of a cell."""

    starred: bool = False
    tags: Tags = field(default_factory=list)
    note: NoteText = ""


class Collections(Record):
    """The cells that people marked with a star, tags or a note: a file to keep, and to import into another run of the model."""

    keyhole: Literal[1]
    model: EditedModel
    cells: dict[Address, Marks]


class ImportedCollections(Record):
    """A collection to add to what is marked. Without `model`, addresses alone must fit."""

    cells: dict[Address, Marks]
    keyhole: Literal[1] = 1
    model: EditedModel | UnsetType = UNSET


class AskMarks(Record):
    """What to mark a cell with; a field that is left out stays as it is."""

    layer: LayerNumber
    cell: CellNumber
    starred: bool | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    note: NoteText | UnsetType = UNSET


class SavedMarks(Record):
    saved: Saved
    address: Address
    marks: Marks
    """all that the cell is marked with now"""


class SavedCollections(Record):
    saved: Saved
    cells: Count
    """in the file"""
    changed: Count
    """of these are marked otherwise than before"""
