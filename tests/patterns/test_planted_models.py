"""Models with planted truth are what they say: keys fire exactly where their patterns hold, noise keys nowhere in particular."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from planted_runs import HOLD_OUT, Planted, agrees, fires, found
from planted_text import LATE, PLANTS, VOCABULARY, Plant, Writer, text_of, tokenizer
from scipy.stats import binom, hypergeom

from keyhole.patterns.text import Text

pytestmark = pytest.mark.slow(seconds=0.6)
ALPHA = 0.01
"""Chance of a false alarm of a test that looks at many conditions, over all of them."""


def named(name: str) -> Plant:
    (found,) = (plant for plant in PLANTS if plant.name == name)
    return found


@pytest.mark.parametrize(
    ("name", "sentence", "holds"),
    [
        ("fact truth claim proof", "the claim of truth", [1, 3]),
        ("ends in -ing", "the man running to running-mid", [2, 4]),
        ("begins with un-", "the unhappy but unkind", [1, 3]),
        ("is capitalised", "the Paris of John", [1, 3]),
        ("is a number", "in 1984 or 7", [1, 3]),
        ("coffee tea wine | strong weak gentle", "the strong coffee of strong the tea weak wine", [2, 8]),
        ("nor | neither", "the neither nor of to nor nor the nor", [2, 5]),
        ("still | not", "the still not still", [1]),
        ("snow | winter", "the snow in winter and so the old of the snow", [10]),
        ("war", "the army of army army to the bomb to", [4, 5, 6, 7, 8]),
        ("half mid semi full", "half the man-half", [0]),
        ("half mid semi full", '"half the man', [1]),
        ("half mid semi full", "man-half the man", []),
        (f"{LATE} tokens or more before it", "the" + " of" * (LATE + 1), [LATE, LATE + 1]),
    ],
)
def test_a_pattern_holds_where_a_reader_says(name: str, sentence: str, holds: list[int]) -> None:
    window = tokenizer().encode(sentence)
    assert VOCABULARY["<unk>"] not in window
    plant = named(name)
    assert [at for at in range(len(window)) if plant.holds(window, at)] == holds
    assert plant.where(text_of([window])).tolist() == holds


def test_the_text_has_every_pattern_and_near_misses(planted: Planted) -> None:
    for text in (planted.text, planted.fresh):
        windows = np.split(text.tokens, text.offsets[1:-1])
        assert len({window.tobytes() for window in windows}) > 0.999 * len(windows)
        assert {len(window) for window in windows} == set(range(8, 21))
        for plant in PLANTS:
            share = len(plant.where(text)) / len(text)
            repeats = plant.kind == "position" and plant.last
            assert 0.0003 < share < 0.001 if repeats else 0.001 < share < 0.005, plant
            if plant.kind in ("bigram", "skip-gram", "absence", "anywhere", "position") and plant.last:
                assert np.isin(text.tokens, list(plant.last)).sum() > 1.7 * share * len(text), plant


def test_the_text_is_read_as_it_was_written(planted: Planted) -> None:
    run = planted.run
    assert np.array_equal(run.tokens, planted.text.tokens)
    assert np.array_equal(run.unit_offsets, planted.text.offsets)
    lines = [line for line in planted.held.read_text(encoding="utf-8").splitlines() if line]
    assert np.concatenate(planted.model.tokenize(lines)).tolist() == planted.fresh.tokens.tolist()
    assert run.manifest["corpus"]["held_out_units"] == pytest.approx(HOLD_OUT * len(planted.text.offsets), rel=0.1)
    assert run.manifest["corpus"]["documents"] == planted.text.documents[-1] + 1


def test_there_are_keys_of_every_kind(planted: Planted) -> None:
    ours = Counter(key.kind for key in planted.keys if key.side == 1)
    kinds = ("token set", "affix", "bigram", "skip-gram", "absence", "anywhere", "topic", "position")
    assert set(ours) == set(kinds)
    assert min(ours.values()) >= 4
    cells = [key.cell for key in planted.keys if key.side == 1]
    others = [key for key in planted.keys if key.side == -1]
    assert len(set(cells)) == len(cells)
    assert {key.cell for key in others} <= set(cells)
    assert len(others) == (4 if planted.model.gated else 0)
    assert len(planted.noise) >= 24
    assert not {cell for _, cell in planted.noise} & set(cells)


@pytest.mark.parametrize("where", ["scanned", "fresh"])
def test_keys_fire_exactly_where_their_patterns_hold(planted: Planted, where: str) -> None:
    text = planted.text if where == "scanned" else planted.fresh
    coefficients = planted.coefficients if where == "scanned" else planted.coefficients_in(text)
    for key in planted.keys:
        ours = key.side * coefficients[:, key.cell]
        strongest = np.flatnonzero(fires(ours))
        assert 0.0003 * len(text) < len(strongest) <= 0.001 * len(text) + 1, key
        assert agrees(strongest, key, text)[0] >= 0.98, key
        assert min(agrees(np.flatnonzero(ours > 0), key, text)) >= 0.98, key


def test_the_other_side_of_a_key_is_silent_or_planted(planted: Planted) -> None:
    both = Counter(key.cell for key in planted.keys)
    for key in planted.keys:
        assert (planted.coefficients[:, key.cell] < 0).any() == (both[key.cell] == 2), key


def test_triggers_carry_the_pattern_at_the_right_side(planted: Planted) -> None:
    run, text = planted.run, planted.text
    orientations = {int(run.orientation[run.cells.place(key.layer, key.cell)]) for key in planted.keys}
    assert orientations == ({1, -1} if planted.model.gated else {1})
    for key in planted.keys:
        cell = run.cell(key.layer, key.cell)
        triggers = cell.triggers if key.side == 1 else cell.triggers_negative
        assert len(triggers) >= 10, key
        for trigger in triggers[:25]:
            window = text.tokens[text.offsets[trigger.unit] : text.offsets[trigger.unit + 1]].tolist()
            assert key.holds(window, trigger.position), key


def test_which_occurrences_are_strongest_has_no_pattern(planted: Planted) -> None:
    """Otherwise a narrower rule than the planted one would be the right answer."""
    text, seen = planted.text, []
    for key in planted.keys:
        truth = key.plant.where(text)
        strong = fires(key.side * planted.coefficients[:, key.cell])[truth]
        for back in range(4):
            tokens, number = np.unique(text.token(truth, back), return_inverse=True)
            hits, counts = np.bincount(number[strong], minlength=len(tokens)), np.bincount(number)
            seen += [(hit, len(truth), strong.sum(), count) for hit, count in zip(hits, counts, strict=True)]
    hits, total, drawn, counts = np.array(seen).T
    assert hypergeom.sf(hits - 1, total, drawn, counts).min() * len(seen) > ALPHA


def met(text: Text, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of the positions meet each of some simple conditions: a token at one of the last places, a token anywhere in the
    prefix, a number of tokens before it."""
    size = len(VOCABULARY)
    before = [text.token(positions, back) for back in range(3)]
    begins = text.offsets[text.windows[positions]]
    tokens = text.tokens.tolist()
    anywhere = [token for begin, at in zip(begins, positions, strict=True) for token in set(tokens[begin : at + 1])]
    counts = [np.bincount(each[each >= 0], minlength=size) for each in (*before, np.array(anywhere))]
    return np.concatenate([*counts, np.bincount(text.places[positions], minlength=100)])


def test_noise_keys_fire_nowhere_in_particular(planted: Planted) -> None:
    """No simple condition is met more often where they fire than chance allows; one that planted keys have is noticed."""
    text = planted.text
    shares = met(text, np.arange(len(text))) / len(text)
    frequent = shares > 3e-4

    def least(cell: int, side: int) -> float:
        """The smallest p-value of a condition, times the number of conditions."""
        firing = np.flatnonzero(fires(side * planted.coefficients[:, cell]))
        tails = binom.sf(met(text, firing)[frequent] - 1, len(firing), shares[frequent])
        return float(tails.min()) * int(frequent.sum())

    sides = (1, -1) if planted.model.gated else (1,)
    noise = [least(cell, side) for _, cell in planted.noise for side in sides]
    assert min(noise) * len(noise) > ALPHA
    assert max(least(key.cell, key.side) for key in planted.keys) < 1e-6


def test_found_tells_the_planted_rule_from_simpler_ones(planted: Planted) -> None:
    text = planted.fresh
    for key in planted.keys:
        truth = key.plant.where(text)
        assert agrees(truth, key, text) == (1, 1)
        assert found(truth, key, text)
        assert not found(truth[::2], key, text)
        assert not found(np.arange(len(text)), key, text)
        assert not found(truth[:0], key, text)
        simpler = np.flatnonzero(np.isin(text.tokens, list(key.plant.last | key.plant.other)))
        last = np.flatnonzero(np.isin(text.tokens, list(key.plant.last)))
        if key.kind not in ("token set", "affix"):
            assert not found(simpler, key, text), key
            assert not found(last, key, text), key


def test_the_same_seed_writes_the_same_text(tmp_path: Path) -> None:
    first, again, other = (Writer(seed).write(tmp_path / "text.txt", 500) for seed in (3, 3, 4))
    assert first == again != other
