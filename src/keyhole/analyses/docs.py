"""What docs/analyses.md says of the analyses, written from their records.

    python -m keyhole.analyses.docs            writes it, between the two markers in docs/analyses.md
    python -m keyhole.analyses.docs FILE       the same, in another file

A test compares the file with the records, so that the page cannot go out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from ..common import pages
from . import registry, relations
from .record import NEEDS, Analysis, Column

COMPUTED = (
    "`keyhole sql` and `keyhole table` also read two relations that no analysis fills: they are computed from the run's arrays when a "
    "query names them, as far as it needs them, also in a run that was not analyzed. A column that was not computed yet is NULL. "
    "The explorer's table of all cells has the same columns, and `keyhole.columns(run)` gives them to Python as arrays."
)
BEGIN, END = "<!-- The records begin: python -m keyhole.analyses.docs -->", "<!-- The records end -->"


def updated(page: str) -> str:
    """The page with the text between its markers replaced."""
    return pages.replaced(page, BEGIN, END, described())


def described() -> str:
    """Every analysis, by part of the report."""
    lines = []
    for part in registry.parts():
        if members := [each for each in registry.analyses() if each.part == part]:
            lines += [f"### {part}", "", *(line for each in members for line in _analysis(each))]
    lines += ["### Cells and triggers", "", COMPUTED, ""]
    for schema in relations.SCHEMAS.values():
        lines += [f"#### `{schema.name}`", "", *_columns("column", schema.columns)]
    return "\n".join(lines)


def _analysis(analysis: Analysis) -> list[str]:
    lines = [f"#### `{analysis.name}`: {analysis.question}", ""]
    labels = [figure.label for figure in analysis.figures if figure.label]
    needs = [NEEDS[need] for need in analysis.needs if need != "begin"]
    said = [
        f"{', '.join(labels)}." if labels else "",
        analysis.method,
        f"Needs {', '.join(needs)}." if needs else "",
    ]
    if text := " ".join(each for each in said if each):
        lines += [text, ""]
    lines += _columns("column", analysis.columns) + _columns("fact", analysis.facts)
    if claims := [(claim, figure) for figure in analysis.figures for claim in figure.claims]:
        lines += ["Claims:", ""]
        lines += [f"- {claim.statement} ({figure.label or figure.title})" for claim, figure in claims] + [""]
    if analysis.measures:
        shown = ", ".join(f"{measure.title} (`{measure.name}`)" for measure in analysis.measures)
        lines += [f"Of every cell, on the explorer's map: {shown}.", ""]
    return lines


def _columns(kind: str, columns: Mapping[str, Column]) -> list[str]:
    if not columns:
        return []
    rows = [
        f"| `{name}` | {about.type} | {about.means.replace('|', chr(92) + '|')} |" for name, about in columns.items()
    ]
    return [f"| {kind} | type | meaning |", "|---|---|---|", *rows, ""]


def main(arguments: list[str]) -> None:
    file = Path(arguments[0] if arguments else "docs/analyses.md")
    file.write_text(updated(file.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
