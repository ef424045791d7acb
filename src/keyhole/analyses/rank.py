"""How high a value ranks the token that follows its key's top-1 trigger: among all tokens, and against other cells' tokens (Figure 5).

A rank among all tokens says little by itself: frequent tokens rank high in most values, and triggers are often followed by frequent
tokens. So each cell's own next token is compared with the next tokens of the other cells of its layer, under the cell's own value:
the share of them that it beats is the cell's AUC. If values are dealt out among keys, that is ½ for each value, whatever the tokens are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from ..store.values import Values
from . import targets
from .agreement import lens_aside, note
from .claims import effect_columns, effect_facts, judge, numbers, read_effect, told
from .record import (
    VALUES,
    Analysis,
    Baseline,
    Claim,
    Column,
    Figure,
    Found,
    Lines,
    Measurement,
    Paper,
    Row,
    Rows,
    Series,
    Verdict,
    main_lens,
)
from .stats import sample_difference, sample_mean, thirds

if TYPE_CHECKING:
    from torch import Tensor

    from ..lens.head import Head

SMALLEST = 0.05
"""The smallest difference of AUCs that would matter: 5 pairs in 100. An effect that is usually called small (Cohen's d = 0.2) is an
AUC of 0.556."""


def rows(run: Run, lenses: list[Values], head: Head) -> Found:
    wanted = targets.next_tokens(run, 1)[:, 0]
    every = {values.lens: aucs(run, head, values.lens, wanted) for values in lenses}
    found = [row for values in lenses for row in of_lens(run, values, every[values.lens])]
    main = lenses[0].lens
    return Found(found, {"lens": main} | effects(run.cells.by_layer(every[main])))


def of_lens(run: Run, values: Values, every: npt.NDArray[np.float64]) -> list[Row]:
    found = []
    for layer in range(run.layers):
        ranks = np.asarray(values.ranks[run.cells.span(layer)])
        ranks = ranks[ranks > 0]
        five = np.percentile(ranks, [5, 25, 50, 75, 95]) if len(ranks) else [None] * 5
        names = ("p5", "p25", "median", "p75", "p95")
        auc = sample_mean(known(every[run.cells.span(layer)]))
        found.append(
            {"layer": layer, "lens": values.lens, "n": len(ranks)}
            | {"auc": None if math.isnan(auc.value) else auc.value, "lo": auc.lo, "hi": auc.hi}
            | dict(zip(names, map(_plain, five), strict=True))
        )
    return found


def _plain(value: Any) -> float | None:
    return None if value is None else float(value)


def known(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return numbers[~np.isnan(numbers)]


def effects(by_layer: list[npt.NDArray[np.float64]]) -> dict[str, Any]:
    """What the claims rest on: the cells of the highest third of the layers, and of the lowest."""
    lower, upper = (known(np.concatenate(by_layer[part])) for part in thirds(len(by_layer)))
    over_half = sample_mean(upper - 0.5)
    return effect_facts("auc_upper", over_half) | effect_facts("auc_rise", sample_difference(upper, lower))


# The chance that a cell's own token beats another's


def aucs(run: Run, head: Head, lens: str, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """[cells] the AUC of each; NaN if it has no next token, or if no other cell of its layer has one."""
    import torch

    found = np.full(len(run.cells), np.nan)
    for layer in range(run.layers):
        span = run.cells.span(layer)
        here = np.flatnonzero(wanted[span] >= 0)
        if len(here) > 1:
            of_here = (here, run.orientation[span][here], wanted[span][here])
            which, signs, tokens = (torch.from_numpy(each).to(head.weight.device) for each in of_here)
            vectors = head.values(layer)[which] * signs[:, None]
            found[run.cells.places(layer, here)] = (
                beaten(head.see(lens, vectors, layer), head.weight, tokens).cpu().numpy()
            )
    return found


def beaten(vectors: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """[n] for vectors [n, model], each with its token [n]: the share of the other vectors' tokens whose logit under this vector is
    lower than that of its own token; an equal one counts half.

    Only the distinct tokens are multiplied, block by block.
    """
    import torch

    from ..lens import project

    distinct, own, counts = torch.unique(tokens, return_inverse=True, return_counts=True)
    times, found = counts.double(), []
    for at, logits in project.blocks(vectors, weight[distinct]):
        mine = logits.gather(1, own[at : at + len(logits), None])
        below = (logits < mine).double() @ times
        equal = (logits == mine).double() @ times - 1  # less the cell itself
        found.append((below + equal / 2) / (len(tokens) - 1))
    return torch.cat(found)


# How it is judged and shown


def beats_others(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "auc_upper", SMALLEST)
    test = f"AUC over the highest third of the layers, minus ½; interval over cells; smallest effect {SMALLEST}"
    return judge(effect, test, told("AUC over ½, highest third", effect, numbers))


def improves(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "auc_rise", SMALLEST)
    test = f"AUC, highest third of the layers minus lowest; interval over cells; smallest effect {SMALLEST}"
    return judge(effect, test, told("AUC, highest third minus lowest", effect, numbers))


def series(rows: Rows) -> list[Series]:
    name, where = "median rank, with the middle 50 % and 90 %", {"lens": main_lens(rows)}
    return [Series(name, "median", band=("p25", "p75"), outer=("p5", "p95"), where=where)]


def auc_series(rows: Rows) -> list[Series]:
    main = main_lens(rows)
    other = next((row["lens"] for row in rows if row["lens"] != main), None)
    lines = [Series(f"AUC, {main} lens", "auc", band=("lo", "hi"), where={"lens": main})]
    return lines + (
        [Series(f"AUC, {other} lens", "auc", band=("lo", "hi"), colour="green", where={"lens": other})] if other else []
    )


ANALYSIS = Analysis(
    name="rank",
    question="How high does a value rank the token that follows its key's trigger?",
    part=VALUES,
    order=5,
    method="The token is the one that follows the top-1 trigger. AUC: for each pair of cells i, j of a layer, whether the logit of i's "
    "token under value i is above that of j's token under value i (½ if equal), averaged over j, then over i. It is ½ if values are "
    "dealt out among keys, by construction: each token of the layer is then as likely as any other to be the own one. The smallest "
    f"difference that matters is {SMALLEST} (an effect usually called small, Cohen's d = 0.2, is an AUC of 0.556).",
    columns={
        "layer": Column("INTEGER", "the layer"),
        "lens": Column("VARCHAR", "the lens the value is read through"),
        "n": Column("BIGINT", "cells whose top-1 trigger has a next token"),
        "auc": Column(
            "DOUBLE",
            "the chance that a cell's next token ranks above that of another cell of the layer, under its own value",
        ),
        "lo": Column("DOUBLE", "lower end of its 95 % interval, by the bootstrap over cells"),
        "hi": Column("DOUBLE", "upper end"),
        "p5": Column(
            "DOUBLE", "rank of that token in the value's logits, 1 being the top: 5th percentile over the cells"
        ),
        "p25": Column("DOUBLE", "25th percentile"),
        "median": Column("DOUBLE", "median"),
        "p75": Column("DOUBLE", "75th percentile"),
        "p95": Column("DOUBLE", "95th percentile"),
    },
    facts={
        "lens": Column("VARCHAR", "the lens that the claims are judged by"),
        **effect_columns("auc_upper", "AUC minus ½, mean over the cells of the highest third of the layers"),
        **effect_columns("auc_rise", "AUC, mean over these cells minus that over the cells of the lowest third"),
    },
    needs=("lenses", "head"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="auc",
            label="Figure 5",
            title="How high a value ranks its key's next token, against those of other keys",
            caption="The chance that the token that follows the key's strongest trigger ranks above the token of another key of the "
            "layer, in the value's own order. ½ if values had nothing to do with their keys. Band: 95 % interval over cells.",
            mark=Lines(
                "chance to rank above another key's token",
                auc_series,
                [Baseline("baseline: dealt-out values", 0.5)],
                format=".2f",
                tooltip=".3f",
            ),
            claims=(
                Claim(
                    "In upper layers, a value ranks its own key's next token above those of other keys", beats_others
                ),
                Claim("The trigger's next token ranks higher in the value's distribution in upper layers", improves),
            ),
            paper=Paper(
                "Even if the next token is not the top one, values of higher layers rank it higher.",
                "the rank improves with depth",
            ),
            aside=lens_aside,
            columns=("layer", "lens", "n", "auc", "lo", "hi"),
        ),
        Figure(
            name="rank",
            label="Figure 5b",
            title="The rank of that token among all tokens",
            caption="Rank of the trigger's next token in the value's distribution over the vocabulary, as in the paper; 1 is the top. "
            "Frequent tokens rank high in most values, so this alone does not say that a value goes with its key. Logarithmic.",
            mark=Lines(
                "rank of the next token",
                series,
                [Baseline("baseline: a random order", lambda shape: (shape.vocabulary + 1) / 2)],
                format="~s",
                tooltip=",.0f",
                low=1,
                high=lambda shape: max(2, shape.vocabulary),
                log=True,
            ),
            aside=lens_aside,
            columns=("layer", "lens", "n", "p5", "p25", "median", "p75", "p95"),
        ),
    ),
)
