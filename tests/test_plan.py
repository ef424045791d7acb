"""The plan against dictionaries: which prefixes are new, how often each occurs, which windows share a batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole import plan
from keyhole.corpus import Unit
from keyhole.errors import CorpusError
from keyhole.store import PlanFiles


def build(folder: Path, units: list[list[int]], **options: object) -> tuple[PlanFiles, plan.Summary]:
    """A plan of units given as token ids; the "tokenizer" reads the ids back out of the text."""
    (folder / "plan").mkdir(parents=True)
    files = PlanFiles(folder)
    texts = [Unit(0, 0, " ".join(map(str, unit))) for unit in units]
    summary = plan.build(
        files,
        texts,
        lambda many: [[int(word) for word in text.split()] for text in many],
        **{"vocabulary": 100, "context": 6, "starts": 1, "batch_tokens": 20, "max_tokens": None, **options},  # type: ignore[arg-type]
    )
    return files, summary


tokens = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=30)


@given(tokens, st.booleans(), st.sampled_from([3, 40, 1 << 20]))
@settings(max_examples=80, deadline=None)
def test_new_prefixes_and_counts_equal_a_dictionary(units: list[list[int]], spill: bool, chunk: int) -> None:
    if not any(units):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CHUNK_CHARACTERS", chunk)
        patch.setattr(plan, "POOL_TOKENS", 10)
        patch.setattr(plan, "SPILL_RECORDS", 2 if spill else 1 << 20)  # spilling, partitions within partitions included
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            files, summary = build(Path(folder) / "x", units)
            check(files, summary, units, room=5)


def check(files: PlanFiles, summary: plan.Summary, units: list[list[int]], room: int) -> None:
    windows = [unit[i : i + room] for unit in units for i in range(0, len(unit), room)]
    first: dict[tuple[int, ...], int] = {}
    counts: Counter[tuple[int, ...]] = Counter()
    old, at = [], 0
    for window in windows:
        prefixes = [tuple(window[: i + 1]) for i in range(len(window))]
        old.append(sum(prefix in first for prefix in prefixes))
        for i, prefix in enumerate(prefixes):
            first.setdefault(prefix, at + i)
            counts[prefix] += 1
        at += len(window)
    assert np.load(files.window_old).tolist() == old
    assert summary.distinct_prefixes == len(first)
    repeated = dict(zip(np.load(files.repeated_tokens), np.load(files.repeated_counts), strict=True))
    assert repeated == {first[prefix]: count for prefix, count in counts.items() if count > 1}
    assert summary.tokens == sum(map(len, units))
    assert summary.units == len(units)
    assert summary.split_units == sum(len(unit) > room for unit in units)
    assert summary.empty_units == sum(not unit for unit in units)

    made = plan.Plan(files, summary)
    assert len(made) == summary.batches
    seen = []
    for number in range(len(made)):
        batch = made[number]
        assert made.size(number) == sum(map(len, batch.windows))
        longest = max(map(len, batch.windows)) + 1
        assert len(batch.windows) == 1 or len(batch.windows) * longest <= 20
        for tokens, begin, skip in zip(batch.windows, batch.first_tokens, batch.old, strict=True):
            seen.append(int(begin))
            assert tokens.tolist() == np.load(files.tokens)[begin : begin + len(tokens)].tolist()
            assert skip < len(tokens)
    starts = np.cumsum([0] + [len(window) for window in windows])
    assert sorted(seen) == [int(starts[i]) for i, window in enumerate(windows) if old[i] < len(window)]


def test_large_vocabularies_keep_their_tokens(tmp_path: Path) -> None:
    files, _ = build(tmp_path / "x", [[70_000, 5]], vocabulary=100_000)
    assert np.load(files.tokens).tolist() == [70_000, 5]


def test_half_a_hash_alike_is_not_the_same_prefix() -> None:
    records = np.zeros(4, plan.RECORD)
    records["high"], records["low"] = [7, 7, 7, 9], [1, 2, 1, 1]
    records["token"], records["count"] = [30, 20, 10, 40], 1
    merged, later = plan._aggregate(records)
    assert sorted(zip(merged["token"], merged["count"], strict=True)) == [(10, 2), (20, 1), (40, 1)]
    assert later.tolist() == [30]


def test_hashes_tell_prefixes_apart_and_windows_alike() -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 3, 3000)
    bounds = np.arange(0, 3001, 6)
    high, low = plan._hash(flat, bounds)
    prefixes = [tuple(flat[b : b + i + 1]) for b in bounds[:-1] for i in range(6)]
    assert len(set(zip(high.tolist(), low.tolist(), strict=True))) == len(set(prefixes))
    assert len({(h, p) for h, p in zip(high.tolist(), prefixes, strict=True)}) == len(set(prefixes))


def test_padding_is_small_on_real_lengths(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.2, 0.6, 3000).astype(int), 1, 200)
    units = [rng.integers(0, 90, n).tolist() for n in lengths]
    files, summary = build(tmp_path / "x", units, context=256, batch_tokens=2048)
    made = plan.Plan(files, summary)
    padded = sum(len(b.windows) * (max(map(len, b.windows)) + 1) for b in (made[i] for i in range(len(made))))
    assert padded < 1.12 * (summary.tokens + summary.units)


def test_a_corpus_whose_units_have_no_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="None of the corpus's 2 units has a token"):
        build(tmp_path / "x", [[], []])
    with pytest.raises(CorpusError, match="corpus is empty"):
        build(tmp_path / "y", [])


def test_more_tokens_than_a_key_can_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_TOKENS", 5)
    with pytest.raises(CorpusError, match="more than 5 tokens"):
        build(tmp_path / "x", [[1, 2, 3], [1, 2, 3]])
