"""The cells a stranger is shown first, against the plain definition."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import explored
import numpy as np
import pytest

import keyhole
from keyhole.store import values
from keyhole.web import worth


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    return explored.write(tmp_path_factory.mktemp("worth"))


def follows(run: keyhole.Run, layer: int) -> np.ndarray:
    rows = [
        [-1 if t.next_id is None else t.next_id for t in run.triggers(layer, cell)]
        for cell in range(run.cells.size(layer))
    ]
    return np.array([row + [-1] * (run.top - len(row)) for row in rows])


def score(run: keyhole.Run, layer: int, cell: int, promoted: list[int], counts: Counter[int]) -> float:
    """Of the tokens behind the triggers, those the value names: their weight on average, more where they differ."""
    behind = [t.next_id for t in run.triggers(layer, cell) if t.next_id is not None]
    named = [token for token in behind if token in promoted]
    total = 0.0
    for token in named:
        piece = run.vocabulary.piece(token)
        rarity = max(0.0, math.log(worth.COMMON) - math.log(counts[token] / counts.total()))
        total += rarity * any(c.isalpha() for c in piece) * (1 if piece[0] == " " else worth.FRAGMENT)
    return total / max(len(behind), 1) * math.sqrt(min(len(set(named)), worth.DIFFERENT))


def test_the_best_cells_come_first(run: keyhole.Run) -> None:
    said = values.Values(run, "norm")
    promoted = np.asarray(said.top_tokens)
    counts = Counter(np.asarray(run.tokens).tolist())
    scores = {
        (layer, cell): score(run, layer, cell, promoted[run.cells.place(layer, cell)].tolist(), counts)
        for layer in range(run.layers)
        for cell in range(run.cells.size(layer))
    }
    chosen = [(run[a].layer, run[a].index) for a in worth.speaking(run, promoted, lambda layer: follows(run, layer), 4)]
    assert chosen, "no value of the random model names what follows"
    assert scores[chosen[0]] == pytest.approx(max(scores.values()))
    assert [scores[at] for at in chosen] == sorted((scores[at] for at in chosen), reverse=True)
    assert all(scores[at] > 0 for at in chosen)
    assert max(Counter(layer for layer, _ in chosen).values()) <= worth.PER_LAYER
    words = [
        {run.vocabulary.piece(t).strip().lower() for t in promoted[run.cells.place(*at)][:8].tolist()} for at in chosen
    ]
    for i, one in enumerate(words):
        assert all(len(one & other) < 2 for other in words[:i])


def test_scores_are_those_of_the_definition(run: keyhole.Run) -> None:
    promoted = np.asarray(values.Values(run, "norm").top_tokens)
    counts = Counter(np.asarray(run.tokens).tolist())
    weights = worth._weights(run)
    for layer in range(run.layers):
        found = worth._scores(promoted[run.cells.span(layer)], follows(run, layer), weights)
        for cell in range(run.cells.size(layer)):
            wanted = score(run, layer, cell, promoted[run.cells.place(layer, cell)].tolist(), counts)
            assert found[cell] == pytest.approx(wanted, abs=1e-9)


def test_a_run_without_values_has_cells_to_begin_with(tmp_path: Path) -> None:
    from keyhole.web.contract import Explorer

    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"The cat number {i} sat." for i in range(20)), encoding="utf-8")
    run = keyhole.scan(explored.model(), [text], out=tmp_path / "run", top=5, unit="line", context=64)
    assert Explorer(run).about().worth
