"""Packed numbers are what they were, and damaged ones are refused."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.patterns import packing
from keyhole.patterns.packing import packed, unpacked


@given(st.lists(st.integers(-(2**61), 2**61)))
def test_numbers_come_back(numbers: list[int]) -> None:
    assert unpacked(packed(np.array(numbers, np.int64))).tolist() == numbers
    assert unpacked(numbers).tolist() == numbers


def test_ascending_numbers_take_little_room() -> None:
    numbers = np.sort(np.random.default_rng(0).integers(0, 10**9, 5000))
    assert len(packed(numbers)) < 6 * len(numbers)


def test_what_is_not_packed_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = packed(np.arange(0, 10_000, 7))
    data = base64.b64decode(whole)
    for wrong in (
        "!",
        whole[:-8],
        base64.b64encode(b"text").decode(),
        base64.b64encode(zlib.compress(b"123")).decode(),
    ):
        with pytest.raises(ValueError):
            unpacked(wrong)
    monkeypatch.setattr(packing, "MOST", 1000)
    with pytest.raises(ValueError, match="too many"):
        unpacked(base64.b64encode(data).decode())
