"""Planted truth: what a key was built to wait for is found, at the right side; for keys that wait for nothing, nothing is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from planted_runs import Planted, found

import keyhole
from keyhole.patterns import rules
from keyhole.patterns.discovery import LARGEST_Q
from keyhole.patterns.find import patterns
from keyhole.patterns.lexicon import Lexicon
from keyhole.store import patterns as stored
from keyhole.store.patterns import Key

pytestmark = pytest.mark.slow(seconds=10)

AT_LEAST = 0.95
Keys = dict[tuple[int, int, int], Key]


@pytest.fixture(scope="module")
def mined(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[keyhole.Run, Keys]]:
    """A copy of the planted run with the patterns of all its keys, and these by layer, cell and side."""
    path: Path = tmp_path_factory.mktemp("found") / "run"
    shutil.copytree(planted.run.path, path)
    run = patterns(
        path,
        cells="all",
        tokens=200_000,
        held_out=[planted.held],
        score=False,
        baselines=False,
        ablate=0,
        processes=1,
        model=planted.model,
    )
    keys = {
        (layer, key.cell, key.side): key
        for layer in range(run.layers)
        for key in stored.read_keys(run, layer, evidence=True)
    }
    yield run, keys
    shutil.rmtree(path)


def test_what_is_planted_is_found_at_the_right_side(planted: Planted, mined: tuple[keyhole.Run, Keys]) -> None:
    run, keys = mined
    text = replace(planted.fresh, lexicon=Lexicon.of(run), cache={})
    missed = []
    for key in planted.keys:
        fired = rules.fire(keys[key.layer, key.cell, key.side], text)
        if not found(fired.positions[fired.pattern >= 0], key, text):
            missed.append((key.kind, key.cell, key.side))
    assert len(missed) <= (1 - AT_LEAST) * len(planted.keys), missed


def test_a_side_of_which_nothing_is_planted_has_no_pattern(planted: Planted, mined: tuple[keyhole.Run, Keys]) -> None:
    """The other side of a planted key is silent, or planted too."""
    _, keys = mined
    planned = {(key.layer, key.cell, key.side) for key in planted.keys}
    others = [(layer, cell, -side) for layer, cell, side in planned if (layer, cell, -side) not in planned]
    assert len(others) > 10
    assert not [at for at in others if at in keys and keys[at].patterns]


def test_noise_keys_have_no_patterns_beyond_the_stated_rate(planted: Planted, mined: tuple[keyhole.Run, Keys]) -> None:
    _, keys = mined
    assert len(planted.noise) > 50
    assert {at[:2] for at in keys} >= set(planted.noise)
    false = {at[:2] for at, key in keys.items() if key.patterns} & set(planted.noise)
    assert len(false) <= LARGEST_Q * len(planted.noise), false


def test_every_key_was_looked_at_and_kept_its_side(planted: Planted, mined: tuple[keyhole.Run, Keys]) -> None:
    run, keys = mined
    sides = (1, -1) if run.gated else (1,)
    alive = [(layer, cell) for layer, cell in run.cells if run.layer(layer).units[cell, 0] >= 0]
    assert set(keys) == {(*at, side) for at in alive for side in sides}
    for key in keys.values():
        for pattern in key.patterns:
            assert pattern.q_value <= LARGEST_Q
            assert len(pattern.triggers) >= 3
            assert 3 <= pattern.hits <= pattern.matches
