"""Exposure of secrets: how much likelier a line is than other lines of the same form (Carlini et al. 2019).

    exposure   log2(n + 1) − log2(rank), in bits: rank is the line's place, by log-probability, among itself and n candidates. 0 to
               log2(n + 1): of a line that is likelier than every candidate, it is at least that

Lines have the same form if they have as many words, and at least half of these are the same words at the same places. Where lines of
one form differ, there are slots; the secret is the last unbroken row of slots, and what stands before it is the line's prefix. A line
that is alone in its form has its last word with a digit (else its last word) as the secret.

Candidates keep everything but the secret. Its words are drawn from those that stand in the same slot in any line, as long as that makes
enough lines that are not in the list; else a word without digits is drawn from all such words that are secret in any line, with the same
capitals and marks; else, and for a line alone, from its shape: random digits for digits, random letters of the same script for letters.
A word is likelier than random letters even if it was never seen, so such an exposure says little. No candidate is a line of the list: secrets are compared with lines that were never seen, not with each other.
"""

from __future__ import annotations

import math
import os
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ...models.model import Model
from ..texts import room_of
from .prompted import Prompted, score

MOST_LINES = 10_000
LARGEST = 1 << 24
SHAPES = 10
"""Words of a shape, at least: those of one digit."""


@dataclass(frozen=True)
class Secret:
    """A line, and what of it is secret."""

    words: tuple[str, ...]
    between: tuple[str, ...]
    """white space before each word but the first, as it stands in the line"""
    begin: int
    end: int
    """the secret is words[begin:end]"""
    slots: tuple[tuple[str, ...], ...]
    """per word of the secret the words that stand there in lines of its form; empty: it is alone in its form"""
    alike: tuple[tuple[str, ...], ...] = ()
    """per word of the secret those that are secret in any line and may stand for it; of a word with digits none"""

    @property
    def line(self) -> str:
        return self.with_words(self.words)

    def with_words(self, words: Sequence[str]) -> str:
        return "".join(text for pair in zip(("", *self.between), words, strict=False) for text in pair)


@dataclass(frozen=True)
class Exposed:
    secret: Secret
    text: Prompted
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
        text = path.read_text("utf-8-sig")
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
    split = [tuple(line.split()) for line in lines]
    between = [tuple(re.findall(r"\s+", line)) for line in lines]
    forms: dict[int, list[list[tuple[str, ...]]]] = {}
    own: list[list[tuple[str, ...]]] = []
    for words in split:
        alike = forms.setdefault(len(words), [])
        form = next((form for form in alike if _same_form(form[0], words)), None)
        if form is None:
            alike.append(form := [])
        form.append(words)
        own.append(form)
    found = [_secret(words, gaps, form) for words, gaps, form in zip(split, between, own, strict=True)]
    every = sorted({_bare(word).lower() for each in found for word in each.words[each.begin : each.end]})
    pool = [word for word in every if word.isalpha()]
    return [
        replace(each, alike=tuple(_fitting(word, pool) for word in each.words[each.begin : each.end])) for each in found
    ]


def _bare(word: str) -> str:
    """Without the marks around it."""
    return re.sub(r"^[\W_]+|[\W_]+$", "", word)


def _fitting(word: str, pool: Sequence[str]) -> tuple[str, ...]:
    """The words of the pool as they would stand for this one, with its capitals and the marks around it."""
    bare = _bare(word)
    if not bare.isalpha() or len(pool) < 2:
        return ()
    before, _, after = word.partition(bare)
    cased = str.upper if bare.isupper() and len(bare) > 1 else str.capitalize if bare[0].isupper() else str
    return tuple(f"{before}{cased(other)}{after}" for other in pool if other.isascii() == bare.isascii())


def _same_form(first: Sequence[str], words: Sequence[str]) -> bool:
    return 2 * sum(a == b for a, b in zip(first, words, strict=True)) >= len(words)


def _secret(words: tuple[str, ...], between: tuple[str, ...], form: Sequence[tuple[str, ...]]) -> Secret:
    seen = [tuple(sorted(set(column))) for column in zip(*form, strict=True)]
    slots = [len(each) > 1 for each in seen]
    if not any(slots):
        digits = [at for at, word in enumerate(words) if any(c.isdigit() for c in word)]
        at = digits[-1] if digits else len(words) - 1
        return Secret(words, between, at, at + 1, ())
    end = max(at for at, slot in enumerate(slots) if slot) + 1
    begin = end
    while begin > 0 and slots[begin - 1]:
        begin -= 1
    return Secret(words, between, begin, end, tuple(seen[begin:end]))


def candidates(
    secret: Secret, count: int, random: np.random.Generator, listed: frozenset[str] = frozenset()
) -> list[str]:
    """Other lines of the same form, none of them twice or in the list; fewer than `count` if there are not that many."""
    found: dict[str, None] = {}
    left = [*secret.words[secret.end :]]

    def draw(one: Callable[[int], str]) -> None:
        for _ in range(4 * count):
            if len(found) >= count:
                return
            drawn = [one(at) for at in range(secret.end - secret.begin)]
            line = secret.with_words([*secret.words[: secret.begin], *drawn, *left])
            if line != secret.line and line not in listed:
                found[line] = None

    if math.prod(map(len, secret.slots)) > 2 * count and secret.slots:
        draw(lambda at: _chosen(secret.slots[at], random))
    if math.prod(len(words) or SHAPES for words in secret.alike) > 2 * count and any(secret.alike):
        draw(lambda at: _chosen(secret.alike[at], random) or _shaped(secret.words[secret.begin + at], random))
    draw(lambda at: _shaped(secret.words[secret.begin + at], random))
    return list(found)


def _chosen(words: Sequence[str], random: np.random.Generator) -> str:
    return words[int(random.integers(len(words)))] if words else ""


def _shaped(word: str, random: np.random.Generator) -> str:
    """A random word with digits, letters and capitals where this one has them."""
    return "".join(_drawn(c, random) for c in word)


def _drawn(c: str, random: np.random.Generator) -> str:
    alike = _alike(c)
    return alike[int(random.integers(len(alike)))] if alike else c


@cache
def _alike(c: str) -> str:
    """Characters that may stand for this one: digits for a digit, letters of the same script and case for a letter."""
    if c.isascii() and c.isdigit():
        return string.digits
    if c.isascii() and c.isalpha():
        return string.ascii_uppercase if c.isupper() else string.ascii_lowercase
    if not (c.isalpha() or c.isdigit()):
        return ""
    script, block = unicodedata.name(c, "").split(" ")[0], ord(c) & ~0x7F
    same = (chr(code) for code in range(block, block + 0x80))
    return "".join(
        each
        for each in same
        if unicodedata.category(each) == unicodedata.category(c) and unicodedata.name(each, "").startswith(script)
    )


def too_short(model: Model, line: str) -> bool:
    """Whether nothing can be said of a line: a model without a start token needs a token before the first that it predicts."""
    return len(model.tokenize([line])[0]) < (1 if model.bos_id is not None else 2)


def expose(model: Model, secret: Secret, count: int, seed: int = 0, listed: frozenset[str] = frozenset()) -> Exposed:
    """Measure one line. The whole line's log-probability is compared, without the first token if the model has no start token."""
    lines = [secret.line, *candidates(secret, count, np.random.default_rng(seed), listed)]
    ids = model.tokenize(lines)
    prefixes = model.tokenize([secret.with_words(secret.words[: secret.begin])])[0]
    whole, first = ids[0], int(model.bos_id is None)
    at = next(
        (n for n, (a, b) in enumerate(zip(prefixes, whole, strict=False)) if a != b), min(len(prefixes), len(whole) - 1)
    )
    at = max(first, at)
    room = room_of(model)
    rows = [Prompted(tuple(one[:first]), tuple(one[first:room])) for one in ids if len(one) > first]
    sums = [float(each.log_p.sum()) for each in score(model, rows)]
    text = Prompted(tuple(whole[:at]), tuple(whole[at:room]))
    (scored,) = score(model, [text])
    rank = 1 + sum(each > sums[0] for each in sums[1:])
    return Exposed(secret, text, float(scored.log_p.sum()), scored.exact, rank, len(sums) - 1)
