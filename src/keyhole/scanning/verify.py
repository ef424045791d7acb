"""Recompute stored coefficients of random cells from the text, and compare."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..common import notebook
from ..common.checks import whole
from ..errors import CorpusError, RunError
from ..inputs import corpus
from ..models.model import Model
from ..models.rerun import model_of
from ..store import manifest, trust
from ..store.run import Run
from .config import ScanConfig

SMALLEST = float(np.finfo(np.float32).tiny)
Progress = Callable[[str, int], Callable[[int], None]]
"""Called with the name of a step and its total; the function that it returns is then called with each amount done."""


@dataclass(frozen=True)
class Verification:
    """What a check of a run found."""

    cells: int
    triggers: int
    largest_difference: float
    """between a stored coefficient and the recomputed one, divided by the cell's largest coefficient"""
    worst: str
    """the address of the cell with that difference"""
    from_text: bool
    """whether the units were read and tokenised again; else the stored tokens were used"""
    allowed: float

    @property
    def ok(self) -> bool:
        return self.largest_difference <= self.allowed


def verify(
    run: Run,
    *,
    cells: int = 200,
    seed: int = 0,
    model: Model | str | os.PathLike[str] | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress = notebook.stages,
) -> Verification:
    """Check every file's checksum, then recompute the triggers of `cells` random cells, each unit run alone.

    The corpus is read again only if this user made the run: a run of someone else must not decide which files are read.

    A scan runs units in batches, and rounding depends on the shape of a batch, so coefficients may differ in their last bits.
    A difference above `allowed` is not rounding.
    """
    cells, seed = whole("cells", cells, 1), whole("seed", seed, 0)
    if not isinstance(model, Model):
        model = trust.source(run, model)  # a run that may not name its model is refused before the long work
    manifest.check_files(
        run.path, run.manifest, contents=True, begin=lambda size: progress("checking files, bytes", size)
    )
    config = ScanConfig.from_dict(run.manifest["config"])
    loaded = progress("loading the model", 1)
    model = model_of(run, model, device=device or config.device, trust_remote_code=trust_remote_code)
    loaded(1)
    chosen = _choose(run, cells, seed)
    wanted: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    for place in chosen:
        for side in run.sides.values():
            for c, u, p in zip(*(array[place] for array in side), strict=True):
                if u >= 0:
                    window = (int(u), run.window_start(int(p)))
                    wanted.setdefault(window, []).append((place, int(p), float(c)))
    texts = _texts(run, config, sorted({unit for unit, _ in wanted}), progress)
    worst, where, count = 0.0, "", 0
    advance = progress("recomputing", len(wanted))
    for (unit, start), stored in sorted(wanted.items()):
        ids = [int(i) for i in run.unit_tokens(unit)]
        if texts is not None and (again := model.tokenize([texts[unit]])[0]) != ids:
            raise RunError(
                f"Unit {unit} reads {texts[unit]!r} in the corpus and has {len(again)} tokens; the run holds {len(ids)} others. "
                "The corpus or the tokenizer changed: scan again."
            )
        last = max(position for _, position, _ in stored)
        computed = model.coefficients_of(ids[start : last + 1], bos=config.bos).numpy()
        for place, position, coefficient in stored:
            scale = max(abs(float(run.stats.max[place])), abs(float(run.stats.min[place])), SMALLEST)
            now = float(computed[position - start, place]) * int(run.orientation[place])
            difference = abs(now - coefficient) / scale
            count += 1
            difference = math.inf if math.isnan(difference) else difference
            if difference > worst:
                worst, where = difference, run.cells.address(place)
        advance(1)
    return Verification(
        len(chosen), count, worst, where, texts is not None, 1e-3 if config.dtype == "float32" else 5e-2
    )


def _choose(run: Run, cells: int, seed: int) -> list[int]:
    """The places of random cells."""
    total = len(run.cells)
    return sorted(np.random.default_rng(seed).choice(total, min(cells, total), replace=False).tolist())


def _texts(run: Run, config: ScanConfig, units: Sequence[int], progress: Progress) -> dict[int, str] | None:
    """The text of units, read from the corpus again; None if it is gone, or if someone else named it."""
    sources = run.manifest["corpus"]["sources"]
    if not trust.is_own(run.path, run.manifest["checksum"]):
        return None
    try:
        if "-" in sources or any(source.startswith("hf:") for source in sources):
            return None
        corpus.expand(sources)
    except CorpusError:
        return None
    wanted, found = set(units), {}
    advance = progress("reading the corpus", max(wanted, default=-1) + 1)
    read = corpus.units(sources, config.unit, text_field=config.text_field, language=config.language)
    for number, unit in enumerate(read):
        if number in wanted:
            found[number] = unit.text
        advance(1)
        if len(found) == len(wanted):
            break
    if missing := wanted - set(found):
        raise RunError(
            f"The corpus changed: it ends before unit {min(missing)}, which the run has triggers in. Scan again."
        )
    return found
