"""`keyhole prune`: a smaller model, and what it lost.

The cells are chosen on the run's own text and the result is measured on other text. What was measured is stored in the run, so
that tables, the report and the explorer show it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...common import notebook
from ...common.checks import whole as whole_number
from ...errors import ModelError, RunError, UsageError
from ...models.model import SPLIT, Model
from ...models.rerun import in_full, model_of
from ...models.resize import check_resizable, width_setting
from ...models.save import Saved, check_folder, check_saveable, logits, save
from ...store import kinds as stored_kinds
from ...store import layout, manifest, underway
from ...store import pruning as stored
from ...store.pruning import Gone, Pruning, Row
from ...store.run import Run
from ..losses import Losses, losses, shift
from ..texts import MOST, fitted_and_measured, room_of
from .cuts import Cut, can_have_biases, check_share, cut, masked
from .measure import Plan, measured, parameters, plans, row, speed
from .methods import DEFAULT, METHODS

SHARES = (0.05, 0.10, 0.25, 0.50)
"""Of cells that go."""
MEASURED = 1 << 15
"""Tokens to measure on, at most, by default: a model is run over them once per method and share."""
UNIFORM, GLOBAL = "uniform", "global"
ALLOWED = 1e-4
"""Largest relative difference of logits between a model that is cut and one that is masked: they add up the same numbers in
another order. With half precision a hundred times that."""

RIVAL = "flap"
"""The method that the others are compared with, token by token."""
NO_BIAS = " without bias"
"""Added to the name of a method whose bias the written checkpoint cannot hold."""
MOST_SEED = (1 << 32) - 1

Progress = Callable[[str, int], Callable[[int], None]]
Texts = Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Pruned:
    """What `prune` did."""

    run: Run
    row: Row
    saved: Saved | None
    kinds: list[Gone]
    speed: dict[str, float]
    weights_before: int
    known: int
    """tokens that were not measured on because they stand in the text that cells were chosen on"""


def prune(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    keep: float,
    by: str = DEFAULT,
    whole: bool = False,
    valid: Texts = None,
    fit_tokens: int = MOST,
    tokens: int = MEASURED,
    seed: int = 0,
    dtype: str | None = None,
    model: Model | str | os.PathLike[str] | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    force: bool = False,
    progress: Progress = notebook.stages,
) -> Pruned:
    """Write a model that keeps this share of the cells of every layer, or with `whole` of all cells. It is measured on `valid`, else on
    text of the run that the choice did not see. The tables `pruning` and `pruned_kinds` are made by `analyze`."""
    check_methods([by])
    share = _gone(keep)
    check_folder(out, force=force)
    with _held(run, progress) as (opened, begin):
        asked = Asked(opened, model, device, trust_remote_code, valid, fit_tokens, tokens, seed)
        # what is written has every weight that stays as it is in the checkpoint, whatever type the run was made in
        written = in_full(asked.model, trust_remote_code=trust_remote_code) if dtype is None else asked.model
        check_saveable(written, out, dtype=dtype, force=force)
        if not whole:
            width_setting(asked.model.config, asked.model.family)
        plan = asked.plans([by], [share], whole, begin, as_published=False)[by]
        cuts, windows = plan.cuts[share], asked.windows
        before = losses(asked.model, windows, _named(begin, "the whole model"))
        found, _ = measured(asked.model, windows, before, cuts, _named(begin, "the pruned model"))
        smaller = cut(asked.model, cuts)
        _compare(asked.model, smaller, cuts)
        scope = GLOBAL if whole else UNIFORM
        name = by if METHODS[by].repair != "mean" or can_have_biases(asked.model) else f"{by}{NO_BIAS}"
        about = {**row(asked.model, name, cuts, share, scope, found), **asked.about}
        made = {
            "made": "prune",
            "fingerprint": asked.model.weights_fingerprint,
            "keep": keep,
            "method": name,
            "scope": scope,
            "cells_before": asked.model.cells.sizes,
            "cells": smaller.cells.sizes,
            "stay": [each.stay.tolist() for each in cuts],
            "measured": about,
        }
        fast = speed(asked.model, smaller, windows)
        smaller = smaller if written is asked.model else cut(written, cuts)
        saved = save(smaller, out, made, dtype=dtype, force=force, trust_remote_code=trust_remote_code)
        result = stored.Row(**about, faster=fast["faster"], folder=saved.folder.name)
        gone = kinds_gone(opened, name, cuts, share, scope, asked.about)
        stored.save(opened, Pruning([result], gone, by, scope), goes_at(asked.model, plan))
    return Pruned(opened, result, saved, gone, fast, parameters(asked.model), asked.other.known)


def prune_curve(
    run: Run | str | os.PathLike[str],
    *,
    by: Sequence[str] | None = None,
    shares: Sequence[float] = SHARES,
    whole: bool = False,
    valid: Texts = None,
    fit_tokens: int = MOST,
    tokens: int = MEASURED,
    seed: int = 0,
    model: Model | str | os.PathLike[str] | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress = notebook.stages,
) -> Run:
    """Measure every method at some shares of cells that go. No model is written."""
    names = list(dict.fromkeys([by] if isinstance(by, str) else by or METHODS))
    check_methods(names)
    shares = _shares(shares)
    scope = GLOBAL if whole else UNIFORM
    with _held(run, progress) as (opened, begin):
        asked = Asked(opened, model, device, trust_remote_code, valid, fit_tokens, tokens, seed)
        found = asked.plans(names, shares, whole, begin, as_published=True)
        chosen = found[DEFAULT if DEFAULT in found else names[0]]
        order = goes_at(asked.model, chosen)
        before = losses(asked.model, asked.windows, _named(begin, "the whole model"))
        advance = begin("pruned models", len(names) * len(shares) * asked.other.tokens)
        rows: list[Row] = []
        rivals: dict[float, Losses] = {}
        for name in sorted(names, key=lambda name: name != RIVAL):  # the rival first: the others are compared with it
            own: list[Row] = []
            gone: list[Gone] = []
            for share in shares:
                cuts = found[name].cuts.pop(share)
                changed, after = measured(asked.model, asked.windows, before, cuts, lambda total: advance)
                if name == RIVAL:
                    rivals[share] = after
                over = over_flap(rivals.get(share), after) if name != RIVAL else {}
                own.append(stored.Row(**row(asked.model, name, cuts, share, scope, changed), **over, **asked.about))
                gone += kinds_gone(opened, name, cuts, share, scope, asked.about)
            # method by method: what is measured is not lost if the next one fails
            stored.save(opened, Pruning(own, gone, chosen.method.name, scope), order)
            rows += own
        rows.sort(key=lambda row: (names.index(row.method), row.share))
        stored.save(opened, Pruning(rows, [], chosen.method.name, scope), order)
    return opened


# What is asked


def check_methods(names: Sequence[str]) -> None:
    for name in names:
        if name not in METHODS:
            raise UsageError(f"There is no method '{name}' of pruning. The methods are: {', '.join(METHODS)}.")


def _gone(keep: float) -> float:
    if not _is_number(keep) or not 0 < keep < 1:
        raise UsageError(f"--keep is {keep!r:.40}: it must be a share of the cells above 0 and below 1, such as 0.75.")
    return round(1 - keep, 12)


def _shares(shares: Any) -> list[float]:
    if not isinstance(shares, Sequence) or isinstance(shares, str) or not all(map(_is_number, shares)) or not shares:
        raise UsageError(f"The shares are {shares!r:.60}. Give some of the cells that go: --shares 0.05,0.25")
    return [check_share(float(share)) for share in dict.fromkeys(shares)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Asked:
    """The model of a run, the text that cells are chosen on, and the text that the result is measured on."""

    def __init__(
        self,
        run: Run,
        model: Model | str | os.PathLike[str] | None,
        device: str,
        trust: bool,
        valid: Texts,
        fit_tokens: int,
        tokens: int,
        seed: int,
    ) -> None:
        if device == SPLIT or (isinstance(model, Model) and model.split):
            raise UsageError("Pruning needs the model on one device: --device cuda or cpu, not split.")
        fit_tokens, tokens = whole_number("fit_tokens", fit_tokens, 1), whole_number("tokens", tokens, 1)
        self.seed = whole_number("seed", seed, 0, MOST_SEED)
        self.model = model_of(run, model, device=device, trust_remote_code=trust)
        check_resizable(self.model.sites, self.model.source)
        if self.model.edits:
            raise UsageError(
                f"{run.path} is a run of a model with {len(self.model.edits)} edits, and cells that go would take other cells' edits "
                "along. Bake them first: keyhole edit MODEL EDITS --out FOLDER, then scan and prune that folder."
            )
        names = [valid] if isinstance(valid, (str, os.PathLike)) else valid
        self.fitted, self.other = fitted_and_measured(
            run, self.model, names, fitted=fit_tokens, measured=tokens, seed=self.seed
        )
        self.room = room_of(self.model)
        self.windows = self.other.windows(self.room)

    def plans(
        self, names: list[str], shares: list[float], whole: bool, begin: Progress, *, as_published: bool
    ) -> dict[str, Plan]:
        windows = self.fitted.windows(self.room)
        options: dict[str, Any] = {"whole": whole, "as_published": as_published, "seed": self.seed}
        return plans(self.model, names, shares, windows, begin=_named(begin, "calibrating"), **options)

    @property
    def about(self) -> dict[str, Any]:
        """What a row says of the texts."""
        return {
            "text": self.other.files or self.other.source,
            "tokens": self.other.tokens,
            "documents": len(set(self.other.documents)),
            "fitted": self.fitted.tokens,
            "seed": self.seed,
            "basis": self._basis,
        }

    @cached_property
    def _basis(self) -> str:
        digest = hashlib.sha256(str(self.model.dtype).encode())
        for text in (self.fitted, self.other):
            for piece, document in zip(text.pieces, text.documents, strict=True):
                digest.update(np.asarray([document, len(piece), *piece], np.int64).tobytes())
        return digest.hexdigest()[:16]


def _compare(model: Model, smaller: Model, cuts: Sequence[Cut]) -> None:
    """Refuse a cut model that does not compute what the masked one does."""
    with masked(model, cuts):
        expected = logits(model)
    difference = float((logits(smaller) - expected).norm() / expected.norm().clamp_min(1e-30))
    allowed = ALLOWED if model.dtype.itemsize == 4 else 100 * ALLOWED
    if not difference <= allowed:
        raise ModelError(
            f"The pruned model's logits differ from those of the masked one by {difference:.2e}, relative, and at most {allowed:.0e} is "
            f"rounding. This is an error of Keyhole for '{model.config.model_type}'; please report it. Nothing was written."
        )


def kinds_gone(
    run: Run, method: str, cuts: Sequence[Cut], share: float, scope: str, about: Mapping[str, Any]
) -> list[Gone]:
    """How many cells of each kind go; nothing if the kinds were not computed. `about`: see `Asked.about`."""
    kinds = stored_kinds.of(run)
    if kinds is None:
        return []
    gone = np.ones(len(run.cells), bool)
    for layer, each in enumerate(cuts):
        gone[run.cells.span(layer)][each.stay.numpy()] = False
    labelled = {name: kinds.has(name) for name in stored_kinds.NAMES}
    labelled[stored_kinds.NONE] = np.asarray(kinds.labels) == 0
    text, fitted, seed, basis = (about[key] for key in ("text", "fitted", "seed", "basis"))
    return [
        Gone(method, scope, share, text, fitted, seed, basis, name, int(has.sum()), int((has & gone).sum()))
        for name, has in labelled.items()
    ]


def over_flap(flap: Losses | None, after: Losses) -> dict[str, Any]:
    """How much less a method loses than FLAP does, in nats per token."""
    if flap is None:
        return {}
    found = shift(after, flap)
    return {"over_flap": found.value, "over_flap_lo": found.lo, "over_flap_hi": found.hi}


def goes_at(model: Model, plan: Plan) -> npt.NDArray[np.float32]:
    """[cells] the share of its layer's cells that are gone once a cell is; 1 for the cells that go last."""
    found = np.ones(len(model.cells), np.float32)
    for layer, order in enumerate(plan.orders):
        span = found[model.cells.span(layer)]
        span[order.cells.numpy()] = np.arange(1, len(order.cells) + 1) / len(span)
    return found


@contextlib.contextmanager
def _held(run: Run | str | os.PathLike[str], progress: Progress) -> Iterator[tuple[Run, Progress]]:
    """The run, locked while something is measured that is stored in it."""
    path = run.path if isinstance(run, Run) else Path(run)
    manifest.read_manifest(path)
    with layout.locked(path) as held:
        watched = underway.Note(held, ["pruning"]).watching(progress)
        layout.drop_damaged(path)
        opened = run if isinstance(run, Run) else Run(path)
        if opened.manifest["config"].get("shard"):
            raise RunError(f"{opened.path} is one shard of a scan. Merge the shards first (keyhole merge).")
        yield opened, watched


def _named(begin: Progress, what: str) -> Callable[[int], Callable[[int], None]]:
    return lambda total: begin(what, total)
