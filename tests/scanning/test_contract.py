"""What `contract.Index` promises, checked on every implementation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from routing import KINDS, Routed, an_index

from keyhole.scanning import cpu
from keyhole.scanning.contract import Index

pytestmark = pytest.mark.usefixtures("no_numpy_noise")
State = dict[str, np.ndarray]

SITES = (0, 2)
"""A layer, and an expert: Triton's interpreter is slow."""


def corpus_of(seed: int = 1) -> Routed:
    return Routed(seed, windows=9, longest=3, share=0.7, sites=SITES)


def empty(kind: str) -> Index:
    return an_index(kind, 3, signed=True, per="sentence")


def state_of(index: Index) -> State:
    return copy.deepcopy(index.state())


def assert_same(one: State, other: State) -> None:
    assert one.keys() == other.keys() == {"n", "keys", "active", "sums", "extremes"}
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_batches_changes_no_byte(kind: str) -> None:
    corpus, states = corpus_of(), []
    batches = [np.array([4, 0, 7]), np.array([8, 2]), np.array([1, 3, 6, 5])]
    for order in (batches, batches[::-1]):
        index = empty(kind)
        corpus.feed(index, order)
        states.append(state_of(index))
    assert_same(*states)
    assert (states[0]["active"] > 0).any()


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_in_an_index_of_any_kind(kind: str, source: str) -> None:
    """And it replaces all that was there: also survivors that were not merged yet."""
    corpus = corpus_of()
    before, after = empty(source), empty(kind)
    corpus.feed(before, [np.arange(5)])
    saved = state_of(before)
    corpus_of(2).feed(after, [np.arange(5)])
    after.load(saved)
    assert_same(state_of(after), saved)
    corpus.feed(after, [np.arange(5, 9)])
    assert_same(saved, state_of(before))  # the arrays were copied
    expected = corpus.expected(3, "sentence", grouped=False)
    got = after.state()
    for name in ("n", "keys", "active", "extremes"):
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_caller_counts_and_what_is_given_stays_as_it_is(kind: str) -> None:
    corpus, index, windows = corpus_of(), empty(kind), np.arange(3)
    prepared = corpus.prepare(index, windows)
    for site in SITES:
        x, tokens = corpus.rows(site, windows)
        kept = x.clone(), None if tokens is None else tokens.clone()
        index.update(site, x, prepared, tokens)
        assert torch.equal(x, kept[0])
        assert tokens is None or torch.equal(tokens, kept[1])  # type: ignore[arg-type]
    assert index.n == index.state()["n"] == 0
    assert index.nbytes == index.state()["keys"].nbytes
    one = state_of(index)
    again = empty(kind)
    for site in reversed(SITES):  # the same batch serves every index of a kind, and sites come in any order
        x, tokens = corpus.rows(site, windows)
        again.update(site, x, prepared, tokens)
    assert_same(state_of(again), one)


# All or nothing

OUT = {"cpu": MemoryError, "triton": torch.OutOfMemoryError}
FAILING = [
    ("cpu", cpu.CpuIndex, "_filter_rows", 1),
    ("cpu", cpu.CpuIndex, "_survivors", 2),
    ("cpu", torch, "stack", 1),
    ("cpu", cpu, "pack", 2),
    ("cpu", cpu, "exact", 1),
    ("cpu", cpu, "add_integers", 1),
    ("cpu", np, "minimum", 1),
    ("triton", torch.Tensor, "contiguous", 1),
    ("triton", torch.Tensor, "contiguous", 2),
    ("triton", torch.Tensor, "to", 1),
    ("triton", torch, "empty", 1),
    ("triton", torch, "searchsorted", 1),
]
"""What an update calls, and which of these calls fails."""


@pytest.mark.parametrize(("kind", "owner", "name", "nth"), FAILING, ids=lambda each: getattr(each, "__name__", each))
def test_an_update_without_memory_changes_nothing(
    kind: str, owner: Any, name: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call the memory runs out in: the batch can be given again, and the result is as if nothing had happened."""
    corpus, index, whole = corpus_of(), empty(kind), empty(kind)
    failed = 0
    for windows in (np.arange(4), np.arange(4, 9)):
        corpus.feed(whole, [windows])
        prepared = corpus.prepare(index, windows)
        for site in SITES:
            x, tokens = corpus.rows(site, windows)
            before = state_of(index)
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, failing(getattr(owner, name), OUT[kind], nth))
                try:
                    index.update(site, x, prepared, tokens)
                    continue  # it takes fewer of these calls
                except (MemoryError, torch.OutOfMemoryError):
                    failed += 1
            assert_same(state_of(index), before)
            index.update(site, x, prepared, tokens)
        index.n = whole.n
    assert failed
    assert_same(state_of(index), state_of(whole))


def failing(function: Callable[..., Any], error: type[BaseException], nth: int) -> Callable[..., Any]:
    calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise error("no memory is left")
        return function(*args, **options)

    return call


def test_a_merge_without_memory_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is taken; its survivors wait for the next merge."""
    corpus, index, whole = corpus_of(), empty("cpu"), empty("cpu")
    monkeypatch.setattr(cpu, "PENDING_PER_CELL", 0)
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_ranks", out_of_memory)
        corpus.feed(index, [np.arange(4)])
        with pytest.raises(MemoryError):
            index.flush()
    corpus.feed(index, [np.arange(4, 9)])
    corpus.feed(whole, [np.arange(4), np.arange(4, 9)])
    assert_same(state_of(index), state_of(whole))


def out_of_memory(*args: Any) -> None:
    raise MemoryError
