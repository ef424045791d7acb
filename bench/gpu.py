"""Scan ÷ bare forward on a GPU, side by side in one run.

    python bench/gpu.py                         # all four shapes, 65,536 tokens per batch
    python bench/gpu.py --shapes paper --profile
    python bench/gpu.py --shapes smollm2 --ways plain bare scan compiled_bare compiled_scan
    python bench/gpu.py --sweep                 # which tiling of `filter_rows` is fastest

Random-weight models of four shapes, bf16, t = 50, with statistics, and both signs if a coefficient can be negative. Sentences
of random length (log-normal, 25 tokens on average) are batched as a plan batches them. All ways take turns over the
same blocks of batches, timed by CUDA events; the ratios are medians over the blocks:

    plain    the forward pass as transformers runs it, batches ready in pinned memory, vocabulary head not run
    bare     the same as Keyhole runs it: with its own attention for short windows, and without reading inputs back
    scan     the scan's own loop: batches prepared in a thread, forward, the index's kernels in a stream of their own
    inline   the same with the index's kernels in the model's stream
    topk     forward, and torch.topk of every layer merged into a running list (no statistics, one sign)
    compiled_bare, compiled_scan     bare and inline with the blocks compiled, as `keyhole scan --compile` has them
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from keyhole.cells import Cells
from keyhole.common.batching import batch_by_length
from keyhole.kernels import index as triton_kernels
from keyhole.models.compiled import compiled
from keyhole.models.model import Model
from keyhole.scanning import gpu
from keyhole.scanning.config import ScanConfig
from keyhole.scanning.gpu import GpuIndex, Tiling
from keyhole.scanning.plan import POOL_WINDOWS, PlannedBatch
from keyhole.scanning.runner import Runner, scan_batches

TOP = 50
DEVICE = torch.device("cuda", 0)
WAYS = ("plain", "bare", "scan", "inline", "topk", "compiled_bare", "compiled_scan")
FILLS = ("scan", "inline", "compiled_scan")
"""The ways whose cost falls as their lists fill."""


@dataclass(frozen=True)
class Shape:
    config: dict[str, Any]
    layers: int
    cells: int
    signed: bool
    parameters: float
    """of the blocks, in millions; what is built is checked against it"""


VOCABULARY = 1024


def gpt2(layers: int, d: int, heads: int, activation: str) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": d,
        "n_inner": 4 * d,
        "n_head": heads,
        "n_positions": 1024,
        "activation_function": activation,
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def llama(layers: int, d: int, cells: int, heads: int, kv: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": d,
        "intermediate_size": cells,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": 2048,
        "vocab_size": VOCABULARY,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


SHAPES = {
    "paper": Shape(gpt2(16, 1024, 16, "relu"), 16, 4096, False, 201.5),
    "gpt2": Shape(gpt2(12, 768, 12, "gelu_new"), 12, 3072, True, 85.1),
    "llama-1b": Shape(llama(16, 2048, 8192, 32, 8), 16, 8192, True, 973.1),
    "smollm2": Shape(llama(30, 576, 1536, 9, 3), 30, 1536, True, 106.2),
}


def build(shape: Shape) -> Model:
    torch.manual_seed(0)
    options = dict(shape.config)
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    with torch.device(DEVICE):
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = Model(lm.to(DEVICE), SimpleNamespace(bos_token_id=0), source="random")
    blocks = sum(p.numel() for block in model.blocks for p in block.parameters()) / 1e6
    assert (model.layers, model.cells.sizes, model.signed) == (shape.layers, shape.cells, shape.signed), model
    assert abs(blocks - shape.parameters) < 0.5, f"the blocks have {blocks:.1f}M parameters, not {shape.parameters}M"
    assert model.device.type == "cuda"
    assert model.dtype == torch.bfloat16
    return model


class Batches:
    """A plan's batches of random sentences: sorted by length in pools, then shuffled, so that any stretch is typical."""

    def __init__(self, batch_tokens: int, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.items: list[PlannedBatch] = []
        at = 0
        while len(self.items) < count:
            lengths = np.clip(rng.lognormal(3.0, 0.65, POOL_WINDOWS), 3, 250).astype(np.int64)
            parts = [lengths[numbers] for numbers in batch_by_length(lengths, batch_tokens)]
            for number in rng.permutation(len(parts))[: count - len(self.items)]:
                part = parts[number]
                tokens = rng.integers(1, VOCABULARY, int(part.sum())).astype(np.uint16)
                cuts = np.cumsum(part)[:-1]
                first = at + np.concatenate([[0], cuts])
                seen_before = np.minimum(rng.geometric(0.5, len(part)) - 1, part - 1).astype(np.int32)
                self.items.append(PlannedBatch(np.split(tokens, cuts), first, seen_before))
                at += int(part.sum())

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> PlannedBatch:
        return self.items[number]

    def tokens(self, numbers: range) -> int:
        return sum(len(window) for number in numbers for window in self.items[number].windows)


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Milliseconds on the GPU, and until the host has launched everything."""
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    clock = time.perf_counter()
    begin.record()
    work()
    end.record()
    host = (time.perf_counter() - clock) * 1e3
    torch.cuda.synchronize()
    return begin.elapsed_time(end), host


class Contest:
    """The ways to run the same batches. Each keeps what it needs between blocks."""

    def __init__(self, model: Model, batches: Batches, batch_tokens: int) -> None:
        self.model, self.batches = model, batches
        self.config = ScanConfig(top=TOP, batch_tokens=batch_tokens)
        self.prepare = Runner(model, self.index(), self.config).prepare
        self.ready: dict[int, Any] = {}
        self.begin()

    def begin(self) -> None:
        """Empty lists."""
        self.best: list[torch.Tensor] = []
        self.indices = {way: self.index(side_stream=way == "scan") for way in FILLS}

    def index(self, **options: Any) -> GpuIndex:
        return GpuIndex(
            [DEVICE] * len(self.model.sites),
            self.model.cells,
            TOP,
            signed=self.model.signed,
            per="sentence",
            **options,
        )

    def get_ready(self, numbers: range) -> None:
        self.ready = {number: self.prepare(self.batches[number]) for number in numbers}

    @torch.inference_mode()
    def plain(self, numbers: range) -> None:
        for number in numbers:
            ids = self.ready[number].ids.to(DEVICE, non_blocking=True)
            self.model.lm.base_model(input_ids=ids, use_cache=False)

    def bare(self, numbers: range) -> None:
        for number in numbers:
            self.model.forward(self.ready[number].ids.to(DEVICE, non_blocking=True))

    def scan(self, numbers: range, way: str = "scan") -> None:
        for _ in scan_batches(self.model, self.batches, self.indices[way], self.config, numbers):
            pass

    def inline(self, numbers: range) -> None:
        self.scan(numbers, "inline")

    def around(self, way: str) -> contextlib.AbstractContextManager[None]:
        """What a way needs and what is not timed. The model's blocks are compiled once, and found again the second time."""
        return compiled(self.model) if way.startswith("compiled") else contextlib.nullcontext()

    def compiled_bare(self, numbers: range) -> None:
        self.bare(numbers)

    def compiled_scan(self, numbers: range) -> None:
        self.scan(numbers, "compiled_scan")

    def topk(self, numbers: range) -> None:
        def sink(site: int, x: torch.Tensor, tokens: torch.Tensor | None) -> None:
            new = torch.topk(x.reshape(-1, x.shape[-1]), TOP, dim=0).values
            if site == len(self.best):
                self.best.append(new)
            else:
                self.best[site] = torch.topk(torch.cat([self.best[site], new]), TOP, dim=0).values

        for number in numbers:
            self.model.run(self.ready[number].ids.to(DEVICE, non_blocking=True), sink)


def measure(name: str, batch_tokens: int, args: argparse.Namespace) -> None:
    model = build(SHAPES[name])
    blocks, size = args.blocks, args.block_batches
    ways = list(dict.fromkeys(["bare", *args.ways]))
    early = 10
    before = early + args.warm
    batches = Batches(batch_tokens, before + blocks * size)
    contest = Contest(model, batches, batch_tokens)
    # warm up: compile, grow the allocator, raise the clock rates
    contest.get_ready(range(3))
    for way in ways:
        with contest.around(way):
            getattr(contest, way)(range(3))
    contest.begin()

    first = range(early)
    contest.get_ready(first)
    bare_early, _ = timed(lambda: contest.bare(first))
    scan_early, _ = timed(lambda: contest.scan(first))
    for way in FILLS:
        if way in ways:
            with contest.around(way):
                getattr(contest, way)(range(early if way == "scan" else 0, before))

    times: dict[str, list[float]] = {way: [] for way in ways}
    host: dict[str, list[float]] = {way: [] for way in ways}
    tokens, places = [], []
    for block in range(blocks):
        numbers = range(before + block * size, before + (block + 1) * size)
        contest.get_ready(numbers)
        for way in ways if block % 2 == 0 else ways[::-1]:
            each = getattr(contest, way)
            with contest.around(way):
                on_card, on_host = timed(lambda each=each, numbers=numbers: each(numbers))  # type: ignore[misc]
            times[way].append(on_card / size)
            host[way].append(on_host / size)
        tokens.append(batches.tokens(numbers) / size)
        places.append(sum(contest.ready[number].ids.numel() for number in numbers) / size)

    median = statistics.median

    def against(way: str, other: str) -> str:
        if other not in times:
            return " " * 21
        ratios = sorted(a / b for a, b in zip(times[way], times[other], strict=True))
        return f"{median(ratios):6.3f} ({ratios[0]:.3f}–{ratios[-1]:.3f})"

    def rate(way: str, counts: list[float]) -> float:
        return median(count / ms / 1e3 for count, ms in zip(counts, times[way], strict=True))

    print(f"\n{name}, {batch_tokens} tokens per batch, {blocks} blocks of {size} batches after {before}")
    print(f"{'':14} ms / batch   ÷ bare                ÷ plain               M positions/s  M tokens/s  host ms")
    for way in ways:
        print(
            f"{way:14} {median(times[way]):10.2f}   {against(way, 'bare')}  {against(way, 'plain')} "
            f"{rate(way, places):14.3f} {rate(way, tokens):11.3f} {median(host[way]):8.2f}",
            flush=True,
        )
    print(f"the first {early} batches: {scan_early / bare_early:.2f} × bare")
    print(over_bare(contest, numbers), flush=True)
    if args.profile:
        profile(contest, [way for way in ways if way != "topk"], numbers)


def over_bare(contest: Contest, numbers: range) -> str:
    """Memory of a scan over that of the bare forward."""

    def peak(way: str) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        getattr(contest, way)(numbers)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    index = contest.indices["scan"]
    held = sum(t.nbytes for part in index.parts.values() for t in vars(part).values() if isinstance(t, torch.Tensor))
    over = peak("scan") - peak("bare") + held  # the index is allocated in both
    return f"memory over bare {over / 1e6:.0f} MB, of which the lists {index.nbytes / 1e6:.0f} MB"


def profile(contest: Contest, ways: list[str], numbers: range) -> None:
    """Where the time of each way goes, by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    some = numbers[:3]
    for way in ways:
        with contest.around(way), profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            getattr(contest, way)(some)
            torch.cuda.synchronize()
        rows = [
            (event.key, event.self_device_time_total, event.count)
            for event in seen.key_averages()
            if event.self_device_time_total > 0 and event.device_type == torch.autograd.DeviceType.CUDA
        ]
        total = sum(row[1] for row in rows)
        print(f"  {way}: {total / 1e3 / len(some):.2f} ms of kernels per batch")
        ours = [row for row in rows if row[0] in ("filter_rows", "settle") or "emcpy" in row[0] or "emset" in row[0]]
        for key, spent, count in sorted(set(ours) | set(sorted(rows, key=lambda r: -r[1])[:8]), key=lambda r: -r[1]):
            print(f"    {spent / total:6.1%} {spent / count:9.1f} µs × {count / len(some):6.0f}  {key[:90]}")


def sweep(args: argparse.Namespace) -> None:
    """`filter_rows` alone on one layer, for each tiling, beside the time that reading the bytes takes."""
    tilings = [
        Tiling(rows, 1, block, unroll, warps, fill, registers)
        for rows, block, unroll, warps, fill, registers in [
            (1, 256, 4, 1, 16, 128),
            (1, 256, 8, 1, 16, 128),
            (1, 256, 6, 1, 16, 128),
            (1, 256, 4, 1, 8, None),
            (1, 256, 4, 1, 20, 96),
            (1, 128, 8, 1, 16, 128),
            (1, 128, 8, 1, 20, 96),
            (1, 128, 6, 1, 24, 80),
            (1, 128, 4, 1, 24, 80),
            (1, 128, 4, 1, 32, 64),
            (2, 128, 4, 2, 8, 128),
            (4, 128, 4, 4, 5, 96),
            (1, 512, 4, 2, 8, 128),
        ]
    ]
    copy = torch.empty(1 << 30, device=DEVICE, dtype=torch.uint8)
    other = torch.empty_like(copy)
    for _ in range(3):
        other.copy_(copy)
    took = statistics.median(timed(lambda: other.copy_(copy))[0] for _ in range(10))
    bandwidth = 2 * copy.nbytes / took / 1e9
    print(f"copy {bandwidth:.2f} TB/s")
    for name, cells, signed in (("paper", 4096, False), ("gpt2", 3072, True), ("smollm2", 1536, True)):
        batches = Batches(args.batch_tokens[0], 6)
        results = []
        for tiling in tilings:
            try:
                index = GpuIndex([DEVICE], Cells.of_widths([cells]), TOP, signed=signed, per="sentence", tiling=tiling)
                fed = []
                for batch in batches.items:
                    lengths = np.array([len(window) for window in batch.windows])
                    columns = 1 + int(lengths.max())
                    x = torch.randn(len(lengths), columns, cells, device=DEVICE, dtype=torch.bfloat16)
                    x = x if signed else x.relu_()
                    rows = index.prepare(columns, 1, lengths, batch.seen_before, batch.first_tokens)
                    fed.append(index.given(index.sites[0].part, x, rows, None))
                site = index.sites[0]
                site.part.thresholds.fill_(
                    int(np.float32(6.0).view(np.int32))
                )  # nothing passes, so that only the reading is timed

                def filter_rows(fed: list[Any] = fed, index: GpuIndex = index, site: Any = site) -> None:
                    for given in fed:
                        index.filter_rows(site, given)

                filter_rows()
                spent = statistics.median(timed(filter_rows)[0] for _ in range(args.blocks)) / len(fed)
                moved = sum(given.x.nbytes for given in fed) / len(fed)
                groups = index.filter_rows(site, fed[0])
                index.settle(site, fed[0], groups)
                site.part.thresholds.fill_(int(np.float32(6.0).view(np.int32)))

                def settle(fed: list[Any] = fed, index: GpuIndex = index, site: Any = site, g: int = groups) -> None:
                    for given in fed:
                        index.settle(site, given, g)

                settled = statistics.median(timed(settle)[0] for _ in range(args.blocks)) / len(fed)
                results.append((spent, settled, moved, tiling))
            except Exception:  # noqa: BLE001 - one tiling's failure must not lose the others
                traceback.print_exc()
        for spent, settled, moved, tiling in sorted(results, key=lambda r: r[0]):
            print(
                f"{name:8} filter {spent * 1e3:7.1f} µs ({moved / spent / 1e9:4.2f} TB/s, bytes alone {moved / bandwidth / 1e6:5.1f} µs) "
                f"settle {settled * 1e3:5.1f} µs  {tiling}",
                flush=True,
            )
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batch-tokens", nargs="+", type=int, default=[65536])
    parser.add_argument(
        "--warm", type=int, default=40, help="batches before the measured ones: the lists are full by then"
    )
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--block-batches", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--ways", nargs="+", default=["plain", "bare", "scan", "topk"], choices=WAYS)
    parser.add_argument("--sweep", action="store_true")
    args = parser.parse_args()
    print(
        f"{torch.cuda.get_device_name(DEVICE)}, torch {torch.__version__}, triton {triton_kernels.triton.__version__}, "
        f"{gpu.SHORT_ROWS}",
        flush=True,
    )
    if args.sweep:
        sweep(args)
        return
    for tokens in args.batch_tokens:
        for name in args.shapes:
            gc.collect()
            torch.cuda.empty_cache()
            try:
                measure(name, tokens, args)
            except Exception:  # noqa: BLE001 - one shape's failure must not lose the others
                traceback.print_exc()


if __name__ == "__main__":
    main()
