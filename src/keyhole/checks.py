"""Checks of options that several functions share."""

from __future__ import annotations

import operator
from typing import Any

from .errors import UsageError


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
        raise UsageError(f"{name} is {number:.3g}; it must be a whole number of at most {most:,}.")
    return number
