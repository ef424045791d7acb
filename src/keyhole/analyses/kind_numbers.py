"""The numbers behind the kinds of cells (`kinds.py`), each with the same number under a null."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..lens.project import project
from ..store.run import Run
from ..store.values import Values
from . import targets

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.states import States
    from .heldout import Prefixes
    from .kinds import Labelled

LEAST = 5
"""Fewest triggers of a cell whose triggers are compared."""
SAMPLE = 2_000_000
"""At most this many tokens of the text are counted for how often two tokens follow each other."""
ENDS = 10
"""Tokens at each end of a value's logits."""
DIRECTIONS = 512
"""Random directions that values are compared with."""
LEAST_READ = 0.02
"""The share of directions that count as those which the unembedding reads least."""
EDGES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024])
"""Where bins of positions end: single ones first, then wider."""
BLOCK = 1 << 24
"""Upper bound on the entries of a block of cosines between cells."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Compared(NamedTuple):
    """A number per cell, and the same under the null, whose entries need not belong to the cells."""

    own: Floats
    null: Floats


# Triggers


def tails(run: Run, units: npt.NDArray[Any], positions: npt.NDArray[Any], length: int) -> Ints:
    """[..., length] the last tokens of triggers, the last one first; −1 before the start of the window, −2 if there is no trigger."""
    units, positions = np.asarray(units, np.int64), np.asarray(positions, np.int64)
    filled = units >= 0
    run.check_places(units[filled], positions[filled])
    begin = run.unit_offsets[np.maximum(units, 0)]
    place, start = begin + positions, begin + run.window_start(np.maximum(positions, 0))
    found = np.full((*units.shape, length), -2, np.int64)
    for back in range(length):
        here = place - back
        inside = filled & (here >= start)
        found[..., back] = np.where(filled, -1, -2)
        found[..., back][inside] = run.tokens[here[inside]]
    return found


def most_common(codes: Ints, filled: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Per row of codes [cells, slots] (not negative), of the filled entries: the most common code, and how often it is there."""
    rows, slots = codes.shape
    alone = np.where(filled, codes, -1 - np.arange(slots))  # an unfilled entry equals no other
    order = np.sort(alone, 1)
    starts = np.ones(order.shape, bool)
    starts[:, 1:] = order[:, 1:] != order[:, :-1]
    columns = np.broadcast_to(np.arange(slots), order.shape)
    length = columns - np.maximum.accumulate(np.where(starts, columns, 0), 1) + 1
    length = np.where(order >= 0, length, 0)
    best = length.argmax(1)
    return order[np.arange(rows), best], length[np.arange(rows), best]


class Tails:
    """How the triggers of cells end, and how often tokens follow each other in the scanned text."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.random = run, np.random.default_rng(seed)
        self.base = len(run.vocabulary) + int(np.asarray(run.tokens).max(initial=0)) + 2
        """above every token, so that two tokens have one code"""
        offsets = np.asarray(run.unit_offsets)
        scanned = np.ones(len(offsets) - 1, bool)
        scanned[targets.held_out_units(run)] = False
        units = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        places = np.flatnonzero(scanned[units])
        if len(places) > SAMPLE:
            places = np.sort(self.random.choice(places, SAMPLE, replace=False))
        last = tails(run, units[places], places - offsets[units[places]], 2)
        self._pairs, self._pair_counts = np.unique(self._code(last), return_counts=True)
        self._tokens, self._token_counts = np.unique(last[:, 0], return_counts=True)

    def _code(self, last: Ints) -> Ints:
        found: Ints = (last[..., 1] + 1) * self.base + last[..., 0]
        return found

    def before(self, pairs: Ints) -> Floats:
        """How often, in the scanned text, the second token of a pair has the first before it."""
        counts = _lookup(self._pairs, self._pair_counts, pairs)
        totals = _lookup(self._tokens, self._token_counts, pairs % self.base)
        found: Floats = np.where(totals > 0, counts / np.maximum(totals, 1), 1.0)
        return found

    def of_layer(self, layer: int) -> tuple[Compared, Floats, Floats, Floats]:
        """Of a layer's cells: the share of triggers with the most common last token, and of those with the most common last two
        tokens, with the latter's threshold and the chance to reach it, if the triggers were random prefixes with the same last
        token."""
        from scipy.stats import binom

        here = self.run.layer(layer)
        last = tails(self.run, here.units, here.positions, 2)
        filled = last[..., 0] >= 0
        count = filled.sum(1)
        known = count >= LEAST
        tokens = np.maximum(last[..., 0], 0)
        _, most = most_common(tokens, filled)
        dealt = tokens.copy()
        dealt[filled] = self.random.permutation(tokens[filled])
        single = Compared(_share(most, count, known), _share(most_common(dealt, filled)[1], count, known))
        pair, together = most_common(np.where(filled, self._code(np.maximum(last, -1)), 0), filled)
        ending = ((tokens == (pair % self.base)[:, None]) & filled).sum(1)
        chance = self.before(pair)
        # the fewest of `ending` triggers that would share the token before the last in at most 1 % of draws, and at least half
        needed = np.maximum(binom.ppf(0.99, ending, chance) + 1, np.ceil(count / 2))
        threshold = np.where(known, needed / np.maximum(count, 1), np.nan)
        reached = np.where(known, binom.sf(needed - 1, ending, chance), np.nan)
        return single, _share(together, count, known), threshold, reached


def _lookup(keys: Ints, counts: Ints, wanted: Ints) -> Ints:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: Ints = np.where(keys[at] == wanted, counts[at], 0)
    return found


def _share(count: Ints, total: Ints, known: npt.NDArray[np.bool_]) -> Floats:
    found: Floats = np.where(known, count / np.maximum(total, 1), np.nan)
    return found


# Positions


class Positions:
    """η² of every cell's coefficient by position, over held-out prefixes, and the same with the positions dealt out."""

    labelled: Labelled | None = None
    """what `kinds.rows` made of it, kept for `kinds.fill`"""

    def __init__(self, run: Run, head: Head, prefixes: Prefixes) -> None:
        bins = np.searchsorted(EDGES, [len(ids) - 1 for ids in prefixes.ids], "right")
        _, own = np.unique(bins, return_inverse=True)
        dealt = np.random.default_rng(0).permutation(own)
        self.counts = np.bincount(own).astype(np.float64)
        self._bins = torch.from_numpy(np.stack([own, dealt])).to(head.model.device)
        shape = (2, len(self.counts), len(run.cells))
        self._sums = torch.zeros(shape, dtype=torch.float64, device=head.model.device)
        self._squares = torch.zeros(len(run.cells), dtype=torch.float64, device=head.model.device)

    @torch.inference_mode()
    def take(self, rows: Sequence[int], seen: States) -> None:
        which = self._bins[:, list(rows)]
        member = torch.nn.functional.one_hot(which, len(self.counts)).double().transpose(1, 2)
        at = 0
        for m in seen.coefficients:
            exact, span = m.double(), slice(at, at + m.shape[1])
            self._sums[:, :, span] += member @ exact
            self._squares[span] += exact.square().sum(0)
            at = span.stop

    def found(self) -> Compared:
        counts, n = torch.from_numpy(self.counts).to(self._sums.device), float(self.counts.sum())
        mean = self._sums[0].sum(0) / n
        total = self._squares - n * mean.square()
        between = (counts[:, None] * (self._sums / counts[:, None] - mean).square()).sum(1)
        # a coefficient that hardly varies has no share to explain
        varies = total > 1e-9 * self._squares.clamp_min(torch.finfo(torch.float64).tiny)
        shares = torch.where(varies, between / total, torch.nan).cpu().numpy()
        return Compared(shares[0], shares[1])


# Values


class Reading:
    """How the unembedding reads values: moments of logits without computing these, from products of the unembedding with itself."""

    @torch.inference_mode()
    def __init__(self, run: Run, head: Head, values: Values, seed: int) -> None:
        self.run, self.head, self.values = run, head, values
        weight = head.weight
        self._mean, self._gram = gram(weight)
        d = weight.shape[1]
        _, directions = torch.linalg.eigh(self._gram - torch.outer(self._mean, self._mean) * len(weight))
        self._unread = directions[:, : max(1, round(LEAST_READ * d))].float()
        shares = targets.unigram(run, head.vocabulary)
        occurring = np.flatnonzero(shares)
        logs = torch.from_numpy(np.log(shares[occurring])).to(weight.device)
        self._logs = logs - logs.mean()
        rows = weight[torch.from_numpy(occurring).to(weight.device)]
        mean, self._own_gram = gram(rows)
        self._own_gram = self._own_gram - torch.outer(mean, mean) * len(rows)
        self._unigram = rows.double().T @ self._logs
        random = torch.Generator().manual_seed(seed)
        self._random = torch.randn(DIRECTIONS, d, generator=random).to(weight.device)

    def logit_moments(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the logits of vectors that a lens has seen."""
        exact, vocabulary = vectors.double(), self.head.vocabulary
        mean = exact @ self._mean
        variance = ((exact @ self._gram) * exact).sum(1) / vocabulary - mean.square()
        return mean, variance.clamp_min(0).sqrt()

    def unread(self, vectors: Tensor) -> Floats:
        """The share of ‖v‖² along the directions that the unembedding reads least."""
        folded = self.head.norm.fold(vectors)
        share = (folded @ self._unread).square().sum(1) / folded.square().sum(1)
        return _numpy(share)

    def unigram(self, vectors: Tensor) -> Floats:
        """The |cosine| of logits with log frequency, over the tokens that occur, both centred."""
        folded = self.head.norm.fold(vectors).double()
        size = ((folded @ self._own_gram) * folded).sum(1).clamp_min(0).sqrt() * self._logs.norm()
        return _numpy((folded @ self._unigram).abs() / size)

    def ends(self, vectors: Tensor, layer: int, top: Tensor, bottom: Tensor) -> tuple[Floats, Floats]:
        """How far the largest and the smallest logits are from their mean, in standard deviations."""
        mean, std = self.logit_moments(self.head.see(self.values.lens, vectors, layer))
        up, down = top[:, :ENDS].double().mean(1) - mean, mean - bottom[:, :ENDS].double().mean(1)
        return _numpy(up / std), _numpy(down / std)

    @torch.inference_mode()
    def of_layer(self, layer: int) -> dict[str, Floats]:
        span, device = self.run.cells.span(layer), self.head.weight.device
        signs = torch.from_numpy(self.run.orientation[span].astype(np.float32)).to(device)
        vectors = self.head.values(layer) * signs[:, None]
        stored = (np.array(logits[span]) for logits in (self.values.top_logits, self.values.bottom_logits))
        up, down = self.ends(vectors, layer, *(torch.from_numpy(each).to(device) for each in stored))
        return {
            "promoting": up,
            "suppressing": down,
            "entropy": self.unread(vectors),
            "frequency": self.unigram(vectors),
        }

    @torch.inference_mode()
    def null(self) -> dict[str, Floats]:
        """The same numbers of random directions, in the basis of the last layer: a lens may read each layer in its own way."""
        last = self.run.layers - 1
        said = project(self.head.see(self.values.lens, self._random, last), self.head.weight, kept=ENDS)
        up, down = self.ends(self._random, last, said.top_logits, said.bottom_logits)
        return {
            "promoting": up,
            "suppressing": down,
            "entropy": self.unread(self._random),
            "frequency": self.unigram(self._random),
        }


def gram(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of rows, and the sum of their outer products, in float64."""
    width = weight.shape[1]
    total = torch.zeros(width, dtype=torch.float64, device=weight.device)
    products = torch.zeros(width, width, dtype=torch.float64, device=weight.device)
    for part in torch.split(weight, 1 << 14):
        exact = part.double()
        total += exact.sum(0)
        products += exact.T @ exact
    return total / max(1, len(weight)), products


def _numpy(x: Tensor) -> Floats:
    found: Floats = torch.where(torch.isfinite(x), x, torch.nan).double().cpu().numpy()
    return found


# Duplicates


@torch.inference_mode()
def nearest_twin(run: Run, head: Head, layer: int, random: np.random.Generator) -> Compared:
    """Per cell, over the other cells of its layer: the largest of the smallest of the cosines of keys (and ups) and of values. Under
    the null, values are dealt out over the cells."""
    model, span = head.model, run.cells.span(layer)
    count = span.stop - span.start
    if count < 2 or any(site.key is None for site in model.sites if site.layer == layer):
        return Compared(np.full(count, math.nan), np.full(count, math.nan))
    signs = torch.from_numpy(run.orientation[span].astype(np.float32)).to(model.device)[:, None]

    def unit(x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x.float(), dim=1)

    keys = [unit(model.keys(layer))] + ([unit(model.ups(layer)) * signs] if model.family.gated else [])
    values = unit(model.values(layer)) * signs
    dealt = values[torch.from_numpy(random.permutation(count)).to(values.device)]
    own: list[Tensor] = []
    null: list[Tensor] = []
    step = max(1, BLOCK // count)
    for at in range(0, count, step):
        part = slice(at, at + step)
        alike = keys[0][part] @ keys[0].T
        for other in keys[1:]:
            alike = torch.minimum(alike, other[part] @ other.T)
        rows = torch.arange(len(alike), device=alike.device)
        alike[rows, rows + at] = -torch.inf
        for found, vectors in ((own, values), (null, dealt)):
            found.append(torch.minimum(alike, vectors[part] @ vectors.T).amax(1))
    return Compared(_numpy(torch.cat(own)), _numpy(torch.cat(null)))
