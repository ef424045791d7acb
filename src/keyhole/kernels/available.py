"""Where the Triton kernels run."""

from __future__ import annotations

import importlib.util

import torch


def has_triton(device: torch.device) -> bool:
    """Whether our Triton kernels run there: on NVIDIA's GPUs from Ampere on."""
    if device.type != "cuda" or torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
