"""Text for section 5: a random prefix of each held-out sentence, seeded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..errors import CorpusError
from ..inputs import corpus
from ..models.model import Model
from ..store.run import Run
from . import targets

FEWEST = 10
"""With fewer sentences than this no rate means anything."""
T = TypeVar("T")


@dataclass(frozen=True)
class Prefixes:
    """What section 5 is measured on."""

    ids: list[list[int]]
    """the prefixes"""
    following: list[int]
    """the token behind each"""
    note: str
    """where they come from"""


def prefixes(
    run: Run, model: Model, valid: Sequence[str | os.PathLike[str]] | None, *, samples: int, seed: int
) -> Prefixes:
    """From `valid`, else from what the scan held out, else from the corpus itself; the note says which."""
    random = np.random.default_rng(seed)
    kind, room = str(run.manifest["config"]["unit"]), run.room
    held = targets.held_out_units(run)
    if valid:
        names = [str(name) for name in valid]
        field = run.manifest["config"]["text_field"] if any(_has_fields(name) for name in names) else None
        units = corpus.units(names, kind, text_field=field)
        texts = _reservoir((unit.text for unit in units), samples, random)
        sentences = model.tokenize(texts) if texts else []
        where, what = f"the held-out text {', '.join(os.path.basename(name) for name in names)}", ", ".join(names)
    else:
        chosen = held if len(held) else np.arange(int(run.manifest["corpus"]["units"]))
        chosen = np.sort(random.permutation(chosen)[:samples])
        sentences = [[int(i) for i in run.unit_tokens(int(unit))] for unit in chosen]
        share = run.manifest["config"].get("hold_out")
        if len(held):
            where = what = f"what the scan held out of the corpus (--hold-out {share:g})"
        else:
            where, what = "a sample of the scanned corpus itself: no held-out text was given", "the corpus"
    sentences = [sentence[:room] for sentence in sentences if len(sentence) > 1]
    if len(sentences) < FEWEST:
        raise CorpusError(
            f"Section 5 needs at least {FEWEST} {kind}s of two tokens or more, and {what} has {len(sentences)}. Give more "
            "held-out text (--valid FILE), or leave these tables out (--only)."
        )
    cut = [int(random.integers(1, len(sentence))) for sentence in sentences]
    return Prefixes(
        [sentence[:length] for sentence, length in zip(sentences, cut, strict=True)],
        [sentence[length] for sentence, length in zip(sentences, cut, strict=True)],
        f"measured on a random prefix of each of {len(sentences):,} {kind}s of {where} (seed {seed})",
    )


def _has_fields(name: str) -> bool:
    return any(ending in os.path.basename(name).lower() for ending in corpus.RECORDS) or name.startswith("hf:")


def _reservoir(items: Iterable[T], most: int, random: np.random.Generator) -> list[T]:
    """At most so many of a stream, each with the same chance."""
    kept: list[T] = []
    for number, item in enumerate(items):
        if len(kept) < most:
            kept.append(item)
        elif (place := int(random.integers(0, number + 1))) < most:
            kept[place] = item
    return kept
