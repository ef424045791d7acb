"""Edits that last: the folder against the live model, and what else changed against sums written by hand."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch
from commands import run as command
from families import tiny
from small import corpus
from transformers import AutoModelForCausalLM

import keyhole
from keyhole.errors import CorpusError, KeyholeError, UsageError
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.store import collections
from keyhole.uses import changed as measuring
from keyhole.uses import texts
from keyhole.uses.changed import changed, others_of
from keyhole.uses.edit import edit

EDITS = [Edit(0, 3, 0.0), Edit(1, 5, 0.5, towards="P", by=3.0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(families.save(tiny("llama"), tmp_path_factory.mktemp("model") / "llama"))


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> keyhole.Run:
    """A run of the model in the folder, over several documents, a third of it held out."""
    where = tmp_path_factory.mktemp("scanned")
    options: dict[str, Any] = {"unit": "line", "top": 4, "context": 64, "hold_out": 0.35}
    return keyhole.scan(str(folder), long_text(where, 4), out=where / "run", **options)


def test_the_folder_computes_what_the_edited_model_computes(folder: Path, tmp_path: Path) -> None:
    model = keyhole.load(folder)
    ids = model.batch(model.tokenize(["The cat sat"])).ids
    done = edit(str(folder), EDITS, tmp_path / "out")
    with applied(model, EDITS), torch.no_grad():
        expected = model.lm(input_ids=ids).logits
    with torch.no_grad():
        got = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=ids).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert done.check is None
    assert done.saved is not None
    told = json.loads((tmp_path / "out" / "keyhole.json").read_text())
    assert (told["made"], told["edits"]) == ("edit", [each.to_json() for each in EDITS])


def test_a_model_that_has_edits_already_is_baked_with_all_of_them(folder: Path, tmp_path: Path, text: Path) -> None:
    """A run of an edited model names it with its edits; a file that was saved from it has them too, and they act once."""
    first, second = Edit(2, 4, 0.5), Edit(1, 1, 2.0)
    edited = keyhole.load(str(folder), edits=[first])
    run = keyhole.scan(edited, [text], out=tmp_path / "run", unit="line", top=3)
    edit(run, keyhole.intervene.dump([second], edited), tmp_path / "out")
    plain, got = keyhole.load(str(folder)), keyhole.load(tmp_path / "out")
    assert torch.equal(got.values(2)[4], plain.values(2)[4] * 0.5)
    assert torch.equal(got.values(1)[1], plain.values(1)[1] * 2)
    told = json.loads((tmp_path / "out" / "keyhole.json").read_text())
    assert told["fingerprint"] == plain.weights_fingerprint
    with pytest.raises(UsageError, match="has all of these edits already"):
        edit(run, [first], tmp_path / "other")


# What else changed


def long_text(path: Path, documents: int = 3) -> list[Path]:
    files = [path / f"{number}.txt" for number in range(documents)]
    for number, file in enumerate(files):
        corpus(file, 30 + number)
    return files


def by_hand(model: Model, windows: list[list[int]]) -> tuple[float, torch.Tensor, list[int]]:
    """Mean −log p, the mean log p of every token at every position, and the first token everywhere."""
    total, firsts, every = 0.0, [], []
    for ids in windows:
        with torch.no_grad():
            logits = model.lm(input_ids=torch.tensor([[model.bos_id, *ids]])).logits[0, :-1].double()
        said = logits.log_softmax(1)
        total -= float(said[range(len(ids)), ids].sum())
        every.append(said)
        firsts += said.argmax(1).tolist()
    both = torch.cat(every)
    return total / len(both), both.mean(0), firsts


def test_what_changed_is_what_sums_by_hand_say(tmp_path: Path) -> None:
    model = tiny("llama")
    text = texts.given(model, long_text(tmp_path))
    windows = [window.ids for window in text.windows(texts.room_of(model))]
    found = changed(model, EDITS, text)
    nll, mean, first = by_hand(model, windows)
    with applied(model, EDITS):
        nll_edited, mean_edited, first_edited = by_hand(model, windows)
    assert found.found.before.value == pytest.approx(math.exp(nll), rel=1e-5)
    assert found.found.after.value == pytest.approx(math.exp(nll_edited), rel=1e-5)
    assert found.found.change.value == pytest.approx(math.exp(nll_edited - nll) - 1, rel=1e-3)
    same = np.mean([a == b for a, b in zip(first, first_edited, strict=True)])
    assert found.found.agreement.value == pytest.approx(same, abs=2 / len(first))
    assert found.found.tokens == len(first)
    assert (found.documents, found.edited) == (3, 2)
    moves = (mean_edited - mean)[: len(model.vocabulary)]
    for listed, expected in ((found.up, moves.sort(descending=True)), (found.down, moves.sort())):
        assert [each.moved.value for each in listed] == pytest.approx(expected.values[:10].tolist(), rel=1e-3, abs=1e-6)
        assert all(each.moved.value == pytest.approx(float(moves[each.token]), rel=1e-3, abs=1e-6) for each in listed)
        assert all(each.moved.lo <= each.moved.value <= each.moved.hi for each in listed)  # type: ignore[operator]


def test_the_null_edits_other_cells_of_the_same_layers_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    edits = [*EDITS, Edit(1, 7, 3.0)]
    drawn: list[list[Edit]] = []
    kept = measuring.others_of

    def draw(*arguments: Any) -> list[Edit] | None:
        found = kept(*arguments)
        drawn.append(found or [])
        return found

    monkeypatch.setattr(measuring, "others_of", draw)
    text = texts.given(model, long_text(tmp_path))
    windows = [window.ids for window in text.windows(texts.room_of(model))]
    found = changed(model, edits, text)
    nll, mean, _ = by_hand(model, windows)
    assert len(found.null) == len(drawn) == measuring.DRAWS
    moves = []
    for null, instead in zip(found.null, drawn, strict=True):
        assert sorted((e.layer, e.scale, e.towards, e.by) for e in instead if e.towards) == [(1, 0.5, "P", 3.0)]
        assert sorted((each.layer, each.scale) for each in instead) == [(0, 0.0), (1, 0.5), (1, 3.0)]
        assert not {(e.layer, e.cell) for e in instead} & {(e.layer, e.cell) for e in edits}
        with applied(model, instead):
            other, other_mean, _ = by_hand(model, windows)
        assert null.change.value == pytest.approx(math.exp(other - nll) - 1, rel=1e-3, abs=1e-6)
        moves.append((other_mean - mean)[: len(model.vocabulary)])
        assert null.largest == pytest.approx(float(moves[-1].abs().max()), rel=1e-3)
    expected = torch.stack(moves).mean(0)
    assert found.up[0].random == pytest.approx(float(expected[found.up[0].token]), rel=1e-2, abs=1e-6)


def test_without_other_cells_there_is_no_null(tmp_path: Path) -> None:
    model = tiny("llama")
    most = [Edit(1, cell, 0.0) for cell in range(13)]
    assert others_of(model, most, np.random.default_rng(0)) is None
    assert others_of(model, most[:12], np.random.default_rng(0)) is not None
    found = changed(model, most, texts.given(model, long_text(tmp_path)))
    assert found.null == []
    assert math.isnan(found.up[0].random)


# The command


def written(path: Path, edits: Any) -> Path:
    path.write_text(json.dumps(edits))
    return path


def test_the_command_writes_checks_and_tells(folder: Path, tmp_path: Path) -> None:
    file = written(
        tmp_path / "edits.json", [{"cell": "L0.3", "scale": 0}, {"layer": 1, "cell": 5, "towards": "P", "by": 3}]
    )
    first, *_ = long_text(tmp_path)
    said = command("edit", folder, file, "--out", tmp_path / "out", "--check", first)
    assert "2 edits: L0.3 off; L1.5 value moved towards 'P' by 3" in said
    assert "one document: no interval" in said
    assert "other cells of the same layers" in said
    assert "likelier" in said
    told = json.loads((tmp_path / "out" / "keyhole.json").read_text())
    found = json.loads(command("edit", folder, file, "--check", first, "--json"))
    assert found["saved"] is None
    assert found["check"] == told["check"]
    assert found["check"]["text"] == {
        "source": "valid",
        "files": "0.txt",
        "tokens": found["check"]["text"]["tokens"],
        "documents": 1,
    }
    assert len(found["check"]["random"]) == measuring.DRAWS


def test_a_run_has_text_and_sets(run: keyhole.Run, tmp_path: Path) -> None:
    collections.save(run, 5, {"tags": ["mine"]})
    collections.save(run, 30, {"tags": ["mine"]})
    file = written(
        tmp_path / "edits.json", [{"set": "collection:mine", "scale": 0}, {"cells": ["L2.1", "L2.2"], "scale": 2}]
    )
    found = json.loads(command("edit", run.path, file, "--out", tmp_path / "out", "--check", "--json"))
    assert [(each["layer"], each["cell"], each["scale"]) for each in found["edits"]] == [
        (0, 5, 0.0),
        (1, 6, 0.0),
        (2, 1, 2.0),
        (2, 2, 2.0),
    ]
    assert found["check"]["text"]["source"] == "held out"
    assert found["check"]["change"][1] is not None  # an interval: there are several documents
    got = keyhole.load(tmp_path / "out")
    assert not got.values(0)[5].any()
    assert not got.values(1)[6].any()


def test_a_run_in_half_precision_is_baked_from_its_checkpoint(folder: Path, tmp_path: Path, text: Path) -> None:
    from safetensors.torch import load_file

    run = keyhole.scan(str(folder), [text], out=tmp_path / "run", unit="line", top=3, dtype="bfloat16")
    done = edit(run, [Edit(1, 5, 0.0)], tmp_path / "out")
    assert done.saved is not None
    assert done.saved.dtype == "float32"
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "out"))
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(UsageError, match="runs in bfloat16, and has weights in float32"):
        edit(keyhole.load(folder, dtype="bfloat16"), [Edit(1, 5, 0.0)], tmp_path / "no")


def test_a_small_run_is_checked_on_what_was_scanned(folder: Path, tmp_path: Path) -> None:
    run = keyhole.scan(str(folder), long_text(tmp_path, 1), out=tmp_path / "run", unit="line", top=3)
    found = edit(run, [Edit(1, 5, 0.0)], check=[]).check
    assert found is not None
    assert found.text.source == "corpus"
    assert found.found.agreement.lo is None  # one document
    small = keyhole.scan(str(folder), [corpus(tmp_path / "few.txt", 3)], out=tmp_path / "small", unit="line", top=3)
    with pytest.raises(CorpusError, match="and at least 256 are needed. Name a text of your own"):
        edit(small, [Edit(1, 5, 0.0)], check=[])


def test_a_folder_of_text_has_a_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    long_text(tmp_path / "texts")
    found = edit(str(folder), EDITS, check=f"{tmp_path}/texts/").check
    assert found is not None
    assert found.text.files == "texts"


def test_cells_that_are_edited_already_are_no_null() -> None:
    model = keyhole.models.model.Model(tiny("llama").lm, tiny("llama").tokenizer, source="x")
    model.edits = tuple(Edit(1, cell, 0.0) for cell in range(20))
    for seed in range(20):
        (found,) = others_of(model, [Edit(1, 20, 0.0)], np.random.default_rng(seed)) or []
        assert found.cell > 20


def test_refused_before_anything_is_measured(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.uses.edit.changed", lambda *_, **__: pytest.fail("measured first"))
    text = long_text(tmp_path)
    with pytest.raises(UsageError, match="dtype 'int8'"):
        edit(str(folder), EDITS, tmp_path / "out", check=text, dtype="int8")
    with pytest.raises(KeyholeError, match="Keyhole did not make it"):
        edit(str(folder), EDITS, folder, check=text, force=True)


def test_the_command_without_anything_says_what_it_needs() -> None:
    assert "Missing argument" in command("edit", code=2)


@pytest.mark.parametrize(
    ("edits", "options", "says"),
    [
        ([], ["--check", "TEXT"], "no edits to make: the list is empty"),
        ([{"cell": "L0.3", "scale": 0}], [], "nothing to do: name a folder to write .--out FOLDER., or a text"),
        ([{"cell": "L0.3", "scale": 0}], ["--check"], "A model has no text of its own to check on: --check TEXT"),
        ([{"cell": "L0.3", "scale": 0}], ["--check", "SHORT"], "short.txt has 3 tokens, and at least 256"),
        ([{"cell": "L0.3", "scale": 0}], ["--check", "TEXT", "--check"], "name texts, or none"),
        ([{"cell": "L0.3", "scale": 0}], ["--out", "TEXT"], "is a link or a file"),
        ([{"cell": "L0.3", "scale": 0}], ["--out", "OUT", "--dtype", "int8"], "dtype 'int8' is not one of"),
        ([{"cell": "L0.99", "scale": 0}], ["--out", "OUT"], "There is no cell L0.99"),
        (
            [{"cell": "L0.3", "scale": 0, "positions": [4]}],
            ["--out", "OUT"],
            "L0.3 is edited at positions 4, .*Leave the positions out",
        ),
        ([{"set": "kind:dead", "scale": 0}], ["--out", "OUT"], "only a run knows what is in it. Use: keyhole edit RUN"),
        ([{"cell": "L0.3", "scale": 0}], ["--out", "OUT", "--model", "x"], "--model names the model of a run"),
    ],
)
def test_bad_input_is_refused_in_words(folder: Path, tmp_path: Path, edits: Any, options: list[str], says: str) -> None:
    corpus(tmp_path / "text.txt")
    (tmp_path / "short.txt").write_text("abc")
    names = {"TEXT": tmp_path / "text.txt", "SHORT": tmp_path / "short.txt", "OUT": tmp_path / "out"}
    file = written(tmp_path / "edits.json", edits)
    said = command("edit", folder, file, *(names.get(each, each) for each in options), code=2)
    assert re.search(says, said), said
    assert not (tmp_path / "out").exists()


def test_other_bad_input(folder: Path, run: keyhole.Run, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match="neither a model .* nor a run"):
        edit(tmp_path, EDITS, tmp_path / "out")
    with pytest.raises(UsageError, match=r"is not analyzed|are not known yet: keyhole analyze"):
        edit(run, [{"set": "kind:dead", "scale": 0}], tmp_path / "out")
    with pytest.raises(CorpusError):
        edit(str(folder), EDITS, check=[tmp_path / "nowhere.txt"])
    other = keyhole.intervene.dump(EDITS, tiny("mistral"))
    with pytest.raises(UsageError, match="belongs to another model"):
        edit(str(folder), other, tmp_path / "out")
    assert not (tmp_path / "out").exists()
