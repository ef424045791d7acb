"""Score keys' rules on held-out text, beside every baseline: the coefficients of the keys' cells at all of its positions against
what the rules, which never see the model, say of each position.

Coefficients are kept as they are computed, in one forward pass if the memory allows it, else in several, each for some of the
cells. Everything else is computed from them per key: which positions fire, the curves of all methods, and these curves without
each group of documents, so that the difference of two methods has an interval that knows they were measured on the same text.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..analyses.claims import effect_facts
from ..analyses.record import Begin, Fact
from ..analyses.stats import thirds
from ..store.patterns import METHODS, Key, Pattern, Score
from ..store.run import Run
from . import rules
from .baselines import Baselines, Lookup
from .passing import observe
from .scores import (
    FEWEST_FIRING,
    HEADLINE,
    WIDER,
    Groups,
    Matches,
    Ranked,
    deal,
    f1,
    firing,
    jackknife,
    mean_over_keys,
    most_firing,
    pearson,
    rank_matches,
    rank_scores,
    rank_types,
)
from .text import Text

if TYPE_CHECKING:
    import torch

    from ..models.model import Model

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Keys = Mapping[int, Sequence[Key]]
"""Per layer, keys."""
Rivals = Mapping[str, Mapping[int, Sequence[Key | None]]]
"""By method and layer, keys that take the place of others; None for those that have none."""

CPU_BYTES = 3 << 30
"""Memory for the coefficients of one pass, at most, if the model is on the CPU."""
GPU_SHARE = 0.6
"""The same on a GPU, as a share of its free memory."""
BLOCK = 64
"""Keys of a layer whose firing positions are found together."""
LOOKUPS: tuple[Lookup, ...] = ("last_token", "bigram")
PARTS = ("lower", "middle", "upper")
"""The parts of the depth: the first third of the layers, the last, and those between."""


def score(
    run: Run,
    model: Model,
    text: Text,
    keys: Keys,
    *,
    learned: Baselines | None = None,
    rivals: Rivals | None = None,
    seed: int = 0,
    begin: Begin = lambda total: lambda done: None,
) -> tuple[dict[int, list[Key]], dict[str, Fact]]:
    """The keys with their scores and those of their patterns, and facts about all of them.

    `learned`: lookups and neighbours, for the cells it has. `rivals`: per method, keys in the order of `keys` whose rules are
    scored on these keys' coefficients. A key that fires at fewer than `FEWEST_FIRING` positions has no numbers, by any method.
    """
    if learned is not None and not np.array_equal(learned.held.tokens, text.tokens):
        raise ValueError("The baselines were made for another held-out text.")
    for method, theirs in (rivals or {}).items():
        if wrong := [layer for layer, each in theirs.items() if len(each) != len(keys.get(layer, ()))]:
            raise ValueError(f"The keys of '{method}' in layer {wrong[0]} are not as many as those that are scored.")
    scoring = _Scoring(run, text, keys, learned, rivals or {}, seed)
    if learned is not None:
        learned.find_neighbours(model.lm.get_input_embeddings().weight)
    wanted = {layer: np.unique([key.cell for key in each]).astype(np.int64) for layer, each in keys.items() if each}
    passes = _passes(wanted, len(text) * model.dtype.itemsize, _room(model))
    advance = begin((len(passes) + 1) * len(text))
    for cells in passes:
        kept = _keep(run, model, text, cells, advance)
        for layer, each in cells.items():
            scoring.of_layer(layer, each, kept.pop(layer))
        advance(len(text) // len(passes))
    return scoring.finished(), scoring.facts() | {"passes": len(passes)}


# The pass


def _room(model: Model) -> int:
    import torch

    return int(torch.cuda.mem_get_info(model.device)[0] * GPU_SHARE) if model.device.type == "cuda" else CPU_BYTES


def _passes(wanted: Mapping[int, Ints], bytes_per_cell: int, room: int) -> list[dict[int, Ints]]:
    """The cells of each pass: as many as their coefficients fit into memory."""
    most = max(1, room // max(1, bytes_per_cell))
    flat = [(layer, cell) for layer in sorted(wanted) for cell in wanted[layer].tolist()]
    number = math.ceil(len(flat) / most)
    found = []
    for part in np.array_split(np.array(flat, np.int64).reshape(-1, 2), number) if number else []:
        found.append({int(layer): part[part[:, 0] == layer, 1] for layer in np.unique(part[:, 0])})
    return found


def _keep(
    run: Run, model: Model, text: Text, cells: Mapping[int, Ints], advance: Callable[[int], None]
) -> dict[int, torch.Tensor]:
    """Per layer, the coefficients [positions, cells], in the precision they were computed in: that of the values they are multiplied
    with. So no two become equal that were not."""
    import torch

    kept = {
        layer: torch.empty(len(text), len(each), dtype=model.dtype, device=model.device)
        for layer, each in cells.items()
    }

    def take(layer: int, positions: Ints, x: torch.Tensor) -> None:
        kept[layer][torch.from_numpy(positions).to(model.device)] = x.to(model.device, model.dtype)

    observe(run, model, text, cells, take, advance=advance)
    return kept


# One key


@dataclass(frozen=True)
class Observed:
    """The coefficients of a key at all positions, on its own side, and where it fires."""

    m: npt.NDArray[np.float32]
    total: float
    squares: float
    fires: Ints
    """above the 99.9th percentile"""
    wider: Ints
    """above the 99th"""
    groups: Groups
    whole: Groups
    """the whole text as one group: for numbers without an interval"""

    @property
    def alive(self) -> bool:
        return len(self.fires) >= FEWEST_FIRING

    def correlation(self, positions: Ints | slice, scores: npt.NDArray[Any]) -> float:
        return pearson(scores, self.m[positions], len(self.m), self.total, self.squares)

    def matched(self, found: Matches, threshold: float) -> tuple[Score, Ranked | None]:
        """Of rules: everything is known from the positions that they match. Those with a score of at least the threshold are
        predicted to fire."""
        if len(self.wider) < FEWEST_FIRING:
            return Score(), None
        ranked = rank_matches(found, self.fires, self.groups) if self.alive else None
        return Score(
            auprc=None if ranked is None else ranked.average_precision,
            auprc_99=rank_matches(found, self.wider, self.whole).average_precision,
            f1=f1(found.positions[found.scores >= threshold], self.fires) if self.alive else None,
            pearson=self.correlation(found.positions, found.scores),
        ), ranked

    def alone(self, pattern: Pattern, found: Matches) -> Pattern:
        """One pattern as if it were the key's only one: it is predicted to fire where the pattern matches."""
        if not self.alive:
            return pattern
        return msgspec.structs.replace(
            pattern,
            auprc=rank_matches(found, self.fires, self.whole).average_precision,
            f1=f1(found.positions, self.fires),
            pearson=self.correlation(found.positions, found.scores),
        )

    def looked_up(self, lookup: _Types, scores: npt.NDArray[Any]) -> tuple[Score, Ranked | None]:
        """Of a lookup: a score per type."""
        if len(self.wider) < FEWEST_FIRING:
            return Score(), None
        ranked = rank_types(scores, lookup.counts, lookup.of, self.fires, self.groups) if self.alive else None
        wider = rank_types(scores, lookup.counts.sum(0, keepdims=True), lookup.of, self.wider, self.whole)
        return Score(
            auprc=None if ranked is None else ranked.average_precision,
            auprc_99=wider.average_precision,
            pearson=self.correlation(slice(None), scores[lookup.of]),
        ), ranked


def _one(positions: int) -> Groups:
    """All documents as one group: for numbers without an interval."""
    return Groups(np.zeros(positions, np.int16), np.array([positions]))


@dataclass(frozen=True)
class _Types:
    of: Ints
    """[positions] the type of each"""
    counts: Ints
    """[groups, types] positions"""


@dataclass(frozen=True)
class _Part:
    """The part of the text that neighbours were looked for in."""

    positions: Ints
    groups: Groups

    def rows(self, positions: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Where positions are in the part, and which of them are in it."""
        at = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        inside = self.positions[at] == positions
        return at[inside], inside


# All keys


class _Scoring:
    """What is collected while the keys are scored."""

    def __init__(self, run: Run, text: Text, keys: Keys, learned: Baselines | None, rivals: Rivals, seed: int) -> None:
        self.run, self.text, self.keys, self.learned, self.rivals = run, text, keys, learned, rivals
        self.groups = deal(text, seed)
        self.scored: dict[int, dict[int, Key]] = {layer: {} for layer in keys}
        """by layer and number among the keys"""
        random = np.random.default_rng((seed, 1))
        self.shifts = {layer: int(random.integers(1, max(2, len(keys[layer])))) for layer in sorted(keys)}
        self.differences: dict[str, list[tuple[int, float, Floats]]] = {}
        """by baseline: layer, AUPRC of the rules minus that of the baseline, the same without each group"""
        self.lookups: dict[Lookup, _Types] = {}
        self.part: _Part | None = None
        if learned is not None:
            for name in LOOKUPS:
                types = learned.types[name]
                counts = [np.bincount(types.held[self.groups.of == g], minlength=len(types.seen)) for g in self._all]
                self.lookups[name] = _Types(types.held, np.stack(counts))
            self.part = _Part(learned.asked, self.groups.part(learned.asked))

    @property
    def _all(self) -> range:
        return range(len(self.groups))

    def of_layer(self, layer: int, cells: Ints, x: torch.Tensor) -> None:
        """Score the keys of some cells of a layer, given their coefficients [positions, cells]."""
        keys = self.keys[layer]
        said = _Said(self, layer)
        numbers = np.flatnonzero(np.isin([key.cell for key in keys], cells))
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy lets other threads run while it works
            for begin in range(0, len(numbers), BLOCK):
                block = numbers[begin : begin + BLOCK].tolist()
                columns = np.searchsorted(cells, [keys[i].cell for i in block])
                seen = observed(x, columns, [keys[i].side for i in block], self.groups)
                one = partial(self._one_key, layer, said)
                for number, (key, differences) in zip(block, pool.map(one, block, seen), strict=True):
                    self.scored[layer][number] = key
                    for method, each in differences.items():
                        self.differences.setdefault(method, []).append((layer, *each))

    def _one_key(
        self, layer: int, said: _Said, number: int, seen: Observed
    ) -> tuple[Key, dict[str, tuple[float, Floats]]]:
        """A key with its scores and, by baseline, how much larger the AUPRC of its rules is: with all documents, and without each
        group."""
        key = self.keys[layer][number]
        differences: dict[str, tuple[float, Floats]] = {}
        own = said.fired(number)
        mine, ranked = seen.matched(_matches(own), key.threshold)
        if ranked is not None and mine.auprc is not None:
            interval = jackknife(mine.auprc, ranked.replicates)
            mine = msgspec.structs.replace(mine, lo=interval.lo, hi=interval.hi)
        scores = {"rules": mine}

        def add(method: str, found: tuple[Score, Ranked | None], rule: Ranked | None = ranked) -> None:
            scores[method] = found[0]
            if key.side == 1 and rule is not None and found[1] is not None:
                values = [each.average_precision for each in (rule, found[1])]
                differences[method] = values[0] - values[1], rule.replicates - found[1].replicates

        add("list", seen.matched(_by_list(key, own), 0.0))
        column = said.column(key.cell)
        if column is not None:
            for name in LOOKUPS:
                add(name, seen.looked_up(self.lookups[name], key.side * said.lookups[name][:, column]))
            add("neighbour", *self._neighbour(seen, key.side * said.neighbour[:, column], _matches(own)))
        if len(self.keys[layer]) > 1:
            other = (number + self.shifts[layer]) % len(self.keys[layer])
            add("other", seen.matched(_matches(said.fired(other)), self.keys[layer][other].threshold))
        for method, rivals in self.rivals.items():
            rival = rivals[layer][number] if layer in rivals else None
            if rival is not None:
                add(method, seen.matched(_matches(rules.fire(rival, self.text)), rival.threshold))
        patterns = tuple(
            seen.alone(pattern, _matches(rules.alone(key, i, self.text, own))) for i, pattern in enumerate(key.patterns)
        )
        return msgspec.structs.replace(key, scores=scores, patterns=patterns), differences

    def _neighbour(
        self, seen: Observed, predicted: npt.NDArray[Any], own: Matches
    ) -> tuple[tuple[Score, Ranked | None], Ranked | None]:
        """The score of the neighbours' mean, and the curve of the rules on the same part of the text."""
        assert self.part is not None
        part = self.part
        fires, wider = (part.rows(each)[0] for each in (seen.fires, seen.wider))
        if len(wider) < FEWEST_FIRING:
            return (Score(), None), None
        m = seen.m[part.positions].astype(np.float64)
        alive = seen.alive and len(fires) >= FEWEST_FIRING
        ranked = rank_scores(predicted, fires, part.groups) if alive else None
        rows, inside = part.rows(own.positions)
        rule = rank_matches(Matches(rows, own.scores[inside]), fires, part.groups) if alive else None
        found = Score(
            auprc=None if ranked is None else ranked.average_precision,
            auprc_99=rank_scores(predicted, wider, _one(len(m))).average_precision,
            pearson=pearson(predicted, m, len(m), float(m.sum()), float(m @ m)),
        )
        return (found, ranked), rule

    def finished(self) -> dict[int, list[Key]]:
        return {layer: [found[number] for number in range(len(found))] for layer, found in self.scored.items()}

    def facts(self) -> dict[str, Fact]:
        """What claims rest on. Only the cells' own triggers count here, not the other side."""
        first = [key for each in self.finished().values() for key in each if key.side == 1]
        found: dict[str, Fact] = {
            "positions": len(self.text),
            "documents": len(np.unique(self.text.documents)),
            "groups": len(self.groups),
            "keys": len(first),
            "scored": sum(key.scores["rules"].auprc is not None for key in first),
        }
        for method in METHODS[1:]:
            for part, layers in ("", range(self.run.layers)), *self._parts():
                here = [each for each in self.differences.get(method, []) if each[0] in layers]
                values = np.array([value for _, value, _ in here])
                without = np.stack([each for _, _, each in here]) if here else np.empty((0, 0))
                name = f"over_{method}_{part}" if part else f"over_{method}"
                found |= effect_facts(name, mean_over_keys(values, without))
        return found

    def _parts(self) -> list[tuple[str, range]]:
        low, high = thirds(self.run.layers)
        bounds = (0, low.stop), (low.stop, high.start), (high.start, high.stop)
        return [(name, range(*each)) for name, each in zip(PARTS, bounds, strict=True)]


class _Said:
    """What rules and lookups say of the keys of a layer. Each is asked once."""

    def __init__(self, scoring: _Scoring, layer: int) -> None:
        self.scoring, self.layer = scoring, layer
        self._fired: dict[int, rules.Fired] = {}
        learned = scoring.learned if scoring.learned is not None and layer in scoring.learned.cells else None
        self.lookups = {name: learned.lookup(layer, name) for name in LOOKUPS} if learned else {}
        self.neighbour = learned.neighbour(layer) if learned else np.empty((0, 0), np.float32)

    def fired(self, number: int) -> rules.Fired:
        """Where the rules of a key match."""
        if number not in self._fired:
            self._fired[number] = rules.fire(self.scoring.keys[self.layer][number], self.scoring.text)
        return self._fired[number]

    def column(self, cell: int) -> int | None:
        """The column of a cell in what was learned; None if nothing was learned of it."""
        learned = self.scoring.learned
        cells = np.empty(0) if learned is None else learned.cells.get(self.layer, np.empty(0))
        at = int(np.searchsorted(cells, cell))
        return at if at < len(cells) and cells[at] == cell else None


def _matches(fired: rules.Fired) -> Matches:
    return Matches(fired.positions, fired.scores)


def _by_list(key: Key, fired: rules.Fired) -> Matches:
    """What the patterns say without evidence: a position has the share of firing positions of the first one that matches."""
    shares = np.array([each.hits / max(1, each.matches) for each in key.patterns])
    inside = fired.pattern >= 0
    return Matches(fired.positions[inside], shares[fired.pattern[inside]])


def observed(x: torch.Tensor, columns: Ints, sides: Sequence[int], groups: Groups) -> list[Observed]:
    """Of columns of coefficients [positions, cells], each read on one side: the positions at which they fire, and their sums."""
    import torch

    whole = _one(len(x))
    at, signs = torch.from_numpy(columns).to(x.device), torch.tensor(sides, device=x.device)
    m = (x[:, at].float() * signs).T.contiguous()
    n = m.shape[1]
    strongest = m.topk(min(n, most_firing(n, WIDER) + 1), 1)
    values, places = strongest.values.cpu().numpy(), strongest.indices.cpu().numpy()
    totals = m.sum(1, dtype=torch.float64).tolist()
    squares = torch.linalg.vector_norm(m, dim=1, dtype=torch.float64).square().tolist()
    return [
        Observed(
            row,
            total,
            square,
            firing(value, place, n, HEADLINE),
            firing(value, place, n, WIDER),
            groups,
            whole,
        )
        for row, value, place, total, square in zip(m.cpu().numpy(), values, places, totals, squares, strict=True)
    ]
