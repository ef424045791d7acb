"""The search for patterns of every key, compared with the bare forward pass over the same text.

    python bench/patterns.py RUN [--layers N] [--tokens 262144] [--processes 2] [--held-out TEXT]

RUN is a finished scan; it is copied, and all keys of the copy are searched without scores, or those of N layers, evenly spaced.
Printed: the seconds of the bare forward pass over the text that rules are found in, of the pass that finds where keys fire, and of
the search for rules; the milliseconds of one core per key; the minutes that all keys of the model take, if that is the time of each;
and the largest memory of this process and of one that searches. With held-out text the keys are scored on it: printed are the passes
of the model that this takes and their seconds beside those of the bare forward pass, and the seconds of running the rules.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keyhole.common.batching import batch_by_length
from keyhole.models.model import Model
from keyhole.models.rerun import model_of
from keyhole.patterns import find, scoring
from keyhole.patterns.held import held_out_text, mining_text
from keyhole.patterns.lexicon import Lexicon
from keyhole.patterns.text import Text
from keyhole.store import patterns as stored
from keyhole.store.run import Run


def forward(run: Run, model: Model, text: Text) -> float:
    """Seconds of the bare forward pass over a text."""
    begin = time.perf_counter()
    for numbers in batch_by_length(np.diff(text.offsets), int(run.manifest["config"]["batch_tokens"])):
        windows = [text.tokens[text.offsets[i] : text.offsets[i + 1]] for i in numbers]
        model.forward(model.batch(windows).ids)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - begin


def score(run: Run, model: Model, file: Path) -> None:
    """Score all keys that the run has, and print what it took."""
    held, _ = held_out_text(run, model, [file], most_tokens=find.HELD_OUT)
    forward(run, model, held)  # the first one is slower
    bare = forward(run, model, held)
    keys = {layer: stored.read_keys(run, layer, evidence=True) for layer in range(run.layers)}
    passes: list[float] = []
    keep = scoring._keep

    def timed(*given: Any) -> dict[int, torch.Tensor]:
        begin = time.perf_counter()
        kept = keep(*given)
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        passes.append(time.perf_counter() - begin)
        return kept

    scoring._keep = timed
    begin = time.perf_counter()
    scoring.score(run, model, held, keys)
    rules = time.perf_counter() - begin - sum(passes)
    print(f"held-out tokens      {len(held):,}; bare forward pass {bare:.2f} s")
    print(f"passes               {len(passes)}: {sum(passes):.2f} s, {sum(passes) / bare:.2f} times that")
    print(f"rules and scores     {rules:.1f} s of {sum(map(len, keys.values())):,} keys")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, default=1 << 18)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--held-out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(shutil.copytree(given.run, Path(folder) / "run"))
        model = model_of(run, device=given.device)
        text = mining_text(run, most_tokens=given.tokens, lexicon=Lexicon.of(run))
        bare = forward(run, model, text)
        every = find.chosen_cells(run, find.ALL, 0)
        total = sum(map(len, every.values()))
        if given.layers:
            some = np.linspace(0, run.layers - 1, given.layers).round().astype(int).tolist()
            none = np.empty(0, np.int64)
            few = {layer: cells if layer in some else none for layer, cells in every.items()}
            find.chosen_cells = lambda run, cells, seed: few
        steps: list[tuple[str, float]] = []

        def progress(what: str, total: int) -> Callable[[int], None]:
            steps.append((what, time.perf_counter()))
            return lambda done: None

        find.patterns(
            run,
            cells=find.ALL,
            tokens=given.tokens,
            ablate=0,
            baselines=False,
            score=False,
            processes=given.processes,
            model=model,
            progress=progress,
        )
        end = time.perf_counter()
        first = next(at for what, at in steps if what.startswith("layer"))
        looked = first - steps[0][1]
        found = stored.of(run)
        keys = [key for _, key in found] if found else []
        mebibytes = [
            resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        print(f"tokens               {len(text):,}")
        print(f"bare forward pass    {bare:.1f} s")
        print(f"where keys fire      {looked:.1f} s, {looked / bare:.2f} times that")
        print(f"rules of {len(keys):,} keys  {end - first:.1f} s, {(end - first) / bare:.1f} times that")
        print(f"per key              {1000 * given.processes * (end - first) / max(1, len(keys)):.0f} ms of one core")
        print(
            f"all {total:,} keys  {(looked + (end - first) * total / max(1, len(keys))) / 60:.1f} min with {given.processes} processes"
        )
        print(f"largest memory       {mebibytes[0]:,.0f} MiB, {mebibytes[1]:,.0f} MiB in a process that searches")
        print(f"keys with a pattern  {sum(bool(key.patterns) for key in keys):,}")
        if given.held_out:
            score(run, model, given.held_out)


if __name__ == "__main__":
    main()
