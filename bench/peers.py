"""Every cell's top-t with Keyhole, TransformerLens and nnsight: the same model, text, batches and t, on a CPU.

    make bench-peers                    # or, if the two are installed: python bench/peers.py [--per prefix]

Keyhole scans as it always does, statistics included. The others do what their users would write: TransformerLens
`run_with_cache` of every `mlp.hook_post` and then `torch.topk`; nnsight a trace that reads every `down_proj.input` and
calls `torch.topk` there. Neither computes what is not needed (gradients, all other activations, the
vocabulary head), both are given the candidates, and neither keeps statistics.

Each contender runs in a process of its own, so that it has its own peak memory. They take turns batch by batch, and only
one works at a time. Before or after each batch, in alternating order, the same process runs the bare blocks on it, with a
copy of the model that shares its weights and has no hook; a contender's ratio is to that time. The bare forward is also a
contender: its ratio shows the noise. The ratio of processor seconds is for machines with other work on them. Nothing is
loaded from the network. The results are compared before times are printed, and every difference is reported.
"""

from __future__ import annotations

import abc
import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

# This process stays small and imports neither torch nor Keyhole: a child's ru_maxrss starts at its parent's size.
import numpy as np

CONTENDERS = {
    "bare": "bare forward, no vocabulary head",
    "keyhole": "Keyhole",
    "transformer-lens": "TransformerLens run_with_cache + topk",
    "nnsight": "nnsight trace + topk",
}
RTOL = 1e-3
"""Relative tolerance: float32 in another order of operations. Neighbours in a list that are closer than this may swap places."""
ATOL = 3e-5
"""Absolute tolerance: the rounding of a coefficient depends on the larger numbers of its layer."""


# Once, before the contenders: the model, the batches, the candidates


def prepare(folder: Path, tokens: int, top: int, per: str) -> None:
    from common import demo_model, machine, plan_for

    from keyhole import demo
    from keyhole.models.gguf import convert
    from keyhole.scanning.config import ScanConfig
    from keyhole.scanning.contract import Windows
    from keyhole.scanning.cpu import candidates

    model = demo_model()
    config = ScanConfig(top=top, per=per).resolve(model)
    plan = plan_for(model, folder, [str(demo.write_sample(folder / "sample.txt", 40))], tokens, config)
    first = []
    for number in range(len(plan)):
        planned = plan[number]
        first.append(planned.first_tokens)
        batch = model.batch(planned.windows)
        lengths = np.fromiter(map(len, planned.windows), np.int64)
        columns = batch.ids.shape[1]
        windows = Windows.of(columns, batch.n_special, lengths, planned.seen_before, planned.first_tokens)
        picked = candidates(windows, per)
        rows, places = (each.reshape(-1, picked.width) for each in (picked.index.numpy(), picked.tokens))
        np.savez(folder / f"batch-{number}.npz", ids=batch.ids.numpy(), rows=rows, tokens=places)
    np.save(folder / "windows.npy", np.sort(np.concatenate(first)))
    about = {
        "model": str(convert(demo.model_file())),
        "machine": machine(),
        "batches": len(plan),
        "summary": vars(plan.summary),
        "config": vars(config),
        "layers": model.layers,
        "cells": model.cells.sizes,
    }
    (folder / "about.json").write_text(json.dumps(about))


# The contenders: each gives `start` (forget everything), `run` (one batch) and `finish` (the lists)

Lists = tuple[np.ndarray, np.ndarray]
"""Coefficients and token indices, each [sides, layers, cells, top]; a coefficient of at most zero is no trigger."""


class Bare:
    def __init__(self, lm: Any, about: dict[str, Any], folder: Path) -> None:
        self.lm = lm

    def start(self) -> None: ...

    def run(self, number: int, batch: dict[str, Any]) -> None:
        self.lm.base_model(input_ids=batch["ids"], use_cache=False)

    def finish(self) -> Lists | None:
        return None


class Keyhole:
    def __init__(self, lm: Any, about: dict[str, Any], folder: Path) -> None:
        from transformers import AutoTokenizer

        from keyhole.models.model import Model
        from keyhole.scanning.config import ScanConfig
        from keyhole.scanning.plan import Plan, Summary
        from keyhole.store.unfinished import PlanFiles

        self.model = Model(lm, AutoTokenizer.from_pretrained(about["model"]), source=about["model"])
        self.plan = Plan(PlanFiles(folder), Summary(**about["summary"]))
        self.config = ScanConfig.from_dict(about["config"])

    def start(self) -> None:
        from keyhole.scanning.runner import index_for

        self.index = index_for(self.model, self.config)

    def run(self, number: int, batch: dict[str, Any]) -> None:
        from keyhole.scanning.runner import scan_batches

        for _ in scan_batches(self.model, self.plan, self.index, self.config, range(number, number + 1)):
            pass

    def finish(self) -> Lists:
        from keyhole.kernels.order import unpack

        keys = self.index.state()["keys"]
        return unpack(keys.reshape(len(keys), self.model.layers, -1, keys.shape[-1]))


class TopK:
    """A running top-t by `torch.topk`, in every layer, for both signs."""

    def __init__(self, layers: int, top: int) -> None:
        self.top = top
        self.lists: list[list[Any]] = [[None] * layers, [None] * layers]

    def update(self, layer: int, x: Any, rows: Any, tokens: Any) -> None:
        """`rows` [blocks, width]: of each block, one may enter; `tokens`: the token index of each."""
        import torch

        blocks, width = rows.shape
        picked = x.reshape(-1, x.shape[-1]).index_select(0, rows.reshape(-1))
        for side in (0, 1):
            values = picked if side == 0 else -picked
            if width > 1:
                values, where = values.view(blocks, width, -1).max(1)
                places = tokens.gather(1, where)
            else:
                places = tokens.expand(blocks, values.shape[1])
            if self.lists[side][layer] is not None:
                values = torch.cat([self.lists[side][layer][0], values])
                places = torch.cat([self.lists[side][layer][1], places])
            best = values.topk(min(self.top, len(values)), dim=0)
            self.lists[side][layer] = best.values, places.gather(0, best.indices)

    def result(self) -> Lists:
        both = ([[layer[part].T.numpy() for layer in side] for side in self.lists] for part in (0, 1))
        coefficients, tokens = (np.array(part) for part in both)
        return coefficients, tokens


class WithTopK(abc.ABC):
    """What the two other tools share: they return activations, and the user has to keep the lists."""

    def __init__(self, lm: Any, about: dict[str, Any], folder: Path) -> None:
        self.layers, self.top = about["layers"], about["config"]["top"]
        self.open(lm, about["model"])

    @abc.abstractmethod
    def open(self, lm: Any, source: str) -> None: ...

    def start(self) -> None:
        self.best = TopK(self.layers, self.top)

    def finish(self) -> Lists:
        return self.best.result()


class TransformerLens(WithTopK):
    def open(self, lm: Any, source: str) -> None:
        import torch
        from transformer_lens.model_bridge import TransformerBridge
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source)
        self.bridge = TransformerBridge.boot_transformers(
            source, hf_model=lm, tokenizer=tokenizer, dtype=torch.float32, device="cpu"
        )
        self.names = [f"blocks.{layer}.mlp.hook_post" for layer in range(self.layers)]

    def run(self, number: int, batch: dict[str, Any]) -> None:
        # it cannot leave out the head, but passes this option on to transformers: logits of the last column only
        _, cache = self.bridge.run_with_cache(batch["ids"], names_filter=self.names, return_type=None, logits_to_keep=1)
        for layer, name in enumerate(self.names):
            self.best.update(layer, cache[name], batch["rows"], batch["tokens"])


class NNsight(WithTopK):
    def open(self, lm: Any, source: str) -> None:
        import nnsight

        self.wrapped = nnsight.NNsight(lm.base_model)

    def run(self, number: int, batch: dict[str, Any]) -> None:
        best, wrapped, layers = self.best, self.wrapped, self.layers
        with wrapped.trace(input_ids=batch["ids"], use_cache=False):
            for layer in range(layers):
                best.update(layer, wrapped.layers[layer].mlp.down_proj.input, batch["rows"], batch["tokens"])


KINDS: dict[str, Callable[..., Any]] = {
    "bare": Bare,
    "keyhole": Keyhole,
    "transformer-lens": TransformerLens,
    "nnsight": NNsight,
}


def contend(name: str, folder: Path) -> None:
    """Runs in a process of its own: executes the lines on standard input, and answers each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    try:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        about = json.loads((folder / "about.json").read_text())
        lm = AutoModelForCausalLM.from_pretrained(about["model"], dtype=torch.float32).eval().requires_grad_(False)
        bare = Bare(
            copy.deepcopy(lm, {id(tensor): tensor for tensor in (*lm.parameters(), *lm.buffers())}), about, folder
        )
        own = KINDS[name](lm, about, folder)
        batches = []
        for number in range(about["batches"]):
            with np.load(folder / f"batch-{number}.npz") as file:
                batches.append({key: torch.from_numpy(file[key]) for key in file.files})
        with torch.inference_mode():
            own.start()
            for contender in (bare, own):
                contender.run(len(batches) - 1, batches[-1])
            answer(ready=True)
            for line in sys.stdin:
                order, number = line.split()[0], int(line.split()[1])
                if order == "start":
                    own.start()
                    answer()
                elif order == "batch":
                    seconds = {}
                    for what in ("bare", "own") if number % 2 else ("own", "bare"):
                        began, used = time.perf_counter(), time.process_time()
                        (bare if what == "bare" else own).run(number, batches[number])
                        seconds[what] = time.perf_counter() - began
                        seconds[f"{what} CPU"] = time.process_time() - used
                    answer(**seconds)
                else:
                    began, used = time.perf_counter(), time.process_time()
                    lists = own.finish()
                    seconds = {"own": time.perf_counter() - began, "own CPU": time.process_time() - used}
                    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                    if lists is not None:
                        np.savez(folder / f"{name}.npz", coefficients=lists[0], tokens=lists[1])
                    answer(**seconds, peak=peak)
    except Exception as error:  # noqa: BLE001 - whatever a contender fails with, the others go on
        answer(error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")


# The run


class Contender:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.error: str | None = None
        self.times: dict[tuple[str, int], list[float]] = {}
        """seconds of "own" or "bare" for each batch (or, at -1, the end), one per round"""
        self.peak = 0.0
        # an idle contender must not spin while another one is measured
        environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
        self.log: IO[str] = (folder / f"{name}.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--contend", name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            text=True,
        )
        self.answer()

    def ask(self, order: str, number: int = 0) -> None:
        if self.error:
            return
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{order} {number}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer will be missing, which is reported
        self.answer(number)

    def answer(self, number: int = 0) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            values: dict[str, Any] = json.loads(line)
            self.error = values.get("error")
            self.peak = values.get("peak", self.peak)
            for what in {"own", "bare", "own CPU", "bare CPU"} & values.keys():
                self.times.setdefault((what, number), []).append(values[what])
            return
        self.log.flush()
        said = Path(self.log.name).read_text().strip().splitlines()
        self.error = f"its process ended with status {self.process.wait()}{': ' + said[-1] if said else ''}"

    def seconds(self, what: str) -> float:
        """The sum over all batches of the fastest round: other work on the machine makes rounds slower."""
        return sum(min(times) for (which, _), times in self.times.items() if which == what)

    def close(self) -> None:
        self.process.communicate()
        self.log.close()


def compare(found: Lists, expected: Lists, windows: np.ndarray | None) -> tuple[bool, str]:
    """Whether the lists of two contenders agree, and a description of it. With `windows`, triggers are compared by window: two
    prefixes of a sentence may differ by less than rounding, so that either may be its best."""
    (got, got_tokens), (want, want_tokens) = found, expected
    if got.shape != want.shape:
        return False, f"lists of {got.shape} instead of {want.shape}"
    got, want = np.nan_to_num(got).clip(min=0), np.nan_to_num(want).clip(min=0)
    off = np.abs(got - want) / np.maximum(np.abs(want), 1e-6)
    wrong = int((np.abs(got - want) > RTOL * np.abs(want) + ATOL).sum())
    # a slot is clear if both neighbours differ from it by more than rounding
    gap = -np.diff(want, axis=-1) > 4 * RTOL * want[..., :-1] + 2 * ATOL
    clear = np.zeros(want.shape, bool)
    clear[..., 0] = gap[..., 0]
    clear[..., 1:-1] = gap[..., :-1] & gap[..., 1:]
    clear &= want > 0
    if windows is not None:
        got_tokens, want_tokens = (np.searchsorted(windows, each, "right") for each in (got_tokens, want_tokens))
    moved = int((got_tokens != want_tokens)[clear].sum())
    words = (
        f"{want.size - wrong:,} of {want.size:,} coefficients within {RTOL:g} of their size + {ATOL:g} "
        f"({int((off > RTOL).sum())} need the latter; largest relative difference {off.max():.1e}, at {want.ravel()[off.argmax()]:.1e}), "
        f"{int(clear.sum()) - moved:,} of {int(clear.sum()):,} clear places hold the same {'prefix' if windows is None else 'sentence'}"
    )
    return not wrong and not moved, words


def versions() -> str:
    said = []
    for name in ("keyhole", "torch", "transformers", "transformer-lens", "nnsight"):
        try:
            said.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            said.append(f"{name} not installed")
    return ", ".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=24_000)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--per", choices=("sentence", "prefix"), default="sentence")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    parser.add_argument("--contend", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        return prepare(Path(options.prepare), options.tokens, options.top, options.per)
    if options.contend:
        return contend(options.contend[0], Path(options.contend[1]))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "x.partial"
        subprocess.run([sys.executable, __file__, "--prepare", str(folder), *sys.argv[1:]], check=True)
        about = json.loads((folder / "about.json").read_text())
        rule = {"prefix": "every prefix a candidate", "sentence": "one trigger per sentence"}[options.per]
        print(
            f"SmolLM2-135M, {about['summary']['tokens']:,} tokens in {about['batches']} batches, t = {options.top}, "
            f"both signs, {rule}, float32, {options.rounds} rounds\n{about['machine']}\n{versions()}\n"
        )
        contenders = [Contender(name, folder) for name in CONTENDERS]
        for turn in range(options.rounds):
            for contender in contenders:
                contender.ask("start")
            for number in range(about["batches"]):
                first = (turn + number) % len(contenders)
                for contender in contenders[first:] + contenders[:first]:
                    contender.ask("batch", number)
            for contender in contenders:
                contender.ask("finish", -1)
        for contender in contenders:
            contender.close()
        report(contenders, folder, options.per)
    return None


def report(contenders: list[Contender], folder: Path, per: str) -> None:
    lists = {}
    windows = np.load(folder / "windows.npy") if per == "sentence" else None
    for contender in contenders:
        if contender.error is None and (folder / f"{contender.name}.npz").exists():
            with np.load(folder / f"{contender.name}.npz") as file:
                lists[contender.name] = file["coefficients"], file["tokens"]
    differ = False
    for contender in contenders:
        if contender.name not in ("bare", "keyhole") and contender.name in lists and "keyhole" in lists:
            same, words = compare(lists[contender.name], lists["keyhole"], windows)
            differ |= not same
            print(f"{contender.name} against keyhole: {'the same' if same else 'DIFFERENT'}; {words}")
    print(f"\n{'':40}{'seconds':>9}{'bare there':>12}{'ratio':>8}{'CPU ratio':>11}{'peak MiB':>10}")
    for contender in contenders:
        what = CONTENDERS[contender.name]
        if contender.error is not None:
            print(f"{what:40} did not run: {contender.error}")
            continue
        own, bare = contender.seconds("own"), contender.seconds("bare")
        used = contender.seconds("own CPU") / contender.seconds("bare CPU")
        print(f"{what:40}{own:9.2f}{bare:12.2f}{own / bare:7.3f}×{used:10.3f}×{contender.peak:10,.0f}")
    failed = [contender.name for contender in contenders if contender.error is not None]
    if differ or "keyhole" in failed:
        sys.exit("the contenders did not find the same: the times above compare different work" if differ else 1)


if __name__ == "__main__":
    main()
