"""Cells, layers and prompts as they show themselves in a notebook: HTML with its own style and no script.

Text of the corpus is hostile here too: every string is escaped, and control and direction characters become visible signs.
Charts are Altair's, in the look of the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cells import plain_address
from ..common import output
from ..common.output import printable
from ..errors import RunError
from ..store import shading, values
from ..store.run import Cell, Layer, Run, Trigger
from .text import name, number

if TYPE_CHECKING:
    from .figures import Chart

TRIGGERS, NEGATIVE, TOKENS, CELLS, CONTRIBUTIONS = 10, 4, 10, 20, 3
"""Shown at most: triggers of each side, tokens of each end of a value, cells of a layer, cells of a prompt's layer."""

STYLE = """
.keyhole{font:14px/1.5 system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif;max-width:62rem}
.keyhole h4{margin:0 0 .2em;font-size:1.15em}
.keyhole h5{margin:1em 0 .3em;font-size:.95em;font-weight:600}
.keyhole .soft{opacity:.65;font-size:.9em}
.keyhole .two{display:flex;flex-wrap:wrap;gap:0 2.5em}
.keyhole ol{margin:0;padding:0;list-style:none}
.keyhole li{margin:.15em 0;overflow-wrap:anywhere}
.keyhole li b{display:inline-block;min-width:3.6em;font-weight:400;opacity:.65;font-variant-numeric:tabular-nums}
.keyhole .text{white-space:pre-wrap}
.keyhole .line,.keyhole th{white-space:pre}
.keyhole mark{background:none;color:inherit;outline:1.5px solid #2b5f8f;border-radius:2px}
.keyhole .next{opacity:.65}
.keyhole .bar{display:inline-block;height:.65em;background:#2b5f8f;border-radius:1px;margin-right:.5em}
.keyhole .bar.less{background:#bf6420}
.keyhole table{border-collapse:collapse;margin:.3em 0;font-variant-numeric:tabular-nums}
.keyhole th,.keyhole td{text-align:left;padding:.15em .9em .15em 0;vertical-align:top;background:none;border:0}
.keyhole th{font-weight:600;border-bottom:1px solid rgba(128,128,128,.4)}
.keyhole .token{border:1px solid rgba(128,128,128,.4);border-radius:3px;padding:0 .25em;white-space:pre}
"""


def _html(text: str) -> str:
    return escape(printable(text))


def _token(piece: str) -> str:
    return f'<span class="token">{_html(piece)}</span>'


def _mark(piece: str) -> str:
    """A token marked; the mark begins with its word, not with the space before it."""
    space = " " if piece[:1] == " " and piece.strip() else ""
    return f"{space}<mark>{_html(piece[len(space) :])}</mark>"


def _page(*parts: str) -> str:
    return f'<div class="keyhole"><style>{STYLE}</style>{"".join(parts)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of HTML under plain headings."""
    titles = "".join(f"<th>{_html(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{field}</td>' for field in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


# A cell


def cell(cell: Cell) -> str:
    """What makes the key fire, and what the value says."""
    run, stats = cell.run, cell.stats
    parts = [
        f"<h4>{cell.address}</h4>",
        f'<div class="soft">{_html(name(run))}, layer {cell.layer} of {run.layers}. Fires on '
        f"{number(stats.active_fraction, '.2%')} of {stats.n:,} prefixes; mean {number(stats.mean, '.3g')}, "
        f"largest {number(stats.max, '.3g')}, least {number(stats.min, '.3g')}.</div>",
        '<div class="two">',
        *(_value(cell, lens) for lens in values.available(run)),
        "</div>",
    ]
    for title, triggers, negative, most in (
        ("Triggers", cell.triggers, False, TRIGGERS),
        ("Triggers of the negative side, where the cell writes −value", cell.triggers_negative, True, NEGATIVE),
    ):
        if triggers:
            count = f' <span class="soft">{min(most, len(triggers))} of {len(triggers)}</span>'
            rows = (_trigger(cell, slot, trigger, negative) for slot, trigger in enumerate(triggers[:most]))
            parts.append(f"<h5>{title}{count}</h5><ol>{''.join(rows)}</ol>")
    if not cell.triggers:
        parts.append("<p>Dead: no prefix of the corpus makes this key fire.</p>")
    return _page(*parts)


def _trigger(cell: Cell, slot: int, trigger: Trigger, negative: bool) -> str:
    run = cell.run
    ids = run.unit_tokens(trigger.unit)
    begin, end = shading.shown(len(ids), trigger.position, run.room)
    pieces = [run.vocabulary.piece(int(i)) for i in ids[begin:end]]
    shades = shading.of(run)
    row = None if shades is None else shades.row(cell.layer, cell.index, slot, negative)
    said = []
    for place, piece in enumerate(pieces):
        colour = "" if row is None else _shade(int(row[place]))
        marked = _mark(piece) if begin + place == trigger.position else _html(piece)
        after = ' class="next"' if begin + place > trigger.position else ""
        said.append(f"<span{after}{colour}>{marked}</span>" if after or colour else marked)
    left, right = ("…" if cut else "" for cut in (begin, len(ids) - end))
    count = f' <span class="soft">×{trigger.count}</span>' if trigger.count > 1 else ""
    return f'<li><b>{number(trigger.coefficient, ".3g")}</b><bdi class="text">{left}{"".join(said)}{right}</bdi>{count}</li>'


def _shade(shade: int) -> str:
    """Blue where the token makes the key fire, orange where it does the opposite."""
    if abs(shade) < 4:
        return ""
    colour = "43,95,143" if shade > 0 else "191,100,32"
    return f' style="background:rgba({colour},{min(1.0, abs(shade) / 127) * 0.55:.2f})"'


def _value(cell: Cell, lens: str) -> str:
    said, at = values.Values(cell.run, lens), (cell.layer, cell.index)
    facts = f"norm {number(said.norms[cell.place], '.3g')}, max p {number(said.max_prob[cell.place], '.2%')}"
    parts = []
    for title, tokens in (("promotes", said.promoted(*at, TOKENS)), ("demotes", said.demoted(*at, TOKENS))):
        lengths = [abs(token.logit) if math.isfinite(token.logit) else 0.0 for token in tokens]
        most = max(lengths, default=0.0) or 1.0
        rows = (
            f'<li><b>{number(token.logit, ".2f")}</b><span class="bar{" less" * (token.logit < 0)}" '
            f'style="width:{5 * length / most:.2f}em"></span>{_token(token.piece)}</li>'
            for token, length in zip(tokens, lengths, strict=True)
        )
        parts.append(f"<div><h5>{title}</h5><ol>{''.join(rows)}</ol></div>")
    head = f'<h5>Value <span class="soft">lens {_html(lens)}, {facts}</span></h5>'
    return f'<div>{head}<div class="two">{"".join(parts)}</div></div>'


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
    run, place = layer.run, layer.index
    stats = layer.stats
    dead = int(np.count_nonzero(stats.active == 0))
    strongest = np.argsort(-stats.max, kind="stable")[:CELLS].tolist()
    said = next((values.Values(run, lens) for lens in values.available(run)), None)
    rows = []
    for index in strongest:
        triggers = run.triggers(place, index)[:1]
        fields = [
            layer[index].address,
            number(stats.active_fraction[index], ".2%"),
            number(stats.max[index], ".3g"),
            "".join(f'<bdi class="line">{_tail(t)}</bdi>' for t in triggers) or "–",
        ]
        if said:
            fields.append(" ".join(_token(token.piece) for token in said.promoted(place, index, 3)))
        rows.append(fields)
    head = ["cell", "fires on", "largest m", "strongest trigger", *(["promotes"] if said else [])]
    shown = f"The {len(rows)} of {len(layer):,} cells with the largest coefficients"
    facts = f"fires on {number(stats.active_fraction.mean(), '.1%')} of the prefixes on average; {dead:,} dead cells"
    return _page(
        f"<h4>Layer {place}</h4>",
        f'<div class="soft">{_html(name(run))}, layer {place} of {run.layers}; {facts}. {shown}.</div>',
        _table(head, rows),
    )


def _tail(trigger: Trigger) -> str:
    before = "".join(trigger.tokens[:-1])
    cut = "…" if len(before) > 48 else ""
    return f"{cut}{_html(before[-48:])}{_mark(trigger.tokens[-1])}"


def layer_chart(layer: Layer) -> Chart:
    """Every cell of the layer: how often its key fires, and how strongly at most."""
    import altair as alt

    run, number = layer.run, layer.index
    rows = [
        {"cell": cell.address, "active": output.plain(fraction), "largest": output.plain(most)}
        for cell, fraction, most in zip(layer, layer.stats.active_fraction, layer.stats.max, strict=True)
    ]
    dots = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_circle(size=18, opacity=0.5)
        .encode(
            x=alt.X("active:Q", title="share of the prefixes the key fires on", axis=alt.Axis(format="~%")),
            y=alt.Y("largest:Q", title="largest coefficient"),
            tooltip=["cell:N", alt.Tooltip("active:Q", format=".2%"), alt.Tooltip("largest:Q", format=".3~g")],
        )
    )
    return _finish(run, dots, f"layer {number}, {len(layer):,} cells")


# A prompt


def prompt(view: dict[str, Any]) -> str:
    """A text read layer by layer, from `PromptView.to_json()`."""
    tokens = "".join(
        _mark(piece) if place == view["position"] else _html(piece) for place, piece in enumerate(view["tokens"])
    )
    chosen = view["chosen"]
    predicted = [("prediction", view["prediction"])]
    if view["edited"]:
        predicted.insert(0, ("without the edits", view["original"]))
    columns = "".join(
        f"<div><h5>{title}</h5><ol>{''.join(f'<li><b>{_share(p)}</b>{_token(piece)}</li>' for piece, p in pairs)}</ol></div>"
        for title, pairs in predicted
    )
    rows = [
        [
            str(each["layer"]),
            _first(each["before"]),
            _first(each["after"]),
            " ".join(_contribution(each["layer"], one, "strength") for one in each["strongest"][:CONTRIBUTIONS]),
            " ".join(_contribution(each["layer"], one, "effect") for one in each["effective"][:CONTRIBUTIONS]),
        ]
        for each in view["layers"]
    ]
    before = f" (without the edits {_share(chosen['original_p'])})" if view["edited"] else ""
    head = ["layer", "before", "after the feed-forward", "strongest cells", f"effect on {printable(chosen['piece'])}"]
    return _page(
        f'<bdi class="text">{tokens}</bdi>',
        f'<div class="soft">{_token(chosen["piece"])} follows with {_share(chosen["p"])}{before}</div>',
        f'<div class="two">{columns}</div>',
        _table(head, rows),
    )


def _share(p: float | None) -> str:
    return "–" if p is None else f"{p:.1%}"


def _first(pairs: Sequence[Sequence[Any]]) -> str:
    return f"{_token(pairs[0][0])} {_share(pairs[0][1])}" if pairs else "–"


def _contribution(layer: int, one: dict[str, Any], measure: str) -> str:
    value = one[measure]
    return f'{plain_address(layer, one["cell"])} <span class="soft">{"–" if value is None else f"{value:.2f}"}</span>'
