"""A model spread over devices. Here there is one, the CPU: what can be checked is that the way through works."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from families import save, tiny

import keyhole
from keyhole.errors import MissingExtra, ModelError, UsageError
from keyhole.models import checkpoints
from keyhole.scanning.verify import verify

needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="the split extra is not installed"
)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="splits over the GPUs instead")


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tiny(request.param), tmp_path_factory.mktemp("models") / request.param)


@needs_accelerate
@no_gpu
def test_a_split_model_is_the_same_model(folder: str, text: Path, tmp_path: Path) -> None:
    whole, split = keyhole.load(folder, device="cpu"), keyhole.load(folder, device="split")
    assert (whole.split, split.split) == (False, True)
    assert split.fingerprint == whole.fingerprint
    assert torch.equal(split.coefficients("The cat sat"), whole.coefficients("The cat sat"))
    runs = [
        keyhole.scan(folder, [text], out=tmp_path / device, device=device, top=4, unit="line")
        for device in ("cpu", "split")
    ]
    assert [run.manifest["config"]["device"] for run in runs] == ["cpu", "split"]
    for name in ("coefficients", "units", "positions", "sums"):
        assert np.array_equal(runs[0].array(name), runs[1].array(name), equal_nan=True)
    assert verify(runs[1], cells=5).ok
    with pytest.raises(UsageError, match="not split"):
        keyhole.analyze(runs[1], device="split")


@needs_accelerate
def test_weights_that_found_no_room_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    real = AutoModelForCausalLM.from_pretrained

    def too_large(*args: object, **options: object) -> object:
        lm, found = real(*args, **{**options, "device_map": None})
        return lm.to("meta"), found

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", too_large)
    with pytest.raises(ModelError, match="does not fit on the GPUs of this machine"):
        keyhole.load(folder, device="split")


def test_without_accelerate_the_extra_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "is_installed", lambda package: False)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[split\]'"):
        keyhole.load(folder, device="split")
