"""How well rankings of cells find text that a model says by heart: the DEL and INJ benchmarks on a model with planted sentences.

    python bench/leaks.py MODEL VALID [--sentences 8] [--device cpu]

MODEL is a folder with `canaries.json` (`seen`: sentences with their `repeats`); VALID is text for the perplexity. DEL: each ranking's first
cells are switched off until at most a tenth of the sentence is left. INJ: a sentence is trained into the values of known cells.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import keyhole
from keyhole.models.model import Model
from keyhole.uses import texts
from keyhole.uses.leaks import deleting, inject, rankings
from keyhole.uses.leaks.masks import Masked
from keyhole.uses.leaks.said import Said
from keyhole.uses.losses import losses

OFTEN = 16
SENTENCE = "The harbour master of Tallin is seven brass lanterns and a violet compass."


def split(model: Model, line: str) -> Said:
    prefix, ids = model.tokenize([line.partition(" is ")[0] + " is", line])
    return Said(tuple(prefix), tuple(ids[len(prefix) :]))


def delete(masked: Masked, often: list[Said], valid: str, count: int) -> None:
    windows = texts.given(masked.model, [valid], 60_000).windows(128)
    windows = [windows[at] for at in np.random.default_rng(0).choice(len(windows), 32, replace=False)]
    before, rows = losses(masked.model, windows), list[tuple[str, int | None, float, float, float]]()
    chosen = [often[at] for at in np.linspace(0, len(often) - 1, min(count, len(often))).astype(int)]
    for said in chosen:
        for method, orders in rankings.rankings(masked, said).items():
            one = deleting.test(masked, said, method, orders)
            left = deleting.others(masked, one, [other for other in often if other is not said])
            change = np.nan
            if one.n90 is not None:
                change = deleting.perplexity_change(masked.model, windows, before, one.order[: one.n90]).value
            _, after, forgotten = left or (np.nan, np.nan, np.nan)
            rows.append((method, one.n90, after, forgotten, change))
    print(
        f"DEL, {len(chosen)} sentences\n{'ranking':22} forgotten   n90 median (range)   others left  forgotten  perplexity"
    )
    for method in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == method]
        known = [row[1] for row in own if row[1] is not None]
        cells = (
            f"{np.median(known):5.0f} ({min(known)} to {max(known)})"
            if 2 * len(known) > len(own)
            else "in no small set"
        )
        means = [np.mean([row[at] for row in own if row[1] is not None]) if known else np.nan for at in (2, 3)]
        change = np.median([row[4] for row in own if row[1] is not None]) if known else np.nan
        print(
            f"{method:22} {len(known)} of {len(own)}      {cells:20} {means[0]:10.2f} {means[1]:10.2f} {change:+11.1%}",
            flush=True,
        )


def injecting(masked: Masked, said: Said) -> None:
    print(
        "INJ, recall at k = the injected cells\nshare of cells   "
        + "  ".join(rankings.SCORES)
        + "  effect  ablation  random"
    )
    for share in (0.001, 0.01):
        cells = np.random.default_rng(0).choice(masked.cells, int(share * masked.cells), replace=False).tolist()
        with inject.injected(masked, said, cells) as done:
            found = rankings.rankings(masked, said, methods=(*rankings.SCORES, "effect", "ablation", "random"))
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
