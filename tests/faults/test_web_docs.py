"""The numbers in the documentation are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.web import connection, guard, live, served

TEXT = (Path(__file__).parents[2] / "docs" / "explorer.md").read_text("utf-8")


@pytest.mark.parametrize(
    "said",
    [
        f"{guard.LARGEST_BODY:,} bytes, within {guard.SLOWEST_BODY:.0f} seconds",
        f"{connection.LARGEST_HEADERS:,} bytes if they come in pieces, within {connection.SLOWEST_HEADERS:.0f} seconds",
        f"{connection.LONGEST_IDLE:.0f} seconds after an answer, {connection.SLOWEST_HEADERS:.0f} seconds if it is new",
        f"nothing of its answer | {connection.SLOWEST_READER:.0f} seconds",
        f"open connections | {connection.MOST_CONNECTIONS}",
        f"{live.LIMITS.prompt_characters:,} characters, {live.LIMITS.prompt_tokens} tokens",
        f"{live.LIMITS.edits}; {live.LIMITS.prompt_tokens} positions each, {live.LIMITS.positions:,} together",
        f"wait for the model | {live.WAITING}",
        f"a continuation | {live.LIMITS.generated_tokens} tokens on each side",
        f"continuations at the same time | {live.GENERATING}",
        f"`{served.HEADER}`",
    ],
)
def test_every_bound_is_documented(said: str) -> None:
    assert said in TEXT
