"""Runs beside each other: what each is called, and whether a claim comes out differently on another run.

The effect of a claim on this run minus its effect on the other has a 95 % interval made of the two intervals (MOVER, the method
of variance estimates recovery): each end of the difference lies as far from it as the root of the sum of squares of the two
distances that push it there. That takes the two runs as independent. If both were measured on the same prefixes their errors
are alike and partly cancel, so the interval is then wider than necessary: a difference that is found is there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import UsageError
from ..store.run import Run
from . import registry
from .claims import LEVEL
from .measured import Measured
from .record import Effect, Verdict
from .stats import Interval, holm

MOST = 4
"""Runs that are shown beside one: more would not be told apart in a chart."""
Result = Literal["differs", "no clear difference", "cannot be compared"]


@dataclass(frozen=True)
class Compared:
    """A claim of this run, beside the same claim on another."""

    claim: str
    other: Verdict | None
    """None if the other run has no table for it"""
    result: Result
    why: str
    """why it cannot be compared; else empty"""
    difference: Interval | None = None
    """this run's effect minus the other's"""
    adjusted: float | None = None
    """the p of no difference after Holm's correction for the claims that are compared with this other run"""


@dataclass(frozen=True)
class Other:
    """A run that stands beside another."""

    name: str
    """unique among the runs that are shown together"""
    measured: Measured
    claims: dict[str, list[Compared]]
    """by figure, as in `Measured.verdicts`"""

    @property
    def run(self) -> Run:
        return self.measured.run

    @property
    def missing(self) -> list[str]:
        """The tables that are not filled."""
        return [name for name, rows in self.measured.tables.items() if rows is None]


def others(measured: Measured, runs: Sequence[Run]) -> list[Other]:
    """Each of the runs beside the one that was measured."""
    check(measured.run, runs)
    names = labels([measured.run, *runs])[1:]
    found = [Measured.read(run) for run in runs]
    return [Other(name, other, compare_claims(measured, other, name)) for name, other in zip(names, found, strict=True)]


def check(run: Run, runs: Sequence[Run]) -> None:
    """Refuse too many runs, and a run beside itself."""
    if len(runs) > MOST:
        raise UsageError(f"{len(runs)} runs are to be shown beside {run.path}; at most {MOST} can be told apart.")
    seen = {os.path.realpath(run.path)}
    for other in runs:
        where = os.path.realpath(other.path)
        if where in seen:
            raise UsageError(
                f"{other.path} is named twice. A run is shown beside others: a control, another corpus, another model."
            )
        seen.add(where)


# Names


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run by what tells it apart: the model and its control; if another has the same also the corpus, then the
    directory, then a number."""
    told = [_parts(run) for run in runs]
    names = []
    for number, mine in enumerate(told, 1):
        same = [parts for parts in told if parts[:1] == mine[:1]]
        size = next((size for size in (1, 2, 3) if [parts[:size] for parts in same].count(mine[:size]) == 1), 4)
        names.append(" ".join((*mine, f"({number})")[:size]))
    return names


def _parts(run: Run) -> tuple[str, str, str]:
    texts = [Path(str(source)).name or str(source) for source in run.manifest["corpus"]["sources"]]
    return run.model_name, f"on {', '.join(texts)}", f"in {run.path.resolve().name}"


# Claims


def compare_claims(here: Measured, there: Measured, name: str) -> dict[str, list[Compared]]:
    """Every claim that was judged here, beside the same claim there."""
    found: dict[str, list[Compared]] = {}
    tables = {figure.name: analysis.name for analysis, figure in registry.report_order()}
    for figure, verdicts in here.verdicts.items():
        others = there.verdicts.get(figure)
        if others is None:
            filled = there.tables.get(tables[figure]) is not None
            why = f"the table '{tables[figure]}' of {name} is {'empty' if filled else 'not filled'}"
            found[figure] = [Compared(verdict.claim, None, "cannot be compared", why) for verdict in verdicts]
        else:
            found[figure] = [_compared(*pair, name) for pair in zip(verdicts, others, strict=True)]
    _correct(found)
    return found


def _compared(here: Verdict, there: Verdict, name: str) -> Compared:
    for verdict, where in ((here, "here"), (there, f"on {name}")):
        if verdict.outcome == "not applicable":
            return Compared(here.claim, there, "cannot be compared", f"the claim does not apply {where}")
        if verdict.effect is None:
            return Compared(here.claim, there, "cannot be compared", f"there is no effect {where}")
    assert here.effect is not None
    assert there.effect is not None
    between = difference(here.effect, there.effect)
    if between.lo is None:
        without = "here" if here.effect.lo is None or here.effect.hi is None else f"on {name}"
        return Compared(here.claim, there, "cannot be compared", f"the effect has no interval {without}", between)
    return Compared(here.claim, there, "no clear difference", "", between)


def difference(here: Effect, there: Effect) -> Interval:
    """One effect minus another of an independent run, with its 95 % interval (MOVER); without an interval if one has none."""
    value = here.value - there.value
    if here.lo is None or here.hi is None or there.lo is None or there.hi is None:
        return Interval(value)
    below = math.hypot(here.value - here.lo, there.hi - there.value)
    above = math.hypot(here.hi - here.value, there.value - there.lo)
    return Interval(value, value - below, value + above)


def _correct(found: dict[str, list[Compared]]) -> None:
    """Holm's correction over the claims that are compared, in place: a difference that passes it is one."""
    tested = [
        (claims, at, p)
        for claims in found.values()
        for at, each in enumerate(claims)
        if each.difference is not None and (p := Effect(*each.difference).p) is not None
    ]
    for (claims, at, _), adjusted in zip(tested, holm([p for _, _, p in tested]), strict=True):
        result: Result = "differs" if adjusted < LEVEL else "no clear difference"
        claims[at] = replace(claims[at], adjusted=adjusted, result=result)
