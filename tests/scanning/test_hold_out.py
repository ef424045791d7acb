"""Units held out of a scan: numbered and stored, and otherwise as if they were not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import tiny
from small import corpus

import keyhole
from keyhole.analyses.targets import held_out_units
from keyhole.scanning.hold_out import held_out


def test_a_held_out_scan_is_the_scan_of_the_rest(tmp_path: Path) -> None:
    model = tiny("llama")
    text = corpus(tmp_path / "text.txt", 60)
    whole = keyhole.scan(model, [text], out=tmp_path / "held", unit="line", top=6, hold_out=0.3, batch_tokens=1)
    held = held_out_units(whole)
    assert 5 < len(held) < 40
    assert whole.manifest["corpus"]["held_out_units"] == len(held)
    lines = text.read_text().splitlines()
    rest = tmp_path / "rest.txt"
    kept = [i for i in range(len(lines)) if i not in set(held.tolist())]
    rest.write_text("\n".join(lines[i] for i in kept) + "\n")
    alone = keyhole.scan(model, [rest], out=tmp_path / "alone", unit="line", top=6, batch_tokens=1)
    numbers = np.append(np.array(kept), -1)
    for side in ("", "_negative"):
        np.testing.assert_array_equal(getattr(whole, "units" + side), numbers[getattr(alone, "units" + side)])
        for name in ("positions", "coefficients"):
            np.testing.assert_array_equal(getattr(whole, name + side), getattr(alone, name + side))
    for name in ("n", "active", "max", "min"):
        np.testing.assert_array_equal(whole.stats[name], alone.stats[name])
    counts = lambda run: [t.count for cell in range(run.cells.size(1)) for t in run.triggers(1, cell)]  # noqa: E731
    assert counts(whole) == counts(alone)
    assert whole.manifest["corpus"]["distinct_prefixes"] == alone.manifest["corpus"]["distinct_prefixes"]
    assert whole.manifest["corpus"]["units"] == len(lines)
    assert not np.isin(whole.units, held).any()


def test_shards_of_a_held_out_scan_merge_to_the_whole(tmp_path: Path) -> None:
    model = tiny("llama")
    text = corpus(tmp_path / "text.txt", 60)
    options = {"unit": "line", "top": 4, "hold_out": 0.3, "batch_tokens": 64}
    whole = keyhole.scan(model, [text], out=tmp_path / "whole", **options)
    parts = [keyhole.scan(model, [text], out=tmp_path / f"{i}", shard=f"{i}/2", **options).path for i in (1, 2)]
    merged = keyhole.merge(tmp_path / "merged", parts)
    np.testing.assert_array_equal(merged.units, whole.units)
    assert merged.manifest["corpus"] == whole.manifest["corpus"]


def test_the_choice_is_the_same_however_units_come() -> None:
    numbers = np.arange(10_000)
    whole = held_out(numbers, 0.01)
    assert 60 < whole.sum() < 150
    np.testing.assert_array_equal(np.concatenate([held_out(numbers[:77], 0.01), held_out(numbers[77:], 0.01)]), whole)
    assert not held_out(numbers, 0.0).any()
    assert (held_out(numbers, 0.5) >= whole).all()  # a larger share holds out the same ones, and more


@pytest.mark.parametrize("share", [-0.1, 1.0, "half"])
def test_impossible_shares_say_so(share: object, tmp_path: Path) -> None:
    text = corpus(tmp_path / "text.txt")
    with pytest.raises(keyhole.KeyholeError, match="hold_out is"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", hold_out=share)


def test_nothing_left_to_scan_says_so(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one line\n")
    with pytest.raises(keyhole.KeyholeError, match="leaves nothing to scan"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", unit="line", hold_out=0.999999)
    assert not (tmp_path / "run.partial").exists()


# Documents


def documents(path: Path, count: int = 40) -> Path:
    """Documents of a few lines; some lines occur in several documents."""
    rng = np.random.default_rng(11)
    words = np.array(["the", "cat", "sat", "on", "a", "mat", "of", "Paris", "dog", "ran"])
    texts = [
        "\n".join(" ".join(rng.choice(words, rng.integers(1, 6))) for _ in range(rng.integers(1, 6)))
        for _ in range(count)
    ]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_no_document_is_both_scanned_and_held_out(tmp_path: Path) -> None:
    model = tiny("llama")
    text = documents(tmp_path / "text.txt")
    options = {"unit": "line", "top": 6, "batch_tokens": 1}
    run = keyhole.scan(model, [text], tmp_path / "run", hold_out=0.3, hold_out_by="document", **options)
    held = held_out_units(run)
    of_unit = np.array([run.unit_source(unit)[0] for unit in range(run.manifest["corpus"]["units"])])
    scanned = np.setdiff1d(np.arange(len(of_unit)), held)
    out, kept = set(of_unit[held].tolist()), set(of_unit[scanned].tolist())
    assert len(out) > 3
    assert len(kept) > 10
    assert not out & kept
    assert run.manifest["corpus"]["held_out_units"] == len(held)
    assert run.manifest["config"]["hold_out_by"] == "document"
    assert set(run.units[run.units >= 0].tolist()) <= set(scanned.tolist())
    by_unit = held_out_units(keyhole.scan(model, [text], tmp_path / "units", hold_out=0.3, **options))
    assert by_unit.tolist() != held.tolist()

    # what was held out counts for nothing: the rest alone gives the same triggers and the same numbers of occurrences
    blocks = text.read_text().rstrip("\n").split("\n\n")
    rest = tmp_path / "rest.txt"
    rest.write_text("\n\n".join(block for number, block in enumerate(blocks) if number in kept) + "\n")
    alone = keyhole.scan(model, [rest], tmp_path / "alone", **options)
    numbers = np.append(scanned, -1)
    for side in ("", "_negative"):
        np.testing.assert_array_equal(getattr(run, "units" + side), numbers[getattr(alone, "units" + side)])
        for name in ("positions", "coefficients"):
            np.testing.assert_array_equal(getattr(run, name + side), getattr(alone, name + side))
    assert run.manifest["corpus"]["distinct_prefixes"] == alone.manifest["corpus"]["distinct_prefixes"]
    np.testing.assert_array_equal(
        np.load(run.path / "repeated_counts.npy"), np.load(alone.path / "repeated_counts.npy")
    )


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_share_of_documents_is_about_right(share: float) -> None:
    sizes = np.random.default_rng(5).integers(1, 30, 20_000)
    held = held_out(np.repeat(np.arange(20_000), sizes), share)
    assert abs(held.mean() - share) < 0.01
    whole = np.add.reduceat(held, np.cumsum(sizes) - sizes)
    assert np.isin(whole, [0, *sizes]).all()
    assert ((whole == 0) | (whole == sizes)).all()


def test_documents_are_chosen_alike_however_the_text_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keyhole.inputs import corpus as reading

    text = documents(tmp_path / "text.txt")
    options = {"unit": "line", "top": 3, "hold_out": 0.4, "hold_out_by": "document"}
    whole = keyhole.scan(tiny("llama"), [text], tmp_path / "whole", **options)
    monkeypatch.setattr(reading, "CHUNK_CHARACTERS", 25)  # documents are cut in the middle
    pieces = keyhole.scan(tiny("llama"), [text], tmp_path / "pieces", **options)
    assert pieces.manifest == whole.manifest


def test_an_impossible_choice_says_so(tmp_path: Path) -> None:
    text = documents(tmp_path / "text.txt")
    with pytest.raises(keyhole.KeyholeError, match="hold_out_by is 'page'; it must be one of unit, document"):
        keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", hold_out=0.2, hold_out_by="page")
