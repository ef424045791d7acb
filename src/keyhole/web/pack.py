"""Answers in their small form: an export has one file per cell, so every byte of a cell counts. static/unpack.js undoes it.

Text of the corpus and tokens are plain strings, never markup. What is not a finite number becomes null.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

SEPARATOR = "|"
SHADES = "".join(chr(code) for code in range(35, 127) if chr(code) != "\\")[:91]
"""One letter per shade, each of which JSON writes as a single character: the middle one is 0, the first and the last are ∓1."""
_LETTERS = np.array([ord(SHADES[45 + round(shade * 45 / 127)]) for shade in range(-127, 128)], np.uint8)
LEVELS = 254
"""A measure of the map is quantized to 0 … LEVELS."""
UNKNOWN = 255
"""The byte of a cell without a number."""


def compact(value: Any) -> bytes:
    """Strict JSON without spaces."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a character (a lone surrogate), from a damaged run or a file's name
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def short(value: Any, digits: int = 5) -> float | None:
    """A number rounded to the digits a reader needs; None if it is not finite."""
    number = float(value)
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def shorts(array: npt.NDArray[Any], digits: int = 4) -> list[float | None]:
    return [short(value, digits) for value in array.tolist()]


def packed(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def joined(tokens: list[str]) -> str | list[str]:
    """Tokens as one string with separators; as a list if a token contains the separator."""
    return tokens if any(SEPARATOR in token for token in tokens) else SEPARATOR.join(tokens)


def shades(row: npt.NDArray[np.int8]) -> str:
    """One letter of `SHADES` per token."""
    return _LETTERS[np.maximum(row, -127).astype(np.int16) + 127].tobytes().decode("ascii")


class Quantized(NamedTuple):
    """A measure of every cell, one byte per cell."""

    lo: float
    hi: float
    data: npt.NDArray[np.uint8]
    named: bool = False
    """whether the bytes are levels that have names"""


def quantized(numbers: npt.NDArray[Any], *, log: bool = False, chunk: int = 1 << 20) -> Quantized:
    """Numbers as bytes from 0 to LEVELS, in chunks: there may be millions. `UNKNOWN` if a number is not finite."""
    parts = [slice(begin, begin + chunk) for begin in range(0, len(numbers), chunk)]

    def placed(part: slice) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        array = np.asarray(numbers[part], np.float64)
        known = np.isfinite(array) & (array > 0 if log else True)
        return known, np.log(np.where(known, array, 1)) if log else array

    low, high = math.inf, -math.inf
    for part in parts:
        known, array = placed(part)
        if known.any():
            low, high = min(low, float(array[known].min())), max(high, float(array[known].max()))
    if low > high:
        low, high = 0.0, 0.0 if log else 1.0
    low = low if log else min(low, 0.0)
    data = np.full(len(numbers), UNKNOWN, np.uint8)
    for part in parts:
        known, array = placed(part)
        data[part][known] = np.rint(LEVELS * (array[known] - low) / ((high - low) or 1)).astype(np.uint8)
    return Quantized(math.exp(low) if log else low, math.exp(high) if log else high, data)


def leveled(levels: npt.NDArray[Any]) -> Quantized:
    """Levels 0, 1, … that have names, as bytes."""
    known = np.isfinite(levels)
    data = np.full(levels.shape, UNKNOWN, np.uint8)
    data[known] = levels[known].astype(np.uint8)
    return Quantized(0, LEVELS, data, named=True)
