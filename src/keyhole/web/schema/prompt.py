"""A prompt: what is asked of the live model, and what it answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from .base import CellNumber, Count, LayerNumber, Number, Record, Said
from .model import LIMITS, Edit, Edits

ABLATED = 64
"""Upper bound on the cells that one request switches off, each on its own."""


class AskPrompt(Record):
    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)]
    position: Count | None = None
    token: str | None = None
    edits: Edits = field(default_factory=list)


class Contribution(Record):
    """What a cell adds at the position."""

    cell: Count
    m: Number
    strength: Number
    effect: Number


class RankedCell(Contribution):
    """The same, among the cells of all layers."""

    layer: Count


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


class Reading(Record):
    """One pass through the model."""

    layers: list[PromptLayer]
    ranked: list[RankedCell]
    """the cells with the largest effects and strengths, over all layers; the largest effect first"""


class EditProblem(Record):
    """An edit that was left out."""

    edit: Count
    """its number in the request"""
    message: str


class Prompt(Record):
    """A text, read through the model; `layers` and `ranked` are of the pass with the edits."""

    tokens: list[str]
    position: Count
    token: str
    edited: bool
    prediction: list[Said]
    original: list[Said]
    chosen: Chosen
    layers: list[PromptLayer]
    ranked: list[RankedCell] = field(default_factory=list)
    without: Reading | None = None
    """the pass without the edits; null if there are none"""
    problems: list[EditProblem] = field(default_factory=list)


class AskAblation(Record):
    """Cells to switch off, each on its own."""

    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)]
    cells: Annotated[list[tuple[LayerNumber, CellNumber]], Meta(min_length=1, max_length=ABLATED)]
    position: Count | None = None
    token: str | None = None
    edits: Edits = field(default_factory=list)
    everywhere: bool = False
    """at every position of the text; false: at the one that is read"""


class Ablated(Record):
    """What the chosen token loses with a cell."""

    layer: Count
    cell: Count
    logit: Number
    log_p: Number


class Ablation(Record):
    """Cells switched off, each on its own."""

    token: str
    logit: Number
    p: Number
    everywhere: bool
    cells: list[Ablated]


class AskLayers(Record):
    text: Annotated[str, Meta(min_length=1, max_length=LIMITS.prompt_characters)]
    edits: Edits = field(default_factory=list)


class LayerEffects(Record):
    """What each layer does to the logit of the predicted token, at every position."""

    tokens: list[str]
    predicted: list[str]
    p: list[Number]
    """the probability of the predicted token"""
    effects: list[list[Number]]
    """[tokens][layers]"""
    edited: bool


class AskLoad(Record):
    file: str
    """the text of a file of edits"""


class LoadedEdits(Record):
    """The edits of a file."""

    edits: list[Edit]
    problems: list[EditProblem]


class PythonCode(Record):
    """A prompt as a program."""

    code: str
