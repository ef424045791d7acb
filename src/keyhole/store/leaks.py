"""What `keyhole leak` found: text that the model says by heart, and the cells it is in. It is read without a model.

Everything is in one file, `leaks.json`. Cells are places on the axis of cells.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ..common.files import read_small, replace_bytes
from ..errors import RunDamaged, UsageError
from . import layout
from .run import Run

GROUP = "leaks"
FILE = "leaks.json"
LARGEST_FILE = 1 << 28


class Leak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that the model says, or a line that it was asked for. Log-probabilities are in nats."""

    source: str
    """`text`: found in the text; `secrets`: a line of the list"""
    prefix: str
    continuation: str
    tokens: int
    """of the continuation"""
    extracted: int
    """how many of them greedy decoding gives exactly"""
    repeats: int
    """places of the text where exactly the continuation stands"""
    log_prob: float
    control_log_prob: float | None = None
    near_log_prob: float | None = None
    near: int | None = None
    copies: int | None = None
    exposure: float | None = None
    """in bits"""
    highest: float | None = None
    """the largest exposure that so many candidates can show"""


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much leaks of the text that stands `times` to 2·`times` − 1 times."""

    times: int
    tokens: int
    leaked: int
    documents: int
    rate: float
    lo: float | None = None
    hi: float | None = None


class Tested(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ranking of the cells for one leak, tested by switching off its first ones."""

    rank: int
    """of the leak, from 1"""
    method: str
    cells: list[int]
    exact: list[float]
    """share of the text that is left, per number of cells; the same before, and after other texts, is in the next ones"""
    before: float
    order: list[int]
    """the ranking's first cells: as many as are needed, or `KEPT`"""
    n90: int | None = None
    others_before: float | None = None
    others_after: float | None = None
    others_forgotten: float | None = None
    change: float | None = None
    change_lo: float | None = None
    change_hi: float | None = None
    elsewhere: list[float] = []
    elsewhere_before: float | None = None

    def harmless(self) -> bool:
        """Whether its cells take the text and little else, as far as that was measured: n90 is known, at most `COST` of perplexity, under
        `FORGOTTEN` of the other leaks."""
        return (
            self.n90 is not None
            and (self.change is None or self.change <= COST)
            and (self.others_forgotten is None or self.others_forgotten < FORGOTTEN)
        )


class Leaks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    leaks: list[Leak]
    """by rank, those of the text first"""
    tested: list[Tested]
    rates: list[Rate]
    """by `times`"""
    facts: dict[str, float | int | str | None]
    """what was read, and how: see the facts of the table `leaks`"""

    def best(self, rank: int) -> Tested | None:
        """The test of a leak with the smallest n90, of those that do little else; None if there is none."""
        good = [each for each in self.tested if each.rank == rank and each.method != "random" and each.harmless()]
        return min(good, key=lambda each: each.n90 or 0, default=None)


KEPT = 256
COST, FORGOTTEN = 0.01, 0.1


def of(run: Run) -> Leaks | None:
    """The leaks of a run; None if `keyhole leak` was not run."""
    kept = vars(run)  # as cached_property does
    if "_leaks" in kept:
        known: Leaks = kept["_leaks"]
        return known
    if GROUP not in layout.analyses(run.path):
        return None
    found: Leaks = kept.setdefault("_leaks", _read(run))
    return found


def save(run: Run, found: Leaks, settings: dict[str, Any]) -> None:
    """Store leaks in place of what there was."""
    with layout.locked(run.path), layout.writing_analyses(run.path):
        layout.drop_group(run.path, GROUP)
        replace_bytes(run.path / FILE, msgspec.json.encode(found))
        layout.save_group(run.path, GROUP, settings, [FILE])
    vars(run).pop("_leaks", None)


def cells_of(run: Run, rank: int) -> list[int]:
    """The places of the cells that, switched off, make the model forget the leak of that rank: the n90 cells of its best ranking."""
    found = of(run)
    if found is None:
        raise UsageError(f"No leaks are stored in {run.path}. Look for them: keyhole leak {run.path}")
    if not 1 <= rank <= len(found.leaks):
        raise UsageError(
            f"There is no leak {rank}: {run.path} has {len(found.leaks)}. List them: keyhole table {run.path} leaks"
        )
    best = found.best(rank)
    if best is None:
        tested = [each for each in found.tested if each.rank == rank]
        known = any(each.n90 is not None for each in tested)
        why = (
            "its cells were not looked for"
            if not tested
            else "the cells without which it is forgotten hold much else too"
            if known
            else "it is in no small set of cells"
        )
        raise UsageError(f"Leak {rank} has no cells: {why}. Those of more leaks: keyhole leak {run.path} --localise N")
    return best.order[: best.n90]


def _read(run: Run) -> Leaks:
    file = run.path / FILE
    advice = f"Make it again: keyhole leak {run.path}"
    if not os.path.lexists(file) or file.is_symlink():
        raise RunDamaged(f"{file} is missing, or a symbolic link. {advice}")
    try:
        found = msgspec.json.decode(read_small(file, LARGEST_FILE), type=Leaks)
    except (OSError, ValueError, RecursionError) as error:
        raise RunDamaged(f"{file} cannot be read: {error}. {advice}") from None
    for each in found.tested:
        wrong = (
            not 1 <= each.rank <= len(found.leaks)
            or len(each.cells) != len(each.exact)
            or (each.elsewhere and (len(each.cells) != len(each.elsewhere) or each.elsewhere_before is None))
            or any(not 0 <= place < len(run.cells) for place in each.order)
            or (each.n90 is not None and not 0 < each.n90 <= len(each.order))
        )
        if wrong:
            raise RunDamaged(
                f"{file} is not of this run: its test of leak {each.rank} by {each.method} does not fit. {advice}"
            )
    return found
