"""Checks of options that several functions share."""

from __future__ import annotations

import operator
from typing import Any

from ..errors import UsageError

LIMITS = {"top": 1 << 20, "context": 1 << 30, "batch_tokens": 1 << 30, "max_tokens": 1 << 40}
"""The largest value of each option of a scan that is a whole number."""


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number of at least `least`, and at most `most` if there is one; numpy's integers are whole numbers too."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is {value!r:.60}; it must be a whole number.") from None
    if number < least:
        raise UsageError(f"{name} is {number}; it must be a whole number of at least {least}.")
    if most is not None and number > most:
        raise UsageError(f"{name} is {number:.6g}; it must be a whole number of at most {most:,}.")
    return number
