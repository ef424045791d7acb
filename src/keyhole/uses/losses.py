"""What a model says of a text, token by token: −log p of each token, and the token it says first. Two models are compared on the
same tokens.

    perplexity   exp of the mean −log p, in nats, per token
    change       perplexity after ÷ perplexity before − 1
    agreement    share of the tokens at which both say the same token first

Intervals are over documents, because tokens of one document are alike: Student's t on the documents' sums (`stats.ratio_of_sums`).
One document has no interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..analyses.stats import Interval, clustered_mean, clustered_rate
from ..errors import UsageError
from ..lens.head import Head
from ..models.model import Model
from ..models.taps import Taps, tapped
from .texts import Window

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
"""Tokens of a batch, padding included."""

Begin = Callable[[int], Callable[[int], None]]
Look = Callable[..., None]
"""Is called as look(logits, normalizers, documents): the logits [n, vocabulary] at some tokens, their log-sum-exp [n] in float64, and
the document of each."""


@dataclass(frozen=True)
class Losses:
    """Arrays [tokens], window after window. A window's first token counts only if the model has a start token."""

    nll: npt.NDArray[np.float64]
    """−log p in nats"""
    first: npt.NDArray[np.int64]
    """the token that the model says first"""
    tokens: npt.NDArray[np.int64]
    """the token that is there"""
    documents: npt.NDArray[np.int64]

    @property
    def perplexity(self) -> Interval:
        return perplexity(self)


def losses(
    model: Model,
    windows: Sequence[Window],
    begin: Begin = lambda total: lambda done: None,
    look: Look = lambda logits, normalizers, documents: None,
) -> Losses:
    """Run the windows. Long and short ones are in batches of their own, and come back in their order. `look` sees all logits, block
    by block."""
    head = Head(model)
    skipped = int(model.bos_id is None)  # a first token that nothing stands before
    sizes = np.array([max(0, len(window.ids) - skipped) for window in windows], np.int64)
    ends = np.cumsum(sizes)
    if not len(sizes) or not ends[-1]:
        raise UsageError("The text has 0 tokens to measure on. Give more.")
    # one place for all results: small arrays that are kept between large ones that are not would hold their memory
    numbers = np.empty((3, int(ends[-1])), np.int64)
    found = Losses(np.empty(int(ends[-1])), *numbers)
    advance = begin(sum(len(window.ids) for window in windows))
    for rows in batches(model, windows):
        batch = model.batch([windows[row].ids for row in rows])
        last = last_residuals(model, batch.ids)
        there = torch.arange(last.shape[1]) < torch.from_numpy(sizes[rows])[:, None]
        places = np.concatenate([np.arange(ends[row] - sizes[row], ends[row]) for row in rows])
        found.tokens[places] = np.concatenate([windows[row].ids[skipped:] for row in rows])
        found.documents[places] = np.repeat([windows[row].document for row in rows], sizes[rows])
        _read(head, last[there.to(last.device)], found, places, look)
        advance(sum(len(windows[row].ids) for row in rows))
    return found


def batches(model: Model, windows: Sequence[Window], most: int | None = None) -> list[list[int]]:
    """The numbers of windows that are run together: alike in length, so that little is padding. `most` tokens at once."""
    most = most or BATCH_TOKENS.get(model.device.type, BATCH_TOKENS["cpu"])
    found: list[list[int]] = []
    for row in sorted(range(len(windows)), key=lambda row: -len(windows[row].ids)):
        longest = len(windows[found[-1][0]].ids) + 1 if found else 0
        if found and (len(found[-1]) + 1) * longest <= most:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def last_residuals(model: Model, ids: Tensor) -> Tensor:
    """[rows, columns, model] what the final norm is given."""
    kept: dict[str, Tensor] = {}

    def keep(layer: int, x: Tensor) -> None:
        if layer == model.layers - 1:
            kept["o"] = x.detach().reshape(*ids.shape, -1)

    with tapped(model, Taps(block_out=keep), tuple(ids.shape)):
        model.forward(ids)
    return kept["o"]


@torch.inference_mode()
def _read(head: Head, residuals: Tensor, found: Losses, places: npt.NDArray[np.int64], look: Look) -> None:
    """Put in, at some places, −log p of the tokens that follow residuals [n, model], and the token that is said first."""
    for at in range(0, len(residuals), head.rows_at_once):
        logits = head.logits(residuals[at : at + head.rows_at_once])
        here = places[at : at + head.rows_at_once]
        asked = torch.from_numpy(found.tokens[here])[:, None].to(logits.device)
        normalizers = logits.double().logsumexp(1)
        look(logits, normalizers, found.documents[here])
        found.nll[here] = (normalizers - logits.gather(1, asked)[:, 0].double()).cpu().numpy()
        found.first[here] = logits.argmax(1).cpu().numpy()


# Comparing


def perplexity(found: Losses) -> Interval:
    return _mapped(np.exp, _mean(found.nll, found.documents))


def _mean(values: npt.NDArray[np.float64], documents: npt.NDArray[np.int64]) -> Interval:
    value, lo, hi = clustered_mean(values, documents)
    assert value is not None
    return Interval(value, lo, hi)


def _mapped(curve: Callable[[float], float], found: Interval) -> Interval:
    """A rising function of a number and of the ends of its interval."""
    with np.errstate(over="ignore"):
        return Interval(*(None if each is None else float(curve(each)) for each in found))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Change:
    """What became of a model on a text."""

    before: Interval
    """perplexity"""
    after: Interval
    change: Interval
    """relative: 0.01 is one percent more"""
    agreement: Interval
    tokens: int


def change(before: Losses, after: Losses) -> Change:
    """Compare two models on the same tokens."""
    assert len(before.nll) == len(after.nll)
    relative = _mapped(np.expm1, shift(before, after))
    agreement = clustered_rate(before.first == after.first, before.documents)
    return Change(perplexity(before), perplexity(after), relative, agreement, len(before.nll))


def shift(before: Losses, after: Losses) -> Interval:
    """The mean −log p after minus that before, on the same tokens, in nats per token."""
    return _mean(after.nll - before.nll, before.documents)
