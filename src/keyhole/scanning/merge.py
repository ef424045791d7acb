"""Merging partial results: the same bytes as those of one pass, in every order and grouping."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..common.files import copy_file, disk_errors
from ..errors import ShardError
from ..kernels.order import UNFILLED, Keys, one_per_group, pack
from ..kernels.sums import add_integers
from ..store import layout, manifest
from ..store.run import Run
from ..store.trust import is_own
from ..store.unfinished import Partial
from .orientation import State, orient, turn
from .plan import unit_of
from .results import save_results

Offsets = npt.NDArray[np.int64]

MERGED_LISTS = 1 << 16
"""Lists of triggers that are merged at once, to bound the memory for sorting them."""


# States


def merge_states(states: Iterable[State], unit_offsets: Offsets | None = None) -> State:
    """The state of one index that saw everything that several saw. It can be merged again: order and grouping do not matter.

    `unit_offsets` are given if a unit may be in several shards, and only its best prefix may be in a list.
    """
    merged: State | None = None
    for state in states:  # one after the other, so that two are in memory at most
        if merged is None:
            merged = {name: np.array(array) for name, array in state.items()}
        else:
            _merge_into(merged, state, unit_offsets)
    if merged is None:
        raise ShardError("No shards were given to merge.")
    return merged


def _merge_into(merged: State, state: State, unit_offsets: Offsets | None) -> None:
    if merged["keys"].shape != state["keys"].shape:
        raise ShardError(
            f"Lists of the shapes {merged['keys'].shape} and {state['keys'].shape} (sides, cells, triggers) cannot be merged: "
            "the shards are of different scans."
        )
    merged["n"] = merged["n"] + state["n"]
    merged["active"] += state["active"]
    add_integers(merged["sums"], state["sums"])
    high, low = merged["extremes"][..., 0], merged["extremes"][..., 1]
    np.maximum(high, state["extremes"][..., 0], out=high)
    np.minimum(low, state["extremes"][..., 1], out=low)
    top = merged["keys"].shape[-1]
    lists, more = merged["keys"].reshape(-1, top), state["keys"].reshape(-1, top)  # views: both are contiguous
    for begin in range(0, len(lists), MERGED_LISTS):
        part = slice(begin, begin + MERGED_LISTS)
        rows = np.concatenate([lists[part], more[part]], axis=-1)
        if unit_offsets is not None:
            rows = one_per_group(rows, unit_of(unit_offsets, rows & 0xFFFFFFFF))
        rows.sort(axis=-1)
        lists[part] = rows[:, :top]


def state_of(run: Run) -> State:
    """The state of the index that made a finished run, in the model's own signs, read from its files. No file stays open: many
    runs may be merged, and every open array takes a file descriptor."""
    offsets = layout.load_array(run.path, "unit_offsets")
    sides = []
    for negative in layout.sides(run.signed):
        coefficients, units, positions = (layout.load_array(run.path, name) for name in layout.side_names(negative))
        sides.append(_keys(coefficients, units, positions, offsets))
    state = {"n": np.array(int(run.manifest["corpus"]["scanned_prefixes"])), "keys": np.stack(sides)}
    state |= {name: layout.load_array(run.path, name) for name in layout.STATISTICS}
    signs = layout.load_array(run.path, layout.ORIENTATION) if run.gated else np.ones(0, np.int8)
    if (signs < 0).any():  # not a shard: these have the model's own signs
        state |= {name: np.array(state[name]) for name in layout.STATISTICS}
        turn(state, signs)
    return state


def _keys(
    coefficients: npt.NDArray[np.float32],
    units: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int32],
    offsets: Offsets,
) -> Keys:
    """Stored triggers as keys again."""
    empty = units < 0
    magnitude = np.where(empty, np.float32(1), np.abs(coefficients))
    tokens = offsets[np.maximum(units, 0)] + positions
    return np.where(empty, UNFILLED, pack(magnitude, tokens))


# Runs


def merge(out: str | os.PathLike[str], parts: Iterable[str | os.PathLike[str]], *, force: bool = False) -> Run:
    """The run that one pass would have made, from the runs of its shards."""
    runs = [Run(part) for part in parts]
    _check_shards(runs)  # before anything is written
    partial = Partial(Path(out), "merge")
    with disk_errors(partial.path, full="Make room, and merge again."):
        partial.begin(resume=False, force=force, inputs=[run.path for run in runs])
        try:
            _merge_runs(partial, runs)
        except BaseException:
            if not partial.sealed:  # a whole run that only could not be put in place is kept
                partial.drop()
            raise
        finally:
            partial.close()
    return Run(partial.out)


def _merge_runs(partial: Partial, runs: list[Run]) -> None:
    """Build the merged run in `partial`, and put it in place. Every file of a shard is compared with its checksum first."""
    for run in runs:
        manifest.check_files(run.path, run.manifest, contents=True)
    first = runs[0]
    for name in (*(f"{each}.npy" for each in layout.CORPUS), "tokenizer.json"):
        copy_file(first.path / name, partial.path / name)
    split = first.manifest["corpus"]["split_units"] and first.manifest["config"]["per"] == "sentence"
    state = merge_states((state_of(run) for run in runs), first.unit_offsets if split else None)
    if first.gated:
        orient(state, whole=True)
    save_results(state, first.unit_offsets, partial)
    about = {key: value for key, value in first.manifest.items() if key not in ("files", "checksum")}
    about["config"] = {**about["config"], "shard": None}
    about["corpus"] = {**about["corpus"], "scanned_prefixes": int(state["n"])}
    log = {"merged": [str(run.path) for run in runs], "stamps": layout.read_log(first.path).get("stamps")}
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
