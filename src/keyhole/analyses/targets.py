"""What a cell's triggers were followed by, for all cells at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..scanning.plan import held_out
from ..store import layout as store
from ..store.run import Run
from ..store.values import Values

Ints = npt.NDArray[np.int64]


def next_tokens(run: Run, slots: int | None = None) -> Ints:
    """[layers, cells, slots] the token behind each trigger; −1 where there is no trigger or nothing follows it."""
    units, positions = np.asarray(run.units[..., :slots]), np.asarray(run.positions[..., :slots])
    offsets, tokens = _text(run)
    place = offsets[np.maximum(units, 0)] + positions + 1
    known = (units >= 0) & (place < offsets[np.maximum(units, 0) + 1])
    return np.where(known, tokens[np.where(known, place, 0)].astype(np.int64), -1)


def agreement(run: Run, values: Values) -> npt.NDArray[np.float64]:
    """Per cell the share of its triggers with a next token that is the value's top token; NaN if no trigger has one."""
    follows = next_tokens(run)
    known = follows >= 0
    hits = (known & (follows == np.asarray(values.top_tokens[..., :1]))).sum(-1)
    share: npt.NDArray[np.float64] = hits / np.where(known.any(-1), known.sum(-1), np.nan)
    return share


def last_tokens(run: Run, slots: int | None = None) -> Ints:
    """[layers, cells, slots] the last token of each trigger; −1 where there is none."""
    units, positions = np.asarray(run.units[..., :slots]), np.asarray(run.positions[..., :slots])
    offsets, tokens = _text(run)
    place = offsets[np.maximum(units, 0)] + positions
    return np.where(units >= 0, tokens[np.where(units >= 0, place, 0)].astype(np.int64), -1)


def unigram(run: Run, vocabulary: int) -> npt.NDArray[np.float64]:
    """The share of each token in the scanned text."""
    offsets, tokens = _text(run)
    scanned = np.ones(len(offsets) - 1, bool)
    scanned[held_out_units(run)] = False
    counts: npt.NDArray[Any] = np.bincount(tokens[np.repeat(scanned, np.diff(offsets))], minlength=vocabulary)
    shares: npt.NDArray[np.float64] = counts[:vocabulary] / max(1, int(counts.sum()))
    return shares


def held_out_units(run: Run) -> Ints:
    """The units `scan --hold-out` kept out."""
    share = float(run.manifest["config"].get("hold_out") or 0.0)
    return np.flatnonzero(held_out(0, int(run.manifest["corpus"]["units"]), share))


def _text(run: Run) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return np.asarray(store.load_array(run.path, "unit_offsets")), np.asarray(store.load_array(run.path, "tokens"))
