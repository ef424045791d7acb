"""What the values of a run say, read from its files: neither a model nor torch is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RunDamaged, RunError, UsageError
from . import layout
from .run import Run

LENSES = ("norm", "raw", "mapped")
"""The lenses. If several were read, the first of them in this order is the main one: models have a final norm, and `norm` is what
reaches the vocabulary through it. The paper's model had none; its lens, `raw`, is the same for such a model."""
ARRAYS = (
    *(f"{side}_{name}" for side in ("top", "bottom") for name in ("tokens", "logits")),
    *(f"index_{side}_{name}" for side in ("top", "bottom") for name in ("offsets", "places")),
    *("max_prob", "entropy", "ranks", "norms"),
)
KEPT = 30
"""How many tokens are stored of each end of a value: those with the largest logits, and those with the smallest."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Said:
    """A token a value promotes or demotes."""

    token: int
    piece: str
    logit: float


@dataclass(frozen=True)
class Speaker:
    """A cell whose value promotes or demotes a token."""

    layer: int
    cell: int
    address: str
    logit: float
    rank: int
    """the token's rank among the value's tokens, from 1; for a demoted token counted from the last"""


@dataclass(frozen=True)
class Similar:
    """A cell whose value points in nearly the same direction."""

    layer: int
    cell: int
    address: str
    cosine: float


class Values:
    """The values of a run through one lens. Arrays are [cells, …]."""

    def __init__(self, run: Run, lens: str) -> None:
        if lens not in LENSES:
            raise UsageError(f"There is no lens '{lens}'. The lenses are: {', '.join(LENSES)}.")
        found = layout.read_lens(run.path, lens)
        if found is None:
            raise RunError(
                f"{run.path} does not hold its values through the lens '{lens}' yet. Read them: "
                f"keyhole analyze {run.path} --lens {lens}"
            )
        self.run, self.lens, self.settings = run, lens, found
        self._arrays = {name: layout.load_array(run.path, layout.lens_array(lens, name)) for name in ARRAYS}
        self._check()

    def _array(self, name: str) -> npt.NDArray[Any]:
        """An array. All were mapped together, so that an analysis that replaces them on disk cannot mix old and new ones."""
        return self._arrays[name]

    def _check(self) -> None:
        """Refuse arrays that do not fit the run. The run may come from anyone."""
        cells, kept = (len(self.run.cells),), self._arrays["top_tokens"].shape[-1:]
        for name, array in self._arrays.items():
            index = name.startswith("index_")
            whole_numbers = index or name.endswith("_tokens") or name == "ranks"
            shape = cells + kept if name.endswith(("_tokens", "_logits")) else cells
            fits = array.ndim == 1 if index else array.shape == shape and 0 not in kept
            if not fits or array.dtype.kind != ("i" if whole_numbers else "f"):
                raise unfit(
                    self.run, layout.lens_array(self.lens, name), f"it holds {array.dtype} of shape {array.shape}"
                )

    @cached_property
    def top_tokens(self) -> npt.NDArray[np.int32]:
        """[cells, KEPT] the tokens a value promotes most, largest logit first."""
        return self._array("top_tokens")

    @cached_property
    def top_logits(self) -> npt.NDArray[np.float32]:
        return self._array("top_logits")

    @cached_property
    def bottom_tokens(self) -> npt.NDArray[np.int32]:
        """[cells, KEPT] the tokens a value demotes most, smallest logit first."""
        return self._array("bottom_tokens")

    @cached_property
    def bottom_logits(self) -> npt.NDArray[np.float32]:
        return self._array("bottom_logits")

    @cached_property
    def max_prob(self) -> npt.NDArray[np.float32]:
        """[cells] the largest probability of softmax, at the strength that the value has at its cell's top-1 trigger; NaN for a cell
        without one."""
        return self._array("max_prob")

    @cached_property
    def entropy(self) -> npt.NDArray[np.float32]:
        """Of the same distribution, in nats."""
        return self._array("entropy")

    @cached_property
    def ranks(self) -> npt.NDArray[np.int32]:
        """[cells] the rank of the token that follows the cell's strongest trigger, from 1; 0 if there is no such token."""
        return self._array("ranks")

    @cached_property
    def norms(self) -> npt.NDArray[np.float32]:
        return self._array("norms")

    # One cell

    def promoted(self, layer: int, cell: int, limit: int = 30) -> list[Said]:
        return self._said(self.top_tokens, self.top_logits, layer, cell, limit)

    def demoted(self, layer: int, cell: int, limit: int = 30) -> list[Said]:
        return self._said(self.bottom_tokens, self.bottom_logits, layer, cell, limit)

    def _said(
        self, tokens: npt.NDArray[Any], logits: npt.NDArray[Any], layer: int, cell: int, limit: int
    ) -> list[Said]:
        place = self.run.cells.place(layer, cell)
        pairs = zip(tokens[place, :limit], logits[place, :limit], strict=True)
        return [Said(int(token), self.run.vocabulary.piece(int(token)), float(logit)) for token, logit in pairs]

    # What a value says against what its triggers were followed by

    def hits(self, which: slice | int, *, negative: bool = False) -> tuple[Counts, Counts]:
        """Of the cells at `which`: how many triggers are followed by the value's first token, and how many by any token.

        A negative coefficient writes −value, whose first token is the value's last.
        """
        run, tokens = self.run, self.bottom_tokens if negative else self.top_tokens
        _, units, positions = run.side(negative)
        return count_hits(tokens[which, ..., :1], run.next_tokens(units[which], positions[which]))

    # One token

    def promoting(self, token: int, limit: int | None = None) -> list[Speaker]:
        """The cells that have the token among the `KEPT` they promote most, largest logit first."""
        return self._speakers("top", token, limit)

    def demoting(self, token: int, limit: int | None = None) -> list[Speaker]:
        """The cells that have the token among the `KEPT` they demote most, smallest logit first."""
        return self._speakers("bottom", token, limit)

    @property
    def vocabulary(self) -> int:
        """How many tokens the values speak of."""
        return len(self._array("index_top_offsets")) - 1

    def said_by(
        self, side: str, token: int, limit: int | None = None
    ) -> tuple[Counts, Counts, npt.NDArray[np.float32]]:
        """Who has a token at one end of its value, 'top' or 'bottom', strongest first: the places of the cells, the token's rank
        there (1 is the first), and its logit."""
        logits = self.top_logits if side == "top" else self.bottom_logits
        offsets, entries = self._array(f"index_{side}_offsets"), self._array(f"index_{side}_places")
        if not 0 <= token < len(offsets) - 1:
            raise UsageError(f"There is no token {token}: the vocabulary has {len(offsets) - 1:,}.")
        begin, end = int(offsets[token]), int(offsets[token + 1])
        found = np.asarray(entries[begin : end if limit is None else min(end, begin + limit)], np.int64)
        if len(found) and (found.min() < 0 or found.max() >= logits.size):  # they index the flattened logits
            raise unfit(self.run, f"values_{self.lens}_index", "it names places that are not there")
        places, slots = np.divmod(found, logits.shape[1])
        return places, slots + 1, logits[places, slots]

    def _speakers(self, side: str, token: int, limit: int | None) -> list[Speaker]:
        columns = (column.tolist() for column in self.said_by(side, token, limit))
        return [
            Speaker(*_named(self.run, place), logit=logit, rank=rank)
            for place, rank, logit in zip(*columns, strict=True)
        ]


def _named(run: Run, place: int) -> tuple[int, int, str]:
    """The layer of a place, its number there, and its address."""
    return (*run.cells.split(place), run.cells.address(place))


def count_hits(said: npt.NDArray[Any], follows: npt.NDArray[Any]) -> tuple[Counts, Counts]:
    """Per row of `follows` [..., n], the tokens that follow triggers: how many are the row's `said` token [..., 1], and how
    many there are; −1 is none."""
    known = follows >= 0
    return ((follows == said) & known).sum(-1), known.sum(-1)


def shares(hits: Counts, known: Counts) -> npt.NDArray[np.float64]:
    """Hits per known one; NaN where none is known."""
    with np.errstate(invalid="ignore"):
        found: npt.NDArray[np.float64] = hits / np.where(known, known, np.nan)
    return found


def unfit(run: Run, name: str, why: str) -> RunDamaged:
    return RunDamaged(
        f"{run.path} is damaged: {name}.npy does not fit the run: {why}. Analyze it again: keyhole analyze {run.path}"
    )


def index(tokens: npt.NDArray[Any], strength: npt.NDArray[Any], vocabulary: int) -> tuple[Any, Any]:
    """The index by token of tokens [cells, kept]: per token the entries of the flattened array that hold it, strongest first.

    Token t has the entries from offsets[t] to offsets[t + 1]; returns offsets and entries.
    """
    flat, order = tokens.ravel(), np.lexsort((-strength.ravel(), tokens.ravel()))
    offsets = np.zeros(vocabulary + 1, np.int64)
    np.cumsum(np.bincount(flat, minlength=vocabulary), out=offsets[1:])
    return offsets, order.astype(np.int64 if flat.size >= 2**31 else np.int32)


def available(run: Run) -> list[str]:
    """The lenses that the values of a run were read through."""
    return [lens for lens in LENSES if layout.read_lens(run.path, lens) is not None]


def similar_arrays(run: Run) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Per cell the places of the cells with the most similar values, and the cosines; None if they were not searched for."""
    if not layout.has_similar(run.path):
        return None
    places, cosines = (layout.load_array(run.path, name) for name in layout.SIMILAR)
    if places.ndim != 2 or len(places) != len(run.cells) or places.shape != cosines.shape:
        raise unfit(run, layout.SIMILAR[0], f"its shape is {places.shape}")
    return places, cosines


def similar(run: Run, layer: int, cell: int) -> list[Similar]:
    """The cells with the most similar values, by cosine; empty if they were not searched for."""
    arrays = similar_arrays(run)
    return [] if arrays is None else similar_at(run, arrays, run.cells.place(layer, cell))


def similar_at(run: Run, arrays: tuple[npt.NDArray[Any], npt.NDArray[Any]], place: int) -> list[Similar]:
    """`similar` of the cell at a place, from `similar_arrays`."""
    places, cosines = (array[place].tolist() for array in arrays)
    if not all(0 <= other < len(run.cells) for other in places):
        raise unfit(run, layout.SIMILAR[0], "it names cells that are not there")
    return [Similar(*_named(run, place), cosine=float(cosine)) for place, cosine in zip(places, cosines, strict=True)]


def token_id(run: Run, text: str) -> int:
    """The token that reads `text`."""
    return run.vocabulary.find(text)
