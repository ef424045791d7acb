"""The report: every figure, table and claim for this model, on one page that needs nothing but itself.

report.write(run)         → report/index.html in the run directory
report.figures(run)       → Altair charts, for a notebook
report.data(run)          → tables, facts, notes and verdicts, as one JSON value
report.markdown(run)      → the claims as a Markdown table
report.save_figures(run)  → the charts as SVG or PNG files

Each takes `beside`, other runs to compare with: a control, another corpus, another seed or training step, another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vl_convert

from ... import __version__
from ...analyses import beside as compared
from ...analyses.measured import Measured
from ...common import output
from ...common.files import disk_errors, replace_bytes, subfolder
from ...errors import RunError
from ...store import layout
from ...store.run import Run
from .. import figures as charts
from .. import text
from . import markdown as listed
from . import page


def write(run: Run, beside: Sequence[Run] = ()) -> Path:
    """Write the page into the run directory, whole or not at all."""
    path = layout.report_file(run.path)
    measured = Measured.read(run)
    made = page.render(measured, compared.others(measured, beside)).encode("utf-8", "replace")
    with disk_errors(
        path, full="Make room, and run the same command again.", refused="Make the run writable, or copy it."
    ):
        subfolder(run.path, path.parent.name)
        replace_bytes(path, made, alone=False)
    return path


def markdown(run: Run, beside: Sequence[Run] = ()) -> str:
    """The claims as a Markdown table: effect, smallest effect and outcome, here and on the other runs."""
    measured = Measured.read(run)
    return listed.table(measured, compared.others(measured, beside))


def figures(run: Run, beside: Sequence[Run] = ()) -> dict[str, charts.Chart]:
    """The charts by name, of the figures whose tables have numbers. A figure of another run that is not drawn into the chart has
    a number after its name: the place of the run in `beside`, from 1."""
    measured = Measured.read(run)
    others = compared.others(measured, beside)
    names = [other.name for other in others]
    found: dict[str, charts.Chart] = {}
    for drawn in charts.draw_all(measured, others=others):
        found[drawn.figure.name] = drawn.chart
        found |= {f"{drawn.figure.name}-{names.index(name) + 1}": panel for name, panel in drawn.panels.items()}
    return found


def save_figures(run: Run, folder: Path, kind: str = "svg", beside: Sequence[Run] = ()) -> list[Path]:
    """Each figure as `folder`/NAME.svg or .png."""
    written = []
    made = figures(run, beside)
    if not made:
        raise RunError(f"{run.path} has no tables to draw yet. Fill them: keyhole analyze {run.path}")
    with disk_errors(folder, full="Make room, and run the same command again.", refused="Choose another folder."):
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in made.items():
            path, spec, version = folder / f"{name}.{kind}", charts.spec(chart), charts.vega_lite()
            if kind == "svg":
                drawn = vl_convert.vegalite_to_svg(spec, vl_version=version).encode()
            else:
                drawn = vl_convert.vegalite_to_png(spec, vl_version=version, scale=2)
            replace_bytes(path, drawn, alone=False)
            written.append(path)
    return written


def data(run: Run, beside: Sequence[Run] = ()) -> dict[str, Any]:
    """Everything the page says, as one value that JSON can hold: a number that is not finite becomes null. With other runs, each
    has its tables and verdicts under `beside`, and how it compares."""
    measured = Measured.read(run)
    others = compared.others(measured, beside)
    found: dict[str, Any] = output.plain(
        {
            **_measured(measured),
            **({"beside": [_other(other) for other in others]} if others else {}),
        }
    )
    return found


def _measured(measured: Measured) -> dict[str, Any]:
    run = measured.run
    return {
        "run": {
            "path": page.path(run),
            "model": text.model_name(run),
            "layers": run.layers,
            "cells": run.cells.sizes,
            "corpus": run.manifest["corpus"],
            "keyhole": __version__,
        },
        "tables": measured.tables,
        "facts": measured.facts,
        "notes": measured.notes,
        "verdicts": {name: [asdict(verdict) for verdict in each] for name, each in measured.verdicts.items()},
    }


def _other(other: compared.Other) -> dict[str, Any]:
    """Another run: what was measured on it, and each claim of this run beside its own."""

    def claim(each: compared.Compared) -> dict[str, Any]:
        told = {"claim": each.claim, "result": each.result, "why": each.why, "adjusted": each.adjusted}
        theirs = {"other": None if each.other is None else asdict(each.other)}
        return told | theirs | {"difference": None if each.difference is None else each.difference._asdict()}

    return {
        "name": other.name,
        **_measured(other.measured),
        "missing": other.missing,
        "claims": {figure: [claim(each) for each in claims] for figure, claims in other.claims.items()},
    }
