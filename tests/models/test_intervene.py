"""Edits against weights with a row struck out, and against a hook written by hand; on a random model of every family."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
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


# Values


def rewritten(model: Model, layer: int, cell: int, new: Tensor) -> Tensor:
    """The logits of a copy of the model whose value was changed by hand."""
    other = Model(copy.deepcopy(model.lm), model.tokenizer, source="rewritten")
    weight = paper.named(other, paper.DOWN)[layer].weight.data
    (weight if model.config.model_type == "gpt2" else weight.T)[cell] = new
    return logits(other)


@pytest.mark.parametrize("family", sorted(TINY))
def test_a_value_that_is_replaced_is_a_weight_written_by_hand(family: str) -> None:
    model = tiny(family)
    before, weights, cell = logits(model), copy.deepcopy(model.lm.state_dict()), firing(model, [4])
    new = torch.randn(raw_value(model, 1, cell).shape, generator=torch.Generator().manual_seed(3))
    expected = rewritten(model, 1, cell, new)
    assert (expected - before).abs().max() > 1e-4
    edit = Edit(1, cell, value=tuple(new.tolist()))
    with applied(model, [edit]):
        assert torch.equal(logits(model), expected)
        assert torch.equal(model.values(1)[cell], new)
        assert model.fingerprint != model.weights_fingerprint
    expected = rewritten(model, 1, cell, -0.5 * new)
    with applied(model, [Edit(1, cell, -0.5, value=tuple(new.tolist()))]):
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(KeyError), applied(model, [edit, Edit(2, 3, towards="a", by=2.0)]):
        raise KeyError
    assert torch.equal(logits(model), before)
    left = model.lm.state_dict()
    assert all(torch.equal(left[name], weight) for name, weight in weights.items())


def lens_logits(model: Model, layer: int, v: Tensor) -> Tensor:
    """[vocabulary] a value, as the weights store it, through the lens `norm`."""
    if model.config.model_type in ("gemma2", "gemma3_text", "olmo2"):
        gain = model.blocks[layer].post_feedforward_layernorm.weight.detach()
        v = v * (gain if model.config.model_type == "olmo2" else 1 + gain)
    return paper.unembedding(model) @ paper.folded(model, v)


@pytest.mark.parametrize("family", sorted(TINY))
def test_a_value_is_moved_where_the_tokens_logit_rises_most_and_the_mean_stays(family: str) -> None:
    model, cell = tiny(family), 5
    token = model.vocabulary.find("P")
    v = raw_value(model, 1, cell).clone().requires_grad_(True)
    (own,) = torch.autograd.grad(lens_logits(model, 1, v)[token], v)
    (mean,) = torch.autograd.grad(lens_logits(model, 1, v).mean(), v)
    steepest = own - (own @ mean) / (mean @ mean) * mean
    steepest /= steepest.norm()
    length = v.detach().norm()
    for by in (0.5, -2.0):
        with applied(model, [Edit(1, cell, towards="P", by=by)]):
            step = model.values(1)[cell] - v.detach()
        torch.testing.assert_close(step, by * length * steepest, rtol=1e-3, atol=1e-4)
    # no random direction that leaves the mean as it is raises the logit more
    random = torch.randn(200, len(steepest), generator=torch.Generator().manual_seed(1))
    random -= (random @ mean)[:, None] / (mean @ mean) * mean
    random /= random.norm(dim=1, keepdim=True)
    reached = model.promoting(1, token)
    assert abs(float(lens_logits(model, 1, reached).mean())) < 1e-4
    assert float(lens_logits(model, 1, reached)[token]) > max(
        float(lens_logits(model, 1, each)[token]) for each in random
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "olmo2"])
def test_far_enough_a_value_says_the_token_first(family: str) -> None:
    """For the token that sticks out most: in 16 dimensions not every one can be the first of 300."""
    model = tiny(family)
    token = max(range(3, 259), key=lambda token: float(lens_logits(model, 1, model.promoting(1, token))[token]))
    piece = model.vocabulary.piece(token)
    with applied(model, [Edit(1, 5, towards=piece, by=1e4)]):
        assert int(lens_logits(model, 1, model.values(1)[5]).argmax()) == model.vocabulary.find(piece)
    with applied(model, [Edit(1, 5, towards=piece, by=-1e4)]):
        assert int(lens_logits(model, 1, model.values(1)[5]).argmin()) == model.vocabulary.find(piece)


def test_value_edits_compose_and_come_back_in_order() -> None:
    model = tiny("llama")
    before = model.values(1)[5].clone()
    with applied(model, [Edit(1, 5, value=(0.0,) * 16)]):
        with (
            pytest.raises(UsageError, match=r"value of L1\.5 is 0, so it cannot be moved"),
            applied(model, [Edit(1, 5, towards="a", by=1.0)]),
        ):
            pass
        with applied(model, [Edit(1, 5, value=(1.0,) * 16)]):
            assert torch.equal(model.values(1)[5], torch.ones(16))
        assert torch.equal(model.values(1)[5], torch.zeros(16))
    assert torch.equal(model.values(1)[5], before)


def test_a_value_is_rounded_to_the_weights_type_and_refused_if_it_does_not_fit() -> None:
    from families import COMMON
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("llama", vocab_size=300, **COMMON)
    model = Model(AutoModelForCausalLM.from_config(config, dtype=torch.float16), tokenizer(), source="half")
    with applied(model, [Edit(0, 1, value=(0.1,) * 16)]):
        assert model.values(0)[1].tolist() == torch.full((16,), 0.1).half().tolist()
    with (
        pytest.raises(UsageError, match="new value of L0.1 has numbers that float16 cannot hold"),
        applied(model, [Edit(0, 1, value=(1e6,) * 16)]),
    ):
        pass


def test_a_prompts_cells_add_the_values_they_have_with_the_edits() -> None:
    for family in ("llama", "gemma2"):
        model = tiny(family, max_position_embeddings=63)  # one of its own, whose weights are written below
        edit = Edit(2, 5, towards="P", by=4.0)
        found = keyhole.prompt.read(model, TEXT, edits=[edit])
        plain = keyhole.prompt.read(model, TEXT)
        intervene.apply(model, [edit])
        try:
            expected = keyhole.prompt.read(model, TEXT, token=found.chosen.piece)
        finally:
            model.edits = ()
        assert found.ranked == expected.ranked
        assert found.without is not None
        assert found.without.ranked == plain.ranked
        assert found.prediction == expected.prediction
        tiny.cache_clear()


def test_value_edits_reach_continuations_and_ablations() -> None:
    model, edit = tiny("llama"), Edit(2, 7, value=tuple(float(x) for x in range(16)))
    other = Model(copy.deepcopy(model.lm), model.tokenizer, source="rewritten")
    paper.named(other, paper.DOWN)[2].weight.data[:, 7] = torch.arange(16.0)
    made = keyhole.generate(model, TEXT, edits=[edit], length=12)
    assert [step.token for step in made.edited or ()] == [
        step.token for step in keyhole.generate(other, TEXT, length=12).original
    ]
    lost, expected = (
        keyhole.prompt.ablate(one, TEXT, [(2, 7), (1, 3)], token="P", edits=edits)
        for one, edits in ((model, [edit]), (other, []))
    )
    assert [one.logit for one in lost.cells] == pytest.approx([one.logit for one in expected.cells], abs=1e-4)
    with pytest.raises(UsageError, match="cannot be changed for one row"), intervene.applied_by_row(model, [[edit]]):
        pass


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


def test_value_edits_saved_and_loaded_with_a_model(folder: Path, tmp_path: Path, text: Path) -> None:
    plain = keyhole.load(str(folder))
    edits = [Edit(1, 5, 0.5, towards="P", by=-0.5), Edit(2, 7, value=tuple(0.1 * x for x in range(16)))]
    saved = json.loads(json.dumps(intervene.dump(edits, plain)))
    assert intervene.read_edits(saved, plain) == edits
    with applied(plain, edits):
        expected, named = logits(plain), plain.fingerprint
    edited = keyhole.load(str(folder), edits=saved)
    assert torch.equal(logits(edited), expected)
    assert (edited.fingerprint, edited.weights_fingerprint) == (named, plain.weights_fingerprint)
    run = keyhole.scan(edited, [text], out=tmp_path / "run", unit="line", top=3)
    assert keyhole.verify(run, cells=5).ok  # the run says which edits, so the model comes back with them
    assert "value moved towards 'P' by -0.5, × 0.5" in str(edits[0])
    assert "value replaced" in str(edits[1])


def test_entries_name_cells_by_address_in_lists_and_in_sets() -> None:
    model = tiny("llama")
    value = [
        {"cell": "L1.3", "scale": 2},
        {"cells": ["l2.4", "L0.5"], "scale": 0, "positions": [1]},
        {"set": "these", "towards": "P", "by": 1},
        {"set": "those", "towards": "P", "by": 1},
        GOOD,
    ]
    places = {"these": [24 + 7, 24 + 8], "those": [24 + 8, 24 + 9]}
    assert intervene.read_edits(value, model, places.__getitem__) == [
        Edit(1, 3, 2.0),
        Edit(2, 4, 0.0, (1,)),
        Edit(0, 5, 0.0, (1,)),
        *(Edit(1, cell, towards="P", by=1.0) for cell in (7, 8, 9)),
        Edit(**GOOD),
    ]


def test_a_set_that_is_named_often_is_looked_up_once_and_not_spread_without_end() -> None:
    model, asked = tiny("llama"), list[str]()

    def cells(name: str) -> range:
        asked.append(name)
        return range(60)

    value = [{"set": "big", "scale": 0, "positions": [number]} for number in range(1000)]
    assert len(intervene.spread(value, model.cells, cells, most=256)) <= 256 + 60
    assert asked == ["big"]
    with pytest.raises(UsageError, match="edited twice, the second time by edit 1"):
        intervene.spread([{"set": "big", "scale": number} for number in range(1000)], model.cells, cells)


def test_entries_whose_cells_cannot_be_found_are_said_by_their_number() -> None:
    problems: dict[int, str] = {}
    value = [{"cells": ["L0.1", "L0.2"], "scale": 0}, {"cell": "L9.1", "scale": 0}, {"layer": 1, "cell": 2}]
    spread = intervene.spread(value, tiny("llama").cells, problems=problems)
    found = intervene.sort_out(spread, tiny("llama"))
    assert found.possible == [Edit(0, 1, 0.0), Edit(0, 2, 0.0)]
    assert "Edit 2 lacks its scale" in found.problems[2]
    assert list(problems) == [1]


def test_numbers_of_numpy_are_numbers() -> None:
    assert intervene.parse([Edit(np.int64(1), np.int32(2), np.float32(0.5))]) == [Edit(1, 2, 0.5)]  # type: ignore[arg-type]


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
        ([{"layer": 0, "cell": 1}], "Edit 0 lacks its scale"),
        ([{**GOOD, "value": 3}], "value of edit 0 is 3; it must be a list of numbers"),
        ([{**GOOD, "value": []}], "value of edit 0 is \\[\\]; it must be a list of numbers"),
        ([{**GOOD, "value": None}], "value of edit 0 is None; it must be a list of numbers"),
        ([{**GOOD, "towards": "P", "by": None}], "'by' of edit 0 is None; it must be a number"),
        ([{**GOOD, "value": [1.0, "x"]}], "value of edit 0 is 'x'; it must be a number"),
        ([{**GOOD, "value": [float("nan")]}], "value of edit 0 is nan; it must be finite"),
        ([{**GOOD, "value": [1.0] * 15}], "new value of L0.1 has 15 numbers; a value of this model has 16"),
        ([{**GOOD, "value": [1.0] * 16, "by": 1}], "both replaces the value and moves it"),
        ([{**GOOD, "towards": "P"}], "Edit 0 lacks its by"),
        ([{**GOOD, "by": 1}], "Edit 0 lacks its towards"),
        ([{**GOOD, "towards": 3, "by": 1}], "towards 3; it must be a token"),
        ([{**GOOD, "towards": "P", "by": "far"}], "'by' of edit 0 is 'far'; it must be a number"),
        ([{**GOOD, "towards": "Paris", "by": 1}], "L0.1 cannot be moved towards a token: 'Paris' is not a token"),
        (
            [{**GOOD, "towards": "P", "by": 1, "positions": [2]}],
            "changes the value of L0.1 at chosen positions.*leave the positions out, or use a scale",
        ),
        ([{"cell": "L9.1", "scale": 0}], "There is no cell L9.1"),
        ([{"cell": "L1", "scale": 0}], "'L1' is not a cell address"),
        ([{"cell": "L1.1", "layer": 1, "scale": 0}], "names its cells twice"),
        ([{"cells": [], "scale": 0}], "cells of edit 0 are \\[\\]; they must be a list of addresses"),
        ([{"set": "kind:dead", "scale": 0}], "only a run knows what is in it. Use: keyhole edit RUN"),
        ([{"set": 3, "scale": 0}], "set of edit 0 is 3; it must be a name"),
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
        ({"edits": [GOOD]}, "is an object. A file of edits is a JSON list, or what Keyhole saved"),
        ({"keyhole": None}, '"keyhole" is None'),
        ([{"cell": 5, "cells": ["L0.1"], "scale": 0}], "Edit 0 names its cells twice"),
        ([{"cell": 5, "set": "x", "scale": 0}], "Edit 0 names its cells twice"),
        ([{"cells": ["L0.1", "L0.2"], "scale": 0}, {"layer": 1, "cell": 2}], "Edit 1 lacks its scale"),
        (
            [{"cells": ["L0.1"], "scale": 0}, {"cells": ["L0.1"], "scale": 1}],
            "L0.1 is edited twice, the second time by edit 1",
        ),
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
