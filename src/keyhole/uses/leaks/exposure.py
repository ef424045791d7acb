"""Exposure of secrets: how much likelier a line is than other lines of the same form (Carlini et al. 2019).

    exposure   log2(n + 1) − log2(rank), in bits: rank is the line's place, by log-probability, among itself and n candidates. 0 to
               log2(n + 1): of a line that is likelier than every candidate, it is at least that

A line's form is its number of words. Where lines of one form differ, there are slots; the secret is the last unbroken row of slots, and
what stands before it is the line's prefix. Candidates keep everything but the secret, and draw each of its words from those that stand in
that slot in any line. A line that is alone in its form, or equal to the others in every word, has its last word with a digit (else its last
word) as the secret: candidates have random digits for digits and random letters for letters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ...models.model import Model
from .said import Said, hear

MOST_LINES = 10_000
LARGEST = 1 << 24
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Secret:
    """A line, and what of it is secret."""

    words: tuple[str, ...]
    begin: int
    end: int
    """the secret is words[begin:end]"""
    slots: tuple[tuple[str, ...], ...]
    """per word of the secret the words to draw from; empty: its shape"""

    @property
    def line(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Exposed:
    secret: Secret
    said: Said
    """prefix and the rest of the line, from the secret on"""
    log_prob: float
    extracted: int
    rank: int
    candidates: int

    @property
    def highest(self) -> float:
        return float(np.log2(self.candidates + 1))

    @property
    def exposure(self) -> float:
        return self.highest - float(np.log2(self.rank))


def read_lines(name: str | os.PathLike[str]) -> list[str]:
    """The lines of a list of secrets, each once."""
    path = Path(name)
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(
                f"The list of secrets {path} has more than {LARGEST >> 20} MB. Give the lines that matter."
            )
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"The list of secrets {path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"The list of secrets {path} is not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8."
        ) from None
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not lines:
        raise UsageError(f"The list of secrets {path} has no line. Write one secret per line.")
    if len(lines) > MOST_LINES:
        raise UsageError(
            f"The list of secrets {path} has {len(lines):,} lines, and at most {MOST_LINES:,} are looked at."
        )
    return lines


def secrets(lines: Sequence[str]) -> list[Secret]:
    """What of each line is secret, by the other lines of its form."""
    forms: dict[int, list[tuple[str, ...]]] = {}
    split = [tuple(line.split()) for line in lines]
    for words in split:
        forms.setdefault(len(words), []).append(words)
    return [_secret(words, forms[len(words)]) for words in split]


def _secret(words: tuple[str, ...], form: Sequence[tuple[str, ...]]) -> Secret:
    seen = [tuple(sorted(set(column))) for column in zip(*form, strict=True)]
    slots = [len(each) > 1 for each in seen]
    if not any(slots):
        digits = [at for at, word in enumerate(words) if any(c.isdigit() for c in word)]
        at = digits[-1] if digits else len(words) - 1
        return Secret(words, at, at + 1, ())
    end = max(at for at, slot in enumerate(slots) if slot) + 1
    begin = end
    while begin > 0 and slots[begin - 1]:
        begin -= 1
    return Secret(words, begin, end, tuple(seen[begin:end]))


def candidates(secret: Secret, count: int, random: np.random.Generator) -> list[str]:
    """Other lines of the same form, none of them twice; fewer than `count` if there are not so many."""
    found: dict[str, None] = {}
    for _ in range(4 * count):
        if len(found) >= count:
            break
        drawn = (
            [slot[int(random.integers(len(slot)))] for slot in secret.slots]
            if secret.slots
            else [_shaped(word, random) for word in secret.words[secret.begin : secret.end]]
        )
        line = " ".join([*secret.words[: secret.begin], *drawn, *secret.words[secret.end :]])
        if line != secret.line:
            found[line] = None
    return list(found)


def _shaped(word: str, random: np.random.Generator) -> str:
    """A random word with digits, letters and capitals where this one has them."""

    def one(c: str) -> str:
        if c.isdigit():
            return str(int(random.integers(10)))
        if not c.isalpha():
            return c
        drawn = LETTERS[int(random.integers(len(LETTERS)))]
        return drawn.upper() if c.isupper() else drawn

    return "".join(map(one, word))


def expose(model: Model, secret: Secret, count: int, seed: int = 0) -> Exposed:
    """Measure one line. The whole line's log-probability is compared, from its second token on: what stands before the secret is the
    same in all candidates, so only the secret decides."""
    lines = [secret.line, *candidates(secret, count, np.random.default_rng(seed))]
    ids = model.tokenize(lines)
    prefixes = model.tokenize([" ".join(secret.words[: secret.begin])])[0]
    whole = ids[0]
    if len(whole) < 2:
        raise UsageError(f"The secret {secret.line!r:.60} is one token: nothing can be said of it. Give longer lines.")
    at = next(
        (n for n, (a, b) in enumerate(zip(prefixes, whole, strict=False)) if a != b), min(len(prefixes), len(whole) - 1)
    )
    at = max(1, at)
    sums = [
        float(each.log_p.sum())
        for each in hear(model, [Said((one[0],), tuple(one[1:])) for one in ids if len(one) > 1])
    ]
    said = Said(tuple(whole[:at]), tuple(whole[at:]))
    (heard,) = hear(model, [said])
    rank = 1 + sum(each > sums[0] for each in sums[1:])
    return Exposed(secret, said, float(heard.log_p.sum()), heard.exact, rank, len(sums) - 1)
