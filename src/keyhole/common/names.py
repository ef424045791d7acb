"""Names and tags that people type: any script, no characters that cannot be seen.

A pattern stands here once and is used in Python, in JSON Schema and in the page's script, so it has only what all three read alike.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any

from ..errors import UsageError

_UNSEEN = r"\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\uffff"
"""Control characters, halves of characters, marks that turn the direction of text. Joiners stay: emoji and some scripts need them."""
_SIGNS = r"\u0020-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e\u00a0-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u2000-\u206f\u3000-\u3004"
"""Spaces, punctuation and signs, which nothing begins with."""
NAME = re.compile(rf"[^{_UNSEEN}{_SIGNS}][^{_UNSEEN}\u002f\u005c]{{0,59}}")
"""The name of a person: up to 60 characters, the first a letter, a digit or a symbol such as an emoji; no slashes."""
TAG = re.compile(rf"[^{_UNSEEN}\u0020\u00a0\u002c\u3000][^{_UNSEEN}\u002c]{{0,39}}")
"""A tag: up to 40 characters without a comma."""
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_\-]{0,39}", re.ASCII)


def tidy(text: Any, pattern: re.Pattern[str], advice: str) -> str:
    """A text in one form: composed characters (NFC), single spaces. An error, with the text and the advice, if it does not match."""
    if isinstance(text, str) and pattern.fullmatch(text):
        tidied = " ".join(unicodedata.normalize("NFC", text).split())
        if pattern.fullmatch(tidied):
            return tidied
    raise UsageError(f"{text!r:.80} cannot be used: {advice}")


def same(name: str) -> str:
    """Two names are one person's if this is equal: upper and lower case do not count."""
    return unicodedata.normalize("NFC", name.lower())


def file_name(name: str) -> str:
    """What the file of a person is called: the name itself if it is plain (a to z, digits, - and _), else what is left of it in plain
    letters, a dot and a hash, so that two persons never share a file."""
    known = same(name)
    if _PLAIN.fullmatch(known):
        return known
    letters = unicodedata.normalize("NFKD", known).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^a-z0-9]+", "-", letters)[:24].strip("-") or "name"
    return f"{readable}.{hashlib.sha256(known.encode()).hexdigest()[:32]}"
