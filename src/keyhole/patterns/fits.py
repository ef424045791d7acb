"""Does what a key waits for fit what its value says? Patterns are about the input; here they are held against the output.

`promoted` is the share of a pattern's matches in held-out text that are followed by one of the tokens the cell's value promotes
most, beside the same share for the tokens of another cell of the layer. `removed` is what the model itself makes of it: how the
log-probability of such a next token changes if the cell's coefficient is set to 0 at the match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from ..analyses.ablation import Picked, silence
from ..analyses.record import Begin
from ..store.patterns import Key, Pattern
from ..store.run import Run
from ..store.values import Values, available
from . import rules
from .text import Text

if TYPE_CHECKING:
    from ..models.model import Model

Ints = npt.NDArray[np.int64]

TOKENS = 10
"""Tokens that a value promotes most."""
MATCHES = 200
"""Matches of a pattern, at most, whose next token is looked at: a random sample."""
SILENCED_KEYS, SILENCED = 20, 10
"""Keys per layer, at most, whose first pattern is tested by switching the cell off, and matches of each: random ones of those that
a promoted token follows."""


def fits(
    run: Run,
    model: Model | None,
    text: Text,
    keys: Mapping[int, Sequence[Key]],
    *,
    seed: int = 0,
    begin: Begin = lambda total: lambda done: None,
) -> dict[int, list[Key]]:
    """The keys, with `promoted`, `promoted_null` and `removed` of their patterns; as they are if the values were not read. Without
    a model, nothing is switched off."""
    lenses = available(run)
    if not lenses:
        return {layer: list(each) for layer, each in keys.items()}
    values = Values(run, lenses[0])
    found: dict[int, list[Key]] = {}
    asked: list[tuple[int, int, Ints]] = []
    for layer, each in sorted(keys.items()):
        random = np.random.default_rng((seed, layer))
        shift = int(random.integers(1, max(2, run.cells.size(layer))))
        found[layer] = []
        followed: list[tuple[int, int, Ints]] = []
        for number, key in enumerate(each):
            other = (key.cell + shift) % run.cells.size(layer)
            own, null = (_said(values, run.cells.place(layer, cell), key.side) for cell in (key.cell, other))
            patterns: list[Pattern] = []
            for pattern in key.patterns:
                matches = _followed(text, rules.where(pattern.rule, text), random)
                hits = np.isin(text.tokens[matches + 1], own)
                if not patterns and hits.any():
                    followed.append((layer, number, matches[hits][:SILENCED]))
                shares = (float(hits.mean()), _share(text, matches, null)) if len(matches) else (None, None)
                patterns.append(msgspec.structs.replace(pattern, promoted=shares[0], promoted_null=shares[1]))
            found[layer].append(msgspec.structs.replace(key, patterns=tuple(patterns)))
        asked += [followed[i] for i in random.permutation(len(followed))[:SILENCED_KEYS]]
    if model is not None:
        _switch_off(run, model, text, found, asked, begin)
    return found


def _said(values: Values, place: int, side: int) -> npt.NDArray[np.int32]:
    """The tokens that a cell promotes most if its coefficient is on one side."""
    return (values.top_tokens if side > 0 else values.bottom_tokens)[place, :TOKENS]


def _followed(text: Text, matches: Ints, random: np.random.Generator) -> Ints:
    """The matches that a token follows in their window, in random order, `MATCHES` at most."""
    inside = matches[matches + 1 < len(text)]
    return random.permutation(inside[text.windows[inside] == text.windows[inside + 1]])[:MATCHES]


def _share(text: Text, matches: Ints, tokens: npt.NDArray[np.int32]) -> float:
    return float(np.isin(text.tokens[matches + 1], tokens).mean())


def _switch_off(
    run: Run,
    model: Model,
    text: Text,
    found: Mapping[int, list[Key]],
    asked: Sequence[tuple[int, int, Ints]],
    begin: Begin,
) -> None:
    """Fill in `removed` of the first pattern of some keys, given the matches that a promoted token follows."""
    from ..lens.head import Head

    if not asked:
        return
    positions = np.concatenate([matches for _, _, matches in asked])
    which = np.repeat(np.arange(len(asked)), [len(matches) for _, _, matches in asked])
    starts = text.starts(positions)
    picked = Picked(
        layer=np.array([layer for layer, _, _ in asked], np.int64)[which],
        cell=np.array([found[layer][number].cell for layer, number, _ in asked], np.int64)[which],
        prefixes=[text.tokens[a : b + 1].tolist() for a, b in zip(starts, positions, strict=True)],
        following=text.tokens[positions + 1].astype(np.int64),
        other=np.full(len(positions), -1, np.int64),
    )
    change = -silence(run, Head(model), picked, begin)[0]
    for i, (layer, number, _) in enumerate(asked):
        key = found[layer][number]
        first = msgspec.structs.replace(key.patterns[0], removed=float(change[which == i].mean()))
        found[layer][number] = msgspec.structs.replace(key, patterns=(first, *key.patterns[1:]))
