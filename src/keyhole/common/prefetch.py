"""Work that runs ahead of its use."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Generator[Item, None, None], depth: int = 4) -> Generator[Item, None, None]:
    """The same items in the same order, made up to `depth` ahead in a thread. What fails there is raised here.

    Left early, it waits for the item in the making, ends the thread and closes `items`.
    """
    end: Any = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="keyhole-ahead")
    try:
        waiting = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
        items.close()
