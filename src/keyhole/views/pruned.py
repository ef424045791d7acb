"""What pruning did, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..analyses.claims import percent
from ..analyses.pruned_kinds import of_one_method
from ..analyses.pruning import NO_BIAS, TITLES, where_from
from ..common.output import printable
from ..store import kinds, pruning
from .edited import ONLY_HERE
from .text import with_interval

if TYPE_CHECKING:
    from ..uses.pruning.prune import Pruned


def pruned(done: Pruned) -> RenderableType:
    """One pruned model."""
    row, saved, fast = done.row, done.saved, done.speed
    folder = "" if saved is None else printable(str(saved.folder))
    size = "" if saved is None else f", {saved.bytes / 1e6:,.0f} MB as {saved.dtype}"
    table = Table(box=None, padding=(0, 2), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row(
        "cells",
        f"{row.gone:,} of {len(done.run.cells):,} are gone ({percent(row.share)}), by {TITLES.get(row.method, row.method)}, {row.scope}",
    )
    table.add_row("weights", f"{done.weights_before / 1e6:,.1f} → {row.parameters / 1e6:,.1f} million{size}")
    table.add_row(
        "perplexity",
        f"{row.perplexity_before:.2f} → {row.perplexity:.2f}, {_changed(row.change, row.change_lo, row.change_hi)}",
    )
    table.add_row(
        "agreement",
        f"{percent(row.agreement)}{_ends(row.agreement_lo, row.agreement_hi)} of the tokens have the same first choice",
    )
    table.add_row(
        "speed",
        f"{fast['faster']:.2f}× the whole model ({fast['faster_least']:.2f} to {fast['faster_most']:.2f}), blocks only",
    )
    about = f"Measured on {row.tokens:,} tokens in {row.documents:,} documents of {printable(where_from(row.text))}; cells chosen on {row.fitted:,} tokens. 95 % intervals over documents."
    about += f" {done.known:,} tokens were left out: they stand in the text that cells were chosen on." * bool(
        done.known
    )
    parts: list[RenderableType] = [
        Text(f"{folder}: a model with {percent(1 - row.share)} of the cells", style="bold"),
        table,
        Text(about, style="dim"),
    ]
    if done.kinds:
        parts += [Text(), _kinds([msgspec.to_builtins(each) for each in done.kinds], row.share)]
    plain = saved is None or saved.plain
    load = "transformers.AutoModelForCausalLM.from_pretrained" if plain else "keyhole.load"
    parts += [Text(), Text(f"Load it: {load}({folder!r})")]
    if not plain:
        parts.append(Text(ONLY_HERE, style="dim"))
    return Group(*parts)


def curve(rows: list[dict[str, Any]], gone: list[dict[str, Any]], path: str) -> RenderableType:
    """Methods × shares: change of the perplexity, and agreement."""
    last = pruning.latest(rows)
    shares = sorted({row["share"] for row in last})
    table = Table(box=None, padding=(0, 1))
    table.add_column("cells that go")
    for share in shares:
        table.add_column(percent(share), justify="right", no_wrap=True)
    for method in dict.fromkeys(row["method"] for row in last):
        own = {row["share"]: row for row in last if row["method"] == method}
        cells = [_cell(own.get(share)) for share in shares]
        table.add_row(TITLES.get(method, method), *cells, style="bold" if method == "refit" else None)
    first = last[-1]
    head = f"Perplexity {first['perplexity_before']:.2f}; its change without a share of the cells (95 % interval over {first['documents']:,} documents), and below it the share of tokens with the same first choice."
    parts: list[RenderableType] = [Text(head), Text(), table]
    if not first["bias"]:
        parts += [Text(), Text(f"{NO_BIAS[0].upper()}{NO_BIAS[1:]}.", style="dim")]
    chosen = of_one_method(gone)
    if chosen:
        parts += [Text(), _kinds(chosen, chosen[0]["share"])]
    parts += [Text(), Text(f"keyhole table {printable(path)} pruning", style="dim")]
    return Group(*parts)


def _kinds(rows: Sequence[dict[str, Any]], share: float) -> RenderableType:
    titles = {kind.name: kind.title for kind in kinds.KINDS} | {kinds.NONE: "none of these"}
    known = sorted((row for row in rows if row["cells"]), key=lambda row: -row["gone"] / row["cells"])
    told = ", ".join(f"{titles.get(row['kind'], row['kind'])} {percent(row['gone'] / row['cells'])}" for row in known)
    return Text(f"By kind, share that goes (of all cells {percent(share)}): {told}")


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{_changed(row['change'], row['change_lo'], row['change_hi'])}\n{percent(row['agreement'])}"


MANY = 9.0
"""A relative change from which it is shown as a factor: +5,681,551 % is hard to read."""


def _changed(value: float, lo: float | None, hi: float | None) -> str:
    """A relative change with its interval: +1.2 % (1.0 to 1.4), or ×57 (34 to 96)."""
    if value >= MANY:
        return "×" + with_interval(1 + value, *(None if each is None else 1 + each for each in (lo, hi)))
    return f"{'+' if value >= 0 else ''}{percent(value)}{_ends(lo, hi)}"


def _ends(lo: float | None, hi: float | None) -> str:
    return (
        "" if lo is None or hi is None else f" ({percent(lo).removesuffix(' %')} to {percent(hi).removesuffix(' %')})"
    )


def as_json(done: Pruned) -> dict[str, Any]:
    saved = done.saved
    return {
        **msgspec.to_builtins(done.row),
        "weights_before": done.weights_before,
        "kinds": msgspec.to_builtins(done.kinds),
        "speed": done.speed,
        "out": None if saved is None else str(saved.folder),
        "dtype": None if saved is None else saved.dtype,
        "bytes": None if saved is None else saved.bytes,
        "difference": None if saved is None else saved.difference,
    }
