"""Which cells go first: one function per method, from a layer's weights and its moments (`calibrate.py`).

Notation: m the coefficient, k the key (k_g and k_u if there is a gate), v the value; means are over the tokens of the text.

    random        a seeded order
    magnitude     ‖k‖·‖v‖; if there is a gate, ‖k_g‖·‖k_u‖·‖v‖, which is what scaling the three leaves alone
    maxabs        max k + |min k|, with a gate the sum of that of k_g and k_u: the maximum-absolute-weight rule of GLU pruning
    wanda         mean |v|·√mean(m²): Wanda's |weight|·norm of the input, summed over a cell's weights as for structures
    flap          var(m)·‖v‖²: how much the layer's output fluctuates with the cell. What it added on average goes into the bias
    activity      mean |m|·‖v‖
    square        mean m²·‖v‖²
    duplicates    dead cells first, then of each pair of duplicates the one that is less active, whose value is merged into its
                  twin's, then by activity
    refit         ours: cells whose part of the output the others can take over best, whose values are then refitted (`refit.py`)
    flap+refit    the cells that flap takes, after which values are refitted as ours are: it tells what refit gains by its choice of cells
                  from what it gains by its repair

A lower score goes first. `--global` compares scores between layers: flap's are standardised per layer first, as it was published,
and refit's are in the same unit everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.model import Model
from .calibrate import Moments
from .refit import refit_order

DEAD, TWINS = 0.01, 0.5
"""A cell is dead if its largest |m|·‖v‖ is at most this share of the layer's median. Two are duplicates if their keys and their values
have at least this cosine. Both are what the kinds of cells go by."""


@dataclass(frozen=True)
class Layer:
    """What a method sees of a layer."""

    number: int
    keys: Tensor
    """[cells, model]; if there is a gate, the gate's"""
    ups: Tensor | None
    values: Tensor
    moments: Moments
    refittable_bias: bool = True
    """whether the pruned layer can have a bias that differs from the model's"""

    @property
    def cells(self) -> int:
        return len(self.values)

    @property
    def norms(self) -> Tensor:
        norms: Tensor = self.values.double().norm(dim=1)
        return norms.cpu()


@dataclass(frozen=True)
class Order:
    """The cells of a layer in the order in which they go."""

    cells: Tensor
    """[n] first to go first; cells that are not named go last, in no order"""
    costs: Tensor
    """[n] their scores, which `--global` compares"""
    twins: Tensor | None = None
    """[n] the cell that a cell's value is merged into, −1 if none"""
    factors: Tensor | None = None
    """[n] the factor from its twin's coefficient to its own"""


def layer_of(model: Model, number: int, moments: Moments, *, bias: bool) -> Layer:
    ups = model.ups(number).float() if model.gated else None
    return Layer(number, model.keys(number).float(), ups, model.values(number).float(), moments, bias)


def by_score(scores: Tensor) -> Order:
    scores = scores.double().cpu()
    cells = scores.argsort(stable=True)
    return Order(cells, scores[cells])


# The methods


def random(layer: Layer, seed: int) -> Order:
    return by_score(torch.rand(layer.cells, generator=torch.Generator().manual_seed(seed * 100_003 + layer.number)))


def magnitude(layer: Layer, seed: int) -> Order:
    keys = layer.keys.double().norm(dim=1).cpu()
    return by_score((keys if layer.ups is None else keys * layer.ups.double().norm(dim=1).cpu()) * layer.norms)


def maxabs(layer: Layer, seed: int) -> Order:
    both = [layer.keys] if layer.ups is None else [layer.keys, layer.ups]
    return by_score(torch.stack([rows.amax(1) + rows.amin(1).abs() for rows in both]).sum(0))


def wanda(layer: Layer, seed: int) -> Order:
    return by_score(layer.values.abs().double().mean(1).cpu() * _root_mean_square(layer.moments))


def flap(layer: Layer, seed: int) -> Order:
    return by_score(layer.moments.variance * layer.norms.square())


def standardised(costs: Tensor) -> Tensor:
    """Scores of a layer with mean 0 and standard deviation 1: how FLAP compares layers."""
    return (costs - costs.mean()) / costs.std().clamp_min(1e-30)


def activity(layer: Layer, seed: int) -> Order:
    return by_score(_activity(layer))


def square(layer: Layer, seed: int) -> Order:
    return by_score(layer.moments.squares / layer.moments.count * layer.norms.square())


def duplicates(layer: Layer, seed: int) -> Order:
    """Dead cells, then the duplicates that are nearest to their twins, then the rest by activity."""
    active = _activity(layer)
    assert layer.moments.largest is not None
    strength = layer.moments.largest * layer.norms
    dead = strength <= DEAD * strength.median()
    cells = active[dead].argsort(stable=True)
    gone = [int(cell) for cell in dead.nonzero()[:, 0][cells]]
    twins, factors = [-1] * len(gone), [0.0] * len(gone)
    # stages come one after the other whatever the layer, so that layers can be compared: dead below −1, duplicates below 0
    early = [place / len(gone) - 2 for place in range(len(gone))]
    there = ~dead
    alike = _alike(layer)
    pairs = _moments_of_pairs(layer)
    near = (alike >= TWINS).nonzero()
    for number in alike[near[:, 0], near[:, 1]].argsort(descending=True, stable=True):
        a, b = (int(cell) for cell in near[number])
        if a < b and there[a] and there[b]:
            less, more = (a, b) if active[a] <= active[b] else (b, a)
            gone.append(less)
            twins.append(more)
            factors.append(float(pairs[less, more] / pairs[more, more]) if pairs[more, more] > 0 else 0.0)
            early.append(-float(alike[a, b]))
            there[less] = False
    rest = there.nonzero()[:, 0]
    rest = rest[active[rest].argsort(stable=True)]
    order = torch.cat([torch.tensor(gone, dtype=torch.int64), rest])
    costs = torch.cat([torch.tensor(early, dtype=torch.float64), active[rest]])
    none = torch.full((len(rest),), -1)
    return Order(
        order,
        costs,
        torch.cat([torch.tensor(twins, dtype=torch.int64), none]),
        torch.cat([torch.tensor(factors, dtype=torch.float64), torch.zeros(len(rest), dtype=torch.float64)]),
    )


def refit(layer: Layer, seed: int) -> Order:
    moments = layer.moments
    return Order(*refit_order(moments.second(centred=layer.refittable_bias), layer.values, moments.pull))


def _activity(layer: Layer) -> Tensor:
    return layer.moments.sizes / layer.moments.count * layer.norms


def _root_mean_square(moments: Moments) -> Tensor:
    return (moments.squares / moments.count).sqrt()


def _moments_of_pairs(layer: Layer) -> Tensor:
    return layer.moments.second(centred=False).cpu()


def _alike(layer: Layer) -> Tensor:
    """[cells, cells] the smallest of the cosines of keys (and ups) and of values; of a cell with itself −1. The sign of a gated cell
    is a convention: (up, v) and (−up, −v) are the same, so the two signs must only agree."""
    unit = torch.nn.functional.normalize
    keys, values = unit(layer.keys, dim=1), unit(layer.values, dim=1)
    found, written = keys @ keys.T, values @ values.T
    if layer.ups is not None:
        ups = unit(layer.ups, dim=1)
        read = ups @ ups.T
        written, read = torch.where(read < 0, -written, written), read.abs()
        found = torch.minimum(found, read)
    found = torch.minimum(found, written)
    return found.fill_diagonal_(-1.0).cpu()


# The list


@dataclass(frozen=True)
class Method:
    """A way to choose cells, and what is done for those that stay."""

    name: str
    title: str
    order: Callable[[Layer, int], Order]
    repair: str = "none"
    """`none`; `mean`: the bias takes over what the cells added on average; `merge`: a value is added to its twin's;
    `refit`: the values that stay, and the bias, are fitted to the layer's output"""
    pairs: bool = False
    pull: bool = False
    """whether it needs these moments"""


METHODS = {
    method.name: method
    for method in (
        Method("refit", "refit", refit, "refit", pairs=True, pull=True),
        Method("flap", "FLAP", flap, "mean"),
        Method("flap+refit", "FLAP's choice, refitted", flap, "refit", pairs=True),
        Method("wanda", "Wanda", wanda),
        Method("square", "mean square activity", square),
        Method("activity", "mean activity", activity),
        Method("duplicates", "dead and duplicates first", duplicates, "merge", pairs=True),
        Method("magnitude", "magnitude", magnitude),
        Method("maxabs", "maximum absolute weight", maxabs),
        Method("random", "random", random),
    )
}
DEFAULT = "refit"
