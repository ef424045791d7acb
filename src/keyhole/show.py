"""Runs and cells as text in a terminal."""

from __future__ import annotations

import os
import unicodedata

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import store
from .run import Cell, Run, Trigger

CONTEXT_CHARACTERS = 64


def printable(text: str) -> str:
    """Corpus text made harmless for a terminal: line ends and control characters become visible signs."""
    named = {"\n": "⏎", "\r": "␍", "\t": "⇥"}
    return "".join(named.get(c, "�" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") else c) for c in text)


def name(run: Run) -> str:
    """The model's name without the folder it happens to lie in."""
    source = str(run.manifest["model"]["source"])
    return os.path.basename(os.path.normpath(source)) if os.path.isabs(source) else source


def cell(cell: Cell, *, limit: int | None = None) -> RenderableType:
    """A cell: statistics, then its triggers, the last token marked, the next token behind the arrow."""
    run, stats = cell.run, cell.stats
    head = Text.assemble((cell.address, "bold"), f"   {name(run)}, layer {cell.layer} of {run.layers}")
    numbers = Text(
        f"fires on {stats.active_fraction:.2%} of {stats.n:,} prefixes   mean {stats.mean:.3g}   std {stats.std:.3g}   "
        f"max {stats.max:.3g}   min {stats.min:.3g}",
        style="dim",
    )
    parts: list[RenderableType] = [head, numbers, Text()]
    positive, negative = cell.triggers[:limit], cell.triggers_negative[:limit]
    if positive:
        parts.append(_triggers("triggers", positive))
    else:
        parts.append(Text("dead: no prefix of the corpus makes this key fire", style="italic"))
    if negative:
        parts += [Text(), _triggers("triggers of the negative side (the cell writes −value)", negative)]
    return Group(*parts)


def _triggers(title: str, triggers: list[Trigger]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 1), title=title, title_justify="left", title_style="bold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="dim", no_wrap=True)
    for trigger in triggers:
        before = printable("".join(trigger.tokens[:-1]))
        if len(before) > CONTEXT_CHARACTERS:
            before = "…" + before[-CONTEXT_CHARACTERS:]
        last = printable(trigger.tokens[-1])
        follows = "∎" if trigger.next_token is None else "→ " + printable(trigger.next_token)
        table.add_row(
            f"{trigger.coefficient:.3f}",
            Text.assemble(before, "[", (last, "bold reverse"), "]"),
            Text(follows),
            f"×{trigger.count}" if trigger.count > 1 else "",
        )
    return table


def info(run: Run) -> RenderableType:
    """What was scanned, and how its cells fare."""
    manifest = run.manifest
    model, corpus, config = manifest["model"], manifest["corpus"], manifest["config"]
    log = store.read_log(run.path)
    facts = Table(box=None, show_header=False, padding=(0, 1))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    revision = f" @ {model['revision'][:12]}" if model["revision"] else ""
    sides = "both signs" if run.signed else "never negative"
    shard = "" if config["shard"] is None else f"   shard {config['shard'][0]}/{config['shard'][1]}"
    longer = f", {corpus['split_units']:,} longer than the context and split" if corpus["split_units"] else ""
    empty = f", {corpus['empty_units']:,} without a token" if corpus["empty_units"] else ""
    short = " (ended by --max-tokens)" if corpus["truncated"] else ""
    facts.add_row("run", f"{run.path}{shard}")
    facts.add_row("model", f"{name(run)}{revision}")
    facts.add_row(
        "", f"{model['family']}, {run.layers} layers × {run.cells:,} cells = {run.layers * run.cells:,}; {sides}"
    )
    facts.add_row("corpus", ", ".join(map(printable, corpus["sources"])) + short)
    facts.add_row("", f"{corpus['documents']:,} documents, {corpus['units']:,} {config['unit']}s{longer}{empty}")
    facts.add_row("", f"{corpus['tokens']:,} tokens, {corpus['distinct_prefixes']:,} distinct prefixes")
    facts.add_row(
        "scan", f"top {run.top} per {config['per']}, context {run.context}, {config['dtype']} on {config['device']}"
    )
    if seconds := log.get("seconds", {}).get("scan"):
        facts.add_row("", f"{seconds:,.0f} s, {corpus['scanned_prefixes'] / max(seconds, 1e-9):,.0f} prefixes a second")
    facts.add_row("on disk", f"{run.size / 1e6:,.1f} MB")

    layers = Table(box=None, padding=(0, 1), title="layers", title_justify="left", title_style="bold")
    for title in ("layer", "dead", "fires on", "largest m"):
        layers.add_column(title, justify="right")
    stats = run.stats
    for layer in range(run.layers):
        layers.add_row(
            str(layer),
            f"{np.count_nonzero(stats.active[layer] == 0):,}",
            f"{stats.active_fraction[layer].mean():.1%}",
            f"{stats.max[layer].max():.3g}",
        )
    dead = run.dead
    named = Text("dead cells: " + (", ".join(dead[:12]) + (" …" if len(dead) > 12 else "") if dead else "none"))
    return Group(facts, Text(), layers, Text(), named)


def console() -> Console:
    """Where output goes: as wide as the terminal, and at a width that suits a table where there is none."""
    out = Console(highlight=False, soft_wrap=False)
    return out if out.is_terminal else Console(highlight=False, soft_wrap=False, width=140)
