"""What `keyhole prune` measured on a run: a row per method and share, what kinds of cells went, and the order of the cells. Read
without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import msgspec.structs
import numpy as np
import numpy.typing as npt

from . import layout, percell
from .run import Run
from .values import unfit

GROUP = "pruning"
GOES = "goes_at"

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One method at one share of cells that go."""

    method: str
    scope: str
    """`uniform`: every layer loses the same share; `global`: cells of all layers are compared"""
    share: float
    gone: int
    parameters: int
    text: str
    """where the text is from that it was measured on"""
    tokens: int
    """tokens of that text"""
    documents: int
    """documents of that text"""
    fitted: int
    """tokens of the text that the choice was made on"""
    seed: int
    basis: str
    """a hash of both texts and of the type that the model ran in: rows with the same can be compared"""
    bias: bool
    """whether a checkpoint of the architecture can hold a bias of its layers: without one refit makes up for less"""
    perplexity_before: float
    perplexity: float
    change: float
    agreement: float
    perplexity_lo: float | None = None
    perplexity_hi: float | None = None
    change_lo: float | None = None
    change_hi: float | None = None
    agreement_lo: float | None = None
    agreement_hi: float | None = None
    over_flap: float | None = None
    """FLAP's mean −log p minus this method's, on the same tokens, in nats per token; None if FLAP was not measured beside it"""
    over_flap_lo: float | None = None
    over_flap_hi: float | None = None
    faster: float | None = None
    """tokens per second after ÷ before; None if no model was written"""
    folder: str | None = None
    """the last part of the name of the folder that was written"""

    @property
    def key(self) -> tuple[Any, ...]:
        """What it was measured of: a later row of the same takes its place."""
        return (self.method, self.scope, self.share, self.basis, self.seed)


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many cells of one kind a method took."""

    method: str
    scope: str
    share: float
    text: str
    fitted: int
    seed: int
    basis: str
    kind: str
    cells: int
    gone: int

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.method, self.scope, self.share, self.basis, self.seed, self.kind)


class Pruning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[Row]
    kinds: list[Gone]
    method: str | None = None
    """of the order of the cells, and whether layers share it"""
    scope: str | None = None
    arrays: list[str] = []


def of(run: Run) -> Pruning | None:
    """What was measured; None if nothing was."""
    settings = layout.read_cells(run.path, GROUP)
    if settings is None:
        return None
    try:
        return msgspec.convert(settings, Pruning)
    except msgspec.ValidationError as error:
        raise unfit(run, layout.analyses_file(run.path).name, f"its pruning is damaged ({error})") from None


SAME = ("basis", "seed", "scope")


def latest(rows: Sequence[T], same: Sequence[str] = SAME) -> list[T]:
    """The rows that can be compared with the newest one, which is the last: chosen and measured on the same texts, in the same type, with
    the same seed and scope."""
    return [row for row in rows if all(_field(row, name) == _field(rows[-1], name) for name in same)]


def _field(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, dict) else getattr(row, name)


def goes_at(run: Run) -> npt.NDArray[np.float32] | None:
    """[cells] the share of the cells that are gone when this one goes, by the order of the last method: small goes first."""
    return percell.numbers(run, GROUP, GOES)


def save(run: Run, found: Pruning, goes: npt.NDArray[np.float32] | None) -> None:
    """Add rows to those that are there, the new ones at the end. What a row does not know (the speed, if nothing was written), the
    one whose place it takes says, if it is of the same model. Without an order, the one that is there stays."""
    before = of(run)
    known = {row.key: row for row in before.rows} if before else {}
    for row in found.rows:
        replaced = known.pop(row.key, row)
        replaced = replaced if replaced.perplexity == row.perplexity else row
        unknown = {name: getattr(replaced, name) for name in row.__struct_fields__ if getattr(row, name) is None}
        known[row.key] = msgspec.structs.replace(row, **unknown)
    kinds = {each.key: each for each in (before.kinds if before else [])}
    for one in found.kinds:
        kinds.pop(one.key, None)
        kinds[one.key] = one
    method, scope = found.method, found.scope
    if goes is None and before is not None and (there := goes_at(run)) is not None:
        goes, method, scope = np.array(there), before.method, before.scope
    settings = msgspec.to_builtins(Pruning(list(known.values()), list(kinds.values()), method, scope))
    percell.save(run, GROUP, settings, {} if goes is None else {GOES: goes})
