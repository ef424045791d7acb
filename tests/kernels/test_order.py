from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.kernels.order import UNFILLED, brute_force, merge, one_per_group, pack, unpack

positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(st.tuples(positive, st.integers(0, 2**32 - 2)), min_size=1, max_size=40))
def test_keys_hold_the_whole_order_and_come_back(pairs: list[tuple[float, int]]) -> None:
    coefficients = np.array([pair[0] for pair in pairs], np.float32)
    tokens = np.array([pair[1] for pair in pairs])
    keys = pack(coefficients, tokens)
    assert (keys < UNFILLED).all()
    back, places = unpack(keys)
    np.testing.assert_array_equal(back, coefficients)
    np.testing.assert_array_equal(places, tokens)
    by_key = [pairs[i] for i in np.argsort(keys, kind="stable")]
    assert by_key == sorted(pairs, key=lambda pair: (-np.float32(pair[0]), pair[1]))


def test_an_empty_slot_is_never_a_trigger() -> None:
    coefficients, tokens = unpack(np.array([UNFILLED]))
    assert np.isnan(coefficients[0])
    assert tokens[0] == -1


@given(st.data())
@settings(max_examples=60)
def test_any_partition_in_any_order_merges_to_the_same_bytes(data: st.DataObject) -> None:
    n, top = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 6))
    coefficients = np.array(
        data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=n, max_size=n)), np.float32
    )
    keys = pack(coefficients, np.arange(n))
    whole = merge([keys, np.full(top, UNFILLED)], top)
    parts = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    lists = [merge([keys[parts == part], np.full(top, UNFILLED)], top) for part in data.draw(st.permutations(range(5)))]
    while len(lists) > 1:
        i = data.draw(st.integers(0, len(lists) - 2))
        lists[i : i + 2] = [merge(lists[i : i + 2], top)]
    np.testing.assert_array_equal(lists[0], whole)


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.integers(0, 5)), min_size=1, max_size=20))
def test_one_per_group_keeps_the_best(pairs: list[tuple[float, int]]) -> None:
    keys = pack(np.array([pair[0] for pair in pairs], np.float32), np.arange(len(pairs)))
    groups = np.array([pair[1] for pair in pairs])
    kept = one_per_group(keys[None], groups[None])[0]
    expected = {group: keys[groups == group].min() for group in set(groups.tolist())}
    assert sorted(kept[kept != UNFILLED]) == sorted(expected.values())


def test_the_reference_itself_on_a_case_done_by_hand() -> None:
    column = np.array([[2.0], [3.0], [3.0], [-1.0], [0.0], [2.0]], np.float32)
    units, positions = np.array([0, 1, 1, 2, 2, 3]), np.array([0, 0, 1, 0, 1, 0])
    coefficients, found, places = brute_force(column, units, positions, 4)
    assert found.tolist() == [[1, 0, 3, -1]]
    assert places.tolist() == [[0, 0, 0, -1]]
    assert coefficients[0, :3].tolist() == [3.0, 2.0, 2.0]
    assert brute_force(column, units, positions, 4, per="prefix")[1].tolist() == [[1, 1, 0, 3]]
