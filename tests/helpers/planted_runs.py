"""A scan of a model with planted truth, and how to tell whether rules found what was planted.

    planted = planted_run(folder, gated=True)
    for key in planted.keys:
        positions = …  # where the rules found for (key.layer, key.cell, key.side) match planted.fresh, with their threshold
        assert found(positions, key, planted.fresh)

In `tests/patterns`, the fixture `planted` is such a run, of either model, once per session.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from planted_models import CELLS, LAYER, PlantedKey, planted_model
from planted_text import Writer, text_of

import keyhole
from keyhole.models.model import Model
from keyhole.patterns.passing import observe
from keyhole.patterns.text import Text

TOKENS, HELD_TOKENS, HOLD_OUT = 100_000, 40_000, 0.2
FIRES, FOUND = 0.999, 0.9
REPEATED, SHORT, NEARLY = 3, 3, 0.998
"""A prefix that occurs so often is a pattern of its own; prefixes that can; and the percentile above which it may make a key
fire in a part of the text, or in other text."""


@dataclass(frozen=True)
class Planted:
    """A run over generated text, with what is planted in its model."""

    run: keyhole.Run
    model: Model
    held: Path
    """further text of the same kind"""
    text: Text
    """the scanned file, with the units that were held out of the scan"""
    fresh: Text
    """the text in `held`"""
    keys: list[PlantedKey]
    hashed: list[int]
    """all noise cells"""

    def coefficients_in(self, text: Text) -> npt.NDArray[np.float32]:
        """[positions, cells of the layer of the planted keys] in the cells' orientation"""
        found = np.zeros((len(text), CELLS), np.float32)
        observe(
            self.run, self.model, text, {LAYER: np.arange(CELLS)}, lambda _, at, x: found.__setitem__(at, x.numpy())
        )
        return found

    @cached_property
    def coefficients(self) -> npt.NDArray[np.float32]:
        """Those of `text`."""
        return self.coefficients_in(self.text)

    @cached_property
    def noise(self) -> list[tuple[int, int]]:
        """Layer and number of the keys of which nothing is to be found, on any side.

        Prefixes of one or two tokens repeat, and where such a prefix makes a noise key fire, this is a true pattern. Such keys
        are left out. So the first token of a sentence makes none of those that are left fire, which is all that they have in
        common: a rule "not at the first token" would have a lift of 1.08.
        """
        text = self.text
        seen: dict[bytes, list[int]] = {}
        early = np.flatnonzero(text.places < SHORT)
        for at in early.tolist():
            prefix = text.tokens[text.offsets[text.windows[at]] : at + 1].tobytes()
            seen.setdefault(prefix, []).append(at)
        repeated = np.concatenate([at for at in seen.values() if len(at) >= REPEATED])
        sides = (1, -1) if self.model.signed else (1,)
        bad = {
            cell
            for side in sides
            for cell in self.hashed
            if fires(side * self.coefficients[:, cell], NEARLY)[repeated].any()
        }
        return [(LAYER, cell) for cell in self.hashed if cell not in bad]


def planted_run(folder: Path, gated: bool) -> Planted:
    """Scan generated text with a planted model. The model is saved in `folder`, so that commands can load it again."""
    built, made = planted_model(gated)
    built.lm.save_pretrained(folder / "model")
    built.tokenizer.save_pretrained(folder / "model")
    model = keyhole.load(folder / "model", device="cpu")
    windows = Writer(0).write(folder / "text.txt", TOKENS)
    fresh = Writer(1).write(folder / "held.txt", HELD_TOKENS)
    run = keyhole.scan(model, [folder / "text.txt"], out=folder / "run", unit="line", hold_out=HOLD_OUT)
    return Planted(run, model, folder / "held.txt", text_of(windows), text_of(fresh), made.keys, made.noise)


def fires(coefficients: npt.NDArray[np.float32], percentile: float = FIRES) -> npt.NDArray[np.bool_]:
    """[positions] whether one side of a key fires: above its 99.9th percentile, and above 0."""
    return coefficients > max(0.0, float(np.quantile(coefficients, percentile)))


def agrees(positions: npt.NDArray[np.int64], key: PlantedKey, text: Text) -> tuple[float, float]:
    """Precision and recall of positions, such as those that a key's rules match, as to where the planted pattern holds."""
    truth = key.plant.where(text)
    both = len(np.intersect1d(positions, truth))
    return both / max(1, len(np.unique(positions))), both / len(truth)


def found(positions: npt.NDArray[np.int64], key: PlantedKey, text: Text) -> bool:
    """Whether positions are those of the planted pattern: F1 of at least 0.9."""
    precision, recall = agrees(positions, key, text)
    return 2 * precision * recall >= FOUND * (precision + recall) > 0
