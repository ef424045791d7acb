"""Merging partial results: any grouping in any order gives the bytes of one pass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keyhole
from keyhole.errors import ShardError
from keyhole.scanning import merge
from keyhole.scanning.merge import merge_states, state_of
from keyhole.scanning.orientation import State

SHARDS = 6


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one
    )


@pytest.fixture(scope="module", params=["sentence", "prefix", "split"])
def scanned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[State, list[State], Any]:
    """One pass over a corpus, the shards of another, and where units begin if a unit may be in several shards."""
    folder = tmp_path_factory.mktemp("merging")
    text = folder / "text.txt"
    rng = random.Random(3)
    words = ["the", "cat", "sat", "on", "a", "mat", "of", "Paris"]
    text.write_text("\n".join(" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(60)) + "\n")
    options: dict[str, Any] = {"top": 3, "unit": "line", "batch_tokens": 60, "per": "sentence"}
    if request.param == "prefix":
        options["per"] = "prefix"
    if request.param == "split":
        options |= {"unit": "document", "context": 8}
    one = keyhole.scan(tiny("llama"), [text], folder / "one", **options)
    parts = [
        keyhole.scan(tiny("llama"), [text], folder / f"{i}", shard=(i, SHARDS), **options) for i in range(1, SHARDS + 1)
    ]
    assert bool(one.manifest["corpus"]["split_units"]) == (request.param == "split")
    offsets = one.unit_offsets if request.param == "split" else None
    return state_of(one), [state_of(part) for part in parts], offsets


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.randoms(use_true_random=False))
def test_any_grouping_in_any_order_is_one_pass(scanned: tuple[State, list[State], Any], order: random.Random) -> None:
    whole, parts, offsets = scanned
    left = list(parts)
    while len(left) > 1:  # merge a random few of those that are left, until one is left
        few = order.sample(range(len(left)), order.randint(2, len(left)))
        merged = merge_states([left[i] for i in few], offsets)
        left = [state for i, state in enumerate(left) if i not in few] + [merged]
    assert same(left[0], whole)


def test_lists_are_merged_in_parts_of_any_size(
    scanned: tuple[State, list[State], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts, offsets = scanned
    monkeypatch.setattr(merge, "MERGED_LISTS", 7)
    assert same(merge_states(parts, offsets), whole)


def test_what_is_merged_stays_as_it_was(scanned: tuple[State, list[State], Any]) -> None:
    _, parts, offsets = scanned
    before = [{name: np.array(array) for name, array in state.items()} for state in parts]
    merge_states(parts, offsets)
    assert all(map(same, parts, before))


def test_merging_nothing_or_what_does_not_fit_is_refused(scanned: tuple[State, list[State], Any]) -> None:
    _, parts, _ = scanned
    with pytest.raises(ShardError, match="No shards"):
        merge_states([])
    other = {**parts[1], "keys": parts[1]["keys"][..., :2]}
    with pytest.raises(ShardError, match="different scans"):
        merge_states([parts[0], other])


def test_the_state_of_a_run_gives_the_run_again(tmp_path: Path, text: Path) -> None:
    """One shard of one is a whole pass, so merging it must change nothing."""
    whole = keyhole.scan(tiny("llama"), [text], tmp_path / "whole", top=3, unit="line")
    part = keyhole.scan(tiny("llama"), [text], tmp_path / "part", top=3, unit="line", shard="1/1")
    assert keyhole.merge(tmp_path / "merged", [part.path]).manifest == whole.manifest
