"""What a query says: its terms, the token that each of them means, or the cell or text whose neighbours are asked for.

The page reads a query by the same rules (static/query.js).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MOST_TERMS = 16
"""Terms of a query that are used."""
_QUOTED = re.compile(r'\s*"(.+?)"(?=\s*\Z|\s*\||\s+or\s)', re.IGNORECASE | re.DOTALL)
_BARE = re.compile(r".*?(?=\Z|\||\sor\s)", re.IGNORECASE | re.DOTALL)
_BETWEEN = re.compile(r"\s*(?:\||or(?=\s))", re.IGNORECASE)
_LIKE = re.compile(r"\s*like\s+(.+?)\s*", re.IGNORECASE | re.DOTALL)
_TEXT = re.compile(r'"(.+)"', re.DOTALL)


class Term(NamedTuple):
    text: str
    exact: bool
    """quoted, or typed with a leading space: taken as it stands"""


class Meant(NamedTuple):
    """A token that a term may mean."""

    token: int
    is_it: bool
    """whether it is the term, apart from case and a space; else it only contains it"""


def terms(asked: str) -> list[Term]:
    """The terms of a query, which `or` or `|` separates: `money or dollar`, `" not" | never`."""
    found: list[Term] = []
    rest = asked
    while rest.strip():
        quoted = _QUOTED.match(rest)
        part = quoted or _BARE.match(rest)
        assert part is not None
        exact = quoted is not None or (not found and rest == asked and part[0][:1].isspace())
        text = quoted[1] if quoted else part[0].rstrip() if exact else part[0].strip()
        if text.strip() or quoted:
            found.append(Term(text, exact))
        between = _BETWEEN.match(rest, part.end())
        rest = rest[between.end() if between else part.end() :]
    return found or ([Term(asked.strip(), False)] if asked.strip() else [])


def like(asked: str) -> str | None:
    """What a query asks the neighbours of: an address or a quoted text after `like`; None if it is no such query."""
    match = _LIKE.fullmatch(asked)
    return match[1] if match and (_TEXT.fullmatch(match[1]) or re.search(r"\d[./]\d", match[1])) else None


def unquoted(text: str) -> str | None:
    """What stands between quotes; None if the text is not quoted."""
    match = _TEXT.fullmatch(text)
    return match[1] if match else None


def meant(pieces: Iterable[str], term: Term) -> list[Meant]:
    """The tokens that a term may mean, the likeliest first: the token that begins a word (or, if the term is exact, the token
    itself), the same inside a word, those in another case; then those that contain it."""
    text = term.text
    bare = text.strip() or text
    low = bare.lower()
    first = text if term.exact else f" {bare}"
    found = []
    for token, piece in enumerate(pieces):
        inner = piece.strip() or piece
        if piece == first:
            how = 0
        elif inner == bare:
            how = 1
        elif inner.lower() == low:
            how = 2 if piece.startswith(" ") else 3
        elif low in inner.lower():
            how = 4
        else:
            continue
        found.append((how, len(piece), token))
    return [Meant(token, how < 4) for how, _, token in sorted(found)]
