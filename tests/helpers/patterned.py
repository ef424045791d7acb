"""Patterns for a run, drawn at random and stored as `keyhole patterns` stores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyhole.store import patterns
from keyhole.store.patterns import METHODS, Key, Pattern, Score
from keyhole.store.run import Run

SETTINGS: dict[str, Any] = {
    "cells": 8,
    "seed": 3,
    "tokens": 1234,
    "found_in": ["text.txt"],
    "held_out": {"source": "valid", "files": "valid.txt", "tokens": 567, "documents": 21},
    "ablated": 10,
    "facts": {},
}
KEY_KINDS = {(False, False): "none", (True, False): "shallow", (False, True): "semantic", (True, True): "both"}


def pattern(*triggers: int, kind: str = "shallow", description: str = "ends in ‘at’", **more: Any) -> Pattern:
    rule = {"all": [{"if": "token", "back": 0, "ids": [67, 86]}], "amount": 0.5}
    about = {"matches": 40, "hits": 20, "lift": 310.0, "bits": 55.0, "q_value": 0.01, **more}
    return Pattern(kind=kind, description=description, rule=about.pop("rule", rule), triggers=triggers, **about)  # type: ignore[arg-type]


def key(cell: int, *made: Pattern, side: int = 1, read: int = 4, **more: Any) -> Key:
    kinds = {each.kind for each in made}
    kind = KEY_KINDS["shallow" in kinds, "semantic" in kinds]
    return Key(cell, side, kind, more.pop("threshold", 0.3), made, read, **more)  # type: ignore[arg-type]


def scores(**auprc: float | None) -> dict[str, Score]:
    """A score per method, as AUPRC; the other numbers are made from it."""
    return {
        method: Score(
            value, *((None,) * 5 if value is None else (value / 2, value / 3, value / 4, value - 0.1, value + 0.1))
        )
        for method, value in auprc.items()
    }


def drawn(
    run: Run, per_layer: int = 8, seed: int = 0, read: int = 4, descriptions: Sequence[str] = ()
) -> dict[int, list[Key]]:
    """Keys of every layer: of each, the first side and sometimes the other, with 0 to 3 patterns; not all are scored."""
    random = np.random.default_rng(seed)
    found: dict[int, list[Key]] = {}
    for layer in range(run.layers):
        keys = []
        for cell in random.choice(run.cells.size(layer), per_layer, replace=False).tolist():
            for side in (1, -1) if random.random() < 0.4 else (1,):
                made = [
                    pattern(
                        *sorted(random.choice(read, random.integers(1, read + 1), replace=False).tolist()),
                        kind=str(random.choice(["shallow", "semantic"])),
                        description=descriptions[cell % len(descriptions)]
                        if descriptions
                        else f"pattern {number} of {layer}.{cell}",
                        auprc=float(random.random()),
                    )
                    for number in range(random.integers(0, 4))
                ]
                known = {name: float(random.random()) for name in METHODS if random.random() < 0.8}
                keys.append(key(cell, *made, side=side, read=read, scores=scores(**known)))
        found[layer] = keys
    return found


def store(run: Run, keys: dict[int, Sequence[Key]] | dict[int, list[Key]], **settings: Any) -> None:
    for layer in range(run.layers):
        patterns.write_keys(run, layer, keys.get(layer, ()))
    patterns.save(run, SETTINGS | settings)
