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
from dataclasses import dataclass, field
from importlib import metadata, resources
from typing import Any

import altair
import jinja2
from markupsafe import Markup

from ... import __version__
from ...analyses import registry
from ...analyses.claims import percent
from ...analyses.measured import Measured
from ...analyses.record import OUTCOMES, Analysis, Examples, Figure, Listing, Shown, Verdict
from ...common import output
from ...store.run import Run, Trigger
from .. import figures, text
from ..worth import worth_showing

CONTEXT, LISTED_CONTEXT = 90, 60
"""Characters shown before a trigger's last token: among the examples, and in a listing."""
LISTED = 12
"""Rows of a listing that are always shown. The others are shown on request."""


def render(measured: Measured) -> str:
    """The page as text."""
    run = measured.run
    drawn = figures.draw_all(measured, figures.PAGE)
    specs = {each.figure.name: figures.spec(each.chart, page=True) for each in drawn}
    parts = _sections(measured, set(specs))
    weighed = [
        (section, verdict) for sections in parts.values() for section in sections for verdict in section.verdicts
    ]
    bundle, script = _bundle(), _file("report.js")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=text.safe)
    return environment.from_string(_file("report.html")).render(
        ours=_ours,
        blank=text.blank,
        listed=LISTED,
        model=text.model_name(run),
        facts=_facts(run),
        verdicts=weighed,
        counts={outcome: sum(verdict.outcome == outcome for _, verdict in weighed) for outcome in OUTCOMES},
        parts=parts,
        analyze=f"keyhole analyze {path(run)}",
        command=f"keyhole report {path(run)}",
        version=__version__,
        versions=_versions(run),
        hashes=Markup(" ".join(map(_hash, (bundle, script)))),
        style=Markup(_file("report.css")),
        specs=Markup(_embedded(specs)),
        bundle=Markup(bundle),
        script=Markup(script),
    )


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
        ("Cells", f"{run.cells.summary.removesuffix(' cells')} = {len(run.cells):,}"),
        ("Corpus", sources),
        ("Text", size),
        ("Scanned", f"{corpus['scanned_prefixes']:,} distinct prefixes; {run.top} triggers per key{one}"),
        ("Coefficients", "both signs" if run.signed else "never negative"),
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
    command: str = ""
    """the command that fills the table"""
    note: str = ""
    aside: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    columns: list[Any] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)


def _sections(measured: Measured, drawn: set[str]) -> dict[str, list[Section]]:
    """The sections, by part of the report."""
    found: dict[str, list[Section]] = {part: [] for part in registry.parts()}
    for analysis, figure in registry.report_order():
        found[analysis.part].append(_section(measured, analysis, figure, drawn))
    return {part: sections for part, sections in found.items() if sections}


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
    if isinstance(mark, Listing):
        section.columns = list(mark.columns)
        section.rows = [
            [_shown(run, column, value) for column, value in zip(mark.columns, row, strict=True)]
            for row in mark.rows(run, measurement.rows)
        ]
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
    return text.tail(str(value), CONTEXT) if column.kind == "text" else str(value)


def _examples(run: Run, mark: Examples) -> list[dict[str, Any]]:
    """Cells from every depth, each with what its triggers share, counted."""
    cells = []
    for address in worth_showing(run, min(mark.cells, run.layers)):
        triggers = run[address].triggers
        lasts, follows = [t.tokens[-1] for t in triggers], [t.next_token for t in triggers if t.next_token is not None]
        said = []
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
