"""One more pass over the units that hold triggers: a shade for each token that is shown with a trigger, and, from a random
sample of the corpus, a histogram of every cell's coefficients, how often its key fires, and examples below the top.

Windows of similar length share a batch. Only those coefficients that are shown are read, and each is written directly to its
place in a file on disk, so memory does not grow with the number of shades.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..common.batching import batch_by_length
from ..store import layout
from ..store import shading as stored
from ..store.below import EXAMPLES
from ..store.run import Run
from ..store.shading import AFTER, BEFORE, BINS, LARGEST, TENTH, spans
from .below import KEPT, Kept, keeping
from .record import KEYS, Analysis, Begin
from .targets import held_out_units

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

SAMPLE = 20_000
"""Approximate number of prefixes, repeats included, that the histograms are made of; all of them if there are fewer."""

PIECE = 1 << 16
"""Upper bound on the triggers whose shades are gathered together."""

Ints = npt.NDArray[np.int64]


def fill(run: Run, model: Model, *, seed: int = 0, begin: Begin = lambda total: lambda done: None) -> None:
    """Store shades and histograms in the run, unless they are there already."""
    settings = {
        "fingerprint": run.manifest["model"]["fingerprint"],
        "seed": seed,
        "before": BEFORE,
        "after": AFTER,
        "bins": BINS,
        "sample": SAMPLE,
        "kept": KEPT,
        "examples": EXAMPLES,
    }
    there = layout.read_shading(run.path)
    if there is not None and settings.items() <= there.items() and there.keys() >= stored.SAMPLED:
        return
    layout.drop_shading(run.path)
    windows = _Windows(run)
    sampled = windows.sample(SAMPLE, seed)
    windows.plan(sampled, int(run.manifest["config"]["batch_tokens"]))
    with layout.writing_analyses(run.path), keeping(run, windows, sampled, seed) as kept:
        triggers = [_Triggers(run, windows, site) for site in run.cells.sites]
        sizes = np.concatenate([each.sizes for each in triggers])
        offsets = np.append(0, np.cumsum(sizes))
        found = _Sampled(
            sampled, np.zeros((len(run.cells), BINS), np.uint32), np.zeros(len(run.cells), np.uint32), kept
        )
        advance = begin(len(windows.chosen))
        with layout.building(run.path, layout.SHADING[0], np.int8, int(offsets[-1])) as shades:
            for number, members in enumerate(windows.batches()):
                _run(model, windows, triggers, number, members, found, offsets, shades)
                advance(len(members))
        for name, array in zip(layout.SHADING[1:], (offsets, found.counts, found.firing), strict=True):
            layout.save_array(run.path, name, array)
        kept.save()
    counts = {"prefixes": int(windows.lengths[sampled].sum()), "of": int(windows.lengths[windows.scanned].sum())}
    layout.save_shading(run.path, {**settings, **counts})


class _Windows:
    """The windows of all units of a run, numbered consecutively, and which of them the model is run on."""

    def __init__(self, run: Run) -> None:
        self.run, self.room = run, run.room
        self.offsets = np.asarray(run.unit_offsets)
        of_unit = np.diff(self.offsets)
        pieces = -(-of_unit // self.room)
        self.first = np.append(0, np.cumsum(pieces))
        """[units + 1] the number of each unit's first window"""
        self.units = np.repeat(np.arange(len(pieces)), pieces)
        self.starts = (np.arange(len(self.units)) - self.first[self.units]) * self.room
        self.lengths = np.minimum(of_unit[self.units] - self.starts, self.room)
        held = np.zeros(len(pieces), bool)
        held[held_out_units(run)] = True
        self.scanned = np.flatnonzero(~held[self.units])
        """the windows of the scanned text, those of held-out units aside"""

    def of(self, units: Ints, positions: Ints) -> Ints:
        """The window that each prefix is in."""
        return self.first[units] + positions // self.room

    def sample(self, prefixes: int, seed: int) -> Ints:
        """Random windows of the scanned text that hold about this many prefixes together."""
        order = np.random.default_rng(seed).permutation(self.scanned)
        return np.sort(order[: np.searchsorted(np.cumsum(self.lengths[order]), prefixes) + 1])

    def plan(self, sampled: Ints, tokens: int) -> None:
        """Which windows are run (those with triggers, and the sample), and in which row of which batch."""
        run, wanted = self.run, np.zeros(len(self.units), bool)
        wanted[sampled] = True
        for site in run.cells.sites:
            for units, positions in _sides(run, site):
                filled = units >= 0
                wanted[self.of(units[filled], positions[filled])] = True
        chosen = np.flatnonzero(wanted)
        batches = batch_by_length(self.lengths[chosen], tokens)
        self.chosen, self.bounds = chosen[batches.order], batches.bounds
        self.batch = np.full(len(self.units), -1, np.int32)
        self.row = np.full(len(self.units), -1, np.int32)
        sizes = np.diff(self.bounds)
        self.batch[self.chosen] = np.repeat(np.arange(len(sizes)), sizes)
        self.row[self.chosen] = np.arange(len(self.chosen)) - np.repeat(self.bounds[:-1], sizes)

    def batches(self) -> Iterator[Ints]:
        for begin, end in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield self.chosen[begin:end]

    def tokens(self, window: int) -> npt.NDArray[np.generic]:
        begin = int(self.offsets[self.units[window]] + self.starts[window])
        return np.asarray(self.run.tokens[begin : begin + int(self.lengths[window])])


def _sides(run: Run, site: slice) -> list[tuple[Ints, Ints]]:
    """Units and positions [cells, top] of the triggers of a site, per side. `site`: the places of its cells."""
    parts = [side.part(site) for side in run.sides.values()]
    return [(part.units.astype(np.int64), part.positions.astype(np.int64)) for part in parts]


@dataclass(frozen=True)
class _Shown:
    """Triggers of one batch and site, one per entry."""

    row: Ints
    column: Ints
    """of the first token shown"""
    cell: Ints
    """its number in the site"""
    size: Ints
    """tokens that have a shade"""
    place: Ints
    """of the first shade among its cell's"""


class _Triggers:
    """The triggers of a site, grouped by batch. Kept small: eight bytes per trigger."""

    def __init__(self, run: Run, windows: _Windows, site: slice) -> None:
        self.run, self.windows, self.site = run, windows, site
        self.cells, self.sides = site.stop - site.start, [side.part(site) for side in run.sides.values()]
        units, positions = (np.stack(side, 1).ravel() for side in zip(*_sides(run, site), strict=True))
        filled = units >= 0
        begin, end = self._spans(units, positions)
        sizes = np.where(filled, end - begin, 0).reshape(self.cells, -1)
        self.sizes = sizes.sum(1)
        """[cells] shades of each cell"""
        self.places = (np.cumsum(sizes, 1) - sizes).astype(np.int32).ravel()
        which = np.flatnonzero(filled)
        batch = windows.batch[windows.of(units[which], positions[which])]
        order = np.argsort(batch, kind="stable")
        self.order = which[order].astype(np.int32)
        self.bounds = np.searchsorted(batch[order], np.arange(len(windows.bounds)))
        both = np.concatenate([side.coefficients for side in self.sides], 1)
        largest = np.nan_to_num(np.abs(both)).max(1)
        self.factors = (LARGEST / np.where(largest > 0, largest, 1)).astype(np.float32)
        """[cells] what a coefficient is multiplied by to give a shade"""
        self.signs = np.array(run.orientation[site], np.float32)
        self.factors *= self.signs

    def _spans(self, units: Ints, positions: Ints) -> tuple[Ints, Ints]:
        offsets = self.windows.offsets
        lengths = offsets[np.maximum(units, 0) + 1] - offsets[np.maximum(units, 0)]
        return spans(lengths, positions, self.windows.room)

    def of_batch(self, number: int, n_special: int) -> Iterator[_Shown]:
        """The triggers of a batch, at most `PIECE` at a time."""
        begin, end = int(self.bounds[number]), int(self.bounds[number + 1])
        for at in range(begin, end, PIECE):
            yield self._shown(self.order[at : min(at + PIECE, end)], n_special)

    def _shown(self, which: npt.NDArray[np.int32], n_special: int) -> _Shown:
        windows = self.windows
        cell, number, slot = np.unravel_index(which, (self.cells, len(self.sides), self.run.top))
        units, positions = np.zeros((2, len(which)), np.int64)
        for i, side in enumerate(self.sides):
            here = number == i
            units[here] = side.units[cell[here], slot[here]]
            positions[here] = side.positions[cell[here], slot[here]]
        begin, end = self._spans(units, positions)
        first = self.run.window_start(positions)
        return _Shown(
            row=windows.row[windows.of(units, positions)].astype(np.int64),
            column=n_special + begin - first,
            cell=cell,
            size=np.minimum(end, first + windows.room) - begin,
            place=self.places[which].astype(np.int64),
        )


@dataclass(frozen=True)
class _Sampled:
    """What is counted over the sample."""

    windows: Ints
    counts: npt.NDArray[np.uint32]
    """[cells, BINS]"""
    firing: npt.NDArray[np.uint32]
    """[cells] coefficients above a tenth of the largest"""
    kept: Kept


def _run(
    model: Model,
    windows: _Windows,
    triggers: list[_Triggers],
    number: int,
    members: Ints,
    sampled: _Sampled,
    offsets: Ints,
    shades: npt.NDArray[np.int8],
) -> None:
    """One batch: write its shades to their places, and count the coefficients of sampled windows."""
    import torch

    run = windows.run
    batch = model.batch([windows.tokens(window) for window in members], bos=bool(run.manifest["config"]["bos"]))
    lengths = np.where(np.isin(members, sampled.windows), windows.lengths[members], 0)
    columns = np.arange(batch.ids.shape[1])[None] - batch.n_special
    counted = torch.from_numpy(np.flatnonzero((columns >= 0) & (columns < lengths[:, None])))
    low, high = run.stats.min, run.stats.max

    def sink(site: int, x: torch.Tensor) -> None:
        mine = triggers[site]
        for shown in mine.of_batch(number, batch.n_special):
            first = shown.row * batch.ids.shape[1] + shown.column
            inside = np.arange(int(shown.size.sum())) - np.repeat(np.cumsum(shown.size) - shown.size, shown.size)
            token = torch.from_numpy(np.repeat(first, shown.size) + inside).to(x.device)
            cell = torch.from_numpy(np.repeat(shown.cell, shown.size)).to(x.device)
            factors = torch.from_numpy(np.repeat(mine.factors[shown.cell], shown.size)).to(x.device)
            found = x[token, cell].float().mul_(factors).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
            begin = offsets[mine.site][shown.cell] + shown.place
            shades[np.repeat(begin, shown.size) + inside] = found.cpu().numpy()
        if len(counted):
            signs = torch.from_numpy(mine.signs).to(x.device)
            here = x[counted.to(x.device)].float()
            if run.gated:
                here *= signs
            top = torch.tensor(high[mine.site])
            found = histogram(here, torch.tensor(low[mine.site]), top)
            sampled.counts[mine.site] += found.cpu().numpy().astype(np.uint32)
            above = (here > top.mul(TENTH).to(x.device)).sum(0)
            sampled.firing[mine.site] += above.cpu().numpy().astype(np.uint32)
            sampled.kept.add(number, mine.site, x, signs, batch.ids.shape[1], batch.n_special)

    model.run_every_token(batch.ids, sink)


def histogram(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """How many of each column of x [n, cells] are in each of `BINS` equal parts from low to high: [cells, BINS].

    A number that rounding put outside counts in the nearest bin; if low equals high, all count in the first.
    """
    import torch

    low, high, cells = low.to(x.device), high.to(x.device), x.shape[1]
    scale = torch.where(high > low, BINS / (high - low), 0.0)
    part = torch.addcmul(-low * scale, x, scale).clamp_(0, BINS - 0.5).int()
    part += torch.arange(cells, dtype=torch.int32, device=x.device) * BINS
    return torch.bincount(part.reshape(-1), minlength=cells * BINS).view(cells, BINS)


ANALYSIS = Analysis(
    name="shading",
    question="Which tokens of a trigger make the key fire, and how are a cell's coefficients spread?",
    part=KEYS,
    method="Fills no table. It stores what the explorer needs to shade tokens, to draw histograms, to say how often a key fires and to "
    "show examples below the top, and costs about one more forward pass over the units that hold triggers. A key fires with a prefix "
    "if its coefficient is above a tenth of the cell's largest; how often it does is counted over the seeded sample of prefixes that "
    "the histograms are made of.",
    needs=("model", "seed", "begin"),
    fill=fill,
    is_filled=lambda run: stored.of(run) is not None,
)
