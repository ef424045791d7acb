"""Coefficients of some tokens only, as experts give them, into the index: against plain loops over tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from routing import CELLS, KINDS, Routed, an_index, device

from keyhole.kernels.order import UNFILLED
from keyhole.kernels.sums import FRACTION_BITS

pytestmark = pytest.mark.usefixtures("no_numpy_noise")

SHAPES = {"rows": (2, 1), "lanes": (1, 4), "both": (2, 2)}
"""Windows of a tile, lanes that share a window."""


def tiling_of(name: str) -> Any:
    pytest.importorskip("triton")
    from keyhole.scanning.gpu import Tiling

    rows, lanes = SHAPES[name]
    return Tiling(rows=rows, lanes=lanes, block=4, unroll=2, warps=1, fill=1)


def batches_of(corpus: Routed, rng: np.random.Generator, most: int) -> list[np.ndarray]:
    order = rng.permutation(corpus.windows)
    return [order[begin : begin + most] for begin in range(0, len(order), most)]


def assert_is(state: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name in ("n", "keys", "active", "extremes"):
        np.testing.assert_array_equal(state[name], expected[name], err_msg=name)
    sums = state["sums"][..., 0] + state["sums"][..., 1] / 2.0**FRACTION_BITS
    np.testing.assert_allclose(sums, expected["sums"], rtol=1e-5, atol=1e-5)


def check(
    kind: str, corpus: Routed, per: str, *, grouped: bool = False, top: int = 3, most: int = 5, tiling: Any = None
) -> None:
    index = an_index(
        kind,
        top,
        signed=corpus.signed,
        per=per,
        unit_offsets=corpus.unit_offsets if grouped and per == "sentence" else None,
        tiling=tiling,
    )
    corpus.feed(index, batches_of(corpus, np.random.default_rng(corpus.seed), most))
    assert_is(index.state(), corpus.expected(top, per, grouped=grouped))


@given(
    st.integers(0, 10_000),
    st.sampled_from(["sentence", "prefix"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 2, 6, 40]),
    st.sampled_from([0.0, 0.05, 0.4, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_plain_index_equals_brute_force(
    seed: int, per: str, signed: bool, grouped: bool, longest: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    corpus = Routed(seed, windows=int(rng.integers(1, 25)), longest=longest, share=share, signed=signed)
    check("cpu", corpus, per, grouped=grouped, top=int(rng.integers(1, 6)), most=int(rng.integers(1, 9)))


@pytest.mark.parametrize(
    ("longest", "share", "per", "signed", "dtype", "grouped", "tiling"),
    [
        (6, 0.6, "sentence", True, torch.bfloat16, False, "rows"),
        (4, 0.5, "prefix", True, torch.float32, False, "rows"),
        (1, 0.5, "sentence", False, torch.float16, False, "both"),
        (12, 0.6, "sentence", True, torch.float32, False, "lanes"),
        (12, 0.3, "prefix", False, torch.bfloat16, False, "both"),
        (5, 0.5, "sentence", True, torch.bfloat16, True, "rows"),
        (5, 0.02, "sentence", True, torch.float32, False, "both"),
        (3, 1.0, "prefix", True, torch.float32, False, "lanes"),
    ],
    ids=str,
)
def test_the_kernels_equal_brute_force(
    longest: int, share: float, per: str, signed: bool, dtype: torch.dtype, grouped: bool, tiling: str
) -> None:
    """An expert between layers that give nothing: Triton's interpreter is slow."""
    corpus = Routed(7, windows=8, longest=longest, share=share, signed=signed, dtype=dtype, sites=(2,))
    check("triton", corpus, per, grouped=grouped, most=6, tiling=tiling_of(tiling))


@pytest.mark.parametrize("per", ["sentence", "prefix"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_tokens_routed_is_the_same_as_no_routing(kind: str, per: str) -> None:
    corpus = Routed(3, windows=6, longest=4, share=1.0, sites=(0, 2))
    batches = [np.arange(6)]
    states = []
    for always_tokens in (False, True):
        index = an_index(kind, 3, signed=True, per=per)
        corpus.feed(index, batches, always_tokens=always_tokens)
        states.append({name: array.copy() for name, array in index.state().items()})
    for name in ("n", "keys", "active", "extremes"):
        np.testing.assert_array_equal(states[0][name], states[1][name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_an_expert_without_a_token_stays_as_it_was(kind: str) -> None:
    corpus = Routed(4, windows=4)
    index = an_index(kind, 3, signed=True, per="sentence")
    windows = np.arange(4)
    prepared = corpus.prepare(index, windows)
    index.update(2, torch.empty(0, 3, device=device()), prepared, torch.empty(0, dtype=torch.int64, device=device()))
    assert corpus.n_special
    special = torch.arange(4, device=device()) * corpus.columns(windows)  # tokens, but no candidate among them
    index.update(2, torch.full((4, 3), 1e4, device=device()), prepared, special)
    state = index.state()
    assert (state["keys"] == UNFILLED).all()
    assert not state["active"].any()
    assert not state["sums"].any()
    assert (state["extremes"] == np.array([-np.inf, np.inf], np.float32)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_refused_with_the_expert(kind: str) -> None:
    corpus = Routed(5, windows=4, share=1.0)
    index = an_index(kind, 3, signed=True, per="sentence")
    windows = np.arange(4)
    x, tokens = corpus.rows(2, windows)
    assert tokens is not None
    place = int(np.flatnonzero(tokens.cpu().numpy() == corpus.n_special + corpus.seen_before[0])[0])
    x[place, 1] = torch.nan
    with pytest.raises(FloatingPointError, match="Layer 1, expert 1"):
        take(index, 2, x, corpus.prepare(index, windows), tokens)


def take(index: Any, site: int, x: torch.Tensor, prepared: Any, tokens: torch.Tensor) -> None:
    index.update(site, x, prepared, tokens)
    index.flush()  # at the latest


def test_the_axis_numbers_sites_expert_by_expert() -> None:
    assert [(span.start, span.stop) for span in CELLS.sites] == [(0, 4), (4, 7), (7, 10), (10, 13), (13, 15)]
    names = [CELLS.site_name(site) for site in range(5)]
    assert names == ["Layer 0", "Layer 1, expert 0", "Layer 1, expert 1", "Layer 1, expert 2", "Layer 2"]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_experts_of_different_widths_side_by_side(kind: str) -> None:
    check(kind, Routed(8, windows=5, longest=3), "sentence", most=5)
