"""What a search found, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..common.output import printable
from ..searching.find import Found, Sought
from ..searching.relations import Relation
from ..store import patterns, values
from .text import number, other_side, quoted

SAYS: dict[Relation, str] = {"ends": "end in", "contains": "contain", "next": "are followed by"}
PROMOTED = 5
"""Tokens of a value that are shown."""
Row = tuple[Any, ...]
"""the place of a cell, then columns of text; −place − 1 if it is about the other side, which writes −value"""


def found(result: Found, limit: int) -> RenderableType:
    """The lists of a search, each with at most `limit` entries."""
    if result.like is not None:
        return near(result.like, result, result.near_keys, result.near_values, limit, "shared triggers")
    parts: list[RenderableType] = []
    if result.ignored:
        parts.append(
            Text(
                f"Only the first {len(result.sought)} terms are searched, not {printable(', '.join(result.ignored))}.\n"
            )
        )
    for relation, says in SAYS.items():
        parts += _keys(result, relation, f"keys whose triggers {says} {_terms(result.sought)}", limit)
    for side, (verb, said) in enumerate((("promote", result.promote), ("demote", result.demote))):
        known = result.speaking(side)
        count = f"{known:,}" if known is not None else f"{len(said):,}{' or more' if result.cut(side) else ''}"
        title = f"values that {verb} {_terms([each for each in result.sought if each.token is not None])}"
        rows: list[Row] = [
            (value.place, number(value.logit, ".3g"), " ".join(f"{rank}" for *_, rank in value.matched))
            for value in said[:limit]
        ]
        if rows:
            parts += [_table(result, f"{title}: {count}", ("logit", "rank"), rows, f"{verb}s"), Text()]
    return Group(*parts, *_labels(result, limit))


def _terms(sought: Sequence[Sought]) -> str:
    return " or ".join(quoted(each.piece) for each in sought)


def _keys(result: Found, relation: Relation, title: str, limit: int) -> list[RenderableType]:
    keys, cells = result.keys[relation], result.cells(relation)
    if not keys:
        return [Text(f"no {title}\n", style="dim")]
    several = len(result.sought) > 1
    rows: list[Row] = [
        (
            key.place if key.side > 0 else -key.place - 1,
            f"{'at least ' if key.least else ''}{key.hits} of {key.of}",
            f"×{number(key.lift, '.3g')}",
            "" if key.side > 0 else other_side(result.run),
            *([" ".join(f"{quoted(result.sought[i].piece)} {n}" for i, n in key.matched)] if several else []),
        )
        for key in keys[:limit]
    ]
    count = f"{len(keys):,} or more" if cells is None else f"{cells:,}"
    headings = ("triggers", "lift", "", *(["matched"] if several else []))
    unread = sum(each.unread for each in result.sought)
    note = [Text(f"{unread:,} more texts with its words were not read", style="dim")] if unread else []
    return [_table(result, f"{title}: {count} cells", headings, rows), *note, Text()]


def _table(result: Found, title: str, headings: Sequence[str], rows: Sequence[Row], says: str = "promotes") -> Table:
    """Cells with numbers, what their values promote, and their labels."""
    run = result.run
    lenses = values.available(run)
    said = values.Values(run, lenses[0]) if lenses else None
    known = patterns.of(run)
    table = Table(box=None, padding=(0, 1), title=title, title_justify="left", title_style="bold")
    table.add_column("cell", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "matched" else "right", no_wrap=heading != "matched")
    table.add_column(says, no_wrap=True)
    if known:
        table.add_column("label", overflow="fold")
    for at, *columns in rows:
        place = at if at >= 0 else -at - 1
        layer, cell = run.cells.split(place)
        promoted = (at >= 0) == (says == "promotes")
        pieces = (said.promoted if promoted else said.demoted)(layer, cell, PROMOTED) if said else []
        label = [Text(printable(known.label(place) or ""))] if known else []
        table.add_row(
            run.cells.address(place),
            *(Text(column) for column in columns),
            Text(" ".join(quoted(each.piece) for each in pieces)),
            *label,
        )
    return table


def _labels(result: Found, limit: int) -> list[RenderableType]:
    """Kinds, patterns and people's words that name it."""
    name, parts = result.run.cells.address, list[RenderableType]()
    if result.kinds:
        said = ", ".join(f"{kind} ({count:,} cells)" for kind, count in result.kinds.items())
        parts.append(Text(f"kinds of cells: {said}\n"))
    if result.patterns and (known := patterns.of(result.run)):
        parts.append(Text(f"patterns that name it: {len(result.patterns):,} cells", style="bold"))
        for place, side, at in result.patterns[:limit]:
            key = known.key(place, side)
            assert key is not None
            parts.append(Text(f" {name(place)}  {printable(key.patterns[at].description)}"))
        parts.append(Text())
    if result.people:
        parts.append(Text(f"tags, notes and annotations that contain it: {len(result.people):,} cells", style="bold"))
        for place, texts in list(result.people.items())[:limit]:
            parts.append(Text(f" {name(place)}  {printable(' · '.join(texts))}"))
    return parts


def near(
    of: str,
    result: Found,
    keys: Sequence[tuple[int, float]],
    said: Sequence[tuple[int, float]],
    limit: int,
    measure: str,
) -> RenderableType:
    """The cells nearest to a cell or a text."""
    parts: list[RenderableType] = []
    for title, heading, rows in (("keys", measure, keys), ("values", "cosine", said)):
        listed: list[Row] = [(place, number(x, ".3g")) for place, x in rows[:limit]]
        nearest = f"{title} nearest to {printable(of)}"
        parts += (
            [_table(result, nearest, (heading,), listed), Text()] if rows else [Text(f"no {nearest}\n", style="dim")]
        )
    return Group(*parts)
