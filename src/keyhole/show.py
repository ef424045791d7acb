"""Runs and cells as text in a terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import unicodedata
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import store, values
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
    parts: list[RenderableType] = [head, numbers, Text(), *value(cell)]
    positive, negative = cell.triggers[:limit], cell.triggers_negative[:limit]
    if positive:
        parts.append(_triggers("triggers", positive))
    else:
        parts.append(Text("dead: no prefix of the corpus makes this key fire", style="italic"))
    if negative:
        parts += [Text(), _triggers("triggers of the negative side (the cell writes −value)", negative)]
    return Group(*parts)


def value(cell: Cell, *, limit: int = 10) -> list[RenderableType]:
    """What a cell's value says, through each lens it was read through; nothing where `analyze` has not been."""
    run = cell.run
    parts: list[RenderableType] = []
    at = (cell.layer, cell.index)
    for lens in values.available(run):
        said = values.Values(run, lens)
        head = Text.assemble(
            (f"value, lens {lens}", "bold"),
            (
                f"   norm {said.norms[at]:.3g}   max p {said.max_prob[at]:.2%}   entropy {said.entropy[at]:.2f} nats",
                "dim",
            ),
        )
        table = Table(box=None, show_header=False, padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("promotes", _said(said.promoted(*at, limit)))
        table.add_row("demotes", _said(said.demoted(*at, limit)))
        table.add_row("agreement", _agreement(cell, said))
        parts += [head, table]
    if parts and (near := values.similar(run, *at)):
        listed = "   ".join(f"{other.address} {other.cosine:.2f}" for other in near)
        parts.append(Text.assemble("similar values (cosine)  ", listed))
    return [*parts, Text()] if parts else []


def _said(tokens: list[values.Said]) -> Text:
    return Text("  ").join([Text.assemble(quoted(said.piece), (f" {said.logit:.2f}", "dim")) for said in tokens])


def _agreement(cell: Cell, said: values.Values) -> str:
    """How often what the value says is what followed the triggers, side by side with the sign it is read with."""
    sides = []
    for name, triggers, tokens in (
        ("triggers", cell.triggers, said.top_tokens),
        ("triggers of the negative side", cell.triggers_negative, said.bottom_tokens),
    ):
        known = [trigger.next_id for trigger in triggers if trigger.next_id is not None]
        if known:
            token = int(tokens[cell.layer, cell.index, 0])
            piece = quoted(cell.run.vocabulary.piece(token))
            sides.append(f"{piece} follows {known.count(token)} of {len(known)} {name}")
    rank = int(said.ranks[cell.layer, cell.index])
    return ", ".join(sides + ([f"the top trigger's next token has rank {rank:,}"] if rank else [])) or "no trigger"


def quoted(piece: str) -> str:
    return f"‘{printable(piece)}’"


def token(said: values.Values, token: int, limit: int) -> RenderableType:
    """The cells whose values promote a token, and those that demote it."""
    piece = quoted(said.run.vocabulary.piece(token))
    parts: list[RenderableType] = []
    for verb, speakers in (("promote", said.promoting(token)), ("demote", said.demoting(token))):
        title = f"values that {verb} {piece}: {len(speakers):,} have it among their {'first' if verb == 'promote' else 'last'} {values.KEPT}"
        table = Table(box=None, padding=(0, 1), title=title, title_justify="left", title_style="bold")
        for name in ("cell", "logit", "rank", "max p"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("promotes" if verb == "promote" else "demotes", no_wrap=True)
        for speaker in speakers[:limit]:
            at = (speaker.layer, speaker.cell)
            others = said.promoted(*at, 6) if verb == "promote" else said.demoted(*at, 6)
            table.add_row(
                speaker.address,
                f"{speaker.logit:.3f}",
                str(speaker.rank),
                f"{said.max_prob[at]:.2%}",
                Text(" ".join(quoted(other.piece) for other in others)),
            )
        parts += [table, Text()] if speakers else [Text(f"no value has {piece} among the tokens it {verb}s most\n")]
    return Group(*parts, Text(f"lens {said.lens}", style="dim"))


def rows(table: list[dict[str, Any]], note: str | None = None) -> RenderableType:
    """Rows as a table; the note below says what they were measured on."""
    shown = Table(box=None, padding=(0, 1))
    for column, kind in ((c, type(v)) for c, v in (table[0] if table else {}).items()):
        shown.add_column(column, justify="left" if kind is str else "right", no_wrap=kind is not str, overflow="fold")
    for row in table:
        shown.add_row(*(Text(_plain(value)) for value in row.values()))
    return Group(shown, *([Text(note, style="dim")] if note else [])) if table else Text("no rows", style="italic")


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return printable(value) if isinstance(value, str) else str(value)


def as_csv(table: list[dict[str, Any]]) -> str:
    """A line of names, then the rows; text is quoted, for a token may be a line end."""
    out = io.StringIO()
    out.write(",".join(table[0]) + "\n" if table else "")
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(row.values() for row in table)
    return out.getvalue()


def as_json(table: list[dict[str, Any]]) -> str:
    return json.dumps(table, ensure_ascii=False, indent=1, default=str) + "\n"


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
    held = f", {corpus['held_out_units']:,} held out of the scan" if corpus.get("held_out_units") else ""
    short = " (ended by --max-tokens)" if corpus["truncated"] else ""
    facts.add_row("run", f"{run.path}{shard}")
    facts.add_row("model", f"{name(run)}{revision}")
    facts.add_row(
        "", f"{model['family']}, {run.layers} layers × {run.cells:,} cells = {run.layers * run.cells:,}; {sides}"
    )
    facts.add_row("corpus", ", ".join(map(printable, corpus["sources"])) + short)
    facts.add_row("", f"{corpus['documents']:,} documents, {corpus['units']:,} {config['unit']}s{longer}{empty}{held}")
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
