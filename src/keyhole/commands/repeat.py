"""Which model and corpus a command may take from a run. Those of a run that this user made are used without asking, those of
another person's run only after the user agreed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from ..common.output import printable
from ..errors import UntrustedSource, UsageError
from ..store import trust
from ..store.manifest import read_manifest, read_manifest_file


def named_model(run: Path, model: str | None) -> str | None:
    """The model for a run: the one of the command line, or one that the user confirmed if someone else made the run. None means:
    the one that the run names, if it may be used."""
    sealed = read_manifest(run)
    told = str(sealed["model"]["source"])
    if model is None and not trust.is_own(run, sealed["checksum"]):
        question = f"{run} was not made by you on this machine. It names the model {told!r}. Load that model?"
        return told if _confirm(question) else None
    return model


def _confirm(question: str) -> bool:
    """Ask at the terminal. If there is none, the answer is no."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return typer.confirm(printable(question), err=True)


def repeated(
    context: typer.Context,
    path: Path,
    model: str,
    corpus: list[str] | None,
    options: dict[str, Any],
    shard: str | None,
    revision: str | None,
    edits: Path | None,
) -> tuple[str, list[str], dict[str, Any], str | None, str | None, Any]:
    """The scan of an earlier run. Options of this command line override the run's. Whether the model's code may run is never taken
    from the run."""
    path = path / "manifest.json" if path.is_dir() else path
    if not path.is_file():
        raise UsageError(f"--from {path}: not a manifest: there is no such file. Give a run or its manifest.json.")
    sealed = read_manifest_file(path)
    about, texts = sealed["model"], sealed["corpus"]["sources"]
    control = about.get("control") or {"kind": "none", "seed": 0}
    before = sealed["config"] | {"control": control["kind"], "control_seed": control["seed"]}
    own, trusted = trust.is_own(path.parent, sealed["checksum"]), bool(options["trust_remote_code"])
    if not (model and corpus) and not own:
        _ask(path, "" if model else _model_named(about), [] if corpus else texts, trusted)
    merged = {name: value if _is_given(context, name) else before.get(name, value) for name, value in options.items()}
    merged["trust_remote_code"] = options["trust_remote_code"]
    if shard is None and before["shard"]:
        shard = "{}/{}".format(*before["shard"])
    edited: Any = edits
    if not model or model == about["source"]:
        revision = revision or (about["revision"] if own or not trusted else None)
        edited = edits or _edits(path, about)
    return model or about["source"], corpus or texts, merged, shard, revision, edited


def _is_given(context: typer.Context, option: str) -> bool:
    """Whether an option was given on the command line."""
    parameter = {"context": "context_", "compile": "compile_"}.get(option, option)
    return context.get_parameter_source(parameter).name == "COMMANDLINE"  # type: ignore[union-attr]


def _model_named(about: dict[str, Any]) -> str:
    return f"the model {about['source']!r}" + (f" at revision {about['revision']!r}" if about["revision"] else "")


def _ask(path: Path, model: str, texts: list[str], trusted: bool) -> None:
    """Go on only if the user agrees to what someone else's manifest names. With --trust-remote-code a yes is not enough: the names
    must be given on the command line."""
    named = " and ".join(filter(None, [model, f"the corpus {texts!r}" if texts else ""]))
    if trusted or not _confirm(f"{path} was not written by you on this machine. It names {named}. Use them?"):
        raise UntrustedSource(
            f"{path} was not written by you on this machine, and names {named}. If that is what you mean, give them on the "
            "command line: keyhole scan MODEL CORPUS --from MANIFEST"
        )


def _edits(path: Path, about: dict[str, Any]) -> Any:
    if not about.get("edits"):
        return None
    from ..models.intervene import parse

    try:
        return parse(about["edits"])
    except UsageError as error:
        raise UsageError(f"--from {path}: its edits cannot be read. {error}") from None
