"""Edits against weights with a row struck out, and against a hook written by hand; on a random model of every family."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import paper
import pytest
import torch
from families import CELLS, TINY, tiny, tokenizer
from torch import Tensor

import keyhole
from keyhole.errors import UsageError
from keyhole.models import intervene, patches
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model

TEXT = "The cat sat"


def logits(model: Model, ids: Tensor | None = None) -> Tensor:
    """The model's own logits of a whole text, after the start token."""
    if ids is None:
        ids = model.batch(model.tokenize([TEXT])).ids
    with torch.no_grad():
        return model.lm(input_ids=ids, use_cache=False).logits.clone()


def raw_value(model: Model, layer: int, cell: int) -> Tensor:
    weight = paper.named(model, paper.DOWN)[layer].weight.detach()
    return weight[cell] if model.config.model_type == "gpt2" else weight[:, cell]


def firing(model: Model, positions: list[int]) -> int:
    """A cell of layer 1 that fires at all of these (a ReLU's is often silent)."""
    return int(model.coefficients(TEXT)[:, model.cells.span(1)][positions].abs().amin(0).argmax())


def by_hand(model: Model, layer: int, cell: int, scale: float, columns: list[int]) -> Tensor:
    """The logits with the cell's share of the layer's output scaled after the down-projection."""

    def hook(module: Any, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        out, flat = out.clone(), args[0].reshape(-1, model.cells.size(layer))
        for column in columns:
            out.view(-1, out.shape[-1])[column] += (scale - 1) * flat[column, cell] * raw_value(model, layer, cell)
        return out

    handle = paper.named(model, paper.DOWN)[layer].register_forward_hook(hook)
    try:
        return logits(model)
    finally:
        handle.remove()


@pytest.mark.parametrize("family", sorted(TINY))
def test_switching_a_cell_off_is_striking_its_value_out(family: str) -> None:
    model = tiny(family)
    before, cell = logits(model), firing(model, [4])
    struck = copy.deepcopy(model.lm)
    other = Model(struck, model.tokenizer, source="struck")
    weight = paper.named(other, paper.DOWN)[1].weight.data
    (weight if model.config.model_type == "gpt2" else weight.T)[cell] = 0
    with applied(model, [Edit(1, cell, 0.0)], 1):
        got = logits(model)
    torch.testing.assert_close(got, logits(other), rtol=1e-5, atol=1e-5)
    assert (got - before).abs().max() > 1e-4
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("family", sorted(TINY))
def test_positions_count_the_texts_own_tokens(family: str) -> None:
    model = tiny(family)
    before, cell = logits(model), firing(model, [2, 6])
    with applied(model, [Edit(1, cell, -2.5, (2, 6))], 1):
        got = logits(model)
        seen = model.coefficients(TEXT)
    torch.testing.assert_close(got, by_hand(model, 1, cell, -2.5, [3, 7]), rtol=1e-4, atol=1e-5)
    assert torch.equal(got[:, :3], before[:, :3])
    assert (got - before)[:, 3:].abs().max() > 1e-4
    # who looks at coefficients sees the edited ones
    plain = model.coefficients(TEXT)
    place, first = model.cells.place(1, cell), model.cells.span(0)
    expected = plain[:, place].clone()
    expected[[2, 6]] *= -2.5
    torch.testing.assert_close(seen[:7, place], expected[:7])
    assert torch.equal(seen[:, first], plain[:, first])


@pytest.mark.parametrize("family", sorted(TINY))
def test_nothing_is_left_behind(family: str) -> None:
    model = tiny(family)
    before, coefficients = logits(model), model.coefficients(TEXT)
    with applied(model, [Edit(0, 3, 1.0), Edit(2, 4, 1.0, (0, 5))], 1):
        assert torch.equal(logits(model), before)
    with pytest.raises(KeyError):
        _fail_inside(model)
    assert torch.equal(logits(model), before)
    assert torch.equal(model.coefficients(TEXT), coefficients)
    assert not any(site.module._forward_pre_hooks for site in model.sites)


def _fail_inside(model: Model) -> None:
    with applied(model, [Edit(1, firing(model, [0]), 9.0, (0,))], 1):
        raise KeyError


def test_edits_compose() -> None:
    for family in ("llama", "opt", "gemma2"):
        model = tiny(family)
        one, two = Edit(1, 5, 0.5), Edit(1, 7, -1.0, (1, 3))
        with applied(model, [one, two], 1):
            together = logits(model)
        with applied(model, [one], 1), applied(model, [two], 1):
            assert torch.equal(logits(model), together)
        with applied(model, [Edit(1, 5, 0.5, (0, 1)), Edit(1, 5, 2.0, (2,))], 1):
            split = model.coefficients(TEXT)[:3, model.cells.place(1, 5)]
        torch.testing.assert_close(
            split, model.coefficients(TEXT)[:3, model.cells.place(1, 5)] * torch.tensor([0.5, 0.5, 2.0])
        )
        with applied(model, [one], 1), applied(model, [Edit(1, 5, 4.0)], 1):  # one inside another: their product
            twice = logits(model)
        with applied(model, [Edit(1, 5, 2.0)], 1):
            torch.testing.assert_close(logits(model), twice)


def test_the_callers_tensor_is_not_touched() -> None:
    model = tiny("llama")
    x = torch.randn(1, 4, model.cells.size(0))
    kept = x.clone()
    with applied(model, [Edit(0, 2, 0.0)]):
        out = model.sites[0].module(x)
    assert torch.equal(x, kept)
    assert not torch.equal(out, model.sites[0].module(x))


def test_a_batch_of_sequences_with_and_without_a_start_token() -> None:
    for family in ("llama", "opt"):
        model = tiny(family)
        (ids,) = model.tokenize([TEXT])
        bare = torch.tensor([ids, ids])
        bare[0] = torch.tensor([model.bos_id, *ids[:-1]])
        plain: dict[int, Tensor] = {}
        model.run(bare, lambda site, x, tokens, plain=plain: plain.update({site: x.clone()}))
        edited: dict[int, Tensor] = {}
        with applied(model, [Edit(0, 2, 3.0, (4,))]):
            model.run(bare, lambda site, x, tokens, edited=edited: edited.update({site: x.clone()}))
        changed = (edited[0] != plain[0]).nonzero().tolist()
        assert changed == [entry for entry in ([0, 5, 2], [1, 4, 2]) if plain[0][tuple(entry)] != 0]


def test_positions_go_on_where_a_cache_ends() -> None:
    model = tiny("llama")
    ids = model.batch(model.tokenize([TEXT])).ids
    with applied(model, [Edit(0, 2, 5.0, (2, 8))]), torch.no_grad():
        whole = logits(model)
        first = model.lm(input_ids=ids[:, :6], use_cache=True)
        rest = model.lm(input_ids=ids[:, 6:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole, rtol=1e-4, atol=1e-5)


def test_threads_do_not_see_each_others_edits() -> None:
    model = tiny("gpt2")
    expected = []
    for cell in range(6):
        with applied(model, [Edit(1, cell, 4.0)]):
            expected.append(model.coefficients(TEXT))
    plain, wrong = model.coefficients(TEXT), []

    def work(cell: int) -> None:
        for _ in range(10):
            with applied(model, [Edit(1, cell, 4.0)]):
                if not torch.equal(model.coefficients(TEXT), expected[cell]):
                    wrong.append(cell)
            if not torch.equal(model.coefficients(TEXT), plain):
                wrong.append(-1)

    threads = [threading.Thread(target=work, args=(cell,)) for cell in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_models_at_once_leave_transformers_as_it_was() -> None:
    from transformers import masking_utils

    before = masking_utils.find_packed_sequence_indices
    with patches.without_readbacks():
        first, second = patches.without_readbacks(), patches.without_readbacks()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert masking_utils.find_packed_sequence_indices is not before
        second.__exit__(None, None, None)
    assert masking_utils.find_packed_sequence_indices is before


# The file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny("llama").lm.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_edits_saved_and_loaded_with_a_model(folder: Path, tmp_path: Path) -> None:
    plain = keyhole.load(str(folder))
    edits = [Edit(1, 5, 0.0), Edit(2, 7, -0.5, (1, 3))]
    saved = intervene.dump(edits, plain)
    assert saved["model"] == {"fingerprint": plain.fingerprint, "layers": plain.layers, "cells": CELLS}
    file = tmp_path / "edits.json"
    file.write_text(json.dumps(saved))
    with applied(plain, edits):
        expected, coefficients = logits(plain), plain.coefficients(TEXT)
    found = {"path": keyhole.load(str(folder), edits=file), "name": keyhole.load(str(folder), edits=str(file))}
    found |= {"dict": keyhole.load(str(folder), edits=saved), "list": keyhole.load(str(folder), edits=edits)}
    for model in found.values():
        assert torch.equal(logits(model), expected)
        assert torch.equal(model.coefficients(TEXT), coefficients)
        assert list(model.edits) == edits
        assert model.weights_fingerprint == plain.fingerprint
    assert len({model.fingerprint for model in found.values()}) == 1
    assert found["path"].fingerprint != plain.fingerprint
    assert keyhole.load(str(folder), edits=edits[:1]).fingerprint not in (plain.fingerprint, found["path"].fingerprint)
    assert keyhole.load(str(folder), edits=[]).fingerprint == plain.fingerprint
    # what is saved from an edited model gives the same model again
    again = intervene.dump([Edit(0, 0, 2.0)], found["path"])
    assert intervene.parse(again["edits"]) == [*edits, Edit(0, 0, 2.0)]
    # without the start token positions count from the first token
    bare = found["path"].coefficients(TEXT, bos=False)
    with applied(plain, edits, 0):
        assert torch.equal(plain.coefficients(TEXT, bos=False), bare)


def test_a_scan_of_an_edited_model_is_told_apart(folder: Path, text: Path, tmp_path: Path) -> None:
    edited = keyhole.load(str(folder), edits=[Edit(1, 5, 0.0)])
    run = keyhole.scan(edited, [text], out=tmp_path / "run", unit="line", top=3)
    assert run.cell(1, 5).dead
    assert run.stats.max[run.cells.place(1, 5)] == 0
    with pytest.raises(keyhole.KeyholeError, match="not the model that was scanned"):
        keyhole.analyze(run, only=["mutation"], model=keyhole.load(str(folder)))
    assert keyhole.verify(run, cells=5).ok  # the run says which edits, so the model comes back with them


def test_edits_of_another_model_are_refused(folder: Path) -> None:
    saved = intervene.dump([Edit(0, 0, 0.0)], tiny("mistral"))
    with pytest.raises(UsageError, match=r"belongs to another model.*Load the model it was saved from"):
        keyhole.load(str(folder), edits=saved)
    with pytest.raises(UsageError, match="loaded already"):
        keyhole.load(tiny("llama"), edits=[Edit(0, 0, 0.0)])
    assert keyhole.load(tiny("llama")) is tiny("llama")


GOOD = {"layer": 0, "cell": 1, "scale": 0.5}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (5, "must be a list; this is 5"),
        ([3], "Edit 0 is 3; it must be an object"),
        ([GOOD, {**GOOD, "factor": 1}], "Edit 1 has the unknown field 'factor'.*layer, cell, scale, positions"),
        ([{"layer": 0, "scale": 1}], "Edit 0 lacks its cell"),
        ([{**GOOD, "layer": -1}], "The layer of edit 0 is -1; .*at least 0"),
        ([{**GOOD, "cell": True}], "The cell of edit 0 is True"),
        ([{**GOOD, "cell": 1.0}], "The cell of edit 0 is 1.0"),
        ([{**GOOD, "layer": 3}], "no cell L3.1 to edit.*layers 0 to 2"),
        ([{**GOOD, "cell": 10**9}], "no cell L0.1000000000"),
        ([{**GOOD, "scale": "0"}], "scale of edit 0 is '0'; it must be a number"),
        ([{**GOOD, "scale": float("nan")}], "scale of edit 0 is nan; it must be finite"),
        ([{**GOOD, "scale": -float("inf")}], "scale of edit 0 is -inf"),
        ([{**GOOD, "scale": 1e39}], "scale of edit 0 is 1e\\+39"),
        ([{**GOOD, "scale": 10**5000}], "scale of edit 0 is a huge number"),
        ([{**GOOD, "positions": [-1]}], "A position of edit 0 is -1"),
        ([{**GOOD, "positions": [1 << 40]}], "A position of edit 0 is 1099511627776"),
        ([{**GOOD, "positions": []}], "positions of edit 0 are \\[\\].*null for everywhere"),
        ([{**GOOD, "positions": "12"}], "positions of edit 0 are '12'"),
        ([{**GOOD, "positions": [4, 4]}], "positions of edit 0 name 4 twice"),
        ([GOOD, GOOD], "L0.1 is edited twice. Keep one"),
        ([GOOD, {**GOOD, "positions": [3]}], "L0.1 is edited twice"),
        ([{**GOOD, "positions": [3, 4]}, {**GOOD, "positions": [4]}], "L0.1 is edited twice at position 4"),
        ({"keyhole": 2, "new": 1}, "newer Keyhole \\(version 2"),
        ({"edits": [GOOD]}, '"keyhole" is None'),
        ({"keyhole": 1, "edits": [], "model": {"fingerprint": ""}, "x": 1}, "unknown field 'x'"),
        ({"keyhole": 1, "edits": []}, "not whole"),
        ({"keyhole": 1, "model": {"fingerprint": 3}, "edits": []}, "not whole"),
    ],
)
def test_what_is_wrong_with_edits_is_told(value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        intervene.read_edits(value, tiny("llama"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(UsageError, match=r"edits file .*nowhere.json cannot be read: No such file"):
        intervene.read_edits(tmp_path / "nowhere.json", model)
    with pytest.raises(UsageError, match="cannot be read"):
        intervene.read_edits(tmp_path, model)
    bad = tmp_path / "bad.json"
    for content in (b"{", b"\xff\xfe", b"[" * 100_000):
        bad.write_bytes(content)
        with pytest.raises(UsageError, match="is no JSON"):
            intervene.read_edits(str(bad), model)
    bad.write_text("[]")
    assert intervene.read_edits(str(bad), model) == []


def test_what_is_dumped_is_read_back() -> None:
    edits = [Edit(0, 1, 0.1, (3, 7)), Edit(2, 23, -4.0)]
    spelled = json.loads(json.dumps(intervene.dump(edits, tiny("llama")), allow_nan=False))
    assert intervene.read_edits(spelled, tiny("llama")) == edits
    assert intervene.parse(spelled["edits"]) == edits
