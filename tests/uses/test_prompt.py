"""A prompt's reading against the plain definitions, a cell at a time, on a random model of every family."""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import paper
import pytest
import torch
from families import TINY, tiny
from torch import Tensor

from keyhole.errors import ModelError, UsageError
from keyhole.models import intervene
from keyhole.models.intervene import Edit, applied
from keyhole.models.model import Model
from keyhole.uses import prompt

TEXT = "The cat sat"


def top(model: Model, logits: Tensor, count: int) -> list[tuple[str, float]]:
    p = torch.softmax(logits.double(), 0)
    order = torch.sort(logits, descending=True, stable=True).indices[:count].tolist()
    return [(model.vocabulary.piece(i), float(p[i])) for i in order]


def same(got: prompt.Prediction, expected: list[tuple[str, float]]) -> None:
    assert [piece for piece, _ in got] == [piece for piece, _ in expected]
    assert [p for _, p in got] == pytest.approx([p for _, p in expected], rel=1e-3, abs=1e-7)


def own(model: Model, position: int) -> Tensor:
    """The model's own logits at a position of the text."""
    batch = model.batch(model.tokenize([TEXT]))
    with torch.no_grad():
        return model.lm(input_ids=batch.ids, use_cache=False).logits[0, batch.n_special + position]


def added(model: Model, seen: paper.Seen, layer: int, cell: int) -> Tensor:
    """What one cell adds to the residual, a post-norm at the scale it has there."""
    m = torch.from_numpy(seen.m[layer])
    share = m[cell] * paper.value(model, layer, cell)
    if model.config.model_type in ("gemma2", "gemma3_text", "olmo2"):
        with torch.no_grad():
            whole = paper.named(model, paper.DOWN)[layer](m[None])[0]
        share = share * torch.rsqrt(whole.square().mean() + model.config.rms_norm_eps)
    return share


@pytest.mark.parametrize("family", sorted(TINY))
@pytest.mark.parametrize("position", [None, 4])
def test_every_number_is_as_defined(family: str, position: int | None) -> None:
    model = tiny(family)
    (ids,) = model.tokenize([TEXT])
    at = len(ids) - 1 if position is None else position
    seen = paper.look(model, ids[: at + 1])
    view = prompt.read(model, TEXT, position=position)
    logits = own(model, at)
    same(view.prediction, top(model, logits, 10))
    assert view.original == view.prediction
    assert (view.position, view.edited, view.ids) == (at, False, ids)
    assert view.tokens == list(TEXT)
    token = int(logits.argmax())
    assert view.chosen.token == token
    assert view.chosen.logit == view.chosen.original_logit == pytest.approx(float(logits[token]), rel=1e-4, abs=1e-5)
    assert view.chosen.p == view.chosen.original_p == pytest.approx(view.prediction[0][1])
    same(view.layers[-1].after, view.prediction[:5])
    whole = paper.own_logits(model, seen.o[-1])[token]
    for layer, one in enumerate(view.layers):
        assert one.layer == layer
        same(one.before, top(model, paper.own_logits(model, seen.r[layer]), 5))
        same(one.after, top(model, paper.own_logits(model, seen.o[layer]), 5))
        shares = [added(model, seen, layer, cell) for cell in range(model.cells.size(layer))]
        effects = [float(whole - paper.own_logits(model, seen.o[-1] - share)[token]) for share in shares]
        strengths = [
            abs(float(seen.m[layer][cell])) * float(paper.value(model, layer, cell).norm())
            for cell in range(model.cells.size(layer))
        ]
        for listed, measure in ((one.strongest, strengths), (one.effective, [abs(effect) for effect in effects])):
            assert len({c.cell for c in listed}) == len(listed) == 10
            for contribution in listed:
                cell = contribution.cell
                assert contribution.m == pytest.approx(float(seen.m[layer][cell]), rel=1e-3, abs=1e-5)
                assert contribution.strength == pytest.approx(strengths[cell], rel=1e-3, abs=1e-5)
                assert contribution.effect == pytest.approx(effects[cell], rel=1e-2, abs=2e-5)
            found = [measure[c.cell] for c in listed]
            assert found == pytest.approx(sorted(measure, reverse=True)[:10], rel=1e-2, abs=3e-5)


@pytest.mark.parametrize("family", sorted(TINY))
def test_edits_beside_the_original(family: str) -> None:
    model = tiny(family)
    edits = [Edit(1, 5, 3.0), Edit(2, 7, -4.0, (2, 9))]
    original = own(model, 9)
    with applied(model, edits, 1):
        edited = own(model, 9)
        m = model.cells.by_layer(model.coefficients(TEXT)[9].numpy())
    view = prompt.read(model, TEXT, position=9, token="e", edits=edits)
    assert view.edited
    same(view.prediction, top(model, edited, 10))
    same(view.original, top(model, original, 10))
    same(view.layers[-1].after, view.prediction[:5])
    token = model.vocabulary.find("e")
    assert (view.chosen.token, view.chosen.piece) == (token, "e")
    assert view.chosen.logit == pytest.approx(float(edited[token]), rel=1e-4, abs=1e-5)
    assert view.chosen.original_logit == pytest.approx(float(original[token]), rel=1e-4, abs=1e-5)
    assert view.chosen.original_p == pytest.approx(float(torch.softmax(original, 0)[token]), rel=1e-3)
    for one in view.layers:
        for contribution in one.strongest:
            assert contribution.m == pytest.approx(float(m[one.layer][contribution.cell]), rel=1e-3, abs=1e-5)
    plain = prompt.read(model, TEXT, position=9, token="e")
    same(plain.prediction, view.original)
    assert view.without is not None
    assert plain.without is None
    assert (view.without.layers, view.without.ranked) == (plain.layers, plain.ranked)  # the same pass, the same numbers


@pytest.mark.parametrize("family", sorted(TINY))
def test_one_list_over_all_layers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of each measure over all cells, whichever layers they are in."""
    model, count = tiny(family), 7
    monkeypatch.setattr(prompt, "RANKED", 10_000)
    every = {(one.layer, one.cell): one for one in prompt.read(model, TEXT).ranked}
    assert sorted(every) == list(model.cells)
    monkeypatch.setattr(prompt, "RANKED", count)
    listed = prompt.read(model, TEXT).ranked
    by_effect = sorted(every, key=lambda at: -abs(every[at].effect))[:count]
    by_strength = sorted(every, key=lambda at: -every[at].strength)[:count]
    assert {(one.layer, one.cell) for one in listed} == {*by_effect, *by_strength}
    assert all(one == every[one.layer, one.cell] for one in listed)
    sizes = [abs(one.effect) for one in listed]
    assert sizes == sorted(sizes, reverse=True)


def test_effects_are_on_what_is_predicted_without_the_edits() -> None:
    model = tiny("llama")
    plain, edits = prompt.read(model, TEXT), [Edit(2, cell, -9.0) for cell in range(12)]
    view = prompt.read(model, TEXT, edits=edits)
    assert view.prediction[0][0] != plain.prediction[0][0]
    assert view.chosen.token == plain.chosen.token


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_effects_of_switching_off_in_the_last_layer_are_what_is_foretold(family: str) -> None:
    """In the last layer a cell's effect is all there is to it, so switching it off must take away just that."""
    model = tiny(family)
    view = prompt.read(model, TEXT, token="x")
    for contribution in view.layers[-1].effective[:4]:
        without = prompt.read(model, TEXT, token="x", edits=[Edit(model.layers - 1, contribution.cell, 0.0)])
        got = without.chosen.original_logit - without.chosen.logit
        assert got == pytest.approx(contribution.effect, rel=1e-2, abs=2e-5)


def test_the_json_is_strict_and_of_the_agreed_shape() -> None:
    model = tiny("gemma2")
    spelled = prompt.read(model, TEXT, position=3, edits=[Edit(0, 1, 0.0)]).to_json()
    assert json.loads(json.dumps(spelled, allow_nan=False)) == spelled
    names = ["tokens", "position", "token", "edited", "prediction", "original", "chosen", "layers", "ranked", "without"]
    assert list(spelled) == names
    assert list(spelled["without"]) == ["layers", "ranked"]
    for one in (*spelled["ranked"], *spelled["without"]["ranked"]):
        assert list(one) == ["layer", "cell", "m", "strength", "effect"]
    assert list(spelled["chosen"]) == ["piece", "logit", "p", "original_logit", "original_p"]
    assert [len(spelled[name]) for name in ("prediction", "original", "layers")] == [10, 10, model.layers]
    for layer in spelled["layers"]:
        assert list(layer) == ["layer", "before", "after", "strongest", "effective"]
        assert len(layer["before"]) == len(layer["after"]) == 5
        for one in (*layer["strongest"], *layer["effective"]):
            assert list(one) == ["cell", "m", "strength", "effect"]
    assert spelled["token"] == spelled["prediction"][0][0]


def test_without_a_start_token() -> None:
    model = tiny("llama")
    (ids,) = model.tokenize([TEXT])
    with torch.no_grad():
        bare = model.lm(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    same(prompt.read(model, TEXT, bos=False).prediction, top(model, bare, 10))
    none = tiny("gpt2", bos=None)
    seen = paper.look(none, ids, bos=False)
    same(prompt.read(none, TEXT).prediction, top(none, paper.own_logits(none, seen.o[-1]), 10))


def test_smaller_types_are_read_in_float32() -> None:
    plain = tiny("llama")
    model = Model(copy.deepcopy(plain.lm).bfloat16(), plain.tokenizer, source="small")
    view = prompt.read(model, TEXT, token="e")
    assert view.chosen.logit == pytest.approx(prompt.read(plain, TEXT, token="e").chosen.logit, abs=0.3)
    logits = [view.chosen.logit, *(p for _, p in view.prediction)]
    assert any(float(torch.tensor(x).bfloat16()) != x for x in logits)
    assert len({p for _, p in view.prediction}) == 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text": ""}, "The text is empty"),
        ({"text": "a\ud800b"}, r"Character 1 of the text is U\+D800, half of a character"),
        ({"token": "\ud800"}, r"'\\ud800' is not a token of this model. The nearest is '\?'"),
        ({"position": 11}, "no position 11: the text has 11 tokens, 0 to 10"),
        ({"position": -1}, "no position -1"),
        ({"token": "sat"}, "'sat' is not a token of this model. It is 3 tokens, 's', 'a', 't': ask for one of them"),
        ({"token": ""}, "'' is not a token of this model. Mind"),
        ({"token": "e" * 5000}, "It is 5000 tokens, 'e', .*…: ask for one"),
        ({"edits": [Edit(9, 0, 0.0)]}, "no cell L9.0 to edit"),
        ({"edits": [Edit(0, 0, 0.0, (3, 11))]}, "L0.0 is edited at position 11, but the text has 11 tokens"),
        ({"text": "x" * 64}, "65 tokens long with its start token; tiny-llama was built for 64"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        prompt.read(tiny("llama"), **{"text": TEXT, **options})


def test_a_position_within_reach_of_a_text_that_is_too_long() -> None:
    assert prompt.read(tiny("llama"), "x" * 100, position=20).position == 20


def test_a_model_that_overflows_is_told_apart_from_its_edits() -> None:
    model = tiny("llama", rms_norm_eps=1.3e-6)  # one of its own, to break
    huge = [Edit(0, cell, 3e38) for cell in range(model.cells.size(0))]
    with applied(model, huge), pytest.raises(UsageError, match="not finite any more. Use smaller scales"):
        prompt.read(model, TEXT, edits=huge)
    weight = model.sites[0].module.weight
    kept = weight.data.clone()
    weight.data[0, 0] = torch.inf
    with pytest.raises(ModelError, match="not finite in float32"):
        prompt.read(model, TEXT)
    weight.data.copy_(kept)


def test_threads_get_their_own_answers() -> None:
    model = tiny("llama")
    asked = [
        {"text": text, "edits": [] if cell is None else [Edit(1, cell, 6.0)]}
        for text in (TEXT, "A dog ran off")
        for cell in (None, 3, 5, 7)
    ]
    expected = [prompt.read(model, **one).to_json() for one in asked]  # type: ignore[arg-type]
    assert len({json.dumps(one) for one in expected}) == len(asked)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(6):
            if prompt.read(model, **asked[number]).to_json() != expected[number]:  # type: ignore[arg-type]
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_model_edited_for_good_is_its_own_original() -> None:
    model = Model(copy.deepcopy(tiny("llama").lm), tiny("llama").tokenizer, source="edited")
    with applied(tiny("llama"), [Edit(1, 5, 5.0)]):
        expected = top(model, own(tiny("llama"), 10), 10)
    intervene.apply(model, [Edit(1, 5, 5.0)])
    view = prompt.read(model, TEXT)
    assert view.original == view.prediction
    same(view.prediction, expected)
