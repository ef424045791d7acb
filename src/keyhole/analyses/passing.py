"""The one pass over held-out prefixes. Every analysis that needs what layers do there observes the same pass, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..common.batching import batch_by_length
from ..lens.head import Head
from ..models.states import states
from .heldout import Prefixes
from .record import Begin, Observer


def observe(
    head: Head,
    prefixes: Prefixes,
    observers: Sequence[Observer],
    *,
    bos: bool,
    batch_tokens: int,
    begin: Begin = lambda total: lambda done: None,
) -> None:
    """Run the model over the prefixes, and show each batch to every observer. An observer's `wants` names the fields of `States`
    that are only filled if one asks for them."""
    model = head.model
    wants = frozenset[str]().union(*(getattr(observer, "wants", ()) for observer in observers))
    advance = begin(len(prefixes.ids))
    for numbers in batch_by_length([len(ids) for ids in prefixes.ids], batch_tokens):
        rows = numbers.tolist()
        batch = model.batch([prefixes.ids[row] for row in rows], bos=bos)
        ends = torch.tensor([batch.n_special + len(prefixes.ids[row]) - 1 for row in rows])
        seen = states(model, batch.ids, ends, wants)
        for observer in observers:
            observer.take(rows, seen)
        advance(len(rows))
