"""Edits that were made or checked, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..analyses.pruning import where_from
from ..common.output import printable
from .text import blank, number, significant, with_interval

if TYPE_CHECKING:
    from ..analyses.stats import Interval
    from ..models.intervene import Edit
    from ..uses.changed import Changed, Moved
    from ..uses.edit import Edited

ONLY_HERE = "Its layers differ in width, which transformers alone does not read: keyhole.load does."
LISTED = 8
"""Edits that are named."""


def edited(done: Edited) -> RenderableType:
    """What was edited, what was written, what else changed."""
    parts: list[RenderableType] = [Text(f"{printable(done.source)}: {_named(done.edits)}")]
    if done.check is not None:
        parts += [Text(), *_checked(done.check)]
    if done.saved is not None:
        saved = done.saved
        parts += [
            Text(),
            Text(
                f"Written: {printable(str(saved.folder))}, {saved.bytes / 1e6:,.1f} MB, {saved.dtype}. Loaded again, its logits differ from "
                f"those of the edited model by {saved.difference:.1e}, relative."
            ),
        ]
        if not saved.plain:
            parts.append(Text(ONLY_HERE, style="dim"))
    return Group(*parts)


def _named(edits: Sequence[Edit]) -> str:
    said = "; ".join(printable(str(edit)) for edit in edits[:LISTED])
    more = f"; and {len(edits) - LISTED:,} more" if len(edits) > LISTED else ""
    return f"{len(edits):,} edit{'' if len(edits) == 1 else 's'}: {said}{more}"


def _checked(found: Changed) -> list[RenderableType]:
    change, text = found.found, found.text
    where = text.files or where_from(text.source)
    documents = "1 document" if found.documents == 1 else f"{found.documents:,} documents"
    head = Text(f"On {change.tokens:,} tokens in {documents}, {printable(where)}:")
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for name in ("", "these cells", "other cells of the same layers"):
        table.add_column(name, overflow="fold")
    table.add_row("perplexity without", with_interval(*change.before), "")
    table.add_row("perplexity with", with_interval(*change.after), "")
    table.add_row("change", _percent(change.change), _each([each.change for each in found.null], "+.3%"))
    table.add_row(
        "same first token", _percent(change.agreement, ""), _each([each.agreement for each in found.null], ".2%")
    )
    largest = max((abs(each.moved.value) for each in (*found.up[:1], *found.down[:1])), default=0.0)
    moved = ", ".join(significant(each.largest) for each in found.null) or "–"
    table.add_row("largest move of a token", f"{significant(largest)} nats", moved)
    parts: list[RenderableType] = [head, table]
    if found.null:
        parts.append(
            Text(f"Other cells: as many of the same layers, edited alike, drawn {len(found.null)} times.", "dim")
        )
    else:
        parts.append(
            Text("There are no other cells to compare with: the layers have too few that are not edited.", "dim")
        )
    for title, listed in (("likelier", found.up), ("less likely", found.down)):
        parts += [Text(), _moves(title, listed)] if listed else []
    return parts


def _moves(title: str, listed: Sequence[Moved]) -> RenderableType:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column(title)
    table.add_column("mean change of log p", justify="right")
    table.add_column("other cells", justify="right")
    for each in listed:
        piece = printable(each.piece) if each.piece.strip() else blank(each.piece)
        table.add_row(Text(f"‘{piece}’"), with_interval(*each.moved), significant(each.random))
    return table


def _percent(found: Interval, sign: str = "+") -> str:
    """A share with its interval, in percent."""
    value, lo, hi = (None if each is None else _signed(each, f"{sign}.2%") for each in found[:3])
    return f"{value} (one document: no interval)" if lo is None or hi is None else f"{value} ({lo} to {hi})"


def _each(found: Sequence[Interval], form: str) -> str:
    return ", ".join(_signed(each.value, form) for each in found) or "–"


def _signed(value: float, form: str) -> str:
    return number(value, form).replace("-", "−")
