"""Whether two scans are the same: model, corpus and configuration. A scan is resumed only by the very same scan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from ..inputs import corpus
from ..models.load import load
from ..models.model import Model
from ..store import layout, manifest
from ..store.control import Control
from ..store.run import Run
from ..store.unfinished import Partial
from .config import ScanConfig
from .plan import content_hash

if TYPE_CHECKING:
    from ..models.intervene import Edit

Edits = str | os.PathLike[str] | dict[str, Any] | Sequence["Edit"]

PARTS: dict[str, type] = {"model": dict, "config": dict, "corpus": list}
"""What the identity of a scan consists of."""


@dataclass(frozen=True)
class Job:
    """A scan as it was requested: the model (loaded, or by name), the corpus and the options."""

    model: Model | str
    names: list[str]
    config: ScanConfig
    revision: str | None = None
    edits: Edits | None = None
    control: Control | None = None

    def load(self, device: str | None = None) -> Model:
        """The model, on `device` if one is given."""
        config = self.config
        if isinstance(self.model, Model):
            return load(self.model, edits=self.edits, **self._control)
        return load(
            self.model,
            dtype=config.dtype,
            device=device or config.device,
            revision=self.revision,
            trust_remote_code=config.trust_remote_code,
            edits=self.edits,
            **self._control,
        )

    @property
    def _control(self) -> dict[str, Any]:
        return {"control": self.control.kind, "control_seed": self.control.seed} if self.control else {}

    def units(self) -> Any:
        """The corpus, unit by unit."""
        return corpus.units(
            self.names, self.config.unit, text_field=self.config.text_field, language=self.config.language
        )

    @property
    def inputs(self) -> list[str]:
        """The names of everything that the scan reads. A run must never replace any of it."""
        edits = [os.fspath(self.edits)] if isinstance(self.edits, (str, os.PathLike)) else []
        return [*self.names, self.model if isinstance(self.model, str) else self.model.source, *edits]


def identity(model: Model, config: ScanConfig, names: list[str]) -> dict[str, Any]:
    """What two scans must have in common to give the same run; `config` is resolved."""
    return {
        "model": {
            "source": model.source,
            "control": model.control.to_json() if model.control else None,
            "fingerprint": model.fingerprint,
        },
        "corpus": names,
        "config": asdict(config) | {"shard": list(config.shard) if config.shard else None},
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """How two identities differ, as text; empty if they do not."""
    before = {part: before.get(part) if isinstance(before.get(part), kind) else kind() for part, kind in PARTS.items()}
    found = [
        f"{key}: was {before[part].get(key)!r}, now {value!r}"
        for part in ("model", "config")
        for key, value in now[part].items()
        if before[part].get(key) != value
    ]
    if before["corpus"] != now["corpus"]:
        found.append(f"corpus: was {before['corpus']}, now {now['corpus']}")
    return "; ".join(found)


def stamps_of(names: list[str]) -> list[list[Any]]:
    """Size and time of every file of a corpus. If they are as before, the text is not compared again."""
    files = [name for name in corpus.expand(names) if os.path.exists(name)]
    return [[name, os.stat(name).st_size, os.stat(name).st_mtime_ns] for name in files]


# A run that is finished already


def already_done(job: Job, partial: Partial, *, resume: bool) -> Run | None:
    """The finished run that a resumed scan finds, which must be of the same scan; None if there is none."""
    left = partial.path.exists()
    if not resume or not partial.out.exists() or (left and not partial.sealed):
        return None
    try:
        run = Run(partial.out)
        _check_same(job, run.manifest, partial.out)
    except RunError:
        if left:  # what is left may be the run that is to replace this one
            return None
        raise
    if left:  # the run that was replaced; a kill during the last step left it
        layout.check_ours(partial.path)
        with layout.lock(partial.path):
            partial.drop()
    return run


def finish_sealed(job: Job, partial: Partial) -> Run:
    """Do the last step of a scan that was killed before it, after comparing its files with the manifest again."""
    sealed = manifest.read_manifest(partial.path)
    manifest.check_files(partial.path, sealed, contents=True)
    _check_same(job, sealed, partial.path)
    partial.put_in_place()
    return Run(partial.out)


def _check_same(job: Job, sealed: dict[str, Any], path: Path) -> None:
    """Refuse a finished run that is of another scan: model, options and text are compared."""
    corpus.expand(job.names)
    model = job.load()
    about = sealed["corpus"]
    before = {"model": sealed["model"], "config": sealed["config"], "corpus": about["sources"]}
    if found := differences(before, identity(model, job.config.resolve(model), job.names)):
        raise RunError(f"{path} is a finished scan of another kind ({found}). Choose another --out, or use --force.")
    if layout.read_log(path).get("stamps") != stamps_of(job.names) or "-" in job.names:
        units = job.units()
        same = content_hash(units, about["units"]) == about["hash"]
        if not same or (not about["truncated"] and next(units, None) is not None):
            raise RunError(
                f"{path} is a finished scan of {', '.join(job.names)}, whose text changed since. Choose another --out, or use "
                "--force."
            )
