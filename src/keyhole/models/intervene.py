"""Interventions: cells switched off or scaled, at chosen positions, and the file they are saved in.

An edit multiplies the coefficient itself, after activation and gate. The value that it weighs is then added that much more or
less; a negative coefficient is scaled like any other. All taps of the model see the edited coefficients.

    {"keyhole": 1, "model": {"fingerprint": "…", "layers": 30, "cells": 1536},
     "edits": [{"layer": 3, "cell": 17, "scale": 0.0, "positions": [4, 5]}]}

`positions` count a text's own tokens from 0, without the start token; null is everywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cells import plain_address
from ..errors import UsageError, how_to_upgrade
from .sites import locate
from .taps import Replace, Taps, hooks, tapped

if TYPE_CHECKING:
    from .model import Model

VERSION = 1
LARGEST = float(torch.finfo(torch.float32).max)
FIELDS = ("layer", "cell", "scale", "positions")


@dataclass(frozen=True)
class Edit:
    """The coefficient of one cell, times `scale`."""

    layer: int
    cell: int
    scale: float
    positions: tuple[int, ...] | None = None
    """own tokens of a text, from 0; None is everywhere"""

    @property
    def address(self) -> str:
        return plain_address(self.layer, self.cell)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "positions": None if self.positions is None else list(self.positions)}


# Reading and saving


def parse(value: Any) -> list[Edit]:
    """Edits from a JSON list of objects (or of `Edit`s), each checked. Whether a model has such cells is up to `check`."""
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"Edits must be a list; this is {_short(value)}.")
    edits, doubles = [_parse(number, one) for number, one in enumerate(value)], _Doubles()
    for edit in edits:
        doubles.add(edit)
    return edits


def _parse(number: int, value: Any) -> Edit:
    if isinstance(value, Edit):
        value = value.to_json()
    if not isinstance(value, dict):
        raise UsageError(f"Edit {number} is {_short(value)}; it must be an object with layer, cell and scale.")
    if unknown := [name for name in value if name not in FIELDS]:
        raise UsageError(
            f"Edit {number} has the unknown field {_short(unknown[0])}. Its fields are: {', '.join(FIELDS)}."
        )
    if missing := [name for name in FIELDS[:3] if name not in value]:
        raise UsageError(f"Edit {number} lacks its {missing[0]}.")
    layer, cell = (_whole(f"the {name} of edit {number}", value[name]) for name in ("layer", "cell"))
    scale = value["scale"]
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise UsageError(f"The scale of edit {number} is {_short(scale)}; it must be a number.")
    if not abs(scale) <= LARGEST:  # NaN fails this comparison too
        raise UsageError(f"The scale of edit {number} is {_short(scale)}; it must be finite (0 switches the cell off).")
    positions = value.get("positions")
    if positions is None:
        return Edit(layer, cell, float(scale))
    if not isinstance(positions, (list, tuple)) or not positions:
        raise UsageError(
            f"The positions of edit {number} are {_short(positions)}; they must be a list of at least one, or null for everywhere."
        )
    places = [_whole(f"a position of edit {number}", place) for place in positions]
    if (double := _double(places)) is not None:
        raise UsageError(f"The positions of edit {number} name {double} twice. Keep one.")
    return Edit(layer, cell, float(scale), tuple(sorted(places)))


def _double(places: Sequence[int]) -> int | None:
    """The first number that is there twice, found in one pass: lists of positions come from the network and may be long."""
    seen: set[int] = set()
    for place in places:
        if place in seen:
            return place
        seen.add(place)
    return None


def _whole(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise UsageError(
            f"{what[0].upper()}{what[1:]} is {_short(value)}; it must be a whole number of at least 0 (and no huge one)."
        )
    return value


def _short(value: Any) -> str:
    """A value as a message shows it, at most 60 characters."""
    if isinstance(value, int) and abs(value) > 1 << 64:  # its digits would fill the message
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


class _Doubles:
    """Refuses two edits of one cell at one position: the order of edits must not matter."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], set[int] | None] = {}

    def add(self, edit: Edit) -> None:
        key = (edit.layer, edit.cell)
        if key not in self._seen:
            self._seen[key] = None if edit.positions is None else set(edit.positions)
            return
        before = self._seen[key]
        both = None if before is None or edit.positions is None else before & set(edit.positions)
        if both is None or both:
            where = f" at position {min(both)}" if both else ""
            raise UsageError(f"{edit.address} is edited twice{where}. Keep one of the edits.")
        assert before is not None
        before |= set(edit.positions or ())


def check(edits: Iterable[Edit], model: Model) -> list[Edit]:
    """The same edits, if the model has such cells and none is edited twice."""
    found = parse(list(edits))
    for edit in found:
        _check_cell(edit, model)
    return found


def _check_cell(edit: Edit, model: Model) -> None:
    if not model.cells.has(edit.layer, edit.cell):
        raise UsageError(f"There is no cell {edit.address} to edit: {model.cells.extent(edit.layer)}.")


@dataclass(frozen=True)
class Sorted:
    """Edits, of which some are not possible. Both are by number."""

    possible: dict[int, Edit]
    problems: dict[int, str]


def sort_out(edits: Sequence[Any], model: Model, wrong: Callable[[Edit], str | None] = lambda edit: None) -> Sorted:
    """The edits that a model can run with, and why it cannot run with the others. `wrong` may know more of an edit, such as that
    a text is too short for it."""
    found, doubles = Sorted({}, {}), _Doubles()
    for number, value in enumerate(edits):
        try:
            edit = _parse(number, value)
            _check_cell(edit, model)
            if problem := wrong(edit):
                raise UsageError(problem)
            doubles.add(edit)
        except UsageError as error:
            found.problems[number] = str(error)
        else:
            found.possible[number] = edit
    return found


def dump(edits: Iterable[Edit], model: Model) -> dict[str, Any]:
    """What to save: the edits, and the weights they belong to. It includes the edits that the model was loaded with."""
    every = check([*model.edits, *edits], model)
    about = {"fingerprint": model.weights_fingerprint, "layers": model.layers, "cells": model.cells.sizes}
    return {"keyhole": VERSION, "model": about, "edits": [edit.to_json() for edit in every]}


def read_edits(source: str | os.PathLike[str] | dict[str, Any] | Sequence[Edit], model: Model) -> list[Edit]:
    """Edits for a model: from a file, from what `dump` gave, or from a list. Those of another model are refused."""
    if isinstance(source, (str, os.PathLike)):
        name, value = f"The edits file {os.fspath(source)}", _load(Path(source))
    else:
        name, value = "This set of edits", source
    return check(parse(unpack(value, model, name)), model)


def unpack(value: Any, model: Model, name: str) -> Any:
    """The edits in what `dump` gave, not looked at yet. They are refused if they belong to another model. A value that is no
    object is taken for the edits themselves."""
    if not isinstance(value, dict):
        return value
    version = value.get("keyhole")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UsageError(f'{name} is none that Keyhole wrote: its "keyhole" is {_short(version)}, and 1 was expected.')
    if version > VERSION:
        raise UsageError(
            f"{name} was written by a newer Keyhole (version {_short(version)}, this one reads up to {VERSION}). "
            f"Upgrade: {how_to_upgrade()}"
        )
    if unknown := [key for key in value if key not in ("keyhole", "model", "edits")]:
        raise UsageError(f"{name} has the unknown field {_short(unknown[0])}. Its fields are: keyhole, model, edits.")
    about = value.get("model")
    if not isinstance(about, dict) or not isinstance(about.get("fingerprint"), str) or "edits" not in value:
        raise UsageError(f"{name} is not whole: it needs the model's fingerprint and the edits. Save it again.")
    if about["fingerprint"] != model.weights_fingerprint:
        raise UsageError(
            f"{name} belongs to another model: the fingerprint of its weights is {about['fingerprint'][:16]}…, that of "
            f"{model.source} {model.weights_fingerprint[:16]}…. Load the model it was saved from, or give the edits as a list."
        )
    return value["edits"]


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"The edits file {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The edits file {path} is no JSON: {error}.") from None


def fingerprint(weights: str, edits: Sequence[Edit]) -> str:
    """The fingerprint of a model with edits; it differs from that of its weights alone."""
    spelled = json.dumps(sorted((edit.to_json() for edit in edits), key=str), sort_keys=True)
    return hashlib.sha256(f"{weights} {spelled}".encode()).hexdigest()


# Applying them


@contextlib.contextmanager
def applied(model: Model, edits: Iterable[Edit], n_special: int | None = None) -> Iterator[None]:
    """Run the model edited, inside the `with`; afterwards, also after an error, it is as before.

    `n_special` special tokens are before a sequence's own. If it is None, a sequence has one if it begins with the model's
    start token, else none. The model belongs to this thread meanwhile.
    """
    edits = check(edits, model)
    with model.lock, contextlib.ExitStack() as stack:
        stack.callback(setattr, model, "edits", model.edits)
        stack.enter_context(tapped(model, _taps(model, edits, n_special)))
        model.edits = (*model.edits, *edits)  # a scan meanwhile is one of the edited model, and its manifest says so
        yield


@contextlib.contextmanager
def applied_by_row(model: Model, rows: Sequence[Sequence[Edit]], n_special: int | None = None) -> Iterator[None]:
    """Like `applied`, but each row of a batch has edits of its own: the batches inside the `with` have as many rows. Inside
    another `applied`, both act."""
    every = [check(edits, model) for edits in rows]
    with tapped(model, _taps(model, [edit for edits in every for edit in edits], n_special, every)):
        yield


def apply(model: Model, edits: Iterable[Edit]) -> None:
    """Edit a model permanently, in addition to the edits it has."""
    every = check([*model.edits, *edits], model)
    with model.lock:
        for hook in hooks(model, _taps(model, every[len(model.edits) :], None)):
            hook.register()
        model.edits = tuple(every)


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
