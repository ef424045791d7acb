"""Charts over a number other than the layer: what is left of a model against the share of its cells that go, and the like."""

from __future__ import annotations

import altair as alt

from ..analyses.record import Curves, Row, Rows, present
from .figures import Chart, Look, coloured, plotted, powers, selected


def curves(mark: Curves, rows: Rows, look: Look) -> Chart | None:
    """Series with their intervals as bands, and a dashed level. Values above the axis are drawn at its end."""
    rows = mark.where(rows)
    high = float("inf") if mark.high is None else mark.high
    points: list[Row] = []
    colours: dict[str, str] = {}
    for series in mark.series(rows) if callable(mark.series) else mark.series:
        own = present(selected(rows, series.where), mark.x, series.y)
        low, top = series.band if isinstance(series.band, tuple) else (series.y, series.y)
        for row in sorted(own, key=lambda row: row[mark.x]):
            value = row[series.y]
            ends = [value if row[column] is None else row[column] for column in (low, top)]
            point = {"x": row[mark.x], "series": series.name, "said": value, "value": min(value, high)}
            points.append(point | {"lo": ends[0], "hi": ends[1], "a": min(ends[0], high), "b": min(ends[1], high)})
        if own:
            colours[series.name] = look.colour(series.colour)
    if not points:
        return None
    axis = alt.Axis(grid=False, format=mark.x_format, values=sorted({point["x"] for point in points}))
    scale = alt.Scale(nice=False, padding=8)
    if mark.log_x:
        least, most = (end(point["x"] for point in points) for end in (min, max))
        axis = alt.Axis(grid=False, format=mark.x_format, values=powers(least, most))
        scale = alt.Scale(type="log", nice=False, padding=8)
    level = []
    if mark.level is not None:
        name, height = mark.level
        colours[name] = look.palette.quiet
        level = [{"x": end(p["x"] for p in points), "series": name, "value": height} for end in (min, max)]
    x = alt.X("x:Q", title=mark.x_title, axis=axis, scale=scale)
    colour = coloured(colours)
    limits = alt.Scale() if mark.high is None else alt.Scale(domainMax=mark.high)

    def y(column: str) -> alt.Y:
        return alt.Y(f"{column}:Q", title=mark.y_title, axis=alt.Axis(format=mark.format), scale=limits)

    tips = [
        alt.Tooltip("series:N", title="what"),
        alt.Tooltip("x:Q", title=mark.x_title, format=mark.x_format),
        alt.Tooltip("said:Q", title=mark.y_title, format=mark.tooltip),
        alt.Tooltip("lo:Q", title="from", format=mark.tooltip),
        alt.Tooltip("hi:Q", title="to", format=mark.tooltip),
    ]
    marks = [plotted(points).mark_area(opacity=0.12).encode(x=x, y=y("a"), y2="b:Q", color=colour)]
    if level:
        marks.append(
            plotted(level).mark_line(strokeDash=[5, 3], strokeWidth=1.4).encode(x=x, y=y("value"), color=colour)
        )
    marks.append(plotted(points).mark_line(strokeWidth=1.8).encode(x=x, y=y("value"), color=colour))
    marks.append(
        plotted(points)
        .mark_point(filled=True, opacity=1, size=24)
        .encode(x=x, y=y("value"), color=colour, tooltip=tips)
    )
    return look.finish(*marks)
