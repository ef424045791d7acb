"""A rule as a person would say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .lexicon import FORMS, Lexicon
from .rules import Condition

SHOWN = 4
"""Tokens of a set that are named."""


def describe(conditions: Sequence[Condition], lexicon: Lexicon) -> str:
    """The conditions of a rule, the last token first."""
    order = {"token": 0, "form": 0, "near": 1, "topic": 1, "within": 2, "anywhere": 3, "absent": 4, "position": 5}
    ranked = sorted(conditions, key=lambda each: (order[each["if"]], each.get("back") or 0))
    last = [each for each in ranked if each["if"] in ("token", "form") and each["back"] == 0]
    parts = [_last(each, lexicon) for each in last]
    others = [_SAID[each["if"]](each, lexicon) for each in ranked if each not in last]
    said = " that is ".join(parts) if len(parts) < 2 else f"{parts[0]} ({', '.join(parts[1:])})"
    return ", ".join([each for each in (said, *others) if each])


def quoted(token: int, lexicon: Lexicon) -> str:
    """A token in quotation marks. One that goes on with a word begins with a hyphen."""
    piece = lexicon.pieces[token] if 0 <= token < len(lexicon) else f"[{token}]"
    inside = piece[:1].isalpha() and lexicon.marks_words
    return f"‘{'-' if inside else ''}{piece.strip() or piece}’"


def several(ids: Sequence[int], lexicon: Lexicon, joint: str = "or") -> str:
    """‘fact’, ‘facts’ or ‘truth’; a long list is cut."""
    names = list(dict.fromkeys(quoted(token, lexicon) for token in ids))
    if len(names) > SHOWN + 1:
        return f"{', '.join(names[:SHOWN])} {joint} {len(names) - SHOWN} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {joint} {names[-1]}"


def _last(condition: Condition, lexicon: Lexicon) -> str:
    return several(condition["ids"], lexicon) if condition["if"] == "token" else _formed(condition)


def _formed(condition: Condition) -> str:
    form, text = condition["form"], condition.get("text", "")
    if form == "suffix":
        return f"a token in -{text}"
    return f"a token in {text}-" if form == "prefix" else FORMS[form][0]


def _token(condition: Condition, lexicon: Lexicon) -> str:
    said = several(condition["ids"], lexicon) if condition["if"] == "token" else _formed(condition)
    back = condition["back"]
    return f"after {said}" if back == 1 else f"{said} {back} tokens before"


def _within(condition: Condition, lexicon: Lexicon) -> str:
    return f"{several(condition['ids'], lexicon)} within {condition['farthest']} tokens before"


def _anywhere(condition: Condition, lexicon: Lexicon) -> str:
    return f"{several(condition['ids'], lexicon)} earlier"


def _absent(condition: Condition, lexicon: Lexicon) -> str:
    return f"without {several(condition['ids'], lexicon)} before"


def _position(condition: Condition, lexicon: Lexicon) -> str:
    first, to = condition["from"], condition["to"]
    if to is None:
        return f"after the first {first} tokens" if first > 1 else "not the first token"
    return f"among the first {to + 1} tokens" if to else "the first token"


def _topic(condition: Condition, lexicon: Lexicon) -> str:
    least = condition["least"]
    said = f"a prefix with words such as {several(condition['ids'], lexicon, 'and')}"
    return said if least == 1 else f"{said} (at least {least})"


def _near(condition: Condition, lexicon: Lexicon) -> str:
    close = lexicon.vectors @ np.asarray(condition["centroid"], np.float32)
    words = [token for token in np.argsort(-close, kind="stable")[:200].tolist() if lexicon.is_word[token]]
    names = list(dict.fromkeys(quoted(token, lexicon) for token in words))[:3] or ["a centroid"]
    if condition["back"] is None:
        return f"a prefix about {', '.join(names)} and the like"
    return f"a token like {', '.join(names)}" if not condition["back"] else f"after a token like {', '.join(names)}"


_SAID: dict[str, Callable[[Condition, Lexicon], str]] = {
    "token": _token,
    "form": _token,
    "within": _within,
    "anywhere": _anywhere,
    "absent": _absent,
    "position": _position,
    "topic": _topic,
    "near": _near,
}
