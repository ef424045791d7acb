"""Compositions in the last layer: the prediction is neither the residual's nor the layer's own token.

The paper's authors read a hundred of these: 66 change to a distant token, 34 to a related one. Here a number replaces the
reading: the cosine of top(r) and top(o) in the unembedding, from which its mean row is subtracted. Frequent tokens are alike there
whatever they mean, so every case is compared with its own null: top(r) with tokens that are as frequent as top(o).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..store.run import Run
from . import heldout, targets
from .claims import effect_columns, effect_facts, judge, judge_fact, not_applicable, percent, read_effect, with_interval
from .record import (
    OUTPUT,
    Analysis,
    Claim,
    Column,
    Effect,
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
)
from .stats import bootstrap_mean, bootstrap_rates

if TYPE_CHECKING:
    from ..lens.head import Head
    from .heldout import Prefixes
    from .section5 import Section5

Ints = npt.NDArray[np.int64]

MOST = 100
PARTNERS = 99
"""Tokens of similar frequency that top(o) is compared with."""
AS_NEAR = 4
"""A case is related if at most this many of its partners are as near: by chance, 5 in 100 are."""
CHANCE = (AS_NEAR + 1) / (PARTNERS + 1)
RELATED = 0.1
"""Smallest share of related cases that would matter: twice what chance gives."""
DISTANT = 0.5
SEEN = 0.5
"""If fewer of the pairs that are surely related count as related, the measure cannot tell what is distant."""
VARIANTS = 200
"""Pairs of spellings of one word, on which that is measured."""


def rows(run: Run, head: Head, prefixes: Prefixes, states: Section5, seed: int = 0) -> Found:
    r, y, o = states.top_r[-1], states.top_y[-1], states.top_o[-1]
    composed = np.flatnonzero((o != r) & (o != y))
    chosen = np.sort(np.random.default_rng(seed).permutation(composed)[:MOST])
    near = Nearness(run, head)
    alike, percentile, related = near.compare(r[chosen], o[chosen])
    piece = run.vocabulary.piece
    table = [
        {
            "prefix": run.vocabulary.text(prefixes.ids[i]),
            "top_r": piece(r[i]),
            "top_y": piece(y[i]),
            "top_o": piece(o[i]),
            "similarity": float(alike[at]),
            "percentile": float(percentile[at]),
            "related": int(related[at]),
        }
        for at, i in enumerate(chosen)
    ]
    clusters = None if states.clusters is None else states.clusters[chosen]
    facts: dict[str, Fact] = {"composed": len(composed), "cases": len(table)}
    (share,) = bootstrap_rates(related[None], clusters) if len(chosen) else [bootstrap_mean(percentile)]
    facts |= effect_facts("share", share) | effect_facts("mean_percentile", bootstrap_mean(percentile, clusters))
    pairs = variants(run, near.order)
    known = near.compare(pairs[:, 0], pairs[:, 1])[2]
    facts |= {"variants": len(pairs), "variants_related": float(known.mean()) if len(known) else None}
    return Found(table, {**prefixes.facts, **facts})


class Nearness:
    """How near two tokens are in the centred unembedding, compared with tokens as frequent as the second."""

    def __init__(self, run: Run, head: Head) -> None:
        from .centred import CentredRows

        self._rows = CentredRows(head)
        known = min(head.vocabulary, len(run.vocabulary))
        shares = targets.unigram(run, head.vocabulary)[:known]
        self.order: Ints = np.argsort(-shares, kind="stable")
        """tokens by how frequent they are in the scanned text; equal ones by their number, which mostly goes by frequency too"""
        self._place = np.full(head.vocabulary, known - 1)
        self._place[self.order] = np.arange(known)

    def partners(self, r: int, o: int) -> Ints:
        """The `PARTNERS` tokens whose place in the order is nearest to that of o, without r and o."""
        place = int(self._place[o])
        low = max(0, place - PARTNERS - 2)
        around = np.arange(low, min(len(self.order), place + PARTNERS + 3))
        around = around[np.argsort(np.abs(around - place), kind="stable")]
        found: Ints = self.order[around]
        apart: Ints = found[(found != r) & (found != o)]
        return apart[:PARTNERS]

    def compare(self, r: Ints, o: Ints) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """For each pair: the cosine, its percentile among that of r and the partners, and whether the pair counts as related."""
        alike, percentile, related = np.zeros(len(r)), np.zeros(len(r)), np.zeros(len(r), bool)
        for at, (one, other) in enumerate(zip(r.tolist(), o.tolist(), strict=True)):
            partners = self.partners(one, other)
            cosines = self._cosines(one, np.concatenate([[other], partners]))
            alike[at], null = cosines[0], cosines[1:]
            as_near, below = int((null >= alike[at]).sum()), int((null < alike[at]).sum())
            ties = int((null == alike[at]).sum())
            percentile[at] = (below + ties / 2) / max(1, len(null))
            related[at] = as_near <= AS_NEAR * len(null) / PARTNERS
        return alike, percentile, related

    def _cosines(self, token: int, others: Ints) -> npt.NDArray[Any]:
        rows = self._rows(np.append(others, token))
        length = np.linalg.norm(rows, axis=1)
        found: npt.NDArray[Any] = rows[:-1] @ rows[-1] / np.maximum(length[:-1] * length[-1], 1e-30)
        return found


def variants(run: Run, order: Ints) -> Ints:
    """[pairs, 2] two spellings of one word (another case, or a space before it), the words in the order of their frequency: pairs
    that are surely related."""
    first: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    for token in order.tolist():
        word = run.vocabulary.piece(token).strip().lower()
        if not word.isalpha():
            continue
        if (other := first.setdefault(word, token)) != token and other >= 0:
            pairs.append((other, token))
            first[word] = -1
        if len(pairs) == VARIANTS:
            break
    return np.array(pairs, np.int64).reshape(-1, 2)


# Claims


def nearer(measured: Measurement) -> Verdict:
    test = (
        f"share of cases nearer than 95 % of tokens as frequent, interval over prefixes, {percent(CHANCE)} by chance; smallest "
        f"effect {percent(RELATED)}"
    )
    mean = with_interval(read_effect(measured.facts, "mean_percentile", 0.5))
    return judge_fact(measured.facts, "share", RELATED, test, "related", f"; mean percentile {mean}, 50 % by chance")


def distant(measured: Measurement) -> Verdict:
    test = f"share of cases that are not related, interval over prefixes; smallest effect {percent(DISTANT)}"
    seen = measured.facts.get("variants_related")
    if seen is None:
        return judge(None, test, "")
    if float(seen) < SEEN:
        why = (
            f"of pairs that are surely related, two spellings of one word, only {percent(float(seen))} count as related"
        )
        return not_applicable(test, f"the measure cannot tell what is distant: {why}")
    share = read_effect(measured.facts, "share", 0.0)
    effect = None
    if share is not None:
        lo, hi = (None if end is None else 1 - end for end in (share.hi, share.lo))
        effect = Effect(1 - share.value, lo, hi, DISTANT)
    said = f"not related: {with_interval(effect)}; of {measured.facts['variants']} pairs of spellings, {percent(1 - float(seen))}"
    return judge(effect, test, said)


def note(facts: Facts) -> str:
    said = (
        f"{heldout.note(facts)}; {facts['composed']:,} of {facts['prefixes']:,} prefixes are composed in the last layer; of "
        f"{facts['cases']} listed"
    )
    share = read_effect(facts, "share", 0.0)
    return f"{said}, {with_interval(share)} are nearer than 95 % of tokens as frequent ({percent(CHANCE)} by chance)"


def listed(run: Run, rows: Rows) -> list[list[Any]]:
    return [
        [row[column] for column in ("prefix", "top_r", "top_y", "top_o", "similarity", "percentile")] for row in rows
    ]


ANALYSIS = Analysis(
    name="cases",
    question="Where the last layer's prediction is a compromise, how far is it from what it replaces?",
    part=OUTPUT,
    order=12,
    method=f"Up to {MOST} random prefixes where the last layer's top(o) is neither top(r) nor top(y). Similarity is the cosine in the "
    f"unembedding minus its mean row. Each case is compared with the cosines of top(r) and the {PARTNERS} tokens whose frequency in the "
    f"scanned text is nearest to that of top(o); it counts as related if at most {AS_NEAR} of them are as near.",
    columns={
        "prefix": Column("VARCHAR", "the prefix"),
        "top_r": Column("VARCHAR", "top token of the residual"),
        "top_y": Column("VARCHAR", "top token of the layer's output"),
        "top_o": Column("VARCHAR", "top token of their sum"),
        "similarity": Column("DOUBLE", "cosine of top(r) and top(o) in the centred unembedding"),
        "percentile": Column("DOUBLE", "share of tokens as frequent as top(o) that are less near; a half by chance"),
        "related": Column("INTEGER", f"1 if it is nearer than 95 % of them: {percent(CHANCE)} by chance"),
    },
    facts={
        **heldout.FACTS,
        "composed": Column("BIGINT", "prefixes where the last layer's top(o) is neither top(r) nor top(y)"),
        "cases": Column("BIGINT", "how many of them are listed"),
        **effect_columns("share", "share of listed cases that are related"),
        **effect_columns("mean_percentile", "mean percentile of the listed cases"),
        "variants": Column("BIGINT", "pairs of two spellings of one word that the measure is tried on"),
        "variants_related": Column("DOUBLE", "share of these pairs that count as related"),
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
            "(y). Similarity: cosine of r's and o's tokens in the centred unembedding. Percentile: among tokens as frequent as o's.",
            mark=Listing(
                columns=(
                    Shown("prefix", "text"),
                    Shown("r", "token"),
                    Shown("y", "token"),
                    Shown("o", "token"),
                    Shown("similarity", "number", digits=2),
                    Shown("percentile", "percent"),
                ),
                rows=listed,
                noun="cases",
            ),
            claims=(
                Claim("More compromises of the last layer than by chance move to a related token", nearer),
                Claim("Compromises of the last layer mostly move to a distant token", distant),
            ),
            paper=Paper(
                "Most last-layer compromises move to a token that is far in meaning from what it replaces.",
                "66 of 100 distant, 34 related, read by hand",
            ),
        ),
    ),
)
