"""The report: every figure, table and claim for this model, on one page that needs nothing but itself.

report.write(run)         → report/index.html in the run directory
report.figures(run)       → Altair charts, for a notebook
report.data(run)          → tables, facts, notes and verdicts, as one JSON value
report.save_figures(run)  → the charts as SVG or PNG files
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import vl_convert

from ... import __version__
from ...analyses.measured import Measured
from ...common import output
from ...common.files import disk_errors, replace_bytes, subfolder
from ...errors import RunError
from ...store import layout
from ...store.run import Run
from .. import figures as charts
from .. import text
from . import page


def write(run: Run) -> Path:
    """Write the page into the run directory, whole or not at all."""
    path = layout.report_file(run.path)
    made = page.render(Measured.read(run)).encode("utf-8", "replace")
    with disk_errors(
        path, full="Make room, and run the same command again.", refused="Make the run writable, or copy it."
    ):
        subfolder(run.path, path.parent.name)
        replace_bytes(path, made, alone=False)
    return path


def figures(run: Run) -> dict[str, charts.Chart]:
    """The charts by name, of the figures whose tables have numbers."""
    return {drawn.figure.name: drawn.chart for drawn in charts.draw_all(Measured.read(run))}


def save_figures(run: Run, folder: Path, kind: str = "svg") -> list[Path]:
    """Each figure as `folder`/NAME.svg or .png."""
    written = []
    made = figures(run)
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


def data(run: Run) -> dict[str, Any]:
    """Everything the page says, as one value that JSON can hold: a number that is not finite becomes null."""
    measured = Measured.read(run)
    found: dict[str, Any] = output.plain(
        {
            "run": {
                "path": page.path(run),
                "model": text.model_name(run),
                "layers": run.layers,
                "cells": run.cells.sizes,
            }
            | {"corpus": run.manifest["corpus"], "keyhole": __version__},
            "tables": measured.tables,
            "facts": measured.facts,
            "notes": measured.notes,
            "verdicts": {name: [asdict(verdict) for verdict in each] for name, each in measured.verdicts.items()},
        }
    )
    return found
