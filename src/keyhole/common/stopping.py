"""How work that takes long is asked to stop: by anything with `is_set`, such as a `threading.Event`."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Protocol


class Stop(Protocol):
    """Whether to stop at the next suitable moment. Any thread may set it; it is never unset."""

    def is_set(self) -> bool: ...


class _Either:
    """Set if any of several is set."""

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def is_set(self) -> bool:
        return any(stop.is_set() for stop in self.stops)


@contextlib.contextmanager
def stop_on_interrupt(stop: Stop | None = None) -> Iterator[Stop]:
    """A `Stop` that is set by `stop` or by the first Ctrl-C, which does not interrupt, so that what is done can be saved. A
    second Ctrl-C interrupts.

    Only the main thread may handle signals. In another thread, only `stop` counts.
    """
    asked = threading.Event()
    both = asked if stop is None else _Either(asked, stop)
    if threading.current_thread() is not threading.main_thread():
        yield both
        return

    def ask(signum: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield both
    finally:
        signal.signal(signal.SIGINT, before)
