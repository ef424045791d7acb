"""What the tests of Triton kernels share. Without a GPU they run in Triton's interpreter; without Triton they are skipped."""

from __future__ import annotations

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
on_the_card = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")

pytest.importorskip("triton", reason="Triton is not installed here (Linux: pip install triton)")
if not CUDA:
    # older interpreters turn arrays of one element into numbers in a way newer versions of numpy refuse
    pytest.importorskip("triton", minversion="3.9", reason="the interpreter needs Triton 3.9")
