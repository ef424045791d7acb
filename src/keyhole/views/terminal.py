"""Runs, cells and tables in a terminal, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..common import output
from ..common.output import printable
from ..store import collections, layout, values
from ..store.annotations import RULES
from ..store.made import told
from ..store.run import Cell, Run, Trigger
from . import firing, kinds, patterns
from .text import model_name, number, other_side, quoted, readable, share, signs

CONTEXT_CHARACTERS = 64
LEAST_TEXT = 16
"""A column of text is folded to no less than this, if its text is longer."""


def cell(cell: Cell, *, limit: int | None = None) -> RenderableType:
    """A cell: its statistics, what its value says, its patterns, then its triggers: the last token is marked, the next follows the
    arrow, and before it are the numbers of the patterns it carries."""
    run, stats = cell.run, cell.stats
    head = Text.assemble((cell.address, "bold"), f"   {printable(model_name(run))}, layer {cell.layer} of {run.layers}")
    said = "   ".join(f"{each} {number(stats[each], '.3g')}" for each in ("mean", "std", "max", "min"))
    *often, peak = firing.said(cell)
    fires = [Text(line, style="dim") for line in (*often, f"{peak}   {said}")]
    parts: list[RenderableType] = [head, *_marks(cell), *fires]
    if cell.orientation < 0:
        turned = "read with the sign −: the value shown is −v of the weights, a coefficient −m"
        parts.append(Text(turned, style="dim"))
    more = [f"{name}: {said}" for name, said in (("kinds", kinds.said(cell)), ("gate", kinds.gate(cell))) if said]
    shared = patterns.of_cell(cell)
    parts += [*(Text(line, style="dim") for line in more), Text(), *value(cell), *_patterns(shared)]
    carried = {each.negative: each.carried for each in shared}
    positive, negative = cell.triggers[:limit], cell.triggers_negative[:limit]
    if positive:
        parts.append(triggers("triggers", positive, carried.get(False)))
    else:
        parts.append(Text("dead: no prefix of the corpus makes this key fire", style="italic"))
    if negative:
        parts += [
            Text(),
            triggers(f"triggers of {other_side(run)} (the cell writes −value)", negative, carried.get(True)),
        ]
    return Group(*parts)


def _marks(cell: Cell) -> list[RenderableType]:
    """Its star and tags on one line, its note on the next; nothing if it has none."""
    marks = collections.read(cell.run).get(cell.place, collections.Marks())
    lines = [" ".join(["★"] * marks.starred + [", ".join(marks.tags)]).strip(), marks.note.strip()]
    return [Text(printable(line)) for line in lines if line]


def _patterns(sides: list[patterns.Side]) -> list[RenderableType]:
    """The patterns of each side; one quiet line if there are none."""
    parts: list[RenderableType] = []
    for side in sides:
        if not side.lines:
            parts.append(Text(f"{side.title}: {side.said}", style="dim"))
            continue
        parts.append(Text.assemble((side.title, "bold"), (f"   {side.said}", "dim")))
        table = Table(box=None, show_header=False, padding=(0, 1))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for line in side.lines:
            said = (f" ({line.kind}) · {line.measured}", "dim")
            table.add_row(str(line.number), Text.assemble(printable(line.description), said))
        parts.append(table)
    return [*parts, Text()] if parts else []


def value(cell: Cell, *, limit: int = 10) -> list[RenderableType]:
    """What a cell's value says, per lens that it was read through; nothing if the run was not analyzed."""
    run = cell.run
    parts: list[RenderableType] = []
    at, place = (cell.layer, cell.index), cell.place
    for lens in values.available(run):
        said = values.Values(run, lens)
        head = Text.assemble(
            (f"value, lens {lens}", "bold"),
            (
                f"   norm {number(said.norms[place], '.3g')}   max p {share(said.max_prob[place])}"
                f"   entropy {number(said.entropy[place], '.2f')} nats",
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
        parts += _similar(near, patterns.labels(run, ((each.layer, each.cell) for each in near)))
    return [*parts, Text()] if parts else []


def _similar(near: list[values.Similar], labels: dict[tuple[int, int], str]) -> list[RenderableType]:
    """Cells with similar values: on one line, or on one each if some have labels."""
    listed = [f"{other.address} {number(other.cosine, '.2f')}" for other in near]
    if not labels:
        return [Text.assemble("similar values (cosine)  ", "   ".join(listed))]
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", style="dim")
    for other, said in zip(near, listed, strict=True):
        table.add_row(said, printable(labels.get((other.layer, other.cell), "")))
    return [Text("similar values (cosine)"), table]


def _said(tokens: list[values.Said]) -> Text:
    return Text("  ").join(
        [Text.assemble(quoted(said.piece), (f" {number(said.logit, '.2f')}", "dim")) for said in tokens]
    )


def _agreement(cell: Cell, said: values.Values) -> str:
    """How often the value's first token follows the triggers, per side. A negative coefficient writes −value."""
    sides = []
    for side, negative, tokens in (
        ("triggers", False, said.top_tokens),
        (f"triggers of {other_side(cell.run)}", True, said.bottom_tokens),
    ):
        hits, known = said.hits(cell.place, negative=negative)
        if known:
            piece = quoted(cell.run.vocabulary.piece(int(tokens[cell.place, 0])))
            sides.append(f"{piece} follows {hits} of {known} {side}")
    rank = int(said.ranks[cell.place])
    return ", ".join(sides + ([f"the top trigger's next token has rank {rank:,}"] if rank else [])) or "no trigger"


def token(said: values.Values, token: int, limit: int) -> RenderableType:
    """The cells whose values promote a token, and those that demote it."""
    piece = quoted(said.run.vocabulary.piece(token))
    parts: list[RenderableType] = []
    for verb, speakers in (("promote", said.promoting(token)), ("demote", said.demoting(token))):
        have = f"{len(speakers):,} {'has it among its' if len(speakers) == 1 else 'have it among their'}"
        title = f"values that {verb} {piece}: {have} {'first' if verb == 'promote' else 'last'} {values.KEPT}"
        table = Table(box=None, padding=(0, 1), title=title, title_justify="left", title_style="bold")
        for heading in ("cell", "logit", "rank", "max p"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("promotes" if verb == "promote" else "demotes", no_wrap=True)
        labels = patterns.labels(said.run, ((each.layer, each.cell) for each in speakers[:limit]))
        if labels:
            table.add_column("label", overflow="fold")
        for speaker in speakers[:limit]:
            at = (speaker.layer, speaker.cell)
            label = [Text(printable(labels.get(at, "")))] if labels else []
            others = said.promoted(*at, 6) if verb == "promote" else said.demoted(*at, 6)
            table.add_row(
                speaker.address,
                number(speaker.logit, ".3f"),
                str(speaker.rank),
                share(said.max_prob[said.run.cells.place(*at)]),
                Text(" ".join(quoted(other.piece) for other in others)),
                *label,
            )
        parts += [table, Text()] if speakers else [Text(f"no value has {piece} among the tokens it {verb}s most\n")]
    return Group(*parts, Text(f"lens {said.lens}", style="dim"))


def rows(table: list[dict[str, Any]], note: str | None = None) -> RenderableType:
    """Rows as a table, with a note below that says what they were measured on, or why there are none."""
    below = [Text(printable(note), style="dim")] if note else []
    return Group(_Rows(table) if table else Text("no rows", style="italic"), *below)


class _Rows:
    """Rows as a table. One that is wider than the terminal is broken into tables below each other, and each begins with the
    columns that tell the rows apart."""

    def __init__(self, table: list[dict[str, Any]]) -> None:
        self.names = [*map(printable, table[0]), "#"]
        """and last the number of a row, for rows that nothing else tells apart"""
        self.columns = [[readable(row[name]) for row in table] for name in table[0]]
        self.columns.append([str(row + 1) for row in range(len(table))])
        self.is_text = [*(any(isinstance(row[name], str) for row in table) for name in table[0]), False]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        own, room = range(len(self.names) - 1), options.max_width
        needed = [self._needed(at) for at in range(len(self.names))]
        if sum(needed[at] for at in own) <= room:
            yield self._part(own)
            return
        keys = self._keys()
        if not keys or sum(needed[at] for at in keys) > room / 2:
            keys = [len(own)]
        part, begin = list[int](), sum(needed[at] for at in keys)
        used = begin
        for at in own:
            if at in keys:
                continue
            if part and used + needed[at] > room:
                yield self._part([*keys, *part])
                yield Text()
                part, used = [], begin
            part.append(at)
            used += needed[at]
        yield self._part([*keys, *part])

    def _needed(self, at: int) -> int:
        """The least width of a column: text can be folded, but not its name."""
        longest = max(map(cell_len, self.columns[at]))
        return max(cell_len(self.names[at]), min(longest, LEAST_TEXT) if self.is_text[at] else longest) + 2

    def _keys(self) -> list[int]:
        """The fewest first columns that tell the rows apart; none if not even all but one do."""
        own = self.columns[:-1]
        for count in range(1, len(own)):
            if len(set(zip(*own[:count], strict=True))) == len(own[0]):
                return list(range(count))
        return []

    def _part(self, places: Sequence[int]) -> Table:
        shown = Table(box=None, padding=(0, 1))
        for at in places:
            is_text = self.is_text[at]
            shown.add_column(
                self.names[at], justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold"
            )
        for row in zip(*(self.columns[at] for at in places), strict=True):
            shown.add_row(*map(Text, row))
        return shown


def triggers(title: str, triggers: list[Trigger], carried: dict[int, str] | None = None) -> RenderableType:
    """Triggers, each after the numbers of the patterns it carries, if there are some."""
    table = Table(box=None, show_header=False, padding=(0, 1), title=title, title_justify="left", title_style="bold")
    if carried:
        table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="dim", no_wrap=True)
    for slot, trigger in enumerate(triggers):
        before = printable("".join(trigger.tokens[:-1]))
        if len(before) > CONTEXT_CHARACTERS:
            before = "…" + before[-CONTEXT_CHARACTERS:]
        last = printable(trigger.tokens[-1])
        follows = "∎" if trigger.next_token is None else "→ " + printable(trigger.next_token)
        table.add_row(
            *([carried.get(slot, "")] if carried else []),
            number(trigger.coefficient, ".3f"),
            Text.assemble(before, "[", (last, "bold reverse"), "]"),
            Text(follows),
            f"×{trigger.count}" if trigger.count > 1 else "",
        )
    return table


def annotated(found: dict[str, Any], run: str) -> RenderableType:
    """The summary of what people found in the triggers of a run."""
    path, parts = printable(run), list[RenderableType]()
    if not found["annotators"]:
        parts.append(Text(f"Nobody annotated {path} yet. Read its triggers in the browser: keyhole serve {path}"))
    else:
        who = printable(", ".join(found["annotators"]))
        parts.append(Text(f"{found['cells']:,} cells annotated, {found['skipped']:,} skipped, by {who}\n"))
        parts.append(rows(found["coverage"], "shares of the triggers; a cell that two people read counts twice"))
        if found["agreement"]:
            note = "on the cells both read; kappa is Cohen's, of a trigger's kind"
            if any(row["other"] == RULES for row in found["agreement"]):
                note += f"; {RULES}: the patterns that keyhole patterns found"
            parts += [Text(), rows(found["agreement"], note)]
    if notes := found["notes"]:
        parts += [Text(), rows([{"cell": address, "note": note} for address, note in notes.items()], None)]
    return Group(*parts, *_damaged(found["damaged_lines"]))


def collected(cells: dict[str, dict[str, Any]], run: str, damaged: int) -> RenderableType:
    """The cells that people marked, by address."""
    if not cells:
        how = f"Star a cell in the browser: keyhole serve {printable(run)}"
        return Group(Text(f"No cell of {printable(run)} is marked yet. {how}"), *_damaged(damaged))
    listed = [
        {
            "cell": address,
            "star": "★" if marks["starred"] else "",
            "tags": ", ".join(marks["tags"]),
            "note": marks["note"],
        }
        for address, marks in cells.items()
    ]
    return Group(rows(listed, None), *_damaged(damaged))


def _damaged(lines: int) -> list[RenderableType]:
    """How many lines of what people added could not be read, if any."""
    if not lines:
        return []
    many = lines > 1
    return [Text(f"{lines:,} line{'s' * many} could not be read and {'are' if many else 'is'} left out.")]


def info(run: Run) -> RenderableType:
    """What was scanned, and how the cells of each layer behave."""
    manifest = run.manifest
    model, corpus, config = manifest["model"], manifest["corpus"], manifest["config"]
    facts = Table(box=None, show_header=False, padding=(0, 1))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    family, unit, per, dtype, device = (
        printable(str(value))
        for value in (model["family"], config["unit"], config["per"], config["dtype"], config["device"])
    )
    revision = f" @ {printable(str(model['revision'])[:12])}" if model["revision"] else ""
    sides = signs(run)
    shard = "" if config["shard"] is None else f"   shard {config['shard'][0]}/{config['shard'][1]}"
    longer = f", {corpus['split_units']:,} longer than the context and split" if corpus["split_units"] else ""
    empty = f", {corpus['empty_units']:,} without a token" if corpus["empty_units"] else ""
    held = f", {corpus['held_out_units']:,} held out of the scan" if corpus.get("held_out_units") else ""
    short = " (ended by --max-tokens)" if corpus["truncated"] else ""
    facts.add_row("run", f"{printable(str(run.path))}{shard}")
    facts.add_row("model", f"{printable(model_name(run))}{revision}")
    facts.add_row("", f"{family}, {run.cells.summary} = {len(run.cells):,}; {sides}")
    if made := told(manifest):
        facts.add_row("", printable(made))
    facts.add_row("corpus", ", ".join(printable(str(source)) for source in corpus["sources"]) + short)
    facts.add_row("", f"{corpus['documents']:,} documents, {corpus['units']:,} {unit}s{longer}{empty}{held}")
    facts.add_row("", f"{corpus['tokens']:,} tokens, {corpus['distinct_prefixes']:,} distinct prefixes")
    facts.add_row("scan", f"top {run.top} per {per}, context {run.context}, {dtype} on {device}")
    if seconds := _seconds(layout.read_log(run.path)):
        facts.add_row(
            "", f"{seconds:,.0f} s, {corpus['scanned_prefixes'] / max(seconds, 1e-9):,.0f} prefixes per second"
        )
    if found := patterns.summary(run):
        facts.add_row("patterns", found)
    facts.add_row("on disk", f"{run.size / 1e6:,.1f} MB")

    layers = Table(box=None, padding=(0, 1), title="layers", title_justify="left", title_style="bold")
    for title in ("layer", "dead", firing.name(run), "largest m"):
        layers.add_column(title, justify="right")
    for layer in range(run.layers):
        stats = run.layer(layer).stats
        layers.add_row(
            str(layer),
            f"{np.count_nonzero(stats.dead):,}",
            firing.often(run.layer(layer)).mean,
            number(stats.max.max(), ".3g"),
        )
    dead = run.dead
    named = Text("dead cells: " + (", ".join(dead[:12]) + (" …" if len(dead) > 12 else "") if dead else "none"))
    return Group(facts, Text(), layers, Text(), named)


def _seconds(log: dict[str, Any]) -> float:
    """How long the scan took according to log.json; 0 if it does not say. That file is not checked, so it may hold anything."""
    seconds = log.get("seconds")
    found = seconds.get("scan") if isinstance(seconds, dict) else None
    plausible = isinstance(found, (int, float)) and 0 < found < 1e12
    return float(found) if found is not None and plausible else 0.0


class _Harmless(RenderHook):
    """Makes control characters visible just before a console prints. Rich adds its own sequences (colour, weight) afterwards."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Seen(renderable) for renderable in renderables]


class _Seen:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else output.harmless(text), style, control)


def console() -> Console:
    """The console that output goes to: as wide as the terminal, or wide enough for a table if there is none. Nothing that is
    printed acts as markup, as a code for an emoji or as a control character."""
    options: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": False}
    out = Console(**options)
    out = out if out.is_terminal else Console(**options, width=140)
    out.push_render_hook(_Harmless())
    return out
