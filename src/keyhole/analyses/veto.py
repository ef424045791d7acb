"""When a layer changes the prediction, does it push down the old token or push up the new one?

Where top(o) ≠ top(r), with ℓ_y(t) = (g ⊙ (y − ȳ)/σ_o)·E_t, what the layer adds to the logit of a token t:

    veto = mean ℓ_y − ℓ_y(top r)        promotion = ℓ_y(top o) − mean ℓ_y        veto share = Σ veto⁺ / Σ (veto⁺ + promotion⁺)

g is the final norm's gain and σ_o its divisor at o; ȳ, the mean over the width, is subtracted only if the norm centres. The sums
are over prefixes, because a ratio of sums is steadier than a mean of ratios. A part below 0 pushes a token the other way and
counts as 0 in the share (x⁺ = max(x, 0)), so that it lies between 0 and 1; the means in logits are of the parts as they are.
By chance the new token is the most promoted of a whole vocabulary and the old one is any token, so that a share above ½ is no
matter of course.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, judge_fact, percent
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Claim,
    Column,
    Fact,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Series,
    Verdict,
)
from .refinement import without
from .stats import Interval, bootstrap_means, bootstrap_rates, bootstrap_sums

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..models.states import States
    from ..store.values import Values
    from .heldout import Prefixes
    from .section5 import Section5

Floats = npt.NDArray[np.float64]

HALF = 0.5
"""Above this veto share, a layer rather vetoes than promotes."""
FEWEST = 20
"""Fewest changes of a layer, in half of the prefixes, from which it can be chosen as one that vetoes."""
NEAR = 10
"""A token among the first so many is near the top."""
HELD_BYTES = 1 << 28
"""Bound on what is kept of the pass for the null: y of as many prefixes as this holds."""


class Watching:
    """Keeps (g ⊙ (y − ȳ))/σ_o of every layer, for as many prefixes as there is room for."""

    def __init__(self, run: Run, head: Head, values: Values, prefixes: Prefixes) -> None:
        width, n = int(head.weight.shape[1]), len(prefixes.ids)
        room = max(2, HELD_BYTES // (4 * run.layers * width))
        order = np.random.default_rng(int(prefixes.facts["seed"] or 0)).permutation(n)
        self.held = np.sort(order[:room])
        """the numbers of these prefixes"""
        self._place = np.full(n, -1)
        self._place[self.held] = np.arange(len(self.held))
        self.head = head
        self.y = np.zeros((run.layers, len(self.held), width), np.float32)

    def take(self, rows: Sequence[int], seen: States) -> None:
        places = self._place[list(rows)]
        here = np.flatnonzero(places >= 0)
        if len(here):
            self.y[:, places[here]] = added(self.head, seen.y[:, here], seen.o[:, here]).cpu().numpy()


def added(head: Head, y: Any, o: Any) -> Any:
    """(g ⊙ (y − ȳ))/σ_o: what y adds to what the unembedding sees. σ_o is found from the norm's own output at o."""
    import torch

    with torch.inference_mode():
        folded = head.norm.fold(o)
        normed = head.exact_norm(o) - head.norm.bias
        sigma = folded.square().sum(-1, keepdim=True) / (folded * normed).sum(-1, keepdim=True)
        return head.norm.fold(y) / sigma


def rows(run: Run, head: Head, prefixes: Prefixes, states: Section5, observed: Watching) -> Found:
    from .centred import CentredRows

    held = observed.held
    clusters = None if states.clusters is None else states.clusters[held]
    r, o, ranks = states.top_r[:, held], states.top_o[:, held], states.rank_o[:, held]
    changed = r != o
    veto, promotion = np.zeros(r.shape), np.zeros(r.shape)
    other = np.zeros((2, *r.shape))
    paired = np.zeros(r.shape, bool)
    rows_of = CentredRows(head)
    for layer in range(run.layers):
        at_r, at_o = rows_of(r[layer]), rows_of(o[layer])
        veto[layer], promotion[layer] = _shares(observed.y[layer], at_r, at_o)
        mean, paired[layer] = others(observed.y[layer], r[layer])
        other[:, layer] = _shares(mean, at_r, at_o)
    paired &= changed
    found = {
        "veto": bootstrap_means(veto, clusters, changed),
        "promotion": bootstrap_means(promotion, clusters, changed),
        "share": _ratio(veto, promotion, changed, clusters),
        "near": bootstrap_rates(ranks <= NEAR, clusters, changed),
    }
    null = {
        name: bootstrap_means(each, clusters, paired) for name, each in zip(("veto", "promotion"), other, strict=True)
    }
    table = []
    for layer in range(run.layers):
        here = changed[layer]
        row: dict[str, Any] = {"layer": layer, "n": len(held), "changed": int(here.sum())}
        for name, each in found.items():
            row |= _with_ends(name, each[layer])
        quartiles = np.percentile(ranks[layer][here], [25, 50, 75]) if here.any() else [None] * 3
        row |= {f"rank_{name}": q for name, q in zip(("p25", "median", "p75"), quartiles, strict=True)}
        row["paired"] = int(paired[layer].sum())
        for name, each in null.items():
            row |= _with_ends(f"{name}_other", each[layer])
        table.append(row)
    chosen, effect = strongest(veto, promotion, changed, states.kept, clusters, int(prefixes.facts["seed"] or 0))
    facts: dict[str, Fact] = {**prefixes.facts, "held": len(held), "left_out": states.left_out, "chosen": chosen}
    return Found(table, facts | effect_facts("vetoes", effect))


def _shares(y: npt.NDArray[Any], at_r: Floats, at_o: Floats) -> tuple[Floats, Floats]:
    """Veto and promotion [n], from what y adds and from the centred rows of top(r) and top(o)."""
    return -np.einsum("nd,nd->n", y, at_r), np.einsum("nd,nd->n", y, at_o)


def others(y: npt.NDArray[Any], top_r: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The mean y [n, width] of the other prefixes with the same top(r), and whether there is any. As veto and promotion are
    linear in y, those of the mean are the mean over all such pairs."""
    _, which, counts = np.unique(top_r, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), y.shape[1]))
    np.add.at(sums, which, y)
    size = counts[which]
    return (sums[which] - y) / np.maximum(size - 1, 1)[:, None], size > 1


def _ratio(
    veto: Floats, promotion: Floats, changed: npt.NDArray[np.bool_], clusters: npt.NDArray[Any] | None
) -> list[Interval]:
    """Σ veto⁺ / Σ (veto⁺ + promotion⁺) of each layer; not known if nothing is pushed."""
    k = len(veto)
    down, up = (np.where(changed, np.maximum(each, 0), 0) for each in (veto, promotion))
    columns = np.concatenate([down, down + up])

    return bootstrap_sums(columns, lambda sums: sums[..., :k] / sums[..., k:], clusters)


def strongest(
    veto: Floats,
    promotion: Floats,
    changed: npt.NDArray[np.bool_],
    kept: Sequence[int],
    clusters: npt.NDArray[Any] | None,
    seed: int,
) -> tuple[int | None, Interval]:
    """The layer with the largest veto share in one half of the prefixes, and its veto share in the other half: the layer is not
    chosen on what it is tested on, so no correction for the number of layers is needed."""
    n = veto.shape[1]
    groups = np.arange(n) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    random = np.random.default_rng(seed)
    choose = (random.permutation(int(groups.max()) + 1) % 2 == 0)[groups]
    best: tuple[float, int | None] = (-math.inf, None)
    for layer in kept:
        here = changed[layer] & choose
        down, up = (float(np.maximum(each[layer, here], 0).sum()) for each in (veto, promotion))
        if here.sum() >= FEWEST and down + up > 0:
            best = max(best, (down / (down + up), layer), key=lambda each: each[0])
    chosen = best[1]
    if chosen is None or not (changed[chosen] & ~choose).any():
        return None, Interval(math.nan)
    of = (slice(chosen, chosen + 1), ~choose)
    return chosen, _ratio(veto[of], promotion[of], changed[of], None if clusters is None else clusters[~choose])[0]


def _with_ends(name: str, found: Interval) -> dict[str, float | None]:
    known = not math.isnan(found.value)
    return {name: found.value if known else None, f"{name}_lo": found.lo, f"{name}_hi": found.hi}


def some_veto(measured: Measurement) -> Verdict:
    test = (
        "veto share of the layer where it is largest; the layer is chosen on one half of the prefixes and tested on the other, "
        f"interval over prefixes; smallest effect {percent(HALF)}"
    )
    chosen = measured.facts.get("chosen")
    if chosen is None:
        what = f"no layer with {FEWEST} changes or more in half of the prefixes"
        return judge_fact(measured.facts, "vetoes", HALF, test, what)
    return judge_fact(measured.facts, "vetoes", HALF, test, f"veto share of layer {chosen}", without(measured.facts))


def _share(name: str, means: str) -> dict[str, Column]:
    return {
        name: Column("DOUBLE", means),
        f"{name}_lo": Column("DOUBLE", "lower end of its 95 % interval"),
        f"{name}_hi": Column("DOUBLE", "upper end"),
    }


OTHER = "of the y of another prefix with the same top(r), with this prefix's tokens: mean over all such pairs"
ANALYSIS = Analysis(
    name="veto",
    question="When a layer changes the prediction, does it push down the old token or push up the new one?",
    part=OUTPUT,
    order=14,
    method="Where top(o) ≠ top(r), with ℓ_y(t) = (g ⊙ (y − ȳ)/σ_o)·E_t: veto = mean ℓ_y − ℓ_y(top r), promotion = ℓ_y(top o) − mean ℓ_y. "
    "g and σ_o are the final norm's gain and divisor at o; ȳ is subtracted only if the norm centres. The veto share is a ratio of "
    "sums over the prefixes, in which a part below 0 counts as 0.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        "changed": Column("BIGINT", "prefixes where top(o) ≠ top(r)"),
        **_share("veto", "mean ℓ_y − ℓ_y(top r), in logits: mean over these"),
        **_share("promotion", "ℓ_y(top o) − mean ℓ_y, in logits: mean over these"),
        **_share("share", "veto share, Σ veto⁺ / Σ (veto⁺ + promotion⁺), with x⁺ = max(x, 0)"),
        **_share("near", f"share of these where top(o) is among the first {NEAR} tokens of r"),
        "rank_p25": Column("DOUBLE", "the rank of top(o) in r, 1 is the top: 25th percentile"),
        "rank_median": Column("DOUBLE", "median"),
        "rank_p75": Column("DOUBLE", "75th percentile"),
        "paired": Column("BIGINT", "the changed prefixes for which there is another prefix with the same top(r)"),
        **_share("veto_other", f"the veto {OTHER}"),
        **_share("promotion_other", f"the promotion {OTHER}"),
    },
    facts={
        **heldout.FACTS,
        "held": Column(
            "BIGINT", "prefixes it is measured on: as many as fit into the bound on memory, chosen at random"
        ),
        "left_out": Column("VARCHAR", "layers that cannot be chosen, because top(r) mostly is the current token"),
        "chosen": Column("BIGINT", "the layer with the largest veto share in one half of the prefixes"),
        **effect_columns("vetoes", "its veto share in the other half"),
    },
    needs=("head", "prefixes", "states", "observed"),
    rows=rows,
    observe=Watching,
    note=heldout.note,
    figures=(
        Figure(
            name="veto",
            label="Figure S11",
            title="Veto and promotion",
            caption="Where a layer changes the top token: the part of the change that is the old token being pushed down. Band: 95 % "
            "interval. Above a half, the layer rather vetoes than promotes.",
            mark=Lines(
                "veto share",
                [Series("veto share", "share", band=("share_lo", "share_hi"))],
                [Baseline("as much veto as promotion", HALF)],
                low=0,
                high=1,
            ),
            claims=(Claim("Some layers veto: they push the old token down more than the new one up", some_veto),),
            paper=Paper(
                "Where a layer changes the prediction, the result is seldom its own token: it seems to veto the residual's.",
                "not measured",
            ),
            columns=(
                *("layer", "changed", "share", "share_lo", "share_hi", "veto", "promotion"),
                *("veto_other", "promotion_other", "paired", "near", "near_lo", "near_hi", "rank_median"),
            ),
        ),
        Figure(
            name="vetoed",
            label="Figure S12",
            title="Veto and promotion in logits",
            caption="How far the layer's output pushes the old token down and the new one up, against the mean token. Dashed: the "
            "output of another prefix with the same old token. Band: 95 % interval.",
            mark=Lines(
                "logits",
                [
                    Series("veto of the old token", "veto", band=("veto_lo", "veto_hi"), colour="red"),
                    Series("promotion of the new one", "promotion", band=("promotion_lo", "promotion_hi")),
                ],
                [
                    Baseline("baseline: veto by another prefix's y", "veto_other", colour="orange"),
                    Baseline("baseline: promotion by another prefix's y", "promotion_other", colour="sky"),
                ],
                format=".1f",
                tooltip=".2f",
            ),
            paper=Paper("Most changes are a compromise between the residual and the layer.", "not measured"),
            columns=(
                "layer",
                "changed",
                "veto",
                "veto_lo",
                "veto_hi",
                "promotion",
                "promotion_lo",
                "promotion_hi",
                "paired",
            ),
        ),
    ),
)
