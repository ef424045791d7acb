"""The patterns of a cell as text: its rules, how many triggers carry them, and how well they predict where the key fires."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..analyses.claims import percent
from ..store import patterns
from ..store.patterns import Key, Pattern
from ..store.run import Cell, Run
from .text import number, other_side, significant

DROPPED = 4
"""Tokens, from the last one back, of which is shown what dropping them does."""

LOOKUPS = (("last-token lookup", "last_token"), ("bigram lookup", "bigram"))
"""The baselines that are shown beside rules."""
RARELY = "(of the 99th percentile)"
"""Said of the AUPRC of a key that fires too rarely in the held-out text for one of the 99.9th."""


class Line(NamedTuple):
    """One pattern."""

    number: int
    """its place in the key's list, from 1"""
    description: str
    kind: str
    measured: str
    """`21 of 25 · lift 310 · q 0.01 · AUPRC 0.81`"""


class Side(NamedTuple):
    """The patterns of one side of a cell; without lines, `said` tells why there are none."""

    title: str
    said: str
    """how well all rules together predict, beside the lookups"""
    lines: list[Line]
    carried: dict[int, str]
    """by the number of a trigger, from 0: the patterns it carries, as `1 3`"""
    negative: bool


def of_cell(cell: Cell) -> list[Side]:
    """The sides of a cell that were looked at; nothing if the run has no patterns."""
    found = patterns.of(cell.run)
    if found is None:
        return []
    keys = {side: key for side in (1, -1) if (key := found.key(cell.place, side)) is not None}
    if not keys:
        return [Side("patterns", "this key was not looked at", [], {}, False)]
    return [_side(cell.run, key) for key in keys.values()]


def _side(run: Run, key: Key) -> Side:
    negative = key.side < 0
    title = f"patterns of {other_side(run)}" if negative else "patterns"
    if not key.patterns:
        what = f"none was found in its {key.read} triggers" if key.read else "it has no triggers"
        return Side(title, what, [], {}, negative)
    carried: dict[int, list[str]] = {}
    for rank, pattern in enumerate(key.patterns, 1):
        for trigger in pattern.triggers:
            carried.setdefault(trigger, []).append(str(rank))
    lines = [Line(rank, each.description, each.kind, _measured(key, each)) for rank, each in enumerate(key.patterns, 1)]
    return Side(title, _scored(key), lines, {at: " ".join(ranks) for at, ranks in carried.items()}, negative)


def _measured(key: Key, pattern: Pattern) -> str:
    said = [f"{len(pattern.triggers)} of {key.read}", f"lift {significant(pattern.lift)}"]
    said.append(f"q {significant(pattern.q_value)}")
    if pattern.auprc is not None:
        said.append(f"AUPRC {number(pattern.auprc, '.2f')}")
    if pattern.promoted is not None:
        null = "" if pattern.promoted_null is None else f" (another cell: {percent(pattern.promoted_null)})"
        said.append(f"the value promotes the next token at {percent(pattern.promoted)} of its matches{null}")
    return " · ".join(said)


def _scored(key: Key) -> str:
    """How well the rules predict together, and what the key needs."""
    said = []
    measure = "auprc" if _score(key, "rules", "auprc") is not None else "auprc_99"
    if (rules := _score(key, "rules", measure)) is not None:
        own, what = key.scores["rules"], "AUPRC" if measure == "auprc" else f"AUPRC {RARELY}"
        known = measure == "auprc" and own.lo is not None and own.hi is not None
        said.append(f"all rules together: {what} {rules:.2f}" + (f" ({own.lo:.2f} to {own.hi:.2f})" if known else ""))
        for name, method in LOOKUPS:
            if (value := _score(key, method, measure)) is not None:
                said.append(f"{name} {value:.2f}")
        if own.f1 is not None:
            said.append(f"F1 {own.f1:.2f}")
    told = ", ".join(said) or "not scored"
    if key.needs:
        names = ("the last token", "the one before", *(f"{back} before" for back in range(2, DROPPED)))
        falls = ", ".join(f"{name} {percent(-fall)}" for name, fall in zip(names, key.needs, strict=False))
        told += f"; change of the coefficient if a token is dropped: {falls}"
    return told


def _score(key: Key, method: str, measure: str) -> float | None:
    found: float | None = getattr(key.scores.get(method), measure, None)
    return found


def labels(run: Run, cells: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The labels of cells that have one, by layer and number in the layer; nothing if the run has no patterns."""
    found = patterns.of(run)
    if found is None:
        return {}
    return {at: label for at in cells if (label := found.label(run.cells.place(*at))) is not None}


def summary(run: Run) -> str | None:
    """How many keys were looked at, how many have a pattern, and how well rules predict; None if the run has no patterns."""
    found = patterns.of(run)
    if found is None:
        return None
    keys = [key for _, key in found if key.side == 1]
    if not keys:
        return "no key was looked at"
    cells = found.settings.get("cells")
    per = "all" if cells == "all" else f"{cells} per layer"
    share = percent(sum(bool(key.patterns) for key in keys) / len(keys))
    said = f"{len(keys):,} key{'s' * (len(keys) != 1)} looked at ({per}), {share} with a pattern"
    measure = "auprc" if any(_score(key, "rules", "auprc") is not None for key in keys) else "auprc_99"
    means = []
    for name, method in ((f"mean AUPRC{'' if measure == 'auprc' else f' {RARELY}'}", "rules"), *LOOKUPS):
        known = [value for key in keys if (value := _score(key, method, measure)) is not None]
        means += [f"{name} {np.mean(known):.2f}"] if known else []
    return ", ".join([said, *means]) if means else f"{said}, not scored"
