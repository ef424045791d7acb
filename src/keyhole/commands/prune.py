"""The command that takes cells out of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..common.output import put_json
from .options import AsJson, ModelNow, RunPath, TrustRemoteCode


def prune(
    run: RunPath,
    keep: Annotated[
        float | None, typer.Option(help="The share of the cells that stay, such as 0.75.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the pruned model into this folder.", show_default=False)
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve",
            help="Measure methods × shares, as a table and a figure. Nothing is written but the run's tables.",
        ),
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="Which cells go first: refit, flap, flap+refit, wanda, square, activity, duplicates, magnitude, maxabs, random. With --curve "
            "several, as in refit,flap.  [default: refit; with --curve all]",
            show_default=False,
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            help="With --curve: shares of the cells that go.  [default: 0.05,0.1,0.25,0.5]", show_default=False
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--global",
            help="Compare the cells of all layers. Layers then differ in width, and only Keyhole loads the model.",
        ),
    ] = False,
    valid: Annotated[
        list[str] | None,
        typer.Option(
            help="Text to measure on. May be repeated.  [default: documents that the scan held out, else documents that are set aside]",
            show_default=False,
        ),
    ] = None,
    fit_tokens: Annotated[
        int, typer.Option(help="Tokens of the run's text to choose cells on, at most.", min=256)
    ] = 65_536,
    tokens: Annotated[int, typer.Option(help="Tokens to measure on, at most.", min=256)] = 32_768,
    seed: Annotated[int, typer.Option(help="The seed of random choices.", min=0)] = 0,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of the written weights: float32, bfloat16, float16.  [default: the model's own]",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model that Keyhole wrote into that folder.")
    ] = False,
    model: ModelNow = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Take cells out of a model: a smaller checkpoint, and what it lost. Or measure what every method would lose (--curve)."""
    from ..analyses.analyze import analyze
    from ..errors import UsageError
    from ..uses.pruning import prune as uses
    from ..views import pruned, terminal
    from ..views.progress import Stages
    from .repeat import named_model

    if curve and (keep is not None or out is not None or dtype is not None or force):
        raise UsageError(
            "--curve measures and writes no model: leave out --keep, --out, --dtype and --force, or leave out --curve."
        )
    if not curve and shares is not None:
        raise UsageError("--shares goes with --curve. One model keeps one share: --keep 0.75.")
    if not curve and (keep is None or out is None):
        raise UsageError(
            "prune needs --keep and --out: keyhole prune RUN --keep 0.75 --out FOLDER. To measure only: keyhole prune RUN --curve"
        )
    names = None if by is None else [name.strip() for name in by.split(",") if name.strip()]
    if names is not None and (not names or (not curve and len(names) != 1)):
        raise UsageError(f"--by is {by!r}: name one method, or measure several with --curve.")
    options: dict[str, Any] = {
        "whole": whole,
        "valid": valid,
        "fit_tokens": fit_tokens,
        "tokens": tokens,
        "seed": seed,
        "model": named_model(run, model),
        "device": device,
        "trust_remote_code": trust_remote_code,
    }
    with Stages() as progress:
        if curve:
            opened = uses.prune_curve(run, by=names, shares=_shares(shares), progress=progress, **options)
        else:
            assert keep is not None
            assert out is not None
            done = uses.prune(
                run, out, keep=keep, by=(names or ["refit"])[0], dtype=dtype, force=force, progress=progress, **options
            )
            opened = done.run
        analyze(opened, only=["pruning", "pruned_kinds"])
    if curve:
        rows, kinds = opened.table("pruning"), opened.table("pruned_kinds")
        if as_json:
            put_json({"pruning": rows, "pruned_kinds": kinds})
        else:
            terminal.console().print(pruned.curve(rows, kinds, str(opened.path)))
    elif as_json:
        put_json(pruned.as_json(done))
    else:
        terminal.console().print(pruned.pruned(done))


def _shares(text: str | None) -> Sequence[float]:
    from ..errors import UsageError
    from ..uses.pruning.prune import SHARES

    if text is None:
        return SHARES
    found = []
    for each in text.split(","):
        try:
            found.append(float(each))
        except ValueError:
            raise UsageError(
                f"--shares has {each.strip()!r}, which is no number: give shares of the cells that go, as in 0.05,0.25."
            ) from None
    return found
