"""Measured ablation against the model edited one cell at a time, on a random model of every family."""

from __future__ import annotations

import copy
from typing import Any

import paper
import pytest
import torch
from families import TINY, tiny

from keyhole.errors import UsageError
from keyhole.models import intervene
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.uses import ablate as module
from keyhole.uses import prompt

TEXT = "The cat sat"
EDITS = [Edit(1, 5, 3.0), Edit(2, 7, -4.0, (2, 9))]


def one_by_one(
    model: Model, cells: list[tuple[int, int]], position: int, token: str, edits: list[Edit], everywhere: bool
) -> list[tuple[float, float]]:
    """(logit, log p) lost with each cell, from readings of their own; the edits are outside, so that a cell may be in both."""
    with applied(model, edits, 1):
        base = prompt.read(model, TEXT, position=position, token=token).chosen
        lost = []
        for layer, cell in cells:
            off = Edit(layer, cell, 0.0, None if everywhere else (position,))
            without = prompt.read(model, TEXT, position=position, token=token, edits=[off]).chosen
            p, q = (torch.tensor(each.p, dtype=torch.float64).log() for each in (base, without))
            lost.append((base.logit - without.logit, float(p - q)))
    return lost


@pytest.mark.parametrize("family", sorted(TINY))
@pytest.mark.parametrize(("everywhere", "edits"), [(False, EDITS), (True, [])])
def test_it_is_what_editing_each_cell_gives(
    family: str, everywhere: bool, edits: list[Edit], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, position = tiny(family), 9
    monkeypatch.setattr(module, "BATCH_TOKENS", 3 * 11)  # three rows at a time
    cells = [(layer, cell) for layer in range(model.layers) for cell in (5, 7)] + [(1, 3), (1, 3)]
    found = prompt.ablate(model, TEXT, cells, position=position, token="e", edits=edits, everywhere=everywhere)
    expected = one_by_one(model, cells, position, "e", edits, everywhere)
    assert [(one.layer, one.cell) for one in found.cells] == cells
    assert [one.logit for one in found.cells] == pytest.approx([logit for logit, _ in expected], rel=1e-3, abs=2e-5)
    assert [one.log_p for one in found.cells] == pytest.approx([log_p for _, log_p in expected], rel=1e-3, abs=2e-5)
    base = prompt.read(model, TEXT, position=position, token="e", edits=edits).chosen
    assert (found.piece, found.everywhere) == ("e", everywhere)
    assert found.logit == pytest.approx(base.logit, abs=2e-5)
    assert found.p == pytest.approx(base.p, rel=1e-3)
    if family != "opt":  # a ReLU's cells are often silent
        assert max(abs(one.logit) for one in found.cells) > 1e-3


@pytest.mark.parametrize("family", sorted(set(TINY) - {"gemma2", "gemma3_text", "olmo2"}))
def test_in_the_last_layer_it_is_the_direct_effect(family: str) -> None:
    """Nothing comes after it but the final norm and the head, and both measures go through them."""
    model = tiny(family)
    last = [one for one in prompt.read(model, TEXT, token="x").ranked if one.layer == model.layers - 1]
    found = prompt.ablate(model, TEXT, [(one.layer, one.cell) for one in last], token="x")
    assert len(last) > 10
    assert [one.logit for one in found.cells] == pytest.approx([one.effect for one in last], rel=2e-3, abs=2e-5)


@pytest.mark.parametrize("family", ["llama", "opt", "gemma2"])
def test_every_row_has_its_own_edits(family: str) -> None:
    """Coefficients of a batch, against each row run alone."""
    model = tiny(family)
    rows = [[], [Edit(1, 5, 0.0)], [Edit(1, 5, 2.0, (3,)), Edit(0, 2, -1.0)], [Edit(2, 7, 0.5, (0, 9))]]
    batch = model.batch(model.tokenize([TEXT] * len(rows)))
    together: dict[int, Any] = {}
    with intervene.applied_by_row(model, rows, batch.n_special):
        model.run_every_token(batch.ids, lambda site, x: together.update({site: x.clone()}))
    for number, edits in enumerate(rows):
        with applied(model, edits, batch.n_special):
            alone = model.coefficients(TEXT)
        here = torch.cat(
            [x.reshape(len(rows), -1, x.shape[-1])[number, batch.n_special :] for x in together.values()], 1
        )
        torch.testing.assert_close(here, alone, rtol=1e-4, atol=1e-5)
    assert not any(site.module._forward_pre_hooks for site in model.sites)


def test_the_first_token_of_a_text_without_a_start_token() -> None:
    model = tiny("gpt2", bos=None)
    found = prompt.ablate(model, TEXT, [(2, 5)], position=0, bos=False)
    (ids,) = model.tokenize([TEXT])
    seen = paper.look(model, ids[:1], bos=False)
    logits = paper.own_logits(model, seen.o[-1])
    assert found.token == int(logits.argmax())
    without = seen.o[-1] - float(seen.m[2][5]) * paper.value(model, 2, 5)
    assert found.cells[0].logit == pytest.approx(
        float(logits[found.token] - paper.own_logits(model, without)[found.token]), rel=1e-3, abs=2e-5
    )


def test_mistakes_are_told() -> None:
    model = tiny("llama")
    with pytest.raises(UsageError, match=r"no cell L9.0 to edit"):
        prompt.ablate(model, TEXT, [(0, 0), (9, 0)])
    with pytest.raises(UsageError, match="no position 11"):
        prompt.ablate(model, TEXT, [(0, 0)], position=11)
    huge = [Edit(0, cell, 3e38) for cell in range(24)]
    with applied(model, huge), pytest.raises(UsageError, match="not finite any more"):
        prompt.ablate(model, TEXT, [(0, 0)], token="e", edits=huge)
    assert prompt.ablate(model, TEXT, []).cells == []


def test_a_smaller_type_is_compared_within_one_batch() -> None:
    """The row with nothing switched off is run as the others are, so a cell that does nothing changes nothing."""
    plain = tiny("opt")
    model = Model(copy.deepcopy(plain.lm).bfloat16(), plain.tokenizer, source="small")
    m = model.cells.by_layer(model.coefficients(TEXT)[-1].numpy())
    silent = [(0, int(cell)) for cell in (m[0] == 0).nonzero()[0]]
    assert silent
    assert all(one.logit == one.log_p == 0 for one in prompt.ablate(model, TEXT, silent).cells)
