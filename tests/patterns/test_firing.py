"""Where keys fire, against the model's coefficients at every position."""

from __future__ import annotations

import numpy as np
import pytest
from families import tiny
from small import scanned

import keyhole
from keyhole.models.model import Model
from keyhole.patterns import firing
from keyhole.patterns.keys import LEVELS
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.text import Text

LEXICON = Lexicon([str(token) for token in range(259)])
CELLS = {0: np.array([2, 5, 11]), 1: np.array([0, 7]), 2: np.array([3, 4, 9, 20])}


def a_text(seed: int, windows: int = 150) -> Text:
    random = np.random.default_rng(seed)
    made = [random.integers(60, 230, random.integers(1, 40)).tolist() for _ in range(windows)]
    return Text.of(made, np.arange(windows) // 5, LEXICON)


def coefficients(run: keyhole.Run, model: Model, text: Text) -> np.ndarray:
    """[positions, cells] in the cells' orientation, a window at a time."""
    windows = np.split(text.tokens, text.offsets[1:-1])
    bos = bool(run.manifest["config"]["bos"])
    x = np.concatenate([model.coefficients_of(window.tolist(), bos=bos).numpy() for window in windows])
    return x * np.asarray(run.orientation)


@pytest.fixture(scope="module", params=["llama", "opt"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[keyhole.Run, Model]:
    model = tiny(request.param)
    return scanned(model, tmp_path_factory.mktemp(request.param)), model


@pytest.mark.parametrize("pilot", [300, 1000, 8192])
def test_the_largest_coefficients_are_kept(
    opened: tuple[keyhole.Run, Model], pilot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the largest 1 %, of each side of a gated key, with their positions; whatever the first look was at."""
    run, model = opened
    monkeypatch.setattr(firing, "PILOT", pilot)
    monkeypatch.setattr(firing, "MARGIN", 6.0)  # so few positions need a wider one
    text = a_text(0)
    x = coefficients(run, model, text)
    sides = (1, -1) if run.gated else (1,)
    seen: dict[int, int] = {}
    firing.gather(
        run,
        model,
        text,
        CELLS,
        "test",
        sides=sides,
        also=lambda layer, at, m: seen.update({layer: seen.get(layer, 0) + m.numel()}),
    )
    assert seen == {layer: len(text) * len(cells) for layer, cells in CELLS.items()}
    for layer, cells in CELLS.items():
        for side in sides:
            pairs = firing.read(run, "test", layer, side)
            for number, cell in enumerate(cells.tolist()):
                m = side * x[:, run.cells.place(layer, cell)]
                inside = slice(*pairs.offsets[number : number + 2])
                positions, values = pairs.positions[inside], pairs.values[inside]
                assert (values > pairs.least[number]).all()
                assert set(np.flatnonzero(m > pairs.least[number] + 1e-4).tolist()) <= set(positions.tolist())
                assert len(np.unique(positions)) == len(positions)
                assert (values > 0).all()
                np.testing.assert_allclose(values, m[positions], rtol=1e-3, atol=1e-5)
                largest = np.flatnonzero(m > max(np.sort(m)[::-1][round(LEVELS[0] * len(m))], 1e-6))
                assert set(largest.tolist()) <= set(positions.tolist())
                fired = pairs.fires(number, len(text)).fired
                most = np.sort(m)[::-1][round(0.001 * len(m))]
                np.testing.assert_array_equal(fired, np.flatnonzero(m > max(most, 0)))
    assert not [file for file in run.path.glob("patterns_fired_*") if "_other_" in file.name and not run.gated]


def test_the_same_seed_keeps_the_same(opened: tuple[keyhole.Run, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = opened
    monkeypatch.setattr(firing, "PILOT", 500)
    found = []
    for name in ("one", "two"):
        firing.gather(run, model, a_text(1), CELLS, name, sides=(1,), seed=3)
        found.append(firing.read(run, name, 2, 1))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
