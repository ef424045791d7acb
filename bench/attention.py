"""Causal attention over short windows on a GPU: Keyhole's kernel compared with torch's, per length of a window.

    python bench/attention.py [--tokens 65536]

bf16; queries, keys and values are views of one array, as in models. Medians of single calls in µs, timed on the GPU; torch is
`scaled_dot_product_attention` with a preference for the kernel with the smallest tiles.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from keyhole.kernels import attention

HEADS = [(16, 16, 64), (9, 3, 64), (32, 8, 64)]
"""heads, heads of keys and values, numbers per head: the paper's shape, SmolLM2, Llama-1B"""
LENGTHS = (8, 13, 19, 26, 33, 43, 61)


def microseconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.tokens} tokens")
    for heads, others, width in HEADS:
        for columns in LENGTHS:
            rows = options.tokens // columns
            whole = torch.randn(rows, columns, (heads + 2 * others) * width, device="cuda", dtype=torch.bfloat16)
            parts = whole.split([heads * width, others * width, others * width], 2)
            q, k, v = (part.view(rows, columns, -1, width).transpose(1, 2) for part in parts)
            ours = microseconds(lambda q=q, k=k, v=v: attention.short(q, k, v), options.repeats)  # type: ignore[misc]
            with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
                theirs = microseconds(
                    lambda q=q, k=k, v=v: scaled_dot_product_attention(  # type: ignore[misc]
                        q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1]
                    ),
                    options.repeats,
                )
            print(
                f"{heads:3} heads of {width}, {others:2} shared, {columns:3} tokens: {ours:6.0f} µs, torch {theirs:6.0f} µs"
            )


if __name__ == "__main__":
    main()
