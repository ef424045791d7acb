"""All of section 5, compared with its least possible work: the forward passes and the vocabulary projections.

    python bench/section5.py MODEL [--device cuda]
    python bench/section5.py paper --samples 2048 --batch-tokens 16384     # on a GPU: the paper's shape, random weights, bf16

The floor is the same batches through the model, and the same number of rows times the unembedding, whose result is not used:
r, y and o of every layer in the model's precision, as its head computes them, and y once more in float32, as the lens does.
Both run in turns; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

import keyhole
from keyhole.analyses import passing, section5
from keyhole.analyses.heldout import Prefixes
from keyhole.common.batching import batch_by_length
from keyhole.lens import project
from keyhole.lens.head import Head
from keyhole.models.model import Model
from keyhole.store.values import Values


@torch.inference_mode()
def floor(head: Head, prefixes: Prefixes, batch_tokens: int) -> None:
    model = head.model
    width = head.weight.shape[1]
    step = head.rows_at_once
    for rows in batch_by_length([len(ids) for ids in prefixes.ids], batch_tokens):
        batch = model.batch([prefixes.ids[row] for row in rows])
        model.forward(batch.ids)
        vectors = torch.ones(model.layers * len(rows), width, device=model.device, dtype=model.dtype)
        for _ in range(3):
            for at in range(0, len(vectors), step):
                vectors[at : at + step] @ head.weight.T
        for _ in project.blocks(vectors, head.weight):
            pass
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def measure(head: Head, values: Values, prefixes: Prefixes, batch_tokens: int) -> section5.Section5:
    watching = section5.Watching(head, values, prefixes)
    passing.observe(head, prefixes, [watching], bos=True, batch_tokens=batch_tokens)
    return watching.found


def paper() -> Model:
    """The paper's model with its vocabulary, random weights, on a GPU."""
    from gpu import SHAPES, build

    shape = SHAPES["paper"]
    return build(replace(shape, config={**shape.config, "vocab_size": 267_744}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--length", type=int, default=16, help="tokens of a prefix, on average")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    model = (
        paper() if options.model == "paper" else keyhole.load(options.model, device=options.device, dtype=options.dtype)
    )
    head = Head(model)
    random = np.random.default_rng(0)
    lengths = random.integers(1, 2 * options.length, options.samples)
    ids = [random.integers(0, head.vocabulary, length).tolist() for length in lengths]
    prefixes = Prefixes(ids, [0] * options.samples, {})
    tokens = np.zeros((len(model.cells), 1), np.int32)
    values: Any = SimpleNamespace(lens="raw", top_tokens=tokens, bottom_tokens=tokens)
    times: dict[str, list[float]] = {"floor": [], "section 5": []}
    for repeat in range(options.repeats + 1):
        for name, work in (
            ("floor", lambda: floor(head, prefixes, options.batch_tokens)),
            (
                "section 5",
                lambda: measure(head, values, prefixes, options.batch_tokens),
            ),
        ):
            began = time.perf_counter()
            work()
            if repeat:  # the first warms up
                times[name].append(time.perf_counter() - began)
    if options.profile:
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            measure(head, values, prefixes, options.batch_tokens)
        print(seen.key_averages().table(sort_by="self_device_time_total", row_limit=14, max_name_column_width=60))
    low, whole = (statistics.median(times[name]) for name in ("floor", "section 5"))
    print(f"{model}, {options.samples} prefixes, {sum(map(len, ids)):,} tokens, {model.dtype}, {model.device}")
    print(f"forwards and projections  {low:8.3f} s   {[round(t, 3) for t in times['floor']]}")
    print(f"section 5                 {whole:8.3f} s   {[round(t, 3) for t in times['section 5']]}")
    print(f"ratio                     {whole / low:8.3f}     (at most 1.5)")


if __name__ == "__main__":
    main()
