"""The claims of a report as a Markdown table, for a page of findings: one command writes it again."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...analyses import registry
from ...analyses.beside import Compared, Other
from ...analyses.measured import Measured
from ...analyses.record import Figure, Verdict
from ...common.output import printable
from .. import text
from .page import adjusted, compared_with, counted, effect, path

LETTERS = "BCDE"
"""What other runs are called in the table, in their order."""


def table(measured: Measured, others: Sequence[Other] = ()) -> str:
    """What was measured on, how many claims have which outcome, and a line per claim."""
    run, corpus = measured.run, measured.run.manifest["corpus"]
    command = " ".join(
        ["keyhole report", path(run), *(f"--beside {path(each.run)}" for each in others), "--markdown FILE"]
    )
    claims = [
        (figure, verdict) for _, figure in registry.report_order() for verdict in measured.verdicts.get(figure.name, [])
    ]
    lines = [
        f"**{_cell(text.model_name(run))}** ({run.cells.summary}) over {corpus['scanned_prefixes']:,} distinct prefixes of "
        f"{_cell(', '.join(_names(corpus['sources'])))}.",
    ]
    if not claims:
        return "\n".join([*lines, "", f"Nothing is measured yet: `{_code(f'keyhole analyze {path(run)}')}`", ""])
    said = ", ".join(f"{count} {outcome}" for outcome, count in counted([each for _, each in claims]).items())
    lines += [f"{len(claims)} claims: {said}.", ""]
    lines += [
        f"Beside it, {letter}: **{_cell(each.name)}**"
        + (f" (not measured there: {', '.join(each.missing)})" if each.missing else "")
        + ".\n"
        for letter, each in zip(LETTERS, others, strict=False)
    ]
    heads = ["claim", "the paper", "effect (95 % interval)", "at least", "adjusted p", "outcome"]
    for letter in LETTERS[: len(others)]:
        heads += [f"{letter}: effect", f"{letter}: outcome", f"differs from {letter}"]
    lines += [_line(heads), _line(["---"] * len(heads))]
    compared = compared_with(others)
    for figure, verdict in claims:
        lines.append(_line([*_own(figure, verdict), *_theirs(compared.get(verdict.claim, []))]))
    return "\n".join([*lines, "", f"Written by `{_code(command)}`.", ""])


def _own(figure: Figure, verdict: Verdict) -> list[str]:
    found = verdict.effect
    where = f" ({figure.label})" if figure.label else ""
    return [
        f"{verdict.claim}{where}",
        figure.paper.published if figure.paper else "–",
        effect(found),
        text.significant(found.against) if found else "–",
        adjusted(verdict),
        f"**{verdict.outcome}**",
    ]


def _theirs(claims: Sequence[Compared]) -> list[str]:
    found = []
    for each in claims:
        between = "" if each.difference is None or each.difference.lo is None else f", by {effect(each.difference)}"
        result = {"differs": "yes", "no clear difference": "not clearly"}.get(each.result, each.why) + between
        found += [effect(each.other.effect) if each.other else "–", each.other.outcome if each.other else "–", result]
    return found


def _names(sources: Sequence[object]) -> list[str]:
    return [str(source).rstrip("/").rsplit("/", 1)[-1] for source in sources]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _code(said: str) -> str:
    return printable(said).replace("`", "'")


def _cell(said: str) -> str:
    """Text that neither ends a cell nor begins a line or an element; Keyhole's own emphasis stays."""
    return re.sub(r"([|<>`\[\]])", r"\\\1", printable(said))
