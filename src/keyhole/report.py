"""The report: the paper's figures for this model, on one page that needs nothing but itself.

    report.write(run)        → report/index.html in the run directory
    report.figures(run)      → Altair charts, for a notebook
    report.data(run)         → tables, notes and verdicts, as one JSON value
    report.save_figures(...) → the charts as SVG or PNG files

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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import altair
import jinja2
import vl_convert
from markupsafe import Markup

from . import __version__, paper, show, store, tables, verdicts
from . import figures as charts
from .demo import worth_showing
from .errors import RunError
from .paper import Finding
from .run import Run, Trigger
from .verdicts import Row, Verdict

CELLS, TRIGGERS, CONTEXT = 6, 4, 90
Tables = dict[str, list[Row] | None]


# What the report reads


def read(run: Run) -> tuple[Tables, dict[str, str]]:
    """Every table (None where it is not filled) and the notes on them."""
    found: Tables = dict.fromkeys(tables.SCHEMAS)
    notes: dict[str, str] = {}
    if store.tables_file(run.path).exists():
        with tables.connect(run.path) as db:
            filled = tables.names(db)
        for name in found:
            if name in filled:
                found[name] = run.table(name)
                if note := tables.note(run.path, name):
                    notes[name] = note
    return found, notes


def weigh(run: Run, found: Tables, notes: dict[str, str]) -> dict[str, list[Verdict]]:
    """The verdicts of every figure and table that has rows."""
    judges: dict[str, tuple[str, Callable[[Any], list[Verdict]]]] = {
        "mutation": ("mutation", verdicts.mutation),
        "activity": ("activity", partial(verdicts.activity, cells=run.cells)),
        "agreement": ("agreement", verdicts.agreement),
        "rank": ("rank", verdicts.rank),
        "confidence": ("confidence", verdicts.confidence),
        "confident": ("confident", partial(verdicts.confident, layers=run.layers)),
        "active": ("composition", verdicts.active),
        "zero_agreement": ("composition", verdicts.composition),
        "residual_match": ("refinement", verdicts.residual_match),
        "final_probability": ("refinement", verdicts.final_probability),
        "shares": ("refinement", verdicts.shares),
        "cases": ("cases", partial(verdicts.cases, distant=_chance(notes.get("cases", "")))),
    }
    return {name: judge(rows) for name, (table, judge) in judges.items() if (rows := found[table])}


def _chance(note: str) -> float:
    """The cosine that pairs of unrelated predictions hardly exceed: the table's note says it."""
    match = re.search(r"(\d\.\d+) at the 95th percentile", note)
    return float(match[1]) if match else verdicts.DISTANT


def figures(run: Run) -> dict[str, charts.Chart]:
    """The charts, by name: for a notebook, or for files."""
    return _draw(run, read(run)[0], charts.LIGHT)


def _draw(run: Run, found: Tables, palette: charts.Palette) -> dict[str, charts.Chart]:
    return charts.draw(found, charts.Look(run.layers, len(run.vocabulary), palette))


def data(run: Run) -> dict[str, Any]:
    """Everything the page says, as one value that JSON can hold: what is not a number is null."""
    found, notes = read(run)
    weighed = weigh(run, found, notes)
    return {
        "run": {"path": _path(run), "model": show.name(run), "layers": run.layers, "cells": run.cells}
        | {"corpus": run.manifest["corpus"], "keyhole": __version__},
        "tables": {
            name: None if rows is None else [{column: _plain(value) for column, value in row.items()} for row in rows]
            for name, rows in found.items()
        },
        "notes": notes,
        "verdicts": {name: [asdict(verdict) for verdict in each] for name, each in weighed.items()},
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Files


def write(run: Run) -> Path:
    """Write the page into the run directory, whole or not at all."""
    path = store.report_file(run.path)
    page = render(run).encode("utf-8", "replace")
    with store.disk_errors(path):
        path.parent.mkdir(exist_ok=True)
        store.replace_file(path, lambda file: file.write(page))
    return path


def save_figures(run: Run, folder: Path, kind: str) -> list[Path]:
    """Each figure as `folder`/NAME.svg or .png."""
    written = []
    with store.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in figures(run).items():
            path, spec = folder / f"{name}.{kind}", charts.spec(chart)
            if kind == "svg":
                path.write_text(vl_convert.vegalite_to_svg(spec, vl_version=_vega_lite()), encoding="utf-8")
            else:
                path.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=_vega_lite(), scale=2))
            written.append(path)
    if not written:
        raise RunError(f"{run.path} has no tables to draw yet. Fill them: keyhole analyze {run.path}")
    return written


def _vega_lite() -> str:
    """The Vega-Lite that the charts are written for, in the spelling of vl_convert; its newest where it lacks that one."""
    wanted = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    return str(wanted if wanted in known else known[-1])


# The page


@dataclass(frozen=True)
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


def render(run: Run) -> str:
    """The page as text."""
    found, notes = read(run)
    sections = _sections(run, found, notes, weigh(run, found, notes))
    specs = {name: charts.spec(chart, page=True) for name, chart in _draw(run, found, charts.PAGE).items()}
    bundle, script = _bundle(), _file("report.js")
    parts = [
        (part, [s for s in sections if s.finding.part == part]) for part in (paper.KEYS, paper.VALUES, paper.OUTPUT)
    ]
    weighed = [(section, verdict) for section in sections for verdict in section.verdicts]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=_harmless)
    return environment.from_string(_file("report.html")).render(
        ours=_ours,
        model=show.name(run),
        its_model=paper.ITS_MODEL,
        facts=_facts(run),
        verdicts=weighed,
        tally=_tally([verdict for _, verdict in weighed]),
        parts=parts,
        analyze=f"keyhole analyze {_path(run)}",
        command=f"keyhole report {_path(run)}",
        version=__version__,
        versions=_versions(run),
        citation=paper.CITATION,
        hashes=Markup(" ".join(map(_hash, (bundle, script)))),
        style=Markup(_file("report.css")),
        specs=Markup(_embedded(specs)),
        bundle=Markup(bundle),
        script=Markup(script),
    )


def _harmless(value: Any) -> Any:
    """Control and direction characters become visible signs; markup of our own passes."""
    return show.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _ours(text: str, lower: bool = False) -> str:
    """A sentence of our own, set well: a capital first, curly apostrophes, numbers kept with their signs and units."""
    text = text if lower else text[:1].upper() + text[1:]
    return _KEEP.sub("\u00a0", text.replace("'", "’"))


_KEEP = re.compile(r"(?<=\d) (?=%)|(?<=[pzρ]) (?=[<=])|(?<=[<=]) (?=[\d−])")


def _file(name: str) -> str:
    return (resources.files("keyhole") / "page" / name).read_text("utf-8")


def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, safe inside a page's script element."""
    code = str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_vega_lite()))
    return code.replace("\r", "").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or begin another."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _path(run: Run) -> str:
    """The run as one would type it; where its path is absolute, only its name: a page travels, folders do not."""
    return run.path.name if run.path.is_absolute() else str(run.path)


def _facts(run: Run) -> list[tuple[str, str]]:
    model, corpus, config = (run.manifest[name] for name in ("model", "corpus", "config"))
    sources = ", ".join(os.path.basename(s) if os.path.isabs(s) else s for s in map(str, corpus["sources"]))
    one = ", at most one a sentence" if config["per"] == "sentence" else ""
    revision = f" @ {model['revision'][:12]}" if model["revision"] else ""
    return [
        ("Model", f"{show.name(run)}{revision} ({model['family']})"),
        ("Cells", f"{run.layers} layers × {run.cells:,} = {run.layers * run.cells:,}"),
        ("Corpus", sources),
        (
            "Text",
            f"{corpus['documents']:,} documents, {corpus['units']:,} {config['unit']}s, {corpus['tokens']:,} tokens",
        ),
        (
            "Scanned",
            f"{corpus['scanned_prefixes']:,} distinct prefixes; {run.top} triggers a key{one}",
        ),
        ("Coefficients", "both signs" if run.signed else "never negative"),
    ]


def _versions(run: Run) -> str:
    scanned = {"keyhole": run.manifest["keyhole"], **run.manifest["versions"]}
    drawn = {
        "python": platform.python_version(),
        "altair": altair.__version__,
        "vl-convert": metadata.version("vl-convert-python"),
        "vega-lite": _vega_lite(),
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


def _sections(run: Run, found: Tables, notes: dict[str, str], weighed: dict[str, list[Verdict]]) -> list[Section]:
    sections = [Section(paper.TABLE_1, "triggers", rows=_cells(run))]
    for finding in paper.FINDINGS:
        table = charts.FIGURES[finding.name][0]
        columns, cells = _numbers(finding.name, found[table] or [])
        aside = _agreeing(found[table] or []) if finding.name == "zero_agreement" else ""
        if finding.name in ("active", "activity") and run.signed:
            aside = "This model's coefficients can be negative; those are not counted."
        made = _section(run, finding, "chart", table, found, notes, weighed)
        sections.append(Section(**{**made, "columns": columns, "cells": cells, "aside": aside}))
    sure = _section(run, paper.TABLE_2, "confident", "confident", found, notes, weighed)
    rows = [_confident(run, row) for row in found["confident"] or []]
    aside = ""
    if rows:
        agree = sum((row["share"] or 0) > 0 for row in found["confident"] or [])
        aside = f"Of these {len(rows)} values, {agree} name the token that follows at least one of their triggers."
    values = [i for i, s in enumerate(sections) if s.finding.part == paper.VALUES]
    sections.insert(values[-1] + 1, Section(**{**sure, "rows": rows, "aside": aside}))
    last = _section(run, paper.TABLE_CASES, "cases", "cases", found, notes, weighed)
    sections.append(Section(**{**last, "rows": [_case(row) for row in found["cases"] or []]}))
    return sections


def _section(
    run: Run, finding: Finding, kind: str, table: str, found: Tables, notes: dict[str, str], weighed: dict[str, Any]
) -> dict[str, Any]:
    return {
        "finding": finding,
        "kind": kind,
        "table": table,
        "missing": "not filled yet" if found[table] is None else "" if found[table] else "empty",
        "command": f"keyhole analyze {_path(run)} --only {table}",
        "note": notes.get(table, ""),
        "verdicts": weighed.get(finding.name, []),
    }


# Tables of the page

COLUMNS = {
    "active": ("layer", "n", "active_fraction"),
    "zero_agreement": ("layer", "n", "zero_agreement", "lo", "hi", "agreeing_stopword_share", "agreeing_short_share"),
    "residual_match": ("layer", "n", "residual_match"),
    "final_probability": ("layer", "n", "final_prob_p25", "final_prob_median", "final_prob_p75"),
    "shares": ("layer", "n", "residual", "ffn", "agreement", "composition"),
}


def _numbers(figure: str, rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """The rows behind a figure, as text."""
    if not rows:
        return [], []
    columns = list(COLUMNS.get(figure, tuple(rows[0])))
    return [c.replace("_", " ") for c in columns], [[_number(row[c]) for c in columns] for row in rows]


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}".replace("-", "−")
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


def _context(trigger: Trigger, length: int = CONTEXT) -> dict[str, str | None]:
    """A trigger for reading: the text before its last token, that token, the next one."""
    before = "".join(trigger.tokens[:-1])
    if len(before) > length:
        before = _tail(before, length)
    last = trigger.tokens[-1]
    if last[:1] == " " and last.strip():  # the mark begins with the word
        before, last = before + " ", last[1:]
    return {"before": before, "last": last, "next": trigger.next_token}


def _tail(text: str, length: int) -> str:
    """The end of a long text, from the beginning of a word where one is near."""
    tail = text[-length:]
    space = tail.find(" ", 0, 20)
    return "…" + (tail[space + 1 :] if space >= 0 else tail)


def _cells(run: Run) -> list[dict[str, Any]]:
    """Table 1: cells from every depth, each with what its triggers share, counted."""
    cells = []
    for address in worth_showing(run, min(CELLS, run.layers)):
        triggers = run[address].triggers
        lasts, follows = [t.tokens[-1] for t in triggers], [t.next_token for t in triggers if t.next_token is not None]
        said = []
        for kind, tokens in (("end", lasts), ("are followed", follows)):
            if tokens and (count := tokens.count(common := max(tokens, key=tokens.count))) > 1:
                verb = "in" if kind == "end" else "by"
                said.append(f"{count} of {len(triggers)} triggers {kind} {verb} “{common.strip() or common}”")
        cells.append(
            {"address": address, "shared": "; ".join(said), "triggers": [_context(t) for t in triggers[:TRIGGERS]]}
        )
    return cells


def _confident(run: Run, row: Row) -> dict[str, Any]:
    """A row of Table 2, with the strongest trigger that its token follows, or else the strongest."""
    triggers = run.triggers(row["layer"], row["cell"])
    agreeing = [t for t in triggers if t.next_token == row["token"]]
    example = next(iter(agreeing or triggers), None)
    return {
        "address": f"L{row['layer']}.{row['cell']}",
        "token": row["token"],
        "max_prob": f"{row['max_prob']:.3f}",
        "share": "–" if row["share"] is None else verdicts.percent(row["share"]),
        "trigger": _context(example, 60) if example else None,
    }


def _case(row: Row) -> dict[str, str]:
    prefix = row["prefix"] if len(row["prefix"]) <= CONTEXT else _tail(row["prefix"], CONTEXT)
    similarity = "–" if row["similarity"] is None else verdicts.minus(row["similarity"], 2)
    return {**{name: row[name] for name in ("top_r", "top_y", "top_o")}, "prefix": prefix, "similarity": similarity}
