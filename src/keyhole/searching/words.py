"""The words of a text, and the buckets over which they are distributed. The page follows the same rules (static/text.js)."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from ..store.run import Run


@cache
def word() -> re.Pattern[str]:
    """A maximal run of letters, marks, digits and apostrophes: `[\\p{L}\\p{M}\\p{N}'’]+`, which Python's re cannot spell."""
    ranges: list[list[int]] = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] in "LMN":
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    letters = "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges)
    return re.compile(f"[{letters}'’]+")


def words(text: str) -> list[str]:
    """The words of a text, in order, lower-cased."""
    return [found.lower() for found in word().findall(text)]


def bucket(word: str, buckets: int) -> int:
    """FNV-1a, 32 bits, of the word's UTF-8: the page computes the same."""
    value = 0x811C9DC5
    for byte in word.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value % buckets


def buckets(run: Run) -> int:
    """The number of answers over which the words are distributed: large enough that each stays small."""
    tokens = int(run.manifest["corpus"]["tokens"])
    return 64 if tokens < 2_000_000 else 256 if tokens < 20_000_000 else 1024
