"""The addresses in docs/http.md, written from `addresses.py`.

    python -m keyhole.web.docs            writes them, between the two markers in docs/http.md
    python -m keyhole.web.docs FILE       the same, in another file

A test compares the file with the addresses, so that the page cannot go out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec import NODEFAULT, structs

from ..common import pages
from . import addresses

BEGIN, END = "<!-- The addresses begin: python -m keyhole.web.docs -->", "<!-- The addresses end -->"


def updated(page: str) -> str:
    """The page with the text between its markers replaced."""
    return pages.replaced(page, BEGIN, END, described())


def described() -> str:
    """One table of what can be read, also from an export, and one of what only the server answers."""
    lines = ["| address | answer | |", "| --- | --- | --- |"]
    for name, data in addresses.DATA.items():
        numbers = "".join(f"/{{{number}}}" for number in data.numbers)
        lines.append(f"| `GET /data/{name}{numbers}.json` | `{data.answer.__name__}` | {_first(data.answer)} |")
    lines += ["", "| address | fields of the request | answer | |", "| --- | --- | --- | --- |"]
    for each in addresses.API:
        asked = ", ".join(_field(field) for field in structs.fields(each.asked)) if each.asked else ""
        answer = f"`{each.answer.__name__}`" + (", one per line" if each.streamed else "")
        answer = f"a file: `{each.media}`" if each.media else answer
        lines.append(f"| `{each.method.upper()} /api/{each.path}` | {asked} | {answer} | {each.summary} |")
    return "\n".join([*lines, ""])


def _first(answer: type) -> str:
    """The first sentence of a type's description."""
    return " ".join((answer.__doc__ or "").split()).partition(". ")[0].rstrip(".") + "."


def _field(field: structs.FieldInfo) -> str:
    optional = field.default is not NODEFAULT or field.default_factory is not NODEFAULT
    return f"`{field.encode_name}`" + (" (optional)" if optional else "")


if __name__ == "__main__":
    pages.rewrite(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/http.md"), BEGIN, END, described())
