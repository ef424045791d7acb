"""Batches by length, against their definition."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keyhole.common.batching import batch_by_length


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 100), st.integers(0, 2))
def test_every_sequence_is_in_one_batch_that_fits_and_is_full(lengths: list[int], tokens: int, n_special: int) -> None:
    batches = batch_by_length(lengths, tokens, n_special=n_special)
    groups = [group.tolist() for group in batches]
    assert len(groups) == len(batches)
    flat = [number for group in groups for number in group]
    assert flat == sorted(range(len(lengths)), key=lambda number: -lengths[number])  # longest first, else in order
    for number, group in enumerate(groups):
        padded = max(1, lengths[group[0]] + n_special)
        assert len(group) == 1 or len(group) * padded <= tokens
        if number + 1 < len(groups):  # one more would be too many
            assert (len(group) + 1) * padded > tokens


def test_arrays_are_taken_too_and_no_model_library_is_needed() -> None:
    assert [group.tolist() for group in batch_by_length(np.array([1, 5, 2], np.int32), 8)] == [[1], [2, 0]]
    code = "import sys, keyhole.common.batching; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
