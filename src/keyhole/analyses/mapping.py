"""The maps from every layer's residual to the last one, fitted on the scanned text of a run.

What they are tested on is other text (`space.py`): what the scan held out, or given text. If the scan held nothing out, half of
the documents are used for fitting, and only prefixes of the other half for testing; half of the units, if there are few documents.

Only sums over the sample are kept (`maps.Pairs`). Their size grows with layers × width², so they are made for a group of layers at
a time, each with its own pass over the sample, if those of all layers would not fit in `SUMS_BYTES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.batching import batch_by_length
from ..errors import CorpusError
from ..scanning.hold_out import held_out
from ..store import layout
from ..store.run import Run
from . import targets
from .heldout import Prefixes
from .record import Begin

if TYPE_CHECKING:
    from torch import Tensor

    from ..lens.head import Head
    from ..lens.maps import Maps
    from ..models.model import Model

STATES = 6
"""Token states in the sample, per coordinate of the residual: so many times the model's width."""
LEAST = 2
"""Fewest, per coordinate. With less, a map says more about the ridge than about the model."""
WINDOW = 128
"""Tokens of a unit that are run, at most: more units are better than longer ones."""
BATCH_TOKENS = 1024
"""Tokens per batch: the states of all layers are held for one batch."""
SUMS_BYTES = 2 << 30
FEW_DOCUMENTS = 20
SEED = 0
"""The sample is always the same, so that the maps of a run do not depend on other options."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fitted:
    maps: Maps
    shuffled: Maps
    """the null: each state is paired with the last residual of a random token of its batch, and the map is shrunk towards 0, since
    nothing can be learned"""
    ridge: list[float]
    """per layer: the strength α, per state"""


def settings(run: Run) -> dict[str, Any]:
    """What decides the maps of a run."""
    return {"fingerprint": run.manifest["model"]["fingerprint"], "states": STATES, "window": WINDOW, "seed": SEED}


def split(run: Run) -> tuple[npt.NDArray[np.bool_], str]:
    """Which units are for fitting, and what was split: `unit` or `document`. The others are for testing."""
    held = targets.held_out_units(run)
    documents = np.asarray(layout.load_array(run.path, "unit_documents"))
    by_document = run.manifest["config"].get("hold_out_by") == "document"
    if not len(held):
        by_document = len(np.unique(documents)) >= FEW_DOCUMENTS
        held = np.flatnonzero(held_out(documents if by_document else np.arange(len(documents)), 0.5))
    fitting = np.ones(len(documents), bool)
    fitting[held] = False
    return fitting, "document" if by_document else "unit"


def sample(run: Run, states: int) -> list[Ints]:
    """The beginnings of random units for fitting, together `states` tokens or the first few more; all of them if there are fewer."""
    order = np.random.default_rng(SEED).permutation(np.flatnonzero(split(run)[0]))
    windows: list[Ints] = []
    total = 0
    for unit in order:
        if total >= states:
            break
        windows.append(np.asarray(run.unit_tokens(int(unit))[: min(WINDOW, run.room)], np.int64))
        total += len(windows[-1])
    return [window for window in windows if len(window)]


def unseen(run: Run, prefixes: Prefixes, width: int) -> npt.NDArray[np.bool_]:
    """Which of the prefixes the maps may be tested on: not those that a window of the sample begins with, and not those of a
    document that is for fitting if the scan held nothing out."""
    seen = {tuple(window[:end].tolist()) for window in sample(run, STATES * width) for end in range(1, len(window) + 1)}
    kept = np.array([tuple(ids) not in seen for ids in prefixes.ids], bool)
    fitting, by = split(run)
    if prefixes.facts["source"] == "corpus" and by == "document":
        documents = np.asarray(layout.load_array(run.path, "unit_documents"))
        kept &= ~np.isin(prefixes.documents, documents[fitting])
    return kept


def too_few(run: Run, width: int) -> str | None:
    """Why no maps can be fitted; None if they can."""
    wanted = LEAST * width
    found = sum(map(len, sample(run, wanted)))
    if found >= wanted:
        return None
    return (
        f"a map of width {width} needs the states of at least {wanted:,} tokens of scanned text, and there are {found:,} to fit "
        "it on"
    )


def fit(run: Run, head: Head, begin: Begin = lambda total: lambda done: None) -> Fitted:
    """Fit the maps of all layers, and those of shuffled pairs."""
    import torch

    from ..lens.maps import Maps, Pairs

    model, width = head.model, int(head.weight.shape[1])
    if why := too_few(run, width):
        raise CorpusError(f"The lens 'mapped' cannot be made: {why}. Scan more text, or choose another lens.")
    windows = sample(run, STATES * width)
    at_once = max(
        1, SUMS_BYTES // (3 * 8 * width * width)
    )  # three sums in float64: of X alone, for the map, for its null
    groups = [list(range(at, min(at + at_once, model.layers))) for at in range(0, model.layers, at_once)]
    advance = begin(len(windows) * len(groups))
    maps, shuffled = (Maps.identity(model.layers, width) for _ in range(2))
    ridge: list[float] = []
    for layers in groups:
        pairs = [Pairs(width, model.device, towards=(1.0, 0.0)) for _ in layers]
        random = torch.Generator().manual_seed(SEED)
        for numbers in batch_by_length([len(window) for window in windows], BATCH_TOKENS):
            batch = [windows[number] for number in numbers]
            *given, last = outputs(model, batch, [*layers, model.layers - 1], bos=bool(run.manifest["config"]["bos"]))
            other = last[torch.randperm(len(last), generator=random).to(last.device)]
            for x, sums in zip(given, pairs, strict=True):
                sums.add(x, last, other)
            advance(len(batch))
        for layer, sums in zip(layers, pairs, strict=True):
            found = sums.fit()
            ridge.append(found[0][1] / sums.n)
            for kept, (made, _) in zip((maps, shuffled), found, strict=True):
                kept.linear[layer], kept.offset[layer] = made.linear.cpu().numpy(), made.offset.cpu().numpy()
    return Fitted(Maps(maps.linear, maps.offset, settings(run)), shuffled, ridge)


def outputs(model: Model, windows: list[Ints], layers: list[int], *, bos: bool) -> list[Tensor]:
    """The residual after each of these layers, [tokens, model] in float32, at every token of the windows; special tokens left
    out."""
    import torch

    from ..models.taps import Taps, tapped

    batch = model.batch(windows, bos=bos)
    lengths = torch.tensor([len(window) for window in windows])[:, None]
    own = torch.arange(batch.ids.shape[1])[None] - batch.n_special
    at = ((own >= 0) & (own < lengths)).flatten().nonzero().flatten().to(model.device)
    kept: dict[int, Tensor] = {}

    def keep(layer: int, x: Tensor) -> None:
        if layer in layers:
            kept[layer] = x.detach().reshape(-1, x.shape[-1]).index_select(0, at).float()

    with tapped(model, Taps(block_out=keep), tuple(batch.ids.shape)):
        model.forward(batch.ids)
    return [kept[layer] for layer in layers]
