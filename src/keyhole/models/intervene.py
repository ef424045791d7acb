"""Interventions: a model that runs with edits, for a while or for good.

`edits` says what an edit is. A scale acts through a hook before the down-projection, so all taps of the model see the edited
coefficients. A changed value acts in the weights: the rows are replaced in place, so that everything that reads `Model.values`
meanwhile has the values that act, and afterwards they are restored bit for bit. What the weights' type cannot hold is rounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UsageError
from .edits import (
    Edit,
    Sorted,
    check,
    dump,
    fingerprint,
    parse,
    read_edits,
    sort_out,
    spread,
    token_of,
    unpack,
)
from .sites import locate
from .taps import Replace, Taps, hooks, tapped

if TYPE_CHECKING:
    from .model import Model

__all__ = [
    "Edit",
    "Sorted",
    "applied",
    "applied_by_row",
    "apply",
    "check",
    "dump",
    "fingerprint",
    "new_value",
    "parse",
    "read_edits",
    "sort_out",
    "spread",
    "unpack",
    "values_changed",
]


@contextlib.contextmanager
def applied(model: Model, edits: Iterable[Edit], n_special: int | None = None) -> Iterator[None]:
    """Run the model edited, inside the `with`; afterwards, also after an error, it is as before.

    `n_special` special tokens are before a sequence's own. If it is None, a sequence has one if it begins with the model's
    start token, else none. The model belongs to this thread meanwhile.
    """
    edits = list(edits)
    with model.lock, contextlib.ExitStack() as stack:
        edits = check(edits, model)  # of the model as it is now: another thread may have held it edited
        stack.callback(setattr, model, "edits", model.edits)
        stack.enter_context(tapped(model, _taps(model, edits, n_special)))
        stack.enter_context(values_changed(model, edits))
        model.edits = (*model.edits, *edits)  # a scan meanwhile is one of the edited model, and its manifest says so
        yield


@contextlib.contextmanager
def applied_by_row(model: Model, rows: Sequence[Sequence[Edit]], n_special: int | None = None) -> Iterator[None]:
    """Like `applied`, but each row of a batch has edits of its own: the batches inside the `with` have as many rows. Inside
    another `applied`, both act."""
    every = [check(edits, model) for edits in rows]
    if changed := next((edit for edits in every for edit in edits if edit.changes_value), None):
        raise UsageError(
            f"The value of {changed.address} cannot be changed for one row of a batch: the rows share the weights. Use `applied`."
        )
    with tapped(model, _taps(model, [edit for edits in every for edit in edits], n_special, every)):
        yield


def apply(model: Model, edits: Iterable[Edit]) -> None:
    """Edit a model permanently, in addition to the edits it has."""
    every = check([*model.edits, *edits], model)
    new = every[len(model.edits) :]
    with model.lock:
        wanted, rows = hooks(model, _taps(model, new, None)), _new_rows(model, new)
        _put(rows)
        for hook in wanted:
            hook.register()
        model.edits = tuple(every)


# Values


@contextlib.contextmanager
def values_changed(model: Model, edits: Iterable[Edit]) -> Iterator[None]:
    """The part of `applied` that acts on the weights: the edits' new values, inside the `with`. It is for reading `Model.values`;
    coefficients are not scaled. The model belongs to this thread meanwhile."""
    edits = [edit for edit in edits if edit.changes_value]
    if not edits:
        yield
        return
    with model.lock:
        rows = _new_rows(model, edits)
        before = [(row, row.clone()) for row, _ in rows]
        try:
            _put(rows)
            yield
        finally:
            _put(before)


def new_value(model: Model, edit: Edit) -> Tensor:
    """[model] the value of the edit's cell after the edit, float32, its scale left out."""
    value = _row(model, edit).float()
    if edit.value is not None:
        return torch.tensor(edit.value, dtype=torch.float32, device=value.device)
    if edit.towards is None or edit.by is None:
        return value
    along = model.promoting(edit.layer, token_of(edit, model))
    moved: Tensor = value + edit.by * value.norm() * along.to(value.device)
    return moved


def _row(model: Model, edit: Edit) -> Tensor:
    """A cell's value, as a view of the weight."""
    site, cell = locate(model.sites, edit.layer, edit.cell)
    return model.sites[site].values[cell]


def _new_rows(model: Model, edits: Iterable[Edit]) -> list[tuple[Tensor, Tensor]]:
    """Views of the weights that edits change, each with what is to be there."""
    edits = [edit for edit in edits if edit.changes_value]
    if not edits:
        return []
    if model.tap is not None:
        raise UsageError(
            f"The blocks of {model.source} are compiled, so its values cannot be changed now. Leave the compiled scan first."
        )
    model.weights_fingerprint  # noqa: B018 - it is computed once, and it is that of the unedited weights
    found = []
    for edit in edits:
        row = _row(model, edit)
        new = new_value(model, edit).to(row.dtype)
        if not bool(torch.isfinite(new).all()):
            kind = str(row.dtype).removeprefix("torch.")
            raise UsageError(f"The new value of {edit.address} has numbers that {kind} cannot hold. Use smaller ones.")
        found.append((row, new))
    return found


@torch.no_grad()
def _put(rows: Iterable[tuple[Tensor, Tensor]]) -> None:
    for row, new in rows:
        row.copy_(new)


# Coefficients


class _Sequences:
    """The batch that is running: which position of its text each token has."""

    def __init__(self, model: Model, n_special: int | None) -> None:
        self.model, self.n_special = model, n_special
        self.shape: tuple[int, int] | None = None
        self.cached = 0
        """tokens of each sequence that an earlier call ran (they are in its cache)"""
        self.special: Tensor | int = 0
        """special tokens before each sequence's own"""

    def look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what the model is called with. Some architectures give their feed-forward layers all tokens in one row, so the
        coefficients do not show the shape of the batch."""
        ids = args[0] if args else kwargs.get("input_ids")
        tokens = kwargs["inputs_embeds"] if ids is None else ids
        self.shape = (tokens.shape[0], tokens.shape[1])
        cache = kwargs.get("past_key_values")
        self.cached = 0 if cache is None else int(cache.get_seq_length())
        if self.n_special is not None:
            self.special = self.n_special
        elif self.model.bos_id is None or ids is None:
            self.special = int(self.model.bos_id is not None)
        elif not self.cached:
            self.special = (ids[:, :1] == self.model.bos_id).long()

    def positions(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        """[n] the position of each row of coefficients among its text's own tokens; negative for a special token."""
        rows, columns = self.shape or (x.shape[0], x.shape[1])
        special = self.special.to(x.device) if isinstance(self.special, Tensor) else self.special
        own = torch.arange(columns, device=x.device)[None] + self.cached - special
        own = own.expand(rows, -1).reshape(-1)
        return own if tokens is None else own[tokens]

    def rows(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        """[n] the row of the batch that each row of coefficients belongs to."""
        rows, columns = self.shape or (x.shape[0], x.shape[1])
        which = torch.arange(rows, device=x.device).repeat_interleave(columns)
        return which if tokens is None else which[tokens]


def _taps(
    model: Model, edits: Sequence[Edit], n_special: int | None, by_row: Sequence[Sequence[Edit]] | None = None
) -> Taps:
    """What edits do to a model, as taps. `by_row`: the same edits, those of each row of the batch; None: all act on every row."""
    sequences = _Sequences(model, n_special)
    rows = None if by_row is None else [row for row, own in enumerate(by_row) for _ in own]
    by_site: dict[int, list[tuple[int, Edit]]] = {}
    rows_by_site: dict[int, list[int]] = {}
    for number, edit in enumerate(edits):
        if edit.scale == 1 and edit.changes_value:
            continue
        site, cell = locate(model.sites, edit.layer, edit.cell)
        by_site.setdefault(site, []).append((cell, edit))
        if rows is not None:
            rows_by_site.setdefault(site, []).append(rows[number])
    somewhere = rows is not None or any(edit.positions is not None for edit in edits)
    return Taps(
        replace={site: _scaling(inside, sequences, rows_by_site.get(site)) for site, inside in by_site.items()},
        inputs=sequences.look if somewhere else None,
    )


def _scaling(edits: Sequence[tuple[int, Edit]], sequences: _Sequences, rows: Sequence[int] | None = None) -> Replace:
    """Scales the coefficients of some cells of a site: everywhere, at the edits' positions, or in the rows of the batch that are
    named, one per edit."""
    cells = sorted({cell for cell, _ in edits})
    columns = {cell: column for column, cell in enumerate(cells)}
    everywhere = [1.0] * len(cells)
    chosen: list[tuple[int, float, list[int] | None, int | None]] = []
    for number, (cell, edit) in enumerate(edits):
        if edit.positions is None and rows is None:
            everywhere[columns[cell]] = edit.scale
        else:
            positions = None if edit.positions is None else list(edit.positions)
            chosen.append((columns[cell], edit.scale, positions, None if rows is None else rows[number]))

    def scale(x: Tensor, tokens: Tensor | None) -> Tensor:
        factors = torch.tensor(everywhere, device=x.device)
        flat = x.reshape(-1, x.shape[-1])
        if chosen:
            own = sequences.positions(x, tokens)
            of_row = None if rows is None else sequences.rows(x, tokens)
            factors = factors.expand(len(flat), -1).clone()
            for column, factor, positions, row in chosen:
                hit = torch.ones_like(own, dtype=torch.bool)
                if positions is not None:
                    hit &= torch.isin(own, torch.tensor(positions, device=x.device))
                if of_row is not None:
                    hit &= of_row == row
                factors[:, column] = torch.where(hit, factor, factors[:, column])
        which = torch.tensor(cells, device=x.device)
        edited = flat.clone()
        edited[:, which] = (flat[:, which] * factors).to(x.dtype)
        return edited.reshape(x.shape)

    return scale
