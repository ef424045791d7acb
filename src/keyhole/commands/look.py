"""Commands that look at a finished run: info, show, table, sql, tokens, match, report, compare, serve, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..common.output import printable, put_json, put_json_list, say
from .options import AsJson, ModelNow, RunPath, TrustRemoteCode

if TYPE_CHECKING:
    from ..store.run import Run


def info(run: RunPath) -> None:
    """Model, corpus, counts, dead cells per layer, size on disk."""
    from ..store.run import Run
    from ..views import terminal

    terminal.console().print(terminal.info(Run(run)))


def show(
    run: RunPath,
    cell: Annotated[str, typer.Argument(help="A cell's address, as in L12.345.")],
    limit: Annotated[int | None, typer.Option(help="Show at most this many triggers per side.", min=1)] = None,
    below: Annotated[
        bool, typer.Option("--below", help="Also show prefixes below the triggers, from bands of the coefficient.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """A cell: its statistics, what its value says, its triggers. A trigger's last token is marked, the next follows the arrow."""
    from ..store.run import Run
    from ..views import below as lower
    from ..views import data, terminal

    found = Run(run)[cell]
    if as_json:
        put_json(data.cell(found, limit=limit) | (lower.data(found) if below else {}), indent=1)
        return
    console = terminal.console()
    more = [lower.examples(found)] if below else []  # before anything is printed: the run may have none
    for part in (terminal.cell(found, limit=limit), *more):
        console.print(part)


Parquet = Annotated[Path | None, typer.Option(help="Write the rows into this file, as Parquet.", show_default=False)]


def table(
    run: RunPath,
    name: Annotated[str, typer.Argument(help="A table's name. Without one, the names of all tables are printed.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="As comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    parquet: Parquet = None,
) -> None:
    """A table that `analyze` filled, or `cells` and `triggers`: all cells with every measure, and all their triggers."""
    from ..analyses import measured, registry, relations
    from ..store import tables
    from ..store.run import Run

    opened, schemas = Run(run), registry.schemas()
    names = [*relations.SCHEMAS, *schemas]
    if not name:
        say("\n".join(names))
        return
    if name not in names:
        raise tables.unknown(name, names)
    if parquet or name in relations.SCHEMAS:
        _answer(opened, f'select * from "{name}"', csv, json, parquet, first=FIRST)
        return
    rows, note = tables.read_table(opened.path, name, schemas), measured.note(opened, name)
    _print_rows(rows, csv, json, note if rows else note or registry.get(name).empty)


FIRST = 20
"""Rows of `cells` and `triggers` that are printed on a terminal."""


def sql(
    run: RunPath,
    query: Annotated[str, typer.Argument(help='Any SQL over the tables, as in "select * from agreement".')],
    csv: Annotated[bool, typer.Option("--csv", help="As comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    parquet: Parquet = None,
) -> None:
    """Query the tables, all `cells` and all `triggers` with SQL. `definitions` lists every column. Nothing is changed."""
    from ..errors import UsageError
    from ..store.run import Run

    if not query.strip().strip(";").strip():
        raise UsageError('The query is empty. Ask for something: keyhole sql RUN "select * from agreement"')
    _answer(Run(run), query, csv, json, parquet)


def _answer(run: Run, query: str, csv: bool, json: bool, parquet: Path | None, first: int | None = None) -> None:
    """The rows of a query, in the form that was asked for; on a terminal, all or the `first`."""
    from ..analyses import relations
    from ..common.files import disk_errors
    from ..errors import UsageError
    from ..store import tables
    from ..views import text

    if csv + json + (parquet is not None) > 1:
        raise UsageError("--csv, --json and --parquet are different forms: choose one.")
    known = relations.of(run)
    if parquet:
        with disk_errors(parquet, full="Make room, and run the same command again.", refused="Choose another file."):
            tables.save_parquet(run.path, query, parquet, known)
        say(printable(str(parquet)))
    elif csv:
        for number, rows in enumerate(tables.stream(run.path, query, known)):
            sys.stdout.write(text.as_csv(rows, on_terminal=sys.stdout.isatty(), heading=number == 0))
    elif json:
        put_json_list(tables.stream(run.path, query, known))
    elif first is None:
        _print_rows(tables.query(run.path, query, known), csv, json, None)
    else:
        rows = tables.query(run.path, f"{query} limit {first}", known)
        total = tables.query(run.path, query.replace("*", "count(*) as n", 1), known)[0]["n"]
        note = f"the first {len(rows):,} of {total:,} rows; all of them: --csv, --json or --parquet FILE"
        _print_rows(rows, csv, json, note if total > first else None)


def _print_rows(rows: list[dict[str, Any]], csv: bool, json: bool, note: str | None) -> None:
    from ..errors import UsageError
    from ..views import terminal, text

    if csv and json:
        raise UsageError("--csv and --json are two forms: choose one.")
    if csv:
        sys.stdout.write(text.as_csv(rows, on_terminal=sys.stdout.isatty()))
    elif json:
        put_json(rows, indent=1)
    else:
        terminal.console().print(terminal.rows(rows, note))


def tokens(
    run: RunPath,
    token: Annotated[str, typer.Argument(help='A token as text, with its leading space: " Paris".')],
    limit: Annotated[int, typer.Option(help="Show at most this many cells per list.", min=1)] = 20,
    lens: Annotated[
        str | None, typer.Option(help="norm, raw or mapped.  [default: the first of these that was analyzed]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The cells whose values promote a token, and those whose values demote it, strongest first."""
    from ..store.run import Run
    from ..store.values import LENSES, Values, available, token_id
    from ..views import data, terminal

    opened = Run(run)
    said = Values(opened, lens or next(iter(available(opened)), LENSES[0]))
    if as_json:
        put_json(data.token(said, token_id(opened, token), limit), indent=1)
        return
    terminal.console().print(terminal.token(said, token_id(opened, token), limit))


def match(
    run: RunPath,
    text: Annotated[str, typer.Argument(help="A text, or the name of a file or folder that holds one.")],
    cells: Annotated[
        list[str] | None,
        typer.Option(help="Run the rules of this cell (L12.345) or layer (L12) only. May be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many cells per position, the strongest.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Which cells should fire where in a text, by the rules that `keyhole patterns` found. No model is needed."""
    from ..patterns.matching import match as run_rules
    from ..store.run import Run
    from ..views import matched, terminal
    from ..views.progress import Stages

    with Stages() as progress:
        found = run_rules(
            Run(run), text, cells=cells or (), limit=limit, begin=lambda layers: progress("rules of layers", layers)
        )
    if as_json:
        put_json([place.to_json() for place in found])
        return
    console = terminal.console()
    for part in matched.parts(found):
        console.print(part)


def report(
    run: RunPath,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print tables, facts, notes and verdicts; write no page.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Also write the figures into this folder, as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write the figures into this folder, as PNG.")] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            help="Another run to show beside this one: a control, another corpus, another model. May be repeated."
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the claims into this file, as a Markdown table.")
    ] = None,
) -> None:
    """Write report/index.html into the run: every figure for this model, with verdicts on the paper's claims. It opens offline."""
    from ..common.files import disk_errors, replace_bytes
    from ..store.run import Run
    from ..views.report import write as page

    opened, others = Run(run), [Run(other) for other in beside or []]
    if as_json:
        put_json(page.data(opened, others))
        return
    say(printable(str(page.write(opened, others))))
    for folder, kind in ((svg, "svg"), (png, "png")):
        if folder:
            for file in page.save_figures(opened, folder, kind, others):
                say(printable(str(file)))
    if markdown:
        with disk_errors(markdown, full="Make room, and run the same command again.", refused="Choose another file."):
            markdown.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(markdown, page.markdown(opened, others).encode("utf-8", "replace"), alone=False)
        say(printable(str(markdown)))


def compare(
    a: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="A run of the same model over another corpus.", show_default=False)],
    cells: Annotated[int, typer.Option(help="List at most this many cells that look different.", min=0)] = 20,
    seed: Annotated[int, typer.Option(help="The seed of the null, which deals cells out anew.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the numbers of every cell.")] = False,
) -> None:
    """One model over two corpora: how far a cell's triggers agree, per layer, and the cells that look different."""
    from ..analyses.compare import compare as run_compare
    from ..views import compared, terminal

    found = run_compare(a, b, cells=cells, seed=seed)
    if as_json:
        put_json(found.to_json())
        return
    terminal.console().print(compared.comparison(found))


def serve(
    run: RunPath,
    host: Annotated[
        str, typer.Option(help="The address to listen on. One that other machines can reach needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port. If it is taken, the next free one.", min=0, max=65535)] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    token: Annotated[
        str | None, typer.Option(help="Required from every client.  [default: a random one if --host needs it]")
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="Another run, shown beside this one: on every page if it has the same cells (another corpus, a control), else on the overview."
        ),
    ] = None,
    model: ModelNow = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Serve the explorer: every cell, in the browser."""
    from ..store.run import Run
    from ..web.serve import serve as answer

    answer(
        Run(run),
        host=host,
        port=port,
        browse=not no_open,
        token=token,
        model=model,
        trust_remote_code=trust_remote_code,
        beside=Run(beside) if beside else None,
    )


def export(
    run: RunPath,
    site: Annotated[Path, typer.Argument(help="The folder to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the export that is there.")] = False,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="Another run, shown beside this one: on every page if it has the same cells (another corpus, a control), else on the overview."
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="Only these layers, as in 3,10-12. Together with --cells and --collection: all of them."),
    ] = None,
    cells: Annotated[list[str] | None, typer.Option(help="Only this cell, as in L3.17. May be repeated.")] = None,
    collection: Annotated[
        str | None, typer.Option(help="Only the cells of a collection: starred, all (that are marked), or a tag.")
    ] = None,
) -> None:
    """Write the explorer as files for any static host, without prompts and saving. Look: python -m http.server -d SITE"""
    from ..errors import UsageError
    from ..export.site import export as write
    from ..store.run import Run
    from ..views.progress import Stages

    for option, given in (("layers", layers), ("cells", cells), ("collection", collection)):
        if given is not None and not all(part.strip() for part in ([given] if isinstance(given, str) else given)):
            raise UsageError(f"--{option} is empty. Leave it out to export everything.")
    with Stages() as progress:
        other = Run(beside) if beside else None
        done = write(
            Run(run),
            site,
            force=force,
            beside=other,
            layers=layers or (),
            cells=cells or (),
            collection=collection,
            progress=progress,
        )
    where = printable(str(site))
    say(f"{where}: {done.files:,} files, {done.bytes / 1e6:,.1f} MB. Look: python -m http.server -d {where}")
