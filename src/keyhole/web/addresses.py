"""The explorer's addresses: what each of them takes and answers, in the types of schema/."""

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
    "maps": Data(schema.MeasureMap, ("measure",)),
    "planes": Data(schema.Planes),
    "points": Data(schema.Points, ("plane",)),
    "pointbins": Data(schema.ManyPoints, ("plane", "measure")),
    "pointcells": Data(schema.ManyPoints, ("plane", "measure", "tile")),
    "mapcells": Data(schema.MapCells, ("measure", "block")),
    "mapranks": Data(schema.MapRanks, ("measure", "block")),
    "figures": Data(schema.Figures),
    "vocabulary": Data(schema.Vocabulary),
    "annotations": Data(schema.Annotations),
    "collections": Data(schema.Collections),
    "kinds": Data(schema.Kinds),
    "sample": Data(schema.Sample),
    "table": Data(schema.CellTable),
    "columns": Data(schema.ColumnBlock, ("column", "block")),
    "comparison": Data(schema.Comparison),
    "layers": Data(schema.LayerCells, ("layer",)),
    "labels": Data(schema.Labels, ("layer",)),
    "cells": Data(schema.PackedCell, ("layer", "cell")),
    "overlaps": Data(schema.LayerBeside, ("layer",)),
    "beside": Data(schema.BesideCell, ("layer", "cell")),
    "tokens": Data(schema.Tokens, ("page",)),
    "words": Data(schema.Words, ("bucket",)),
    "units": Data(schema.Units, ("page",)),
    "patterns": Data(schema.RankedPatterns, ("page",)),
    "documents": Data(schema.Documents, ("page",)),
    "passages": Data(schema.Passage, ("passage",)),
}
"""`cells`: /data/cells/{layer}/{cell}.json. `comparison` is there only if a run is shown beside this one, `overlaps` and `beside` if it
has the same axis of cells; `labels` and `patterns` are there only if patterns were looked for; `mapcells`, `mapranks`,
`pointbins` and `pointcells` are there only if the model has more cells than one answer holds. `sample` is there only if the run has shading."""


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
    streamed: bool = False
    """whether the answer is lines of JSON, sent as they are made"""
    media: str = ""
    """the type of the answer, if it is a file and not JSON"""


PARQUET = "application/vnd.apache.parquet"
API = (
    Operation("get", "status", "Whether the model is loaded, and what a prompt may be.", schema.Status),
    Operation("get", "coming", "Which analyses are being made, and which are missing.", schema.Coming),
    Operation(
        "post",
        "cells.parquet",
        "Some rows and columns of the table of all cells, as a file.",
        schema.ParquetFile,
        schema.AskCells,
        ("503",),
        media=PARQUET,
    ),
    Operation("get", "annotations", "What people found, and their notes.", schema.Annotations),
    Operation(
        "post",
        "annotations",
        "Save what one annotator says about one cell; the newest counts.",
        schema.SavedAnnotation,
        schema.Annotation,
    ),
    Operation("post", "notes", "Save a note on a cell; an empty one removes it.", schema.SavedNote, schema.Note),
    Operation("post", "marks", "Save a star, tags or a note on a cell.", schema.SavedMarks, schema.AskMarks),
    Operation("get", "collections", "The marked cells, as a file to keep.", schema.Collections),
    Operation(
        "post",
        "collections",
        "Add a file of marked cells: all of it, or nothing if something does not fit.",
        schema.SavedCollections,
        schema.ImportedCollections,
    ),
    Operation(
        "post", "prompt", "Read a text through the model.", schema.Prompt, schema.AskPrompt, ("429", "500", "503")
    ),
    Operation(
        "post",
        "prompt/ablation",
        "Run the model again with cells switched off, each on its own.",
        schema.Ablation,
        schema.AskAblation,
        ("429", "500", "503"),
    ),
    Operation(
        "post",
        "prompt/layers",
        "What each layer does to the predicted token, at every position.",
        schema.LayerEffects,
        schema.AskLayers,
        ("429", "500", "503"),
    ),
    Operation(
        "post", "prompt/python", "A prompt as a Python program.", schema.PythonCode, schema.AskPrompt, ("429", "503")
    ),
    Operation(
        "post",
        "try",
        "A cell's coefficient at every token of a text.",
        schema.Tried,
        schema.AskTry,
        ("429", "500", "503"),
    ),
    Operation(
        "post",
        "generate",
        "Continue a text, without and with edits, token by token.",
        schema.GenerateLine,
        schema.AskGenerate,
        ("429", "500", "503"),
        streamed=True,
    ),
    Operation(
        "post",
        "nearest",
        "The cells nearest to a cell, or to a text that the model reads.",
        schema.Nearest,
        schema.AskNearest,
        ("429", "500", "503"),
    ),
    Operation(
        "post", "edits", "Edits as the file that keyhole.load takes.", schema.EditsFile, schema.AskEdits, ("429", "503")
    ),
    Operation("get", "sets", "The sets of cells that the run has.", schema.OfferedSets),
    Operation(
        "post",
        "sets",
        "The cells of a set: of a kind, a collection, a search, a pattern, a leak.",
        schema.CellSet,
        schema.AskSet,
    ),
    Operation("post", "edits/load", "The edits of such a file.", schema.LoadedEdits, schema.AskLoad, ("429", "503")),
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
