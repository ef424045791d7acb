"""Made-up patterns on a run, for the tests of what shows them: nothing is found or scored here."""

from __future__ import annotations

from typing import Any

import numpy as np

import keyhole
from keyhole.store import patterns
from keyhole.store.patterns import Key, Pattern, Score

SETTINGS = {
    "cells": 8,
    "seed": 0,
    "held_out": {"source": "valid", "files": "/somewhere/valid.txt", "tokens": 12_345, "documents": 67},
}


def pattern(description: str, triggers: tuple[int, ...], ids: list[int], **others: Any) -> Pattern:
    numbers = {"matches": 40, "hits": 34, "lift": 812.5, "bits": 97.0, "q_value": 0.0021, "auprc": 0.8, "f1": 0.7}
    return Pattern(
        **{"kind": "shallow", "pearson": 0.6} | numbers | others,
        description=description,
        triggers=triggers,
        rule={"all": [{"if": "token", "back": 0, "ids": ids}], "score": 0.85},
    )


def write(run: keyhole.Run, each: int = 8) -> None:
    """Patterns of the first cells of every layer. Of each eight: 0 has three patterns and everything measured, 1 a pattern of the
    other side only, 2 none, 3 and later one each; cells after them were not looked at. Descriptions name their cell."""
    size = len(run.vocabulary)
    for layer in range(run.layers):
        keys = []
        for cell in range(min(each, run.cells.size(layer))):
            place = run.cells.place(layer, cell)
            name, seed = run.cells.address(place), np.random.default_rng(place)
            ids = [int(token) for token in seed.choice(size, 3, replace=False)]
            pieces = ", ".join(run.vocabulary.piece(token) for token in ids)
            if cell % 8 == 0:
                found = (
                    pattern(f"last token in {{{pieces}}}, as {name} says", (0, 1, 2, 4), ids, auprc=0.81),
                    pattern("topic: <b>cats</b> and mats", (1, 3, 5), [], kind="semantic", auprc=0.32, promoted=0.12)
                    if layer
                    else pattern("topic: <b>cats</b> and mats", (1, 3, 5), [], kind="semantic", auprc=0.32),
                    pattern("ends in \u202e‘ing’", (0, 1, 3), ids[:1], auprc=0.11),
                )
                scores = {
                    method: Score(0.7 - 0.08 * i, 0.75 - 0.08 * i, 0.5, 0.4, 0.65 - 0.08 * i, 0.74 - 0.08 * i)
                    for i, method in enumerate(patterns.METHODS)
                }
                keys.append(Key(cell, 1, "both", 0.5, found, 6, (0.84, 0.31, -0.02), scores))
                keys.append(Key(cell, -1, "shallow", 0.5, (pattern("the other way", (0, 1, 2), ids),), 6))
            elif cell % 8 == 1:
                keys.append(Key(cell, 1, "none", 0.5, (), 6))
                keys.append(Key(cell, -1, "shallow", 0.5, (pattern(f"only below zero: {name}", (0, 2, 3), ids),), 6))
            elif cell % 8 == 2:
                keys.append(Key(cell, 1, "none", 0.5, (), 6))
            else:
                auprc = None if cell % 8 == 3 else float(seed.uniform(0.1, 0.9))
                triggers = tuple(range(3 + cell % 3))
                one = pattern(f"‘{pieces}’ of number {cell}", triggers, ids, auprc=auprc, f1=None, pearson=None)
                keys.append(Key(cell, 1, "shallow", 0.5, (one,), 6))
        patterns.write_keys(run, layer, keys)
    patterns.save(run, SETTINGS)
