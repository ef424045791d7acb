"""Compositions in the last layer: the prediction is neither the residual's nor the layer's own token.

The paper's authors read a hundred of these: 66 change to a distant token, 34 to a related one. Here a number replaces the
reading, the cosine of top(r) and top(o) in the unembedding. The facts say what cosine to expect by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout
from .claims import above
from .record import (
    OUTPUT,
    Analysis,
    Claim,
    Column,
    Fact,
    Facts,
    Figure,
    Found,
    Listing,
    Measurement,
    Paper,
    Rows,
    Shown,
    Verdict,
    present,
)
from .stats import rate_interval

if TYPE_CHECKING:
    from ..lens.head import Head
    from .heldout import Prefixes
    from .section5 import Section5

MOST = 100
PAIRS = 10_000
"""Pairs of predictions that chance is measured on."""
DISTANT = 0.3
"""The cosine up to which two tokens count as distant, if the facts do not say what chance gives."""


def rows(run: Run, head: Head, prefixes: Prefixes, states: Section5, seed: int = 0) -> Found:
    r, y, o = states.top_r[-1], states.top_y[-1], states.top_o[-1]
    composed = np.flatnonzero((o != r) & (o != y))
    random = np.random.default_rng(seed)
    chosen = np.sort(random.permutation(composed)[:MOST])
    likeness = similarity(head, r[chosen], o[chosen])
    piece = run.vocabulary.piece
    table = [
        {
            "prefix": run.vocabulary.text(prefixes.ids[i]),
            "top_r": piece(r[i]),
            "top_y": piece(y[i]),
            "top_o": piece(o[i]),
            "similarity": float(alike),
        }
        for i, alike in zip(chosen, likeness, strict=True)
    ]
    # chance: pairs of predictions of different prefixes, in which frequent tokens are as frequent as among the cases
    one, other = (random.integers(0, len(o), PAIRS) for _ in range(2))
    apart = r[one] != o[other]
    chance = similarity(head, r[one][apart], o[other][apart])
    facts: dict[str, Fact] = {"composed": len(composed), "cases": len(table)}
    facts |= dict.fromkeys(("chance_mean", "chance_p95", "related"))
    if len(chance):
        far = float(np.quantile(chance, 0.95))
        facts |= {"chance_mean": float(chance.mean()), "chance_p95": far, "related": int((likeness > far).sum())}
    return Found(table, {**prefixes.facts, **facts})


def similarity(head: Head, some: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The cosine of tokens in the unembedding, pair by pair."""
    import torch

    with torch.inference_mode():
        one, other = (
            head.weight[torch.from_numpy(np.asarray(tokens)).to(head.weight.device)].float()
            for tokens in (some, others)
        )
        found: npt.NDArray[np.float32] = torch.cosine_similarity(one, other, dim=1).cpu().numpy()
    return found


def distant(measured: Measurement) -> Verdict:
    """A case is distant if its cosine is at most what unrelated predictions hardly exceed."""
    rows = present(measured.rows, "similarity")
    if not rows:
        return Verdict("unclear", "95 % interval against a half", "no case")
    chance = measured.facts.get("chance_p95")
    bound = DISTANT if chance is None else float(chance)
    count = sum(row["similarity"] <= bound for row in rows)
    rate = count / len(rows)
    what = f"{count} of {len(rows)} cases with a cosine up to {bound:.3g}"
    return above(rate, *rate_interval(rate, len(rows)), 0.5, what, "a half")


def note(facts: Facts) -> str:
    said = (
        f"{heldout.note(facts)}; {facts['composed']:,} of {facts['prefixes']:,} prefixes are composed in the last layer"
    )
    if facts["chance_p95"] is not None:
        said += (
            f"; top(r) and top(o) of different prefixes have a cosine of {facts['chance_mean']:.3f} on average and "
            f"{facts['chance_p95']:.3f} at the 95th percentile, which {facts['related']} of these {facts['cases']} cases exceed"
        )
    return said


def listed(run: Run, rows: Rows) -> list[list[Any]]:
    return [[row[column] for column in ("prefix", "top_r", "top_y", "top_o", "similarity")] for row in rows]


ANALYSIS = Analysis(
    name="cases",
    question="Where the last layer's prediction is a compromise, how far is it from what it replaces?",
    part=OUTPUT,
    order=12,
    method=f"Up to {MOST} random prefixes where the last layer's top(o) is neither top(r) nor top(y).",
    columns={
        "prefix": Column("VARCHAR", "the prefix"),
        "top_r": Column("VARCHAR", "top token of the residual"),
        "top_y": Column("VARCHAR", "top token of the layer's output"),
        "top_o": Column("VARCHAR", "top token of their sum"),
        "similarity": Column("DOUBLE", "cosine of top(r) and top(o) in the unembedding"),
    },
    facts={
        **heldout.FACTS,
        "composed": Column("BIGINT", "prefixes where the last layer's top(o) is neither top(r) nor top(y)"),
        "cases": Column("BIGINT", "how many of them are listed"),
        "chance_mean": Column("DOUBLE", "mean cosine of top(r) and top(o) of different prefixes"),
        "chance_p95": Column("DOUBLE", "its 95th percentile"),
        "related": Column("BIGINT", "listed cases whose cosine exceeds that percentile"),
    },
    needs=("head", "prefixes", "states", "seed"),
    rows=rows,
    note=note,
    figures=(
        Figure(
            name="cases",
            label="Table S1",
            title="Compromises of the last layer",
            caption="Prefixes where the last layer's sum o has a top token that is neither the residual's (r) nor the layer's "
            "(y). Similarity: cosine of r's and o's tokens in the unembedding.",
            mark=Listing(
                columns=(
                    Shown("prefix", "text"),
                    Shown("r", "token"),
                    Shown("y", "token"),
                    Shown("o", "token"),
                    Shown("similarity", "number", digits=2),
                ),
                rows=listed,
                noun="cases",
            ),
            claims=(Claim("Compromises of the last layer mostly move to a distant token", distant),),
            paper=Paper(
                "Most last-layer compromises move to a token that is far in meaning from what it replaces.",
                "66 of 100 distant, 34 related, read by hand",
            ),
        ),
    ),
)
