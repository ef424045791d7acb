"""The paper's figures as Altair charts: rows of a table in, a chart out, intervals and baselines drawn.

A chart takes its colours from a palette: plain ones for notebooks and files, the page's own variables for the page, so
that one chart follows the reader's light or dark.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from ..analyses.verdicts import Row, Rows, main_lens, present, wilson
from ..common import files
from ..errors import RunError
from ..store import layout as store

Chart = alt.LayerChart
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
WIDTH, HEIGHT = 560, 250


@dataclass(frozen=True)
class Palette:
    """The colours of a chart."""

    ink: str = "#3b3a37"
    rule: str = "#e4e1da"
    quiet: str = "#8b877d"
    faint: str = "#b9b4a8"
    blue: str = "#2b5f8f"
    orange: str = "#bf6420"
    green: str = "#4f8062"
    sky: str = "#9cbfdc"
    red: str = "#8c3440"


LIGHT = Palette()
PAGE = Palette(**{field.name: f"var(--{field.name})" for field in fields(Palette)})


@dataclass(frozen=True)
class Look:
    """What the charts of a run share."""

    layers: int
    vocabulary: int
    palette: Palette = LIGHT

    def x(self, column: str = "layer", pad: float = 0.0) -> alt.X:
        """The layers, from 0, as many labels as there is room for."""
        pad = pad if self.layers > 1 else 0.5
        return alt.X(
            f"{column}:Q",
            title="layer",
            scale=alt.Scale(domain=[-pad, self.layers - 1 + pad], nice=False, padding=0 if pad else 6),
            axis=alt.Axis(grid=False, tickMinStep=1, format="d"),
        )

    def every_layer(self, series: str, value: float) -> list[Row]:
        """A baseline that is the same in every layer."""
        pad = 0 if self.layers > 1 else 0.5
        return [{"layer": layer, "series": series, "value": value} for layer in (-pad, self.layers - 1 + pad)]

    def finish(self, *marks: alt.Chart) -> Chart:
        palette = self.palette
        chart: Chart = (
            alt.layer(*marks)
            .properties(width=WIDTH, height=HEIGHT)
            .configure(font=FONT, background="transparent" if palette is PAGE else "white")
            .configure_view(stroke=None)
            .configure_axis(
                labelColor=palette.ink,
                titleColor=palette.ink,
                domainColor=palette.quiet,
                tickColor=palette.quiet,
                gridColor=palette.rule,
                labelFontSize=11,
                titleFontSize=11.5,
                titleFontWeight="normal",
            )
            .configure_axisY(
                domain=False,
                ticks=False,
                tickCount=5,
                titleAngle=0,
                titleAnchor="end",
                titleAlign="left",
                titleBaseline="bottom",
                titleX=-30,
                titleY=-9,
            )
            .configure_legend(
                orient="top",
                title=None,
                columns=2,
                labelColor=palette.ink,
                labelFontSize=11.5,
                labelLimit=300,
                symbolType="square",
                symbolSize=70,
                symbolStrokeWidth=0,
                symbolOpacity=1,
                offset=30,
                rowPadding=2,
                columnPadding=18,
            )
        )
        return chart


def _chart(rows: Sequence[Row]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=list(rows)))


def _colour(colours: dict[str, str]) -> alt.Color:
    """A colour for each series. One series alone needs no legend: the axis says what it is."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("series:N", scale=scale, legend=alt.Legend() if len(colours) > 1 else None)


def _tips(form: str, *extra: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title="what"),
        alt.Tooltip("layer:Q", title="layer", format="d"),
        alt.Tooltip("value:Q", title="value", format=form),
        alt.Tooltip("lo:Q", title="from", format=form),
        alt.Tooltip("hi:Q", title="to", format=form),
        *(alt.Tooltip(f"{name}:Q", title=name, format=",d") for name in extra),
    ]


def _point(row: Row, series: str, value: float, lo: float | None, hi: float | None) -> Row:
    lo, hi = (value if end is None else end for end in (lo, hi))
    return {"layer": row["layer"], "n": row["n"], "series": series, "value": value, "lo": lo, "hi": hi}


def _rate(row: Row, series: str, value: float) -> Row:
    """A rate whose interval is not in the table: Wilson's."""
    lo, hi = wilson(value, row["n"])
    return _point(row, series, value, lo, hi)


def _lines(
    look: Look,
    title: str,
    points: Sequence[Row],
    colours: dict[str, str],
    *,
    baselines: Sequence[Row] = (),
    wide: Sequence[Row] = (),
    axis: alt.Axis | None = None,
    tip: str = ".2%",
    scale: alt.Scale | None = None,
) -> Chart:
    """Series over the layers, each with its interval as a band; baselines dashed. `wide` is an outer, fainter band."""
    x, colour = look.x(), _colour(colours)
    axis, scale = axis or alt.Axis(format="%"), scale or alt.Scale()
    y = alt.Y("value:Q", title=title, axis=axis, scale=scale)
    marks = []
    for rows, opacity in ((wide, 0.12), (points, 0.2)):
        if rows:
            band = _chart(rows).mark_area(opacity=opacity)
            low = alt.Y("lo:Q", title=title, axis=axis, scale=scale)
            marks.append(band.encode(x=x, y=low, y2="hi:Q", color=colour))
    if baselines:
        marks.append(_chart(baselines).mark_line(strokeDash=[5, 3], strokeWidth=1.4).encode(x=x, y=y, color=colour))
    marks.append(_chart(points).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour))
    dots = _chart(points).mark_point(filled=True, opacity=1, size=24 if look.layers <= 40 else 10)
    marks.append(dots.encode(x=x, y=y, color=colour, tooltip=_tips(tip, "n")))
    return look.finish(*marks)


def _powers(low: float, high: float) -> list[float]:
    """Where a logarithmic axis is labelled: powers of ten, and between them where there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**e for e in exponents if low <= 10.0**e <= high]
    return tens if len(tens) > 2 else [f * 10.0**e for e in exponents for f in (1, 2, 5) if low <= f * 10.0**e <= high]


# One function a figure


def mutation(rows: Rows, look: Look) -> Chart:
    p = look.palette
    colours = {"last": p.blue, "random": p.green, "first": p.orange}
    names = {kind: f"{kind} token dropped" for kind in colours}
    points = [_point(r, names[r["dropped"]], r["mean_change"], r["lo"], r["hi"]) for r in rows if r["dropped"] in names]
    shown = {names[kind]: colour for kind, colour in colours.items()} | {"no change": p.quiet}
    baseline = look.every_layer("no change", 0.0)
    return _lines(look, "change of the coefficient", points, shown, baselines=baseline, tip=".1%")


def agreement(rows: Rows, look: Look) -> Chart:
    p = look.palette
    lens = main_lens(rows)
    points, colours = [], {}
    for target, colour in (("next", p.blue), ("last", p.orange)):
        for r in rows:
            if r["target"] == target and r["lens"] == lens:
                series = f"{target} token"
                colours[series] = colour
                points.append(_point(r, series, r["rate"], r["lo"], r["hi"]))
    other = next((r["lens"] for r in rows if r["lens"] != lens), None)
    for r in rows:
        if r["lens"] == other and r["target"] == "next":
            series = f"next token, {other} lens"
            colours[series] = p.green
            points.append(_point(r, series, r["rate"], r["lo"], r["hi"]))
    baselines = []
    for column, series, colour in (
        ("permuted", "baseline: values dealt out anew", p.quiet),
        ("unigram", "baseline: a token drawn by frequency", p.faint),
    ):
        for r in present(rows, column):
            if r["target"] == "next" and r["lens"] == lens:
                colours[series] = colour
                baselines.append({"layer": r["layer"], "series": series, "value": r[column]})
    return _lines(look, "agreement", points, colours, baselines=baselines, axis=alt.Axis(format="~%"), tip=".3~%")


def rank(rows: Rows, look: Look) -> Chart:
    p = look.palette
    lens = main_lens(rows)
    rows = [r for r in rows if r["lens"] == lens]
    series, chance = "median rank, with the middle 50 % and 90 %", "baseline: a random order"

    def at(r: Row, low: str, high: str) -> Row:
        return _point(r, series, max(1.0, r["median"]), max(1.0, r[low]), max(1.0, r[high]))

    return _lines(
        look,
        "rank of the next token",
        [at(r, "p25", "p75") for r in rows],
        {series: p.blue, chance: p.quiet},
        wide=[at(r, "p5", "p95") for r in rows],
        baselines=look.every_layer(chance, max(1.0, (look.vocabulary + 1) / 2)),
        axis=alt.Axis(format="~s", values=_powers(1, look.vocabulary)),
        tip=",.0f",
        scale=alt.Scale(type="log", domain=[1, max(2, look.vocabulary)], nice=False),
    )


def confidence(rows: Rows, look: Look) -> Chart:
    """Each bin as wide as it is, its rate with an interval; a logarithmic axis where the bins ask for it."""
    p = look.palette
    series, overall = "agreement in the bin", "baseline: all values"
    low, high = min(r["max_prob_lo"] for r in rows), max(r["max_prob_hi"] for r in rows)
    smallest = min((r["max_prob_hi"] for r in rows if r["max_prob_hi"] > 0), default=1.0)
    logarithmic = smallest < high / 50
    start = (low or smallest / 3) if logarithmic else low
    points = []
    for r in rows:
        a, b = max(r["max_prob_lo"], start), r["max_prob_hi"]
        lo, hi = wilson(r["rate"], r["n"])
        middle = (a * b) ** 0.5 if logarithmic else (a + b) / 2
        points.append(
            {"series": series, "a": a, "b": b, "x": middle, "value": r["rate"], "lo": lo, "hi": hi, "n": r["n"]}
        )
    total = sum(r["n"] for r in rows)
    mean = sum(r["rate"] * r["n"] for r in rows) / total
    level = [{"series": overall, "x": x, "value": mean} for x in (start, high)]
    colour = _colour({series: p.blue, overall: p.quiet})

    def x(column: str) -> alt.X:
        scale = alt.Scale(type="log" if logarithmic else "linear", domain=[start, high], nice=False)
        axis = alt.Axis(grid=False, tickCount=6, format="~g")
        if logarithmic:
            axis = alt.Axis(grid=False, values=_powers(start, high), format="~g")
        return alt.X(f"{column}:Q", title="largest probability of the value, max(p)", scale=scale, axis=axis)

    y = alt.Y("value:Q", title="agreement", axis=alt.Axis(format="~%"))
    low_end = alt.Y("lo:Q", title="agreement", axis=alt.Axis(format="~%"))
    tips = [
        alt.Tooltip("a:Q", title="max(p) from", format=".2~g"),
        alt.Tooltip("b:Q", title="to", format=".2~g"),
        alt.Tooltip("value:Q", title="agreement", format=".2%"),
        alt.Tooltip("lo:Q", title="from", format=".2%"),
        alt.Tooltip("hi:Q", title="to ", format=".2%"),
        alt.Tooltip("n:Q", title="values", format=",d"),
    ]
    return look.finish(
        _chart(level).mark_line(strokeDash=[5, 3], strokeWidth=1.4).encode(x=x("x"), y=y, color=colour),
        _chart(points)
        .mark_bar(opacity=0.2)
        .encode(x=x("a"), x2="b:Q", y=low_end, y2="hi:Q", color=colour, tooltip=tips),
        _chart(points).mark_rule(strokeWidth=2.2).encode(x=x("a"), x2="b:Q", y=y, color=colour, tooltip=tips),
    )


def active(rows: Rows, look: Look) -> Chart:
    p = look.palette
    series, half = "active cells", "baseline: random signs"
    points = [_rate(r, series, r["active_fraction"]) for r in rows]
    return _lines(
        look,
        "coefficients above zero",
        points,
        {series: p.blue, half: p.quiet},
        baselines=look.every_layer(half, 0.5),
        tip=".1%",
        scale=alt.Scale(domainMin=0),
    )


def activity(rows: Rows, look: Look) -> Chart:
    p = look.palette
    series, half = "active cells, whole corpus", "baseline: random signs"
    points = [_point(r, series, r["active_fraction"], r["lo"], r["hi"]) | {"dead": r["dead"]} for r in rows]
    return _lines(
        look,
        "coefficients above zero",
        points,
        {series: p.blue, half: p.quiet},
        baselines=look.every_layer(half, 0.5),
        tip=".1%",
        scale=alt.Scale(domainMin=0),
    )


def zero_agreement(rows: Rows, look: Look) -> Chart:
    p = look.palette
    series, paper = "no active cell agrees with the layer", "the paper's lowest layer, 68 %"
    return _lines(
        look,
        "share of prefixes",
        [_point(r, series, r["zero_agreement"], r["lo"], r["hi"]) for r in rows],
        {series: p.blue, paper: p.quiet},
        baselines=look.every_layer(paper, 0.68),
        tip=".1%",
        scale=alt.Scale(domain=[0, 1]),
    )


def residual_match(rows: Rows, look: Look) -> Chart:
    p = look.palette
    series, chance = "the residual's top token is the model's", "baseline: one token in the vocabulary"
    points = [_rate(r, series, r["residual_match"]) for r in rows]
    return _lines(
        look,
        "share of prefixes",
        points,
        {series: p.blue, chance: p.quiet},
        baselines=look.every_layer(chance, 1 / max(1, look.vocabulary)),
        tip=".1%",
        scale=alt.Scale(domain=[0, 1]),
    )


def final_probability(rows: Rows, look: Look) -> Chart:
    p = look.palette
    series, chance = "median, with the middle 50 %", "baseline: one token in the vocabulary"
    points = [_point(r, series, r["final_prob_median"], r["final_prob_p25"], r["final_prob_p75"]) for r in rows]
    return _lines(
        look,
        "probability of the final token",
        points,
        {series: p.blue, chance: p.quiet},
        baselines=look.every_layer(chance, 1 / max(1, look.vocabulary)),
        axis=alt.Axis(format=".1f"),
        tip=".3f",
        scale=alt.Scale(domain=[0, 1]),
    )


def shares(rows: Rows, look: Look) -> Chart:
    """Stacked bars; the whisker is the interval of the line between what stands and what changes."""
    p = look.palette
    colours = {
        "residual: r stands, y differs": p.blue,
        "agreement: all equal": p.sky,
        "composition: a third token": p.orange,
        "ffn: y replaces r": p.red,
    }
    columns = ("residual", "agreement", "composition", "ffn")
    bars, whiskers = [], []
    for r in rows:
        base = 0.0
        for column, series in zip(columns, colours, strict=True):
            edges = {"left": r["layer"] - 0.42, "right": r["layer"] + 0.42, "y0": base, "y1": base + r[column]}
            bars.append(_rate(r, series, r[column]) | edges)
            base += r[column]
        lo, hi = wilson(min(1.0, r["residual"] + r["agreement"]), r["n"])
        whiskers.append({"layer": r["layer"], "lo": lo, "hi": hi})
    x, left = look.x(pad=0.5), look.x("left", pad=0.5)

    def y(column: str) -> alt.Y:
        return alt.Y(
            f"{column}:Q", title="share of prefixes", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
        )

    bar = _chart(bars).mark_bar().encode(x=left, x2="right:Q", y=y("y0"), y2="y1:Q", color=_colour(colours))
    whisker = _chart(whiskers).mark_rule(strokeWidth=1.2, color=p.ink)
    return look.finish(bar.encode(tooltip=_tips(".1%", "n")), whisker.encode(x=x, y=y("lo"), y2="hi:Q"))


@dataclass(frozen=True)
class Figure:
    """Where a figure's numbers are, and how it is drawn from the rows that have them all."""

    table: str
    columns: tuple[str, ...]
    make: Callable[[Rows, Look], Chart]


FIGURES = {
    "mutation": Figure("mutation", ("mean_change",), mutation),
    "agreement": Figure("agreement", ("rate", "lo", "hi"), agreement),
    "rank": Figure("rank", ("p5", "p25", "median", "p75", "p95"), rank),
    "confidence": Figure("confidence", ("max_prob_lo", "max_prob_hi", "rate", "n"), confidence),
    "active": Figure("composition", ("active_fraction", "n"), active),
    "activity": Figure("activity", ("active_fraction", "lo", "hi"), activity),
    "zero_agreement": Figure("composition", ("zero_agreement", "lo", "hi"), zero_agreement),
    "residual_match": Figure("refinement", ("residual_match", "n"), residual_match),
    "final_probability": Figure(
        "refinement", ("final_prob_p25", "final_prob_median", "final_prob_p75"), final_probability
    ),
    "shares": Figure("refinement", ("residual", "agreement", "composition", "ffn", "n"), shares),
}


def draw(tables: dict[str, list[Row] | None], look: Look) -> dict[str, Chart]:
    """Every figure whose table has numbers."""
    charts = {}
    for name, figure in FIGURES.items():
        if rows := present(tables.get(figure.table) or [], *figure.columns):
            charts[name] = figure.make(rows, look)
    return charts


def spec(chart: Chart, *, page: bool = False) -> dict[str, Any]:
    """The chart's Vega-Lite specification; on a page as wide as its place."""
    made: dict[str, Any] = chart.to_dict()
    if page:
        made |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return made


def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Making it takes seconds, during which Python stands still: it is kept in
    the cache folder, where there is one."""
    with _bundling:
        return _bundle()


_bundling = threading.Lock()


@cache
def _bundle() -> str:
    made_by = f"{metadata.version('vl-convert-python')}-{vega_lite()}"
    try:
        kept: Path | None = store.cache_dir() / f"vega-{made_by}.js"
    except RunError:  # no home folder, hence no cache
        kept = None
    if kept:
        with contextlib.suppress(OSError, ValueError):
            text, _, ending = kept.read_text("utf-8").rpartition("\n")
            if ending == f"// {hashlib.sha256(text.encode()).hexdigest()}":
                return text
    text = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite())).replace("\r", "")
    ending = f"// {hashlib.sha256(text.encode()).hexdigest()}"
    if kept:
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            files.replace_bytes(kept, f"{text}\n{ending}".encode(), alone=False)
    return text


def vega_lite() -> str:
    """The Vega-Lite that the charts are written for, in the spelling of vl_convert; its newest where it lacks that one."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    return str(wanted if wanted in known else known[-1])
