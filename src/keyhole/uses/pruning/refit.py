"""Cells that the others can take over: which go, and which values the others then get.

A layer adds y = Σ m_i·v_i + b. If the cells P go, the cells S that stay get new values V′_S and a new bias b′, those for which

    E‖y′ − y‖²   is smallest:   V′_S = V_S + C_SS⁻¹·C_SP·V_P,   b′ = b + Σ_i μ_i·(v_i − v′_i)

C is the covariance of the coefficients and μ their mean over the text. This is least squares on the layer's own output; no
gradient step is made. Each variance is raised by the share `RIDGE`, because the text is a sample.

Which cells go is decided one block after the other. If a cell goes while the others take over what they can, the output loses

    cost_i = v_iᵀ·F·v_i / [C⁻¹]_ii

where v_i is its value as it is by then. 1 / [C⁻¹]_ii is the variance of its coefficient that the coefficients of the others do
not explain: a cell whose key fires as other keys do is cheap. v_iᵀFv_i says what its value does to the prediction: F is the Fisher
information of the next token's distribution in the layer's output (`calibrate.py`), so a value that the rest of the model does
not read is cheap, however long it is. After each cell that goes, C⁻¹ and the values are those of the cells that are left (the optimal
brain surgeon's step), so of two cells with the same key the first to go makes the other one dear. The costs of all cells are
brought up to date after a block of them; within a block, those of the `AMONG` times as many cells that were cheapest when it
began, from which it is chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 0.01
"""Of a cell's own variance: then a cell with a key twice as long and a value half as long, which is the same cell in a ReLU layer, costs
the same."""
FLOOR = 1e-9
"""Of the mean variance of a layer's coefficients: what a cell that never fires is given."""
FISHER_RIDGE = 0.001
"""Of the mean diagonal of the Fisher information."""
BLOCK = 1 / 128
"""The share of a layer's cells that goes in one block."""
AMONG = 2


def ridged(second: Tensor) -> Tensor:
    """The covariance of coefficients with the ridge, float64. Where no bias can follow, it is their second moment."""
    found = second.double().clone()
    least = FLOOR * found.diagonal().mean().clamp_min(1e-30)
    found.diagonal().mul_(1 + RIDGE).add_(least)
    return found


@torch.no_grad()
def refit_order(
    second: Tensor, values: Tensor, pull: Tensor | None, *, block: int | None = None
) -> tuple[Tensor, Tensor]:
    """All cells but one in the order in which they go, and what each costs. `second` is the covariance of the coefficients, or, if no
    bias can follow, their second moment."""
    cells = len(values)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(ridged(second))).float()
    seen = values.float() @ _root(pull, values)
    block = block or max(1, round(BLOCK * cells))
    there = torch.arange(cells, device=values.device)
    order: list[Tensor] = []
    costs: list[Tensor] = []
    while len(there) > 1:
        cost = seen.square().sum(1) / inverse.diagonal().clamp_min(1e-30)
        size = min(block, len(there) - 1)
        among = cost.argsort(stable=True)[: AMONG * size]
        first, spent = _one_by_one(inverse[among][:, among], seen[among], size)
        cheap = among[first]
        order.append(there[cheap])
        costs.append(spent)
        stay = torch.ones(len(there), dtype=torch.bool, device=values.device)
        stay[cheap] = False
        taken = torch.linalg.solve(inverse[cheap][:, cheap].double(), inverse[cheap][:, stay].double()).float()
        seen = seen[stay] - taken.T @ seen[cheap]
        inverse = inverse[stay][:, stay] - inverse[stay][:, cheap] @ taken
        there = there[stay]
    if not order:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
    found = torch.cat(costs)
    return torch.cat(order).cpu(), found.cummax(0).values


def _one_by_one(inverse: Tensor, seen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` of some cells to go, and what each costs when it goes. On the CPU: the matrices are small, and there are many
    steps."""
    place = inverse.device
    inverse, seen = inverse.double().cpu(), seen.double().cpu()
    left = torch.ones(len(seen), dtype=torch.bool)
    chosen, costs = [], []
    for _ in range(count):
        cost = seen.square().sum(1) / inverse.diagonal().clamp_min(1e-30)
        cell = int(torch.where(left, cost, torch.inf).argmin())
        chosen.append(cell)
        costs.append(float(cost[cell]))
        left[cell] = False
        along = inverse[cell] / inverse[cell, cell].clamp_min(1e-30)
        seen = seen - along[:, None] * seen[cell]
        inverse = inverse - torch.outer(inverse[:, cell], along)
    return torch.tensor(chosen, device=place), torch.tensor(costs, dtype=torch.float64)


def _root(pull: Tensor | None, values: Tensor) -> Tensor:
    """A matrix R with R·Rᵀ = F, so that ‖v·R‖² = vᵀFv; without a Fisher information the unit matrix."""
    size = values.shape[1]
    if pull is None:
        return torch.eye(size, device=values.device)
    fisher = pull.double().to(values.device)
    fisher.diagonal().add_(FISHER_RIDGE * fisher.diagonal().mean().clamp_min(1e-30))
    root: Tensor = torch.linalg.cholesky(fisher)
    return root.float()


@torch.no_grad()
def refitted(second: Tensor, values: Tensor, stay: Tensor, mean: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The values [cells that stay, model] by least squares, and what is added to the bias. Without a mean of the coefficients the
    bias cannot follow, and `second` is their second moment."""
    cov = ridged(second)
    gone = torch.ones(len(values), dtype=torch.bool, device=values.device)
    gone[stay] = False
    old = values.double()
    within = torch.linalg.cholesky(cov[stay][:, stay])
    new = old[stay] + torch.cholesky_solve(cov[stay][:, gone] @ old[gone], within)
    if mean is None:
        return new.to(values.dtype), None
    mean = mean.to(old)
    return new.to(values.dtype), (mean @ old - mean[stay] @ new).to(values.dtype)
