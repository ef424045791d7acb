"""The report's page: what was measured → one HTML file. The template, its style and its script lie beside this file.

Corpus text is hostile: the template escapes every value, control characters become visible signs, and the page's
policy lets no script run but its own two, named by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
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
from ...analyses import paper, verdicts
from ...analyses.measured import Measured
from ...analyses.paper import Finding
from ...analyses.verdicts import Row, Verdict
from ...common import output
from ...store.run import Run, Trigger
from .. import figures
from .. import text as show
from ..worth import worth_showing

CELLS, TRIGGERS, CONTEXT = 6, 4, 90
"""Table 1: so many cells, triggers of each, characters before a trigger's last token."""


def render(measured: Measured) -> str:
    """The page as text."""
    run = measured.run
    look = figures.Look(run.layers, len(run.vocabulary), figures.PAGE)
    specs = {name: figures.spec(chart, page=True) for name, chart in figures.draw(measured.tables, look).items()}
    sections = _sections(measured, set(specs))
    weighed = [(section, verdict) for section in sections for verdict in section.verdicts]
    bundle, script = _bundle(), _file("report.js")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=_harmless)
    return environment.from_string(_file("report.html")).render(
        ours=_ours,
        blank=_blank,
        model=show.name(run),
        its_model=paper.ITS_MODEL,
        facts=_facts(run),
        verdicts=weighed,
        tally=_tally([verdict for _, verdict in weighed]),
        parts=[(part, [s for s in sections if s.finding.part == part]) for part in paper.PARTS],
        analyze=f"keyhole analyze {path(run)}",
        command=f"keyhole report {path(run)}",
        version=__version__,
        versions=_versions(run),
        citation=paper.CITATION,
        hashes=Markup(" ".join(map(_hash, (bundle, script)))),
        style=Markup(_file("report.css")),
        specs=Markup(_embedded(specs)),
        bundle=Markup(bundle),
        script=Markup(script),
    )


# Text made safe


def _harmless(value: Any) -> Any:
    """Control and direction characters become visible signs; markup of our own passes."""
    return output.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ours(text: str, lower: bool = False) -> str:
    """A sentence of our own, set well: a capital first, curly apostrophes, numbers kept with their signs and units."""
    text = text if lower else text[:1].upper() + text[1:]
    return _KEEP.sub("\u00a0", _APOSTROPHE.sub("’", text))


_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_KEEP = re.compile(r"(?<=\d) (?=%)|(?<=[pzρ]) (?=[<=])|(?<=[<=]) (?=[\d−])")


def _blank(token: str) -> str:
    """A token of nothing but white space, made visible."""
    if not token:
        return "(empty)"
    return "".join("␣" if c == " " else c if c in "\n\r\t" else f"U+{ord(c):04X}" for c in token)


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


def _bundle() -> str:
    """The charts' script, safe inside a page's script element."""
    return figures.bundle().replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or begin another."""
    text = json.dumps(output.plain(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# Head and foot


def path(run: Run) -> str:
    """The run as one would type it; where its path is absolute, only its name: a page travels, folders do not."""
    return run.path.name if run.path.is_absolute() else str(run.path)


def _facts(run: Run) -> list[tuple[str, str]]:
    model, corpus, config = (run.manifest[name] for name in ("model", "corpus", "config"))
    sources = ", ".join(os.path.basename(s) if os.path.isabs(s) else s for s in map(str, corpus["sources"]))
    revision = f" @ {model['revision'][:12]}" if model["revision"] else ""
    one = ", at most one a sentence" if config["per"] == "sentence" else ""
    text = f"{corpus['documents']:,} documents, {corpus['units']:,} {config['unit']}s, {corpus['tokens']:,} tokens"
    return [
        ("Model", f"{show.name(run)}{revision} ({model['family']})"),
        ("Cells", f"{run.cells.summary.removesuffix(' cells')} = {len(run.cells):,}"),
        ("Corpus", sources),
        ("Text", text),
        ("Scanned", f"{corpus['scanned_prefixes']:,} distinct prefixes; {run.top} triggers a key{one}"),
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


def _tally(found: list[Verdict]) -> str:
    counts = {outcome: sum(v.outcome == outcome for v in found) for outcome in ("holds", "does not hold", "unclear")}
    return (
        f"Of {len(found)} findings of the paper that were measured, {counts['holds']} hold for this model, "
        f"{counts['does not hold']} do not, {counts['unclear']} cannot be told. Each verdict is computed from the "
        "numbers below; the test is named beside the figure."
    )


# Figures and tables


@dataclass
class Section:
    """A figure or table with what the paper found and what was found here."""

    finding: Finding
    kind: str
    table: str = ""
    missing: str = ""
    command: str = ""
    note: str = ""
    aside: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return self.finding.label.lower().replace(" ", "-")


def _sections(measured: Measured, drawn: set[str]) -> list[Section]:
    """In the paper's order."""
    run = measured.run
    sections = [Section(paper.TABLE_1, "triggers", rows=_cells(run))]
    for finding in paper.FINDINGS:
        section = _section(measured, finding, "chart", figures.FIGURES[finding.name].table)
        rows = measured.tables[section.table] or []
        if finding.name not in drawn:
            section.missing = section.missing or "without numbers"
        section.columns, section.cells = _numbers(finding.name, rows)
        if finding.name == "zero_agreement":
            section.aside = _agreeing(rows)
        elif finding.name in ("agreement", "rank") and rows:
            section.aside = f"Values are read through the lens “{verdicts.main_lens(rows)}”."
        elif finding.name in ("active", "activity") and run.signed:
            section.aside = "This model's coefficients can be negative; those are not counted."
        sections.append(section)
        if finding.name == "confidence":
            sections.append(_confident(measured))
    cases = _section(measured, paper.TABLE_CASES, "cases", "cases")
    cases.rows = [_case(row) for row in measured.tables["cases"] or []]
    return [*sections, cases]


def _section(measured: Measured, finding: Finding, kind: str, table: str) -> Section:
    rows = measured.tables[table]
    return Section(
        finding,
        kind,
        table=table,
        missing="not filled yet" if rows is None else "" if rows else "empty",
        command=f"keyhole analyze {path(measured.run)} --only {table}",
        note=measured.notes.get(table, ""),
        verdicts=measured.verdicts.get(finding.name, []),
    )


COLUMNS = {
    "active": ("layer", "n", "active_fraction"),
    "zero_agreement": ("layer", "n", "zero_agreement", "lo", "hi", "agreeing_stopword_share", "agreeing_short_share"),
    "residual_match": ("layer", "n", "residual_match"),
    "final_probability": ("layer", "n", "final_prob_p25", "final_prob_median", "final_prob_p75"),
    "shares": ("layer", "n", "residual", "ffn", "agreement", "composition"),
}
"""What of its table a figure shows, where that is not all."""


def _numbers(figure: str, rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The rows behind a figure, as text."""
    if not rows:
        return [], []
    columns = list(COLUMNS.get(figure, tuple(rows[0])))
    return [c.replace("_", " ") for c in columns], [[_number(row[c]) for c in columns] for row in rows]


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float):
        small = 0 < abs(value) < 0.001
        digits = 1 - math.floor(math.log10(abs(value))) if small else 0 if abs(value) >= 1000 else 4
        return f"{value:,.{digits}f}".replace("-", "−")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _agreeing(rows: list[Row]) -> str:
    """What the exceptions of Figure 8 are like."""
    said = []
    for column, what in (
        ("agreeing_stopword_share", "stop words"),
        ("agreeing_short_share", "prefixes under 5 tokens"),
    ):
        if known := verdicts.present(rows, column):
            said.append(f"{verdicts.percent(sum(r[column] for r in known) / len(known))} {what}")
    return f"Where a cell agrees: {' and '.join(said)}, averaged over layers." if said else ""


def _cells(run: Run) -> list[dict[str, Any]]:
    """Table 1: cells from every depth, each with what its triggers share, counted."""
    cells = []
    for address in worth_showing(run, min(CELLS, run.layers)):
        triggers = run[address].triggers
        lasts, follows = [t.tokens[-1] for t in triggers], [t.next_token for t in triggers if t.next_token is not None]
        said = []
        for how, tokens in (("end in", lasts), ("are followed by", follows)):
            if tokens and (count := tokens.count(common := max(tokens, key=tokens.count))) > 1:
                said.append(f"{count} of {len(triggers)} triggers {how} “{common.strip() or common}”")
        cells.append(
            {"address": address, "shared": "; ".join(said), "triggers": [_context(run, t) for t in triggers[:TRIGGERS]]}
        )
    return cells


def _context(run: Run, trigger: Trigger, length: int = CONTEXT) -> dict[str, str | None]:
    """A trigger for reading: the text before its last token, that token, the next one."""
    before, last = _tail(run.vocabulary.text(trigger.ids[:-1]), length), trigger.tokens[-1]
    if last[:1] == " " and last.strip():  # the mark begins with the word
        before, last = before + " ", last[1:]
    return {"before": before, "last": last, "next": trigger.next_token}


def _tail(text: str, length: int) -> str:
    """The end of a long text, from the beginning of a word where one is near."""
    if len(text) <= length:
        return text
    tail = text[-length:]
    space = tail.find(" ", 0, 20)
    return "…" + (tail[space + 1 :] if space >= 0 else tail)


def _confident(measured: Measured) -> Section:
    """Table 2: each value with the strongest trigger that its token follows, or else the strongest."""
    section = _section(measured, paper.TABLE_2, "confident", "confident")
    rows = measured.tables["confident"] or []
    for row in rows:
        triggers = measured.run.triggers(row["layer"], row["cell"])
        agreeing = [t for t in triggers if t.next_token == row["token"]]
        example = next(iter(agreeing or triggers), None)
        section.rows.append(
            {
                "address": measured.run.cell(row["layer"], row["cell"]).address,
                "token": row["token"],
                "max_prob": _number(row["max_prob"]),
                "share": "–" if row["share"] is None else verdicts.percent(row["share"]),
                "trigger": _context(measured.run, example, 60) if example else None,
            }
        )
    if rows:
        agree = sum((row["share"] or 0) > 0 for row in rows)
        said = f"Of these {len(rows)} values, {agree} name the token that follows at least one of their triggers."
        section.aside = said
    return section


def _case(row: Row) -> dict[str, str]:
    similarity = "–" if row["similarity"] is None else verdicts.minus(row["similarity"], 2)
    tokens = {name: str(row[name]) for name in ("top_r", "top_y", "top_o")}
    return {**tokens, "prefix": _tail(row["prefix"], CONTEXT), "similarity": similarity}
