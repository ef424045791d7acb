"""The answers about how often a key fires, and with examples below the top. Both come from the sample of the step `shading`."""

from __future__ import annotations

from ..store.below import BANDS, Below
from ..store.below import Example as Stored
from ..store.run import Cell, Run
from ..store.shading import shown
from ..views import firing as often
from . import schema
from .pack import joined, short


def sample(run: Run, found: Below) -> schema.Sample:
    """The prefixes that examples are chosen from, with as much text around them as a trigger has."""
    piece, rows = run.vocabulary.piece, []
    for unit, position in found.places.tolist():
        ids = run.unit_tokens(unit)
        begin, end = shown(len(ids), position, run.room)
        tokens = joined([piece(token) for token in ids[begin:end].tolist()])
        rows.append(schema.SampledPrefix(unit, position, begin, len(ids) - end, tokens))
    return schema.Sample([(low, high) for low, high in BANDS], rows)


def examples(found: Below, place: int) -> schema.Below:
    here = found.of(place)
    return schema.Below(
        [short(edge, 3) for edge in here.edges], [_rows(band) for band in here.bands], _rows(here.random)
    )


def _rows(examples: list[Stored]) -> list[schema.Example]:
    return [schema.Example(each.prefix, short(each.coefficient, 4)) for each in examples]


def firing(cell: Cell) -> schema.Firing | None:
    """How often a key fires; None without shading, or if it never does."""
    found = often.of(cell)
    if found is None:
        return None
    share, lo, hi = (short(found[name] or 0.0) for name in ("share", "lo", "hi"))
    return schema.Firing(share, lo, hi, int(found["n"] or 0), int(found["of"] or 0))
