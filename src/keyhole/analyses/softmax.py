"""The memory a feed-forward layer is not: what if its coefficients were softmax(x·k)?

A neural memory weighs its values by a softmax over the keys, so that the weights sum to 1 and few of them count. A feed-forward layer
does not normalise. Here both are compared on the same keys, and one layer at a time runs with a softmax in place of its activation.
x·k includes the key's bias; if there is a gate, it is the gate's. Values are taken in the cell's orientation o, so a weight p_i of the
softmax writes p_i·o_i·v_i.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, judge, minus, percent, read_effect
from .record import (
    OUTPUT,
    Analysis,
    Begin,
    Claim,
    Column,
    Facts,
    Figure,
    Found,
    Lines,
    Measurement,
    Series,
    Verdict,
    present,
)
from .stats import bootstrap_mean, clustered_mean

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..store.values import Values
    from .heldout import Prefixes
    from .softmax_states import Rebuilding

REPLACED = 16
"""Prefixes at which layers are rebuilt and the model is run with one layer's activation replaced, at most."""
LAYERS = 10
"""Layers that are replaced, at most: one forward pass per layer, way and prefix is most of the time that this takes."""
TOGETHER = 256
"""Tokens of these that are run together: prefixes of similar length, because padding costs time."""
TIMES = math.log(1.5)
"""The smallest factor between numbers of memories that would matter, as a logarithm."""
COSTS = 0.01
"""The smallest change of the loss that would matter, in nats."""
WAYS = ("softmax", "shuffled", "removed")
"""What takes the place of a layer's coefficients: the softmax over its keys, its own coefficients dealt out over its cells (both of
equal norm), and zeros."""
BUILT = ("softmax", "magnitude", "relu", "shuffled")
"""How the layer's output is rebuilt from its keys and coefficients."""

Floats = npt.NDArray[np.float64]


def observe(run: Run, head: Head, values: Values, prefixes: Prefixes) -> Rebuilding:
    from .softmax_states import Rebuilding

    return Rebuilding(run, head, values, prefixes)


# The table


def rows(run: Run, prefixes: Prefixes, observed: Rebuilding, begin: Begin = lambda total: lambda done: None) -> Found:
    from .softmax_states import feed_forward_share, losses

    if not observed.applies:
        return Found([])
    found = losses(observed, prefixes, bos=bool(run.manifest["config"]["bos"]), begin=begin)
    table = []
    own = found["own"]
    for layer in range(run.layers):
        row: dict[str, Any] = {"layer": layer, "n": len(prefixes.ids), "rebuilt": len(observed.chosen)}
        row |= _mean("entropy", observed.entropy[layer])
        row["relative_entropy"] = row["entropy"] / max(math.log(run.cells.size(layer)), 1e-12)
        for name, counts in observed.counts.items():
            row |= _mean(f"memories_{name}", counts[layer])
        for name in BUILT:
            row |= _mean(f"same_{name}", observed.same[name][layer])
            row[f"change_{name}"] = float(observed.change[name][layer].mean())
            row[f"cosine_{name}"] = float(observed.cosine[name][layer].mean())
        for way in WAYS:
            known = np.isfinite(found[way][layer]).all()
            row |= _mean(f"loss_{way}", found[way][layer] - own if known else np.empty(0))
        table.append(row)
    ratio = np.log(observed.counts["magnitude"] / np.maximum(observed.counts["softmax"], 1)).mean(0)
    facts = {
        "feed_forward_share": feed_forward_share(observed.head.model),
        "lens": observed.lens,
        "rebuilt": len(observed.chosen),
        "loss": float(own.mean()),
        **effect_facts("spread", bootstrap_mean(ratio)),
        **effect_facts("raised", bootstrap_mean(np.nanmean(found["softmax"] - own, 0))),
        **effect_facts("kept", bootstrap_mean(np.nanmean(found["removed"] - found["softmax"], 0))),
    }
    return Found(table, {**prefixes.facts, **facts})


def _mean(name: str, values: Floats) -> dict[str, float | None]:
    mean, lo, hi = clustered_mean(values, np.arange(len(values)))
    return {name: mean, f"{name}_lo": lo, f"{name}_hi": hi}


def _columns(name: str, means: str) -> dict[str, Column]:
    return {
        name: Column("DOUBLE", means),
        f"{name}_lo": Column("DOUBLE", "lower end of its 95 % interval over prefixes"),
        f"{name}_hi": Column("DOUBLE", "upper end"),
    }


# Claims


def spreads(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "spread", TIMES)
    known = present(measured.rows, "memories_magnitude", "memories_softmax")
    own, soft = (
        float(np.median([row[f"memories_{name}"] for row in known])) if known else math.nan
        for name in ("magnitude", "softmax")
    )
    times = "" if effect is None else f"{math.exp(effect.value):.3g} times as many; "
    return judge(
        effect,
        "logarithm of effective memories of |m| over those of the softmax, mean over layers, interval over prefixes; smallest effect "
        "a factor of 1.5",
        f"{times}in the median layer {own:,.0f} of |m| and {soft:,.0f} of the softmax",
    )


def raises_loss(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "raised", COSTS)
    said = ", ".join(f"{way} {minus(_average(measured, way), 3)}" for way in WAYS)
    loss = measured.facts.get("loss")
    return judge(
        effect,
        f"change of the loss with one layer's activation replaced by a softmax of equal norm, mean over the replaced layers, interval over prefixes; "
        f"smallest effect {COSTS} nats",
        f"mean change per layer in nats: {said}" + ("" if loss is None else f"; loss {loss:.2f}"),
    )


def keeps_something(measured: Measurement) -> Verdict:
    return judge(
        read_effect(measured.facts, "kept", COSTS),
        f"loss with a layer removed minus loss with a softmax in place of its activation, mean over the replaced layers, interval over prefixes; "
        f"smallest effect {COSTS} nats",
        f"removed {minus(_average(measured, 'removed'), 3)}, softmax {minus(_average(measured, 'softmax'), 3)} nats per layer",
    )


def _average(measured: Measurement, way: str) -> float:
    known = present(measured.rows, f"loss_{way}")
    return float(np.mean([row[f"loss_{way}"] for row in known])) if known else math.nan


def note(facts: Facts) -> str:
    return (
        f"{heldout.note(facts)}, outputs and losses on {facts['rebuilt']} of them; through the lens '{facts['lens']}'; feed-forward "
        f"layers have {percent(float(facts['feed_forward_share'] or 0))} of the parameters"
    )


_WAY = {
    "softmax": "softmax(x·k), scaled to the norm of the coefficients",
    "magnitude": "|m|",
    "relu": "ReLU(x·k), scaled to the norm of the coefficients",
    "shuffled": "the coefficients dealt out over the layer's cells (the null)",
    "removed": "zeros: the layer adds its bias only",
}

ANALYSIS = Analysis(
    name="softmax",
    question="What if a feed-forward layer were a softmax over its keys?",
    part=OUTPUT,
    order=115,
    method="x·k is what the activation is given, the key's bias included; if there is a gate, the gate's. Effective memories are "
    "(Σa)²/Σa² of weights a. Values are taken in the cell's orientation o: a weight a_i writes a_i·o_i·v_i, and coefficients are "
    f"dealt out as o·m. Outputs are rebuilt at the ends of at most {REPLACED} random held-out prefixes. For the loss, the "
    f"coefficients of one layer (of at most {LAYERS}, spread evenly) are replaced at every token of these prefixes, and −log p(next token) is taken at their ends. All "
    "replacements have the L2 norm of the coefficients, token by token. For a ReLU model without a gate ReLU(x·k) is m itself.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        "rebuilt": Column("BIGINT", "prefixes among them whose outputs and losses were computed"),
        **_columns("entropy", "entropy of softmax(x·k) over the layer's cells, in nats, mean over prefixes"),
        "relative_entropy": Column("DOUBLE", "entropy / ln(cells of the layer)"),
        **_columns("memories_softmax", "effective memories of softmax(x·k), mean over prefixes"),
        **_columns("memories_magnitude", "effective memories of |m|, mean over prefixes"),
        **_columns("memories_relu", "effective memories of ReLU(x·k), mean over prefixes"),
        **{
            key: column
            for name in BUILT
            for key, column in {
                **_columns(
                    f"same_{name}", f"share of prefixes where the output has the layer's top token, with {_WAY[name]}"
                ),
                f"change_{name}": Column("DOUBLE", "‖y' − y‖/‖y‖ of that output, mean over prefixes"),
                f"cosine_{name}": Column("DOUBLE", "cosine of y' and y, mean over prefixes"),
            }.items()
        },
        **{
            key: column
            for way in WAYS
            for key, column in _columns(
                f"loss_{way}", f"change of the loss in nats, with {_WAY[way]}; none for layers that were left out"
            ).items()
        },
    },
    facts={
        **heldout.FACTS,
        "feed_forward_share": Column("DOUBLE", "share of the model's parameters that are in feed-forward layers"),
        "lens": Column("VARCHAR", "the lens that top tokens are read through"),
        "rebuilt": Column("BIGINT", "prefixes whose outputs and losses were computed"),
        "loss": Column("DOUBLE", "the model's own loss at these, in nats"),
        **effect_columns(
            "spread", "ln of effective memories of |m| over those of the softmax, mean over layers and prefixes"
        ),
        **effect_columns(
            "raised", "change of the loss with a softmax in one layer, mean over the replaced layers and prefixes"
        ),
        **effect_columns(
            "kept",
            "loss with a layer removed minus loss with a softmax in it, mean over the replaced layers and prefixes",
        ),
    },
    needs=("prefixes", "observed", "begin"),
    rows=rows,
    observe=observe,
    note=note,
    empty="not measured: there is a layer with routed experts, or one whose keys cannot be read",
    figures=(
        Figure(
            name="softmax_memories",
            label="Figure S17",
            title="How many memories count",
            caption="Effective memories (Σa)²/Σa² of a layer at held-out prefixes: of |m|, and of what a softmax and a ReLU over the same "
            "keys would give. Bands: 95 % intervals over prefixes.",
            mark=Lines(
                "effective memories",
                [
                    Series("|m|", "memories_magnitude", band=("memories_magnitude_lo", "memories_magnitude_hi")),
                    Series(
                        "softmax(x·k)",
                        "memories_softmax",
                        band=("memories_softmax_lo", "memories_softmax_hi"),
                        colour="orange",
                    ),
                    Series("ReLU(x·k)", "memories_relu", band=("memories_relu_lo", "memories_relu_hi"), colour="green"),
                ],
                format=",.0f",
                tooltip=",.1f",
                low=1,
                high=lambda shape: float(max(map(shape.cells.size, range(shape.layers)))),
                log=True,
            ),
            claims=(Claim("A layer spreads over more memories than a softmax over the same keys would", spreads),),
            columns=(
                "layer",
                "n",
                "entropy",
                "relative_entropy",
                "memories_softmax",
                "memories_magnitude",
                "memories_relu",
                "same_softmax",
                "same_magnitude",
                "same_relu",
                "same_shuffled",
                "cosine_softmax",
                "cosine_shuffled",
                "change_softmax",
            ),
        ),
        Figure(
            name="softmax_loss",
            label="Figure S18",
            title="One layer with a softmax in place of its activation",
            caption="Change of −log p(next token) if the coefficients of one layer are replaced: by a softmax over its keys, by its own "
            "coefficients dealt out over its cells, by zeros. Bands: 95 % intervals over prefixes.",
            mark=Lines(
                "change of the loss (nats)",
                [
                    Series(
                        "softmax of equal norm",
                        "loss_softmax",
                        band=("loss_softmax_lo", "loss_softmax_hi"),
                        colour="orange",
                    ),
                    Series(
                        "coefficients dealt out",
                        "loss_shuffled",
                        band=("loss_shuffled_lo", "loss_shuffled_hi"),
                        colour="sky",
                    ),
                    Series(
                        "layer removed", "loss_removed", band=("loss_removed_lo", "loss_removed_hi"), colour="green"
                    ),
                ],
                format=".1f",
                tooltip=".3f",
            ),
            claims=(
                Claim("Replacing a layer's activation by a softmax of equal norm raises the loss", raises_loss),
                Claim("A softmax over the same keys keeps part of what a layer does", keeps_something),
            ),
            columns=("layer", "rebuilt", *(f"loss_{way}{end}" for way in WAYS for end in ("", "_lo", "_hi"))),
        ),
    ),
)
