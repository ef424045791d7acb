"""Pruning a real model: what `refit` loses beside FLAP, and that the folder computes what masking does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from shared import SHARED
from transformers import AutoModelForCausalLM

import keyhole
from keyhole.uses import texts
from keyhole.uses.losses import Losses, losses, shift
from keyhole.uses.pruning.cuts import cut, masked
from keyhole.uses.pruning.measure import plans

SHARES = (0.05, 0.25, 0.50)
TOKENS = 12_288


@pytest.mark.slow(seconds=80)
def test_refit_loses_less_than_flap_and_the_null_more_than_either(wiki16: Path, tmp_path: Path) -> None:
    corpus = SHARED / "corpus"
    model = keyhole.load(wiki16, device="cpu")
    room = texts.room_of(model)
    fitted = texts.given(model, [corpus / "enwik8-train.txt.xz"], TOKENS).windows(room)
    windows = texts.given(model, [corpus / "enwik8-valid.txt.xz"], TOKENS // 2).windows(room)
    found = plans(model, ["refit", "flap", "random"], SHARES, fitted)

    def measured(method: str, share: float) -> Losses:
        with masked(model, found[method].cuts[share]):
            return losses(model, windows)

    for share in SHARES:
        ours, flap = measured("refit", share), measured("flap", share)
        better = shift(ours, flap)  # FLAP's mean −log p minus ours
        assert better.lo is not None
        assert better.hi is not None
        if share < 0.25:
            assert better.hi > 0, share  # not worse
        else:
            assert better.lo > 0, share
        if share == SHARES[-1]:
            assert measured("random", share).nll.mean() > flap.nll.mean()
    # the smaller checkpoint, in plain transformers, and the masked model
    cuts = found["refit"].cuts[0.25]
    cut(model, cuts).lm.save_pretrained(tmp_path / "smaller")
    smaller = AutoModelForCausalLM.from_pretrained(tmp_path / "smaller", dtype=torch.float32).eval()
    assert smaller.config.n_inner == 1536
    ids = torch.tensor([[0, *windows[0].ids[:100]]])
    with torch.no_grad(), masked(model, cuts):
        expected, given = model.lm(ids).logits, smaller(ids).logits
    assert float((given - expected).norm() / expected.norm()) < 1e-4
    assert torch.equal(given.argmax(-1), expected.argmax(-1))
