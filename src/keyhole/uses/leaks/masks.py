"""The model with its coefficients multiplied by a mask over all cells, so that it can be asked how what it says depends on each cell.

A mask has one number per cell: 1 leaves the cell as it is, 0 switches it off, at every position. It may have a row per row of the
batch. Gradients with respect to the mask are exact.

    margin   the logit of the token that is there minus the largest other logit: above 0, it is the model's first choice

Of a continuation only the tokens that count (`Prompted.counted`) are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import UsageError
from ...models.model import Model
from ...models.taps import Replace, Taps, tapped
from .prompted import Prompted

BATCH_TOKENS = {"cpu": 1024, "cuda": 16384}
"""Tokens per batch, at most."""
LOGITS = 1 << 28
"""Logits per batch, at most: all of them are in memory, several times if gradients are asked for."""


class Scores(NamedTuple):
    """Of every token of the continuations, [rows, longest]."""

    margin: Tensor
    log_p: Tensor
    there: Tensor
    """whether the row has such a token, and it counts"""

    @property
    def exact(self) -> Tensor:
        """[rows] share of the tokens that are the first choice, given the true text before each."""
        return ((self.margin > 0) & self.there).sum(1).double() / self.there.sum(1)

    @property
    def total(self) -> Tensor:
        """[rows] the tokens' log-probability."""
        return (self.log_p * self.there).sum(1)


class Masked:
    """Runs a model with masks."""

    def __init__(self, model: Model) -> None:
        if model.split:
            raise UsageError("Leaks need the model on one device: --device cuda or cpu, not split.")
        self.model = model
        self.cells = len(model.cells)

    def ones(self) -> Tensor:
        """The mask that changes nothing."""
        return torch.ones(self.cells, device=self.model.device)

    def without(self, cells: Sequence[int]) -> Tensor:
        """The mask that switches cells off, by their places."""
        mask = self.ones()
        mask[torch.as_tensor(list(cells), dtype=torch.long, device=mask.device)] = 0
        return mask

    def read(self, rows: Sequence[Prompted], mask: Tensor | None = None) -> Scores:
        """Run rows together: with their gradients if the mask has one. `read_all` cuts many rows into batches."""
        batch = self.model.batch([[*row.prefix, *row.continuation] for row in rows])
        ids = batch.ids.to(self.model.device)
        longest = max(len(row.continuation) for row in rows)
        starts = torch.tensor([len(row.prefix) for row in rows], device=ids.device) + batch.n_special - 1
        sizes = torch.tensor([len(row.continuation) for row in rows], device=ids.device)
        steps = torch.arange(longest, device=ids.device)
        there = steps < sizes[:, None]
        for row, each in enumerate(rows):
            if each.counted is not None:
                there[row, : len(each.counted)] &= torch.tensor(each.counted, device=ids.device)
        places = (starts[:, None] + steps).clamp_max(ids.shape[1] - 2)
        which = torch.arange(len(rows), device=ids.device)[:, None]
        with tapped(
            self.model, Taps(replace={} if mask is None else self._scaling(mask, ids.shape[1])), tuple(ids.shape)
        ):
            logits = self.model.lm(input_ids=ids, use_cache=False).logits[which, places].float()
        asked = ids[which, places + 1][..., None]
        own = logits.gather(-1, asked)[..., 0]
        other = logits.scatter(-1, asked, -torch.inf).amax(-1)
        return Scores(own - other, own - logits.logsumexp(-1), there)

    @torch.no_grad()
    def exact(self, rows: Sequence[Prompted], masks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[rows] share of tokens that are the first choice, and the log-probability. `masks`: one for all, or one per row."""
        step = self.rows_at_once(rows)
        shares, totals = [], []
        for at in range(0, len(rows), step):
            own = masks if masks is None or masks.dim() == 1 else masks[at : at + step]
            found = self.read(rows[at : at + step], own)
            shares.append(found.exact.cpu())
            totals.append(found.total.double().cpu())
        return torch.cat(shares), torch.cat(totals)

    def of_every_mask(self, rows: Sequence[Prompted], masks: Tensor) -> tuple[Tensor, Tensor]:
        """[masks, rows] the same of all rows with each mask: row by row, so that no row is as long as the longest."""
        found = [self.exact([row] * len(masks), masks) for row in rows]
        return torch.stack([share for share, _ in found], 1), torch.stack([total for _, total in found], 1)

    def rows_at_once(self, rows: Sequence[Prompted]) -> int:
        most = BATCH_TOKENS.get(self.model.device.type, BATCH_TOKENS["cpu"])
        most = min(most, LOGITS // max(1, len(self.model.lm.get_output_embeddings().weight)))
        return max(1, most // max(len(row.prefix) + len(row.continuation) + 1 for row in rows))

    def gradient(self, rows: Sequence[Prompted], mask: Tensor, measure: str = "total") -> tuple[Tensor, Scores]:
        """[cells] the gradient, with respect to the mask, of the log-probability (`total`) or of the hinge (`hinge`), the mean over the
        rows. The hinge is Σ max(0, margin + 1): 0 once every token is at least that far from being the first choice."""
        own = mask.detach().clone().requires_grad_()
        with torch.enable_grad():
            found = self.read(rows, own)
            value = found.total.sum() if measure == "total" else (torch.relu(found.margin + 1) * found.there).sum()
            (gradient,) = torch.autograd.grad(value / len(rows), own)
        return gradient, Scores(*(each.detach() for each in found))

    def _scaling(self, mask: Tensor, columns: int) -> dict[int, Replace]:
        def of_site(span: slice) -> Replace:
            def scale(x: Tensor, tokens: Tensor | None) -> Tensor:
                own = mask[..., span].to(x)
                if own.dim() == 1:
                    return x * own
                flat = x.reshape(-1, x.shape[-1])
                rows = torch.arange(len(flat), device=x.device) if tokens is None else tokens
                return (flat * own[rows // columns]).reshape(x.shape)

            return scale

        return {number: of_site(span) for number, span in enumerate(self.model.cells.sites)}
