"""Read every value through a lens once, and store what it says: the analyses look it up. Also which values are similar."""

from __future__ import annotations

import numpy as np
import torch

from ..lens.head import Head
from ..lens.project import nearest, project, seem_untrained
from ..store import layout
from ..store.run import Run
from ..store.values import KEPT, Values, index
from . import targets
from .record import Begin
from .strength import at_triggers

SIMILAR = 5


def oriented(run: Run, head: Head, layer: int) -> torch.Tensor:
    """A layer's values as they reach the residual, [cells, model], each times the sign its cell is read with."""
    values = head.values(layer)
    signs = torch.from_numpy(np.array(run.orientation[run.cells.span(layer)]))
    return values * signs.to(values)[:, None] if run.gated else values


def read_values(
    run: Run, head: Head, lens: str, *, mask: bool = False, begin: Begin = lambda total: lambda done: None
) -> Values:
    """Read the values of all layers through a lens and store the result in the run, unless it is there already.

    Logits are those of the value itself. Its largest probability and its entropy are those of softmax at the strength that the
    value has at its top-1 trigger (`strength.py`), and NaN for a cell without one.
    """
    settings = {
        "lens": lens,
        "vocabulary": head.vocabulary,
        "masked": mask,
        "fingerprint": run.manifest["model"]["fingerprint"],
    }
    if lens == "mapped" and head.maps is not None:
        settings["maps"] = dict(head.maps.settings)
    stored = layout.read_lens(run.path, lens)
    if stored is not None and stored == settings | {"divisor": stored.get("divisor", 0.0)}:
        return Values(run, lens)
    layout.drop_lens(run.path, lens)
    masked = None
    if mask:
        seen = np.flatnonzero(targets.unigram(run, head.vocabulary))
        masked = seem_untrained(head.weight, len(run.vocabulary), torch.from_numpy(seen))
    wanted = targets.next_tokens(run, 1)[:, 0]
    strengths, divisor = at_triggers(run, head)
    advance = begin(len(run.cells))
    names = ("top_tokens", "top_logits", "bottom_tokens", "bottom_logits", "max_prob", "entropy", "ranks")
    kept: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]] = {name: [] for name in names}
    norms = []
    for layer in range(run.layers):
        values, strong = oriented(run, head, layer), strengths[run.cells.span(layer)]
        norms.append(values.norm(dim=1).cpu().numpy())
        scale = torch.from_numpy(np.where(np.isnan(strong), 1, strong)).to(values.device)[:, None]
        found = project(
            head.see(lens, values, layer) * scale,
            head.weight,
            kept=KEPT,
            targets=torch.from_numpy(wanted[run.cells.span(layer)]),
            masked=masked,
            advance=advance,
        )
        for name in names:
            part = getattr(found, name)
            array = (part / scale if name.endswith("logits") else part).cpu().numpy()
            if name in ("max_prob", "entropy"):
                array[np.isnan(strong)] = np.nan
            kept[name].append(array.astype(np.int32) if array.dtype == np.int64 else array)
    arrays = {name: np.concatenate(parts) for name, parts in kept.items()} | {"norms": np.concatenate(norms)}
    for side, sign in (("top", 1), ("bottom", -1)):
        offsets, places = index(arrays[f"{side}_tokens"], sign * arrays[f"{side}_logits"], head.vocabulary)
        arrays |= {f"index_{side}_offsets": offsets, f"index_{side}_places": places}
    for name, array in arrays.items():
        layout.save_array(run.path, layout.lens_array(lens, name), array)
    layout.save_lens(run.path, lens, settings | {"divisor": divisor})
    return Values(run, lens)


@torch.inference_mode()
def find_similar(run: Run, head: Head, *, begin: Begin = lambda total: lambda done: None) -> None:
    """Store for every cell the cells of any layer with the most similar values (cosine)."""
    if layout.has_similar(run.path):
        return
    every = torch.cat([oriented(run, head, layer) for layer in range(run.layers)])
    kept = min(SIMILAR, len(every) - 1)
    cosines, places = nearest(every, kept, begin(len(every)))
    layout.save_array(run.path, "similar_cells", places.cpu().numpy().astype(np.int32))
    layout.save_array(run.path, "similar_cosines", cosines.cpu().numpy())
    layout.save_similar(run.path)
