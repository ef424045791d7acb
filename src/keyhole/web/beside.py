"""A second run beside the one that is explored. Claims and figures of any two runs can be shown beside each other; layers and cells
only if the runs have the same axis of cells, as another corpus, a control or another training step of one model has."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..analyses import compare, registry
from ..analyses.beside import Compared, labels, others
from ..analyses.measured import Measured
from ..analyses.record import Verdict
from ..store import layout, made
from ..store.run import Run
from ..views import figures
from ..views.text import model_name
from . import claims, schema
from .pack import short

if TYPE_CHECKING:
    from .contract import Explorer


def about(run: Run, other: Run) -> schema.AboutBeside:
    return schema.AboutBeside(
        name=labels([run, other])[1],
        model=other.model_name,
        sources=[os.path.basename(os.path.normpath(str(name))) for name in other.manifest["corpus"]["sources"]],
        same_model=_same_model(run, other),
        same_text=bool(run.manifest["corpus"]["hash"] == other.manifest["corpus"]["hash"]),
        why=None if run.cells == other.cells else why(run, other),
    )


def _same_model(run: Run, other: Run) -> bool:
    return bool(run.manifest["model"]["fingerprint"] == other.manifest["model"]["fingerprint"])


def why(run: Run, other: Run) -> str:
    """Why no cells are shown beside each other."""
    return f"It has {other.cells.summary}, and this run {run.cells.summary}, so no cell of one is a cell of the other. The overview shows both runs."


# The overview


def comparison(run: Run, other: Run) -> schema.Comparison:
    """Claims, figures and numbers of both runs."""
    measured = Measured.read(run)
    (found,) = others(measured, [other])
    claims = [
        _claim(figure.label or figure.title, here, there)
        for _, figure in registry.report_order()
        for here, there in zip(measured.verdicts.get(figure.name, []), found.claims.get(figure.name, []), strict=True)
    ]
    drawn = [
        schema.ComparedFigure(
            each.figure.name,
            figures.spec(each.chart, page=True),
            *(figures.spec(panel, page=True) for panel in each.panels.values()),
        )
        for each in figures.draw_all(measured, figures.PAGE, [found])
    ]
    return schema.Comparison(found.name, _scanned(other), claims, drawn, found.missing)


def _claim(figure: str, here: Verdict, there: Compared) -> schema.ComparedClaim:
    between = None
    if there.difference is not None:
        value, lo, hi = there.difference
        between = claims.effect(value, lo, hi, against=0)
    return schema.ComparedClaim(
        figure=figure,
        here=claims.verdict(here),
        there=None if there.other is None else claims.verdict(there.other),
        result=there.result,
        why=there.why,
        difference=between,
        adjusted=None if there.adjusted is None else short(there.adjusted),
    )


def _scanned(run: Run) -> schema.OtherRun:
    return schema.OtherRun(
        model=model_of(run),
        shape=run.cells.summary,
        cells=len(run.cells),
        corpus=corpus_of(run),
        config=config_of(run),
        dead=int(np.count_nonzero(run.stats.dead)),
    )


def model_of(run: Run) -> schema.AboutModel:
    return schema.AboutModel(
        model_name(run),
        run.manifest["model"]["family"],
        run.signed,
        run.gated,
        made.told(run.manifest) or msgspec.UNSET,
    )


def corpus_of(run: Run) -> schema.AboutCorpus:
    corpus = run.manifest["corpus"]
    counts = ("documents", "units", "tokens", "distinct_prefixes", "scanned_prefixes")
    sources = [os.path.basename(os.path.normpath(str(source))) for source in corpus["sources"]]
    return schema.AboutCorpus(sources=sources, **{name: corpus[name] for name in counts})


def config_of(run: Run) -> schema.AboutConfig:
    return schema.AboutConfig(**{name: run.manifest["config"][name] for name in ("top", "per", "unit", "context")})


# A layer


def layer(here: Explorer, there: Explorer, number: int) -> schema.LayerBeside:
    """The cells of a layer in the other run, and how far their triggers agree with those of this run."""
    its = there.layer(number).columns
    columns = schema.OtherColumns(its.max, its.trigger, its.last)
    if not _same_model(here.run, there.run):
        columns.promotes = its.promotes
    if _tokenizer(here.run) != _tokenizer(there.run):
        return schema.LayerBeside(columns, None)
    found, cells = compare.compare_layer(here.run, there.run, number)
    columns.triggers, columns.last_overlap, columns.next_overlap = (
        [_finite(value) for value in cells[name].tolist()] for name in ("triggers", "last", "next")
    )
    means = {name: _mean(getattr(found, name)) for name in ("triggers", "last", "next")}
    top = min(here.run.top, there.run.top)
    return schema.LayerBeside(columns, schema.LayerOverlap(top, found.n, found.turned, **means))


def _mean(found: compare.Mean) -> schema.Mean:
    ends = (found.value, found.lo, found.hi, found.dealt)
    return schema.Mean(*(None if value is None else short(value) for value in ends))


# A cell


def cell(here: Explorer, there: Explorer, layer: int, index: int) -> schema.BesideCell:
    """The cell in the other run, and how far its triggers agree with those of this run."""
    place = here.axis.place(layer, index)
    return schema.BesideCell(
        cell=msgspec.structs.replace(there.cell(layer, index), below=msgspec.UNSET),  # its sample is not shown
        overlap=_overlap(here.run, there.run, place),
        turned=bool(here.run.orientation[place] != there.run.orientation[place]),
    )


def _overlap(here: Run, there: Run, place: int) -> schema.Overlap:
    """As `keyhole compare` defines it, of one cell."""
    top = min(here.top, there.top)
    if _tokenizer(here) != _tokenizer(there):
        return schema.Overlap(top, None, None, None)
    found = {
        name: _finite(each[0]) for name, each in compare.measure_cells([here, there], np.array([place]), top).items()
    }
    return schema.Overlap(top, **found)


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else short(value)


def _tokenizer(run: Run) -> object:
    """What tells tokenizers apart: the checksum of the file. Tokens of two tokenizers have other numbers."""
    return run.manifest["files"][layout.tokenizer_file(run.path).name]


NUMBERED: dict[str, Callable[..., schema.Record]] = {"overlaps": layer, "beside": cell}
"""What answers at the addresses of a layer and of a cell: it takes the explorers of both runs, and the numbers."""
