"""Commands that use the memories: edit."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..common.output import put_json
from .options import AsJson, ModelNow, TrustRemoteCode


class OwnText(TyperCommand):
    """A command whose option --check may stand alone: then it is the run's own text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        followed = zip_longest(args, args[1:], fillvalue="--")
        alone = [each == "--check" and after.startswith("-") and after != "-" for each, after in followed]
        return super().parse_args(ctx, [f"{each}=" if one else each for each, one in zip(args, alone, strict=True)])


def edit(
    model_or_run: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model: a hub id, a folder, a .gguf file. Or a run directory: its model, and sets of cells can be edited.",
            show_default=False,
        ),
    ],
    edits: Annotated[
        Path, typer.Argument(help="A file of edits: one that the explorer saved, or a JSON list.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the edited model into this folder, as a checkpoint.", show_default=False)
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="Say what else changes on this text. With a run it may stand alone: the text that the scan held out, or the scanned one.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Check on at most this many tokens.", min=256)] = 1 << 14,
    dtype: Annotated[
        str | None,
        typer.Option(help="Type of the written weights: float32, bfloat16, float16.  [default: the model's own]"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model that Keyhole wrote into that folder.")
    ] = False,
    model: ModelNow = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Bake edits of cells into a model's weights, as a checkpoint that any tool loads. Say what else they change."""
    from ..errors import UsageError
    from ..uses.edit import edit as make
    from ..views import edited, terminal
    from ..views.progress import Stages

    if check and "" in check and len(check) > 1:
        raise UsageError("--check without a text is the run's own text; name texts, or none.")
    with Stages() as progress:
        done = make(
            model_or_run,
            edits,
            out,
            check=None if not check else [name for name in check if name],
            tokens=tokens,
            dtype=dtype,
            device=device,
            force=force,
            model=model,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    if as_json:
        put_json(done.to_json(), indent=1)
    else:
        terminal.console().print(edited.edited(done))
