"""What a manifest and the files it lists must look like.

A run may come from anyone. It is checked when it is opened, so that a damaged or hostile run is refused with a message, and does
not fail later. Sizes are compared with the files before anything of these sizes is allocated.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..cells import MOST, Cells
from ..common import files
from ..common.checks import LIMITS
from ..errors import RunDamaged, RunError, SchemaTooNew, SchemaTooOld, how_to_upgrade
from . import layout
from .control import is_control
from .unfinished import unfinished

LARGEST = MOST
"""Upper bound on cells, units and tokens of a run. 64-bit integers hold everything that is computed from such numbers."""

Test = Callable[[Any], bool]


def _whole(least: int, most: int = LARGEST) -> Test:
    return lambda value: type(value) is int and least <= value <= most


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _one_of(*choices: str) -> Test:
    return lambda value: value in choices


def _share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 1


def _shard(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_whole(1, 1 << 20), value)) and value[0] <= value[1]


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _cells(value: Any) -> bool:
    try:
        Cells.from_json(value)
    except ValueError:
        return False
    return True


def _list_of_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        files.is_plain_name(name) and files.is_fingerprint(entry) for name, entry in value.items()
    )


FIELDS: dict[str, dict[str, Test]] = {
    "model": {
        "source": _text,
        "revision": _or_none(_text),
        "family": _text,
        "fingerprint": _text,
        "input": _text,
        "cells": _cells,
        "signed": _flag,
        "gated": _flag,
    },
    "corpus": {
        "sources": _texts,
        "hash": _text,
        "documents": _whole(0),
        "units": _whole(0),
        "tokens": _whole(0),
        "distinct_prefixes": _whole(0),
        "scanned_prefixes": _whole(0),
        "split_units": _whole(0),
        "empty_units": _whole(0),
        "held_out_units": _whole(0),
        "truncated": _flag,
    },
    "config": {
        "top": _whole(1, LIMITS["top"]),
        "per": _one_of("sentence", "prefix"),
        "unit": _one_of("sentence", "line", "document"),
        "language": _text,
        "context": _whole(2, LIMITS["context"]),
        "max_tokens": _or_none(_whole(1, LIMITS["max_tokens"])),
        "batch_tokens": _whole(1, LIMITS["batch_tokens"]),
        "bos": _flag,
        "text_field": _or_none(_text),
        "device": _text,
        "dtype": _text,
        "compile": _flag,
        "trust_remote_code": _flag,
        "hold_out": _share,
        "hold_out_by": _one_of("unit", "document"),
        "n_special": _whole(0, 1),
        "shard": _or_none(_shard),
    },
}


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the run at `path`, after its checksum, its schema and its values were checked."""
    file = path / "manifest.json"
    if not os.path.exists(path):
        raise RunError(" ".join(filter(None, [f"There is no run at {path}.", unfinished(path)])))
    if not os.path.exists(file):
        raise RunDamaged(f"{path} is not a run: it has no manifest.json.")
    return read_manifest_file(file)


def open_run(path: Path) -> dict[str, Any]:
    """The manifest of a run, after its files were checked. If another run replaces it in the meantime, that one is opened."""
    while True:
        manifest = read_manifest(path)
        try:
            check_files(path, manifest)
        except RunError:
            if read_manifest(path)["checksum"] == manifest["checksum"]:
                raise
            continue
        return manifest


def read_manifest_file(file: Path) -> dict[str, Any]:
    """A manifest, after its checksum, its schema and its values were checked."""
    try:
        manifest = json.loads(files.read_small(file))
        schema = manifest["schema"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunDamaged(f"{file} is damaged: {error!r}. Scan again, or restore the file.") from None
    if type(schema) is not int or schema > layout.SCHEMA:
        raise SchemaTooNew(
            f"{file} was written by a newer Keyhole (schema {schema!r:.20}, this one reads up to {layout.SCHEMA}). "
            f"Upgrade: {how_to_upgrade()}"
        )
    if schema < layout.SCHEMA:
        raise SchemaTooOld(
            f"{file} was written by an older Keyhole (schema {schema!r:.20}, this one reads {layout.SCHEMA}), whose arrays mean "
            "something else. Scan again."
        )
    if manifest.get("checksum") != files.seal(manifest)["checksum"]:
        raise RunDamaged(f"{file} was changed after the run was finished: its checksum does not match. Scan again.")
    check(file, manifest)
    found: dict[str, Any] = manifest
    return found


def check_files(
    path: Path,
    manifest: dict[str, Any],
    *,
    contents: bool | None = None,
    begin: Callable[[int], Callable[[int], None]] | None = None,
) -> None:
    """Refuse a run unless every file of the scan and of the analyses is there, with the recorded size and, with `contents`, with
    the recorded checksum. By default `contents` is on for runs of at most `CHECK_ON_OPEN` bytes. `begin` is called with the bytes
    of all files; the function that it returns is then called with those of each file that was checked."""
    groups = layout.analyses(path)
    added = [choices[0]["bytes"] for group in groups.values() for choices in group["files"].values()]
    size = sum(entry["bytes"] for entry in manifest["files"].values()) + sum(added)
    if contents is None:
        contents = size <= layout.CHECK_ON_OPEN
    advance = begin(size) if begin else None
    for name, entry in manifest["files"].items():
        if why := layout.problem(path, name, [entry], contents):
            raise RunDamaged(f"{path} is damaged: {why}. Scan again, or restore the file.")
        if advance:
            advance(entry["bytes"])
    while why := _damaged_analysis(path, groups, contents, advance):
        before, groups = groups, layout.analyses(path)
        if groups == before:  # else an analysis was written in the meantime: check again
            raise RunDamaged(f"{path} is damaged: {why}. Analyze it again: keyhole analyze {path}")
    check_arrays(path, manifest, contents=contents)


def _damaged_analysis(
    path: Path, groups: dict[str, dict[str, Any]], contents: bool, advance: Callable[[int], None] | None
) -> str | None:
    for group in groups.values():
        for name, choices in group["files"].items():
            if why := layout.problem(path, name, choices, contents):
                return why
            if advance:
                advance(choices[0]["bytes"])
    return None


def check(file: Path, manifest: Any) -> None:
    """Refuse a manifest in which a value is missing or is not what `FIELDS` asks for."""
    if not isinstance(manifest, dict):
        raise _damaged(file, "it is not a JSON object")
    for part, fields in FIELDS.items():
        section = manifest.get(part)
        if not isinstance(section, dict):
            raise _damaged(file, f"'{part}' is {section!r:.60}")
        for name, test in fields.items():
            if not test(section.get(name)):
                raise _damaged(file, f"'{part}.{name}' is {section.get(name)!r:.60}")
    if not isinstance(manifest["model"].get("edits", []), list):
        raise _damaged(file, "'model.edits' is not a list")
    if "control" in manifest["model"] and not is_control(manifest["model"]["control"]):
        raise _damaged(file, f"'model.control' is {manifest['model']['control']!r:.60}")
    if manifest["config"]["context"] <= manifest["config"]["n_special"]:
        raise _damaged(file, "no token of a text fits in its context")
    listed: Any = manifest.get("files")
    if not _list_of_files(listed):
        raise _damaged(file, "its list of files cannot be read")
    names = layout.sealed_names(signed=manifest["model"]["signed"], gated=manifest["model"]["gated"])
    if missing := set(names) - set(listed):
        raise _damaged(file, f"it does not list {sorted(missing)[0]}")


def check_arrays(path: Path, manifest: dict[str, Any], *, contents: bool) -> None:
    """Refuse arrays whose shapes or types do not fit the manifest. With `contents`, also those with a trigger outside the corpus."""
    model, corpus, config = (manifest[name] for name in ("model", "corpus", "config"))
    cells = Cells.from_json(model["cells"])
    units, tokens = corpus["units"], corpus["tokens"]
    expected: dict[str, tuple[tuple[int | None, ...], str]] = {
        "tokens": ((tokens,), "u"),
        "unit_offsets": ((units + 1,), "i"),
        "unit_documents": ((units,), "i"),
        "unit_starts": ((units,), "i"),
        "repeated_tokens": ((None,), "i"),
        "repeated_counts": ((None,), "i"),
        "active": ((len(cells),), "i"),
        "sums": ((len(cells), 2, 2), "i"),
        "extremes": ((len(cells), 2), "f"),
    }
    sides = [layout.side_names(negative) for negative in layout.sides(model["signed"])]
    for names in sides:
        for name, kind in zip(names, "fii", strict=True):
            expected[name] = ((len(cells), config["top"]), kind)
    if model["gated"]:
        expected[layout.ORIENTATION] = ((len(cells),), "i")
    arrays = {name: layout.load_array(path, name) for name in expected}
    for name, (shape, kind) in expected.items():
        array = arrays[name]
        if array.dtype.kind != kind or len(array.shape) != len(shape):
            raise _unfit(path, name, f"it holds {array.dtype} of shape {array.shape}")
        if any(want is not None and want != got for want, got in zip(shape, array.shape, strict=True)):
            raise _unfit(path, name, f"its shape is {array.shape}")
    if len(arrays["repeated_tokens"]) != len(arrays["repeated_counts"]):
        raise _unfit(path, "repeated_counts", f"it has {len(arrays['repeated_counts']):,} entries")
    if model["gated"] and not np.isin(arrays[layout.ORIENTATION], (-1, 1)).all():
        raise _unfit(path, layout.ORIENTATION, "it holds other numbers than 1 and −1")
    if contents:
        _check_text(path, arrays, tokens)
        for _, where, positions in sides:
            _check_places(path, arrays, cells, where, positions)


def _check_text(path: Path, arrays: dict[str, Any], tokens: int) -> None:
    """Refuse units that do not follow each other, and repeated prefixes that are not in the corpus."""
    offsets = arrays["unit_offsets"]
    if offsets[0] != 0 or offsets[-1] != tokens or (np.diff(offsets) < 0).any():
        raise _unfit(path, "unit_offsets", "its units do not follow each other")
    repeated = arrays["repeated_tokens"]
    if len(repeated) and (repeated[0] < 0 or repeated[-1] >= tokens or (np.diff(repeated) <= 0).any()):
        raise _unfit(path, "repeated_tokens", "its places are outside the corpus or out of order")


def _check_places(path: Path, arrays: dict[str, Any], cells: Cells, units: str, positions: str) -> None:
    """Refuse triggers of one side that are not in the corpus; `units` and `positions` are the names of its arrays."""
    offsets = arrays["unit_offsets"]
    for where, places in zip(cells.by_layer(arrays[units]), cells.by_layer(arrays[positions]), strict=True):
        if where.min() < -1 or where.max() >= len(offsets) - 1:
            raise _unfit(path, units, "it names units that are not there")
        filled = where >= 0
        lengths = offsets[where[filled].astype(np.int64) + 1] - offsets[where[filled]]
        if ((places[filled] < 0) | (places[filled] >= lengths)).any():
            raise _unfit(path, positions, "it names positions outside their units")
        if (filled[:, 1:] & ~filled[:, :-1]).any():
            raise _unfit(path, units, "a slot is filled after one that is not")


def _damaged(file: Path, why: str) -> RunDamaged:
    return RunDamaged(f"{file} is not a manifest of a run: {why}. Scan again, or restore the file.")


def _unfit(path: Path, name: str, why: str) -> RunDamaged:
    return RunDamaged(
        f"{path} is damaged: {name}.npy does not fit the manifest: {why}. Scan again, or restore the file."
    )
