"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunPath = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run the code in the model's repository. Use it only if you trust it."),
]
ModelNow = Annotated[
    str | None,
    typer.Option("--model", help="The model to load.  [default: the one that the run names, if you made the run]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
