"""The cells nearest to a text: keys that it makes fire, values that promote what it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..lens.head import Head
from ..models.model import Model
from ..store import values
from ..store.run import Run
from .asked import check_finite, window

MOST = 50
"""Cells of each list."""
PIECE = 1 << 22
"""Tokens of the corpus that are counted together."""


@dataclass(frozen=True)
class Nearest:
    """A text, and the cells nearest to it, the nearest first, by place."""

    tokens: list[str]
    keys: list[tuple[int, float]]
    """the coefficient at the text's last token, relative to the largest in the corpus; both in the cell's orientation"""
    values: list[tuple[int, float]]
    """the cosine of the value with the text's direction (`direction`)"""


def nearest(run: Run, model: Model, text: str, limit: int = MOST) -> Nearest:
    """The keys that fire most at the end of a text, and the values that point where its tokens are."""
    ids = window(run, model, text)
    return Nearest(
        [model.vocabulary.piece(i) for i in ids],
        _largest(fired(run, model, ids), limit),
        _largest(cosines(run, model, ids), limit),
    )


def fired(run: Run, model: Model, ids: list[int]) -> np.ndarray:
    """[cells] the coefficient at the last token, as a share of the largest in the corpus; 0 for a cell that never fired there."""
    found = np.empty(len(run.cells), np.float32)

    def keep(site: int, x: torch.Tensor) -> None:
        last = x[-1].float()
        check_finite(model, last, edited=False)
        found[run.cells.sites[site]] = last.cpu().numpy()

    model.run_every_token(model.batch([ids], bos=bool(run.manifest["config"]["bos"])).ids, keep)
    largest = np.asarray(run.stats.max, np.float64)
    return np.where(largest > 0, run.orientation * found / np.where(largest > 0, largest, 1), 0.0)


@torch.inference_mode()
def cosines(run: Run, model: Model, ids: list[int]) -> np.ndarray:
    """[cells] the cosine of each value, through the run's lens, with the text's `direction`."""
    head = Head(model)
    lens = next((name for name in values.available(run) if name in ("norm", "raw")), "norm")
    along = direction(run, head.weight, ids)
    found = np.empty(len(run.cells), np.float64)
    with model.lock:  # another thread may run the model with other values meanwhile
        for layer in range(run.layers):
            seen = head.see(lens, head.values(layer), layer)
            cosine = torch.cosine_similarity(seen, along.to(seen.device)[None], dim=1)
            found[run.cells.span(layer)] = cosine.cpu().numpy()
    return run.orientation * found


def direction(run: Run, weight: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Where the tokens of a text are in the unembedding [vocabulary, model].

    A token is its row, less the mean row: what all tokens have in common changes no prediction. Also taken out is the direction of
    frequent tokens, from the mean row to the mean over the corpus: without that, every text is nearest to the values that promote
    commas. The tokens are then normed and added, weighted by log(p)² for a token of share p in the corpus, as tf-idf does.
    """
    counts = _counts(run, weight.shape[0]) + 1.0
    shares = torch.tensor(counts / counts.sum(), dtype=torch.float32, device=weight.device)
    mean = weight.mean(0, dtype=torch.float32)
    common = torch.zeros_like(mean)
    for first in range(0, weight.shape[0], 8192):
        common += shares[first : first + 8192] @ weight[first : first + 8192].float()
    common = torch.nn.functional.normalize(common - mean, dim=0)
    which = torch.tensor(ids, device=weight.device)
    rows = weight[which].float() - mean
    rows = rows - (rows @ common)[:, None] * common
    return (torch.nn.functional.normalize(rows, dim=1) * shares[which].log().square()[:, None]).sum(0)


def _counts(run: Run, vocabulary: int) -> np.ndarray:
    """[vocabulary] how often each token stands in the corpus; counted once per run."""
    kept = vars(run)  # as cached_property does; a global cache would keep the run alive
    if "_token_counts" not in kept:
        counts = np.zeros(vocabulary, np.int64)
        for first in range(0, len(run.tokens), PIECE):  # bincount makes eight bytes of each token
            counts += np.bincount(run.tokens[first : first + PIECE], minlength=vocabulary)[:vocabulary]
        kept["_token_counts"] = counts
    found: np.ndarray = kept["_token_counts"]
    return found


def _largest(numbers: np.ndarray, limit: int) -> list[tuple[int, float]]:
    order = np.argsort(-numbers, kind="stable")[:limit]
    return [(int(place), float(numbers[place])) for place in order if numbers[place] > 0]
