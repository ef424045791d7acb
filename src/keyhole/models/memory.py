"""Whether an error means that memory ran out."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Of a device or of the machine. Torch's allocator on the CPU raises a plain RuntimeError that says so."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)
