"""The plan against dictionaries: which prefixes are new, how often each occurs, which windows share a batch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import CorpusError
from keyhole.inputs import corpus
from keyhole.inputs.corpus import Unit
from keyhole.scanning import candidates, plan
from keyhole.scanning.hold_out import held_out
from keyhole.store.unfinished import PlanFiles


def build(folder: Path, units: list[list[int]], **options: object) -> tuple[PlanFiles, plan.Summary]:
    """A plan of units given as token ids; the "tokenizer" reads the ids back out of the text."""
    (folder / "plan").mkdir(parents=True)
    files = PlanFiles(folder)
    texts = [Unit(0, 0, " ".join(map(str, unit))) for unit in units]
    summary = plan.build(
        files,
        texts,
        lambda many: [[int(word) for word in text.split()] for text in many],
        **{"vocabulary": 100, "context": 6, "n_special": 1, "batch_tokens": 20, "max_tokens": None, **options},  # type: ignore[arg-type]
    )
    return files, summary


tokens = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=30)


@given(tokens, st.sampled_from([2, 1 << 20]), st.sampled_from([3, 40, 1 << 20]), st.booleans())
@settings(max_examples=120, deadline=None)
def test_new_prefixes_and_counts_equal_a_dictionary(
    units: list[list[int]], part: int, chunk: int, in_threads: bool
) -> None:
    if not any(units):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "CHUNK_CHARACTERS", chunk)
        patch.setattr(plan, "POOL_TOKENS", 10)
        patch.setattr(plan, "POOL_WINDOWS", part)
        patch.setattr(candidates, "PART_WINDOWS", part)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            files, summary = build(Path(folder) / "x", units, threads=in_threads)
            check(files, summary, units, room=5)


def check(files: PlanFiles, summary: plan.Summary, units: list[list[int]], room: int) -> None:
    windows = [unit[i : i + room] for unit in units for i in range(0, len(unit), room)]
    first: dict[tuple[int, ...], int] = {}
    counts: Counter[tuple[int, ...]] = Counter()
    seen_before, at = [], 0
    for window in windows:
        prefixes = [tuple(window[: i + 1]) for i in range(len(window))]
        seen_before.append(sum(prefix in first for prefix in prefixes))
        for i, prefix in enumerate(prefixes):
            first.setdefault(prefix, at + i)
            counts[prefix] += 1
        at += len(window)
    assert np.load(files.window_seen_before).tolist() == seen_before
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
        for tokens, begin, skip in zip(batch.windows, batch.first_tokens, batch.seen_before, strict=True):
            seen.append(int(begin))
            assert tokens.tolist() == np.load(files.tokens)[begin : begin + len(tokens)].tolist()
            assert skip < len(tokens)
    starts = np.cumsum([0] + [len(window) for window in windows])
    assert sorted(seen) == [int(starts[i]) for i, window in enumerate(windows) if seen_before[i] < len(window)]


def test_large_vocabularies_keep_their_tokens(tmp_path: Path) -> None:
    files, _ = build(tmp_path / "x", [[70_000, 5]], vocabulary=100_000)
    assert np.load(files.tokens).tolist() == [70_000, 5]


def test_held_out_windows_make_nothing_old(tmp_path: Path) -> None:
    units = [[i % 3, 1, 2] for i in range(60)]
    files, summary = build(tmp_path / "x", units, hold_out=0.4)
    held = held_out(np.arange(60), 0.4)
    seen: Counter[tuple[int, ...]] = Counter()
    for unit, out, known in zip(units, held, np.load(files.window_seen_before), strict=True):
        assert known == (3 if out else sum(tuple(unit[: n + 1]) in seen for n in range(3)))
        seen.update(() if out else [tuple(unit[: n + 1]) for n in range(3)])
    assert summary.held_out_units == held.sum()
    assert sorted(np.load(files.repeated_counts)) == sorted(count for count in seen.values() if count > 1)


@pytest.mark.parametrize("where", ["reading", "tokenising"])
@pytest.mark.parametrize("fails", [CorpusError("byte 7"), KeyboardInterrupt("now")])
def test_what_fails_ahead_is_raised_here_and_leaves_no_thread(
    where: str, fails: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CHUNK_CHARACTERS", 20)
    threads, calls = threading.active_count(), []

    def units() -> Iterator[Unit]:
        yield from (Unit(0, 0, "1 2 3") for _ in range(50 if where == "reading" else 100_000))
        raise fails

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        calls.append(texts)
        if where == "tokenising" and len(calls) == 5:
            raise fails
        return [[1, 2, 3] for _ in texts]

    (tmp_path / "plan").mkdir()
    files = PlanFiles(tmp_path)
    with pytest.raises(type(fails), match=str(fails)):
        plan.build(files, units(), tokenize, vocabulary=9, context=6, n_special=1, batch_tokens=20, max_tokens=None)
    assert not files.summary.exists()
    assert threading.active_count() == threads


def test_a_corpus_cut_short_stops_what_reads_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK_CHARACTERS", 20)
    threads, read = threading.active_count(), []

    def units() -> Iterator[Unit]:
        for number in range(100_000):
            read.append(number)
            yield Unit(0, 0, "1 2 3")

    (tmp_path / "plan").mkdir()
    summary = plan.build(
        PlanFiles(tmp_path),
        units(),
        lambda texts: [[1, 2, 3] for _ in texts],
        vocabulary=9,
        context=6,
        n_special=1,
        batch_tokens=20,
        max_tokens=31,
    )
    assert (summary.tokens, summary.truncated) == (30, True)
    assert len(read) < 200
    assert threading.active_count() == threads


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
