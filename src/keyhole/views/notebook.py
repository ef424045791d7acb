"""Runs, cells, layers and prompts in a notebook: HTML with its own style and no script. The templates are in notebook.html.

Text of the corpus may be hostile: the template escapes every string, and control and direction characters become visible
signs. Charts are Altair's, in the style of the report.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from markupsafe import Markup

from ..cells import plain_address
from ..common import output
from ..errors import RunError
from ..store import shading, values
from ..store.run import Cell, Layer, Run, Trigger
from . import firing, kinds, patterns
from .palette import HUES, rgb
from .text import blank, model_name, number, other_side, parts, safe, share
from .worth import worth_showing

if TYPE_CHECKING:
    from .figures import Chart

TRIGGERS, NEGATIVE, TOKENS, CELLS, CONTRIBUTIONS = 10, 4, 10, 20, 3
"""Upper bounds on what is shown: triggers of each side, tokens of each end of a value, cells of a layer, cells of a prompt's
layer."""
BEGIN = 6
"""Cells that a run offers to begin with."""
BEFORE = 48
"""Characters shown before the last token of a layer's triggers."""


def html(macro: str, *views: Any) -> str:
    """What a macro of notebook.html makes of these values."""
    return str(getattr(_template(), macro)(*views))


@cache
def _template() -> Any:
    folder = resources.files(__package__)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=safe)
    style = Template((folder / "notebook.css").read_text("utf-8")).substitute(HUES)
    environment.globals |= {"style": Markup(style), "share": _share, "blank": blank}
    return environment.from_string(parts() + (folder / "notebook.html").read_text("utf-8")).module


def _share(p: float | None) -> str:
    return "–" if p is None else f"{p:.1%}"


# A run


def run(run: Run) -> str:
    """What was scanned, what was analyzed, and cells to begin with."""
    from ..analyses.measured import missing

    corpus, config = run.manifest["corpus"], run.manifest["config"]
    said = next((values.Values(run, lens) for lens in values.available(run)), None)
    cells = [run[address] for address in worth_showing(run, BEGIN)]
    view = {
        "model": model_name(run),
        "path": str(run.path),
        "facts": [
            ("Cells", f"{run.cells.summary}; {np.count_nonzero(run.stats.dead):,} dead"),
            ("Corpus", ", ".join(os.path.basename(os.path.normpath(str(source))) for source in corpus["sources"])),
            (
                "Text",
                f"{corpus['documents']:,} documents, {corpus['units']:,} {config['unit']}s, {corpus['tokens']:,} tokens",
            ),
            ("Scanned", f"{corpus['scanned_prefixes']:,} distinct prefixes; {run.top} triggers per key and side"),
        ],
        "missing": ", ".join(missing(run)),
        "said": said is not None,
        "example": cells[0].address if cells else run.cells.address(0),
        "rows": [_row(cell, said) for cell in cells],
    }
    return html("run", view)


def _row(cell: Cell, said: values.Values | None) -> dict[str, Any]:
    """A cell in a table: its strongest trigger, and what its value promotes."""
    before, last = next((_tail(trigger) for trigger in cell.triggers[:1]), ("", None))
    return {
        "address": cell.address,
        "before": before,
        "last": last,
        "promotes": [token.piece for token in said.promoted(cell.layer, cell.index, 3)] if said else [],
    }


# A cell


def cell(cell: Cell) -> str:
    """What makes the key fire, and what the value says."""
    run, stats = cell.run, cell.stats
    sides = [
        ("Triggers", cell.triggers, False, TRIGGERS),
        (f"Triggers of {other_side(run)}, where the cell writes −value", cell.triggers_negative, True, NEGATIVE),
    ]
    shared = patterns.of_cell(cell)
    carried = {each.negative: each.carried for each in shared}
    view = {
        "address": cell.address,
        "model": model_name(run),
        "layer": cell.layer,
        "layers": run.layers,
        "firing": "; ".join(firing.said(cell)),
        "turned": cell.orientation < 0,
        "values": [_value(cell, lens) for lens in values.available(run)],
        "sides": [
            (
                title,
                len(triggers),
                [
                    _trigger(cell, slot, each, negative, carried.get(negative, {}).get(slot, ""))
                    for slot, each in enumerate(triggers[:most])
                ],
            )
            for title, triggers, negative, most in sides
            if triggers
        ],
        "dead": not cell.triggers,
        "kinds": kinds.said(cell),
        "gate": kinds.gate(cell),
        "patterns": [each._asdict() for each in shared],
    }
    return html("cell", view | {each: number(stats[each], ".3g") for each in ("mean", "max", "min")})


def _trigger(cell: Cell, slot: int, trigger: Trigger, negative: bool, carries: str = "") -> dict[str, Any]:
    run = cell.run
    ids = run.unit_tokens(trigger.unit)
    begin, end = shading.shown(len(ids), trigger.position, run.room)
    shades = shading.of(run)
    row = None if shades is None else shades.row(cell.layer, cell.index, slot, negative)
    tokens = [
        {
            "piece": run.vocabulary.piece(int(token)),
            "last": at == trigger.position,
            "after": at > trigger.position,
            "shade": None if row is None else _shade(int(row[at - begin])),
        }
        for at, token in enumerate(ids[begin:end].tolist(), begin)
    ]
    return {
        "coefficient": number(trigger.coefficient, ".3g"),
        "tokens": tokens,
        "cut_before": begin > 0,
        "cut_after": end < len(ids),
        "count": trigger.count,
        "carries": carries,
    }


def _shade(shade: int) -> str | None:
    """A colour: that of firing if the coefficient is above zero, else that of the opposite."""
    if abs(shade) < 4:
        return None
    return f"{rgb('fire' if shade > 0 else 'chill')},{min(1.0, abs(shade) / shading.LARGEST) * 0.55:.2f}"


def _value(cell: Cell, lens: str) -> dict[str, Any]:
    said, at = values.Values(cell.run, lens), (cell.layer, cell.index)
    return {
        "lens": lens,
        "norm": number(said.norms[cell.place], ".3g"),
        "max_prob": share(said.max_prob[cell.place]),
        "sides": _bars({"promotes": said.promoted(*at, TOKENS), "demotes": said.demoted(*at, TOKENS)}),
    }


def _bars(sides: dict[str, list[values.Said]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Tokens with bars, all on one scale."""
    most = max(
        (size for said in sides.values() for token in said if math.isfinite(size := abs(token.logit))), default=0
    )
    return [
        (
            title,
            [
                {
                    "piece": token.piece,
                    "logit": number(token.logit, ".2f"),
                    "kind": "unsay" if title == "demotes" else "say",
                    "length": f"{5 * abs(token.logit) / (most or 1.0):.2f}" if math.isfinite(token.logit) else "0",
                }
                for token in said
            ],
        )
        for title, said in sides.items()
    ]


def cell_chart(cell: Cell) -> Chart:
    """The cell's coefficients over a random sample of the corpus' prefixes."""
    import altair as alt

    found = shading.histogram(cell.run, cell.layer, cell.index)
    if found is None:
        raise RunError(
            f"{cell.address} has no histogram: its coefficient never changes, or the run has none yet. Fill them: "
            f"keyhole analyze {cell.run.path} --only shading"
        )
    edges, counts, n = found
    rows = [
        {"from": float(a), "to": float(b), "prefixes": int(count)}
        for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(binSpacing=0.5)
        .encode(
            x=alt.X("from:Q", title="coefficient", bin="binned"),
            x2="to:Q",
            y=alt.Y("prefixes:Q", title="prefixes", scale=alt.Scale(type="sqrt")),
            tooltip=["from:Q", "to:Q", "prefixes:Q"],
        )
    )
    return _finish(cell.run, bars, f"{cell.address}, {n:,} prefixes")


def _finish(run: Run, chart: Any, title: str) -> Chart:
    from ..analyses.measured import shape_of
    from .figures import Look

    look = Look(shape_of(run))
    chart.mark.color = look.palette.blue
    finished: Chart = look.finish(chart).properties(title=title)
    return finished


# A layer


def layer(layer: Layer) -> str:
    """The cells with the largest coefficients, and what they say."""
    run, stats = layer.run, layer.stats
    strongest = np.argsort(-stats.max, kind="stable")[:CELLS].tolist()
    said = next((values.Values(run, lens) for lens in values.available(run)), None)
    labels = patterns.labels(run, ((layer.index, index) for index in strongest))
    often = firing.often(layer)
    rows = []
    for index in strongest:
        row = {
            "often": often.of(index),
            "max": number(stats.max[index], ".3g"),
            "label": labels.get((layer.index, index), ""),
        }
        rows.append(_row(layer[index], said) | row)
    view = {
        "layer": layer.index,
        "layers": run.layers,
        "model": model_name(run),
        "often": often.mean,
        "measure": often.title,
        "column": often.name,
        "dead": f"{np.count_nonzero(stats.dead):,}",
        "cells": f"{len(layer):,}",
        "said": said is not None,
        "labelled": bool(labels),
        "rows": rows,
    }
    return html("layer", view)


def _tail(trigger: Trigger) -> tuple[str, str]:
    """The end of the text before the last token, and the last token."""
    before = "".join(trigger.tokens[:-1])
    return ("…" if len(before) > BEFORE else "") + before[-BEFORE:], trigger.tokens[-1]


def layer_chart(layer: Layer) -> Chart:
    """Every cell of the layer: how often its key fires (without shading: how far its strongest coefficient stands out), and how
    strongly at most."""
    import altair as alt

    run, number, stats, often = layer.run, layer.index, layer.stats, firing.often(layer)
    rows = [
        {"cell": cell.address, "often": output.plain(value), "largest": output.plain(most)}
        for cell, value, most in zip(layer, often.numbers, stats.max, strict=True)
    ]
    dots = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_circle(size=18, opacity=0.5)
        .encode(
            x=alt.X("often:Q", title=often.title, axis=alt.Axis(format=often.axis)),
            y=alt.Y("largest:Q", title="largest coefficient"),
            tooltip=[
                "cell:N",
                alt.Tooltip("often:Q", title=often.name, format=often.form),
                alt.Tooltip("largest:Q", format=".3~g"),
            ],
        )
    )
    return _finish(run, dots, f"layer {number}, {len(layer):,} cells")


# A prompt


def prompt(view: dict[str, Any]) -> str:
    """A text, read layer by layer: what `PromptView.to_json()` gives."""
    layers = [
        {
            "layer": each["layer"],
            "before": each["before"],
            "after": each["after"],
            "strongest": _contributions(each, "strongest", "strength"),
            "effective": _contributions(each, "effective", "effect"),
        }
        for each in view["layers"]
    ]
    return html("prompt", view, layers)


def _contributions(layer: dict[str, Any], order: str, measure: str) -> list[tuple[str, str]]:
    return [
        (plain_address(layer["layer"], one["cell"]), "–" if one[measure] is None else f"{one[measure]:.2f}")
        for one in layer[order][:CONTRIBUTIONS]
    ]
