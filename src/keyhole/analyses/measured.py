"""What was measured on a run, read back: the tables, the facts about them, and the verdicts on their claims."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..store import layout, tables
from ..store.run import Run
from . import registry
from .claims import LEVEL
from .record import Analysis, Fact, Measurement, Row, Shape, Verdict
from .stats import holm


@dataclass(frozen=True)
class Measured:
    run: Run
    shape: Shape
    tables: dict[str, list[Row] | None]
    """every table by name; None if it is not filled"""
    facts: dict[str, dict[str, Fact]]
    """by table, of those that have facts"""
    notes: dict[str, str]
    """by table: its facts as a sentence"""
    verdicts: dict[str, list[Verdict]]
    """by figure, of those whose table has rows"""

    @classmethod
    def read(cls, run: Run) -> Measured:
        schemas = registry.schemas()
        found: dict[str, list[Row] | None] = dict.fromkeys(schemas)
        facts: dict[str, dict[str, Fact]] = {}
        for name in filled(run):
            found[name] = tables.read_table(run.path, name, schemas)
            if known := tables.read_facts(run.path, schemas[name]):
                facts[name] = known
        notes = {name: note for name, known in facts.items() if (note := registry.get(name).describe(known))}
        made = cls(run, shape_of(run), found, facts, notes, {})
        for analysis, figure in registry.report_order():
            if figure.claims and (measurement := made.of(analysis)).rows:
                made.verdicts[figure.name] = [claim.weigh(measurement) for claim in figure.claims]
        correct(made.verdicts)
        return made

    def of(self, analysis: Analysis) -> Measurement:
        return Measurement(self.tables.get(analysis.name) or [], self.facts.get(analysis.name, {}), self.shape)


def correct(verdicts: dict[str, list[Verdict]]) -> None:
    """Holm's correction over all claims of a report, in place: many claims are judged, so some would pass by chance. A verdict
    that does not pass it is unclear."""
    tested = [
        (verdicts, at, p)
        for verdicts in verdicts.values()
        for at, verdict in enumerate(verdicts)
        if verdict.effect is not None and (p := verdict.effect.p) is not None
    ]
    for (figure, at, _), adjusted in zip(tested, holm([p for _, _, p in tested]), strict=True):
        verdict = replace(figure[at], adjusted=adjusted)
        if adjusted >= LEVEL and verdict.outcome in ("holds", "does not hold"):
            alone = "hold" if verdict.outcome == "holds" else "not hold"
            said = f"tested alone it would {alone}, but {len(tested)} claims are tested, and with Holm's correction it is not decided"
            verdict = replace(verdict, outcome="unclear", evidence=f"{verdict.evidence}; {said}")
        figure[at] = verdict


def shape_of(run: Run) -> Shape:
    return Shape(run.cells, len(run.vocabulary), run.signed, run.gated)


def filled(run: Run) -> list[str]:
    """The tables that are filled, in the order of the analyses."""
    if not layout.has_tables(run.path):
        return []
    with tables.connect(run.path) as db:
        there = tables.filled(db, registry.schemas())
    return [name for name in registry.schemas() if name in there]


def missing(run: Run) -> list[str]:
    """The steps of `analyze` whose results are not there yet."""
    there = set(filled(run))
    there |= {each.name for each in registry.analyses() if each.is_filled and each.is_filled(run)}
    return [name for name in registry.steps() if name not in there]


def note(run: Run, name: str) -> str:
    """What a table was measured on, as a sentence."""
    analysis = registry.get(name)
    return analysis.describe(tables.read_facts(run.path, analysis.schema))
