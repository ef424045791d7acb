"""What a model says of a text, token by token."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from families import tiny
from torch.nn.functional import cross_entropy

from keyhole.errors import UsageError
from keyhole.uses.losses import losses
from keyhole.uses.texts import Window


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_losses_are_those_of_the_model_in_the_order_of_the_windows(family: str) -> None:
    model = tiny(family)
    random = np.random.default_rng(0)
    windows = [Window(random.integers(3, 290, size).tolist(), size % 3) for size in (7, 30, 2, 19, 30, 1)]
    seen: list[tuple[float, int]] = []

    def look(logits: torch.Tensor, normalizers: torch.Tensor, documents: np.ndarray) -> None:
        seen.extend(zip((normalizers - logits.double().logsumexp(1)).abs().tolist(), documents.tolist(), strict=True))

    found = losses(model, windows, look=look)
    nll, first, tokens, documents = [], [], [], []
    for window in windows:
        special = [] if model.bos_id is None else [model.bos_id]
        ids = torch.tensor([[*special, *window.ids]])
        with torch.no_grad():
            logits = model.lm(input_ids=ids).logits[0, :-1].float()
        nll += cross_entropy(logits, ids[0, 1:], reduction="none").tolist()
        first += logits.argmax(1).tolist()
        tokens += ids[0, 1:].tolist()
        documents += [window.document] * len(logits)
    np.testing.assert_allclose(found.nll, nll, rtol=1e-4, atol=1e-5)
    assert found.first.tolist() == first
    assert found.tokens.tolist() == tokens
    assert found.documents.tolist() == documents
    assert max(difference for difference, _ in seen) < 1e-9
    assert sorted(document for _, document in seen) == sorted(documents)


def test_nothing_to_measure_on_is_refused() -> None:
    with pytest.raises(UsageError, match="0 tokens"):
        losses(tiny("gpt2"), [])


WIDE = """
import resource
from families import GPT, tokenizer
from transformers import GPT2Config, GPT2LMHeadModel
from keyhole.models.model import Model
from keyhole.uses.losses import losses
from keyhole.uses.texts import Window
model = Model(GPT2LMHeadModel(GPT2Config(**GPT, vocab_size=32768)).eval(), tokenizer(), source="wide")
assert model.lm.get_output_embeddings().weight.shape == (32768, 16)
windows = [Window([5 + n % 200] * (30 + n % 30), n) for n in range(300)]
losses(model, windows[:40])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
losses(model, windows)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_longer_text_takes_no_more_memory() -> None:
    """With a vocabulary as real models have it: all logits of this text would be 1.7 GB."""
    helpers = str(Path(__file__).parents[1] / "helpers")
    asked = subprocess.run(
        [sys.executable, "-c", WIDE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": helpers},
    )
    assert int(asked.stdout) < 40_000  # kB
