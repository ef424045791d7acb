"""Scores of keys on held-out text, against a computation from the model's own coefficients, position by position."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from small import scanned

import keyhole
from keyhole.models.model import Model
from keyhole.patterns import baselines, rules, scores, scoring
from keyhole.patterns.baselines import Baselines
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.passing import observe
from keyhole.patterns.text import Text
from keyhole.store.patterns import Key, Pattern, Score

FEWEST = 3
LEXICON = Lexicon([str(token) for token in range(259)])


def a_text(seed: int, windows: int = 150) -> Text:
    """No two windows begin alike, so that no two positions have the same coefficients."""
    random = np.random.default_rng(seed)
    made = [[70 + i, *random.integers(60, 230, random.integers(5, 40))] for i in range(windows)]
    return Text.of(made, np.arange(windows) // 5, LEXICON)


def a_key(cell: int, side: int, *sets: list[int]) -> Key:
    """A pattern per set of last tokens; the first of each set weighs more, whichever pattern matches."""
    patterns = tuple(
        Pattern(
            kind="shallow",
            description="",
            rule={"all": [{"if": "token", "back": 0, "ids": ids}], "amount": 2.0 - number},
            triggers=(),
            matches=1,
            hits=1,
            lift=1.0,
            bits=1.0,
            q_value=0.0,
        )
        for number, ids in enumerate(sets)
    )
    first = sorted({100, *(ids[0] for ids in sets)})
    evidence = {"bias": -3.0, "more": [{"back": 0, "ids": first, "weights": [0.5] * len(first)}]}
    return Key(cell, side, "shallow" if sets else "none", 0.3, patterns, 4, evidence=evidence)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["llama", "opt"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[keyhole.Run, Model]:
    model = tiny(request.param)
    return scanned(model, tmp_path_factory.mktemp(request.param)), model


def coefficients(run: keyhole.Run, model: Model, text: Text) -> np.ndarray:
    """[positions, cells] in the cells' orientation, a window at a time."""
    windows = np.split(text.tokens, text.offsets[1:-1])
    bos = bool(run.manifest["config"]["bos"])
    x = np.concatenate([model.coefficients_of(window.tolist(), bos=bos).numpy() for window in windows])
    return x * np.asarray(run.orientation)


def curve(predicted: np.ndarray, fires: np.ndarray) -> float:
    area, recall = 0.0, 0.0
    for threshold in sorted(set(predicted.tolist()), reverse=True):
        chosen = predicted >= threshold
        reached = fires[chosen].sum() / fires.sum()
        area, recall = area + (reached - recall) * float(fires[chosen].mean()), reached
    return float(area)


def dense(positions: np.ndarray, found: np.ndarray, n: int) -> np.ndarray:
    every = np.zeros(n)
    every[positions] = found
    return every


def keys_of(opened: keyhole.Run, x: np.ndarray, text: Text) -> dict[int, list[Key]]:
    """Keys whose rules name the last tokens of their strongest positions, in two layers; one has no rules."""

    def made(layer: int, cell: int, side: int) -> Key:
        strongest = np.argsort(-side * x[:, opened.cells.place(layer, cell)])[[0, 3, 6, 9, 12]]
        first = sorted(set(text.tokens[strongest[:3]].tolist()))
        return a_key(cell, side, first, sorted(set(text.tokens[strongest[3:]].tolist())))

    return {layer: [made(layer, 3, 1), made(layer, 3, -1), a_key(7, 1), made(layer, 11, 1)] for layer in (0, 2)}


@pytest.fixture(autouse=True)
def small_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "FEWEST_FIRING", FEWEST)


def same(left: Any, right: Any) -> bool:
    return left == pytest.approx(right, rel=1e-3, abs=1e-6)


def test_scores_are_those_of_every_position(run: tuple[keyhole.Run, Model]) -> None:
    opened, model = run
    text = a_text(0)
    x, groups = coefficients(opened, model, text), scores.deal(text, 4)
    keys = keys_of(opened, x, text)
    permuted = {layer: [a_key(key.cell, key.side, [74]) for key in each] for layer, each in keys.items()}
    found, facts = scoring.score(opened, model, text, keys, rivals={"permuted": permuted}, seed=4)
    assert facts["positions"] == len(text)
    assert (facts["documents"], facts["groups"], facts["passes"], facts["keys"]) == (30, 20, 1, 6)
    differences: list[float] = []
    lower: list[float] = []
    for layer, given in keys.items():
        for number, (key, before) in enumerate(zip(found[layer], given, strict=True)):
            assert (key.cell, key.side) == (before.cell, before.side)
            m = key.side * x[:, opened.cells.place(layer, key.cell)].astype(np.float64)
            fires, wider = ((m > np.percentile(m, p)) & (m > 0) for p in (99.9, 99))
            predicted = dense(*rules.fire(before, text)[:2], len(text))
            mine = key.scores["rules"]
            if not wider.any():
                assert set(key.scores.values()) == {Score()}
                continue
            assert same(mine.auprc, curve(predicted, fires))
            assert same(mine.auprc_99, curve(predicted, wider))
            right = (fires & (predicted >= 0.3)).sum()
            assert same(mine.f1, 2 * right / (fires.sum() + (predicted >= 0.3).sum()))
            assert same(mine.pearson, np.corrcoef(predicted, m)[0, 1] if before.patterns else 0)
            without = [curve(predicted[groups.of != g], fires[groups.of != g]) for g in range(20)]
            interval = scores.jackknife(curve(predicted, fires), np.array(without))
            assert same(mine.lo, interval.lo)
            assert same(mine.hi, interval.hi)
            for i, pattern in enumerate(key.patterns):
                alone = dense(*rules.alone(before, i, text, rules.fire(before, text))[:2], len(text))
                assert same(pattern.auprc, curve(alone, fires))
                assert same(pattern.f1, 2 * (fires & (alone > 0)).sum() / (fires.sum() + (alone > 0).sum()))
                assert same(pattern.pearson, np.corrcoef(alone, m)[0, 1])
            rival = dense(*rules.fire(permuted[layer][number], text)[:2], len(text))
            assert same(key.scores["permuted"].auprc, curve(rival, fires))
            assert key.scores["other"].auprc in [
                pytest.approx(curve(dense(*rules.fire(other, text)[:2], len(text)), fires), rel=1e-3)
                for other in given
                if other is not before
            ]
            if key.side == 1:
                differences.append(curve(predicted, fires) - curve(rival, fires))
                lower += differences[-1:] if layer == 0 else []
    assert facts["scored"] == len(differences) >= 4
    assert max(differences) > 0.05
    assert same(facts["over_permuted"], np.mean(differences))
    assert same(facts["over_permuted_lower"], np.mean(lower))
    assert facts["over_permuted_middle"] is None  # no key of that layer
    lo, hi = facts["over_permuted_lo"], facts["over_permuted_hi"]
    assert isinstance(lo, float)
    assert isinstance(hi, float)
    assert lo < np.mean(differences) < hi
    assert facts["over_bigram"] is None


def test_several_passes_give_the_same(run: tuple[keyhole.Run, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    opened, model = run
    text = a_text(0)
    keys = keys_of(opened, coefficients(opened, model, text), text)
    once, facts = scoring.score(opened, model, text, keys)
    monkeypatch.setattr(scoring, "CPU_BYTES", 4 * len(text) * 2)
    told: list[int] = []
    again, other = scoring.score(opened, model, text, keys, begin=lambda total: told.append(-total) or told.append)
    assert other == facts | {"passes": 3}
    assert again == once
    assert sum(told) <= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coefficients_are_kept_as_they_were_computed(dtype: torch.dtype, tmp_path: Path) -> None:
    """In no more bytes than the model computes with, and without any change: passes are counted by these bytes."""
    plain = tiny("llama")
    model = Model(copy.deepcopy(plain.lm).to(dtype), plain.tokenizer, source="tiny-llama")
    opened, text = scanned(model, tmp_path), a_text(2, windows=20)
    cells = {0: np.array([3, 11]), 2: np.array([7])}
    seen: dict[int, torch.Tensor] = {layer: torch.empty(len(text), len(each)) for layer, each in cells.items()}

    def take(layer: int, positions: np.ndarray, x: torch.Tensor) -> None:
        seen[layer][torch.from_numpy(positions)] = x

    observe(opened, model, text, cells, take)
    kept = scoring._keep(opened, model, text, cells, lambda done: None)
    for layer, each in kept.items():
        assert each.dtype == dtype
        assert torch.equal(each.float(), seen[layer])
    room = 2 * len(text) * dtype.itemsize
    assert [sum(map(len, each.values())) for each in scoring._passes(cells, len(text) * dtype.itemsize, room)] == [2, 1]


def test_what_was_learned_is_scored_on_the_same_positions(
    run: tuple[keyhole.Run, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "ASKED", 2000)
    opened, model = run
    text, other = a_text(0), a_text(1)
    x = coefficients(opened, model, text)
    keys = keys_of(opened, x, text)
    cells = {0: np.array([3, 11]), 2: np.array([3, 7, 11])}
    learned = Baselines(other, text, cells)
    observe(opened, model, other, cells, learned.take)
    found, facts = scoring.score(opened, model, text, keys, learned=learned)
    part = learned.asked
    assert 1900 < len(part) <= 2000
    assert set(found[0][2].scores) == {"rules", "list", "other"}  # nothing was learned of this cell
    differences = []
    for layer, here in cells.items():
        for key in found[layer]:
            if key.cell not in here:
                continue
            m = key.side * x[:, opened.cells.place(layer, key.cell)].astype(np.float64)
            fires, wider = ((m > np.percentile(m, p)) & (m > 0) for p in (99.9, 99))
            if not wider.any():
                continue
            column = here.tolist().index(key.cell)
            for name in scoring.LOOKUPS:
                said = key.side * learned.lookup(layer, name)[learned.types[name].held, column]
                assert same(key.scores[name].auprc, curve(said, fires))
                assert same(key.scores[name].auprc_99, curve(said, wider))
                assert same(key.scores[name].pearson, np.corrcoef(said, m)[0, 1])
            said = key.side * learned.neighbour(layer)[:, column]
            assert same(key.scores["neighbour"].auprc_99, curve(said, wider[part]))
            assert same(key.scores["neighbour"].pearson, np.corrcoef(said, m[part])[0, 1])
            if fires[part].sum() < FEWEST:
                assert key.scores["neighbour"].auprc is None
            elif key.side == 1:
                predicted = dense(*rules.fire(key, text)[:2], len(text))[part]
                differences.append(curve(predicted, fires[part]) - curve(said, fires[part]))
    assert differences
    assert same(facts["over_neighbour"], np.mean(differences))


def test_a_key_that_hardly_fires_has_no_numbers(
    run: tuple[keyhole.Run, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, model = run
    monkeypatch.setattr(scoring, "FEWEST_FIRING", 10)
    text = a_text(0)
    keys = keys_of(opened, coefficients(opened, model, text), text)
    found, facts = scoring.score(opened, model, text, keys)
    assert facts["scored"] == 0
    assert all(key.scores["rules"].auprc is None for each in found.values() for key in each)
    assert all(key.scores["rules"].auprc_99 is not None for key in found[0] if key.side == 1)
    short = a_text(0, windows=20)
    found, facts = scoring.score(opened, model, short, keys)
    assert all(key.scores["rules"] == Score() for each in found.values() for key in each)


def test_what_does_not_belong_together_is_refused(run: tuple[keyhole.Run, Model]) -> None:
    opened, model = run
    text, other, keys = a_text(0), a_text(1), {0: [a_key(3, 1, [80])]}
    with pytest.raises(ValueError, match="another held-out text"):
        scoring.score(opened, model, text, keys, learned=Baselines(text, other, {}))
    with pytest.raises(ValueError, match="'permuted' in layer 0"):
        scoring.score(opened, model, text, keys, rivals={"permuted": {0: []}})
