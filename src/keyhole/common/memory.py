"""Telling that memory ran out from other errors."""

from __future__ import annotations


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the machine has no memory left."""
    import torch

    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)
