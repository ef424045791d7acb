"""Commands about what people added to a run: annotations, collections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.output import printable, put_json, say
from .options import RunPath


def list_annotations(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """What people found in the triggers: how much of each layer is covered, how much annotators agree, and the notes on cells.

    Annotations and notes are files of the run: `scan --force` deletes them with it."""
    from ..store.annotations import summary
    from ..store.run import Run
    from ..views import terminal

    found = summary(Run(run))
    if as_json:
        put_json(found)
        return
    terminal.console().print(terminal.annotated(found, str(run)))


def list_collections(
    run: RunPath,
    name: Annotated[str, typer.Argument(help="A tag, `starred`, or `all`: only these cells.")] = "all",
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, which --import takes: keyhole collections RUN --json > FILE")
    ] = False,
    add: Annotated[
        Path | None,
        typer.Option("--import", help="Add the cells of such a file: all of them, or none if something does not fit."),
    ] = None,
) -> None:
    """The cells that people marked with a star, with tags or with a note.

    An import adds: stars and tags of both, and the notes of both if they differ. The files are in docs/explorer.md."""
    from ..errors import UsageError
    from ..store import collections
    from ..store.run import Run
    from ..views import terminal

    opened = Run(run)
    if add is not None:
        if as_json or name != collections.ALL:
            raise UsageError("--import takes the whole file and prints no list: leave out --json and the collection.")
        done = collections.merge(opened, _read(add))
        say(f"{printable(str(add))}: {done.cells:,} cells, {done.changed:,} of them new or changed.")
        return
    found = collections.export(opened, name)
    if as_json:
        put_json(found, indent=1)
        return
    damaged = collections.read_counting(opened)[1]
    terminal.console().print(terminal.collected(found["cells"], str(run), damaged))


def _read(file: Path) -> Any:
    import json

    from ..common.files import read_small
    from ..errors import UsageError

    try:
        return json.loads(read_small(file))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{file} cannot be read as a collection: {reason}.") from None
