"""Made-up results of `keyhole prune` and `keyhole leak`, stored in a run: what they measure does not matter, only what is shown of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import keyhole
from keyhole.store import kinds, leaks, pruning

SHARES = (0.05, 0.25, 0.5)
TIMES = (1, 2, 4, 16, 32)
GRID = [1, 2, 3, 4, 6, 8]


def store(run: keyhole.Run, texts: Sequence[str] = ("seven lanterns",)) -> None:
    """Every method at three shares, and two leaks per text, tested with every ranking."""
    pruning.save(run, pruned(run, texts[0]), np.linspace(0.1, 1, len(run.cells), dtype=np.float32))
    leaks.save(run, leaked(run, texts), {})


def pruned(run: keyhole.Run, text: str) -> pruning.Pruning:
    rows, gone = [], []
    for step, method in enumerate(("refit", "flap", "flap+refit", "wanda", "square", "duplicates", "maxabs", "random")):
        for share in SHARES:
            change = share * (1 + step) / 4
            over = {} if method == "flap" else {"over_flap": 0.1, "over_flap_lo": 0.05, "over_flap_hi": 0.15}
            rows.append(
                pruning.Row(
                    method=method,
                    scope="uniform",
                    share=share,
                    gone=round(share * len(run.cells)),
                    parameters=1000,
                    text=text,
                    tokens=4096,
                    documents=32,
                    fitted=8192,
                    seed=0,
                    basis="0123456789abcdef",
                    bias=True,
                    perplexity_before=20.0,
                    perplexity=20 * (1 + change),
                    change=change,
                    change_lo=change * 0.9,
                    change_hi=change * 1.1,
                    agreement=1 - share,
                    **over,
                )
            )
            gone += [
                pruning.Gone(method, "uniform", share, text, 8192, 0, "0123456789abcdef", kind, 10, round(10 * share))
                for kind in (*kinds.NAMES, kinds.NONE)
            ]
    return pruning.Pruning(rows, gone, "refit", "uniform")


def leaked(run: keyhole.Run, texts: Sequence[str]) -> leaks.Leaks:
    found, tested = [], []
    for rank, text in enumerate((said for each in texts for said in (each, f"{each} again")), 1):
        found.append(leaks.Leak("text", f"{text} of", text, 9, 9, 16 + rank, -0.5, -40.0, -12.5, 3, 2))
        for step, method in enumerate(("learned", "integrated_gradients", "ablation", "effect", "activity", "random")):
            reached = 4 if method == "learned" else None
            exact = [max(0.0, 1 - (count + rank % 2) / (4 + 2 * step)) for count in GRID]
            tested.append(
                leaks.Tested(
                    rank=rank,
                    method=method,
                    cells=GRID,
                    exact=exact,
                    before=1.0,
                    order=[(rank + each) % len(run.cells) for each in range(max(GRID))],
                    n90=reached,
                    others_before=1.0 if reached else None,
                    others_after=0.9 if reached else None,
                    others_forgotten=0.05 if reached else None,
                    change=0.004 if reached else None,
                    change_lo=0.001 if reached else None,
                    change_hi=0.007 if reached else None,
                )
            )
    found.append(leaks.Leak("secrets", texts[0], texts[-1], 5, 5, 2, -1.0, exposure=8.0, highest=10.0))
    rates = [leaks.Rate(times, 1000, 20 * times, 12, 0.02 * times, 0.015 * times, 0.03 * times) for times in TIMES]
    read = {"source": "text", "files": texts[0], "tokens": 100_000, "documents": 40, "read": 50_000, "repeated": 4000}
    asked = {"prefix": 16, "least_prefix": 4, "length": 8, "leaks": len(found) - 1, "localised": len(found) - 1}
    more = {"more": 0.4, "more_lo": 0.3, "more_hi": 0.5}
    return leaks.Leaks(found, tested, rates, {**read, **asked, **more, "cells": len(run.cells), "seed": 0})
