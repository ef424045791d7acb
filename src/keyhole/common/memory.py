"""Telling that memory ran out from other errors."""

from __future__ import annotations

import sys


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the machine has no memory left."""
    torch = sys.modules.get("torch")  # not imported: without torch, no error can be torch's
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "not enough memory" in str(error)
