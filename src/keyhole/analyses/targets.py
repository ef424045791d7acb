"""Tokens at the end of triggers and after them, for all cells, and how frequent tokens are in the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..scanning.hold_out import held_out
from ..store import layout
from ..store.run import Run

Ints = npt.NDArray[np.int64]


def next_tokens(run: Run, slots: int | None = None) -> Ints:
    """[cells, slots] the token that follows each trigger; −1 if there is no trigger or nothing follows it."""
    return run.next_tokens(run.units[:, :slots], run.positions[:, :slots])


def last_tokens(run: Run, slots: int | None = None) -> Ints:
    """[cells, slots] the last token of each trigger; −1 if there is none."""
    return run.last_tokens(run.units[:, :slots], run.positions[:, :slots])


def unigram(run: Run, vocabulary: int) -> npt.NDArray[np.float64]:
    """The share of each token in the scanned text."""
    offsets, tokens = np.asarray(run.unit_offsets), np.asarray(run.tokens)
    scanned = np.ones(len(offsets) - 1, bool)
    scanned[held_out_units(run)] = False
    counts: npt.NDArray[Any] = np.bincount(tokens[np.repeat(scanned, np.diff(offsets))], minlength=vocabulary)
    shares: npt.NDArray[np.float64] = counts[:vocabulary] / max(1, int(counts.sum()))
    return shares


def held_out_units(run: Run) -> Ints:
    """The units that `scan --hold-out` kept out."""
    config = run.manifest["config"]
    by_document = config.get("hold_out_by") == "document"
    documents = layout.load_array(run.path, "unit_documents")
    return np.flatnonzero(held_out(documents if by_document else np.arange(len(documents)), float(config["hold_out"])))
