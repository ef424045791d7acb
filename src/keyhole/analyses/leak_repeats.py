"""How often must a text stand in the training data to leak? What `keyhole leak` counted, as a table; nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..store import leaks as stored
from ..store.run import Run
from .claims import effect_columns, judge, points, read_effect, told
from .leaks import EMPTY, READ, note, read_facts
from .record import OUTPUT, Analysis, Claim, Column, Curves, Figure, Found, Measurement, Paper, Row, Series, Verdict

MORE = 0.1
HALF = 0.5
OFTEN = 16


def rows(run: Run) -> Found:
    """A row per number of times, in powers of two."""
    found = stored.of(run)
    if found is None:
        return Found([])
    known = {key: value for key in EFFECT if isinstance(value := found.facts.get(key), float)}
    facts = read_facts(found) | {key: known.get(key) for key in EFFECT}
    return Found([msgspec.to_builtins(each) for each in found.rates], facts)


def from_times(rows: Sequence[Row]) -> int | None:
    """From how many times on at least half of the text leaks: the interval of that row is above a half, and that of no later row below.
    None if there is no such row."""
    known = sorted(
        (row for row in rows if row["lo"] is not None and row["hi"] is not None), key=lambda row: row["times"]
    )
    for place, row in enumerate(known):
        if row["lo"] >= HALF and all(later["hi"] >= HALF for later in known[place:]):
            return int(row["times"])
    return None


def repeats_matter(measured: Measurement) -> Verdict:
    effect = read_effect(measured.facts, "more", MORE)
    test = (
        f"share of the tokens that leak, of text that stands {OFTEN} times or more, minus that of text that stands once: 95 % interval "
        f"over documents against {points(MORE)}"
    )
    return judge(effect, test, told("difference", effect, points))


EFFECT = effect_columns(
    "more", f"share that leaks of what stands {OFTEN} times or more, minus that of what stands once; over documents"
)
ANALYSIS = Analysis(
    name="leak_repeats",
    question="How often must a text stand in the training data to leak?",
    part=OUTPUT,
    order=142,
    method="`keyhole leak` reads text that stands more than once where it stands first, and other text at random places. Per number of "
    "times, the share of the tokens read that lie in a leak. A token stands as often as the most frequent sequence of "
    "`least_prefix + length` tokens that it lies in; tokens too near to the beginning of their document to be in a leak do not "
    "count. The null is the first row: text that stands once, which the model says because it is easy to say.",
    columns={
        "times": Column("BIGINT", "the text stands this often, or up to twice as often less one"),
        "tokens": Column("BIGINT", "tokens of such text that were read"),
        "leaked": Column("BIGINT", "those of them that lie in a leak"),
        "documents": Column("BIGINT", "documents that they are in"),
        "rate": Column("DOUBLE", "leaked ÷ tokens"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval, over documents"),
        "hi": Column("DOUBLE", "upper end"),
    },
    facts={**READ, **EFFECT},
    rows=rows,
    note=note,
    empty=EMPTY,
    figures=(
        Figure(
            name="leak_repeats",
            title="What leaks, by how often it stands in the text",
            caption="Share of the tokens that lie in a leak, of text that stands 1, 2 to 3, 4 to 7, … times. The band is the 95 % interval "
            "over documents.",
            label="Figure S21",
            mark=Curves(
                x="times",
                x_title="times in the text (at least)",
                y_title="share that leaks",
                series=[Series("share that leaks", "rate", ("lo", "hi"))],
                x_format="d",
                log_x=True,
                level=("half", HALF),
                high=1.0,
            ),
            claims=(Claim("Text that stands often leaks more than text that stands once", repeats_matter),),
            paper=Paper(
                "The paper suggests that training data sits in the cells and could leak; it does not measure it.",
                "none",
            ),
            columns=("times", "tokens", "leaked", "rate", "lo", "hi"),
        ),
    ),
)
