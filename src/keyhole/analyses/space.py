"""Do layers share the space of the output? Why only upper layers seem to predict.

o is the residual after a layer, o_L that after the last. A reading turns o into a prediction:

    raw      the head without the final norm
    norm     the model's own final norm and head (the logit lens)
    mapped   an affine map to the last layer's space (`maps.py`), then the same

What `mapped` predicts and `norm` does not is in the layer, but in another space than the one the unembedding reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import cka, heldout, mapping
from .claims import effect_columns, effect_facts, judge, minus, not_applicable, read_effect
from .record import (
    OUTPUT,
    Analysis,
    Baseline,
    Begin,
    Claim,
    Column,
    Effect,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Row,
    Series,
    Verdict,
)
from .stats import Interval, bootstrap_sums, clustered_mean, thirds

if TYPE_CHECKING:
    import torch

    from ..lens.head import Head
    from ..models.states import States
    from ..store.values import Values
    from .heldout import Prefixes
    from .mapping import Fitted

READINGS = ("raw", "norm", "mapped")
LOGITS = 150_000_000
"""Logits that a reading of all layers computes: this, and `LEAST`, bound the number of prefixes."""
LEAST = 100
"""Prefixes that are read even if that makes more logits."""
SHARED, HIDDEN, CLOSED = 0.2, 0.5, 0.5
"""The smallest effects: a fifth of the variance; half a nat; half of the distance."""
BETTER = 0.1
"""Nats by which upper layers must be nearer to the prediction, if a distance is to be explained."""

Floats = npt.NDArray[np.float64]


class Kept:
    """Keeps the residuals of some of the prefixes: o of every layer."""

    def __init__(self, run: Run, head: Head, prefixes: Prefixes) -> None:
        width = int(head.weight.shape[1])
        most = max(LEAST, LOGITS // (run.layers * head.vocabulary))
        unseen = np.flatnonzero(mapping.unseen(run, prefixes, width))
        self.fair = len(unseen) >= heldout.FEWEST
        """whether enough prefixes are unlike the text that the maps were fitted on"""
        chosen = unseen if self.fair else np.arange(len(prefixes.ids))
        self.rows = np.sort(np.random.default_rng(0).permutation(chosen)[:most])
        self.o = np.zeros((run.layers, len(self.rows), width), np.float32)

    def take(self, rows: Sequence[int], seen: States) -> None:
        here = np.flatnonzero(np.isin(rows, self.rows))
        if len(here):
            places = np.searchsorted(self.rows, np.asarray(rows)[here])
            self.o[:, places] = seen.o[:, here].cpu().numpy()


def observe(run: Run, head: Head, values: Values, prefixes: Prefixes) -> Kept:
    return Kept(run, head, prefixes)


def rows(
    run: Run,
    head: Head,
    prefixes: Prefixes,
    observed: Kept,
    maps: Fitted | None,
    begin: Begin = lambda total: lambda done: None,
) -> Found:
    import torch

    device, o = head.weight.device, observed.o
    maps = maps if observed.fair else None
    documents = np.asarray(prefixes.documents)[observed.rows]
    clusters = heldout.clustered(documents.tolist())
    final = torch.from_numpy(o[-1]).to(device)
    last = _log_softmax(head, final, norm=True)
    unlike, split = independent(last, clusters)
    spread = ((o[-1] - o[-1].mean(0)).astype(np.float64) ** 2).sum(1)
    kernel = cka.kernel(o[-1])
    readings = [name for name in READINGS if name != "mapped" or maps is not None]
    advance = begin(run.layers * len(readings))
    table: list[Row] = []
    errors, divergences = (np.full((len(READINGS), run.layers, len(documents)), np.nan) for _ in range(2))
    for layer in range(run.layers):
        given = torch.from_numpy(o[layer]).to(device)
        alike = _alike(o[layer], kernel, clusters)
        for name in readings:
            reading = READINGS.index(name)
            null = given.roll(1, 0)
            x, ridge = given, None
            if name == "mapped" and maps is not None:
                null = maps.shuffled.at(layer, device).residuals(given)
                x, ridge = maps.maps.at(layer, device).residuals(given), maps.ridge[layer]
                alike = _alike(x.cpu().numpy(), kernel, clusters)
            error, beside = ((final.double() - each.double()).square().sum(1).cpu().numpy() for each in (x, null))
            (r2,) = bootstrap_sums(np.stack([error, spread]), _explained, clusters)
            kl, marginal = compare(last, _log_softmax(head, x, norm=name != "raw"), clusters)
            errors[reading, layer], divergences[reading, layer] = error, kl
            (mean,) = bootstrap_sums(np.stack([kl, np.ones(len(kl))]), _mean, clusters)
            table.append(
                {
                    "layer": layer,
                    "reading": name,
                    "n": len(documents),
                    **_spread("r2", r2),
                    "r2_null": 1 - float(beside.sum() / spread.sum()),
                    **alike,
                    **_spread("kl", mean),
                    "kl_null": unlike,
                    **_spread("marginal", marginal),
                    "marginal_null": split,
                    "ridge": ridge,
                }
            )
            advance(1)
    facts = {
        **prefixes.facts,
        "tested": len(documents),
        "states": 0 if maps is None else sum(map(len, mapping.sample(run, mapping.STATES * o.shape[2]))),
        "split": mapping.split(run)[1] if prefixes.facts["source"] != "valid" else "file",
        **effects(errors[2], spread, divergences[1], divergences[2], clusters),
    }
    return Found(table, facts)


def _spread(name: str, found: Interval) -> Row:
    return {name: None if math.isnan(found.value) else found.value, f"{name}_lo": found.lo, f"{name}_hi": found.hi}


def _explained(sums: Floats) -> Floats:
    found: Floats = 1 - sums[..., :1] / sums[..., 1:]
    return found


def _mean(sums: Floats) -> Floats:
    found: Floats = sums[..., :1] / sums[..., 1:]
    return found


def _alike(states: npt.NDArray[np.float32], kernel: Floats, clusters: Any) -> Row:
    own = cka.kernel(states)
    null = cka.shuffled(own, kernel)
    return {**_spread("cka", cka.cka(own, kernel, clusters)), "cka_null": None if math.isnan(null) else null}


# Distributions


def _log_softmax(head: Head, residuals: torch.Tensor, *, norm: bool) -> torch.Tensor:
    import torch

    return torch.log_softmax(head.logits(residuals) if norm else head.without_norm(residuals), 1)


def compare(
    final: torch.Tensor, other: torch.Tensor, clusters: npt.NDArray[np.int64] | None
) -> tuple[Floats, Interval]:
    """From log-probabilities [n, vocabulary]: KL(final ‖ other) of each prefix, and the marginal bias KL(mean final ‖ mean other)
    with its interval, by the delta method: the influence of each prefix on both means."""
    p = final.exp()
    kl = (p * (final - other)).sum(1).double().cpu().numpy()
    size = math.log(len(final))
    mean, mean_other = final.logsumexp(0) - size, other.logsumexp(0) - size
    weights = mean.exp()
    bias = float((weights * (mean - mean_other)).double().sum())
    influence = p @ (mean - mean_other) - (other - mean_other).exp() @ weights
    pull = influence.double().cpu().numpy()
    which = np.arange(len(pull)) if clusters is None else clusters
    value, lo, hi = clustered_mean(pull - pull.mean() + bias, which)
    return kl, Interval(math.nan if value is None else value, None if lo is None else max(0.0, lo), hi)


def independent(final: torch.Tensor, clusters: npt.NDArray[np.int64] | None) -> tuple[float, float]:
    """The two nulls: the mean of KL(final ‖ mean of the other prefixes' final distributions), and the marginal bias between two
    random halves of the prefixes (of the clusters)."""
    import torch

    p, n = final.exp(), len(final)
    total = p.sum(0)
    kl = sum(
        float((each * (log - ((total - each) / (n - 1)).clamp_min(1e-30).log())).sum())
        for each, log in zip(p, final, strict=True)
    )
    _, which = np.unique(np.arange(n) if clusters is None else clusters, return_inverse=True)
    half = np.random.default_rng(0).permutation(int(which.max()) + 1) % 2 == 0
    parts = [torch.from_numpy(np.flatnonzero(half[which] == side)).to(final.device) for side in (True, False)]
    if not all(map(len, parts)):
        return kl / n, math.nan
    first, second = (final[part].logsumexp(0) - math.log(len(part)) for part in parts)
    return kl / n, float((first.exp() * (first - second)).sum())


# Effects


def effects(errors: Floats, spread: Floats, norm: Floats, mapped: Floats, clusters: Any) -> dict[str, Any]:
    """The effects that claims rest on, from numbers per layer and prefix. The last layer is left out: nothing is between it and the
    output, whatever the model."""
    low, high = thirds(len(errors) - 1)
    some = len(errors) > 1 and not np.isnan(mapped).any()
    if not some:
        nothing = Interval(math.nan)
        return {k: v for name in EFFECTS for k, v in effect_facts(name, nothing).items()}
    columns = np.stack(
        [
            *(part[third].mean(0) for part in (errors[:-1], norm[:-1], mapped[:-1]) for third in (low, high)),
            spread,
            np.ones(len(spread)),
        ]
    )

    def made(sums: Floats) -> Floats:
        error_low, error_high, norm_low, norm_high, mapped_low, mapped_high, spread, n = np.moveaxis(sums, -1, 0)
        return np.stack(
            [
                (error_low - error_high) / spread,
                ((norm_low - mapped_low) - (norm_high - mapped_high)) / n,
                (norm_low - mapped_low) / (norm_low - norm_high),
                (norm_low - norm_high) / n,
            ],
            -1,
        )

    found = bootstrap_sums(columns, made, clusters)
    return {k: v for name, each in zip(EFFECTS, found, strict=True) for k, v in effect_facts(name, each).items()}


EFFECTS = {
    "shared": "R² of the maps of the highest third of the layers minus that of the lowest third, the last layer left out",
    "hidden": "nats by which the map brings a layer nearer to the prediction, KL(norm) − KL(mapped): mean over the lowest third of the "
    "layers minus that over the highest third, the last layer left out",
    "closed": "the share of the distance between the lowest and the highest third, in KL(norm), that the map closes for the lowest",
    "distance": "that distance in nats",
}


# How it is judged and shown


def _told(effect: Effect | None, unit: str = "") -> str:
    if effect is None:
        return "not known"
    ends = "" if effect.lo is None or effect.hi is None else f" ({minus(effect.lo, 2)} to {minus(effect.hi, 2)})"
    return f"{minus(effect.value, 2)}{unit}{ends}"


def _thirds(measured: Measurement, column: str, reading: str) -> tuple[float, float] | None:
    """The means of a column over the lowest and the highest third of the layers, the last layer left out."""
    found = [row[column] for row in measured.rows if row["reading"] == reading][:-1]
    if not found or any(each is None for each in found):
        return None
    low, high = thirds(len(found))
    return float(np.mean(found[low])), float(np.mean(found[high]))


def shares(measured: Measurement) -> Verdict:
    test = f"R² of the maps, highest minus lowest third of the layers: 95 % interval over prefixes against {SHARED}"
    effect = read_effect(measured.facts, "shared", SHARED)
    means = _thirds(measured, "r2", "mapped")
    said = "" if means is None else f"; {minus(means[0], 2)} and {minus(means[1], 2)}"
    return judge(effect, test, f"difference {_told(effect)}{said}")


def hides(measured: Measurement) -> Verdict:
    test = (
        "KL(norm) − KL(mapped), lowest minus highest third of the layers: 95 % interval over prefixes against "
        f"{HIDDEN} nats"
    )
    effect = read_effect(measured.facts, "hidden", HIDDEN)
    return judge(effect, test, f"difference {_told(effect, ' nats')}")


def explains(measured: Measurement) -> Verdict:
    test = (
        "how much of the distance in KL(norm) between the lowest and the highest third of the layers the map closes: 95 % interval "
        "over prefixes against a half"
    )
    distance = read_effect(measured.facts, "distance", BETTER)
    if distance is not None and distance.hi is not None and distance.hi < BETTER:
        return not_applicable(test, f"upper layers are no nearer to the prediction: {_told(distance, ' nats')}")
    effect = read_effect(measured.facts, "closed", CLOSED)
    if distance is None or distance.lo is None or distance.lo < BETTER:
        return Verdict("unclear", test, f"whether there is a distance is not clear: {_told(distance, ' nats')}")
    low, gap = _thirds(measured, "kl", "norm"), _thirds(measured, "kl", "mapped")
    said = (
        ""
        if low is None or gap is None
        else (f"; lowest third {minus(low[0], 2)} nats, mapped {minus(gap[0], 2)}, highest third {minus(low[1], 2)}")
    )
    return judge(effect, test, f"share {_told(effect)}{said}")


def note(facts: Facts) -> str:
    fitted = (
        f"maps fitted on the states of {facts['states']:,} tokens of other {facts['split']}s"
        if facts["states"]
        else "no maps: there is too little scanned text to fit them on"
    )
    return f"{heldout.note(facts)}; read at {facts['tested']:,} of these prefixes; {fitted}"


def of(reading: str) -> dict[str, str]:
    return {"reading": reading}


INTERVAL = "lower end of its 95 % interval over prefixes (documents, if there are many)"

ANALYSIS = Analysis(
    name="space",
    question="Do layers share the space of the output?",
    part=OUTPUT,
    order=101,
    method="o is the residual after a layer at the end of a held-out prefix, o_L that after the last layer. A reading makes a prediction "
    "of o: `raw` with the head alone, `norm` with the model's own final norm and head, `mapped` with an affine map o_ℓ·M + b ≈ o_L "
    "first. The maps are fitted by ridge regression, M shrunk towards the identity, its strength by generalised cross-validation, "
    f"on the states at up to {mapping.STATES} tokens per coordinate of o, of scanned text; they are tested on other text. The map of "
    "the last layer is the identity.",
    columns={
        "layer": Column("INTEGER", "the layer ℓ"),
        "reading": Column("VARCHAR", "`raw`, `norm` or `mapped`"),
        "n": Column("BIGINT", "held-out prefixes"),
        "r2": Column(
            "DOUBLE",
            "R² = 1 − Σ‖o_L − ô‖²/Σ‖o_L − mean o_L‖²: ô is the mapped residual; for `raw` and `norm` the residual itself",
        ),
        "r2_lo": Column("DOUBLE", INTERVAL),
        "r2_hi": Column("DOUBLE", "upper end"),
        "r2_null": Column(
            "DOUBLE", "the same for a map fitted on shuffled pairs; for `raw` and `norm`, for another prefix's residual"
        ),
        "cka": Column(
            "DOUBLE",
            "linear CKA of the residual (of the mapped one, for `mapped`) and o_L, HSIC estimated without bias",
        ),
        "cka_lo": Column("DOUBLE", "lower end of its 95 % interval, by the jackknife over the same"),
        "cka_hi": Column("DOUBLE", "upper end"),
        "cka_null": Column("DOUBLE", "the 97.5 % quantile of CKA over shuffled pairs"),
        "kl": Column(
            "DOUBLE", "KL(final ‖ reading), in nats: mean divergence of the reading from the model's prediction"
        ),
        "kl_lo": Column("DOUBLE", INTERVAL),
        "kl_hi": Column("DOUBLE", "upper end"),
        "kl_null": Column(
            "DOUBLE",
            "the same for a reading that knows nothing of the prefix: the mean prediction of the other prefixes",
        ),
        "marginal": Column(
            "DOUBLE", "marginal bias, in nats: KL(mean final prediction ‖ mean of the readings), both over all prefixes"
        ),
        "marginal_lo": Column("DOUBLE", "lower end of its 95 % interval, by the delta method over the same"),
        "marginal_hi": Column("DOUBLE", "upper end"),
        "marginal_null": Column(
            "DOUBLE", "the same between the final predictions of two random halves of the prefixes"
        ),
        "ridge": Column(
            "DOUBLE", "the strength α of the ridge per state that the map was fitted on; none without a map"
        ),
    },
    facts={
        **heldout.FACTS,
        "tested": Column("BIGINT", "prefixes that are read here, at most: readings of all layers are large"),
        "states": Column(
            "BIGINT", "token states of scanned text that the maps were fitted on; 0 if there were too few"
        ),
        "split": Column(
            "VARCHAR", "what the text for fitting and for testing have not in common: `unit`, `document` or `file`"
        ),
        **{key: column for name, means in EFFECTS.items() for key, column in effect_columns(name, means).items()},
    },
    needs=("head", "prefixes", "observed", "maps", "begin"),
    rows=rows,
    observe=observe,
    note=note,
    figures=(
        Figure(
            name="space",
            label="Figure S13",
            title="How much of the last residual a layer holds",
            caption="R² of the affine map from a layer's residual to the last one, on text it was not fitted on, and CKA of the two. "
            "Bands: 95 % intervals over prefixes.",
            mark=Lines(
                "R², CKA",
                [
                    Series("R² of the map", "r2", ("r2_lo", "r2_hi"), None, "blue", of("mapped")),
                    Series("CKA with the last residual", "cka", ("cka_lo", "cka_hi"), None, "green", of("norm")),
                ],
                [
                    Baseline("R² of maps from shuffled pairs", "r2_null", "quiet", of("mapped")),
                    Baseline("CKA of shuffled pairs, 97.5 %", "cka_null", "faint", of("norm")),
                ],
                format=".1f",
                tooltip=".3f",
            ),
            claims=(Claim("Upper layers share the output space, lower layers do not", shares),),
            columns=(
                "layer",
                "reading",
                "n",
                "r2",
                "r2_lo",
                "r2_hi",
                "r2_null",
                "cka",
                "cka_lo",
                "cka_hi",
                "cka_null",
                "ridge",
            ),
        ),
        Figure(
            name="readings",
            label="Figure S14",
            title="How far a layer is from the prediction, by how it is read",
            caption="KL divergence of what a layer's residual predicts from what the model predicts. Bands: 95 % intervals over "
            "prefixes.",
            mark=Lines(
                "KL in nats",
                [
                    Series("final norm and head (logit lens)", "kl", ("kl_lo", "kl_hi"), None, "orange", of("norm")),
                    Series("mapped first", "kl", ("kl_lo", "kl_hi"), None, "blue", of("mapped")),
                ],
                [Baseline("baseline: the mean prediction", "kl_null", "quiet", of("norm"))],
                format=".0f",
                tooltip=".2f",
                low=0,
            ),
            claims=(
                Claim(
                    "Without a map, lower layers hide more of what they know of the prediction than upper layers", hides
                ),
                Claim("A change of space is most of why lower layers do not predict", explains),
            ),
            columns=("layer", "reading", "n", "kl", "kl_lo", "kl_hi", "kl_null"),
        ),
        Figure(
            name="marginal_bias",
            label="Figure S15",
            title="Whether a layer prefers the right tokens on average",
            caption="Marginal bias: KL divergence of the mean over prefixes of what a layer predicts from the mean of what the model "
            "predicts. Bands: 95 % intervals.",
            mark=Lines(
                "KL of means, nats",
                [
                    Series(
                        "final norm and head (logit lens)",
                        "marginal",
                        ("marginal_lo", "marginal_hi"),
                        None,
                        "orange",
                        of("norm"),
                    ),
                    Series("mapped first", "marginal", ("marginal_lo", "marginal_hi"), None, "blue", of("mapped")),
                ],
                [Baseline("two halves of the prefixes", "marginal_null", "quiet", of("norm"))],
                format=".1f",
                tooltip=".2f",
                low=0,
            ),
            columns=("layer", "reading", "n", "marginal", "marginal_lo", "marginal_hi", "marginal_null"),
        ),
    ),
)
