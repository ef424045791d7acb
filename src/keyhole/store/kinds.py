"""The kinds of cells: a set of labels per cell, each with its number and the threshold that it is compared with.

`analyze`, step `kinds`, computes them; here they are read, without a model. Labels are bits: bit i is that of `KINDS[i]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from . import percell
from .run import Run
from .values import unfit

GROUP = "kinds"


@dataclass(frozen=True)
class Kind:
    """A label that a cell can have."""

    name: str
    title: str
    meaning: str
    """when a cell has it, as a sentence that begins in lower case"""
    number: str
    """what its number is"""
    floor: float
    """the number that a cell needs at least, whatever the null says; for `below`, at most"""
    below: bool = False
    """whether small numbers have the label"""
    null: str | None = None
    """what the threshold is set by: the 99th percentile of the number under it; None if the label is a count that needs none"""


KINDS = (
    Kind(
        "promoting",
        "token-promoting",
        "its value promotes a few tokens far above the rest",
        "mean of the value's ten largest logits, in standard deviations of all its logits above their mean",
        0.0,
        null="random directions",
    ),
    Kind(
        "suppressing",
        "token-suppressing",
        "its value demotes a few tokens far below the rest",
        "mean of the value's ten smallest logits, in standard deviations of all its logits below their mean",
        0.0,
        null="random directions",
    ),
    Kind(
        "rare",
        "rare",
        "it fires as rarely as a cell that is at its peak on one of a thousand prefixes",
        "largest |coefficient| divided by the root mean square over all distinct prefixes",
        1000**0.5,
    ),
    Kind(
        "last_token",
        "last-token",
        "one last token is that of at least half of its triggers, and the token before it does not matter",
        "share of its triggers that end in their most common last token",
        0.5,
        null="triggers dealt out over the layer",
    ),
    Kind(
        "ngram",
        "n-gram",
        "at least half of its triggers end in the same two tokens, more than the last token alone explains",
        "share of its triggers that end in their most common last two tokens",
        0.5,
        null="random prefixes with the same last token",
    ),
    Kind(
        "frequency",
        "frequency",
        "its value writes along the unigram direction: its logits follow how frequent tokens are",
        "|cosine| of the value's logits with the log frequency of tokens in the scanned text, both centred",
        0.3,
        null="random directions",
    ),
    Kind(
        "entropy",
        "entropy",
        "its value writes where the unembedding barely reads, so it acts through the final norm",
        "share of ‖v‖², after the final norm's gain, along the 2 % of directions that the centred unembedding reads least",
        0.1,
        null="random directions",
    ),
    Kind(
        "positional",
        "positional",
        "its coefficient depends on the position",
        "share of the variance of its coefficient that the position explains (η², positions in bins)",
        0.1,
        null="positions dealt out over the prefixes",
    ),
    Kind(
        "duplicate",
        "duplicate",
        "another cell of its layer has nearly the same key and the same value",
        "largest of the smaller cosine of keys and of values with another cell of the layer",
        0.5,
        null="values dealt out over the layer",
    ),
    Kind(
        "dead",
        "dead",
        "it never fires, or never writes as much as 1 % of what is usual in its layer",
        "largest |coefficient|·‖v‖ over the layer's median of that; 0 without a trigger",
        0.01,
        below=True,
    ),
)
"""In the order of their bits. If a cell has several, the map shows the last of them."""
NAMES = tuple(kind.name for kind in KINDS)
NONE = "none"
"""What the map calls a cell without a label."""


class Shown(NamedTuple):
    """One kind, and how one cell stands to it."""

    kind: Kind
    has: bool
    number: float
    threshold: float


class Kinds:
    """The kinds of a run's cells."""

    def __init__(self, run: Run, found: percell.PerCell) -> None:
        cells = len(run.cells)
        shapes = {"labels": (cells,), "numbers": (cells, len(KINDS)), "thresholds": (cells, len(KINDS))}
        for name, shape in shapes.items():
            array = found.arrays.get(name)
            if array is None or array.shape != shape or array.dtype.kind != ("u" if name == "labels" else "f"):
                raise unfit(run, f"cells_{GROUP}_{name}", "its type or shape is another")
        self.labels: npt.NDArray[np.uint16] = found.arrays["labels"]
        """[cells] bit i: the cell is of `KINDS[i]`"""
        self.numbers: npt.NDArray[np.float32] = found.arrays["numbers"]
        """[cells, kinds]; NaN if there is none"""
        self.thresholds: npt.NDArray[np.float32] = found.arrays["thresholds"]
        """[cells, kinds] what the number is compared with"""

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        """[cells] whether a cell is of a kind."""
        found: npt.NDArray[np.bool_] = (np.asarray(self.labels) >> bit(name) & 1).astype(bool)
        return found

    def of(self, place: int) -> list[Shown]:
        """Every kind with the numbers of the cell at a place."""
        label = int(self.labels[place])
        rows = zip(KINDS, self.numbers[place].tolist(), self.thresholds[place].tolist(), strict=True)
        return [Shown(kind, bool(label >> i & 1), *pair) for i, (kind, *pair) in enumerate(rows)]

    def levels(self) -> npt.NDArray[np.float64]:
        """[cells] for the map: 0 for a cell without a label, else 1 + the bit of its last label."""
        labels = np.asarray(self.labels, np.uint32)
        found = np.zeros(len(labels))
        for i in range(len(KINDS)):
            found[labels >> i & 1 == 1] = i + 1
        return found


def bit(name: str) -> int:
    """The bit of a kind."""
    if name not in NAMES:
        raise UsageError(f"There is no kind '{name}'. The kinds are: {', '.join(NAMES)}.")
    return NAMES.index(name)


def of(run: Run) -> Kinds | None:
    """The kinds of a run's cells; None if `analyze` did not compute them, or if a version with other kinds did."""
    found = percell.read(run, GROUP)
    return None if found is None or found.settings.get("kinds") != list(NAMES) else Kinds(run, found)


def levels(run: Run) -> npt.NDArray[Any] | None:
    found = of(run)
    return None if found is None else found.levels()
