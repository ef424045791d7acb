"""Figures as Altair charts: what a record says of a figure and the rows of its table → a chart with intervals and baselines.

A chart takes its colours from a palette: fixed colours for notebooks and files, CSS variables for the page, so that the same
chart follows the reader's light or dark mode.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from ..analyses import registry
from ..analyses.beside import Other
from ..analyses.measured import Measured
from ..analyses.record import Bins, Curves, Figure, Lines, Row, Rows, Series, Shape, Stack, Verdict, present
from ..analyses.stats import rate_interval
from ..common import files
from ..errors import RunError
from ..store import layout

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


DASHES = ([2, 2], [7, 3], [7, 2, 2, 2], [1, 4])
"""How the lines of other runs are dashed, in their order."""
THIS = "this run"

LIGHT = Palette()
PAGE = Palette(**{field.name: f"var(--{field.name})" for field in fields(Palette)})


@dataclass(frozen=True)
class Beside:
    """What another run has for the same figure."""

    name: str
    rows: Rows
    shape: Shape


@dataclass(frozen=True)
class Look:
    """What the charts of a run share."""

    shape: Shape
    palette: Palette = LIGHT

    @property
    def layers(self) -> int:
        return self.shape.layers

    def colour(self, name: str) -> str:
        return str(getattr(self.palette, name))

    def x(self, column: str = "layer", pad: float = 0.0) -> alt.X:
        """The layers, from 0, with as many labels as there is room for."""
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


def plotted(rows: Sequence[Row]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=list(rows)))


def coloured(colours: dict[str, str]) -> alt.Color:
    """A colour for each series. A single series needs no legend: the axis says what it is."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("series:N", scale=scale, legend=alt.Legend() if len(colours) > 1 else None)


def _dashes(names: list[str], look: Look) -> alt.StrokeDash:
    """The dashes of each run, with a legend below the chart."""
    scale = alt.Scale(domain=[THIS, *names], range=[[1, 0], *DASHES[: len(names)]])
    legend = alt.Legend(
        orient="bottom",
        columns=1,
        symbolType="stroke",
        symbolStrokeWidth=1.6,
        symbolStrokeColor=look.palette.ink,
        symbolSize=500,
        offset=6,
    )
    return alt.StrokeDash("run:N", title=None, scale=scale, legend=legend)


def _tips(form: str, *extra: str, layer: str = "layer") -> list[alt.Tooltip]:
    return [
        alt.Tooltip("series:N", title="what"),
        alt.Tooltip(f"{layer}:Q", title="layer", format="d"),
        alt.Tooltip("value:Q", title="value", format=form),
        alt.Tooltip("lo:Q", title="from", format=form),
        alt.Tooltip("hi:Q", title="to", format=form),
        *(alt.Tooltip(f"{name}:Q", title=name, format=",d") for name in extra),
    ]


def powers(low: float, high: float) -> list[float]:
    """Where a logarithmic axis is labelled: at powers of ten, and between them if there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**e for e in exponents if low <= 10.0**e <= high]
    return tens if len(tens) > 2 else [f * 10.0**e for e in exponents for f in (1, 2, 5) if low <= f * 10.0**e <= high]


# Lines over the layers


def selected(rows: Rows, where: Any) -> list[Row]:
    return [row for row in rows if all(row[column] == wanted for column, wanted in where.items())]


def _points(rows: Rows, series: Series, band: Any, least: float) -> list[Row]:
    """A point per row: its value and its interval, none of them below `least`. Without an interval the value stands for it."""
    points = []
    for row in selected(rows, series.where):
        value = row[series.y]
        if band == "wilson":
            ends = list(rate_interval(value, row["n"]))
        else:
            ends = [row[column] for column in band or ()] or [value, value]
        low, high = (value if end is None or math.isnan(end) else end for end in ends)
        point = {"layer": row["layer"], "n": row.get("n"), "series": series.name, "value": max(least, value)}
        points.append(point | {"lo": max(least, low), "hi": max(least, high)})
    return points


def _every(mark: Lines, rows: Rows) -> Sequence[Series]:
    return mark.series(rows) if callable(mark.series) else mark.series


def _drawn(mark: Lines, rows: Rows) -> list[Row]:
    """The rows that have every number that the chart needs."""
    every = _every(mark, rows)
    needed = {series.y for series in every} | ({"n"} if any(series.band == "wilson" for series in every) else set())
    return present(rows, *needed)


def _moved(layer: float, own: int, layers: int) -> float:
    """Where a layer of a run with `own` layers is drawn on an axis of `layers`: at the same relative depth."""
    return layer if own == layers else layer / max(1, own - 1) * (layers - 1)


def _lines(mark: Lines, rows: Rows, look: Look, others: Sequence[Beside] = ()) -> Chart:
    """Series over the layers, each with its interval as a band; baselines dashed. The series of other runs are thinner, in the
    same colours, each run with dashes of its own."""
    shape, least = look.shape, mark.low if mark.log and mark.low is not None else -math.inf
    every = _every(mark, rows)
    levels = mark.baselines(rows) if callable(mark.baselines) else mark.baselines
    colours: dict[str, str] = {}
    points: list[Row] = []
    wide: list[Row] = []
    level: list[Row] = []
    for series in every:
        if found := _points(rows, series, series.band, least):
            colours[series.name] = look.colour(series.colour)
            points += found
            wide += _points(rows, series, series.outer, least) if series.outer else []
    for baseline in levels:
        if isinstance(baseline.value, str):
            known = present(selected(rows, baseline.where), baseline.value)
            found = [{"layer": r["layer"], "series": baseline.name, "value": r[baseline.value]} for r in known]
        else:
            value = baseline.value(shape) if callable(baseline.value) else baseline.value
            found = look.every_layer(baseline.name, max(least, value))
        if found:
            colours[baseline.name] = look.colour(baseline.colour)
            level += found
    further: list[Row] = []
    for other in others:
        known = _drawn(mark, other.rows)
        for series in _every(mark, known):
            if found := _points(known, series, series.band, least):
                colours.setdefault(series.name, look.colour(series.colour))
                further += [
                    {
                        **point,
                        "run": other.name,
                        "own": point["layer"],
                        "layer": _moved(point["layer"], other.shape.layers, look.layers),
                    }
                    for point in found
                ]
    shapes = [shape, *(other.shape for other in others)]
    high = max(map(mark.high, shapes)) if callable(mark.high) else mark.high
    axis, scale = alt.Axis(format=mark.format), alt.Scale()
    if mark.log and mark.low is not None and high is not None:
        axis = alt.Axis(format=mark.format, values=powers(mark.low, high))
        scale = alt.Scale(type="log", domain=[mark.low, high], nice=False)
    elif mark.low is not None and high is not None:
        scale = alt.Scale(domain=[mark.low, high])
    elif mark.low is not None:
        scale = alt.Scale(domainMin=mark.low)
    return _layered(mark, look, points, wide, level, further, colours, axis, scale)


def _layered(
    mark: Lines,
    look: Look,
    points: list[Row],
    wide: list[Row],
    level: list[Row],
    further: list[Row],
    colours: dict[str, str],
    axis: alt.Axis,
    scale: alt.Scale,
) -> Chart:
    x, colour, title = look.x(), coloured(colours), mark.y_title
    y = alt.Y("value:Q", title=title, axis=axis, scale=scale)
    marks = []
    for rows, opacity in ((wide, 0.12), (points, 0.2)):
        if rows:
            band = plotted(rows).mark_area(opacity=opacity)
            low = alt.Y("lo:Q", title=title, axis=axis, scale=scale)
            marks.append(band.encode(x=x, y=low, y2="hi:Q", color=colour))
    if level:
        marks.append(plotted(level).mark_line(strokeDash=[5, 3], strokeWidth=1.4).encode(x=x, y=y, color=colour))
    if further:
        dash = _dashes(list(dict.fromkeys(point["run"] for point in further)), look)
        tips = [alt.Tooltip("run:N", title="run"), *_tips(mark.tooltip, "n", layer="own")]
        line = plotted(further).mark_line(strokeWidth=1.3, opacity=0.9)
        marks.append(line.encode(x=x, y=y, color=colour, strokeDash=dash))
        dots = plotted(further).mark_point(filled=True, opacity=0.01, size=40)  # only to point at
        marks.append(dots.encode(x=x, y=y, color=colour, tooltip=tips))
        points = [{**point, "run": THIS} for point in points]
        marks.append(plotted(points).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour, strokeDash=dash))
    else:
        marks.append(plotted(points).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour))
    dots = plotted(points).mark_point(filled=True, opacity=1, size=24 if look.layers <= 40 else 10)
    marks.append(dots.encode(x=x, y=y, color=colour, tooltip=_tips(mark.tooltip, "n")))
    return look.finish(*marks)


# Bins, and stacked bars


def _bins(mark: Bins, rows: Rows, look: Look) -> Chart:
    """Each bin as wide as it is, its rate with an interval; a logarithmic axis if the bins span that much."""
    low, high = min(r[mark.lo] for r in rows), max(r[mark.hi] for r in rows)
    smallest = min((r[mark.hi] for r in rows if r[mark.hi] > 0), default=1.0)
    logarithmic = smallest < high / 50
    start = (low or smallest / 3) if logarithmic else low
    points = []
    for r in rows:
        a, b = max(r[mark.lo], start), r[mark.hi]
        lo, hi = rate_interval(r[mark.y], r["n"])
        middle = (a * b) ** 0.5 if logarithmic else (a + b) / 2
        points.append(
            {"series": mark.name, "a": a, "b": b, "x": middle, "value": r[mark.y], "lo": lo, "hi": hi, "n": r["n"]}
        )
    total = sum(r["n"] for r in rows)
    mean = sum(r[mark.y] * r["n"] for r in rows) / total if total else 0.0
    level = [{"series": mark.overall, "x": x, "value": mean} for x in (start, high)]
    colour = coloured({mark.name: look.palette.blue, mark.overall: look.palette.quiet})

    def x(column: str) -> alt.X:
        scale = alt.Scale(type="log" if logarithmic else "linear", domain=[start, high], nice=False)
        axis = alt.Axis(grid=False, tickCount=6, format="~g")
        if logarithmic:
            axis = alt.Axis(grid=False, values=powers(start, high), format="~g")
        return alt.X(f"{column}:Q", title=mark.x_title, scale=scale, axis=axis)

    y = alt.Y("value:Q", title=mark.y_title, axis=alt.Axis(format="~%"))
    low_end = alt.Y("lo:Q", title=mark.y_title, axis=alt.Axis(format="~%"))
    tips = [
        alt.Tooltip("a:Q", title=f"{mark.x_name} from", format=".2~g"),
        alt.Tooltip("b:Q", title="to", format=".2~g"),
        alt.Tooltip("value:Q", title=mark.y_title, format=".2%"),
        alt.Tooltip("lo:Q", title="from", format=".2%"),
        alt.Tooltip("hi:Q", title="to ", format=".2%"),
        alt.Tooltip("n:Q", title=mark.noun, format=",d"),
    ]
    return look.finish(
        plotted(level).mark_line(strokeDash=[5, 3], strokeWidth=1.4).encode(x=x("x"), y=y, color=colour),
        plotted(points)
        .mark_bar(opacity=0.2)
        .encode(x=x("a"), x2="b:Q", y=low_end, y2="hi:Q", color=colour, tooltip=tips),
        plotted(points).mark_rule(strokeWidth=2.2).encode(x=x("a"), x2="b:Q", y=y, color=colour, tooltip=tips),
    )


def _stack(mark: Stack, rows: Rows, look: Look) -> Chart:
    """Stacked bars; the whisker is the interval of the sum of the first parts."""
    bars, whiskers = [], []
    for r in rows:
        base, n = 0.0, r[mark.size]
        for part in mark.parts:
            lo, hi = rate_interval(r[part.y], n)
            bars.append(
                {"layer": r["layer"], mark.size: n, "series": part.name, "value": r[part.y], "lo": lo, "hi": hi}
                | {"left": r["layer"] - 0.42, "right": r["layer"] + 0.42, "y0": base, "y1": base + r[part.y]}
            )
            base += r[part.y]
        ends = [r[column] for column in mark.ends or ()]
        if not ends or None in ends:
            ends = list(rate_interval(min(1.0, sum(r[part.y] for part in mark.parts[: mark.whisker])), n))
        whiskers.append({"layer": r["layer"], "lo": ends[0], "hi": ends[1]})
    x, left = look.x(pad=0.5), look.x("left", pad=0.5)
    colour = coloured({part.name: look.colour(part.colour) for part in mark.parts})

    def y(column: str) -> alt.Y:
        return alt.Y(f"{column}:Q", title=mark.y_title, axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))

    bar = plotted(bars).mark_bar().encode(x=left, x2="right:Q", y=y("y0"), y2="y1:Q", color=colour)
    whisker = plotted(whiskers).mark_rule(strokeWidth=1.2, color=look.palette.ink)
    return look.finish(bar.encode(tooltip=_tips(".1%", mark.size)), whisker.encode(x=x, y=y("lo"), y2="hi:Q"))


# All figures


def draw(figure: Figure, rows: Rows, look: Look, others: Sequence[Beside] = ()) -> Chart | None:
    """A figure from the rows of its table; None if they hold no numbers to draw, or the figure is not a chart. Lines of other
    runs are drawn into it."""
    mark = figure.mark
    if isinstance(mark, Lines):
        rows = _drawn(mark, rows)
        return _lines(mark, rows, look, others) if rows else None
    if isinstance(mark, Curves):
        from .curves import curves

        return curves(mark, rows, look)
    if isinstance(mark, Bins):
        rows = present(selected(rows, mark.where), mark.lo, mark.hi, mark.y, "n")
        return _bins(mark, rows, look) if rows else None
    if isinstance(mark, Stack):
        rows = present(rows, mark.size, *(part.y for part in mark.parts))
        return _stack(mark, rows, look) if rows else None
    return None


@dataclass(frozen=True)
class Drawn:
    """A drawn figure, with the texts that are shown beside it."""

    figure: Figure
    chart: Chart
    note: str
    verdicts: list[Verdict]
    panels: dict[str, Chart]
    """the same figure of other runs, by their names, if it cannot be drawn into the chart"""


def draw_all(measured: Measured, palette: Palette = LIGHT, others: Sequence[Other] = ()) -> list[Drawn]:
    """Every figure whose table has numbers, in the order of the report, with those of other runs."""
    look = Look(measured.shape, palette)
    drawn = []
    for analysis, figure in registry.report_order():
        beside = [Beside(each.name, each.measured.of(analysis).rows, each.measured.shape) for each in others]
        if (chart := draw(figure, measured.of(analysis).rows, look, beside)) is not None:
            panels: dict[str, Chart] = {}
            if not isinstance(figure.mark, Lines):
                made = {each.name: draw(figure, each.rows, Look(each.shape, palette)) for each in beside}
                panels = {name: panel for name, panel in made.items() if panel is not None}
            note = measured.notes.get(analysis.name, "")
            drawn.append(Drawn(figure, chart, note, measured.verdicts.get(figure.name, []), panels))
    return drawn


def spec(chart: Chart, *, page: bool = False) -> dict[str, Any]:
    """The chart's Vega-Lite specification; on a page it is as wide as its container."""
    made: dict[str, Any] = chart.to_dict()
    if page:
        made |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return made


def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Making it takes seconds and blocks other threads, so it is kept in the cache
    folder, if there is one."""
    with _bundling:
        return _bundle()


_bundling = threading.Lock()


@cache
def _bundle() -> str:
    made_by = f"{metadata.version('vl-convert-python')}-{vega_lite()}"
    try:
        kept: Path | None = layout.cache_dir() / f"vega-{made_by}.js"
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
    """The version of Vega-Lite that the charts are written for, as vl_convert spells it; its newest if it lacks that one."""
    wanted = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    return str(wanted if wanted in known else known[-1])
