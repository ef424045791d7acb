"""What a scan costs over the bare forward pass, on a CPU, with SmolLM2 over the State of the Union.

Every batch is run four times in a row, so that whatever else the machine does hits all four alike: the blocks alone,
Keyhole (one trigger a sentence), Keyhole (every prefix), and the blocks with `torch.topk` per layer. Planning and
writing the run are timed too and counted on Keyhole's side.

    python bench/scan.py [--tokens 40000] [--top 25] [--scan-only]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import demo_model, machine, plan_for

from keyhole import demo
from keyhole.engine import save_results
from keyhole.kernels import Index
from keyhole.shard import ScanConfig, scan_batches
from keyhole.store import Partial


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class TopKPerLayer:
    """The usual way: keep a running top-t by `torch.topk` over [t + batch, cells], in every layer, for both signs."""

    def __init__(self, layers: int, top: int) -> None:
        self.top = top
        self.lists: list[list[torch.Tensor | None]] = [[None] * layers, [None] * layers]

    def update(self, layer: int, x: torch.Tensor, rows: torch.Tensor) -> None:
        picked = x.reshape(-1, x.shape[-1]).index_select(0, rows)
        for side, values in enumerate((picked, -picked)):
            before = self.lists[side][layer]
            both = values if before is None else torch.cat([before, values])
            self.lists[side][layer] = both.topk(min(self.top, len(both)), dim=0).values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--scan-only", action="store_true", help="leave out the other two contenders")
    options = parser.parse_args()
    model = demo_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = demo.write_sample(folder / "sample.txt", 40)
        config = ScanConfig(top=options.top)
        began = time.perf_counter()
        plan = plan_for(model, folder / "x.partial", [str(sample)], options.tokens, config)
        planning = time.perf_counter() - began
        config = config.resolve(model)
        by_prefix = ScanConfig(**{**vars(config), "per": "prefix"})
        index = Index(model.layers, model.cells, options.top, signed=model.signed)
        prefix_index = Index(model.layers, model.cells, options.top, signed=model.signed, per="prefix")
        usual = TopKPerLayer(model.layers, options.top)
        bare = sentence = prefix = topk = 0.0
        scanning = scan_batches(model, plan, index, config, range(len(plan)))
        by_prefixes = scan_batches(model, plan, prefix_index, by_prefix, range(len(plan)))
        model.forward(model.batch(plan[0].windows).ids)
        for number in range(len(plan)):
            planned = plan[number]
            batch = model.batch(planned.windows)
            columns = batch.ids.shape[1]
            rows = np.concatenate(
                [
                    row * columns + batch.starts + np.arange(old, len(window))
                    for row, (window, old) in enumerate(zip(planned.windows, planned.old, strict=True))
                ]
            )
            picked = torch.from_numpy(rows)
            bare += timed(lambda batch=batch: model.forward(batch.ids))
            sentence += timed(lambda: next(scanning))
            if options.scan_only:
                continue
            prefix += timed(lambda: next(by_prefixes))
            topk += timed(
                lambda batch=batch, picked=picked: model.run(batch.ids, lambda layer, x: usual.update(layer, x, picked))
            )
        sentence += timed(lambda: next(scanning, None))  # what still waits to be merged
        began = time.perf_counter()
        save_results(index, plan.unit_offsets, partial := Partial(folder / "x"))
        writing = time.perf_counter() - began

        if not options.scan_only:
            prefix += timed(lambda: next(by_prefixes, None))
            save_results(prefix_index, plan.unit_offsets, partial)
            found = np.nan_to_num(np.load(partial.path / "coefficients.npy"))
            for layer in range(model.layers):
                expected = usual.lists[0][layer]
                assert expected is not None
                np.testing.assert_array_equal(found[layer], expected.clamp_min(0).T.numpy())

        tokens = plan.summary.tokens
        print(
            f"SmolLM2-135M, {tokens:,} tokens in {len(plan)} batches, t = {options.top}, both signs, float32; {machine()}"
        )
        print(f"{'bare forward, no vocabulary head':48}{bare:8.1f} s   1.000×   {tokens / bare:,.0f} tokens/s")
        whole = planning + sentence + writing
        contenders = [("keyhole, whole scan (plan, batches, files)", whole), ("  its batches alone", sentence)]
        if not options.scan_only:
            contenders += [
                ("  its batches alone, every prefix", prefix),
                ("torch.topk per layer (no statistics)", topk),
            ]
        for what, seconds in contenders:
            print(f"{what:48}{seconds:8.1f} s   {seconds / bare:.3f}×")
        print(f"plan {planning:.2f} s, files {writing:.2f} s")


if __name__ == "__main__":
    main()
