"""Items of a generator made in a thread, before they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetch(items: Generator[Item, None, None], depth: int = 4) -> Generator[Item, None, None]:
    """The same items in the same order; up to `depth` of them are made in advance, in a thread.

    An error in the thread is raised here. If the caller stops early, this waits for the item that is being made, ends the
    thread and closes `items`.
    """
    end: Any = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="keyhole-prefetch")
    try:
        waiting = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
        items.close()
