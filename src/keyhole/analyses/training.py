"""Do keys respond more to the scanned text than to held-out text?

The paper says that the patterns of keys originate in the training data. If the scanned text is the training text, its prefixes
should excite keys more than unseen ones do. Equally many random prefixes of both are compared, one per unit of text: for every
cell, which of the two texts has the prefix with the largest coefficient. A prefix has as many points as there are cells that
respond to it most; the scanned text's share of all points is a half if the texts are alike. Prefixes are what was drawn, so the
interval is over prefixes: cells that respond to the same prefix are not independent.

If the layers have a gate, the size of a coefficient counts: the sign in which a cell is read was chosen on the scanned text,
which would favour it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store import layout
from ..store.run import Run
from . import heldout, targets
from .claims import effect_columns, effect_facts, judge_fact, not_applicable, percent
from .record import (
    KEYS,
    Analysis,
    Baseline,
    Begin,
    Claim,
    Column,
    Fact,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Series,
    Verdict,
)
from .stats import Interval, bootstrap_sums

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.states import States
    from ..store.values import Values
    from .heldout import Prefixes

PREFIXES = 500
"""Bound on the prefixes of each text."""
MORE = 0.52
"""Smallest share of the cells that would matter; a half is what texts that are alike give."""


class Watching:
    """The largest coefficient of every cell over some prefixes, and the first prefix that has it."""

    def __init__(self, run: Run, n: int, chosen: npt.NDArray[np.int64], device: Any) -> None:
        import torch

        self.gated = run.gated
        self._place = np.full(n, -1)
        self._place[chosen] = np.arange(len(chosen))
        self.spans = [run.cells.span(layer) for layer in range(run.layers)]
        self.largest = torch.full((len(run.cells),), -math.inf, device=device)
        self.at = torch.full((len(run.cells),), -1, dtype=torch.int64, device=device)

    def take(self, rows: Sequence[int], seen: States) -> None:
        import torch

        places = torch.from_numpy(self._place[list(rows)])
        here = (places >= 0).nonzero()[:, 0].to(self.at.device)
        if not len(here):
            return
        places = places.to(self.at.device)[here]
        with torch.inference_mode():
            for span, coefficients in zip(self.spans, seen.coefficients, strict=True):
                m = coefficients[here].float()
                strongest, row = (m.abs() if self.gated else m).max(0)
                place = places[row]
                better = strongest > self.largest[span]
                better |= (strongest == self.largest[span]) & (place < self.at[span])
                self.largest[span] = torch.where(better, strongest, self.largest[span])
                self.at[span] = torch.where(better, place, self.at[span])


class HeldOut(Watching):
    """The same of a sample of the held-out prefixes."""

    def __init__(self, run: Run, head: Head, values: Values, prefixes: Prefixes) -> None:
        n = len(prefixes.ids)
        scanned = len(scanned_units(run))
        seed = int(prefixes.facts["seed"] or 0)
        self.chosen = np.sort(np.random.default_rng(seed).permutation(n)[: min(PREFIXES, scanned)])
        super().__init__(run, n, self.chosen, head.model.device)


def scanned_units(run: Run) -> npt.NDArray[np.int64]:
    """The units of the scan that have a prefix with a next token."""
    scanned = np.ones(len(run.unit_offsets) - 1, bool)
    scanned[targets.held_out_units(run)] = False
    return np.flatnonzero(scanned & (np.diff(run.unit_offsets) > 1))


def rows(run: Run, head: Head, prefixes: Prefixes, observed: HeldOut, seed: int, begin: Begin) -> Found:
    facts: dict[str, Fact] = {**prefixes.facts, "compared": 0}
    if prefixes.facts["source"] == "corpus":
        return Found([], facts | effect_facts("more", Interval(math.nan)))
    from . import passing

    random = np.random.default_rng(seed)
    units = np.sort(random.permutation(scanned_units(run))[: len(observed.chosen)])
    sentences = [[int(i) for i in run.unit_tokens(int(unit))][: run.room] for unit in units]
    ids, following = heldout.cut(sentences, random)
    documents = [int(i) for i in layout.load_array(run.path, "unit_documents")[units]]
    sample = replace(prefixes, ids=ids, following=following, documents=documents)
    watching = Watching(run, len(ids), np.arange(len(ids)), head.model.device)
    config = run.manifest["config"]
    options = {"bos": bool(config["bos"]), "batch_tokens": int(config["batch_tokens"])}
    passing.observe(head, sample, [watching], begin=begin, **options)  # type: ignore[arg-type]
    here, there = ((each.largest.cpu().numpy(), each.at.cpu().numpy()) for each in (watching, observed))
    clusters = _clusters(sample.documents, [prefixes.documents[i] for i in observed.chosen])
    points = [won(here, there, run.cells.span(layer), len(ids), len(observed.chosen)) for layer in range(run.layers)]
    pooled = np.sum(points, 0)
    every = share([*points, pooled], len(ids), clusters)
    table = [
        {"layer": layer, "n": len(ids), "cells": run.cells.size(layer), "share": value, "lo": lo, "hi": hi}
        for layer, (value, lo, hi) in enumerate(every[:-1])
    ]
    return Found(table, facts | {"compared": len(ids)} | effect_facts("more", every[-1]))


Best = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def won(scanned: Best, held: Best, span: slice, n_scanned: int, n_held: int) -> npt.NDArray[np.float64]:
    """[n_scanned + n_held] to how many cells of a layer each prefix is the strongest of all. A cell that responds to both texts
    alike gives half a point to each."""
    (a, at_a), (b, at_b) = ((largest[span], at[span]) for largest, at in (scanned, held))
    ours = np.where(a == b, 0.5, a > b)
    return np.concatenate([np.bincount(at_a, ours, minlength=n_scanned), np.bincount(at_b, 1 - ours, minlength=n_held)])


def share(points: Sequence[npt.NDArray[Any]], n_scanned: int, clusters: npt.NDArray[Any] | None) -> list[Interval]:
    """The scanned text's share of the points, and its interval over the prefixes."""
    k = len(points)
    every = np.stack(points)
    ours = np.where(np.arange(every.shape[1]) < n_scanned, every, 0)
    return bootstrap_sums(np.concatenate([ours, every]), lambda sums: sums[..., :k] / sums[..., k:], clusters)


def _clusters(scanned: Sequence[int], held: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """Documents of both texts, if both have enough of them to resample."""
    if heldout.clustered(scanned) is None or heldout.clustered(held) is None:
        return None
    return np.concatenate([np.asarray(scanned), np.asarray(held) + max(scanned) + 1])


def responds(measured: Measurement) -> Verdict:
    test = (
        "share of cells whose largest coefficient is on scanned text, of equally many prefixes of both texts, interval over "
        f"prefixes, 50 % if the texts are alike; smallest effect {percent(MORE)}"
    )
    if measured.facts.get("source") == "corpus":
        return not_applicable(test, "no held-out text was given: the prefixes are of the scanned text itself")
    return judge_fact(measured.facts, "more", MORE, test, "cells that respond most to scanned text")


def note(facts: Facts) -> str:
    if facts["source"] == "corpus":
        return "not measured: no held-out text was given, and the scanned text cannot be compared with itself"
    return f"{facts['compared']} random prefixes of the scanned text, and as many {heldout.note(facts)}"


ANALYSIS = Analysis(
    name="training",
    question="Do keys respond more to the scanned text than to held-out text?",
    part=KEYS,
    order=120,
    method="One random prefix per unit of text, equally many of both texts. It bears on the paper's statement only if the scanned text "
    "is the text that the model was trained on, and the held-out text is of the same kind but was not. Sizes of coefficients are "
    "compared if the layers have a gate.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "prefixes of each text"),
        "cells": Column("BIGINT", "cells of the layer"),
        "share": Column(
            "DOUBLE",
            "share of cells whose largest coefficient over all these prefixes is on the scanned text; a half if both are alike",
        ),
        "lo": Column("DOUBLE", "lower end of its 95 % interval over the prefixes"),
        "hi": Column("DOUBLE", "upper end"),
    },
    facts={
        **heldout.FACTS,
        "compared": Column("BIGINT", "prefixes of each text that are compared"),
        **effect_columns("more", "`share` over the cells of all layers"),
    },
    needs=("head", "prefixes", "observed", "seed", "begin"),
    rows=rows,
    observe=HeldOut,
    note=note,
    figures=(
        Figure(
            name="training",
            label="Figure S4",
            title="Scanned text against held-out text",
            caption="Share of cells whose largest coefficient, over equally many prefixes of both, is on the scanned text. Band: 95 % "
            "interval over the prefixes.",
            mark=Lines(
                "share of cells",
                [Series("respond most to the scanned text", "share", band=("lo", "hi"))],
                [Baseline("baseline: texts that are alike", 0.5)],
                low=0,
                high=1,
            ),
            claims=(Claim("Keys respond more to scanned text than to held-out text", responds),),
            paper=Paper("The patterns that keys detect originate in the training data.", "not measured"),
        ),
    ),
)
