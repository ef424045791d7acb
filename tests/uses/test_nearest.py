"""The cells nearest to a text, against the coefficients and values of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from small import scanned

from keyhole.errors import ModelError
from keyhole.uses import nearest

TEXT = "The cat sat"


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_keys_are_those_of_the_last_token(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path)
    found = nearest.nearest(run, model, TEXT, limit=10**6)
    m = model.coefficients(TEXT, bos=bool(run.manifest["config"]["bos"]))[-1].numpy() * run.orientation
    largest = np.asarray(run.stats.max)
    shares = np.where(largest > 0, m / np.where(largest > 0, largest, 1), 0)
    assert dict(found.keys) == pytest.approx({i: share for i, share in enumerate(shares.tolist()) if share > 0})
    assert [share for _, share in found.keys] == sorted((share for _, share in found.keys), reverse=True)


def test_tokens_of_the_corpus_are_counted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)
    monkeypatch.setattr(nearest, "PIECE", 7)
    counts = nearest._counts(run, 300)
    np.testing.assert_array_equal(counts, np.bincount(np.asarray(run.tokens), minlength=300))
    monkeypatch.setattr(np, "bincount", None)
    assert nearest._counts(run, 300) is counts, "counted once"


def test_numbers_that_overflowed_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    run = scanned(model, tmp_path)

    def overflow(ids: torch.Tensor, sink: Any) -> None:
        sink(0, torch.full((ids.numel(), run.cells.size(0)), torch.nan))

    monkeypatch.setattr(model, "run_every_token", overflow)
    with pytest.raises(ModelError, match="not finite"):
        nearest.fired(run, model, [1, 2])
