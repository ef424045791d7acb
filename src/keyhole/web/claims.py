"""Claims of the report as the explorer shows them: the verdict, and the effect that it rests on."""

from __future__ import annotations

from ..analyses import registry
from ..analyses.measured import Measured
from ..analyses.record import Verdict
from ..views import text
from . import schema
from .pack import short


def every(measured: Measured) -> list[schema.Claim]:
    """Every claim that was measured, in the order of the report."""
    return [
        schema.Claim(figure.label or figure.title, verdict(each))
        for _, figure in registry.report_order()
        for each in measured.verdicts.get(figure.name, [])
    ]


def verdict(found: Verdict) -> schema.Verdict:
    known = found.effect
    rests = None if known is None else effect(known.value, known.lo, known.hi, known.against)
    adjusted = None if found.adjusted is None else short(found.adjusted)
    return schema.Verdict(found.claim, found.outcome, found.evidence, found.test, rests, adjusted)


def effect(value: float, lo: float | None, hi: float | None, against: float) -> schema.Effect:
    low, high = (None if end is None else short(end) for end in (lo, hi))
    return schema.Effect(short(value), low, high, short(against), text.with_interval(value, lo, hi))
