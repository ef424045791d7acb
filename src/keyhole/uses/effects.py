"""Direct effects: what an addition to the residual does to a token's logit, with every other addition unchanged.

    effect = logit(o) − logit(o − addition)

o is the last residual. It is read through the model's own final norm, head, scale and cap, in float32 whatever type the weights
have. If a norm stands between a layer and the residual, a cell's m·v is scaled as that norm scales the layer's whole output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..lens.head import Head
from ..models.model import Model

BLOCK = 1 << 24
"""Upper bound on the numbers of an intermediate array."""


class Effects:
    """Reads additions to the residual of a model."""

    def __init__(self, model: Model) -> None:
        self.model, self.head = model, Head(model)
        self.norm = self.head.exact_norm

    @torch.inference_mode()
    def of_cells(self, layer: int, m: Tensor, y: Tensor, final: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """[cells] the strength |m|·‖v‖ of a layer's cells at one position, and their effect on the token's logit.

        m: [cells] their coefficients, y: [model] what the layer adds, final: [model] the last residual.
        """
        values, scale = self._reaching(layer, m, y.to(m.device))
        strength = m.abs() * values.norm(dim=1)
        device = self.head.weight.device
        final, values, weights = final.to(device), values.to(device), (m * scale).to(device)
        row, whole = self.head.weight[token].float(), self.norm(final[None])
        step = max(1, BLOCK // values.shape[1])
        lost = torch.cat(
            [
                (whole - self.norm(final - weights[at : at + step, None] * values[at : at + step])) @ row
                for at in range(0, len(values), step)
            ]
        )
        return strength, self._scaled(lost, whole @ row, token).to(m.device)

    @torch.inference_mode()
    def of_additions(self, added: Tensor, final: Tensor, tokens: Tensor) -> Tensor:
        """[n] what each addition [n, model] does to the logit of its token [n], at last residuals [n, model]."""
        device = self.head.weight.device
        final, tokens = final.to(device), tokens.to(device)
        rows, whole = self.head.weight[tokens].float(), self.norm(final)
        lost = ((whole - self.norm(final - added.to(device))) * rows).sum(1)
        return self._scaled(lost, (whole * rows).sum(1), tokens)

    def _reaching(self, layer: int, m: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's values [cells, model] as they reach the residual, and the scale of a norm on the way at this position."""
        model, values = self.model, self.model.values(layer).float()
        post = self.head.post_norm(layer)
        if post is None:
            return values, values.new_ones(())
        values, bias = post.fold(values), model.bias(layer)
        before = m @ values if bias is None else m @ values + post.fold(bias.float())
        return values, (y - post.bias) @ before / (before @ before).clamp_min(1e-30)

    def _scaled(self, lost: Tensor, product: Tensor, tokens: int | Tensor) -> Tensor:
        """What is lost of the product with the head's row, as a change of the logit."""
        lost = lost.double() * self.head.scale
        if self.head.cap is None:
            return lost.float()
        logit = (product + (0.0 if self.head.bias is None else self.head.bias[tokens])).double() * self.head.scale
        return (self.head.capped(logit) - self.head.capped(logit - lost)).float()
