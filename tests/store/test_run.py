from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny, tokenizer
from hostile import reseal

import keyhole
from keyhole.errors import RunDamaged, SchemaTooOld, UsageError
from keyhole.store import layout as store
from keyhole.store.vocabulary import Vocabulary


@pytest.fixture
def run(text: Path, tmp_path: Path) -> keyhole.Run:
    keyhole.scan(tiny("llama"), [text], out=tmp_path / "run", top=5, unit="line")
    return keyhole.open(tmp_path / "run")


def test_a_cell_and_its_triggers(run: keyhole.Run, text: Path) -> None:
    lines = [line for line in text.read_text("utf-8").split("\n") if line]
    cell = run.cell(1, 7)
    assert cell == run["L1.7"]
    assert cell.address == "L1.7"
    assert [t.coefficient for t in cell.triggers] == sorted((t.coefficient for t in cell.triggers), reverse=True)
    assert all(t.coefficient < 0 for t in cell.triggers_negative)
    for trigger in cell.triggers + cell.triggers_negative:
        line = lines[trigger.unit].encode()
        assert trigger.prefix.encode() == line[: trigger.position + 1] or "�" in trigger.prefix
        assert len(trigger.tokens) == len(trigger.ids) == trigger.position + 1
        assert (trigger.next_token is None) == (trigger.position + 1 == len(line))
    stats = cell.stats
    assert stats.mean == run.stats["mean"][cell.place]
    assert stats.max == pytest.approx(cell.triggers[0].coefficient)
    assert np.isnan(stats.active)  # the layer has a gate
    assert np.isnan(stats.active_fraction)
    assert stats.peak == max(stats.max, -stats.min) / stats.rms > 1


def test_unfilled_slots_say_so(run: keyhole.Run) -> None:
    assert run.coefficients.shape == run.units.shape == run.positions.shape == (72, 5)
    empty = np.isnan(run.coefficients)
    assert (run.units[empty] == -1).all()
    assert (run.positions[empty] == -1).all()
    assert (run.coefficients[~empty] > 0).all()


def test_units_lead_back_to_their_documents(run: keyhole.Run) -> None:
    assert run.unit_source(0) == (0, 0)
    assert run.unit_source(7) == (1, 0)


@pytest.mark.parametrize("address", ["L1", "L1.2.3", "L1.2/3", "L-1.0", "", "L1." + "9" * 5000, "L٣.1"])
def test_addresses_that_are_none(run: keyhole.Run, address: Any) -> None:
    with pytest.raises(UsageError, match="not a cell address. A cell is written L12.345"):
        run[address]


def test_cells_that_are_not_there(run: keyhole.Run) -> None:
    with pytest.raises(UsageError, match=r"no cell L3.0: the model has layers 0 to 2 of cells 0 to 23"):
        run.cell(3, 0)


def test_a_cell_and_a_layer_by_name(run: keyhole.Run) -> None:
    assert run["1.7"] == run["L1.7"] == run.layer("L1")[7] == run.layer("1")[7] == run.layer(1)[7]
    for name in ("L3", "x", "L1.7", "enc.L1", -1, 3):
        with pytest.raises(UsageError, match="There is no layer"):
            run.layer(name)


def test_a_layers_arrays_are_views_of_the_runs(run: keyhole.Run) -> None:
    for number, layer in enumerate(map(run.layer, range(run.layers))):
        for name in (*store.side_names(False), *store.side_names(True)):
            whole, part = getattr(run, name), getattr(layer, name)
            assert np.shares_memory(whole, part)
            np.testing.assert_array_equal(part, whole.reshape(3, 24, 5)[number])
        np.testing.assert_array_equal(layer.stats.mean, run.stats.mean.reshape(3, 24)[number])
    for negative in (False, True):
        names = store.side_names(negative)
        assert all(array is getattr(run, name) for array, name in zip(run.side(negative), names, strict=True))


def test_tokens_of_triggers(run: keyhole.Run) -> None:
    """What follows a trigger, and its last token, for all at once against one at a time."""
    for negative, (_, units, positions) in run.sides.items():
        follows, lasts = run.next_tokens(units, positions), run.last_tokens(units, positions)
        for cell in (cell for number in range(run.layers) for cell in run.layer(number)):
            triggers = cell.triggers_negative if negative else cell.triggers
            empty = [-1] * (run.top - len(triggers))
            ends = [-1 if t.next_id is None else t.next_id for t in triggers]
            assert follows[cell.place].tolist() == ends + empty
            assert lasts[cell.place].tolist() == [t.ids[-1] for t in triggers] + empty
    outside = np.array([[len(run.unit_offsets)]])
    with pytest.raises(RunDamaged, match="a unit that is not there"):
        run.next_tokens(outside, outside)


def test_a_run_of_an_older_schema_is_refused(run: keyhole.Run) -> None:
    def older(about: dict[str, Any]) -> None:
        about["schema"] = 1
        about["model"] |= {"layers": 3, "cells": 24}

    reseal(run.path, older)
    with pytest.raises(SchemaTooOld, match=r"manifest.json.*schema 1, this one reads 3.*Scan again"):
        keyhole.open(run.path)


def test_a_cell_is_named_by_whole_numbers(run: keyhole.Run) -> None:
    assert run.cell(np.int64(1), np.uint8(7)) == run["L1.7"]
    assert run.layer(np.int32(1)).index == 1
    bad: Any
    for bad in (1.0, 1.5, "1", None, np.float32(1)):
        with pytest.raises(UsageError, match="whole number"):
            run.cell(1, bad)
        if bad != "1":
            with pytest.raises(UsageError, match="whole number"):
                run.layer(bad)


def test_a_run_opens_without_the_model_libraries(run: keyhole.Run) -> None:
    code = (
        f"import sys, keyhole; run = keyhole.open({str(run.path)!r}); run['L1.7'].triggers[0].prefix; run.stats.mean\n"
        "assert not {'torch', 'transformers', 'duckdb'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_all_there_and_nothing_else() -> None:
    assert sorted(keyhole.__all__, key=str) == sorted(set(keyhole.__all__))
    for name in keyhole.__all__:
        assert getattr(keyhole, name) is not None
    assert set(dir(keyhole)) == {*keyhole.__all__, "__version__"}
    with pytest.raises(AttributeError, match="nonsense"):
        keyhole.nonsense  # noqa: B018
    for module in (
        "scanning.scan",
        "scanning.verify",
        "scanning.merge",
        "models.model",
        "store.run",
    ):  # a submodule's name must never hide a function's
        importlib.import_module(f"keyhole.{module}")
    assert callable(keyhole.scan)
    assert callable(keyhole.verify)


def test_tokens_are_readable(tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)
    vocabulary = Vocabulary(tmp_path / "tokenizer.json")
    ids = vocabulary.tokenizer.encode(" é", add_special_tokens=False).ids
    assert [vocabulary.piece(i) for i in ids] == [" ", "\\xc3", "\\xa9"]
    assert vocabulary.text(ids) == " é"
    assert vocabulary.piece(0) == "<s>"


def test_sentencepiece_tokens_are_readable(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    core = Tokenizer(models.BPE(vocab={"▁the": 0, "<0xE2>": 1, "a": 2}, merges=[]))
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    core.save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary(tmp_path / "tokenizer.json")
    assert [vocabulary.piece(i) for i in range(3)] == [" the", "\\xe2", "a"]
