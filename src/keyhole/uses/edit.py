"""Edits that last: baked into the weights of a checkpoint that any tool loads, and what else they change.

Baking is exact: (m·s)·v = m·(s·v), so a scaled coefficient is a scaled value, and a value that is replaced or moved is a weight
anyway. What is written is rounded to the type of the checkpoint, proved (`models/save.py`), and says of itself in `keyhole.json`
which edits it has. Edits at chosen positions of one text depend on the text; no weights do that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.checks import whole
from ..errors import CorpusError, RunError, UsageError
from ..models import intervene
from ..models.intervene import Edit
from ..models.load import load
from ..models.model import Model
from ..models.rerun import in_full, model_of
from ..models.save import Saved, check_folder, check_saveable, save
from ..searching import sets
from ..store import layout
from ..store.run import Run
from . import texts
from .changed import Changed, Progress, changed

CHECKED = 1 << 14
"""Tokens of text, at most, that edits are checked on by default."""


@dataclass(frozen=True)
class Edited:
    """What was done."""

    source: str
    edits: list[Edit]
    saved: Saved | None
    check: Changed | None

    def to_json(self) -> dict[str, Any]:
        saved = self.saved and {
            "folder": str(self.saved.folder),
            "dtype": self.saved.dtype,
            "bytes": self.saved.bytes,
            "difference": self.saved.difference,
        }
        return {
            "source": self.source,
            "edits": [edit.to_json() for edit in self.edits],
            "saved": saved,
            "check": self.check and self.check.to_json(),
        }


def edit(
    source: str | os.PathLike[str] | Model | Run,
    edits: str | os.PathLike[str] | dict[str, Any] | Sequence[Any],
    out: str | os.PathLike[str] | None = None,
    *,
    check: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    tokens: int = CHECKED,
    dtype: str | None = None,
    device: str = "auto",
    force: bool = False,
    model: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = lambda what, total: lambda done: None,
) -> Edited:
    """Write a model with edits as a checkpoint `out`, or say what else the edits change, or both.

    `source` is a model, or a run: then its model, and sets of cells can be edited. `check` names files of text that the model is
    measured on, at most `tokens` of it; an empty list is the run's own text, what it held out if it held out enough. `dtype` is that
    of the written weights; None: that of the model's checkpoint. `model` is the model of a run that names it itself but was made
    by someone else.
    """
    tokens = whole("tokens", tokens, texts.FEWEST)
    if out is None and check is None:
        raise UsageError(
            "There is nothing to do: name a folder to write (--out FOLDER), or a text to check on (--check TEXT)."
        )
    if out is not None:
        check_folder(out, force=force)
    opened, run = _opened(source, model, device, trust_remote_code)
    if check is not None and not isinstance(check, os.PathLike) and not check and run is None:
        raise UsageError(
            "A model has no text of its own to check on: --check TEXT. (A run has: keyhole edit RUN EDITS --check.)"
        )
    found = _read(edits, opened, run)
    # what is written has every weight that no edit changes as it is in the checkpoint, whatever type the run was made in
    whole_model = opened
    if out is not None:
        if dtype is None and not isinstance(source, Model):
            whole_model = in_full(opened, trust_remote_code=trust_remote_code)
        check_saveable(whole_model, out, dtype=dtype, force=force)
    text = None if check is None else _text(opened, run, check, tokens)
    measured = None if text is None else changed(opened, found, text, progress=progress)
    written = None
    if out is not None:
        with intervene.applied(whole_model, found):
            made: dict[str, Any] = {"made": "edit", "edits": [each.to_json() for each in whole_model.edits]}
            made |= {} if measured is None else {"check": measured.to_json()}
            written = save(whole_model, out, made, dtype=dtype, force=force, trust_remote_code=trust_remote_code)
    return Edited(opened.source, found, written, measured)


def _opened(
    source: str | os.PathLike[str] | Model | Run, model: str | None, device: str, trust: bool
) -> tuple[Model, Run | None]:
    """The model, and the run if it was named by one."""
    run = source if isinstance(source, Run) else None
    if not isinstance(source, (Model, Run)) and layout.is_run(Path(source)):
        run = Run(Path(source))
    if run is not None:
        return model_of(run, model, device=device, trust_remote_code=trust), run
    if model is not None:
        raise UsageError(f"--model names the model of a run, and {source} is a model itself: leave one of them out.")
    assert not isinstance(source, Run)
    if not isinstance(source, Model) and os.path.isdir(source) and not (Path(source) / "config.json").exists():
        raise RunError(f"{source} is neither a model (it has no config.json) nor a run (it has no manifest.json).")
    return load(source, device=device, trust_remote_code=trust), None


def _read(edits: Any, model: Model, run: Run | None) -> list[Edit]:
    """The edits, without those that the model has already: a file that was saved from an edited model has them too."""
    found = intervene.read_edits(edits, model, None if run is None else lambda name: sets.cells_of(run, name))
    new = [each for each in found if each not in model.edits]
    if not new:
        raise UsageError(
            "There are no edits to make: the list is empty."
            if not found
            else f"{model.source} has all of these edits already, so there is nothing to make."
        )
    placed = next((each for each in new if each.positions is not None), None)
    if placed is not None:
        raise UsageError(
            f"{placed.address} is edited at positions {', '.join(map(str, (placed.positions or ())[:4]))}, which are positions of one text; "
            "weights act at all of them. Leave the positions out, or keep the file: keyhole.load(…, edits=FILE) applies it "
            "whenever the model is loaded."
        )
    return new


def _text(
    model: Model, run: Run | None, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], most: int
) -> texts.Text:
    names = [files] if isinstance(files, (str, os.PathLike)) else files
    if not names:
        assert run is not None
        return texts.of_run(run, model, most)
    text = texts.given(model, names, most)
    if text.tokens < texts.FEWEST:
        raise CorpusError(
            f"{text.files} has {text.tokens:,} tokens, and at least {texts.FEWEST} are needed to check edits on. Give more text."
        )
    return text
