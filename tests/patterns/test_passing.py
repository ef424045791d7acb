"""A pass gives every position once, with the coefficients of the model itself, in the cells' orientation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny
from small import scanned

from keyhole.patterns.held import held_out_text
from keyhole.patterns.passing import observe


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_all_cells_some_and_none(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path)
    text, _ = held_out_text(run, model, most_tokens=200)
    width = run.cells.span(0).stop
    assert run.layers > 1
    assert (run.orientation < 0).any() == run.gated
    wanted = {0: np.arange(width), 1: np.array([0, 3, width - 1])}
    found = {layer: np.full((len(text), len(cells)), np.nan, np.float32) for layer, cells in wanted.items()}

    def take(layer: int, positions: np.ndarray, x: Any) -> None:
        assert np.isnan(found[layer][positions]).all()  # each once
        found[layer][positions] = x.numpy()

    observe(run, model, text, wanted, take)
    for begin, end in zip(text.offsets[:-1], text.offsets[1:], strict=True):
        own = model.coefficients_of(text.tokens[begin:end].tolist()).numpy()
        for layer, cells in wanted.items():
            places = [run.cells.place(layer, int(cell)) for cell in cells]
            np.testing.assert_allclose(found[layer][begin:end], own[:, places] * run.orientation[places], atol=1e-5)
