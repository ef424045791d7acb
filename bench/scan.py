"""What a scan costs over the bare forward pass, on a CPU, with SmolLM2 over the State of the Union.

Two processes run every batch in turn: one only runs the model's blocks, as torch runs them, and one scans. The second one
also runs the blocks alone (`same setting`: a scan makes the C library keep freed memory, which makes the forward pass itself
faster), Keyhole with every prefix, and the blocks with `torch.topk` per layer. With --repeats, the smallest of a batch's
times counts, because other work on the machine only adds time. Planning and writing the run are timed too, and count as
Keyhole's time. The ratio so far is printed after each batch: the longer the corpus, the fewer prefixes enter a list.

    python bench/scan.py [--tokens 40000] [--top 25] [--repeats 1] [--scan-only]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import demo_model, machine, plan_for

from keyhole import demo
from keyhole.scanning.config import ScanConfig
from keyhole.scanning.contract import Index
from keyhole.scanning.plan import open_plan
from keyhole.scanning.results import save_results
from keyhole.scanning.runner import index_for, scan_batches
from keyhole.store.unfinished import Partial, PlanFiles


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


class Contenders:
    """What one process measures: the model, the plan, and a method per way to run a batch."""

    def __init__(self, folder: Path, top: int, repeats: int) -> None:
        self.model = demo_model()
        files = PlanFiles(folder / "x.partial")
        self.plan, self.top, self.repeats = open_plan(files, contents=True), top, repeats
        self.folder = folder
        self.indexes: dict[str, list[Index]] = {}
        self.scans: dict[str, list[Iterator[int]]] = {}
        self.usual = [TopKPerLayer(self.model.layers, top) for _ in range(repeats)]
        self.model.forward(self.model.batch(self.plan[0].windows).ids)

    def bare(self, number: int, turn: int) -> float:
        ids = self.model.batch(self.plan[number].windows).ids
        return timed(lambda: self.model.forward(ids))

    same = bare

    def sentence(self, number: int, turn: int, per: str = "sentence") -> float:
        if per not in self.scans:
            config = ScanConfig(top=self.top, per=per).resolve(self.model)
            self.indexes[per] = [index_for(self.model, config) for _ in range(self.repeats)]
            self.scans[per] = [
                scan_batches(self.model, self.plan, index, config, range(len(self.plan))) for index in self.indexes[per]
            ]
        return timed(lambda: next(self.scans[per][turn], None))  # after the last batch: merge what is pending

    def prefix(self, number: int, turn: int) -> float:
        return self.sentence(number, turn, "prefix")

    def topk(self, number: int, turn: int) -> float:
        planned = self.plan[number]
        batch = self.model.batch(planned.windows)
        columns = batch.ids.shape[1]
        rows = np.concatenate(
            [
                row * columns + batch.n_special + np.arange(seen_before, len(window))
                for row, (window, seen_before) in enumerate(zip(planned.windows, planned.seen_before, strict=True))
            ]
        )
        picked, lists = torch.from_numpy(rows), self.usual[turn]
        return timed(lambda: self.model.run(batch.ids, lambda site, x, tokens: lists.update(site, x, picked)))

    def files(self, number: int, turn: int) -> float:
        """Write the run. If `torch.topk` found lists too, they must be the same."""
        partial = Partial(self.folder / "x")
        seconds = timed(lambda: save_results(self.indexes["sentence"][0].state(), self.plan.unit_offsets, partial))
        if "prefix" in self.indexes:
            save_results(self.indexes["prefix"][0].state(), self.plan.unit_offsets, partial)
            found = np.nan_to_num(np.load(partial.path / "coefficients.npy"))
            for layer in range(self.model.layers):
                expected = self.usual[0].lists[0][layer]
                assert expected is not None
                np.testing.assert_array_equal(found[self.model.cells.span(layer)], expected.clamp_min(0).T.numpy())
        return seconds


def serve(folder: Path, top: int, repeats: int) -> None:
    """Runs in a process: reads a name, a batch and a turn per line, and answers with seconds."""
    contenders = Contenders(folder, top, repeats)
    for line in sys.stdin:
        name, number, turn = json.loads(line)
        print(json.dumps(getattr(contenders, name)(number, turn)), flush=True)


class Process:
    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, __file__, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *question: Any) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scan-only", action="store_true", help="leave out every prefix and torch.topk")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        serve(options.folder, options.top, options.repeats)
        return
    model = demo_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = demo.write_sample(folder / "sample.txt", 10)
        began = time.perf_counter()
        plan = plan_for(model, folder / "x.partial", [str(sample)], options.tokens, ScanConfig(top=options.top))
        planning = time.perf_counter() - began
        arguments = ("--folder", folder, "--top", options.top, "--repeats", options.repeats)
        alone, keyhole = Process(*arguments), Process(*arguments)
        who = {"bare": alone, "sentence": keyhole, "same": keyhole}
        who |= {} if options.scan_only else {"prefix": keyhole, "topk": keyhole}
        seconds = dict.fromkeys(who, 0.0)
        for number in range(len(plan)):
            turns = [{name: who[name].ask(name, number, turn) for name in who} for turn in range(options.repeats)]
            for name in who:
                seconds[name] += min(turn[name] for turn in turns)
            print(f"{(number + 1) / len(plan):5.0%}  {seconds['sentence'] / seconds['bare']:.3f}×", flush=True)
        for name in {"sentence", "prefix"} & set(who):
            seconds[name] += min(keyhole.ask(name, len(plan), turn) for turn in range(options.repeats))
        writing = keyhole.ask("files", 0, 0)
        for process in (alone, keyhole):
            process.process.stdin.close()  # type: ignore[union-attr]
            process.process.wait()
        tokens, bare = plan.summary.tokens, seconds["bare"]
        print(
            f"SmolLM2-135M, {tokens:,} tokens in {len(plan)} batches, t = {options.top}, both signs, float32; {machine()}"
        )
        print(f"{'bare forward, no vocabulary head':48}{bare:8.1f} s   1.000×   {tokens / bare:,.0f} tokens/s")
        named = {
            "sentence": "  its batches alone",
            "same": "bare forward, same setting",
            "prefix": "keyhole, every prefix, its batches alone",
            "topk": "torch.topk per layer (no statistics)",
        }
        whole = planning + seconds["sentence"] + writing
        rows = [("keyhole, whole scan (plan, batches, files)", whole)]
        rows += [(what, seconds[name]) for name, what in named.items() if name in seconds]
        for what, taken in rows:
            print(f"{what:48}{taken:8.1f} s   {taken / bare:.3f}×")
        print(f"whole scan ÷ bare forward at the same setting     {whole / seconds['same']:.3f}×")
        print(f"plan {planning:.2f} s, files {writing:.2f} s")


if __name__ == "__main__":
    main()
