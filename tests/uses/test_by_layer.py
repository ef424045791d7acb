"""What each layer does at every position, against each position looked at on its own."""

from __future__ import annotations

import json

import paper
import pytest
import torch
from families import TINY, tiny

from keyhole.errors import UsageError
from keyhole.models.intervene import Edit, applied
from keyhole.uses import by_layer as module
from keyhole.uses import prompt

TEXT = "The cat sat"


@pytest.mark.parametrize("family", sorted(TINY))
def test_every_number_is_as_defined(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family)
    found = prompt.by_layer(model, TEXT)
    (ids,) = model.tokenize([TEXT])
    assert found.tokens == list(TEXT)
    assert found.effects.shape == (len(ids), model.layers)
    for position in (0, 4, len(ids) - 1):
        seen = paper.look(model, ids[: position + 1])
        logits = paper.own_logits(model, seen.o[-1])
        token = int(logits.argmax())
        assert found.predicted[position][0] == model.vocabulary.piece(token)
        assert found.predicted[position][1] == pytest.approx(float(torch.softmax(logits, 0)[token]), rel=1e-3)
        for layer in range(model.layers):
            y = seen.o[layer] - seen.r[layer]
            effect = float(logits[token] - paper.own_logits(model, seen.o[-1] - y)[token])
            assert found.effects[position, layer] == pytest.approx(effect, rel=1e-2, abs=5e-5)
    monkeypatch.setattr(module, "HELD", 1)  # a pass per layer
    assert prompt.by_layer(model, TEXT).effects == pytest.approx(found.effects, abs=1e-6)


def test_with_edits_and_as_json() -> None:
    model, edits = tiny("llama"), [Edit(1, 5, 3.0), Edit(2, 7, -4.0, (2, 9))]
    found = prompt.by_layer(model, TEXT, edits=edits)
    with applied(model, edits, 1):
        expected = prompt.by_layer(model, TEXT)
    assert (found.effects == expected.effects).all()
    assert (found.effects != prompt.by_layer(model, TEXT).effects).any()
    spelled = found.to_json()
    assert json.loads(json.dumps(spelled, allow_nan=False)) == spelled
    assert spelled["edited"] is True
    with pytest.raises(UsageError, match="no cell L9.0"):
        prompt.by_layer(model, TEXT, edits=[Edit(9, 0, 0.0)])
