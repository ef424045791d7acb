"""What kinds of cells does pruning take? What `keyhole prune` counted, as a table; nothing is computed here."""

from __future__ import annotations

from ..store import kinds
from ..store import pruning as stored
from ..store.run import Run
from .record import OUTPUT, Analysis, Column, Figure, Found, Listing, Row, Rows, Shown
from .stats import rate, wilson

EMPTY = "nothing was pruned on this run yet, or the kinds of its cells were not known: `keyhole analyze RUN --only kinds`, then `keyhole prune RUN --curve`"


def rows(run: Run) -> Found:
    """A row per method, scope, share and kind."""
    found = stored.of(run)
    table: list[Row] = []
    for each in found.kinds if found else []:
        if not 0 <= each.gone <= each.cells:
            continue  # no such count can be
        lo, hi = wilson(each.gone, each.cells)
        table.append(
            {
                "method": each.method,
                "scope": each.scope,
                "share": each.share,
                "text": each.text,
                "fitted": each.fitted,
                "seed": each.seed,
                "basis": each.basis,
                "kind": each.kind,
                "cells": each.cells,
                "gone": each.gone,
                "rate": rate(each.gone, each.cells),
                "lo": lo,
                "hi": hi,
            }
        )
    return Found(table)


def of_one_method(rows: Rows) -> Rows:
    """Of what was counted last, refit at 25 % if it is there, else the last method and share."""
    same = stored.latest(rows)
    return [row for row in same if row["method"] == "refit" and row["share"] == 0.25] or [
        row for row in same if all(row[key] == same[-1][key] for key in ("method", "share"))
    ]


def _listed(run: Run, rows: Rows) -> list[list[object]]:
    """Kinds with cells, those that go most first."""
    chosen = of_one_method(rows)
    titles = {kind.name: kind.title for kind in kinds.KINDS} | {kinds.NONE: "none of these"}
    known = sorted((row for row in chosen if row["cells"] and row["rate"] is not None), key=lambda row: -row["rate"])
    return [
        [titles.get(row["kind"], row["kind"]), row["cells"], row["rate"], row["lo"], row["hi"], row["share"]]
        for row in known
    ]


ANALYSIS = Analysis(
    name="pruned_kinds",
    question="What kinds of cells does pruning take?",
    part=OUTPUT,
    order=131,
    method="Cells of each kind (`keyhole analyze`, step `kinds`) that go. The null is the share that goes of all cells, which is `share`.",
    columns={
        "method": Column("VARCHAR", "which cells go first"),
        "scope": Column("VARCHAR", "`uniform` or `global`"),
        "share": Column("DOUBLE", "share of all cells that go: what a kind would lose if kinds did not matter"),
        "text": Column("VARCHAR", "what was measured on: see `pruning`"),
        "fitted": Column("BIGINT", "tokens of the run's text that the cells were chosen on"),
        "seed": Column("BIGINT", "the seed of random choices"),
        "basis": Column("VARCHAR", "see `pruning`"),
        "kind": Column("VARCHAR", "the kind; `none` are cells without a label"),
        "cells": Column("BIGINT", "cells of that kind"),
        "gone": Column("BIGINT", "those of them that go"),
        "rate": Column("DOUBLE", "their share"),
        "lo": Column("DOUBLE", "lower end of its 95 % interval (Wilson)"),
        "hi": Column("DOUBLE", "upper end"),
    },
    rows=rows,
    empty=EMPTY,
    figures=(
        Figure(
            "pruned_kinds",
            "What kinds of cells go",
            "Of the cells of each kind, the share that goes if refit takes 25 % of the cells (or else by the last method), with its 95 % "
            "interval. If kinds did not matter, each would lose the share in the last column.",
            Listing(
                (
                    Shown("kind", "text"),
                    Shown("cells", "number", 0),
                    Shown("go", "percent"),
                    Shown("from", "percent"),
                    Shown("to", "percent"),
                    Shown("of all cells", "percent"),
                ),
                _listed,
                "kinds",
            ),
            label="Table S2",
        ),
    ),
)
