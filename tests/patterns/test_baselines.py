"""What is learned from the last tokens, against sums over all positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from keyhole.patterns import baselines
from keyhole.patterns.baselines import Baselines
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.text import Text

LEXICON = Lexicon([str(token) for token in range(14)])
CELLS = {0: np.array([1, 4]), 2: np.array([0, 2, 3])}
OBSERVED = {0: np.arange(5), 1: np.arange(5), 2: np.arange(5)}


def a_text(seed: int, windows: int = 40, tokens: int = 12) -> Text:
    random = np.random.default_rng(seed)
    made = [random.integers(0, tokens, random.integers(1, 9)) for _ in range(windows)]
    return Text.of(made, np.arange(windows), LEXICON)


def taught(learned: Text, held: Text, seed: int = 0) -> tuple[Baselines, dict[int, np.ndarray]]:
    """After a pass in batches over random coefficients, and these."""
    random = np.random.default_rng(seed)
    every = {layer: random.normal(size=(len(learned), 5)).astype(np.float32) for layer in OBSERVED}
    made = Baselines(learned, held, CELLS, among=OBSERVED)
    for part in np.array_split(random.permutation(len(learned)), 7):
        for layer, x in every.items():
            made.take(layer, part, torch.from_numpy(x[part]))
    return made, every


def contexts(text: Text, tokens: int) -> list[tuple[int, ...]]:
    """The last tokens of every position, from its window alone."""
    windows = np.split(text.tokens, text.offsets[1:-1])
    return [tuple(window[max(0, i + 1 - tokens) : i + 1].tolist()) for window in windows for i in range(len(window))]


def test_lookups_are_shrunk_means_of_the_positions_with_these_tokens() -> None:
    learned, held = a_text(0), a_text(1, tokens=14)
    made, every = taught(learned, held)
    last, two = contexts(learned, 1), contexts(learned, 2)
    for layer, cells in CELLS.items():
        x = every[layer][:, cells].astype(np.float64)
        for at, (token, pair) in enumerate(zip(contexts(held, 1), contexts(held, 2), strict=True)):
            same = np.array([each == token for each in last])
            expected = (x[same].sum(0) + x.mean(0)) / (same.sum() + 1)
            found = made.lookup(layer, "last_token")[made.types["last_token"].held[at]]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
            same = np.array([each == pair for each in two])
            expected = (x[same].sum(0) + expected) / (same.sum() + 1)
            found = made.lookup(layer, "bigram")[made.types["bigram"].held[at]]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_a_type_that_was_never_seen_says_what_is_known_without_it() -> None:
    learned, held = Text.of([[1, 2], [3, 2]], [0, 1], LEXICON), Text.of([[7], [3, 2], [7, 2]], [0, 0, 0], LEXICON)
    made = Baselines(learned, held, {0: np.array([0])})
    made.take(0, np.arange(4), torch.tensor([[0.0], [4.0], [0.0], [8.0]]))
    last = made.lookup(0, "last_token")[made.types["last_token"].held, 0]
    np.testing.assert_allclose(last, [3, 1.5, 5, 3, 5])  # of 7: the mean; of 3: (0 + 3) / 2; of 2: (12 + 3) / 3
    assert made.types["bigram"].seen[made.types["bigram"].held].tolist() == [0, 1, 1, 0, 0]
    bigram = made.lookup(0, "bigram")[made.types["bigram"].held, 0]
    np.testing.assert_allclose(bigram, [3, 0.75, 6.5, 3, 5])


@pytest.mark.parametrize(("sampled", "asked"), [(1 << 14, 1 << 17), (60, 90)])
def test_neighbours_are_the_nearest_by_cosine(sampled: int, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "SAMPLED", sampled)
    monkeypatch.setattr(baselines, "ASKED", asked)
    monkeypatch.setattr(baselines, "BLOCK", 50)
    learned, held = a_text(2), a_text(3)
    made, every = taught(learned, held)
    embeddings = np.random.default_rng(4).normal(size=(12, 6))
    made.find_neighbours(torch.from_numpy(embeddings))

    def embedded(context: tuple[int, ...]) -> np.ndarray:
        found = np.zeros((3, 6))
        for back, token in enumerate(reversed(context)):
            found[back] = (1, 0.5, 0.25)[back] * embeddings[token] / np.linalg.norm(embeddings[token])
        return found.ravel() / np.linalg.norm(found)

    sample = np.flatnonzero(made._neighbours.row >= 0)
    assert len(sample) == min(sampled, len(learned))
    theirs = np.stack([embedded(each) for each in contexts(learned, 3)])[sample]
    ours = contexts(held, 3)
    assert len(made.asked) == len(held) if asked > len(held) else 70 < len(made.asked) <= asked
    np.testing.assert_array_equal(  # whole windows
        np.isin(np.arange(len(held)), made.asked), np.isin(held.windows, held.windows[made.asked])
    )
    for layer, cells in CELLS.items():
        x, found = every[layer][sample][:, cells], made.neighbour(layer)
        for row, position in enumerate(made.asked):
            cosines = theirs @ embedded(ours[position])
            order = np.argsort(-cosines)
            if cosines[order[15]] - cosines[order[16]] > 1e-5:  # else any of the equally near
                np.testing.assert_allclose(found[row], x[order[:16]].mean(0), rtol=1e-4, atol=1e-6)


def test_neighbours_are_looked_for_before_they_are_asked() -> None:
    made, _ = taught(a_text(0), a_text(1))
    with pytest.raises(ValueError, match="before"):
        made.neighbour(0)
