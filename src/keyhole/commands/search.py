"""The command that searches a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..common.output import put_json
from .options import ModelNow, RunPath, TrustRemoteCode

if TYPE_CHECKING:
    from ..store.run import Run


def search(
    run: RunPath,
    query: Annotated[
        str,
        typer.Argument(
            help="Words, or several with 'or': money or dollar. In quotes, a text as it stands. 'like L12.345': its neighbours."
        ),
    ],
    limit: Annotated[int, typer.Option(help="List at most this many cells of each kind.", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    model: ModelNow = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find cells: keys whose triggers end in a word, contain it or come before it; values that promote it; labels that name it."""
    from ..errors import UsageError
    from ..searching import find
    from ..searching.query import like, unquoted
    from ..store.run import Run
    from ..views import searched, terminal

    if not query.strip():
        raise UsageError("The query is empty. Search for something: keyhole search RUN money")
    opened = Run(run)
    if cell := _cell(opened, query):
        raise UsageError(
            f"{cell} is a cell. Show it: keyhole show RUN {cell}. Its neighbours: keyhole search RUN 'like {cell}'. "
            f"To search for the text, quote it: '\"{query.strip()}\"'."
        )
    text = unquoted(like(query) or "")
    if text is None:
        result = find.search(opened, query, nearest=limit)
        if as_json:
            put_json(result.to_json(limit))
        else:
            terminal.console().print(searched.found(result, limit))
        return
    from ..models.rerun import model_of
    from ..uses.nearest import nearest

    near = nearest(opened, model_of(opened, model, trust_remote_code=trust_remote_code), text, limit)
    if as_json:
        result = find.Found(opened, query)
        keys = [result.cell(place) | {"share": share} for place, share in near.keys]
        said = [result.cell(place) | {"cosine": cosine} for place, cosine in near.values]
        put_json({"query": query, "text": text, "tokens": near.tokens, "keys": keys, "values": said})
        return
    result = find.Found(opened, query)
    terminal.console().print(searched.near(f"‘{text}’", result, near.keys, near.values, limit, "share of its largest"))


def _cell(run: Run, query: str) -> str | None:
    """The cell that a query names; None if it names no cell of the run, and so is a text."""
    from ..errors import UsageError

    try:
        return run.cells.address(run.cells.find(query.strip()))
    except UsageError:
        return None
