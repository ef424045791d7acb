"""The command line: the list of commands. Each is a function in `commands/`."""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__
from .commands import leak, look, make, people, prune, search, use
from .commands.help import FromRecords, Sentences

app = typer.Typer(
    name="keyhole",
    cls=Sentences,
    help="Look through the feed-forward memories of a transformer: what makes every key fire, what every value says.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(make.scan)
app.command()(look.info)
app.command()(look.show)
app.command(cls=FromRecords)(make.analyze)
app.command()(make.patterns)
app.command()(look.table)
app.command()(look.sql)
app.command()(look.tokens)
app.command()(search.search)
app.command()(look.match)
app.command()(prune.prune)
app.command()(leak.leak)
app.command(cls=use.OwnText)(use.edit)
app.command()(make.verify)
app.command()(make.merge)
app.command()(look.report)
app.command()(look.compare)
app.command()(look.serve)
app.command()(look.export)
app.command("annotations")(people.list_annotations)
app.command("collections")(people.list_collections)
app.command()(make.demo)


def _version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """The console script."""
    from .outcome import run_to_the_end

    run_to_the_end(app)


if __name__ == "__main__":
    main()
