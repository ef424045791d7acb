"""The model a finished run was made with, loaded again."""

from __future__ import annotations

import os

from ..errors import RunError
from ..store import trust
from ..store.control import control_of
from ..store.run import Run
from .load import load
from .model import Model
from .save import holds_checkpoint


def model_of(
    run: Run,
    model: Model | str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Model:
    """The model of a run, with exactly the same weights: `model` if it is one, loaded if it is a name; without it, the one that
    the run names, if this user made the run. Whether the model's own code may run is decided by the caller, never by the run."""
    about, control = run.manifest["model"], control_of(run.manifest)
    if not isinstance(model, Model):
        source = trust.source(run, model)
        # the revision decides which code would run, so with trust_remote_code it is used only if this user made the run
        same = source == about["source"]
        known = not trust_remote_code or trust.is_own(run.path, run.manifest["checksum"])
        model = load(
            source,
            dtype=str(run.manifest["config"]["dtype"]),
            device=device,
            revision=about["revision"] if same and known else None,
            trust_remote_code=trust_remote_code,
            edits=about.get("edits"),
            control=control.kind if control else None,
            control_seed=control.seed if control else 0,
        )
    if model.control != control:
        scanned, given = (each.title if each else "the trained weights" for each in (control, model.control))
        raise RunError(
            f"{model.source} is not the model that was scanned: it has {given}, and the run is of {scanned}. Give the model by "
            "name, and the run's own weights are made."
        )
    if model.fingerprint != about["fingerprint"]:
        raise RunError(
            f"{model.source} is not the model that was scanned: the fingerprint of its weights is {model.fingerprint[:16]}…, the "
            f"run's {about['fingerprint'][:16]}…. Restore that model (or name it: --model), or scan this one."
        )
    return model


def in_full(model: Model, *, trust_remote_code: bool = False) -> Model:
    """The same model in a type that holds every weight of its checkpoint: it is loaded again if it runs in a narrower one."""
    if holds_checkpoint(model):
        return model
    return load(
        model.source,
        dtype=str(model.widest).removeprefix("torch."),
        device="cpu",
        revision=model.revision,
        trust_remote_code=trust_remote_code,
        edits=list(model.edits) or None,
    )
