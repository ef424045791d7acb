"""Units held out of a scan: numbered and stored, and otherwise as if they were not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import tiny
from small import corpus

import keyhole
from keyhole.analyses.targets import held_out_units
from keyhole.scanning.plan import held_out


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
    whole = held_out(0, 10_000, 0.01)
    assert 60 < whole.sum() < 150
    np.testing.assert_array_equal(np.concatenate([held_out(0, 77, 0.01), held_out(77, 9923, 0.01)]), whole)
    assert not held_out(0, 1000, 0.0).any()
    assert (held_out(0, 10_000, 0.5) >= whole).all()  # a larger share holds out the same ones, and more


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
