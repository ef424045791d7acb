"""What a value makes of its key's patterns, against the tokens it promotes and the model with the cell switched off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny
from small import scanned

import keyhole
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.patterns import fits
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.text import Text
from keyhole.store.patterns import Key, Pattern
from keyhole.store.values import Values

LEXICON = Lexicon([str(token) for token in range(259)])
SETS = ([70, 71, 72, 73], [80], [250])


def a_text() -> Text:
    random = np.random.default_rng(0)
    made = [random.integers(60, 120, random.integers(1, 20)) for _ in range(60)]
    return Text.of(made, np.arange(60) // 3, LEXICON)


def keys() -> dict[int, list[Key]]:
    patterns = tuple(
        Pattern(
            "shallow", "", {"all": [{"if": "token", "back": 0, "ids": ids}], "amount": 1.0}, (), 1, 1, 1.0, 1.0, 0.0
        )
        for ids in SETS
    )
    sides = [(cell, side) for cell in range(0, 24, 3) for side in (1, -1)]
    made = [Key(cell, side, "shallow", 0.5, patterns, 4) for cell, side in sides]  # type: ignore[arg-type]
    return {2: made, 1: [Key(4, 1, "none", 0.5, (), 4), *made[:3]]}


@pytest.fixture
def model() -> Model:
    return tiny("llama")


@pytest.fixture
def run(model: Model, tmp_path: Path) -> keyhole.Run:
    run = scanned(model, tmp_path)
    keyhole.analyze(run, model=model, only=["agreement"])
    return run


def log_probability(model: Model, ids: list[int], token: int) -> float:
    with torch.no_grad():
        logits = model.lm(input_ids=torch.tensor([[model.bos_id, *ids]]), use_cache=False).logits[0, -1]
    return float(torch.log_softmax(logits.double(), 0)[token])


def test_shares_and_changes_are_those_of_the_next_tokens(
    run: keyhole.Run, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "SILENCED", 1000)
    text, values = a_text(), Values(run, "norm")
    windows = [window.tolist() for window in np.split(text.tokens, text.offsets[1:-1])]
    found = fits.fits(run, model, text, keys(), seed=1)
    assert {layer: [(key.cell, key.side) for key in each] for layer, each in found.items()} == {
        layer: [(key.cell, key.side) for key in each] for layer, each in keys().items()
    }
    changes, nulls = 0, []
    for layer, each in found.items():
        for key in each:
            said = values.promoted if key.side == 1 else values.demoted
            tokens = {token.token for token in said(layer, key.cell, 10)}
            for ids, pattern in zip(SETS, key.patterns, strict=False):
                pairs = [
                    (window[: i + 1], window[i + 1])
                    for window in windows
                    for i in range(len(window) - 1)
                    if window[i] in ids
                ]
                assert 0 <= len(pairs) < fits.MATCHES
                hits = [(prefix, after) for prefix, after in pairs if after in tokens]
                assert pattern.promoted == (pytest.approx(len(hits) / len(pairs)) if pairs else None)
                assert (pattern.promoted_null is None) == (not pairs)
                nulls.append((pattern.promoted, pattern.promoted_null))
                if ids is not SETS[0] or not hits:
                    assert pattern.removed is None
                    continue
                expected = []
                for prefix, after in hits:
                    before = log_probability(model, prefix, after)
                    with applied(model, [Edit(layer, key.cell, 0.0, (len(prefix) - 1,))]):
                        expected.append(log_probability(model, prefix, after) - before)
                assert pattern.removed == pytest.approx(np.mean(expected), rel=1e-3, abs=1e-6)
                changes += abs(np.mean(expected)) > 1e-4
    assert changes > 3
    assert sum(own != null for own, null in nulls) > 10  # another cell promotes other tokens


def test_samples_are_bounded_and_seeded(run: keyhole.Run, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "MATCHES", 20)
    monkeypatch.setattr(fits, "SILENCED_KEYS", 2)
    monkeypatch.setattr(fits, "SILENCED", 1)
    told: list[int] = []
    found = fits.fits(run, model, a_text(), keys(), begin=lambda total: told.append(total) or told.append)
    assert fits.fits(run, model, a_text(), keys()) == found
    shares = [key.patterns[0].promoted for key in found[2]]
    assert all(share is not None and share * 20 == pytest.approx(round(share * 20)) for share in shares)
    assert sum(key.patterns[0].removed is not None for key in found[2]) == 2
    assert 2 <= told[0] <= 4  # one match of each of two keys, in at most two layers
    assert all(key.patterns[0].removed is None for key in fits.fits(run, None, a_text(), keys())[2])


def test_without_values_nothing_is_known(model: Model, tmp_path: Path) -> None:
    assert fits.fits(scanned(model, tmp_path), model, a_text(), keys()) == keys()
