"""How numbers and tokens are written, alike in terminal, notebook and report."""

from __future__ import annotations

import math

import pytest

from keyhole.views import text


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0.00%"), (1e-9, "<0.01%"), (4.9e-5, "<0.01%"), (1e-4, "0.01%"), (0.5, "50.00%"), (math.nan, "–")],
)
def test_a_share_that_is_not_nothing_is_not_shown_as_nothing(value: float, said: str) -> None:
    assert text.share(value) == said
