"""The axis of cells against an enumeration of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.cells import Cells, Layer, parse_address
from keyhole.errors import UsageError


@st.composite
def axes(draw: st.DrawFn) -> Cells:
    """One stack or two, layers with and without experts, of any width."""
    stacks = draw(st.sampled_from([("",), ("enc", "dec")]))
    kinds = st.tuples(st.integers(1, 7), st.sampled_from([0, 1, 3]))
    return Cells(
        Layer(width, experts, stack, number)
        for stack in stacks
        for number, (width, experts) in enumerate(draw(st.lists(kinds, min_size=1, max_size=4)))
    )


def addresses(cells: Cells) -> list[str]:
    """Every address, written out from the definition."""
    found = []
    for layer in cells.layers:
        name = f"{layer.stack}." * bool(layer.stack) + f"L{layer.number}"
        middles = [f".E{expert}" for expert in range(layer.experts)] or [""]
        found += [f"{name}{middle}.{index}" for middle in middles for index in range(layer.width)]
    return found


@given(axes())
def test_places_and_addresses_are_each_others_inverse(cells: Cells) -> None:
    expected = addresses(cells)
    assert len(cells) == len(expected) == len(list(cells))
    assert [cells.address(place) for place in range(len(cells))] == expected
    assert [cells.find(address) for address in expected] == list(range(len(cells)))
    assert [cells.find(address.replace("L", "")) for address in expected] == list(range(len(cells)))
    for typed in (str.lower, lambda text: text.replace(".", "/"), lambda text: f" {text.replace('L', '')} "):
        assert [cells.find(typed(address)) for address in expected] == list(range(len(cells)))
    assert [cells.place(layer, index) for layer, index in cells] == list(range(len(cells)))
    assert [cells.split(place) for place in range(len(cells))] == list(cells)


@given(axes())
def test_layers_and_experts_are_views(cells: Cells) -> None:
    array = np.arange(2 * len(cells)).reshape(-1, 2)
    parts = cells.by_layer(array)
    assert all(np.shares_memory(part, array) for part in parts)
    assert np.array_equal(np.concatenate(parts), array)
    sites = [
        array[cells.site(number, expert)]
        for number, layer in enumerate(cells.layers)
        for expert in range(max(layer.experts, 1))
    ]
    assert np.array_equal(np.concatenate(sites), array)
    for number, layer in enumerate(cells.layers):
        assert cells.find_layer(layer.name) == cells.find_layer(number) == number
        assert len(parts[number]) == cells.size(number)


@given(axes())
def test_a_manifest_gives_the_axis_back(cells: Cells) -> None:
    assert Cells.from_json(cells.as_json()) == cells
    assert hash(Cells.from_json(cells.as_json())) == hash(cells)


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        [3],
        [{"layer": "L0", "offset": 0}],
        [{"layer": "L0", "offset": 0, "width": 0}],
        [{"layer": "L0", "offset": 0, "width": True}],
        [{"layer": "L0", "offset": 1, "width": 4}],
        [{"layer": "L0", "offset": 0, "width": 4, "experts": -1}],
        [{"layer": "L0", "offset": 0, "width": 4}, {"layer": "L1", "offset": 5, "width": 4}],
        [{"layer": "L0", "offset": 0, "width": 4}, {"layer": "L0", "offset": 4, "width": 4}],
        [{"layer": 0, "offset": 0, "width": 4}],
    ],
)
def test_a_damaged_description_is_refused(damaged: object) -> None:
    with pytest.raises(ValueError):
        Cells.from_json(damaged)


def test_what_is_not_there_is_named() -> None:
    even, uneven = Cells.of_widths([4, 4]), Cells.of_widths([4, 3])
    experts = Cells([Layer(4, 2)])
    for cells, address, said in (
        (even, "L2.0", "There is no cell L2.0: the model has layers 0 to 1 of cells 0 to 3."),
        (even, "L0.4", "There is no cell L0.4: the model has layers 0 to 1 of cells 0 to 3."),
        (even, "L0.E0.1", "There is no cell L0.E0.1"),
        (even, "dec.L0.1", "There is no cell dec.L0.1"),
        (uneven, "L1.3", "There is no cell L1.3: layer L1 has cells 0 to 2."),
        (uneven, "L2.0", "There is no cell L2.0: the model has layers 0 to 1 of 3 to 4 cells."),
        (experts, "L0.1", "write L0.E0.1"),
        (experts, "L0.E2.1", "There is no cell L0.E2.1"),
        (even, "L0", "is not a cell address"),
        (even, "L0.1.2", "is not a cell address"),
    ):
        with pytest.raises(UsageError) as error:
            cells.find(address)
        assert said in str(error.value)
    for wrong in (2, -1, "L2", "x", 0.5, None):
        with pytest.raises(UsageError, match="layer"):
            even.find_layer(wrong)  # type: ignore[arg-type]
    for layer, index in ((0, 4), (0, -1), (2, 0), (-1, 0)):
        with pytest.raises(UsageError, match="There is no cell"):
            even.place(layer, index)
    with pytest.raises(UsageError, match="8 cells"):
        even.split(8)
    assert parse_address("enc.L3.E7.17") == ("enc", 3, 7, 17)
    assert parse_address(" 12.345 ") == ("", 12, None, 345)
