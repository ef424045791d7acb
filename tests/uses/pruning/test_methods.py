"""Every method of pruning on a layer small enough to do by hand, and refit against brute force."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from keyhole.errors import ModelError
from keyhole.uses.pruning import calibrate, methods
from keyhole.uses.pruning.calibrate import Moments
from keyhole.uses.pruning.cuts import cut_of
from keyhole.uses.pruning.methods import METHODS, Layer
from keyhole.uses.pruning.refit import RIDGE, refit_order, refitted, ridged


def layer(
    m: list[list[float]] | Tensor,
    keys: list[list[float]],
    values: list[list[float]],
    ups: list[list[float]] | None = None,
) -> Layer:
    """A layer whose coefficients over a text are the rows of m."""
    rows = torch.as_tensor(m, dtype=torch.float32)
    moments = Moments(
        len(rows), rows.double().sum(0), rows.double().abs().sum(0), rows.double().square().sum(0), rows.T @ rows
    )
    moments.largest = rows.double().abs().amax(0)
    made = [torch.tensor(each) if each is not None else None for each in (keys, ups, values)]
    return Layer(0, made[0], made[1], made[2], moments)  # type: ignore[arg-type]


def spread(m: Tensor) -> Tensor:
    return torch.cov(m.double().T, correction=0)


def raw(m: Tensor) -> Tensor:
    return m.double().T @ m.double() / len(m)


# coefficients of three cells over four tokens, keys [3, 2], values [3, 2]
M = [[1.0, 0.0, 2.0], [1.0, 4.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 2.0]]
KEYS = [[3.0, 4.0], [1.0, 0.0], [0.0, -2.0]]
VALUES = [[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]]


def scores(name: str, of: Layer) -> list[float]:
    """The scores of the cells by a method, by cell."""
    order = METHODS[name].order(of, 0)
    found = torch.empty(of.cells, dtype=torch.float64)
    found[order.cells] = order.costs
    assert order.costs.tolist() == sorted(order.costs.tolist())
    return [round(float(each), 6) for each in found]


def test_magnitude_is_the_product_of_the_norms() -> None:
    assert scores("magnitude", layer(M, KEYS, VALUES)) == [5 * 5, 1 * 1, 2 * 2]


def test_magnitude_of_a_gated_cell_has_all_three_norms() -> None:
    ups = [[0.0, 2.0], [3.0, 0.0], [1.0, 0.0]]
    assert scores("magnitude", layer(M, KEYS, VALUES, ups)) == [5 * 2 * 5, 1 * 3 * 1, 2 * 1 * 2]


def test_maxabs_adds_the_largest_weight_and_the_size_of_the_smallest() -> None:
    # max + |min|: 4 + |3|, 1 + |0|, 0 + |−2|
    assert scores("maxabs", layer(M, KEYS, VALUES)) == [7, 1, 2]


def test_maxabs_of_a_gated_cell_adds_both_projections() -> None:
    ups = [[-1.0, 2.0], [3.0, 0.0], [1.0, 5.0]]
    assert scores("maxabs", layer(M, KEYS, VALUES, ups)) == [7 + 3, 1 + 3, 2 + 6]


def test_wanda_is_the_mean_weight_times_the_root_mean_square_of_the_coefficient() -> None:
    # mean |v|: 3.5, 0.5, 1; √mean(m²): 1, √(16/4), √(8/4)
    assert scores("wanda", layer(M, KEYS, VALUES)) == [3.5, 1.0, round(2**0.5, 6)]


def test_flap_is_the_variance_times_the_squared_norm() -> None:
    # variances with n − 1: 0, 4 (mean 1: 9+1+1+1 over 3), 4/3 (mean 1: 1+1+1+1 over 3)
    assert scores("flap", layer(M, KEYS, VALUES)) == [0.0, 4.0 * 1, round(4 / 3 * 4, 6)]


def test_activity_and_its_square() -> None:
    of = layer([[-row[0], row[1], row[2]] for row in M], KEYS, VALUES)
    assert scores("activity", of) == [1 * 5, 1 * 1, 1 * 2]
    assert scores("square", of) == [1 * 25, 4 * 1, 2 * 4]


def test_random_is_seeded_and_differs_between_layers() -> None:
    one = layer(torch.rand(5, 40), [[1.0, 0.0]] * 40, [[1.0, 0.0]] * 40)
    other = Layer(1, one.keys, None, one.values, one.moments)
    orders = [
        tuple(methods.random(each, seed).cells.tolist()) for each, seed in ((one, 0), (one, 0), (one, 1), (other, 0))
    ]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_flap_puts_what_cells_added_on_average_into_the_bias() -> None:
    of = layer(M, KEYS, VALUES)
    cut = cut_of(of, METHODS["flap"].order(of, 0), 1, "mean")
    assert cut.stay.tolist() == [1, 2]
    assert cut.bias is not None
    assert cut.bias.tolist() == [3.0, 4.0]  # cell 0 always adds 1 · (3, 4)


def test_without_a_place_for_a_bias_nothing_takes_over() -> None:
    of = layer(M, KEYS, VALUES)
    of = Layer(0, of.keys, None, of.values, of.moments, refittable_bias=False)
    assert cut_of(of, METHODS["flap"].order(of, 0), 1, "mean").bias is None


def test_dead_cells_go_first_then_the_less_active_duplicate_and_its_twin_takes_its_value() -> None:
    m = [[1.0, 2.0, 0.0, 0.5], [2.0, 4.0, 0.0, 0.0], [3.0, 6.0, 0.0, 0.1]]
    keys = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    values = [[1.0, 1.0], [2.0, 2.0], [5.0, 0.0], [1.0, -1.0]]
    of = layer(m, keys, values)
    order = METHODS["duplicates"].order(of, 0)
    assert order.cells.tolist() == [2, 0, 3, 1]  # dead; the twin of cell 1; by activity
    assert order.twins is not None
    assert order.twins.tolist() == [-1, 1, -1, -1]
    cut = cut_of(of, order, 2, "merge")
    assert cut.stay.tolist() == [1, 3]
    assert cut.values is not None
    # m_0 = m_1 / 2, so the twin gets half of v_0: nothing at all is lost
    assert torch.allclose(cut.values[0], torch.tensor([2.5, 2.5]))
    assert torch.allclose(torch.tensor(m)[:, [1, 3]] @ cut.values, torch.tensor(m) @ torch.tensor(values))


def test_the_sign_of_a_gated_twin_is_a_convention() -> None:
    """(up, v) → (−up, −v) is the same cell: its twin takes it over whichever sign it has."""
    m = torch.tensor([[1.0, 1.0, 0.2], [2.0, 2.0, 0.0], [3.0, 3.0, 0.1]])
    keys, ups, values = ([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]] for _ in range(3))
    turned_m = m * torch.tensor([-1.0, 1.0, 1.0])
    turned_ups, turned_values = ([[-1.0, 0.0], *each[1:]] for each in (ups, values))
    for rows, up, value in ((m, ups, values), (turned_m, turned_ups, turned_values)):
        of = layer(rows, keys, value, up)
        order = METHODS["duplicates"].order(of, 0)
        assert order.cells[0] == 0
        cut = cut_of(of, order, 1, "merge")
        assert cut.values is not None
        assert torch.allclose(rows[:, cut.stay] @ cut.values, rows @ torch.tensor(value))


# Refit


def redundant(cells: int = 8, tokens: int = 400, rank: int = 4) -> tuple[Tensor, Tensor]:
    """Coefficients of which some explain others, and values."""
    random = torch.Generator().manual_seed(3)
    m = torch.randn(tokens, rank, generator=random) @ torch.randn(rank, cells, generator=random)
    return m + 0.3 * torch.randn(tokens, cells, generator=random) + 1.0, torch.randn(cells, 5, generator=random)


def lost(m: Tensor, values: Tensor, stay: list[int]) -> float:
    """What the best values and bias for these cells still lose of the output, with the ridge: found by solving the whole problem."""
    m, values = m.double(), values.double()
    centred = m - m.mean(0)
    cov = centred.T @ centred / len(m)
    cov += RIDGE * torch.diag(cov.diagonal())
    new = torch.linalg.solve(cov[stay][:, stay], cov[stay] @ values)
    left = values.clone()
    left[stay] -= new
    return float((left * (cov @ left)).sum())


def test_refitted_values_are_those_of_least_squares() -> None:
    m, values = redundant()
    stay = torch.tensor([0, 2, 3, 5, 7])
    found, bias = refitted(spread(m), values, stay, m.double().mean(0))
    y = m.double() @ values.double()
    # the ridge as rows of its own, so that a plain least-squares solver has the same problem
    centred = m.double() - m.double().mean(0)
    cov = centred.T @ centred / len(m)
    extra = torch.diag((RIDGE * cov.diagonal() * len(m)) ** 0.5)
    rows = torch.cat([centred[:, stay], extra[:, stay]])
    asked = torch.cat([y - y.mean(0), extra @ values.double()])
    expected = torch.linalg.lstsq(rows, asked).solution
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert bias is not None
    assert torch.allclose((m[:, stay] @ found + bias).mean(0), y.mean(0).float(), atol=1e-4)


def test_refitting_never_loses_more_than_leaving_the_values_alone() -> None:
    m, values = redundant()
    stay = torch.tensor([1, 3, 4, 6])
    found, bias = refitted(spread(m), values, stay, m.double().mean(0))
    assert bias is not None
    y = m @ values
    refit_error = (m[:, stay] @ found + bias - y).square().mean()
    gone = [cell for cell in range(8) if cell not in stay]
    mean_error = (m[:, stay] @ values[stay] + (m[:, gone] @ values[gone]).mean(0) - y).square().mean()
    assert refit_error < mean_error


def test_the_first_cell_to_go_is_the_one_that_the_others_take_over_best() -> None:
    """Costs against brute force: the whole least-squares problem solved for every choice of one cell, again and again."""
    m, values = redundant()
    order, costs = refit_order(spread(m), values, None, block=1)
    there = list(range(8))
    whole = 0.0
    for cell, cost in zip(order.tolist(), costs.tolist(), strict=True):
        every = {each: lost(m, values, [other for other in there if other != each]) for each in there}
        assert cell == min(every, key=lambda each: every[each])
        # of the first few, costs add up to what is lost in all
        if len(there) == 8:
            assert cost == pytest.approx(every[cell] - whole, rel=2e-3, abs=1e-4)
        # later costs are of the values as they were refitted by then, made to rise: what is lost in all is no more
        assert cost >= every[cell] - whole - 1e-4
        whole = every[cell]
        there.remove(cell)
    assert len(order) == 7


def test_an_exact_copy_costs_next_to_nothing_and_its_twin_then_much() -> None:
    m, values = redundant(cells=6, rank=6)
    m = torch.cat([m, 2 * m[:, :1]], 1)
    values = torch.cat([values, values[:1]])
    order, costs = refit_order(spread(m), values, None, block=1)
    first, other = (0, 6) if order[0] == 0 else (6, 0)
    assert order[0] == first
    written = float(m[:, first].double().var(correction=0) * values[first].double().square().sum())
    assert costs[0] < 0.03 * written  # what the ridge of 1 % gives up
    later = order.tolist().index(other) if other in order.tolist() else len(order)
    assert later > 1


def test_a_value_that_nothing_reads_goes_first() -> None:
    """With the Fisher information of an output whose first direction alone matters, a long value along another one is cheap."""
    random = torch.Generator().manual_seed(0)
    m = torch.randn(300, 3, generator=random)
    values = torch.tensor([[1.0, 0.0], [0.0, 20.0], [2.0, 0.0]])
    pull = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert refit_order(spread(m), values, pull, block=1)[0].tolist() == [1, 0]
    assert refit_order(spread(m), values, None, block=1)[0].tolist() == [0, 2]


def test_without_a_bias_the_second_moment_is_what_counts() -> None:
    m, values = redundant()
    stay = torch.tensor([0, 1, 2, 4, 5])
    found, bias = refitted(raw(m), values, stay, None)
    assert bias is None
    y = m @ values
    gone = [3, 6, 7]
    plain = (m[:, stay] @ values[stay] - y).square().mean()
    assert (m[:, stay] @ found - y).square().mean() < plain
    assert len(gone) + len(stay) == 8


def test_a_longer_key_with_a_shorter_value_is_the_same_cell() -> None:
    """m·v = (c·m)·(v/c): the order, the costs and the output after refitting are the same."""
    m, values = redundant()
    scale = torch.tensor([1.0, 5.0, 0.2, 1.0, 3.0, 0.5, 10.0, 0.1])
    found = []
    for c in (torch.ones(8), scale):
        own, written = m * c, values / c[:, None]
        order, costs = refit_order(spread(own), written, None, block=1)
        stay = order.new_tensor(sorted(set(range(8)) - set(order[:3].tolist())))
        new, bias = refitted(spread(own), written, stay, own.double().mean(0))
        assert bias is not None
        found.append((order.tolist(), costs, own[:, stay] @ new + bias))
    assert found[0][0] == found[1][0]
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-3)
    assert torch.allclose(found[0][2], found[1][2], atol=1e-3)


def test_blocks_and_single_steps_agree_where_cells_are_independent() -> None:
    random = torch.Generator().manual_seed(1)
    m = torch.linalg.qr(torch.randn(600, 20, generator=random)).Q * 600**0.5
    values = torch.randn(20, 6, generator=random) * torch.linspace(0.1, 3, 20)[:, None]
    one = refit_order(raw(m), values, None, block=1)[0]
    some = refit_order(raw(m), values, None, block=5)[0]
    assert one.tolist() == some.tolist()


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_of_two_cells_with_one_key_a_block_takes_one(noise: float) -> None:
    """Equal cells cost the same, so they are neighbours in the order: a block that took them by their first costs would lose both."""
    torch.manual_seed(0)
    half = torch.relu(torch.randn(2000, 128))
    m = torch.cat([half, half + noise * torch.randn_like(half)], 1)
    values = torch.randn(256, 16)
    blocks, single = (refit_order(spread(m), values, None, block=block)[0][:128] for block in (16, 1))

    def pairs(gone: Tensor) -> int:
        return 128 - len({int(cell) % 128 for cell in gone})

    assert pairs(blocks) <= pairs(single) + 2
    of = layer(m, [[1.0]] * 256, values.tolist())
    lost = [
        float(((m - m.mean(0)) @ values - _rebuilt(m, values, of, gone)).square().mean()) for gone in (blocks, single)
    ]
    assert lost[0] <= 1.1 * lost[1] + 1e-4


def _rebuilt(m: Tensor, values: Tensor, of: Layer, gone: Tensor) -> Tensor:
    """The layer's output, without its mean, from the cells that stay."""
    stay = torch.tensor([cell for cell in range(len(values)) if cell not in set(gone.tolist())])
    new, _ = refitted(spread(m), values, stay, m.double().mean(0))
    return (m - m.mean(0))[:, stay] @ new


def test_every_subset_is_worse_than_the_one_that_is_kept_in_a_case_by_hand() -> None:
    """Three cells, two of them alike: of all pairs that can stay, one of each kind is the best, and refit keeps it."""
    random = torch.Generator().manual_seed(5)
    base = torch.randn(500, 2, generator=random)
    m = torch.stack([base[:, 0], base[:, 0] + 0.05 * torch.randn(500, generator=random), base[:, 1]], 1)
    values = torch.tensor([[1.0, 0.0], [1.1, 0.0], [0.0, 0.9]])
    best = min(itertools.combinations(range(3), 2), key=lambda stay: lost(m, values, list(stay)))
    gone = refit_order(spread(m), values, None, block=1)[0][0]
    assert {0, 1, 2} - {int(gone)} == set(best)
    assert int(gone) in (0, 1)


def test_covariance_has_the_ridge_on_its_diagonal() -> None:
    m, _ = redundant()
    plain = torch.cov(m.double().T, correction=0)
    expected = plain + RIDGE * torch.diag(plain.diagonal())
    assert torch.allclose(ridged(spread(m)), expected, atol=1e-4)


@pytest.mark.parametrize("mean", [0.0, 30.0, 1e5])
def test_a_large_mean_drowns_no_variance(mean: float) -> None:
    """Cells that are on all the time: the covariance from a pass in float32 against float64 of the same coefficients."""
    random = torch.Generator().manual_seed(4)
    m = (mean + torch.randn(4000, 6, generator=random)).float()
    moments = Moments(0, *(torch.zeros(6, dtype=torch.float64) for _ in range(3)), torch.zeros(6, 6))
    for part in m.split(500):
        calibrate.add(moments, part)
    exact = m.double()
    assert torch.allclose(moments.second(centred=True), torch.cov(exact.T, correction=0), atol=2e-4)
    second = exact.T @ exact / len(m)
    assert torch.allclose(moments.second(centred=False), second, rtol=1e-6)
    values = torch.randn(6, 3, generator=random)
    new, bias = refitted(moments.second(centred=True), values, torch.arange(4), moments.mean)
    assert bias is not None
    lost = (exact[:, :4] @ new.double() + bias - exact @ values.double()).square().mean()
    assert lost < 1.1 * (exact[:, 4:] - exact[:, 4:].mean(0)).matmul(values[4:].double()).square().mean()


def test_numbers_that_are_none_are_refused() -> None:
    moments = Moments(0, *(torch.zeros(2, dtype=torch.float64) for _ in range(3)), torch.zeros(2, 2))
    calibrate.add(moments, torch.tensor([[1.0, float("inf")]]))
    with pytest.raises(ModelError, match="layer 3 .* float16"):
        moments.check(3, torch.float16)


def test_flaps_choice_refitted_takes_flaps_cells_and_loses_less_than_flap() -> None:
    m, values = redundant()
    of = layer(m, [[1.0, 0.0]] * 8, values.tolist())
    order = METHODS["flap+refit"].order(of, 0)
    plain, refit = (cut_of(of, order, 3, METHODS[name].repair) for name in ("flap", "flap+refit"))
    assert plain.stay.tolist() == refit.stay.tolist()
    y = m @ values

    def left(values: Tensor, bias: Tensor | None) -> float:
        assert bias is not None
        return float((m[:, plain.stay] @ values + bias - y).square().mean())

    assert refit.values is not None
    assert left(refit.values, refit.bias) < 0.9 * left(values[plain.stay], plain.bias)


def test_dead_cells_and_duplicates_of_all_layers_come_before_active_cells() -> None:
    """Of layers of different activity: the order between layers that --global takes."""
    m = [[1.0, 2.0, 0.0, 0.5], [2.0, 4.0, 0.0, 0.0], [3.0, 6.0, 0.0, 0.1]]
    keys = [[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    values = torch.tensor([[1.0, 1.0], [2.0, 2.0], [5.0, 0.0], [1.0, -1.0]])
    costs = [METHODS["duplicates"].order(layer(m, keys, (scale * values).tolist()), 0).costs for scale in (1.0, 1000.0)]
    for each in costs:
        assert -2 <= each[0] < -1 <= each[1] < 0 <= each[2] <= each[3]
    assert torch.allclose(costs[0][:2], costs[1][:2])
