"""Long lists of whole numbers as short text, so that the weights of a key fit into a line of JSON.

Numbers are packed as the differences between neighbours, 8 bytes each, compressed (zlib) and written in base64. Differences of
ascending numbers are small and compress well.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
MOST = 1 << 24
"""Numbers, at most, that are unpacked: what claims to be more is damaged."""


def packed(numbers: npt.NDArray[Any]) -> str:
    differences = np.diff(numbers.astype(np.int64), prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(differences.tobytes(), 6)).decode("ascii")


def unpacked(text: str | Sequence[int]) -> Ints:
    """What `packed` was given; a list of numbers as it is. ValueError if the text is not of that form."""
    if not isinstance(text, str):
        return np.asarray(text, np.int64)
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(base64.b64decode(text, validate=True), 8 * MOST)
    except zlib.error as error:
        raise ValueError(f"packed numbers cannot be read: {error}") from None
    if not reader.eof or len(data) % 8:
        raise ValueError("packed numbers are incomplete, or too many.")
    return np.cumsum(np.frombuffer(data, "<i8"), dtype=np.int64)
