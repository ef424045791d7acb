"""A scan that is stopped half way."""

from __future__ import annotations

import signal

import pytest

from keyhole.scanning import runner, shard


def stop_after(batches: int, monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None) -> None:
    """Let a scan do some batches, then press Ctrl-C, or raise."""
    real = runner.scan_batches

    def some(*args: object) -> object:
        for done, number in enumerate(real(*args), 1):  # type: ignore[arg-type]
            if done == batches:
                if error:
                    raise error
                signal.raise_signal(signal.SIGINT)
            yield number

    monkeypatch.setattr(shard, "scan_batches", some)
