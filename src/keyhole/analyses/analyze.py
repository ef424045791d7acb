"""`analyze` asks the questions that the records list, and stores the answers in the run.

Each record names what it needs (`record.NEEDS`). What several of them need, such as the model, what the values say or the
states of held-out prefixes, is computed once, when the first of them asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ..common import notebook
from ..common.checks import whole
from ..errors import RunError, UsageError
from ..lens.head import Head
from ..lens.lenses import LENSES, check_lens
from ..lens.maps import Maps
from ..models.model import SPLIT, Model
from ..models.rerun import model_of
from ..store import layout, manifest, tables, underway
from ..store.run import Run
from ..store.values import Values
from . import heldout, mapping, passing, plane, reading, registry, section5
from .record import Analysis, Begin, Observer

Progress = Callable[[str, int], Callable[[int], None]]
"""Called with the name of a step and its total; the function that it returns is then called with each amount done."""


def analyze(
    run: Run | str | os.PathLike[str],
    *,
    valid: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] | None = None,
    only: Sequence[str] | None = None,
    samples: int = 4000,
    seed: int = 0,
    cells: int = 100,
    lens: str | Sequence[str] = "norm",
    mask_untrained: bool = False,
    similar: bool = True,
    map: str = "pca",
    model: Model | str | os.PathLike[str] | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress = notebook.stages,
) -> Run:
    """Fill the tables of a run (those in `only`, or all), store what its values say, and shade its triggers.

    `lens` may name several: some tables then have rows for each, the others are read through the main one, which is `norm` if it
    is among them. `valid` is held-out text for the analyses that need it. `map` says how cells are placed on a plane: `pca` or
    `umap`. `model` must be given for a run that this user did not make: such a run must not decide what is loaded. Analyses that
    are damaged on disk are computed again.
    """
    if device == SPLIT or (isinstance(model, Model) and model.split):
        raise UsageError("The analyses need the model on one device: --device cuda or cpu, not split.")
    wanted = _choose(only)
    plane.check(map)
    asked = {check_lens(name) for name in ([lens] if isinstance(lens, str) else lens)}
    lenses = [name for name in LENSES if name in asked]
    if not lenses:
        raise UsageError(f"No lens was named. The lenses are: {', '.join(LENSES)}.")
    samples, cells, seed = whole("samples", samples, 1), whole("cells", cells, 1), whole("seed", seed, 0)
    path = run.path if isinstance(run, Run) else Path(run)
    manifest.read_manifest(path)  # a path that is not a run is refused before anything is written
    with layout.locked(path) as held:
        note = underway.Note(held, [analysis.name for analysis in wanted])
        if isinstance(run, Run) and run.manifest["checksum"] != manifest.read_manifest(path)["checksum"]:
            raise RunError(f"Another run is at {path} now. Open it again, and analyze that.")
        layout.drop_damaged(path)
        run = run if isinstance(run, Run) else Run(path)
        load = partial(model_of, run, model, device=device, trust_remote_code=trust_remote_code)
        _check_whole(run)
        texts = [valid] if isinstance(valid, (str, os.PathLike)) else list(valid or [])
        inputs = _Inputs(
            run, texts, samples, seed, cells, lenses, mask_untrained, similar, map, load, isinstance(model, Model), note
        )
        inputs.fill(wanted, progress)
    return run


def _check_whole(run: Run) -> None:
    if run.manifest["config"].get("shard"):
        raise RunError(
            f"{run.path} is one shard of a scan, and holds only part of every cell's triggers. Merge the shards first "
            "(keyhole merge), then analyze the whole."
        )


def _choose(only: Sequence[str] | None) -> list[Analysis]:
    """The analyses to run, in the order of the list."""
    steps, names = registry.steps(), list(registry.schemas())
    others = [name for name in steps if name not in names]
    known = f"The tables are: {', '.join(names)}. A step without a table is: {', '.join(others)}."
    for name in only or ():
        if name not in steps:
            raise UsageError(f"There is no table '{name}'. {known}")
    if only is not None and not only:
        raise UsageError(f"--only names no table. {known}")
    return [registry.get(name) for name in steps if only is None or name in only]


class _Inputs:
    """What the analyses of one call can ask for: a property per need of `record.NEEDS`, made when it is first asked for."""

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
        map: str,
        load: Callable[[], Model],
        loaded: bool,
        note: underway.Note,
    ) -> None:
        self.run, self.seed, self.cells, self.map = run, seed, cells, map
        self._valid, self._samples = valid, samples
        self._lenses, self._mask, self._similar = lenses, mask, similar
        self._load, self._loaded, self._note = load, loaded, note

    def fill(self, wanted: list[Analysis], progress: Progress) -> None:
        self._progress = self._note.watching(progress)
        if any(analysis.needs_held_out for analysis in wanted):
            _ = self.prefixes  # if there is too little held-out text, this says so before the long work
        self._watch(wanted)
        for analysis in wanted:
            given = {need: self._give(need, analysis) for need in analysis.needs}
            if analysis.rows:
                found = analysis.rows(self.run, **given)
                tables.write_table(self.run.path, analysis.name, found.rows, found.facts, schemas=registry.schemas())
            if analysis.fill:
                analysis.fill(self.run, **given)
            self._note.finished()

    def _give(self, need: str, analysis: Analysis) -> Any:
        if need == "observed":
            return self._observed[analysis.name]
        return self.begin(analysis.name) if need == "begin" else getattr(self, need)

    def _watch(self, wanted: list[Analysis]) -> None:
        """One pass over the held-out prefixes, for all analyses that need it."""
        self._observed: dict[str, Observer] = {
            each.name: each.observe(self.run, self.head, self.values, self.prefixes) for each in wanted if each.observe
        }
        observers = list(self._observed.values())
        if any("states" in each.needs for each in wanted):
            self._section5 = section5.Watching(self.run, self.head, self.values, self.prefixes)
            observers.append(self._section5)
        if observers:
            config = self.run.manifest["config"]
            passing.observe(
                self.head,
                self.prefixes,
                observers,
                bos=bool(config["bos"]),
                batch_tokens=int(config["batch_tokens"]),
                begin=self.begin("held-out prefixes"),
            )

    def begin(self, what: str) -> Begin:
        return lambda total: self._progress(what, total)

    @cached_property
    def model(self) -> Model:
        if self._loaded:  # the caller's own: there is nothing to wait for
            return self._load()
        advance = self._progress("loading the model", 1)
        model = self._load()
        advance(1)
        return model

    @cached_property
    def head(self) -> Head:
        return Head(self.model)

    @cached_property
    def maps(self) -> mapping.Fitted | None:
        """None if there is too little text, and no lens needs them."""
        if "mapped" not in self._lenses and mapping.too_few(self.run, int(self.head.weight.shape[1])):
            return None
        return mapping.fit(self.run, self.head, self.begin("maps between layers"))

    def _read_through_maps(self) -> None:
        """Give the head the maps that are stored in the run. They are fitted and stored first, if there are none."""
        stored = Maps.read(self.run, mapping.settings(self.run))
        if stored is None and self.maps is not None:
            stored = self.maps.maps
            stored.save(self.run)
        self.head.maps = stored

    @cached_property
    def lenses(self) -> list[Values]:
        if "mapped" in self._lenses:
            self._read_through_maps()
        found = [
            reading.read_values(self.run, self.head, lens, mask=self._mask, begin=self.begin(f"values, lens {lens}"))
            for lens in self._lenses
        ]
        if self._similar:
            reading.find_similar(self.run, self.head, begin=self.begin("similar values"))
        return found

    @property
    def values(self) -> Values:
        return self.lenses[0]

    @cached_property
    def prefixes(self) -> heldout.Prefixes:
        return heldout.prefixes(self.run, self.model, self._valid, samples=self._samples, seed=self.seed)

    @property
    def states(self) -> section5.Section5:
        return self._section5.found
