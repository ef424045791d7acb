"""How many cells does a layer use at once? (Figure 7, and measures that mean the same for every activation)

The paper counts coefficients above zero. That says something if an activation cuts off what is below, as ReLU does. The other
measures are of a_i = |m_i|·‖v_i‖, how much each cell adds (`strength.py`), and of the layer's top token (`partial.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, judge, judge_fact, not_applicable, percent, read_effect, with_interval
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Claim,
    Column,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Rows,
    Series,
    Verdict,
    lens_note,
)
from .stats import Interval, bootstrap_mean, bootstrap_means, thirds, weakest

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.states import States
    from ..store.values import Values
    from .heldout import Prefixes

Floats = npt.NDArray[np.float64]

SETTLED = 32
"""Prefixes that k* is measured on: it needs several projections onto the vocabulary per prefix and layer."""
DRAWS = 64
"""Draws of random coefficients per layer."""
LEAST, MOST = 0.1, 0.5
"""The paper's range of active cells."""
DROP = 0.05
"""Smallest fall of the share of active cells that would matter."""
DEEPEST = 10 / 16
"""The depth at which the paper's model has the fewest active cells."""
FEW = 0.1
"""A share of a layer's cells that could be called few: the lower end of the paper's range."""
SPARSER = 0.05
"""Smallest difference from random coefficients that would matter."""
MEASURES = ("effective", "n90", "dominance", "kstar")
GATED = "this model's layers have a gate: the sign of a coefficient is a convention, and half of them are positive whatever it does"


class Watching:
    """Takes every measure from the pass, [layers, n]."""

    def __init__(self, run: Run, head: Head, values: Values, prefixes: Prefixes) -> None:
        import torch

        n = len(prefixes.ids)
        self.head, self.lens, self.gated = head, values.lens, run.gated
        self.cells = np.array([run.cells.size(layer) for layer in range(run.layers)])
        norms = np.array(values.norms)
        self.norms = [
            torch.from_numpy(norms[run.cells.span(layer)]).to(head.model.device) for layer in range(run.layers)
        ]
        self.clusters = prefixes.clusters
        seed = int(prefixes.facts["seed"] or 0)
        self.settled = np.zeros(n, bool)
        self.settled[np.random.default_rng(seed).permutation(n)[:SETTLED]] = True
        self._random = torch.Generator().manual_seed(seed)
        self.found: dict[str, Floats] = {
            name: np.full((run.layers, n), np.nan) for name in ("active", *MEASURES, "kstar_random")
        }

    def take(self, rows: Sequence[int], seen: States) -> None:
        import torch

        from .amounts import strengths
        from .partial import places_at_random, settled

        asked = torch.from_numpy(np.flatnonzero(self.settled[list(rows)])).to(seen.y.device)
        places: list[tuple[Any, Any]] = []
        with torch.inference_mode():
            for layer, m in enumerate(seen.coefficients):
                one = strengths(m, self.norms[layer])
                here = {"effective": one.effective, "n90": one.carriers, "dominance": one.dominance}
                here["active"] = (m > 0).double().sum(1)
                for name, numbers in here.items():
                    self.found[name][layer, rows] = numbers.cpu().numpy()
                if len(asked):
                    places.append((one.rank[asked], places_at_random(one.a[asked], self._random)))
            if len(asked):
                which = np.asarray(rows)[asked.cpu().numpy()]
                for name, rank in zip(("kstar", "kstar_random"), zip(*places, strict=True), strict=True):
                    numbers = settled(self.head, self.lens, seen, asked, list(rank))
                    self.found[name][:, which] = numbers.cpu().numpy()


def at_random(norms: Any, signed: bool, seed: int) -> dict[str, float]:
    """The measures of a layer with these values whose coefficients are normally distributed, cut at 0 if they cannot be
    negative: as shares of its cells, the mean over `DRAWS` draws."""
    import torch

    from .amounts import strengths

    random = torch.Generator().manual_seed(seed)
    m = torch.randn(DRAWS, len(norms), generator=random)
    one = strengths(m if signed else m.clamp_min(0), norms.cpu())
    return {
        "effective": float(one.effective.mean()) / len(norms),
        "n90": float(one.carriers.double().mean()) / len(norms),
        "dominance": float(one.dominance.mean()),
    }


def rows(run: Run, prefixes: Prefixes, observed: Watching) -> Found:
    cells, n = observed.cells, len(prefixes.ids)
    share = {name: each if name == "dominance" else each / cells[:, None] for name, each in observed.found.items()}
    asked = observed.settled
    some = None if observed.clusters is None else observed.clusters[asked]
    found = {
        name: bootstrap_means(share[name], observed.clusters) for name in ("active", "effective", "n90", "dominance")
    }
    found |= {name: bootstrap_means(share[name][:, asked], some) for name in ("kstar", "kstar_random")}
    random = [at_random(norms, run.signed, layer) for layer, norms in enumerate(observed.norms)]
    table = []
    for layer in range(run.layers):
        active = Interval(math.nan) if run.gated else found["active"][layer]
        row: dict[str, Any] = {"layer": layer, "n": n, "cells": int(cells[layer])}
        row |= {"active_fraction": None if run.gated else active.value, "active_lo": active.lo, "active_hi": active.hi}
        for name in MEASURES:
            value, lo, hi = found[name][layer]
            measured = share[name][layer, asked] if name == "kstar" else share[name][layer]
            row |= {name: value, f"{name}_lo": lo, f"{name}_hi": hi, f"{name}_median": float(np.median(measured))}
        row |= {f"{name}_random": random[layer][name] for name in ("effective", "n90", "dominance")}
        row["kstar_random"] = found["kstar_random"][layer].value
        table.append(row)
    expected = np.array([each["n90"] for each in random])[:, None]
    effects = {
        "n90_pooled": bootstrap_mean(share["n90"].mean(0), observed.clusters),
        "n90_sparser": bootstrap_mean((expected - share["n90"]).mean(0), observed.clusters),
        "kstar_pooled": bootstrap_mean(share["kstar"][:, asked].mean(0), some),
        "kstar_earlier": bootstrap_mean((share["kstar_random"] - share["kstar"])[:, asked].mean(0), some),
        "active_inside": Interval(math.nan) if run.gated else _inside(found["active"]),
        "active_drop": Interval(math.nan) if run.gated else _drop(share["active"], observed.clusters),
    }
    facts = {**prefixes.facts, "lens": observed.lens, "settled": int(asked.sum())}
    for name, effect in effects.items():
        facts |= effect_facts(name, effect)
    return Found(table, facts)


def _inside(active: Sequence[Interval]) -> Interval:
    """How far inside the paper's range the share of active cells is, in the layer where it is least so."""
    margins = []
    for value, lo, hi in active:
        if lo is not None and hi is not None:
            ends = [min(end - LEAST, MOST - end) for end in (lo, hi)]
            middle = (LEAST + MOST) / 2
            highest = middle - LEAST if lo <= middle <= hi else max(ends)
            margins.append(Interval(min(value - LEAST, MOST - value), min(ends), highest))
    return weakest(margins)


def _drop(active: Floats, clusters: npt.NDArray[Any] | None) -> Interval:
    """The share of active cells in the lowest third of the layers up to 10/16 of the depth, minus that in their highest third."""
    below = active[: math.ceil(len(active) * DEEPEST)]
    lower, upper = thirds(len(below))
    return bootstrap_mean(below[lower].mean(0) - below[upper].mean(0), clusters)


# Claims


def tenth_to_half(measured: Measurement) -> Verdict:
    test = "margin to 10 and 50 % in the layer where it is smallest, interval over prefixes; smallest effect 0"
    if measured.shape.gated:
        return not_applicable(test, GATED)
    shares = [row["active_fraction"] for row in measured.rows if row["active_fraction"] is not None]
    said = (
        f"{percent(min(shares))} to {percent(max(shares))} of a layer's coefficients are above zero" if shares else ""
    )
    return judge(read_effect(measured.facts, "active_inside", 0.0), test, said)


def fewer_with_depth(measured: Measurement) -> Verdict:
    test = (
        "share of active cells, lowest minus highest third of the layers up to 10/16 of the depth, interval over prefixes; "
        f"smallest effect {percent(DROP)}"
    )
    if measured.shape.gated:
        return not_applicable(test, GATED)
    return judge_fact(measured.facts, "active_drop", DROP, test, "the share of active cells falls by")


def many_carry(measured: Measurement) -> Verdict:
    test = (
        f"N90 as a share of the layer's cells, mean over layers, interval over prefixes; smallest effect {percent(FEW)}"
    )
    return judge_fact(measured.facts, "n90_pooled", FEW, test, "cells that carry 90 % of Σ|m|·‖v‖")


def sparser(measured: Measurement) -> Verdict:
    test = (
        "N90 share of random coefficients minus that of the model's, mean over layers, interval over prefixes; smallest effect "
        f"{percent(SPARSER)}"
    )
    return judge_fact(measured.facts, "n90_sparser", SPARSER, test, "fewer cells than with random coefficients, by")


def late_settled(measured: Measurement) -> Verdict:
    test = (
        f"k* as a share of the layer's cells, mean over layers, interval over prefixes; smallest effect {percent(FEW)}"
    )
    early = with_interval(read_effect(measured.facts, "kstar_earlier", 0.0))
    said = f"; earlier than in random order by {early}"
    return judge_fact(measured.facts, "kstar_pooled", FEW, test, "cells until the top token is settled", said)


def signs(measured: Measurement) -> str:
    if measured.shape.gated:
        return f"Coefficients above zero are not drawn: {GATED}."
    return "This model's coefficients can be negative; those are not active." if measured.shape.signed else ""


def note(facts: Facts) -> str:
    return f"{heldout.note(facts)}; k* on {facts['settled']} of these prefixes, {lens_note(facts)}"


def shares_drawn(rows: Rows) -> list[Series]:
    known = any(row["active_fraction"] is not None for row in rows)
    above = Series("coefficients above zero", "active_fraction", band=("active_lo", "active_hi"))
    return [
        *([above] if known else []),
        Series(
            "cells that carry 90 % of the layer's strength (N90)", "n90", band=("n90_lo", "n90_hi"), colour="orange"
        ),
        Series("effective number of cells", "effective", band=("effective_lo", "effective_hi"), colour="green"),
    ]


def _columns(name: str, means: str, random: str) -> dict[str, Column]:
    return {
        name: Column("DOUBLE", f"{means}: mean over the prefixes"),
        f"{name}_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        f"{name}_hi": Column("DOUBLE", "upper end"),
        f"{name}_median": Column("DOUBLE", "median over the prefixes"),
        f"{name}_random": Column("DOUBLE", random),
    }


RANDOM = "the same of normally distributed coefficients with the layer's own values"
ANALYSIS = Analysis(
    name="budget",
    question="How many cells does a layer use at once?",
    part=OUTPUT,
    order=7,
    method="a_i = |m_i|·‖v_i‖, with the value as it reaches the residual. Shares are of the layer's cells: times `cells`, they are "
    "numbers of cells. Random coefficients are cut at 0 if the model's cannot be negative. k* is read on the grid 1, 2, 3, 4, 6, "
    "8, 12, 16, … and the number of cells; what is in y and of no cell, such as a bias, is in every partial sum.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        "cells": Column("BIGINT", "cells of the layer"),
        "active_fraction": Column("DOUBLE", "share of the layer's coefficients above zero; none if it has a gate"),
        "active_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        "active_hi": Column("DOUBLE", "upper end"),
        **_columns("effective", "effective number of cells, (Σa)²/Σa², as a share", RANDOM),
        **_columns("n90", "N90, the fewest cells that carry 90 % of Σa, as a share", RANDOM),
        **_columns("dominance", "max a/Σa, the part of the strongest cell", RANDOM),
        **_columns(
            "kstar",
            "k*, the fewest cells in the order of a from which on the partial sum has the layer's top token, as a share",
            "the same with the cells whose coefficient is not 0 in random order",
        ),
    },
    facts={
        **heldout.FACTS,
        "lens": Column("VARCHAR", "the lens that y and partial sums are read through"),
        "settled": Column("BIGINT", "prefixes that k* is measured on, chosen at random"),
        **effect_columns("n90_pooled", "N90 share, mean over layers"),
        **effect_columns("n90_sparser", "N90 share of random coefficients minus that of the model's, mean over layers"),
        **effect_columns("kstar_pooled", "k* share, mean over layers"),
        **effect_columns("kstar_earlier", "k* share in random order minus that in the order of a, mean over layers"),
        **effect_columns(
            "active_inside",
            "how far the share of active cells lies between 10 and 50 %, in the layer where it does so least; none with a gate",
        ),
        **effect_columns(
            "active_drop",
            "share of active cells in the lowest third of the layers up to 10/16 of the depth minus that in their highest third; "
            "none with a gate",
        ),
    },
    needs=("prefixes", "observed"),
    rows=rows,
    observe=Watching,
    note=note,
    figures=(
        Figure(
            name="active",
            label="Figure 7",
            title="How many cells a layer uses at once",
            caption="Shares of the layer's cells, mean over sampled prefixes. Band: 95 % interval. Strength: Σ|m|·‖v‖ over the cells.",
            mark=Lines(
                "share of the layer's cells",
                shares_drawn,
                [
                    Baseline("baseline: N90 of random coefficients", "n90_random"),
                    Baseline("baseline: effective number of random ones", "effective_random", colour="faint"),
                ],
                low=0,
            ),
            claims=(
                Claim("A tenth to a half of every layer's cells are active", tenth_to_half),
                Claim("Fewer cells are active towards 10/16 of the depth", fewer_with_depth),
                Claim("It takes a tenth of a layer's cells or more to carry 90 % of its strength", many_carry),
                Claim("A layer's strength is in fewer cells than random coefficients would put it", sparser),
            ),
            paper=Paper(
                "Each prediction activates hundreds to thousands of cells in every layer, fewer towards the upper middle.",
                "10 to 50 % above zero, lowest near layer 10 of 16",
            ),
            columns=(
                *("layer", "n", "cells", "active_fraction", "active_lo", "active_hi", "n90", "n90_lo", "n90_hi"),
                *("effective", "effective_lo", "effective_hi", "dominance", "dominance_random"),
            ),
            aside=signs,
        ),
        Figure(
            name="settled",
            label="Figure S9",
            title="How many cells it takes to settle a layer's top token",
            caption="Cells are added strongest first. Drawn is the share of them from which on the sum has the layer's top token. "
            "Band: 95 % interval.",
            mark=Lines(
                "share of the layer's cells",
                [Series("cells until the top token is settled (k*)", "kstar", band=("kstar_lo", "kstar_hi"))],
                [Baseline("baseline: the same cells in random order", "kstar_random")],
                low=0,
                high=1,
            ),
            claims=(Claim("A layer's top token takes a tenth of its cells or more to settle", late_settled),),
            paper=Paper("A layer's output is a composition of many cells.", "not measured"),
            columns=("layer", "n", "cells", "kstar", "kstar_lo", "kstar_hi", "kstar_median", "kstar_random"),
        ),
    ),
)
