"""The command that finds what a model says by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..common.output import put_json
from .options import AsJson, ModelNow, RunPath, TrustRemoteCode


def leak(
    run: RunPath,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text that the model was trained on. May be repeated.  [default: what was scanned]", show_default=False
        ),
    ] = None,
    secrets: Annotated[
        Path | None,
        typer.Option(help="A list of secrets, one per line: measure the exposure of each.", show_default=False),
    ] = None,
    prefix: Annotated[int, typer.Option(help="Tokens of a prompt, at most.")] = 16,
    least_prefix: Annotated[
        int, typer.Option(help="Tokens of a prompt, at least: fewer stand before at a document's start.")
    ] = 4,
    length: Annotated[int, typer.Option(help="Tokens of a leak, at least.")] = 8,
    tokens: Annotated[
        int,
        typer.Option(help="Tokens to read, at most: what stands more than once first, then windows at random."),
    ] = 1_000_000,
    localise: Annotated[int, typer.Option(help="Leaks whose cells are looked for: the first ones.")] = 10,
    candidates: Annotated[int, typer.Option(help="Lines that each secret is compared with.")] = 1000,
    valid: Annotated[
        list[str] | None,
        typer.Option(
            help="Other text, for the change of the perplexity.  [default: what the scan held out, else documents set aside]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of random choices.")] = 0,
    model: ModelNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Find what the model says by heart, how often that stands in the text, and in which cells it is."""
    from ..analyses import measured
    from ..analyses.analyze import analyze
    from ..uses.leaks.leak import leak as find
    from ..views import leaks, terminal
    from ..views.progress import Stages
    from .repeat import named_model

    with Stages() as progress:
        found = find(
            run,
            text=text,
            secret_list=secrets,
            prefix=prefix,
            least_prefix=least_prefix,
            length=length,
            tokens=tokens,
            localise=localise,
            candidates=candidates,
            valid=valid,
            seed=seed,
            model=named_model(run, model),
            device=device,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
        analyze(found, only=["leaks", "leak_cells", "leak_repeats"])
    rows, cells, repeats = (found.table(name) for name in ("leaks", "leak_cells", "leak_repeats"))
    if as_json:
        put_json({"note": measured.note(found, "leaks"), "leaks": rows, "leak_cells": cells, "leak_repeats": repeats})
    else:
        terminal.console().print(leaks.leaks(found, rows, cells, repeats, measured.note(found, "leaks")))
