"""Answers in their small form: an export has one file per cell, so every byte of a cell counts. static/unpack.js undoes it.

Text of the corpus and tokens are plain strings, never markup. What is not a finite number becomes null.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from . import schema

SEPARATOR = "|"
SHADES = "".join(chr(code) for code in range(35, 127) if chr(code) != "\\")[:91]
"""One letter per shade, each of which JSON writes as a single character: the middle one is 0, the first and the last are ∓1."""
_LETTERS = np.array([ord(SHADES[45 + round(shade * 45 / 127)]) for shade in range(-127, 128)], np.uint8)
LEVELS = 254
"""A measure of the map is quantized to 0 … LEVELS."""
UNKNOWN = 255


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


def measure(
    name: str,
    title: str,
    side: Literal["key", "value"],
    numbers: npt.NDArray[Any],
    *,
    format: Literal["percent", "number"] = "number",
    log: bool = False,
) -> schema.Measure:
    """A measure of every cell for the map, one byte per cell."""
    array = np.asarray(numbers, np.float64)
    known = np.isfinite(array) & (array > 0 if log else True)
    lo, hi = (float(array[known].min()), float(array[known].max())) if known.any() else (0.0, 1.0)
    lo = lo if log else min(lo, 0.0)
    placed = np.log(np.where(known, array, 1)) if log else array
    low, high = (math.log(lo), math.log(hi)) if log and known.any() else (lo, hi)
    data = np.full(array.shape, UNKNOWN, np.uint8)
    data[known] = np.rint(LEVELS * (placed[known] - low) / ((high - low) or 1)).astype(np.uint8)
    return schema.Measure(name, title, side, short(lo), short(hi), format, "log" if log else "linear", packed(data))


def named(
    name: str, title: str, side: Literal["key", "value", "people"], levels: npt.NDArray[Any], kinds: tuple[str, ...]
) -> schema.Measure:
    """A measure whose levels 0, 1, … have names."""
    known = np.isfinite(levels)
    data = np.full(levels.shape, UNKNOWN, np.uint8)
    data[known] = levels[known].astype(np.uint8)
    return schema.Measure(name, title, side, 0, LEVELS, "number", "linear", packed(data), list(kinds))
