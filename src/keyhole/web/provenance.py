"""Where a trigger comes from: its document, its place in it, and the text around it.

The tokens of the corpus lie one after another in the run. They are answered in passages of equal length, so an answer is small
however long a unit is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..views.text import head
from . import schema
from .pack import joined

UNITS = 1024
"""Units per answer that says where they are."""
TOKENS = 4096
"""Tokens per passage."""
EXPORTED = 2_000_000
"""Tokens up to which an export has the text of the whole corpus; of a larger corpus it has only what is shown with triggers."""
BEGINNING = 60
"""Characters of a document's beginning, at most."""


def pages(run: Run) -> int:
    return -(-(len(run.unit_offsets) - 1) // UNITS)


def passages(run: Run) -> int:
    return -(-len(run.tokens) // TOKENS)


def is_whole(run: Run, live: bool) -> bool:
    """Whether every passage can be asked for."""
    return live or len(run.tokens) <= EXPORTED


def documents(run: Run, page: int) -> schema.Documents:
    offsets, begin = run.unit_offsets, page * UNITS
    numbers = np.asarray(run.unit_documents[begin : begin + UNITS])
    about = {str(number): _about(run, number) for number in np.unique(numbers).tolist()}
    starts = np.asarray(offsets[begin : begin + len(numbers) + 1]).tolist()
    return schema.Documents(begin, starts, numbers.tolist(), about)


def _about(run: Run, number: int) -> schema.AboutDocument:
    every: npt.NDArray[np.int32] = run.unit_documents  # ascending: documents are read one after another
    first, end = (int(np.searchsorted(every, number, side)) for side in ("left", "right"))
    ids = run.unit_tokens(first)[: 4 * BEGINNING].tolist() if first < end else []
    return schema.AboutDocument(first, end - first, head(run.vocabulary.text(ids).strip(), BEGINNING))


def passage(run: Run, number: int) -> schema.Passage:
    begin, piece = number * TOKENS, run.vocabulary.piece
    tokens = joined([piece(token) for token in run.tokens[begin : begin + TOKENS].tolist()])
    return schema.Passage(begin, tokens)
