"""Shards of a scan put back into one run: the same bytes as those of one pass."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.files import copy_file, disk_errors
from ..errors import ShardError
from ..kernels.order import UNFILLED, Keys, one_per_group, pack
from ..kernels.sums import add_integers
from ..store import layout as store
from ..store import manifest
from ..store.run import Run
from ..store.trust import is_own
from ..store.unfinished import Partial
from .cpu import CpuIndex
from .plan import unit_of
from .scan import save_results


def merge(out: str | os.PathLike[str], parts: Iterable[str | os.PathLike[str]], *, force: bool = False) -> Run:
    """The run that one pass would have made, from the runs of its shards."""
    runs = [Run(part) for part in parts]
    _check_shards(runs)  # before anything is written
    partial = Partial(Path(out), "merge")
    with disk_errors(partial.path, full="Make room, and merge again."):
        partial.begin(resume=False, force=force, inputs=[run.path for run in runs])
        try:
            merge_into(partial, runs, {"merged": [str(run.path) for run in runs]})
        except BaseException:
            if not partial.sealed:  # a whole run that only could not be put in place is kept
                partial.drop()
            raise
        finally:
            partial.close()
    return Run(partial.out)


def merge_into(partial: Partial, runs: list[Run], log: dict[str, Any]) -> None:
    """Build the merged run in `partial`, and put it in place. Every file of a shard is compared with its checksum first."""
    _check_shards(runs)
    for run in runs:
        manifest.check_files(run.path, run.manifest, contents=True)
    first = runs[0]
    for name in (*(f"{each}.npy" for each in store.CORPUS), "tokenizer.json"):
        copy_file(first.path / name, partial.path / name)
    index = _merged(runs)
    save_results(index, first.unit_offsets, partial)
    about = {key: value for key, value in first.manifest.items() if key not in ("files", "checksum")}
    about["config"] = {**about["config"], "shard": None}
    about["corpus"] = {**about["corpus"], "scanned_prefixes": index.n}
    log = {**log, "stamps": store.read_log(first.path).get("stamps")}
    partial.finish(about, log, sign=all(is_own(run.path, run.manifest["checksum"]) for run in runs))


def _check_shards(runs: list[Run]) -> None:
    if not runs:
        raise ShardError("No shards were given to merge.")
    of: dict[int, Run] = {}
    for run in runs:
        shard = run.manifest["config"]["shard"]
        if shard is None:
            raise ShardError(f"{run.path} is a whole run, not a shard of one (scan with --shard i/n).")
        number, count = shard
        if number in of:
            raise ShardError(f"The shard {number}/{count} is there twice: {of[number].path} and {run.path}.")
        of[number] = run
    first = runs[0]
    for run in runs[1:]:
        for what, own in (("model", {"source", "revision"}), ("corpus", {"sources", "scanned_prefixes"})):
            mine, theirs = run.manifest[what], first.manifest[what]
            if any(mine.get(key) != theirs.get(key) for key in (mine.keys() | theirs.keys()) - own):
                raise ShardError(f"{run.path} and {first.path} are shards of different scans: another {what}.")
        for key, value in first.manifest["config"].items():
            other = run.manifest["config"].get(key)
            if (other != value) if key != "shard" else (other[1] != value[1]):
                raise ShardError(
                    f"{run.path} and {first.path} are shards of different scans: {key} is {other} in one and {value} in the other."
                )
    count = first.manifest["config"]["shard"][1]
    missing = [f"{number}/{count}" for number in range(1, count + 1) if number not in of]
    if missing:
        raise ShardError(f"Missing shards: {', '.join(missing)}. Scan them (--shard), then merge all {count}.")


def _merged(runs: list[Run]) -> CpuIndex:
    first = runs[0]
    offsets = first.unit_offsets
    index = CpuIndex(first.cells, first.top, signed=first.signed)
    split = first.manifest["corpus"]["split_units"] and first.manifest["config"]["per"] == "sentence"
    for run in runs:  # one after the other: every open array takes a file descriptor
        triggers = [[store.load_array(run.path, name) for name in store.side_names(n)] for n in store.sides(run.signed)]
        for layer in range(first.layers):
            span = first.cells.span(layer)
            new = np.stack([_keys(m[span], units[span], at[span], offsets) for m, units, at in triggers])
            rows = np.concatenate([index.keys[:, span], new], axis=-1)
            if split:
                rows = one_per_group(rows, unit_of(offsets, rows & 0xFFFFFFFF))
            index.keys[:, span] = np.sort(rows, axis=-1)[..., : first.top]
        active, sums, extremes = (store.load_array(run.path, name) for name in store.STATISTICS)
        index.n += int(run.manifest["corpus"]["scanned_prefixes"])
        index.active += active
        add_integers(index.sums, sums)
        np.maximum(index.extremes[..., 0], extremes[..., 0], out=index.extremes[..., 0])
        np.minimum(index.extremes[..., 1], extremes[..., 1], out=index.extremes[..., 1])
    return index


def _keys(
    coefficients: npt.NDArray[np.float32],
    units: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
) -> Keys:
    """Stored triggers as keys again."""
    empty = units < 0
    magnitude = np.where(empty, np.float32(1), np.abs(coefficients))
    tokens = offsets[np.maximum(units, 0)] + positions
    return np.where(empty, UNFILLED, pack(magnitude, tokens))
