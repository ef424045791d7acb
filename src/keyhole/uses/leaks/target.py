"""A leak as rankings of cells are asked for it, and as they are tested.

A ranking that is fitted to one prompt may find what makes that prompt work and leave the text where it is: asked for after a few words
more, the model says it again. So a ranking sees the leak's prompt alone and after `CONTEXTS` other texts, and is tested on the
prompt alone and after `CONTEXTS` texts that no ranking saw. Other texts are random places of the same text, `SIZES` tokens long.

Tokens that the model says anyway (its first choice after most prefixes of other places, as the full stop at the end) do not count:
they are no sign that the text is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...models.model import Model
from ..texts import room_of
from .control import random_prefixes
from .prompted import Prompted, score
from .repeats import SEPARATOR, SHORT, Corpus

SIZES = (16, 32, 64)
KEPT, WINDOWS = 128, 16
"""Tokens of a window of other text that should stay as likely, and how many there are."""
LONGEST = 64
"""Tokens of a continuation, at most, whose cells are looked for: the first ones."""
ANYWAY = 0.5
"""A token is said anyway if it is the first choice after at least this share of other prefixes."""


@dataclass(frozen=True)
class Target:
    """Prompts for one text."""

    own: Prompted
    fitted: tuple[Prompted, ...]
    """what rankings see: the own prompt, and it after other texts"""
    unseen: tuple[Prompted, ...]
    """it after further texts, which only tests see"""
    keep: tuple[Prompted, ...] = ()
    """other text, which should stay as likely as it is"""


def targets(model: Model, text: Corpus, leaks: Sequence[Prompted], seed: int = 0) -> list[Target]:
    """The prompts of leaks."""
    random = np.random.default_rng(seed)
    others = [random_prefixes(text, max(1, len(leak.prefix)), random) for leak in leaks]
    rows = [
        Prompted(other, leak.continuation[:LONGEST]) for leak, own in zip(leaks, others, strict=True) for other in own
    ]
    scored = iter(score(model, rows))
    found = []
    for leak, own in zip(leaks, others, strict=True):
        right = np.array([next(scored).right for _ in own]) if own else np.zeros((1, 1), bool)
        short = Prompted(leak.prefix, leak.continuation[:LONGEST])
        said_anyway = right.mean(0) >= ANYWAY
        counted = tuple((~said_anyway).tolist()) if own and not said_anyway.all() else None
        found.append(target(model, text, short._replace(counted=counted), random))
    return found


def target(model: Model, text: Corpus, own: Prompted, random: np.random.Generator) -> Target:
    """The prompts of one text, whose counted tokens are known."""
    room = room_of(model) - len(own.prefix) - len(own.continuation)
    before = [[_context(text, own, min(size, room), random) for size in SIZES] for _ in ("fitted", "unseen")]
    fitted, unseen = ([own.after(each) for each in contexts if each] for contexts in before)
    windows = [_context(text, own, min(KEPT, room_of(model)), random) for _ in range(WINDOWS)]
    keep = [Prompted(each[:1], each[1:]) for each in windows if len(each) > 1]
    return Target(own, (own, *fitted), tuple(unseen), tuple(keep))


def _context(text: Corpus, own: Prompted, size: int, random: np.random.Generator) -> tuple[int, ...]:
    """Text of a random place, without what is asked for; documents may follow each other in it."""
    grams = {own.continuation[at : at + SHORT] for at in range(len(own.continuation) - SHORT + 1)}
    for place in random.integers(0, len(text.flat), 100).tolist():
        ids = [token for token in text.ids(place, place + 2 * size) if token != SEPARATOR][:size]
        if len(ids) == size > 0 and not any(tuple(ids[at : at + SHORT]) in grams for at in range(size)):
            return tuple(ids)
    return ()
