"""What rules must beat: predictions of a key's coefficient from the last tokens alone, learned on the text the rules were found in.

- last token: the mean coefficient at positions with that token, shrunk to the cell's mean as if one more position had it;
- bigram: the mean given the last two tokens, shrunk to the estimate of the last token in the same way (back-off);
- neighbours: the mean at the positions whose last three tokens are most alike in the model's own input embeddings.

The lookups are exact over the whole text, because they are sums: `Baselines.take` adds up what a pass over it gives. Only types
(tokens, bigrams) that both texts have are kept, [types, cells] of each layer: meant for a sample of the cells. None of these has a
threshold of its own, so they have no F1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .text import Text

if TYPE_CHECKING:
    import torch

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Lookup = Literal["last_token", "bigram"]

NEIGHBOURS = 16
"""Positions that the neighbours' mean is over."""
SAMPLED = 1 << 14
"""Positions, at most, of the text that neighbours are looked for among: a uniform sample."""
ASKED = 1 << 17
"""Positions of the held-out text, at most, whose neighbours are looked for: whole windows, a uniform sample."""
WEIGHTS = (1.0, 0.5, 0.25)
"""Of the embeddings of the last token, the one before, and the one before that."""
BLOCK = 1 << 13
"""Positions whose neighbours are looked for together, at most."""


@dataclass(frozen=True)
class Types:
    """The types of a held-out text's positions, and how the text that is learned from shows them."""

    held: Ints
    """[positions of the held-out text] the type of each"""
    learned: Ints
    """[positions of the other text] the type of each; −1 if the held-out text does not have it"""
    seen: Ints
    """[types] how often each occurs in the other text"""


def types_of(held: Text, learned: Text, back: int) -> Types:
    """By the last `back` + 1 tokens. That a window begins there counts as a token of its own."""
    size = 2 + max(int(each.tokens.max(initial=0)) for each in (held, learned))

    def named(text: Text) -> Ints:
        positions = np.arange(len(text))
        found = np.zeros(len(text), np.int64)
        for each in range(back + 1):
            found = found * size + text.token(positions, each) + 1
        return found

    names, types = np.unique(named(held), return_inverse=True)
    wanted = named(learned)
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    found = np.where(names[at] == wanted, at, -1) if len(names) else np.full(len(wanted), -1)
    return Types(types.reshape(-1), found, np.bincount(found[found >= 0], minlength=len(names)))


class Baselines:
    """What is learned of some cells. `take` is given to a pass over the text (`passing.observe`), once per batch."""

    def __init__(
        self,
        learned: Text,
        held: Text,
        cells: Mapping[int, Ints],
        *,
        among: Mapping[int, Ints] | None = None,
        seed: int = 0,
    ) -> None:
        """`cells`: per layer, the cells to learn, ascending; `among`: those that the pass observes, if they are more."""
        self.cells, self.held = dict(cells), held
        self._columns = {
            layer: None if among is None else np.searchsorted(among[layer], each) for layer, each in cells.items()
        }
        self.types: dict[Lookup, Types] = {
            "last_token": types_of(held, learned, 0),
            "bigram": types_of(held, learned, 1),
        }
        self._rows: dict[Lookup, Ints] = {}
        """[types] where the sums of a type are; the types that do not occur in the text have none"""
        for name, types in self.types.items():
            self._rows[name] = np.where(types.seen > 0, np.cumsum(types.seen > 0) - 1, -1)
        self._sums: dict[tuple[int, Lookup], torch.Tensor] = {}
        self._totals: dict[int, torch.Tensor] = {}
        self._positions = len(learned)
        self._neighbours = Neighbours(learned, held, seed)
        self._sampled: dict[int, torch.Tensor] = {}

    def take(self, layer: int, positions: Ints, x: torch.Tensor) -> None:
        """Add the coefficients of some positions. Every position must be given once, and every layer."""
        import torch

        if layer not in self._columns:
            return
        columns = self._columns[layer]
        chosen = x if columns is None else x[:, torch.from_numpy(columns).to(x.device)]
        if layer not in self._totals:
            self._totals[layer] = torch.zeros(chosen.shape[1], dtype=torch.float64, device=x.device)
            self._sampled[layer] = torch.zeros(len(self._neighbours.sample), chosen.shape[1], device=x.device)
            for name, types in self.types.items():
                size = int((types.seen > 0).sum())
                self._sums[layer, name] = torch.zeros(size, chosen.shape[1], device=x.device)
        self._totals[layer] += chosen.sum(0, dtype=torch.float64)
        for name, types in self.types.items():
            rows = np.where(types.learned[positions] < 0, -1, self._rows[name][types.learned[positions]])
            _add(self._sums[layer, name], rows, chosen)
        _add(self._sampled[layer], self._neighbours.row[positions], chosen)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What was learned, to be stored."""
        found = {f"{layer}_{name}": sums.cpu().numpy() for (layer, name), sums in self._sums.items()}
        found |= {f"{layer}_total": each.cpu().numpy() for layer, each in self._totals.items()}
        return found | {f"{layer}_sample": each.cpu().numpy() for layer, each in self._sampled.items()}

    def restore(self, load: Callable[[str], npt.NDArray[Any]]) -> None:
        """Take back what `arrays` gave, each array by its name."""
        import torch

        for layer in self.cells:
            self._totals[layer] = torch.from_numpy(np.array(load(f"{layer}_total")))
            self._sampled[layer] = torch.from_numpy(np.array(load(f"{layer}_sample")))
            for name in self.types:
                self._sums[layer, name] = torch.from_numpy(np.array(load(f"{layer}_{name}")))

    def lookup(self, layer: int, name: Lookup) -> Floats:
        """[types, cells] what a lookup says of each type of the held-out text."""
        means = self._totals[layer].cpu().numpy() / max(1, self._positions)
        before = np.broadcast_to(means, (len(self.types["last_token"].seen), len(means)))
        last = self._shrunk(layer, "last_token", before)
        if name == "last_token":
            return last.astype(np.float32)
        of_bigram = np.empty(len(self.types["bigram"].seen), np.int64)
        of_bigram[self.types["bigram"].held] = self.types["last_token"].held
        return self._shrunk(layer, "bigram", last[of_bigram]).astype(np.float32)

    def _shrunk(self, layer: int, name: Lookup, towards: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The mean of each type, with one more position that has the value it is shrunk towards."""
        seen = self.types[name].seen
        known = seen > 0
        found = np.array(towards, np.float64)
        found[known] += self._sums[layer, name].cpu().numpy()  # in the order of the types
        return found / (seen + 1)[:, None]

    @property
    def asked(self) -> Ints:
        """The positions of the held-out text, ascending, that neighbours are looked for."""
        return self._neighbours.asked

    def find_neighbours(self, embeddings: torch.Tensor) -> None:
        """Look for them, by the model's input embeddings [vocabulary, model]. They are the same for all layers."""
        self._neighbours.find(embeddings)

    def neighbour(self, layer: int) -> Floats:
        """[positions of `asked`, cells] the mean coefficient of the nearest."""
        return self._neighbours.mean(self._sampled[layer])


def _add(sums: torch.Tensor, rows: Ints, x: torch.Tensor) -> None:
    """Add each row of x to the row of the sums that it is for; −1: to none."""
    import torch

    known = np.flatnonzero(rows >= 0)
    if len(known):
        at, of = (torch.from_numpy(each).to(x.device) for each in (known, rows[known]))
        sums.index_add_(0, of, x[at].to(sums.dtype))


class Neighbours:
    """Positions of a text whose last tokens are most alike to those of a held-out position: by the cosine between the
    embeddings of the last three tokens, each of length 1, one after the other with `WEIGHTS`. Where the window begins the
    missing ones are zero."""

    def __init__(self, learned: Text, held: Text, seed: int) -> None:
        random = np.random.default_rng((seed, 16))
        self.learned, self.held = learned, held
        self.sample: Ints = np.sort(random.choice(len(learned), min(SAMPLED, len(learned)), replace=False))
        self.row = np.full(len(learned), -1)
        """[positions of the text] its number in the sample; −1 if it is not in it"""
        self.row[self.sample] = np.arange(len(self.sample))
        self.asked = _whole_windows(held, ASKED, random)
        self._nearest: torch.Tensor | None = None

    def find(self, embeddings: torch.Tensor) -> None:
        import torch

        if self._nearest is not None:
            return
        device = embeddings.device
        theirs = _last(self.learned, self.sample)
        tokens, at = np.unique(theirs, return_inverse=True)
        known = _embedded(embeddings, tokens).T
        columns = torch.from_numpy(at.reshape(theirs.shape)).to(device)
        lengths = torch.from_numpy(np.sqrt((theirs >= 0).T @ np.square(WEIGHTS)).astype(np.float32)).to(device)
        found = []
        for begin in range(0, len(self.asked), BLOCK):
            ours = _last(self.held, self.asked[begin : begin + BLOCK])
            asked, at = np.unique(ours, return_inverse=True)
            alike = _embedded(embeddings, asked) @ known
            rows = torch.from_numpy(at.reshape(ours.shape)).to(device)
            step = max(1, (1 << 24) // max(1, len(self.sample)))
            for here in torch.split(rows, step, 1):
                cosines = sum(
                    weight**2 * alike[each].index_select(1, there)
                    for weight, each, there in zip(WEIGHTS, here, columns, strict=True)
                )
                found.append((cosines / lengths).topk(min(NEIGHBOURS, len(self.sample)), 1).indices)
        self._nearest = torch.cat(found)

    def mean(self, sampled: torch.Tensor) -> Floats:
        """[asked, cells] the mean over the nearest of what is known of the sample [sample, cells]."""
        import torch

        if self._nearest is None:
            raise ValueError("Look for the neighbours before their means are asked.")
        step = max(1, (1 << 22) // max(1, sampled.shape[1] * NEIGHBOURS))
        nearest = self._nearest.to(sampled.device)
        found: Floats = torch.cat([sampled[each].mean(1) for each in torch.split(nearest, step)]).cpu().numpy()
        return found


def _last(text: Text, positions: Ints) -> npt.NDArray[np.int32]:
    """[len(WEIGHTS), positions] the last tokens, the last first; −1 where the window begins later."""
    return np.stack([text.token(positions, back) for back in range(len(WEIGHTS))])


def _embedded(embeddings: torch.Tensor, tokens: npt.NDArray[Any]) -> torch.Tensor:
    """[tokens, model] the embeddings, each of length 1; zero for −1."""
    import torch

    known = torch.from_numpy((tokens >= 0).astype(np.float32)).to(embeddings.device)
    rows = embeddings.detach()[torch.from_numpy(np.maximum(tokens, 0).astype(np.int64)).to(embeddings.device)]
    return torch.nn.functional.normalize(rows.float(), dim=1) * known[:, None]


def _whole_windows(text: Text, most: int, random: np.random.Generator) -> Ints:
    """The positions of random windows, at most `most` of them; all positions if there are no more."""
    if len(text) <= most:
        return np.arange(len(text))
    order = random.permutation(len(text.offsets) - 1)
    kept = np.zeros(len(order), bool)
    kept[order[np.cumsum(np.diff(text.offsets)[order]) <= most]] = True
    return np.flatnonzero(kept[text.windows])
