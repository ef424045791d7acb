"""What the paper's section 5 needs of the pass over held-out prefixes. Composition, refinement, cases, part and veto use it.

The top token of a value does not depend on the input, so comparing a layer with its cells needs only the stored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..lens import project
from ..lens.head import Head
from ..models.states import States
from ..store.run import Run
from ..store.values import Values
from .amounts import strengths
from .heldout import Prefixes

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WHICH = ("active", "all", "n90")
"""The cells that are asked: those with a coefficient other than 0, all, or the fewest that carry 90 % of Σ|m|·‖v‖."""
OUTPUTS = ("y", "o")
"""What they are compared with: the layer's output alone, or the residual after it."""
READINGS = tuple((which, output) for which in WHICH for output in OUTPUTS)
Reading = tuple[str, str]
MOSTLY = 0.5
"""A layer whose residual says the current token at more prefixes than this is left out of pooled verdicts."""


@dataclass
class Section5:
    """What was found, [layers, n] unless it says otherwise. Tokens of r, y and o are read through the model's own head."""

    lens: str
    top_r: Ints
    top_y: Ints
    top_o: Ints
    final_prob: Floats
    """the probability of the last layer's top(o) under r"""
    rank_o: Ints
    """the rank of the layer's own top(o) under r; 1 is the top"""
    norm_y: Floats
    norm_attention: Floats
    """how much attention adds"""
    top_first: Ints
    """[n] the top token of the first block's input"""
    current: Ints
    """[n] the last token of each prefix"""
    lengths: Ints
    """[n] tokens of each prefix"""
    following: Ints
    """[n] the token that follows each prefix in the text"""
    clusters: Ints | None
    """[n] what intervals resample, if not prefixes"""
    agrees: dict[Reading, Bools] = field(default_factory=dict)
    """by reading: whether some cell's token is the output's, top(±v) = top(y) or top(o), both read through `lens`"""
    dealt: dict[Reading, Floats] = field(default_factory=dict)
    """[layers] by reading: how often some cell's token is the output's of another prefix, over all pairs of prefixes"""

    @property
    def n(self) -> int:
        return len(self.lengths)

    @property
    def is_current(self) -> Bools:
        """Whether top(r) is the current token."""
        return np.equal(self.top_r, self.current)

    @cached_property
    def kept(self) -> list[int]:
        """The layers of pooled verdicts: those whose residual does not mostly say the current token."""
        return [layer for layer, share in enumerate(self.is_current.mean(1)) if share <= MOSTLY]

    @property
    def left_out(self) -> str:
        """The other layers, as text."""
        return ", ".join(str(layer) for layer in range(len(self.top_r)) if layer not in self.kept)


class Watching:
    """Fills a `Section5` from the pass."""

    def __init__(self, run: Run, head: Head, values: Values, prefixes: Prefixes) -> None:
        layers, n = head.model.layers, len(prefixes.ids)
        device = head.model.device
        self._head = head
        self._tokens = [_Tokens.of(values, run.cells.span(layer), device) for layer in range(layers)]
        self._orientation = torch.from_numpy(np.array(run.orientation)).to(device)
        self._norms = torch.from_numpy(np.array(values.norms)).to(device)
        self._waiting: list[tuple[list[int], dict[str, Tensor], dict[Reading, Tensor]]] = []
        self._said = {output: np.zeros((layers, n), np.int64) for output in OUTPUTS}
        self._found = Section5(
            lens=values.lens,
            top_r=np.zeros((layers, n), np.int64),
            top_y=np.zeros((layers, n), np.int64),
            top_o=np.zeros((layers, n), np.int64),
            final_prob=np.zeros((layers, n)),
            rank_o=np.zeros((layers, n), np.int64),
            norm_y=np.zeros((layers, n)),
            norm_attention=np.zeros((layers, n)),
            top_first=np.zeros(n, np.int64),
            current=np.array([ids[-1] for ids in prefixes.ids]),
            lengths=np.array([len(ids) for ids in prefixes.ids]),
            following=np.array(prefixes.following),
            clusters=prefixes.clusters,
            agrees={reading: np.zeros((layers, n), bool) for reading in READINGS},
        )

    def take(self, rows: Sequence[int], seen: States) -> None:
        read = _read(self._head, seen)
        self._waiting.append((list(rows), read, self._ask(seen, read)))
        if len(self._waiting) > 1:  # results are fetched one batch late, so that a GPU is not idle meanwhile
            self._put(*self._waiting.pop(0))

    @cached_property
    def found(self) -> Section5:
        while self._waiting:
            self._put(*self._waiting.pop(0))
        n = self._found.n
        for which, output in READINGS:
            hits = self._found.agrees[which, output].sum(1)
            pairs = np.array([t.pairs(which, said) for t, said in zip(self._tokens, self._said[output], strict=True)])
            self._found.dealt[which, output] = (pairs - hits) / max(1, n * (n - 1))
        return self._found

    def _put(self, rows: list[int], read: dict[str, Tensor], agrees: dict[Reading, Tensor]) -> None:
        for name, array in read.items():
            to = self._said[name[-1]] if name.startswith("said_") else getattr(self._found, name)
            to[..., rows] = array.cpu().numpy()
        for reading, each in agrees.items():
            self._found.agrees[reading][:, rows] = each.cpu().numpy()

    @torch.inference_mode()
    def _ask(self, seen: States, read: dict[str, Tensor]) -> dict[Reading, Tensor]:
        """Whether some cell says what its layer says, by reading. `read` gets the tokens that they are compared with."""
        layers, n, width = seen.y.shape
        layer_of = torch.arange(layers).repeat_interleave(n)
        for output, x in (("y", seen.y), ("o", seen.o)):
            read[f"said_{output}"] = self._head.top(self._found.lens, x.reshape(-1, width), layer_of).view(layers, n)
        found: dict[Reading, list[Tensor]] = {reading: [] for reading in READINGS}
        for layer, tokens in enumerate(self._tokens):
            span = self._head.model.cells.span(layer)
            m = seen.coefficients[layer] * self._orientation[span]  # in the sign that the stored tokens are in
            sets = {"all": None, "active": m != 0, "n90": strengths(m, self._norms[span]).carry}
            for which, inside in sets.items():
                there = tokens.said(m, inside)
                tokens.count(which, there)
                for output in OUTPUTS:
                    found[which, output].append(tokens.among(there, read[f"said_{output}"][layer]))
        return {reading: torch.stack(each) for reading, each in found.items()}


class _Tokens:
    """The tokens that the cells of a layer can say: the top tokens of v, and those of −v."""

    def __init__(self, plus: Tensor, minus: Tensor) -> None:
        """From the token of v and that of −v, each [cells]."""
        self.distinct, places = torch.unique(torch.stack([plus, minus]), sorted=True, return_inverse=True)
        """[tokens] ascending"""
        self._plus, self._minus = places
        self.counts: dict[str, Tensor] = {}
        """by set of cells, [tokens]: at how many prefixes some cell of the set says the token"""

    @classmethod
    def of(cls, values: Values, span: slice, device: torch.device) -> _Tokens:
        arrays = (values.top_tokens[span, 0], values.bottom_tokens[span, 0])
        plus, minus = (torch.from_numpy(np.array(tokens, np.int64)).to(device) for tokens in arrays)
        return cls(plus, minus)

    def said(self, m: Tensor, inside: Tensor | None) -> Tensor:
        """[n, tokens] which tokens some cell of a set says, at coefficients m [n, cells]; a cell below 0 writes −v."""
        there = torch.zeros(len(m), len(self.distinct), dtype=torch.uint8, device=m.device)
        for places, sign in ((self._plus, m >= 0), (self._minus, m < 0)):
            says = sign if inside is None else sign & inside
            there.scatter_reduce_(1, places.expand(len(m), -1), says.to(torch.uint8), "amax")
        return there.bool()

    def count(self, which: str, there: Tensor) -> None:
        self.counts[which] = self.counts.get(which, 0) + there.sum(0)

    def among(self, there: Tensor, tokens: Tensor) -> Tensor:
        """[n] whether each prefix's own token [n] is among those that are said."""
        place = torch.searchsorted(self.distinct, tokens).clamp_max(len(self.distinct) - 1)
        return torch.logical_and(there.gather(1, place[:, None])[:, 0], self.distinct[place] == tokens)

    def pairs(self, which: str, tokens: Ints) -> int:
        """In how many pairs of prefixes (one that cells are asked at, one that gives the token) some cell says the token."""
        distinct, counts = self.distinct.cpu().numpy(), self.counts[which].cpu().numpy()
        place = np.searchsorted(distinct, tokens).clip(max=len(distinct) - 1)
        return int(counts[place][distinct[place] == tokens].sum())


@torch.inference_mode()
def _read(head: Head, seen: States) -> dict[str, Tensor]:
    layers, n, width = seen.r.shape
    top_o, top_y = (head.read_residuals(x.reshape(-1, width))[0].view(layers, n) for x in (seen.o, seen.y))
    top_first, _ = head.read_residuals(seen.r[0] - seen.attention[0])
    top_r, final_prob, rank_o = _read_before(head, seen.r.reshape(-1, width), top_o[-1].repeat(layers), top_o.flatten())
    return {
        "top_r": top_r.view(layers, n),
        "top_y": top_y,
        "top_o": top_o,
        "final_prob": final_prob.view(layers, n),
        "rank_o": rank_o.view(layers, n),
        "norm_y": seen.y.norm(dim=-1),
        "norm_attention": seen.attention.norm(dim=-1),
        "top_first": top_first,
    }


def _read_before(head: Head, r: Tensor, final: Tensor, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of residuals [n, model]: the top token, the probability of a token, and the rank of another one."""
    tops, probabilities, ranks = [], [], []
    step = head.rows_at_once
    for at in range(0, len(r), step):
        logits = head.logits(r[at : at + step])
        top, log_total = project.first_tokens(logits, summed=True)
        tops.append(top)
        probabilities.append((logits.gather(1, final[at : at + step, None])[:, 0] - log_total).exp())
        asked = logits.gather(1, following[at : at + step, None])
        ranks.append((logits > asked).sum(1) + 1)
    return torch.cat(tops), torch.cat(probabilities), torch.cat(ranks)
