"""Getting ready to scan while the corpus is planned."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from families import tiny

import keyhole
from keyhole.scanning import runner
from keyhole.scanning.config import ScanConfig
from keyhole.scanning.runner import warm_up, warming_up


@pytest.mark.parametrize("per", ["sentence", "prefix"])
def test_warming_up_runs_every_length_and_changes_nothing(
    per: str, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("gpt2")
    config = ScanConfig(per=per, top=3, context=30).resolve(model)
    before = keyhole.scan(model, [text], tmp_path / "before", per=per, top=3)
    seen: list[tuple[int, ...]] = []
    run = model.run
    monkeypatch.setattr(model, "run", lambda ids, sink: (seen.append(tuple(ids.shape)), run(ids, sink))[1])
    warm_up(model, config, threading.Event())
    lengths = [(2, 13), (2, 25), (2, 30)]  # the longest as the context has it
    assert seen == lengths * (2 if per == "sentence" else 1)
    seen.clear()
    warm_up(model, config, SimpleNamespace(is_set=lambda: len(seen) == 2))
    assert seen == lengths[:2]
    after = keyhole.scan(model, [text], tmp_path / "after", per=per, top=3)
    assert before.manifest["files"] == after.manifest["files"]


def test_what_fails_while_warming_up_is_left_to_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("gpt2")
    calls = []

    def fail(ids: object, sink: object) -> None:
        calls.append(1)
        raise RuntimeError("the card is on fire")

    monkeypatch.setattr(model, "run", fail)
    warm_up(model, ScanConfig().resolve(model), threading.Event())
    assert calls == [1]


def test_on_a_gpu_warming_up_goes_on_beside_the_plan_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()

    def warm(model: object, config: object, enough: threading.Event) -> None:
        began.set()
        while not enough.is_set():
            time.sleep(0.001)
        ended.set()

    monkeypatch.setattr(runner, "warm_up", warm)
    on_gpu, here = (SimpleNamespace(device=torch.device(name)) for name in ("cuda", "cpu"))
    with contextlib.suppress(KeyError), warming_up(on_gpu, ScanConfig()):  # type: ignore[arg-type]
        assert began.wait(60)
        assert not ended.is_set()
        raise KeyError
    assert ended.is_set()
    began.clear()
    with warming_up(here, ScanConfig()):  # type: ignore[arg-type]
        assert not any(thread.name == "keyhole-warm-up" for thread in threading.enumerate())
    assert not began.is_set()
