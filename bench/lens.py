"""All values of a model through the lens, compared with the matrix product alone, in the same blocks.

    python bench/lens.py                                              # a size for two cores
    python bench/lens.py --device cuda --cells 65536 --vocabulary 267744 --model 1024      # the paper's

Both run on the same vectors and the same blocks, in turns; the ratio is that of the medians. Memory is the
peak beyond the weights: of the device's allocator on a GPU, of the process on a CPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable

import torch

from keyhole.lens import project


def bare(vectors: torch.Tensor, weight: torch.Tensor) -> None:
    for _ in project.blocks(vectors, weight):
        pass


def seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cells", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--model", type=int, default=576)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ranks", action="store_true", help="also the rank of one token per value, as `analyze` needs")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.manual_seed(0)
    weight = torch.randn(options.vocabulary, options.model, device=device).to(getattr(torch, options.dtype))
    weight *= 2 / options.model**0.5  # logits about as large as those of real values
    vectors = torch.randn(options.cells, options.model, device=device)
    targets = torch.randint(0, options.vocabulary, (options.cells,)) if options.ranks else None
    seconds(lambda: bare(vectors[:64], weight), device)
    before = peak(device) if device.type == "cpu" else torch.cuda.memory_allocated()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times: dict[str, list[float]] = {"product": [], "lens": []}
    for _ in range(options.repeats):
        times["product"].append(seconds(lambda: bare(vectors, weight), device))
        times["lens"].append(seconds(lambda: project.project(vectors, weight, targets=targets), device))
    product, through = (statistics.median(times[name]) for name in ("product", "lens"))
    print(f"{options.cells:,} values × {options.vocabulary:,} tokens, width {options.model}, {options.dtype}, {device}")
    print(f"bare product  {product:8.3f} s   {[round(t, 3) for t in times['product']]}")
    print(f"lens          {through:8.3f} s   {[round(t, 3) for t in times['lens']]}")
    print(f"ratio         {through / product:8.3f}     (at most 1.3)")
    print(f"memory beyond the weights  {(peak(device) - before) / 1e6:,.0f} MB     (under 1,000)")


if __name__ == "__main__":
    main()
