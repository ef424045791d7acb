"""How well rankings of cells find text that a model says by heart: the DEL and INJ benchmarks on a model with planted sentences.

    python bench/leaks.py MODEL VALID [--sentences 8] [--device cpu]

MODEL is a folder with `canaries.json` (`seen`: sentences with their `repeats`); VALID is other text: what stands before prompts, and what
the perplexity is measured on. DEL: each ranking's first cells are switched off until at most a tenth of the sentence is left, after its
own prompt and after texts that no ranking saw. INJ: a sentence is trained into the values of known cells.
Changes of the perplexity are medians, smallest and largest over the sentences that are forgotten; others left and forgotten are means.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

import keyhole
from keyhole.models.model import Model
from keyhole.uses import texts
from keyhole.uses.leaks import deleting, inject, rankings
from keyhole.uses.leaks.masks import Masked
from keyhole.uses.leaks.prompted import Prompted
from keyhole.uses.leaks.repeats import of_files
from keyhole.uses.leaks.target import Target, targets
from keyhole.uses.losses import losses

OFTEN = 16
SENTENCE = "The harbour master of Tallin is seven brass lanterns and a violet compass."


def split(model: Model, line: str) -> Prompted:
    prefix, ids = model.tokenize([line.partition(" is ")[0] + " is", line])
    return Prompted(tuple(prefix), tuple(ids[len(prefix) :]))


class Row(NamedTuple):
    method: str
    n90: int | None
    own: int | None
    """the smallest number of cells if the sentence is asked for after its own prompt only"""
    after: float
    forgotten: float
    change: float


def delete(masked: Masked, often: list[Prompted], valid: str, count: int) -> None:
    model = masked.model
    windows = texts.given(model, [valid], 60_000).windows(128)
    windows = [windows[at] for at in np.random.default_rng(0).choice(len(windows), 32, replace=False)]
    before, rows = losses(model, windows), list[Row]()
    chosen = [often[at] for at in np.linspace(0, len(often) - 1, min(count, len(often))).astype(int)]
    for target in targets(model, of_files(model, [valid]), chosen):
        rest = [other for other in often if other.continuation != target.own.continuation]
        for method, orders in rankings.rankings(masked, target).items():
            one = deleting.test(masked, target, method, orders)
            left = deleting.others(masked, one, rest)
            change = np.nan
            if one.n90 is not None:
                change = deleting.perplexity_change(model, windows, before, one.order[: one.n90]).value
            _, after, forgotten = left or (np.nan, np.nan, np.nan)
            away = np.array(one.exact) <= deleting.LEFT * one.before + 1e-12
            rows.append(Row(method, one.n90, deleting.smallest(one.cells, away), after, forgotten, change))
    print(
        f"DEL, {len(chosen)} sentences; n90: cells, median (smallest to largest) over all of them; – is more than {deleting.MOST_CELLS:.0%} of all\n"
        f"{'ranking':22} {'forgotten':10} {'n90':22} {'after its own prompt':22} {'others left':>11} {'forgotten':>10}  perplexity"
    )
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        known = [row for row in own if row.n90 is not None]
        means = [
            f"{np.mean([getattr(row, name) for row in known]):.2f}" if known else "–" for name in ("after", "forgotten")
        ]
        changes = [row.change for row in known]
        change = f"{np.median(changes):+.1%} ({min(changes):+.1%} to {max(changes):+.1%})" if known else "–"
        print(
            f"{method:22} {f'{len(known)} of {len(own)}':10} {cells([row.n90 for row in own]):22} {cells([row.own for row in own]):22} "
            f"{means[0]:>11} {means[1]:>10}  {change}",
            flush=True,
        )


def cells(found: list[int | None]) -> str:
    ordered = sorted(np.inf if each is None else each for each in found)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    said = [f"{each:,.0f}" if np.isfinite(each) else "–" for each in (middle, ordered[0], ordered[-1])]
    return f"{said[0]} ({said[1]} to {said[2]})"


def injecting(masked: Masked, text: Prompted) -> None:
    print(
        "INJ, recall at k = the injected cells\nshare of cells   "
        + "  ".join(("learned", *rankings.SCORES))
        + "  effect  ablation  random"
    )
    for share in (0.001, 0.01):
        cells = np.random.default_rng(0).choice(masked.cells, int(share * masked.cells), replace=False).tolist()
        with inject.injected(masked, text, cells) as done:
            methods = ("learned", *rankings.SCORES, "effect", "ablation", "random")
            found = rankings.rankings(masked, Target(text, (text,), ()), methods=methods)
            recalls = [
                np.mean([inject.recall(order, cells, len(cells)) for order in orders]) for orders in found.values()
            ]
        print(f"{share:.1%} (exact {done.exact:.0%})    " + "  ".join(f"{each:.3f}" for each in recalls), flush=True)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("model")
    asked.add_argument("valid")
    asked.add_argument("--sentences", type=int, default=8)
    asked.add_argument("--device", default="auto")
    options = asked.parse_args()
    model = keyhole.load(options.model, device=options.device, dtype="float32")
    known = json.loads((Path(options.model) / "canaries.json").read_text())["seen"]
    masked = Masked(model)
    injecting(masked, split(model, SENTENCE))
    delete(
        masked,
        [split(model, each["text"]) for each in known if each["repeats"] >= OFTEN],
        options.valid,
        options.sentences,
    )


if __name__ == "__main__":
    main()
