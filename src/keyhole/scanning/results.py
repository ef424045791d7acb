"""What a scan found, written as the files of a run: arrays, manifest, log."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..kernels.order import unpack
from ..models.model import Model
from ..store import layout
from ..store.unfinished import Partial
from .config import ScanConfig
from .plan import Summary, unit_of

CELLS_AT_ONCE = 4096
"""Cells whose triggers are written together."""


def save_results(state: dict[str, npt.NDArray[Any]], unit_offsets: npt.NDArray[np.int64], partial: Partial) -> None:
    """The state of an index as the arrays of a run, some cells at a time."""
    for name in (*layout.STATISTICS, layout.ORIENTATION):
        if name in state:  # only gated layers have an orientation
            partial.save(name, state[name])
    for negative, keys in zip((False, True), state["keys"], strict=False):
        names, row = layout.side_names(negative), keys.shape[1:]
        with (
            partial.writer(names[0], np.float32, row) as coefficients,
            partial.writer(names[1], np.int32, row) as units,
            partial.writer(names[2], np.int32, row) as positions,
        ):
            for at in range(0, len(keys), CELLS_AT_ONCE):
                values, tokens = unpack(keys[at : at + CELLS_AT_ONCE])
                unit = np.where(tokens < 0, -1, unit_of(unit_offsets, tokens))
                coefficients.append(-values if negative else values)
                units.append(unit)
                positions.append(np.where(tokens < 0, -1, tokens - unit_offsets[np.maximum(unit, 0)]))


def describe_model(model: Model) -> dict[str, Any]:
    """What a manifest says of the model."""
    return {
        "source": model.source,
        "revision": model.revision,
        "family": model.config.model_type,
        "fingerprint": model.fingerprint,
        "input": model.kind.name,
        "cells": model.cells.as_json(),
        "signed": model.signed,
        "gated": model.gated,
        **({"control": model.control.to_json()} if model.control else {}),
        **({"made": model.made} if model.made else {}),
        **({"edits": [edit.to_json() for edit in model.edits]} if model.edits else {}),
    }


def manifest_for(
    about: dict[str, Any], names: list[str], config: ScanConfig, summary: Summary, scanned: int
) -> dict[str, Any]:
    """The manifest of a run, without its list of files. `about` describes the model; `scanned` is the number of candidates."""
    counted = {key: value for key, value in vars(summary).items() if key != "batches"}
    return {
        "schema": layout.SCHEMA,
        "keyhole": __version__,
        "model": about,
        "corpus": {"sources": names, **counted, "scanned_prefixes": scanned},
        "config": {
            **asdict(config),
            "n_special": int(config.bos),
            "shard": list(config.shard) if config.shard else None,
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("numpy", "sentencex", "tokenizers", "torch", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine(model: Model, seconds: dict[str, float]) -> dict[str, Any]:
    """What a log says: when, where and how long. Two runs of the same scan differ in it."""
    return {
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": str(model.device),
        "seconds": seconds,
    }
