"""Pages of the documentation that are partly written by a program: the text between two markers is replaced, the rest stays."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """The page with the text between its two markers replaced."""
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise UsageError(f"The page lacks the lines that the text is written between: {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def rewrite(file: Path, begin: str, end: str, text: str) -> None:
    file.write_text(replaced(file.read_text("utf-8"), begin, end, text), encoding="utf-8")
