"""The questions of the paper, one a file: each turns a run (and its model) into the rows of a table.

    activity     how many coefficients are above zero; keys that never fire
    mutation     what dropping a token of a trigger costs
    agreement    whether a value says what its key saw; rank, confidence and confident look closer
    composition  whether a cell says what its layer says; refinement, how layers come to the prediction; cases, where neither does

`analyze` runs them and fills the run's tables. Last comes a step that fills no table:

    shading      a coefficient for every token shown with a trigger, and every cell's histogram
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..common.checks import whole
from ..errors import RunError, UsageError
from ..lens.head import Head
from ..lens.lenses import check_lens
from ..models.model import SPLIT, Model
from ..models.rerun import model_of
from ..store import layout as store
from ..store import manifest, tables
from ..store.run import Run
from ..store.values import Values
from . import (
    activity,
    agreement,
    cases,
    composition,
    confidence,
    confident,
    heldout,
    mutation,
    rank,
    reading,
    refinement,
    section5,
    shading,
)

Progress = Callable[[str, int], Callable[[int], None]]
"""Told (what, how much), gives back what is told (how much more of it is done)."""

TABLES = tuple(tables.SCHEMAS)
STEPS = (*TABLES, "shading")


def analyze(
    run: Run | str | os.PathLike[str],
    *,
    valid: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None = None,
    only: Sequence[str] | None = None,
    samples: int = 4000,
    seed: int = 0,
    cells: int = 100,
    lens: str | Sequence[str] = "raw",
    mask_untrained: bool = False,
    similar: bool = True,
    model: Model | str | os.PathLike[str] | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress = lambda what, total: lambda done: None,
) -> Run:
    """Fill the tables of a run (those in `only`, or all), store what its values say, and shade its triggers.

    `lens` may name several: `agreement` and `rank` then have rows for each, the others read through the first.
    `valid` is held-out text for composition, refinement and cases. `model` is needed for a run that this user did not make,
    which must not decide what is loaded. Analyses that are damaged on disk are made again.
    """
    if device == SPLIT or (isinstance(model, Model) and model.split):
        raise UsageError("The analyses need the model on one device: --device cuda or cpu, not split.")
    wanted = _choose(only)
    lenses = [check_lens(name) for name in dict.fromkeys([lens] if isinstance(lens, str) else lens)]
    if not lenses:
        raise UsageError("No lens was named. The lenses are: raw, norm.")
    samples, cells, seed = whole("samples", samples, 1), whole("cells", cells, 1), whole("seed", seed, 0)
    path = run.path if isinstance(run, Run) else Path(run)
    manifest.read_manifest(path)  # what is no run is refused before anything is written
    with store.locked(path):
        if isinstance(run, Run) and run.manifest["checksum"] != manifest.read_manifest(path)["checksum"]:
            raise RunError(f"Another run is at {path} now. Open it again, and analyze that.")
        store.drop_damaged(path)
        run = run if isinstance(run, Run) else Run(path)
        load = partial(model_of, run, model, device=device, trust_remote_code=trust_remote_code)
        _check_whole(run)
        texts = [valid] if isinstance(valid, (str, os.PathLike)) else list(valid or [])
        _Work(run, texts, samples, seed, cells, lenses, mask_untrained, similar, load, progress).fill(wanted)
    return run


def _check_whole(run: Run) -> None:
    if run.manifest["config"].get("shard"):
        raise RunError(
            f"{run.path} is one shard of a scan, and holds only part of every cell's triggers. Merge the shards first "
            "(keyhole merge), then analyze the whole."
        )


def _choose(only: Sequence[str] | None) -> list[str]:
    if only is None:
        return list(STEPS)
    known = f"The tables are: {', '.join(TABLES)}. A step without a table is: shading."
    for name in only:
        if name not in STEPS:
            raise UsageError(f"There is no table '{name}'. {known}")
    if not only:
        raise UsageError(f"--only names no table. {known}")
    return [name for name in STEPS if name in only]


class _Work:
    """One call of `analyze`: what several questions share is made once, when the first asks for it."""

    def __init__(
        self,
        run: Run,
        valid: list[str | os.PathLike[str]],
        samples: int,
        seed: int,
        cells: int,
        lenses: list[str],
        mask: bool,
        similar: bool,
        load: Callable[[], Model],
        progress: Progress,
    ) -> None:
        self.run, self.valid, self.samples, self.seed, self.cells = run, valid, samples, seed, cells
        self.lenses, self.mask, self.similar, self.progress = lenses, mask, similar, progress
        self._load = load

    def fill(self, wanted: list[str]) -> None:
        if set(wanted) & {"composition", "refinement", "cases"}:
            _ = self.prefixes  # too little held-out text is told before the long work
        for name in wanted:
            if name in TABLES:
                rows, note = getattr(self, name)()
                tables.write(self.run.path, name, rows, note=note)
        if "shading" in wanted:
            shading.fill(self.run, self.model, seed=self.seed, begin=self.begin("shading"))

    def begin(self, what: str) -> Callable[[int], Callable[[int], None]]:
        return lambda total: self.progress(what, total)

    # What they share

    @cached_property
    def model(self) -> Model:
        return self._load()

    @cached_property
    def head(self) -> Head:
        return Head(self.model)

    @cached_property
    def values(self) -> list[Values]:
        begin = [self.begin(f"values, lens {lens}") for lens in self.lenses]
        found = [
            reading.read_values(self.run, self.head, lens, mask=self.mask, begin=b)
            for lens, b in zip(self.lenses, begin, strict=True)
        ]
        if self.similar:
            reading.find_similar(self.run, self.head, begin=self.begin("similar values"))
        return found

    @cached_property
    def prefixes(self) -> heldout.Prefixes:
        return heldout.prefixes(self.run, self.model, self.valid, samples=self.samples, seed=self.seed)

    @cached_property
    def measured(self) -> section5.Section5:
        config = self.run.manifest["config"]
        return section5.measure(
            self.head,
            self.values[0],
            self.prefixes,
            bos=bool(config["bos"]),
            batch_tokens=int(config["batch_tokens"]),
            begin=self.begin("section 5"),
        )

    # The tables

    def activity(self) -> Any:
        return activity.rows(self.run), None

    def mutation(self) -> Any:
        return mutation.rows(self.run, self.model, cells=self.cells, seed=self.seed, begin=self.begin("mutation"))

    def agreement(self) -> Any:
        return [row for values in self.values for row in agreement.rows(self.run, values)], None

    def rank(self) -> Any:
        return [row for values in self.values for row in rank.rows(self.run, values)], None

    def confidence(self) -> Any:
        return confidence.rows(self.run, self.values[0]), self._lens_note()

    def confident(self) -> Any:
        return confident.rows(self.run, self.values[0]), self._lens_note()

    def composition(self) -> Any:
        rows = composition.rows(self.run, self.measured)
        return rows, f"{self.prefixes.note}; {self._lens_note()}"

    def refinement(self) -> Any:
        return refinement.rows(self.run, self.measured), self.prefixes.note

    def cases(self) -> Any:
        rows, note = cases.rows(self.run, self.head, self.prefixes, self.measured, seed=self.seed)
        return rows, f"{self.prefixes.note}; {note}"

    def _lens_note(self) -> str:
        return f"through the lens '{self.lenses[0]}'"
