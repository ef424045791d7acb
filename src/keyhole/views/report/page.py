"""The report's page: what was measured → one HTML file. The template, its style and its script lie beside this file.

The records of the analyses say which figures there are and in which order. Corpus text may be hostile: the template escapes
every value, control characters become visible signs, and the page's policy allows only its own two scripts, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata, resources
from typing import Any

import altair
import jinja2
from markupsafe import Markup

from ... import __version__
from ...analyses import registry
from ...analyses.beside import Compared, Other
from ...analyses.claims import p_value, percent
from ...analyses.measured import Measured
from ...analyses.record import (
    OUTCOMES,
    Analysis,
    Effect,
    Examples,
    Figure,
    Lines,
    Listing,
    Rows,
    Shown,
    Verdict,
)
from ...analyses.stats import Interval
from ...common import output
from ...store.made import told
from ...store.run import Run, Trigger
from .. import figures, patterns, text
from ..worth import worth_showing

CONTEXT, LISTED_CONTEXT = 90, 60
"""Characters shown before a trigger's last token: among the examples, and in a listing."""
LISTED = 12
"""Rows of a listing that are always shown. The others are shown on request."""
FEWER = 6
"""Rows of another run's listing."""


def render(measured: Measured, others: Sequence[Other] = ()) -> str:
    """The page as text, each figure with those of the other runs."""
    run = measured.run
    drawn = {each.figure.name: each for each in figures.draw_all(measured, figures.PAGE, others)}
    specs = {name: figures.spec(each.chart, page=True) for name, each in drawn.items()}
    for name, each in drawn.items():
        specs |= {panel_name(name, run): figures.spec(chart, page=True) for run, chart in each.panels.items()}
    parts = _sections(measured, others, drawn)
    weighed = [
        (section, verdict) for sections in parts.values() for section in sections for verdict in section.verdicts
    ]
    command = " ".join([f"keyhole report {path(run)}", *(f"--beside {path(each.run)}" for each in others)])
    bundle, script = _bundle(), _file("report.js")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=text.safe)
    return environment.from_string(text.parts() + _file("report.html")).render(
        ours=_ours,
        blank=text.blank,
        listed=LISTED,
        fewer=FEWER,
        model=text.model_name(run),
        facts=_facts(run),
        verdicts=weighed,
        counts=counted([verdict for _, verdict in weighed]),
        effect=effect,
        significant=text.significant,
        adjusted=adjusted,
        others=others,
        compared=compared_with(others),
        depths=len({each.run.layers for each in others} | {run.layers}) > 1,
        path=path,
        parts=parts,
        analyze=f"keyhole analyze {path(run)}",
        command=command,
        version=__version__,
        versions=_versions(run),
        hashes=Markup(" ".join(map(_hash, (bundle, script)))),
        style=Markup(_file("report.css")),
        specs=Markup(_embedded(specs)),
        bundle=Markup(bundle),
        script=Markup(script),
    )


# What both page and Markdown say


def counted(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many claims have each outcome."""
    return {outcome: sum(verdict.outcome == outcome for verdict in verdicts) for outcome in OUTCOMES}


def compared_with(others: Sequence[Other]) -> dict[str, list[Compared]]:
    """By claim: what came out on each of the other runs, in their order."""
    found: dict[str, list[Compared]] = {}
    for other in others:
        for claims in other.claims.values():
            for each in claims:
                found.setdefault(each.claim, []).append(each)
    return found


def adjusted(verdict: Verdict) -> str:
    """The p of a verdict after Holm's correction, without the letter; a dash if there is none."""
    return "–" if verdict.adjusted is None else p_value(verdict.adjusted).removeprefix("p ").removeprefix("= ")


def effect(found: Effect | Interval | None) -> str:
    """An effect or a difference with its interval; a dash if there is none."""
    return "–" if found is None else text.with_interval(found.value, found.lo, found.hi)


# Text made safe


def _ours(sentence: str, lower: bool = False) -> str:
    """A sentence of Keyhole's with its typography: a capital first, curly apostrophes, no line break before a unit or sign."""
    sentence = sentence if lower else sentence[:1].upper() + sentence[1:]
    return _KEEP.sub("\u00a0", _APOSTROPHE.sub("’", sentence))


_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_KEEP = re.compile(r"(?<=\d) (?=%)|(?<=[pzρ]) (?=[<=])|(?<=[<=]) (?=[\d−])")


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


def _bundle() -> str:
    """The charts' script, safe inside a page's script element."""
    return figures.bundle().replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or begin another."""
    made = json.dumps(output.plain(value), separators=(",", ":"), allow_nan=False)
    return made.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# Header and footer


def path(run: Run) -> str:
    """The run's path for commands. Of an absolute path only the name is shown: the page may be read elsewhere."""
    return run.path.name if run.path.is_absolute() else str(run.path)


def _facts(run: Run) -> list[tuple[str, str]]:
    model, corpus, config = (run.manifest[name] for name in ("model", "corpus", "config"))
    sources = ", ".join(os.path.basename(s) if os.path.isabs(s) else s for s in map(str, corpus["sources"]))
    revision = f" @ {model['revision'][:12]}" if model["revision"] else ""
    one = ", at most one per sentence" if config["per"] == "sentence" else ""
    size = f"{corpus['documents']:,} documents, {corpus['units']:,} {config['unit']}s, {corpus['tokens']:,} tokens"
    return [
        ("Model", f"{text.model_name(run)}{revision} ({model['family']})"),
        *([("", made)] if (made := told(run.manifest)) else []),
        ("Cells", f"{run.cells.summary.removesuffix(' cells')} = {len(run.cells):,}"),
        ("Corpus", sources),
        ("Text", size),
        ("Scanned", f"{corpus['scanned_prefixes']:,} distinct prefixes; {run.top} triggers per key{one}"),
        ("Coefficients", text.signs(run)),
    ]


def _versions(run: Run) -> str:
    scanned = {"keyhole": run.manifest["keyhole"], **run.manifest["versions"]}
    drawn = {
        "python": platform.python_version(),
        "altair": altair.__version__,
        "vl-convert": metadata.version("vl-convert-python"),
        "vega-lite": figures.vega_lite(),
    }
    said = [", ".join(f"{name} {version}" for name, version in each.items()) for each in (scanned, drawn)]
    return f"Scanned with {said[0]}. Drawn with {said[1]}."


# Figures and tables


@dataclass
class Section:
    """A figure or table with what the paper found and what was found here."""

    figure: Figure
    kind: str
    """how the template shows it: `chart`, `listing`, `examples`"""
    table: str
    missing: str = ""
    """why there is nothing to show"""
    why: str = ""
    """why the table is empty, if its analysis says so"""
    command: str = ""
    """the command that fills the table"""
    note: str = ""
    aside: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    columns: list[Any] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    others: list[Panel] = field(default_factory=list)
    """the same of other runs, if it is not drawn into the chart"""


@dataclass
class Panel:
    """A figure or table of another run."""

    name: str
    missing: str = ""
    spec: str = ""
    """the name of its chart"""
    examples: list[dict[str, Any]] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)


def panel_name(figure: str, run: str) -> str:
    """The name of another run's chart of a figure."""
    return f"{figure} of {run}"


def _sections(measured: Measured, others: Sequence[Other], drawn: dict[str, figures.Drawn]) -> dict[str, list[Section]]:
    """The sections, by part of the report."""
    found: dict[str, list[Section]] = {part: [] for part in registry.parts()}
    for analysis, figure in registry.report_order():
        section = _section(measured, analysis, figure, set(drawn))
        chart = drawn.get(figure.name)
        section.others = [_panel(measured, section, analysis, other, chart) for other in others]
        if isinstance(figure.mark, Lines):  # drawn into the chart, if there is one
            section.others = [panel for panel in section.others if panel.missing]
        found[analysis.part].append(section)
    return {part: sections for part, sections in found.items() if sections}


def _panel(
    measured: Measured, section: Section, analysis: Analysis, other: Other, drawn: figures.Drawn | None
) -> Panel:
    """The same figure or table of another run."""
    mark, run, panel = section.figure.mark, other.run, Panel(other.name)
    if isinstance(mark, Examples):
        same = [cell["address"] for cell in section.examples] if run.cells == measured.run.cells else None
        panel.examples = _examples(run, mark, same)
        return panel
    rows = other.measured.of(analysis).rows
    if not rows:
        filled = other.measured.tables.get(analysis.name) is not None
        command = f"keyhole analyze {path(run)} --only {analysis.name}"
        panel.missing = f"the table {analysis.name} is empty" if filled else f"not measured yet: {command}"
    elif isinstance(mark, Listing):
        panel.rows = _listed(run, mark, rows)
    elif drawn is not None and other.name in drawn.panels:
        panel.spec = panel_name(section.figure.name, other.name)
    elif not isinstance(mark, Lines):
        panel.missing = f"the table {analysis.name} is without numbers"
    return panel


def _listed(run: Run, mark: Listing, rows: Rows) -> list[list[Any]]:
    return [
        [_shown(run, column, value) for column, value in zip(mark.columns, row, strict=True)]
        for row in mark.rows(run, rows)
    ]


def _section(measured: Measured, analysis: Analysis, figure: Figure, drawn: set[str]) -> Section:
    run, mark, measurement = measured.run, figure.mark, measured.of(analysis)
    rows = measured.tables.get(analysis.name)
    section = Section(
        figure,
        "listing" if isinstance(mark, Listing) else "examples" if isinstance(mark, Examples) else "chart",
        table=analysis.name,
        command=f"keyhole analyze {path(run)} --only {analysis.name}",
        note=measured.notes.get(analysis.name, ""),
        aside=figure.aside(measurement) if figure.aside else "",
        verdicts=measured.verdicts.get(figure.name, []),
    )
    if isinstance(mark, Examples):
        section.examples = _examples(run, mark)
        return section
    section.missing = "not filled yet" if rows is None else "" if rows else "empty"
    section.why = analysis.empty if section.missing == "empty" else ""
    if isinstance(mark, Listing):
        section.columns = list(mark.columns)
        section.rows = _listed(run, mark, measurement.rows)
        return section
    if figure.name not in drawn:
        section.missing = section.missing or "without numbers"
    columns = figure.columns or tuple(analysis.columns)
    section.columns = [column.replace("_", " ") for column in columns] if rows else []
    section.rows = [[text.decimal(row[column]) for column in columns] for row in measurement.rows]
    return section


def _shown(run: Run, column: Shown, value: Any) -> Any:
    """A value of a listing as the template shows it."""
    if column.kind == "trigger":
        return None if value is None else _context(run, value, LISTED_CONTEXT)
    if column.kind == "number":
        return text.decimal(value, column.digits)
    if column.kind == "percent":
        return "–" if value is None else percent(value)
    if column.kind == "label":
        return text.head(str(value), CONTEXT)
    return text.tail(str(value), CONTEXT) if column.kind == "text" else str(value)


def _examples(run: Run, mark: Examples, addresses: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Cells from every depth, or these, each with what its triggers share, counted."""
    cells = []
    for address in addresses or worth_showing(run, min(mark.cells, run.layers)):
        cell = run[address]
        triggers = cell.triggers
        lasts, follows = [t.tokens[-1] for t in triggers], [t.next_token for t in triggers if t.next_token is not None]
        said = [f"label: {label}" for label in patterns.labels(run, [(cell.layer, cell.index)]).values()]
        for how, tokens in (("end in", lasts), ("are followed by", follows)):
            if tokens and (count := tokens.count(common := max(tokens, key=tokens.count))) > 1:
                said.append(f"{count} of {len(triggers)} triggers {how} “{common.strip() or common}”")
        shown = [_context(run, trigger, CONTEXT) for trigger in triggers[: mark.triggers]]
        cells.append({"address": address, "shared": "; ".join(said), "triggers": shown})
    return cells


def _context(run: Run, trigger: Trigger, length: int) -> dict[str, str | None]:
    """A trigger for reading: the text before its last token, that token, the next one."""
    before, last = text.tail(run.vocabulary.text(trigger.ids[:-1]), length), trigger.tokens[-1]
    if last[:1] == " " and last.strip():  # the mark begins with the word
        before, last = before + " ", last[1:]
    return {"before": before, "last": last, "next": trigger.next_token}
