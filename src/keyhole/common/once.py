"""Values that are made when they are first needed, and only once, however many threads ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Made = TypeVar("_Made")


class Once:
    """Values that are made at most once. Threads that ask while one is being made wait for it."""

    def __init__(self) -> None:
        self._lock, self._locks, self._made = threading.Lock(), dict[str, threading.Lock](), dict[str, Any]()

    def get(self, name: str, make: Callable[[], _Made]) -> _Made:
        if name not in self._made:
            with self._lock:
                own = self._locks.setdefault(name, threading.Lock())
            with own:
                if name not in self._made:
                    self._made[name] = make()
        found: _Made = self._made[name]
        return found
