"""What a key loses without one of its last tokens, against a run of the model per prefix."""

from __future__ import annotations

import numpy as np
import pytest
from families import tiny
from small import scanned

from keyhole.patterns import needs
from keyhole.store.patterns import Key


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_needs_are_the_mean_fall_over_the_triggers(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tiny(family)
    run = scanned(model, tmp_path_factory.mktemp(family), top=6)
    keys = {
        layer: [Key(cell, side, "none", 0.5, (), 4) for cell in (0, 5, 9) for side in (1, -1)]  # type: ignore[arg-type]
        for layer in (2, 0)
    }
    told: list[int] = []
    found = needs.needs(run, model, keys, triggers=5, begin=lambda total: told.append(-total) or told.append)
    assert list(found) == [2, 0]
    assert sum(told) == 0
    measured = 0
    for layer, each in keys.items():
        for key, fell in zip(each, found[layer], strict=True):
            expected: list[list[float]] = [[] for _ in range(needs.BACK)]
            place = run.cells.place(layer, key.cell)
            for trigger in run.triggers(layer, key.cell, negative=key.side < 0)[:5]:
                for back in range(min(needs.BACK, len(trigger.ids))):
                    left = [*trigger.ids[: len(trigger.ids) - 1 - back], *trigger.ids[len(trigger.ids) - back :]]
                    if left:
                        m = model.coefficients_of(left)[-1, place].item() * run.orientation[place]
                        expected[back].append((trigger.coefficient - m) / trigger.coefficient)
            means = [np.mean(falls) for falls in expected if falls]
            np.testing.assert_allclose(fell, means, rtol=2e-3, atol=2e-3)
            measured += len(means)
    assert measured > 30


def test_of_no_keys_nothing_is_needed(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tiny("opt")
    run = scanned(model, tmp_path_factory.mktemp("opt"))
    assert needs.needs(run, model, {1: []}) == {1: []}
    assert needs.needs(run, model, {0: [Key(2, -1, "none", 0.5, (), 0)]}) == {0: [()]}  # no activation is negative
