"""Edits: what is done to single cells, as data, and the file they are saved in. `intervene` applies them.

An edit changes a cell in one of two ways, or in both:

    scale           the coefficient itself is multiplied, after activation and gate. The value that it weighs is then added that
                    much more or less; a negative coefficient is scaled like any other. 0 switches the cell off
    value           the value vector is replaced: as many numbers as the model is wide, as the weights store it
    towards, by     the value vector is moved: v' = v + by · ‖v‖ · d. d has length 1, and is the direction in which a value of the
                    layer raises the token's logit most while the mean of all tokens' logits stays as it is, read through the
                    lens `norm` (`Head.promoting`). A negative `by` moves it away

A changed value acts wherever the cell is active. In a gated model a coefficient m may be negative: the cell then writes −|m|·v',
so that a value which is moved towards a token demotes it there. `Run.orientation` says with which sign a cell's triggers have it;
to promote a token at the triggers of a cell whose orientation is −1, move its value away from the token.

    {"keyhole": 1, "model": {"fingerprint": "…", "layers": 30, "cells": 1536},
     "edits": [{"layer": 3, "cell": 17, "scale": 0.0, "positions": [4, 5]},
               {"layer": 7, "cell": 2, "towards": " Paris", "by": 0.5},
               {"cell": "L9.12", "scale": 0}, {"cells": ["L9.13", "L9.14"], "scale": 0}]}

`positions` count a text's own tokens from 0, without the start token; null is everywhere. A value is one for all positions, so an
edit that changes it has none. In a file cells may be named by address, and several at once; `{"set": "kind:dead", "scale": 0}` is
for commands that are given a run, which knows what is in the set (searching/sets.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..cells import Cells, plain_address
from ..errors import UsageError, how_to_upgrade
from .sites import locate

if TYPE_CHECKING:
    from .model import Model

VERSION = 1
LARGEST = 3.4028234663852886e38
"""The largest number of float32."""
FIELDS = ("layer", "cell", "scale", "positions", "value", "towards", "by")
NAMES = ("cell", "cells", "set")
"""The fields by which an entry of a file may name its cells, instead of layer and cell."""

SetOf = Callable[[str], Sequence[int]]
"""From the name of a set of cells to their places."""


@dataclass(frozen=True)
class Edit:
    """The coefficient of one cell, times `scale`, and its value replaced or moved."""

    layer: int
    cell: int
    scale: float = 1.0
    positions: tuple[int, ...] | None = None
    """own tokens of a text, from 0; None is everywhere"""
    value: tuple[float, ...] | None = None
    """what the value is replaced by"""
    towards: str | None = None
    """the token that the value is moved towards"""
    by: float | None = None
    """how far, as a share of the value's length"""

    @property
    def address(self) -> str:
        return plain_address(self.layer, self.cell)

    @property
    def changes_value(self) -> bool:
        return self.value is not None or self.towards is not None

    def to_json(self) -> dict[str, Any]:
        """As a file has it. What does not change the value is spelled as before values could be changed."""
        found: dict[str, Any] = {"layer": self.layer, "cell": self.cell, "scale": self.scale}
        found["positions"] = None if self.positions is None else list(self.positions)
        if self.value is not None:
            found["value"] = list(self.value)
        changes = {"towards": self.towards, "by": self.by}
        return found | {name: value for name, value in changes.items() if value is not None}

    def __str__(self) -> str:
        """What it does, in words: `L3.17 off`, `L3.17 × 0.5 at 4, 5`, `L3.17 value moved towards ' Paris' by 0.5`."""
        said = []
        if self.towards is not None:
            said.append(f"value moved towards {self.towards!r} by {self.by:g}")
        elif self.value is not None:
            said.append("value replaced")
        if self.scale != 1 or not said:
            said.append("off" if self.scale == 0 else f"× {self.scale:g}")
        where = "" if self.positions is None else f" at {', '.join(map(str, self.positions))}"
        return f"{self.address} {', '.join(said)}{where}"


# Reading and saving


def parse(value: Any) -> list[Edit]:
    """Edits from a JSON list of objects (or of `Edit`s), each checked. Whether a model has such cells is up to `check`."""
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"Edits must be a list; this is {_short(value)}.")
    edits, doubles = [_parse(number, one) for number, one in _entries(value)], _Doubles()
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
    changed = _changed(number, value)
    required = FIELDS[:2] if changed else FIELDS[:3]
    if missing := [name for name in required if name not in value]:
        raise UsageError(f"Edit {number} lacks its {missing[0]}.")
    layer, cell = (_whole(f"the {name} of edit {number}", value[name]) for name in ("layer", "cell"))
    scale = _number(f"scale of edit {number}", value.get("scale", 1.0), "finite (0 switches the cell off)")
    positions = value.get("positions")
    if positions is None:
        return Edit(layer, cell, scale, None, **changed)
    if changed:
        raise UsageError(
            f"Edit {number} changes the value of {plain_address(layer, cell)} at chosen positions. A value is one for all "
            "positions: leave the positions out, or use a scale instead, which can have positions."
        )
    if not isinstance(positions, (list, tuple)) or not positions:
        raise UsageError(
            f"The positions of edit {number} are {_short(positions)}; they must be a list of at least one, or null for everywhere."
        )
    places = [_whole(f"a position of edit {number}", place) for place in positions]
    if (double := _double(places)) is not None:
        raise UsageError(f"The positions of edit {number} name {double} twice. Keep one.")
    return Edit(layer, cell, scale, tuple(sorted(places)))


def _changed(number: int, edit: dict[str, Any]) -> dict[str, Any]:
    """What an edit does to the value; nothing if it is only scaled."""
    there = [name for name in ("value", "towards", "by") if name in edit]
    if not there:
        return {}
    if "value" in there:
        if len(there) > 1:
            raise UsageError(
                f"Edit {number} both replaces the value and moves it. Keep 'value', or 'towards' and 'by'."
            )
        value = edit["value"]
        if not isinstance(value, (list, tuple)) or not value:
            raise UsageError(f"The value of edit {number} is {_short(value)}; it must be a list of numbers.")
        return {"value": tuple(_number(f"value of edit {number}", each, "finite") for each in value)}
    if len(there) == 1:
        lacking = "by" if there == ["towards"] else "towards"
        raise UsageError(
            f"Edit {number} lacks its {lacking}: a value is moved towards a token, by a share of its length."
        )
    towards = edit["towards"]
    if not isinstance(towards, str) or not towards:
        raise UsageError(f"Edit {number} moves a value towards {_short(towards)}; it must be a token, as text.")
    return {"towards": towards, "by": _number(f"'by' of edit {number}", edit["by"], "finite")}


def _number(what: str, value: Any, wanted: str) -> float:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"The {what} is {_short(value)}; it must be a number.")
    if not abs(value) <= LARGEST:  # NaN fails this comparison too
        raise UsageError(f"The {what} is {_short(value)}; it must be {wanted}.")
    return float(value)


def _double(places: Sequence[int]) -> int | None:
    """The first number that is there twice, found in one pass: lists of positions come from the network and may be long."""
    seen: set[int] = set()
    for place in places:
        if place in seen:
            return place
        seen.add(place)
    return None


def _whole(what: str, value: Any) -> int:
    value = value.item() if isinstance(value, np.generic) else value
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
    """The same edits, if the model can run with them and no cell is edited twice."""
    found = parse(list(edits))
    for edit in found:
        _check_one(edit, model)
    return found


def _check_one(edit: Edit, model: Model) -> None:
    if not model.cells.has(edit.layer, edit.cell):
        raise UsageError(f"There is no cell {edit.address} to edit: {model.cells.extent(edit.layer)}.")
    if not edit.changes_value:
        return
    site, cell = locate(model.sites, edit.layer, edit.cell)
    width = model.sites[site].values.shape[1]
    if edit.value is not None and len(edit.value) != width:
        raise UsageError(
            f"The new value of {edit.address} has {len(edit.value):,} numbers; a value of this model has {width:,}."
        )
    if edit.towards is not None:
        token_of(edit, model)
        if not bool(model.sites[site].values[cell].any()):
            raise UsageError(
                f"The value of {edit.address} is 0, so it cannot be moved by a share of its length. Give the edit a 'value' instead."
            )


def token_of(edit: Edit, model: Model) -> int:
    """The token that the edit moves a value towards."""
    try:
        token = model.vocabulary.find(edit.towards or "")
    except UsageError as error:
        raise UsageError(f"The value of {edit.address} cannot be moved towards a token: {error}") from None
    output = model.lm.get_output_embeddings()
    if output is None or token >= len(output.weight):
        raise UsageError(
            f"The value of {edit.address} cannot be moved towards {edit.towards!r}: the model has no row for it in its head."
        )
    return token


@dataclass(frozen=True)
class Sorted:
    """Edits, of which some are not possible."""

    possible: list[Edit]
    problems: dict[int, str]
    """by the number of the entry, from 0"""


def sort_out(edits: Sequence[Any], model: Model, wrong: Callable[[Edit], str | None] = lambda edit: None) -> Sorted:
    """The edits that a model can run with, and why it cannot run with the others. `wrong` may know more of an edit, such as that
    a text is too short for it."""
    found, doubles = Sorted([], {}), _Doubles()
    for number, value in _entries(edits):
        try:
            edit = _parse(number, value)
            _check_one(edit, model)
            if problem := wrong(edit):
                raise UsageError(problem)
            doubles.add(edit)
        except UsageError as error:
            found.problems.setdefault(number, str(error))
        else:
            found.possible.append(edit)
    return found


def dump(edits: Iterable[Edit], model: Model) -> dict[str, Any]:
    """What to save: the edits, and the weights they belong to. It includes the edits that the model was loaded with."""
    every = check([*model.edits, *edits], model)
    about = {"fingerprint": model.weights_fingerprint, "layers": model.layers, "cells": model.cells.sizes}
    return {"keyhole": VERSION, "model": about, "edits": [edit.to_json() for edit in every]}


def read_edits(
    source: str | os.PathLike[str] | dict[str, Any] | Sequence[Edit], model: Model, sets: SetOf | None = None
) -> list[Edit]:
    """Edits for a model: from a file, from what `dump` gave, or from a list. Those of another model are refused. `sets` gives the
    cells of a named set; without it, edits of sets are refused."""
    if isinstance(source, (str, os.PathLike)):
        name, value = f"The edits file {os.fspath(source)}", _load(Path(source))
    else:
        name, value = "This set of edits", source
    return check(parse(spread(unpack(value, model, name), model.cells, sets)), model)


class Entry(NamedTuple):
    """One cell's edit as data, and the number, from 0, of the entry of a list that it is from."""

    number: int
    value: Any


def _entries(value: Sequence[Any]) -> list[Entry]:
    return [each if isinstance(each, Entry) else Entry(number, each) for number, each in enumerate(value)]


def spread(
    value: Any,
    cells: Cells,
    sets: SetOf | None = None,
    *,
    most: int | None = None,
    problems: dict[int, str] | None = None,
) -> Any:
    """A list of edits in which every entry names one cell by layer and number. An entry may name its cell by address, several cells,
    or a set. A cell that several sets have, with the same edit, is edited once. Nothing is added after more than `most`: a short
    file may name large sets many times. With `problems`, an entry whose cells cannot be found is left out and said there."""
    if not isinstance(value, (list, tuple)):
        return value  # `parse` says what is wrong
    found: list[Entry] = []
    of_several: dict[int, Any] = {}
    known: dict[str, Sequence[int]] = {}
    for number, entry in enumerate(value):
        if most is not None and len(found) > most:
            break
        if not isinstance(entry, dict) or not _names_cells(entry):
            found.append(Entry(number, entry))
            continue
        try:
            places = _places(number, entry, cells, sets, known)
        except UsageError as error:
            if problems is None:
                raise
            problems[number] = str(error)
            continue
        rest = {key: each for key, each in entry.items() if key not in NAMES}
        several = not isinstance(entry.get("cell"), str)
        for place in places:
            before = of_several.get(place) if several else None
            if before == rest:
                continue
            layer, cell = cells.split(place)
            if before is not None and (before.get("positions") is None or rest.get("positions") is None):
                raise UsageError(
                    f"{plain_address(layer, cell)} is edited twice, the second time by edit {number}. Keep one of the edits."
                )
            found.append(Entry(number, {**rest, "layer": layer, "cell": cell}))
            if several:
                of_several[place] = rest
    return found


def _names_cells(entry: dict[str, Any]) -> bool:
    """Whether an entry names its cells in another way than by layer and number."""
    return isinstance(entry.get("cell"), str) or "cells" in entry or "set" in entry


def _places(
    number: int, entry: dict[str, Any], cells: Cells, sets: SetOf | None, known: dict[str, Sequence[int]]
) -> Sequence[int]:
    """The places of an entry's cells. `known` keeps those of sets."""
    names = [name for name in NAMES if name in entry]
    if len(names) > 1 or "layer" in entry:
        raise UsageError(f"Edit {number} names its cells twice. Keep one of: layer and cell, cell, cells, set.")
    (name,) = names
    value = entry[name]
    if name == "cell":
        return [cells.find(value)]
    if name == "cells":
        if not isinstance(value, (list, tuple)) or not value:
            raise UsageError(
                f"The cells of edit {number} are {_short(value)}; they must be a list of addresses, as in L12.345."
            )
        return [cells.find(address) for address in value]
    if not isinstance(value, str):
        raise UsageError(f"The set of edit {number} is {_short(value)}; it must be a name, as in 'kind:dead'.")
    if sets is None:
        raise UsageError(
            f"Edit {number} is of the set {_short(value)}, and only a run knows what is in it. Use: keyhole edit RUN EDITS …; or list "
            "the cells."
        )
    if value not in known:
        known[value] = sets(value)
    return known[value]


def unpack(value: Any, model: Model, name: str) -> Any:
    """The edits in what `dump` gave, not looked at yet. They are refused if they belong to another model. A value that is no
    object is taken for the edits themselves."""
    if not isinstance(value, dict):
        return value
    if "keyhole" not in value:
        raise UsageError(f"{name} is an object. A file of edits is a JSON list, or what Keyhole saved.")
    version = value["keyhole"]
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
