"""The explorer's addresses: what each of them takes and answers, in the types of schema.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import schema


@dataclass(frozen=True)
class Data:
    """An address below data/."""

    answer: type[schema.Record]
    numbers: tuple[str, ...] = ()
    """what its numbers count"""


DATA = {
    "run": Data(schema.About),
    "map": Data(schema.CellMap),
    "figures": Data(schema.Figures),
    "vocabulary": Data(schema.Vocabulary),
    "annotations": Data(schema.Annotations),
    "kinds": Data(schema.Kinds),
    "layers": Data(schema.LayerCells, ("layer",)),
    "labels": Data(schema.Labels, ("layer",)),
    "cells": Data(schema.PackedCell, ("layer", "cell")),
    "beside": Data(schema.BesideCell, ("layer", "cell")),
    "tokens": Data(schema.Tokens, ("page",)),
    "words": Data(schema.Words, ("bucket",)),
    "units": Data(schema.Units, ("page",)),
    "patterns": Data(schema.RankedPatterns, ("page",)),
}
"""`cells`: /data/cells/{layer}/{cell}.json. `beside` is there only if a run is shown beside this one; `labels` and `patterns` are
there only if patterns were looked for."""


@dataclass(frozen=True)
class Operation:
    """An address below api/: the server's alone."""

    method: Literal["get", "post"]
    path: str
    summary: str
    answer: type[schema.Record]
    asked: type[schema.Record] | None = None
    errors: tuple[str, ...] = ()
    """statuses that only this operation answers with"""


API = (
    Operation("get", "status", "Whether the model is loaded, and what a prompt may be.", schema.Status),
    Operation("get", "annotations", "What people found, and their notes.", schema.Annotations),
    Operation(
        "post",
        "annotations",
        "Save what one annotator says about one cell; the newest counts.",
        schema.SavedAnnotation,
        schema.Annotation,
    ),
    Operation("post", "notes", "Save a note on a cell; an empty one removes it.", schema.SavedNote, schema.Note),
    Operation(
        "post", "prompt", "Read a text through the model.", schema.Prompt, schema.AskPrompt, ("429", "500", "503")
    ),
    Operation(
        "post", "edits", "Edits as the file that keyhole.load takes.", schema.EditsFile, schema.AskEdits, ("429", "503")
    ),
)

TYPES: tuple[type[schema.Record], ...] = tuple(
    dict.fromkeys(
        [
            *(each.answer for each in DATA.values()),
            *(each.answer for each in API),
            *(each.asked for each in API if each.asked),
            schema.Error,
        ]
    )
)
"""everything that is asked and answered"""
