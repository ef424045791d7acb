"""A prompt and what follows it, and what the model says of that, given the true text before each token.

As long as every token is the model's first choice, this is what greedy decoding gives: the model then reads the same tokens. So the
longest exact continuation is the number of tokens before the first one that is not the first choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...models.model import Model
from ..losses import losses
from ..texts import Window


class Prompted(NamedTuple):
    """Tokens after a prompt. The start token, if the model has one, stands before the prompt."""

    prefix: tuple[int, ...]
    continuation: tuple[int, ...]
    counted: tuple[bool, ...] | None = None
    """which tokens of the continuation are asked for by masks (`masks.py`); None: all of them"""

    def after(self, context: Sequence[int]) -> Prompted:
        """The same, with other text before the prompt."""
        return self._replace(prefix=(*context, *self.prefix))


class Scored(NamedTuple):
    """What the model says of a continuation, token by token."""

    log_p: npt.NDArray[np.float64]
    right: npt.NDArray[np.bool_]
    """whether the token is the model's first choice"""

    @property
    def exact(self) -> int:
        """Tokens that greedy decoding gives exactly."""
        wrong = np.flatnonzero(~self.right)
        return int(wrong[0]) if len(wrong) else len(self.right)


def score(model: Model, rows: Sequence[Prompted]) -> list[Scored]:
    """Run each row. A model without a start token cannot say anything of a token that nothing stands before: its prefix must have one."""
    if not rows:
        return []
    skipped = int(model.bos_id is None)
    windows = [Window([*row.prefix, *row.continuation], number) for number, row in enumerate(rows)]
    found = losses(model, windows)
    scored, at = [], 0
    for row, window in zip(rows, windows, strict=True):
        own = slice(at + len(row.prefix) - skipped, at + len(window.ids) - skipped)
        scored.append(Scored(-found.nll[own], found.first[own] == found.tokens[own]))
        at += len(window.ids) - skipped
    return scored
