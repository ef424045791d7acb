"""When do gated cells write: with the gate open or closed, and with which sign of the other factor?

In a gated layer a coefficient is act(gate)·up. The sign of `up` is a convention, because negating up and value changes nothing, so
it is taken in the cell's orientation o: the four cases are the signs of gate and o·up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store import percell
from ..store.run import Run
from . import heldout
from .claims import effect_columns, effect_facts, interval, judge, percent, read_effect
from .record import (
    KEYS,
    Analysis,
    Baseline,
    CellMeasure,
    Claim,
    Column,
    Figure,
    Found,
    Lines,
    Measurement,
    Part,
    Series,
    Stack,
    Verdict,
    present,
)
from .stats import bootstrap_mean, clustered_mean

if TYPE_CHECKING:
    from ..lens.head import Head
    from ..store.values import Values
    from .gate_states import SignCases
    from .heldout import Prefixes

CASES = ("open_plus", "open_minus", "closed_plus", "closed_minus")
"""The signs of gate and o·up."""
HALF = 0.5

Floats = npt.NDArray[np.float64]


def observe(run: Run, head: Head, values: Values, prefixes: Prefixes) -> SignCases:
    from .gate_states import SignCases

    return SignCases(run, head, prefixes)


def rows(run: Run, prefixes: Prefixes, observed: SignCases) -> Found:
    if not observed.applies:
        return Found([])
    table, n = [], observed.count
    every = np.arange(n)
    for layer in range(run.layers):
        shares = observed.shares[layer]
        mean = shares.mean(0)
        by_gate, by_up = mean.reshape(2, 2).sum(1), mean.reshape(2, 2).sum(0)
        expected = np.outer(by_gate, by_up).ravel()
        is_open, open_lo, open_hi = clustered_mean(observed.open[layer], every)
        written, lo, hi = clustered_mean(shares[:, :2].sum(1), every)
        table.append(
            {"layer": layer, "n": n, "open": is_open, "open_lo": open_lo, "open_hi": open_hi}
            | {"written_open": written, "lo": lo, "hi": hi, "written_open_coin": float(observed.coin[layer].mean())}
            | {case: float(share) for case, share in zip(CASES, mean, strict=True)}
            | {f"{case}_independent": float(share) for case, share in zip(CASES, expected, strict=True)}
        )
    facts = {
        **effect_facts("written_open", bootstrap_mean(observed.shares[:, :, :2].sum(2).mean(0))),
        **effect_facts("closed", bootstrap_mean(1 - observed.open.mean(0))),
    }
    return Found(table, {**prefixes.facts, **facts})


def fill(run: Run, prefixes: Prefixes, observed: SignCases) -> None:
    """Store the numbers of every cell."""
    if not observed.applies:
        return
    total = observed.written.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (observed.written / total[:, None]).astype(np.float32)
    arrays = {"open": (observed.opened / max(1, observed.count)).astype(np.float32)}
    arrays |= {case: np.ascontiguousarray(shares[:, at]) for at, case in enumerate(CASES)}
    arrays["written_open"] = shares[:, 0] + shares[:, 1]
    percell.save(run, "gates", {"prefixes": observed.count}, arrays)


def mostly_open(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "written_open", HALF)
    coins = [row["written_open_coin"] for row in present(measured.rows, "written_open_coin")]
    said = _said("of Σ|m|·‖v‖ is written with the gate open", effect)
    return judge(
        effect,
        "share of Σ|m|·‖v‖ written with the gate open, mean over layers, interval over prefixes; smallest effect 50 %",
        f"{said}; if the gates' signs were coin tosses: {percent(float(np.mean(coins)))}" if coins else said,
    )


def mostly_closed(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "closed", HALF)
    test = "share of gates that are closed, mean over layers, interval over prefixes; smallest effect 50 %"
    return judge(effect, test, _said("of the gates are closed", effect))


def _said(what: str, effect: Any) -> str:
    if effect is None:
        return ""
    ends = "" if effect.lo is None else f" ({interval(effect.lo, effect.hi)})"
    return f"{percent(effect.value)}{ends} {what}"


_CASE = "mean over prefixes of the share of Σ|m|·‖v‖ over the layer's cells where {}"

ANALYSIS = Analysis(
    name="gates",
    question="Do gated cells write with the gate open?",
    part=KEYS,
    order=110,
    method="A coefficient is m = act(gate)·up. A gate is open if gate > 0, before the activation. The sign of `up` is taken in the "
    "cell's orientation o, because negating up and value changes nothing: the cases are the signs of gate and of o·up. What "
    "a cell writes is |m|·‖v‖, at the ends of held-out prefixes; each prefix counts the same. A model without a gate has no "
    "rows.",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "n": Column("BIGINT", "held-out prefixes"),
        "open": Column("DOUBLE", "share of the layer's gates that are open, mean over prefixes"),
        "open_lo": Column("DOUBLE", "lower end of its 95 % interval over prefixes"),
        "open_hi": Column("DOUBLE", "upper end"),
        "written_open": Column("DOUBLE", "share of Σ|m|·‖v‖ written with the gate open, mean over prefixes"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval over prefixes"),
        "hi": Column("DOUBLE", "upper end"),
        "written_open_coin": Column(
            "DOUBLE",
            "the same if each gate's sign were a coin toss, with |gate| and up as they are: what act alone does",
        ),
        "open_plus": Column("DOUBLE", _CASE.format("the gate is open and o·up > 0")),
        "open_minus": Column("DOUBLE", _CASE.format("the gate is open and o·up ≤ 0")),
        "closed_plus": Column("DOUBLE", _CASE.format("the gate is closed and o·up > 0")),
        "closed_minus": Column("DOUBLE", _CASE.format("the gate is closed and o·up ≤ 0")),
        **{
            f"{case}_independent": Column(
                "DOUBLE", f"`{case}` if the two signs were independent: the product of its margins"
            )
            for case in CASES
        },
    },
    facts={
        **heldout.FACTS,
        **effect_columns("written_open", "share of Σ|m|·‖v‖ written with the gate open, mean over layers and prefixes"),
        **effect_columns("closed", "share of the gates that are closed, mean over layers and prefixes"),
    },
    needs=("prefixes", "observed"),
    rows=rows,
    fill=fill,
    observe=observe,
    note=heldout.note,
    empty="not measured: there is a layer without a gate, or with one that cannot be read",
    figures=(
        Figure(
            name="gate_cases",
            label="Figure S2",
            title="What is written in the four sign cases of gate and up",
            caption="Share of Σ|m|·‖v‖ at held-out prefixes by the signs of the gate and of up in the cell's orientation. Whisker: "
            "95 % interval of what is written with the gate open.",
            mark=Stack(
                "share of Σ|m|·‖v‖",
                (
                    Part("gate open, up in the cell's sign", "open_plus", "blue"),
                    Part("gate open, up against it", "open_minus", "sky"),
                    Part("gate closed, up in the cell's sign", "closed_plus", "faint"),
                    Part("gate closed, up against it", "closed_minus", "orange"),
                ),
                2,
            ),
            claims=(Claim("Cells write mostly with the gate open", mostly_open),),
            columns=("layer", "n", *CASES, *(f"{case}_independent" for case in CASES)),
        ),
        Figure(
            name="gate_open",
            label="Figure S3",
            title="How many gates are open, and how much they write",
            caption="Share of gates that are open at held-out prefixes, and the share of Σ|m|·‖v‖ that open gates write. Bands: 95 % "
            "intervals over prefixes. Dashed: what open gates would write if their signs were coin tosses.",
            mark=Lines(
                "share",
                [
                    Series("gates that are open", "open", band=("open_lo", "open_hi"), colour="orange"),
                    Series("written with the gate open", "written_open", band=("lo", "hi")),
                ],
                [Baseline("written with the gate open, signs tossed", "written_open_coin")],
                low=0,
                high=1,
            ),
            claims=(Claim("Most gates are closed", mostly_closed),),
            columns=("layer", "n", "open", "open_lo", "open_hi", "written_open", "lo", "hi", "written_open_coin"),
        ),
    ),
    measures=(
        CellMeasure(
            "gate_open",
            "how often the gate is open",
            "key",
            lambda run, _: percell.numbers(run, "gates", "open"),
            format="percent",
        ),
        CellMeasure(
            "written_open",
            "what it writes with the gate open, as a share",
            "key",
            lambda run, _: percell.numbers(run, "gates", "written_open"),
            format="percent",
        ),
    ),
)
